//! Ops that a host brings: a shape rule, a CPU kernel and perhaps a gradient, written in Rust.

use std::{
    fmt,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{GradNode, Gradient, Op, OpError, Opaque};
use crate::{
    exec::cpu::{Call, TensorMut, TensorRef, views},
    ir::{Graph, Type, ValueId},
};

type Infer = dyn Fn(&[Type]) -> Result<Vec<Type>, String> + Send + Sync;
type Run = dyn Fn(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), String> + Send + Sync;

/// An op that a host brings. Its results get memory of their own in the plan; it works in
/// `checkpoint` regions, where it may run more than once, so it must give the same results for the
/// same operands and have no other effects.
///
/// ```
/// use tg::{Engine, Source, Tensor, engine::HostOp};
///
/// let cube = HostOp::new(
///     "cube",
///     |types| match types {
///         [x] => Ok(vec![x.clone()]),
///         _ => Err(format!("takes one tensor, got {}", types.len())),
///     },
///     |args, results| {
///         let (Some(x), Some(y)) = (
///             args[0].as_slice::<f32>(),
///             results[0].as_mut_slice::<f32>(),
///         ) else {
///             return Err("only for f32".into());
///         };
///         y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x * x);
///         Ok(())
///     },
/// )
/// .with_gradient_function("cube_grad");
///
/// let engine = Engine::new().with_op(cube);
/// let text = "
/// fn cube_grad(x, y, dy) = 3.0 * x * x * dy
/// step f(x: f32[2]) { let loss = sum(cube(x))
///   return grad(loss, x) }";
/// let mut session = engine.compile(Source::text("cube.tg", text))?.session()?;
/// let x = Tensor::from_slice(&[2], &[1.0f32, 2.0]).ok_or("memory")?;
/// let slope: Tensor = session.call("f", &[x.into()])?.try_into()?;
/// assert_eq!(slope.as_slice::<f32>(), Some(&[3.0, 12.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct HostOp {
    name: Arc<str>,
    infer: Arc<Infer>,
    run: Arc<Run>,
    gradient: HostGradient,
}

/// Where the gradient of a host op comes from.
#[derive(Clone)]
pub(crate) enum HostGradient {
    None,
    Op(Arc<HostOp>),
    /// A function of the script, by name.
    Function(Arc<str>),
}

impl HostOp {
    /// An op that scripts call as `name(…)`. `infer` gives the types of the results for operands of
    /// these types, or says what does not fit. `run` fills the results; operands and results are
    /// dense, and of the types that `infer` saw and gave.
    pub fn new(
        name: impl Into<Arc<str>>,
        infer: impl Fn(&[Type]) -> Result<Vec<Type>, String> + Send + Sync + 'static,
        run: impl Fn(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), String> + Send + Sync + 'static,
    ) -> HostOp {
        HostOp { name: name.into(), infer: Arc::new(infer), run: Arc::new(run), gradient: HostGradient::None }
    }

    /// The gradient is another op. It takes the operands, the results and the gradients of the
    /// results, in this order, and gives one gradient for each floating-point operand.
    pub fn with_gradient_op(self, gradient: HostOp) -> HostOp {
        HostOp { gradient: HostGradient::Op(Arc::new(gradient)), ..self }
    }

    /// The gradient is a function of the script, with the same arguments and results as the op of
    /// [`HostOp::with_gradient_op`].
    pub fn with_gradient_function(self, name: impl Into<Arc<str>>) -> HostOp {
        HostOp { gradient: HostGradient::Function(name.into()), ..self }
    }

    /// As scripts call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn gradient(&self) -> &HostGradient {
        &self.gradient
    }

    /// The types of its results. A panic of the host is an error.
    pub(crate) fn infer(&self, args: &[Type]) -> Result<Vec<Type>, OpError> {
        match catch_unwind(AssertUnwindSafe(|| (self.infer)(args))) {
            Ok(Ok(types)) => Ok(types),
            Ok(Err(why)) => {
                let shapes: Vec<String> = args.iter().map(Type::to_string).collect();
                Err(OpError::new(format!("`{}` of {}: {why}", self.name, shapes.join(", "))))
            }
            Err(panic) => Err(self.panicked("shape rule", &*panic)),
        }
    }

    fn run(&self, call: &Call<'_>) -> Result<(), OpError> {
        let (args, mut results) = views(call)?;
        match catch_unwind(AssertUnwindSafe(|| (self.run)(&args, &mut results))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(OpError::new(format!("`{}`: {why}", self.name))),
            Err(panic) => Err(self.panicked("kernel", &*panic)),
        }
    }

    fn panicked(&self, what: &str, panic: &(dyn std::any::Any + Send)) -> OpError {
        OpError::new(format!("the {what} of the host op `{}` panicked: {}", self.name, panic_text(panic)))
    }
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

impl fmt::Debug for HostOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostOp").field(&self.name).finish()
    }
}

/// The host's part of an [`Opaque`] node.
#[derive(Clone)]
pub struct HostKernel {
    pub(crate) op: Arc<HostOp>,
    /// The gradient function of the script, elaborated for the types of this node: its inputs are
    /// the operands, results and cotangents; its outputs the gradients.
    pub(crate) gradient: Option<Arc<Graph>>,
}

impl fmt::Debug for HostKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt(f)
    }
}

impl PartialEq for HostKernel {
    /// The same registration, with the same gradient.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.op, &other.op) && self.gradient == other.gradient
    }
}

impl Eq for HostKernel {}

impl Hash for HostKernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.op).addr().hash(state);
    }
}

/// Runs the kernel of an opaque node.
pub(super) fn run(opaque: &Opaque, call: &Call<'_>) -> Result<(), OpError> {
    let Some(host) = &opaque.host else {
        return Err(OpError::new(format!(
            "`opaque` {:?} has no kernel here: it can only be planned",
            opaque.name
        ))
        .help("a host registers ops with `Engine::with_op`"));
    };
    if !opaque.overwrites.is_empty() {
        return Err(OpError::new("internal: a host op that overwrites its operands"));
    }
    host.op.run(call)
}

/// Builds the gradient of an opaque node.
pub(super) fn grad(opaque: &Opaque, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
    let name = &opaque.name;
    let Some(host) = &opaque.host else {
        return Err(OpError::new(format!("`opaque` {name:?} has no gradient")));
    };
    let mut given: Vec<ValueId> = [at.args, at.results].concat();
    for (k, &result) in at.results.iter().enumerate() {
        if graph.ty(result).dtype().is_float() {
            given.push(match at.cotangent(k) {
                Some(cotangent) => cotangent,
                None => graph.splat_like(result, 0.0)?,
            });
        }
    }
    let wanted: Vec<Type> = float_types(graph, at.args);
    let gradients: Vec<ValueId> = match (host.op.gradient(), &host.gradient) {
        (HostGradient::Op(gradient), _) => {
            let node = Opaque::host(gradient, None, &types(graph, &given))?;
            if node.results != wanted {
                return Err(wrong_types(name, gradient.name(), &node.results, &wanted));
            }
            let node = graph.push(node, &given)?;
            graph.node(node).results().collect()
        }
        (HostGradient::Function(_), Some(template)) => inline(template, graph, &given)?,
        (HostGradient::Function(_), None) => {
            return Err(OpError::new(format!(
                "`{name}` stands in a gradient function: gradients of gradients do not go through it"
            )));
        }
        (HostGradient::None, _) => {
            return Err(OpError::new(format!("the host op `{name}` has no gradient")).help(
                "the host gives one with `HostOp::with_gradient_op` or `with_gradient_function`; `stop_grad(x)` lets none pass",
            ));
        }
    };
    let mut gradients = gradients.into_iter();
    Ok(Gradient::Args(
        at.args
            .iter()
            .map(|&arg| if graph.ty(arg).dtype().is_float() { gradients.next() } else { None })
            .collect(),
    ))
}

/// The types of the gradients that an op with these operands has: those of the floating-point ones.
pub(crate) fn float_types(graph: &Graph, values: &[ValueId]) -> Vec<Type> {
    types(graph, values).into_iter().filter(|ty| ty.dtype().is_float()).collect()
}

fn types(graph: &Graph, values: &[ValueId]) -> Vec<Type> {
    values.iter().map(|&value| graph.ty(value).clone()).collect()
}

/// A gradient with other results than one for each floating-point operand.
pub(crate) fn wrong_types(name: &str, gradient: &str, got: &[Type], wanted: &[Type]) -> OpError {
    let listed = |types: &[Type]| {
        let types: Vec<String> = types.iter().map(Type::to_string).collect();
        if types.is_empty() { "nothing".to_string() } else { types.join(", ") }
    };
    OpError::new(format!(
        "the gradient `{gradient}` of `{name}` gives {}, expected {}",
        listed(got),
        listed(wanted)
    ))
    .help("it gives one gradient for each floating-point operand, of its type")
}

/// Appends a template's nodes, with `given` for its inputs; gives its outputs.
fn inline(template: &Graph, graph: &mut Graph, given: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
    let lost = || OpError::new("internal: a gradient template uses a value that it does not have");
    let mut values: Vec<Option<ValueId>> = vec![None; template.value_count()];
    for node in template.nodes() {
        if let Op::Input(input) = node.op() {
            if let Some(place) = values.get_mut(node.result(0).0 as usize) {
                *place = given.get(input.index as usize).copied();
            }
            continue;
        }
        let args = node
            .args()
            .iter()
            .map(|arg| values.get(arg.0 as usize).copied().flatten().ok_or_else(lost))
            .collect::<Result<Vec<ValueId>, OpError>>()?;
        let made = graph.push(node.op().clone(), &args)?;
        for (old, new) in node.results().zip(graph.node(made).results()) {
            if let Some(place) = values.get_mut(old.0 as usize) {
                *place = Some(new);
            }
        }
    }
    template
        .outputs
        .iter()
        .map(|output| values.get(output.value.0 as usize).copied().flatten().ok_or_else(lost))
        .collect()
}
