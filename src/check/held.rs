//! What holds a released value: the same chains as those of memory diagnostics, told of a step that
//! is not planned yet.

use rustc_hash::FxHashSet;

use crate::{
    diagnose::Keeper,
    ir::{Graph, NodeId, Policy, Region, RegionId, Role, ValueId},
    ops::Op,
    report::Bytes,
    source::{SourceMap, Span},
};

/// A released value with the nodes that use its buffer, before the release and after it.
pub(super) struct Released<'a> {
    pub value: ValueId,
    pub base: ValueId,
    pub users: (&'a [NodeId], &'a [NodeId]),
}

/// A place that needs the memory of a released value after its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    keeper: Keeper,
    /// The line of the program: for a gradient the forward line that it is taken of.
    pub place: Option<Span>,
    /// The view that it is held through.
    view: Option<Span>,
}

/// `(f32[8, 128], 4.0 KiB), made on line 3`.
pub(super) fn made(graph: &Graph, sources: &SourceMap, value: ValueId) -> String {
    let ty = graph.ty(value);
    let line =
        graph.origins.user_span(graph.producer(value).0.origin(), sources).map(|s| sources.start(s).line);
    let line = line.map(|l| format!(", made on line {l}")).unwrap_or_default();
    format!("({ty}, {}){line}", Bytes(ty.bytes()))
}

impl Released<'_> {
    /// Everything that holds the value, each place once, in the order of the graph.
    pub fn holders(
        &self,
        graph: &Graph,
        sources: &SourceMap,
        base: impl Fn(ValueId) -> ValueId,
    ) -> Vec<Holder> {
        let mut found: Vec<Holder> = Vec::new();
        let mut add = |holder: Holder| {
            if found.iter().all(|h| (h.keeper, h.place) != (holder.keeper, holder.place)) {
                found.push(holder);
            }
        };
        let view_of = |arg: ValueId| {
            let is_view = arg != self.value && arg != self.base;
            let maker = graph.producer(arg).0;
            is_view.then(|| graph.origins.user_span(maker.origin(), sources)).flatten()
        };
        for &id in self.users.1 {
            let node = graph.node(id);
            let view = node.args().iter().find(|&&a| base(a) == self.base).and_then(|&a| view_of(a));
            let (keeper, of) = match (node.op(), node.role()) {
                (Op::Print(_), _) => (Keeper::Debug, node),
                (_, Role::Update { slot }) => (Keeper::Update(slot), node),
                (_, Role::Backward { of, .. }) if (of.0 as usize) < graph.len() => {
                    (Keeper::Gradient, graph.node(of))
                }
                (_, Role::Backward { .. }) => (Keeper::Gradient, node),
                _ => (Keeper::Forward, node),
            };
            add(Holder { keeper, place: graph.origins.user_span(of.origin(), sources), view });
        }
        for region in self.computed_again(graph, &base) {
            let origin = graph.regions.get(region.0 as usize).map(|r| r.origin);
            let place = origin.and_then(|o| graph.origins.user_span(o, sources));
            add(Holder { keeper: Keeper::Recompute, place, view: None });
        }
        for (k, output) in graph.outputs.iter().enumerate().filter(|(_, o)| base(o.value) == self.base) {
            let place = graph.origins.user_span(output.origin, sources);
            add(Holder { keeper: Keeper::Output(k), place, view: view_of(output.value) });
        }
        found
    }

    /// Plain regions that read the value, and compute again what a gradient needs of it.
    fn computed_again(&self, graph: &Graph, base: &impl Fn(ValueId) -> ValueId) -> Vec<RegionId> {
        let mut regions: Vec<RegionId> = Vec::new();
        for &id in self.users.0 {
            let Some(id) = graph.node(id).region().filter(|r| !regions.contains(r)) else { continue };
            let Some(region) = graph.regions.get(id.0 as usize) else { continue };
            // What a region makes itself is freed in it, and a policy may keep what follows.
            let is_inside = region.nodes.contains(&graph.producer(self.base).0.id.0);
            if !is_inside && region.policy == Policy::Nothing && self.is_needed_in(graph, region, base) {
                regions.push(id);
            }
        }
        regions
    }

    /// Whether a backward op uses a value of the region that comes from the released one and is not
    /// kept: what leaves the region is.
    fn is_needed_in(&self, graph: &Graph, region: &Region, base: &impl Fn(ValueId) -> ValueId) -> bool {
        let is_kept = |v: &ValueId| region.outputs.contains(v) || region.keep.contains(v);
        let mut from_it: FxHashSet<ValueId> = FxHashSet::default();
        for node in graph.nodes_from(NodeId(region.nodes.start)).take_while(|n| n.id.0 < region.nodes.end) {
            let follows = node.args().iter().any(|&a| base(a) == self.base || from_it.contains(&a));
            if follows {
                from_it.extend(node.results().filter(|v| !is_kept(v)));
            }
        }
        let later = graph.nodes_from(NodeId(region.nodes.end));
        let backward = later.filter(|n| matches!(n.role(), Role::Backward { .. }));
        backward.into_iter().any(|n| n.args().iter().any(|a| from_it.contains(a)))
    }
}

impl Holder {
    /// The text of a label at the place.
    pub fn label(&self, graph: &Graph) -> String {
        self.keeper.label(&self.updated(graph))
    }

    /// Why it is held, with the lines of the chain.
    pub fn sentence(&self, graph: &Graph, sources: &SourceMap) -> String {
        let line = |span: Span| sources.start(span).line;
        let why = self.keeper.reason(self.place.map(line), &self.updated(graph));
        match self.view.filter(|v| Some(*v) != self.place) {
            Some(view) => format!("{why}, through the view taken on line {}", line(view)),
            None => why,
        }
    }

    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self.keeper {
            Keeper::Output(_) => "return a `copy`",
            Keeper::Recompute => {
                "take the `release` away, or keep what the gradient needs with `checkpoint(keep: […]) < … >`"
            }
            Keeper::Gradient => {
                "compute it again in the backward pass with `checkpoint < … >`, or release it later"
            }
            _ => "release it later",
        }
    }

    fn updated(&self, graph: &Graph) -> String {
        match self.keeper {
            Keeper::Update(slot) => {
                graph.slots.get(slot.0 as usize).map_or_else(String::new, |s| s.name.to_string())
            }
            _ => String::new(),
        }
    }
}
