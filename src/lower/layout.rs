//! Decides where the elements of every value lie, and inserts copies where no strides do.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    casts::made_at_uses,
    views::{InView, View, Views},
};
use crate::{
    ir::{Cursor, Graph, Node, NodeId, Output, Phase, Role, SlotId, ValueId},
    ops::{Alias, Copy, Layout, Op, OpError},
};

/// Where a value lies.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    /// The value whose buffer it is in: itself, or what it is a view of.
    pub base: ValueId,
    pub layout: Layout,
    /// The last barrier on the way from `base`.
    pub gate: Option<NodeId>,
    /// The slice of `base` that it lies in.
    pub view: Option<InView>,
}

/// A graph in which every op gets operands that its kernel accepts.
pub(super) struct Laid {
    pub graph: Graph,
    /// One per value.
    pub places: Vec<Placed>,
    /// The slices that may be copied.
    pub views: Vec<View>,
}

pub(super) fn lay_out(old: &Graph) -> Result<Laid, OpError> {
    let mut new = old.skeleton();
    new.regions = old.regions.clone();
    let mut pass = Pass {
        laid: Laid { graph: new, places: Vec::new(), views: Vec::new() },
        copies: FxHashMap::default(),
        views: Views::default(),
    };
    let mut values = vec![ValueId(0); old.value_count()];
    let mut nodes = vec![NodeId(0); old.len()];
    let casts = made_at_uses(old);
    // Outputs that are the old value of a persistent tensor are copied before it is written.
    let mut outputs: Vec<Option<ValueId>> = vec![None; old.outputs.len()];
    let mut written = FxHashSet::default();
    for node in old.nodes() {
        if let Op::Write(write) = node.op() {
            written.insert(write.slot);
            for (output, copy) in old.outputs.iter().zip(&mut outputs).filter(|(_, copy)| copy.is_none()) {
                let is_made = old.producer(output.value).0.id < node.id;
                let value = values[output.value.0 as usize];
                if is_made && pass.reads(value) == Some(write.slot) {
                    *copy = Some(pass.copy(value, output_stamp(output))?);
                }
            }
        }
        let mut args: Vec<ValueId> = node.args().iter().map(|a| values[a.0 as usize]).collect();
        let after: Vec<NodeId> = node.after().iter().map(|a| nodes[a.0 as usize]).collect();
        let mut stamp = node.stamp();
        if let Role::Backward { of, call } = node.role() {
            stamp.role = Role::Backward { of: nodes[of.0 as usize], call };
        }
        for (k, old_arg) in node.args().iter().enumerate() {
            // Operands that are one value stay one.
            if casts.get(old_arg).is_some_and(|&first| first != node.id)
                && let Some(same) = node.args().iter().position(|a| a == old_arg)
            {
                args[k] = if same < k { args[same] } else { pass.again(args[k])? };
            }
        }
        pass.prepare_operands(&node, stamp, &mut args)?;
        pass.laid.graph.cursor = stamp;
        let id = pass.laid.graph.push_copy(&node, node.op().clone(), &args, &after)?;
        pass.put(id)?;
        nodes[node.id.0 as usize] = id;
        let results: Vec<ValueId> = pass.laid.graph.node(id).results().collect();
        for (k, (old_value, result)) in node.results().zip(results).enumerate() {
            // Whoever reads a committed value reads the value that was committed.
            let is_commit = matches!(node.op(), Op::Write(_));
            let value = args.get(k).copied().filter(|_| is_commit).unwrap_or(result);
            values[old_value.0 as usize] = value;
            if let Some(name) = old.names.get(&old_value) {
                pass.laid.graph.names.insert(value, name.clone());
            }
        }
    }
    for (output, copy) in old.outputs.iter().zip(outputs) {
        let value = values[output.value.0 as usize];
        let place = pass.place(value);
        let is_constant = matches!(pass.laid.graph.producer(place.base).0.op(), Op::Const(_) | Op::Scalar(_));
        let is_dense = place.layout.is_dense(pass.laid.graph.ty(value).shape());
        let value = match copy {
            Some(copy) => copy,
            // A view of an old value may be made behind the write.
            None if is_dense
                && !is_constant
                && !pass.reads(value).is_some_and(|slot| written.contains(&slot)) =>
            {
                value
            }
            None => pass.copy(value, output_stamp(output))?,
        };
        pass.laid.graph.outputs.push(Output { value, ..output.clone() });
    }
    pass.laid.views = pass.views.list;
    Ok(pass.laid)
}

/// A copy for an output belongs to the `return` that names it.
fn output_stamp(output: &Output) -> Cursor {
    Cursor { origin: output.origin, role: Role::Forward, region: None, instance: 0 }
}

struct Pass {
    laid: Laid,
    /// Copies made so far, by value and by the recompute they belong to.
    copies: FxHashMap<(ValueId, Phase, u32), ValueId>,
    views: Views,
}

impl Pass {
    fn prepare_operands(
        &mut self,
        node: &Node<'_>,
        stamp: Cursor,
        args: &mut [ValueId],
    ) -> Result<(), OpError> {
        let memory = node.op().memory();
        match node.op() {
            // A commit stores what an op of its own made.
            Op::Write(_) => {
                for arg in args {
                    let is_alias = self.place(*arg).base != *arg
                        || matches!(
                            self.laid.graph.producer(*arg).0.op(),
                            Op::Read(_) | Op::Input(_) | Op::Const(_) | Op::Scalar(_)
                        );
                    if is_alias {
                        *arg = self.copy(*arg, stamp)?;
                    }
                }
            }
            op if super::fuse::is_elementwise(op) => {}
            // Between start and end a collective reads what its start reads, which may be a copy.
            Op::CollectiveDone(_) => {
                let start = args.first().map(|&started| self.laid.graph.producer(started).0);
                let read = start
                    .filter(|start| matches!(start.op(), Op::CollectiveStart(_)))
                    .and_then(|start| start.args().first().copied());
                if let (Some(read), Some(arg)) = (read, args.get_mut(1)) {
                    *arg = read;
                }
            }
            op if memory.alias == Alias::View => {
                let result = node.result(0);
                if let (Some(arg), [arg_type]) = (args.first_mut(), &node.arg_types().collect::<Vec<_>>()[..])
                {
                    let result_type = node.graph_type(result);
                    if op.view(&self.place(*arg).layout, arg_type, result_type).is_none() {
                        *arg = self.copy(*arg, stamp)?;
                    }
                }
            }
            _ if memory.alias == Alias::Each || memory.strided => {}
            _ => {
                for arg in args {
                    if !self.place(*arg).layout.is_dense(self.laid.graph.ty(*arg).shape()) {
                        *arg = self.copy(*arg, stamp)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What the maker of a value makes, made once more.
    fn again(&mut self, value: ValueId) -> Result<ValueId, OpError> {
        let maker = self.laid.graph.producer(value).0;
        let (stamp, op, args) = (maker.stamp(), maker.op().clone(), maker.args().to_vec());
        self.laid.graph.cursor = stamp;
        let id = self.laid.graph.push(op, &args)?;
        self.put(id)?;
        Ok(self.laid.graph.node(id).result(0))
    }

    /// The persistent tensor whose old value this is a view of.
    fn reads(&self, value: ValueId) -> Option<SlotId> {
        match self.laid.graph.producer(self.place(value).base).0.op() {
            Op::Read(read) => Some(read.slot),
            _ => None,
        }
    }

    fn place(&self, value: ValueId) -> &Placed {
        &self.laid.places[value.0 as usize]
    }

    fn copy(&mut self, value: ValueId, stamp: Cursor) -> Result<ValueId, OpError> {
        let key = (value, stamp.role.phase(), stamp.instance);
        if let Some(&copy) = self.copies.get(&key) {
            return Ok(copy);
        }
        self.laid.graph.cursor = stamp;
        let id = self.laid.graph.push(Copy, &[value])?;
        self.put(id)?;
        let copy = self.laid.graph.node(id).result(0);
        if let Some(name) = self.laid.graph.names.get(&value).cloned() {
            self.laid.graph.names.insert(copy, name);
        }
        self.copies.insert(key, copy);
        Ok(copy)
    }

    /// Works out where the results of a new node lie.
    fn put(&mut self, id: NodeId) -> Result<(), OpError> {
        let graph = &self.laid.graph;
        let node = graph.node(id);
        let args = node.args();
        let alias = node.op().memory().alias;
        for place in args.iter().filter_map(|a| self.laid.places.get(a.0 as usize)) {
            self.views.read(node.op(), place);
        }
        for (k, result) in node.results().enumerate() {
            let ty = graph.ty(result);
            let own = Placed { base: result, layout: Layout::dense(ty.shape()), gate: None, view: None };
            let operand = |k: usize| args.get(k).and_then(|a| self.laid.places.get(a.0 as usize)).cloned();
            let place = match (node.op(), alias) {
                // The value written lies where its maker puts it: in the slot, if that is possible.
                (Op::Write(_) | Op::Print(_), _) => operand(0).unwrap_or(own),
                // Whoever uses the result of a collective waits for its end.
                (Op::CollectiveDone(_), _) => Placed { gate: Some(id), ..operand(0).unwrap_or(own) },
                (_, Alias::Each) => Placed { gate: Some(id), ..operand(k).unwrap_or(own) },
                (op, Alias::View) => {
                    let from = operand(0).unwrap_or(own);
                    let operand_type = args.first().map_or(ty, |&a| graph.ty(a));
                    let layout = op.view(&from.layout, operand_type, ty).ok_or_else(|| {
                        OpError::new(format!("internal: `{}` of a dense value needs a copy", op.name()))
                    })?;
                    let view = self.views.of(graph, &node, &from, &layout);
                    Placed { layout, view, ..from }
                }
                (_, Alias::Fresh) => own,
            };
            self.laid.places.push(place);
        }
        Ok(())
    }
}
