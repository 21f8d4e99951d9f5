//! Reverse-mode differentiation, as more nodes of the same graph.
//!
//! Gradients are built while a step is elaborated, from the nodes that exist so far, because later
//! code uses them (clipping, then the update). Each backward node remembers the forward node it
//! serves, and entering a `checkpoint` region from behind leaves a barrier that lowering completes.

mod barriers;
mod unit;

use crate::{
    ir::{Gathered, GradCallId, GradientCall, Graph, NodeId, Role, SlotKind, ValueId},
    ops::{GradNode, Gradient, Op, OpError},
};

use barriers::Barriers;
use unit::Unit;

/// A gradient that cannot be built, and the forward node at which it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GradError {
    pub node: NodeId,
    pub error: OpError,
}

/// Appends the nodes that compute, for each value of `wrt`, the sum over `outputs` of
/// cotangent · ∂output/∂value. `None` where no output depends on the value (through
/// differentiable ops). A cotangent has the type of its output.
///
/// Contributions to one value are added in the order of the backward pass: the last use in source
/// order comes first.
pub fn gradients(
    graph: &mut Graph,
    outputs: &[(ValueId, ValueId)],
    wrt: &[ValueId],
) -> Result<Vec<Option<ValueId>>, GradError> {
    let call = GradCallId(graph.grad_calls);
    graph.grad_calls += 1;
    let caller = graph.cursor;
    let start = graph.len() as u32;
    let result = Backward::new(graph, 0, wrt, call).run(graph, outputs, wrt);
    graph.cursor = caller;
    if let Ok(results) = &result {
        graph.gradients.push(GradientCall {
            nodes: start..graph.len() as u32,
            outputs: outputs.to_vec(),
            wrt: wrt.to_vec(),
            results: results.clone(),
            cursor: caller,
        });
    }
    result
}

/// One backward pass over the nodes from `start` to `end`.
struct Backward {
    call: GradCallId,
    /// The forward node that all of this pass is for, when it goes through the composed form of one.
    serves: Option<NodeId>,
    start: u32,
    end: u32,
    /// Of each value before `end`: it depends on a value of `wrt`.
    depends: Vec<bool>,
    /// Of each value: it depends on data (inputs, random numbers, state), not on parameters and
    /// constants alone. Grows with the graph.
    data: Vec<bool>,
    /// Of each value before `end`: its cotangent so far.
    cotangents: Vec<Option<ValueId>>,
    /// What is made of gathered vectors alone. Grows with the graph.
    gathered: Gathered,
    /// The unit of a sharded model that the pass goes through.
    unit: Option<Unit>,
}

impl Backward {
    fn new(graph: &Graph, start: u32, wrt: &[ValueId], call: GradCallId) -> Self {
        let mut depends = vec![false; graph.value_count()];
        for value in wrt {
            set(&mut depends, *value, true);
        }
        for node in graph.nodes_from(NodeId(start)) {
            if node.args().iter().any(|&arg| get(&depends, arg)) {
                for result in node.results().filter(|&r| graph.ty(r).dtype().is_float()) {
                    set(&mut depends, result, true);
                }
            }
        }
        let mut pass = Backward {
            call,
            serves: None,
            start,
            end: graph.len() as u32,
            depends,
            data: Vec::new(),
            cotangents: vec![None; graph.value_count()],
            gathered: Gathered::default(),
            unit: None,
        };
        pass.extend_data(graph);
        pass
    }

    fn run(
        mut self,
        graph: &mut Graph,
        outputs: &[(ValueId, ValueId)],
        wrt: &[ValueId],
    ) -> Result<Vec<Option<ValueId>>, GradError> {
        for &(output, cotangent) in outputs {
            if get(&self.depends, output) {
                let (producer, _) = graph.producer(output);
                let producer = producer.id;
                self.accumulate(graph, producer, output, cotangent)?;
            }
        }
        let mut barriers = Barriers::new(graph, self.start, self.end, outputs);
        for id in (self.start..self.end).rev().map(NodeId) {
            OpError::if_cancelled().map_err(|error| GradError { node: id, error })?;
            if self.unit.as_ref().is_some_and(|unit| id.0 < unit.first) {
                self.leave_unit(graph, &mut barriers)?;
            }
            self.step(graph, &mut barriers, id)?;
        }
        self.leave_unit(graph, &mut barriers)?;
        Ok(wrt.iter().map(|&value| get(&self.cotangents, value)).collect())
    }

    /// Differentiates one node, if anything reached it.
    fn step(&mut self, graph: &mut Graph, barriers: &mut Barriers, id: NodeId) -> Result<(), GradError> {
        let node = graph.node(id);
        let wanted: Vec<bool> =
            node.args().iter().map(|&a| get(&self.depends, a) && graph.ty(a).dtype().is_float()).collect();
        let has_cotangent = node.results().any(|r| get(&self.cotangents, r).is_some());
        if !wanted.contains(&true) || !(has_cotangent || self.gets_more(&node)) {
            return Ok(());
        }
        let (op, args, results) =
            (node.op().clone(), node.args().to_vec(), node.results().collect::<Vec<_>>());
        let (origin, region) = (node.origin(), node.region());
        let fail = |error| GradError { node: id, error };

        graph.cursor.role = Role::Backward { of: self.serves.unwrap_or(id), call: self.call };
        graph.cursor.origin = origin;
        let is_data = results.iter().any(|&r| get(&self.data, r));
        barriers.before(graph, self, id, region, is_data).map_err(fail)?;
        barriers.hold(graph, self, id, &wanted).map_err(fail)?;
        let wanted = self.put_off(graph, id, &wanted);
        if !wanted.contains(&true) {
            return Ok(());
        }

        let cotangents: Vec<_> = results.iter().map(|&r| get(&self.cotangents, r)).collect();
        let at =
            GradNode { node: id, args: &args, results: &results, cotangents: &cotangents, wanted: &wanted };
        let cotangents = match op.grad(graph, &at).map_err(fail)? {
            Gradient::Args(cotangents) => cotangents,
            Gradient::Zero => return Ok(()),
            Gradient::Decompose => self.through_decomposition(graph, &op, &at)?,
        };
        for ((&arg, &wanted), cotangent) in args.iter().zip(&wanted).zip(cotangents) {
            if let (true, Some(cotangent)) = (wanted, cotangent) {
                self.accumulate(graph, id, arg, cotangent)?;
            }
        }
        self.extend_data(graph);
        barriers.after(graph, self, region, &args, &wanted);
        Ok(())
    }

    /// The cotangents of an op's operands by way of its composed form.
    fn through_decomposition(
        &self,
        graph: &mut Graph,
        op: &Op,
        at: &GradNode<'_>,
    ) -> Result<Vec<Option<ValueId>>, GradError> {
        let start = graph.len() as u32;
        let results = op.decompose(graph, at.args).map_err(|error| GradError { node: at.node, error })?;
        let wrt: Vec<ValueId> = at.args.iter().zip(at.wanted).filter(|&(_, &w)| w).map(|(&a, _)| a).collect();
        let outputs: Vec<(ValueId, ValueId)> =
            results.iter().zip(at.cotangents).filter_map(|(&r, c)| Some((r, (*c)?))).collect();
        let role = graph.cursor.role;
        let mut inner = Backward::new(graph, start, &wrt, self.call);
        inner.serves = Some(self.serves.unwrap_or(at.node));
        let inner = inner.run(graph, &outputs, &wrt);
        graph.cursor.role = role;
        // One of `at.node`'s own operands may stand in it twice: each position gets its own share
        // only once, so later repeats get nothing.
        let mut found = wrt.into_iter().zip(inner?).collect::<Vec<_>>();
        Ok(at
            .args
            .iter()
            .map(|arg| found.iter_mut().find(|(a, _)| a == arg).and_then(|(_, c)| c.take()))
            .collect())
    }

    /// Adds `cotangent` to what `value` has so far; `user` is the node it came through.
    fn accumulate(
        &mut self,
        graph: &mut Graph,
        user: NodeId,
        value: ValueId,
        cotangent: ValueId,
    ) -> Result<(), GradError> {
        let fail = |error| GradError { node: user, error };
        if graph.ty(value) != graph.ty(cotangent) {
            return Err(fail(OpError::new(format!(
                "internal: the gradient of `{}` for an operand of type {} has type {}",
                graph.node(user).op().name(),
                graph.ty(value),
                graph.ty(cotangent),
            ))));
        }
        let sum = match get(&self.cotangents, value) {
            None => cotangent,
            Some(sum) => graph.add(sum, cotangent).map_err(fail)?,
        };
        set(&mut self.cotangents, value, Some(sum));
        Ok(())
    }

    /// Whether `value` is made of parameters and constants alone, and is differentiated.
    fn is_parameter_like(&self, value: ValueId) -> bool {
        get(&self.depends, value) && !get(&self.data, value)
    }

    /// Classifies the values that were appended since the last call.
    fn extend_data(&mut self, graph: &Graph) {
        self.gathered.extend(graph);
        let known = self.data.len();
        if known == graph.value_count() {
            return;
        }
        let first = graph.producer(ValueId(known as u32)).0.id;
        for node in graph.nodes_from(first) {
            let is_data = match node.op() {
                Op::Input(_) | Op::Random(_) => true,
                // What a host registers is a function of its operands alone.
                Op::Opaque(op) if op.host.is_none() => true,
                Op::Read(read) => !matches!(
                    graph.slots.get(read.slot.0 as usize).map(|s| s.kind),
                    Some(SlotKind::Param { .. })
                ),
                // It waits for a unit before it, and is made of parameters.
                Op::CollectiveStart(_) if graph.gathers(&node).is_some() => false,
                _ => !node.after().is_empty() || node.args().iter().any(|&a| get(&self.data, a)),
            };
            self.data.extend(node.results().map(|_| is_data));
        }
    }
}

fn get<T: Copy + Default>(of: &[T], value: ValueId) -> T {
    of.get(value.0 as usize).copied().unwrap_or_default()
}

fn set<T>(of: &mut [T], value: ValueId, to: T) {
    if let Some(entry) = of.get_mut(value.0 as usize) {
        *entry = to;
    }
}
