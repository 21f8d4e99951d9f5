//! The same step with other regions: nodes are copied, gradient calls are made again.
//!
//! So barriers, binding, state, random keys and collectives of a region that a budget adds are those
//! of a region that somebody wrote.

use std::ops::Range;

use crate::{
    grad,
    ir::{Cursor, Gathered, Graph, NodeId, Output, Region, RegionId, Release, Role, ValueId},
    ops::{Op, OpError},
};

/// Which region every node of an elaborated graph is in.
#[derive(Debug, Clone, Default)]
pub struct Assignment {
    /// Parents before children. Nodes and values are those of the elaborated graph.
    pub regions: Vec<Region>,
    /// Of each node; what it says of nodes that gradient calls make is not looked at.
    pub region_of: Vec<Option<RegionId>>,
    /// Of each gradient call.
    pub call_regions: Vec<Option<RegionId>>,
}

impl Assignment {
    /// The regions that a graph has.
    pub fn original(graph: &Graph) -> Assignment {
        Assignment {
            regions: graph.regions.clone(),
            region_of: graph.nodes().map(|n| n.region()).collect(),
            call_regions: graph.gradients.iter().map(|c| c.cursor.region).collect(),
        }
    }
}

/// Builds an elaborated graph again with other regions. With its own it comes out as it was.
pub fn replay(graph: &Graph, assignment: &Assignment) -> Result<Graph, OpError> {
    let mut new = graph.skeleton();
    // Gradient calls count themselves.
    new.grad_calls = graph.grad_calls.saturating_sub(graph.gradients.len() as u32);
    new.regions = assignment
        .regions
        .iter()
        .map(|r| Region { keep: Vec::new(), outputs: Vec::new(), nodes: 0..0, ..r.clone() })
        .collect();
    let mut replay = Replay {
        graph,
        assignment,
        new,
        values: vec![None; graph.value_count()],
        nodes: Vec::with_capacity(graph.len()),
        positions: vec![0; graph.len() + 1],
        edges: Vec::with_capacity(2 * assignment.regions.len()),
        next_edge: 0,
        gathered: (Gathered::new(graph), Gathered::default()),
        last_uses: Vec::new(),
    };
    for (k, region) in assignment.regions.iter().enumerate() {
        replay.edges.extend([(region.nodes.start, k, false), (region.nodes.end, k, true)]);
    }
    replay.edges.sort_unstable();
    let mut calls = graph.gradients.iter().enumerate().peekable();
    let mut at = 0;
    while at <= graph.len() as u32 {
        replay.reach(at);
        if let Some((k, call)) = calls.next_if(|(_, call)| call.nodes.start <= at) {
            replay.call(k)?;
            // Positions inside of the call: nothing starts or ends there.
            for inner in at..call.nodes.end.max(at) {
                replay.nodes.push(None);
                replay.reach(inner + 1);
            }
            at = at.max(call.nodes.end);
            continue;
        }
        if at == graph.len() as u32 {
            break;
        }
        replay.copy(NodeId(at))?;
        at += 1;
    }
    replay.finish()
}

struct Replay<'g> {
    graph: &'g Graph,
    assignment: &'g Assignment,
    new: Graph,
    /// Of each old value and node, the new one. `None` for what gradient calls make inside.
    values: Vec<Option<ValueId>>,
    nodes: Vec<Option<NodeId>>,
    /// Of each old position, the number of new nodes before it.
    positions: Vec<u32>,
    /// Where regions start and end (true), and which.
    edges: Vec<(u32, usize, bool)>,
    next_edge: usize,
    /// What is made of gathered vectors, in both graphs.
    gathered: (Gathered, Gathered),
    /// The nodes of gradient calls that use the vectors of a unit last, in both graphs: a gather behind
    /// the call waits for them.
    last_uses: Vec<(Vec<NodeId>, Vec<NodeId>)>,
}

impl Replay<'_> {
    fn reach(&mut self, at: u32) {
        let position = self.new.len() as u32;
        if let Some(entry) = self.positions.get_mut(at as usize) {
            *entry = position;
        }
        // The gradient of a region's nodes asks where the region is.
        while let Some(&(_, region, ends)) = self.edges.get(self.next_edge).filter(|edge| edge.0 <= at) {
            self.next_edge += 1;
            if let Some(region) = self.new.regions.get_mut(region) {
                let start = if ends { region.nodes.start } else { position };
                region.nodes = start..position;
            }
        }
    }

    fn copy(&mut self, id: NodeId) -> Result<(), OpError> {
        let node = self.graph.node(id);
        let args = self.mapped(node.args())?;
        // What a `release` adds comes at the end, when all its users are there.
        let region = self.assignment.region_of.get(id.0 as usize).copied().flatten();
        let role = match node.role() {
            Role::Backward { of, call } => {
                let of = self.nodes.get(of.0 as usize).copied().flatten().ok_or_else(lost)?;
                Role::Backward { of, call }
            }
            role => role,
        };
        self.new.cursor = Cursor { region, role, ..node.stamp() };
        let before = self.waits_for(id)?;
        let new = self.new.push_after(node.op().clone(), &args, &before)?;
        self.nodes.push(Some(new));
        for (old, new) in node.results().zip(self.new.node(new).results()) {
            if let Some(entry) = self.values.get_mut(old.0 as usize) {
                *entry = Some(new);
            }
        }
        Ok(())
    }

    /// What a gather waits for: the last use of a unit before it.
    fn waits_for(&self, id: NodeId) -> Result<Vec<NodeId>, OpError> {
        let node = self.graph.node(id);
        if self.graph.gathers(&node).is_none() {
            return Ok(Vec::new());
        }
        if let Some((_, new)) = self.last_uses.iter().rev().find(|(old, _)| old == node.after()) {
            return Ok(new.clone());
        }
        let new = node.after().iter().map(|b| self.nodes.get(b.0 as usize).copied().flatten());
        new.collect::<Option<_>>().ok_or_else(lost)
    }

    /// Units are left in one order, whatever the regions are.
    fn note_uses(&mut self, old: &Range<u32>, new: Range<u32>) -> Result<(), OpError> {
        if self.graph.shards.is_empty() {
            return Ok(());
        }
        self.gathered.1.extend(&self.new);
        let old = self.gathered.0.last_uses(self.graph, old.clone());
        let new = self.gathered.1.last_uses(&self.new, new);
        if old.len() != new.len() {
            return Err(lost());
        }
        let pairs = old.into_iter().zip(new).map(|((_, old), (_, new))| (old, new));
        self.last_uses.extend(pairs);
        Ok(())
    }

    fn call(&mut self, k: usize) -> Result<(), OpError> {
        let Some(call) = self.graph.gradients.get(k) else { return Ok(()) };
        let outputs = call
            .outputs
            .iter()
            .map(|&(output, cotangent)| Ok((self.value(output)?, self.value(cotangent)?)))
            .collect::<Result<Vec<_>, OpError>>()?;
        let wrt = self.mapped(&call.wrt)?;
        let region = self.assignment.call_regions.get(k).copied().flatten();
        self.new.cursor = Cursor { region, ..call.cursor };
        let start = self.new.len() as u32;
        let results = grad::gradients(&mut self.new, &outputs, &wrt).map_err(|e| e.error)?;
        self.note_uses(&call.nodes, start..self.new.len() as u32)?;
        for (&old, new) in call.results.iter().zip(results) {
            match (old, new) {
                (Some(old), Some(new)) => self.map_gradient(old, new),
                (None, None) => {}
                _ => return Err(lost()),
            }
        }
        Ok(())
    }

    /// A gradient, and what it is a view of: `sync` takes the elements in the order they were made in.
    fn map_gradient(&mut self, mut old: ValueId, mut new: ValueId) {
        loop {
            if let Some(entry) = self.values.get_mut(old.0 as usize) {
                *entry = entry.or(Some(new));
            }
            let (was, is) = (self.graph.producer(old).0, self.new.producer(new).0);
            match (was.op(), was.args(), is.args()) {
                (op @ (Op::Transpose(_) | Op::Reshape(_)), &[from], &[to]) if op == is.op() => {
                    (old, new) = (from, to)
                }
                _ => return,
            }
        }
    }

    fn value(&self, old: ValueId) -> Result<ValueId, OpError> {
        self.values.get(old.0 as usize).copied().flatten().ok_or_else(lost)
    }

    fn mapped(&self, old: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        old.iter().map(|&v| self.value(v)).collect()
    }

    fn position(&self, old: u32) -> u32 {
        self.positions.get(old as usize).copied().unwrap_or(0)
    }

    fn range(&self, old: &Range<u32>) -> Range<u32> {
        self.position(old.start)..self.position(old.end)
    }

    fn finish(mut self) -> Result<Graph, OpError> {
        let graph = self.graph;
        self.new.cursor = graph.cursor;
        let outputs = graph
            .outputs
            .iter()
            .map(|o| Ok(Output { value: self.value(o.value)?, ..o.clone() }))
            .collect::<Result<_, OpError>>()?;
        self.new.outputs = outputs;
        for (k, region) in self.assignment.regions.iter().enumerate() {
            let (nodes, keep, outputs) =
                (self.range(&region.nodes), self.mapped(&region.keep)?, self.mapped(&region.outputs)?);
            if let Some(new) = self.new.regions.get_mut(k) {
                *new = Region { nodes, keep, outputs, ..new.clone() };
            }
        }
        for (&old, name) in &graph.names {
            if let Some(&Some(new)) = self.values.get(old.0 as usize) {
                self.new.names.insert(new, name.clone());
            }
        }
        for (&old, mark) in &graph.marks {
            if let Some(&Some(new)) = self.values.get(old.0 as usize) {
                self.new.marks.insert(new, mark.clone());
            }
        }
        for release in &graph.releases {
            let release = Release { value: self.value(release.value)?, nodes: self.range(&release.nodes) };
            let users = users_before(&self.new, &release);
            self.new.order_release(&users, release.nodes.clone());
            self.new.releases.push(release);
        }
        Ok(self.new)
    }
}

/// The nodes before a release that make or use the memory of its value.
fn users_before(graph: &Graph, release: &Release) -> Vec<NodeId> {
    let mut bases: Vec<ValueId> = Vec::with_capacity(graph.value_count());
    let base = |bases: &[ValueId], v: ValueId| bases.get(v.0 as usize).copied().unwrap_or(v);
    for node in graph.nodes() {
        for (k, value) in node.results().enumerate() {
            let parent = node.shared_operand(k);
            let of = parent.map_or(value, |p| base(&bases, p));
            bases.push(of);
        }
    }
    let released = base(&bases, release.value);
    let uses = |v: ValueId| base(&bases, v) == released;
    graph
        .nodes()
        .take_while(|n| n.id.0 < release.nodes.start)
        .filter(|n| n.args().iter().any(|&a| uses(a)) || n.results().any(uses))
        .map(|n| n.id)
        .collect()
}

/// Only results of a gradient call are used outside of it.
fn lost() -> OpError {
    OpError::new("internal: a value of a gradient call is used that is not among its results")
}
