//! What a budget must know of the values of an elaborated graph: their bytes, who needs them when,
//! and what it costs to make them again.

use crate::{
    ir::{Gathered, Graph, Node, NodeId, Policy, Role, ValueId},
    ops::{Alias, Op},
    plan::ALIGNMENT,
};

/// Facts by value are those of bases: a view counts as what it is a view of.
pub(super) struct Facts {
    /// Of each value, the value that holds its memory.
    pub base: Vec<ValueId>,
    /// Of each base: its memory, where keeping it costs any. Parameters, inputs, constants and outputs
    /// are there anyway.
    pub bytes: Vec<u64>,
    /// Of each base: the node that made it.
    pub maker: Vec<NodeId>,
    /// Of each base: the last node outside of gradient calls that uses it.
    pub last_use: Vec<u32>,
    /// Of each base: a gradient call uses it.
    pub needed: Vec<bool>,
    /// Of each base: the program releases it.
    pub released: Vec<bool>,
    /// Of each node: something needs it.
    pub live: Vec<bool>,
    /// Of each node: floating-point operations.
    pub flops: Vec<f64>,
    /// Of each node: a gradient call made it.
    pub in_call: Vec<bool>,
    /// What is made of gathered vectors alone.
    gathered: Gathered,
}

impl Facts {
    /// For chains inside of regions of the program that are `level` deep: 0 is outside of all. What is in
    /// deeper ones is made again from what is outside of them.
    pub fn of(graph: &Graph, level: usize) -> Facts {
        let live = live_nodes(graph);
        let mut facts = Facts {
            base: Vec::with_capacity(graph.value_count()),
            bytes: vec![0; graph.value_count()],
            maker: Vec::with_capacity(graph.value_count()),
            last_use: vec![0; graph.value_count()],
            needed: vec![false; graph.value_count()],
            released: vec![false; graph.value_count()],
            flops: vec![0.0; graph.len()],
            in_call: vec![false; graph.len()],
            live,
            gathered: Gathered::new(graph),
        };
        for call in &graph.gradients {
            let nodes = call.nodes.start as usize..call.nodes.end as usize;
            facts.in_call.get_mut(nodes).into_iter().flatten().for_each(|c| *c = true);
        }
        for node in graph.nodes() {
            facts.makes(graph, &node);
            // What a unit gathers it gathers again for its backward pass: nobody keeps it.
            for value in node.results().filter(|&v| facts.gathered.of(v).is_some()) {
                facts.bytes[value.0 as usize] = 0;
            }
        }
        let inside = deeper_regions(graph, level);
        let mut seen = vec![false; graph.value_count()];
        for node in graph.nodes() {
            if !facts.live[node.id.0 as usize] {
                continue;
            }
            for &arg in node.args() {
                facts.uses(graph, &node, arg, &inside, &mut seen);
            }
        }
        for output in &graph.outputs {
            // Alive to the end in any case.
            let base = facts.base(output.value);
            facts.bytes[base.0 as usize] = 0;
        }
        for release in &graph.releases {
            let base = facts.base(release.value);
            facts.released[base.0 as usize] = true;
        }
        facts
    }

    pub fn base(&self, value: ValueId) -> ValueId {
        self.base.get(value.0 as usize).copied().unwrap_or(value)
    }

    pub fn bytes(&self, base: ValueId) -> u64 {
        self.bytes.get(base.0 as usize).copied().unwrap_or(0)
    }

    fn makes(&mut self, graph: &Graph, node: &Node<'_>) {
        for (k, value) in node.results().enumerate() {
            let parent = node.shared_operand(k);
            self.base.push(parent.map_or(value, |p| self.base(p)));
            self.maker.push(node.id);
            if parent.is_none() && !is_there_anyway(node.op()) {
                let bytes = graph.ty(value).bytes();
                self.bytes[value.0 as usize] = bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
            }
        }
        let args: Vec<_> = node.arg_types().collect();
        let results: Vec<_> = node.results().map(|r| graph.ty(r)).collect();
        if node.op().memory().alias == Alias::Fresh && !is_there_anyway(node.op()) {
            self.flops[node.id.0 as usize] = node.op().flops(&args, &results);
        }
    }

    fn uses(&mut self, graph: &Graph, node: &Node<'_>, arg: ValueId, inside: &[bool], seen: &mut [bool]) {
        if !self.in_call[node.id.0 as usize] {
            let base = self.base(arg);
            let entry = &mut self.last_use[base.0 as usize];
            *entry = node.id.0.max(*entry);
            return;
        }
        // What is inside a deeper region that somebody wrote is made again from what is outside.
        let mut work = vec![self.base(arg)];
        while let Some(base) = work.pop() {
            let maker = self.maker[base.0 as usize];
            if !inside[maker.0 as usize] {
                self.needed[base.0 as usize] = true;
            } else if !std::mem::replace(&mut seen[base.0 as usize], true) {
                let maker = graph.node(maker);
                work.extend(maker.args().iter().map(|&a| self.base(a)));
            }
        }
    }

    /// The bases that a node reads, but those that are there anyway, and those that are gathered again.
    pub fn operands(&self, graph: &Graph, node: NodeId) -> Vec<ValueId> {
        let node = graph.node(node);
        debug_assert!(node.op().memory().alias == Alias::Fresh);
        let bases = node.args().iter().map(|&a| self.base(a));
        let is_free = |b: &ValueId| {
            is_there_anyway(graph.node(self.maker[b.0 as usize]).op()) || self.gathered.of(*b).is_some()
        };
        bases.filter(|b| !is_free(b)).collect()
    }
}

/// Of each node: it is in a region of the program that is more than `level` deep.
fn deeper_regions(graph: &Graph, level: usize) -> Vec<bool> {
    let depths = depths(graph);
    let depth = |n: &Node<'_>| n.region().and_then(|r| depths.get(r.0 as usize)).copied().unwrap_or(0);
    graph.nodes().map(|n| depth(&n) > level && n.role() == Role::Forward).collect()
}

/// Of each region of the program how deep it is: 1 for those in no other. What a unit gathers for is no
/// deeper than what is around it: but for the gathering, nothing of it is made again.
pub(super) fn depths(graph: &Graph) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(graph.regions.len());
    for region in &graph.regions {
        let around = region.parent.and_then(|p| depths.get(p.0 as usize)).copied().unwrap_or(0);
        depths.push(around + usize::from(region.policy != Policy::Gathers));
    }
    depths
}

/// Memory outside of the arena, or none.
fn is_there_anyway(op: &Op) -> bool {
    matches!(op, Op::Read(_) | Op::Input(_) | Op::Const(_) | Op::Literal(_) | Op::Iota(_) | Op::Scalar(_))
}

fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut values = vec![false; graph.value_count()];
    let mut nodes = vec![false; graph.len()];
    for output in &graph.outputs {
        values[output.value.0 as usize] = true;
    }
    for node in graph.nodes().rev() {
        if node.op().memory().effect || node.results().any(|r| values[r.0 as usize]) {
            nodes[node.id.0 as usize] = true;
            node.args().iter().for_each(|a| values[a.0 as usize] = true);
        }
    }
    nodes
}
