//! How graph code gets at parameters that are spread over the ranks.
//!
//! The first read of a unit's parameter gathers their vector, and later reads are views of it, until
//! the unit's call ends, another unit is gathered, or a `checkpoint` region begins or ends. These nodes
//! are a region whose backward pass gathers again ([`Policy::Gathers`]). A gather waits for the last
//! use of the unit before it, so that no order has more units gathered than `prefetch` allows.

use std::sync::Arc;

use crate::{
    check::{
        Evaluator,
        errors::Eval,
        frame::{Frame, FrameKind},
        persistent::Group,
        scope::{Scope, ScopeKind},
        value::Cell,
    },
    codes,
    diagnostic::{Diagnostic, Severity},
    ir::{Bind, Gathered, NodeId, Policy, Region, RegionId, ValueId},
    ops::{CollectiveDone, CollectiveKind, CollectiveStart, OpError, Slice, SliceRange},
    source::Span,
};

/// What a graph has gathered so far.
#[derive(Default)]
pub struct Gathers {
    open: Option<Open>,
    /// Units whose calls are running, the innermost last.
    calls: Vec<u64>,
    /// The last uses of the units that were gathered, in the order of the source.
    uses: Vec<Vec<NodeId>>,
    values: Gathered,
    /// All views that were made of parameters, by parameter.
    views: Vec<(u64, ValueId)>,
    /// All vectors that were gathered, by part, each with the value of the part.
    vectors: Vec<(u64, ValueId, ValueId)>,
}

/// A unit that is gathered.
struct Open {
    unit: u64,
    region: RegionId,
    outer: Option<RegionId>,
    start: u32,
    /// Of each part, the value that was gathered, and the vector.
    vectors: Vec<(u64, ValueId, ValueId)>,
    /// Of each parameter, the vector that it was taken from, and the view.
    views: Vec<(u64, ValueId, ValueId)>,
}

impl Gathers {
    /// The views that were made of a parameter.
    pub fn views_of(&self, cell: &Cell) -> impl Iterator<Item = ValueId> {
        self.views.iter().filter(|(id, _)| *id == cell.id).map(|(_, view)| *view)
    }

    /// The vectors that were gathered of a part, each with the value of the part that it was made of.
    pub fn vectors_of(&self, part: &Cell) -> Vec<(ValueId, ValueId)> {
        let own = self.vectors.iter().filter(|(id, _, _)| *id == part.id);
        own.map(|(_, of, vector)| (*of, *vector)).collect()
    }
}

impl Frame {
    /// The value of a parameter that is spread over the ranks.
    pub fn read_gathered(
        &mut self,
        cell: &Arc<Cell>,
        part: &Arc<Cell>,
        group: &Group,
    ) -> Result<ValueId, OpError> {
        let current = self.read(part)?;
        if self.gathers.open.as_ref().is_none_or(|open| open.unit != group.unit) {
            self.end_gather();
            self.begin_gather(group.unit);
        }
        let vector = match &self.gathers.open {
            Some(open) => {
                let mut known = open.vectors.iter().filter(|(id, of, _)| (*id, *of) == (part.id, current));
                known.next().map(|(_, _, vector)| *vector)
            }
            None => None,
        };
        let vector = match vector {
            Some(vector) => vector,
            None => self.gather(part, group, current)?,
        };
        let views = self.gathers.open.iter().flat_map(|open| &open.views);
        let mut known = views.filter(|(id, of, _)| (*id, *of) == (cell.id, vector)).map(|(_, _, view)| *view);
        if let Some(view) = known.next_back() {
            return Ok(view);
        }
        let start = group.member(cell).map_or(0, |m| m.start);
        let ranges = [SliceRange { start, step: 1, size: cell.ty.elements() }];
        let slice = self.graph.value(Slice { ranges: ranges.into() }, &[vector])?;
        let view = self.graph.reshape(slice, cell.ty.shape())?;
        self.graph.names.insert(view, cell.name());
        if let Some(open) = &mut self.gathers.open {
            open.views.push((cell.id, vector, view));
        }
        self.gathers.views.push((cell.id, view));
        Ok(view)
    }

    fn gather(&mut self, part: &Cell, group: &Group, current: ValueId) -> Result<ValueId, OpError> {
        let (kind, world) = (CollectiveKind::AllGather, group.shard.world);
        let ahead = group.shard.prefetch as usize;
        let uses = &self.gathers.uses;
        let after = uses.len().checked_sub(ahead.saturating_add(1)).and_then(|k| uses.get(k));
        let after = after.cloned().unwrap_or_default();
        let start = self.graph.push_after(CollectiveStart { kind, world }, &[current], &after)?;
        let started = self.graph.node(start).result(0);
        let vector = self.graph.value(CollectiveDone { kind, world }, &[started, current])?;
        let name: Arc<str> = if group.is_flat { part.name() } else { group.title.clone() };
        self.graph.names.insert(vector, Arc::clone(&name));
        self.graph.names.insert(started, name);
        if let Some(open) = &mut self.gathers.open {
            open.vectors.push((part.id, current, vector));
        }
        self.gathers.vectors.push((part.id, current, vector));
        Ok(vector)
    }

    fn begin_gather(&mut self, unit: u64) {
        let graph = &mut self.graph;
        let region = RegionId(graph.regions.len() as u32);
        let start = graph.len() as u32;
        let outer = graph.cursor.region.replace(region);
        graph.regions.push(Region {
            parent: outer,
            bind: Bind::All,
            policy: Policy::Gathers,
            keep: Vec::new(),
            outputs: Vec::new(),
            origin: graph.cursor.origin,
            nodes: start..start,
        });
        let (vectors, views) = (Vec::new(), Vec::new());
        self.gathers.open = Some(Open { unit, region, outer, start, vectors, views });
    }

    /// What is gathered is used for the last time, as far as the source says.
    pub fn end_gather(&mut self) {
        let Some(open) = self.gathers.open.take() else { return };
        self.graph.cursor.region = open.outer;
        let end = self.graph.len() as u32;
        if let Some(region) = self.graph.regions.get_mut(open.region.0 as usize) {
            region.nodes = open.start..end;
        }
        self.note_uses(open.start);
    }

    /// Remembers who used gathered vectors last among the nodes from one on.
    pub fn note_uses(&mut self, start: u32) {
        self.gathers.values.extend(&self.graph);
        let end = self.graph.len() as u32;
        let uses = self.gathers.values.last_uses(&self.graph, start..end);
        self.gathers.uses.extend(uses.into_iter().map(|(_, nodes)| nodes));
    }
}

impl Evaluator {
    /// The value of a parameter in the innermost graph, gathered if need be.
    pub(in crate::check) fn parameter_value(&mut self, cell: &Arc<Cell>, span: Span) -> Eval<ValueId> {
        let is_init = matches!(self.frames.last().map(|f| &f.kind), Some(FrameKind::Init));
        // Other parameters start from the first value, which every rank makes for itself.
        let part = cell.part().filter(|_| !is_init);
        let held = part.as_ref().map_or(cell, |(part, _)| part);
        if !self.frames.iter().any(|f| f.has_slot(held).is_some()) {
            let held = Arc::clone(held);
            self.prepare_cell(&held, span)?;
        }
        match part {
            None => self.build(span, |f| f.read(cell)),
            Some((part, group)) => {
                self.note_outside(cell, &group, span);
                self.build(span, |f| f.read_gathered(cell, &part, &group))
            }
        }
    }

    /// Says that a step reads a parameter outside of the calls of its unit: all of the unit is gathered
    /// for that.
    fn note_outside(&mut self, cell: &Cell, group: &Group, span: Span) {
        let is_outside = self.frames.last().is_some_and(|frame| {
            matches!(frame.kind, FrameKind::Step(_))
                && !frame.gathers.calls.contains(&group.unit)
                && frame.gathers.open.as_ref().is_none_or(|open| open.unit != group.unit)
        });
        if is_outside {
            let message = format!(
                "`{}` is read outside of the calls of its unit: `{}` is gathered for this use",
                cell.name(),
                group.title
            );
            self.report(
                Diagnostic::new(Severity::Note, codes::SHARD, span, message)
                    .secondary(group.span, "spread over the ranks here"),
            );
        }
    }

    /// The unit that a function with this scope belongs to.
    fn unit_of(&self, scope: &Arc<Scope>) -> Option<u64> {
        if self.shards.units.is_empty() {
            return None;
        }
        let mut scope = scope;
        loop {
            if let Some(&unit) = self.shards.units.get(&(Arc::as_ptr(scope) as usize)) {
                return Some(unit);
            }
            // Functions may be declared in an `if` of a model's body.
            scope = scope.parent.as_ref().filter(|_| scope.kind == ScopeKind::Block)?;
        }
    }

    /// Runs `body` as a call of a function with this scope: what its unit gathers is free when the
    /// outermost of its calls ends.
    pub(in crate::check) fn in_unit<T>(
        &mut self,
        scope: &Arc<Scope>,
        body: impl FnOnce(&mut Self) -> Eval<T>,
    ) -> Eval<T> {
        let Some(unit) = self.unit_of(scope) else { return body(self) };
        let depth = self.frames.len();
        if let Some(frame) = self.frames.last_mut() {
            frame.gathers.calls.push(unit);
        }
        let result = body(self);
        if let Some(frame) = self.frames.get_mut(depth.wrapping_sub(1)) {
            frame.gathers.calls.pop();
            let is_running = frame.gathers.calls.contains(&unit);
            if !is_running && frame.gathers.open.as_ref().is_some_and(|open| open.unit == unit) {
                frame.end_gather();
            }
        }
        result
    }
}
