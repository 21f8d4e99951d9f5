//! The plain reference interpreter: node by node in source order, every value a tensor of its own.
//! It is the yardstick for planned execution and for gradients.

use super::{Call, Operand, ScalarPage, elementwise::Program};
use crate::{
    exec::{
        Tensor,
        comm::{Alone, Link, Tickets},
    },
    ir::{Graph, Node, NodeId, Type},
    ops::{Alias, CollectiveStart, Layout, Op, OpError},
    plan::{Access, Elementwise, Instr},
    schedule::BufferId,
};

/// An op that failed while a step ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunError {
    /// The op's node, or [`RunError::NOWHERE`].
    pub node: NodeId,
    pub error: OpError,
}

impl RunError {
    /// No node of any graph: what failed belongs to no op.
    pub const NOWHERE: NodeId = NodeId(u32::MAX);

    /// An error that belongs to no op.
    pub fn of_no_op(error: OpError) -> RunError {
        RunError { node: RunError::NOWHERE, error }
    }
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RunError {}

/// A value: a tensor, or a view of one.
#[derive(Clone)]
struct Value {
    base: Tensor,
    ty: Type,
    layout: Layout,
}

impl Value {
    fn dense(base: Tensor) -> Value {
        Value { ty: base.ty().clone(), layout: Layout::dense(base.shape()), base }
    }

    /// The value as a tensor of its own.
    fn to_tensor(&self, page: &ScalarPage) -> Result<Tensor, OpError> {
        if self.base.ty() == &self.ty && self.layout == Layout::dense(self.ty.shape()) {
            return Ok(self.base.clone());
        }
        let mut copy = super::zeros(&self.ty)?;
        let dense = Layout::dense(self.ty.shape());
        // SAFETY: `Operation::view` gives layouts inside the base; the copy is new.
        unsafe {
            let to = Operand::new(copy.bytes_mut()?.as_mut_ptr(), &self.ty, &dense);
            super::movement::copy(&Call::new(&[self.operand()], &[to], super::NO_WORKSPACE, 0, page))?;
        }
        Ok(copy)
    }

    /// # Safety
    /// Nobody writes through the operand.
    unsafe fn operand(&self) -> Operand<'_> {
        // SAFETY: the layout stays inside the base (`Operation::view`).
        unsafe { Operand::new(self.base.bytes().as_ptr().cast_mut(), &self.ty, &self.layout) }
    }
}

/// Runs a graph. `slots` are the persistent tensors (one per [`Graph::slots`]); reads see their
/// values at the start, and writes change them at the end, in order. Returns the graph's outputs.
///
/// Views stay views, as in a plan: how a product adds depends on the layout of its operands.
pub fn eval(
    graph: &Graph,
    slots: &mut [Tensor],
    inputs: &[Tensor],
    page: &ScalarPage,
) -> Result<Vec<Tensor>, RunError> {
    eval_and_show(graph, slots, inputs, page, &mut |_, _| {})
}

/// Like [`eval`]; `show` gets what `debug(x)` shows, with its label, in source order.
pub fn eval_and_show(
    graph: &Graph,
    slots: &mut [Tensor],
    inputs: &[Tensor],
    page: &ScalarPage,
    show: &mut dyn FnMut(&str, &Tensor),
) -> Result<Vec<Tensor>, RunError> {
    let mut alone = Link { comm: &mut Alone, place: &|_, _| String::new() };
    eval_among(graph, slots, inputs, page, show, &mut alone)
}

/// Like [`eval_and_show`], as one of several ranks that run the same graph.
pub fn eval_among(
    graph: &Graph,
    slots: &mut [Tensor],
    inputs: &[Tensor],
    page: &ScalarPage,
    show: &mut dyn FnMut(&str, &Tensor),
    link: &mut Link<'_>,
) -> Result<Vec<Tensor>, RunError> {
    let mut values: Vec<Option<Value>> = vec![None; graph.value_count()];
    let mut writes = Vec::new();
    for node in graph.nodes() {
        let fail = |error| RunError { node: node.id, error };
        OpError::if_cancelled().map_err(fail)?;
        let args = node
            .args()
            .iter()
            .map(|arg| values.get(arg.0 as usize).cloned().flatten())
            .collect::<Option<Vec<Value>>>()
            .ok_or_else(|| fail(OpError::new("internal: a value is used before it is computed")))?;
        let results = match node.op() {
            Op::CollectiveStart(op) if op.world > 1 => {
                collective(graph, &node, op, args, page, link).map_err(fail)?
            }
            _ => evaluate(&node, args, slots, inputs, page).map_err(fail)?,
        };
        if let (Op::Print(print), Some(value)) = (node.op(), results.first()) {
            show(&print.label, &value.to_tensor(page).map_err(fail)?);
        }
        if let (Op::Write(write), Some(value)) = (node.op(), results.first()) {
            writes.push((write.slot, value.to_tensor(page).map_err(fail)?));
        }
        for (id, (value, ty)) in
            node.results().zip(results.into_iter().zip(node.results().map(|r| graph.ty(r))))
        {
            if &value.ty != ty {
                return Err(fail(OpError::new(format!("a value of type {ty} was given as {}", value.ty))));
            }
            if let Some(place) = values.get_mut(id.0 as usize) {
                *place = Some(value);
            }
        }
    }
    let outputs = graph
        .outputs
        .iter()
        .map(|output| {
            let fail = |error| RunError { node: graph.producer(output.value).0.id, error };
            let value = values.get(output.value.0 as usize).and_then(Option::as_ref);
            value
                .ok_or_else(|| fail(OpError::new("internal: an output was not computed")))?
                .to_tensor(page)
                .map_err(fail)
        })
        .collect::<Result<Vec<Tensor>, RunError>>()?;
    for (slot, value) in writes {
        if let Some(place) = slots.get_mut(slot.0 as usize) {
            *place = value;
        }
    }
    Ok(outputs)
}

/// A whole collective, from its start to its end.
fn collective(
    graph: &Graph,
    node: &Node<'_>,
    op: &CollectiveStart,
    args: Vec<Value>,
    page: &ScalarPage,
    link: &mut Link<'_>,
) -> Result<Vec<Value>, OpError> {
    let [arg] = args.as_slice() else { return Err(OpError::new("internal: a collective of no operand")) };
    let input = arg.to_tensor(page)?;
    let mut output = super::zeros(node.graph_type(node.result(0)))?;
    let mut tickets = Tickets::default();
    tickets.start(link, graph, node.id, (op.kind, op.world), input.ty())?;
    tickets.wait(link, node.id, input.bytes(), output.bytes_mut()?)?;
    Ok(vec![Value::dense(output)])
}

fn evaluate(
    node: &Node<'_>,
    args: Vec<Value>,
    slots: &[Tensor],
    inputs: &[Tensor],
    page: &ScalarPage,
) -> Result<Vec<Value>, OpError> {
    let op = node.op();
    let types: Vec<Type> = node.results().map(|r| node.graph_type(r).clone()).collect();
    let missing = |what: &str, k: u32| OpError::new(format!("{what} {k} is missing"));
    match op {
        Op::Input(input) => {
            let value = inputs.get(input.index as usize).ok_or_else(|| missing("input", input.index))?;
            return Ok(vec![Value::dense(value.clone())]);
        }
        Op::Read(read) => {
            let value = slots.get(read.slot.0 as usize).ok_or_else(|| missing("slot", read.slot.0))?;
            return Ok(vec![Value::dense(value.clone())]);
        }
        Op::Write(_) | Op::Print(_) => return Ok(args),
        _ => {}
    }
    if let Some(instr) = instruction(op) {
        return Ok(vec![Value::dense(run_one(instr, &args, types.first(), page)?)]);
    }
    match op.memory().alias {
        Alias::Each => Ok(args),
        Alias::View => {
            let (Some(arg), Some(ty)) = (args.into_iter().next(), types.into_iter().next()) else {
                return Err(OpError::new("internal: a view without an operand"));
            };
            if let Some(layout) = op.view(&arg.layout, &arg.ty, &ty) {
                return Ok(vec![Value { layout, ty, ..arg }]);
            }
            let dense = Value::dense(arg.to_tensor(page)?);
            let layout = op.view(&dense.layout, &dense.ty, &ty).ok_or_else(|| {
                OpError::new(format!("internal: `{}` of a dense value needs a copy", op.name()))
            })?;
            Ok(vec![Value { layout, ty, ..dense }])
        }
        Alias::Fresh => {
            let is_accepted = |arg: &Value| op.memory().strided || arg.layout.is_dense(arg.ty.shape());
            let args = args
                .into_iter()
                .map(|arg| if is_accepted(&arg) { Ok(arg) } else { arg.to_tensor(page).map(Value::dense) })
                .collect::<Result<Vec<Value>, OpError>>()?;
            Ok(run_kernel(op, &args, types, page)?.into_iter().map(Value::dense).collect())
        }
    }
}

/// The instruction that computes an element-wise node; operands are registers 0, 1, ….
fn instruction(op: &Op) -> Option<Instr> {
    Some(match op {
        Op::Const(constant) => Instr::Const(constant.value),
        Op::Scalar(scalar) => Instr::Scalar(scalar.index),
        Op::Iota(iota) => Instr::Iota { axis: iota.axis as u32, start: 0, step: 1 },
        Op::Random(random) => {
            Instr::Random { distribution: random.distribution, key: random.key, per_step: random.per_step }
        }
        Op::Unary(op) => Instr::Unary(*op, 0),
        Op::Binary(op) => Instr::Binary(*op, 0, 1),
        Op::Select(_) => Instr::Select(0, 1, 2),
        Op::Cast(_) => Instr::Cast(0),
        _ => return None,
    })
}

fn run_one(
    instr: Instr,
    args: &[Value],
    result: Option<&Type>,
    page: &ScalarPage,
) -> Result<Tensor, OpError> {
    let result = result.ok_or_else(|| OpError::new("internal: an op without a result"))?;
    let loads = (0..args.len() as u32).map(Instr::Load);
    let access =
        |ty: &Type, layout: &Layout| Access { buffer: BufferId(0), ty: ty.clone(), layout: layout.clone() };
    let layout = Layout::dense(result.shape());
    let source = Elementwise {
        shape: result.shape().into(),
        instrs: loads.chain([instr]).collect(),
        dtypes: args.iter().map(|arg| arg.ty.dtype()).chain([result.dtype()]).collect(),
        inputs: args.iter().map(|arg| access(&arg.ty, &arg.layout)).collect(),
        outputs: vec![(args.len() as u32, access(result, &layout))],
    };
    let program = Program::new(&source)?;
    let mut value = super::zeros(result)?;
    // SAFETY: the result is new and dense, and operands are only read.
    unsafe {
        let operands: Vec<Operand<'_>> = args.iter().map(|arg| arg.operand()).collect();
        let target = Operand::new(value.bytes_mut()?.as_mut_ptr(), result, &layout);
        program.run(&operands, &[target], page)?;
    }
    Ok(value)
}

/// Runs the CPU kernel of an op on dense tensors.
pub(crate) fn call_op(
    op: &Op,
    args: &[Tensor],
    types: Vec<Type>,
    page: &ScalarPage,
) -> Result<Vec<Tensor>, OpError> {
    let args: Vec<Value> = args.iter().map(|tensor| Value::dense(tensor.clone())).collect();
    run_kernel(op, &args, types, page)
}

fn run_kernel(op: &Op, args: &[Value], types: Vec<Type>, page: &ScalarPage) -> Result<Vec<Tensor>, OpError> {
    let arg_types: Vec<&Type> = args.iter().map(|arg| &arg.ty).collect();
    let result_types: Vec<&Type> = types.iter().collect();
    let scratch = op.workspace(&arg_types, &result_types);
    let bytes = usize::try_from(scratch).ok().and_then(|scratch| scratch.checked_add(64));
    let bytes = bytes.ok_or_else(|| OpError::new("the workspace is too large"))?;
    let mut workspace = super::zeros(&Type::new(crate::ir::DType::U8, [bytes])?)?;
    let mut values = types.iter().map(super::zeros).collect::<Result<Vec<Tensor>, OpError>>()?;
    let result_layouts: Vec<Layout> = types.iter().map(|ty| Layout::dense(ty.shape())).collect();
    // SAFETY: results and workspace are new and dense, and operands are only
    // read. The workspace is moved up to its alignment, for which it has 64 bytes more.
    unsafe {
        let operands: Vec<Operand<'_>> = args.iter().map(|arg| arg.operand()).collect();
        let targets: Vec<Operand<'_>> = values
            .iter_mut()
            .zip(types.iter().zip(&result_layouts))
            .map(|(value, (ty, layout))| Ok(Operand::new(value.bytes_mut()?.as_mut_ptr(), ty, layout)))
            .collect::<Result<_, OpError>>()?;
        let start = workspace.bytes_mut()?.as_mut_ptr();
        let aligned = start.wrapping_add(start.align_offset(64));
        op.cpu(&Call::new(&operands, &targets, aligned, scratch as usize, page))?;
    }
    Ok(values)
}
