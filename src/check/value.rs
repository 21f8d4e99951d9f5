//! The values of the language. Cloning one is cheap: what is large is shared.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustc_hash::FxHashMap;

pub use super::persistent::{Cell, Init, MadeFor, Model, Optimizer, cells_of, name_value};
use super::{args::Args, language::Builtin, scope::Scope, tensor};
use crate::{
    engine::HostFunction,
    exec::Tensor,
    ir::{DType, Type, ValueId},
    ops::HostOp,
    script::{batches, text::Vocabulary},
    source::Span,
    syntax::ast::{Ast, FnDecl, ModelDecl, Name, OptimizerDecl},
};

/// A number that is the same for no two things made in this process.
pub fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every holder leaves the value whole: single assignments and map inserts.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Where code stands: its tree and the scope in which its names are looked up.
#[derive(Clone)]
pub struct Cx {
    pub ast: Arc<Ast>,
    pub scope: Arc<Scope>,
}

impl Cx {
    pub fn in_scope(&self, scope: Arc<Scope>) -> Cx {
        Cx { ast: Arc::clone(&self.ast), scope }
    }
}

/// A value that depends on data, in mode Check. Numbers carry a sample, which stands for them where
/// a size is needed; conditions on them are followed both ways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unknown {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str,
    Any,
}

#[derive(Clone)]
pub enum Value {
    Unit,
    /// Bound by a statement that failed; the failure is already reported.
    Poison,
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(Arc<str>),
    Unknown(Unknown),
    List(Arc<Vec<Value>>),
    Tuple(Arc<Vec<Value>>),
    Range(Range),
    Record(Arc<Record>),
    DType(DType),
    /// A value of the graph that is being built.
    Tensor(GraphTensor),
    /// A tensor of the script.
    Stored(Arc<Stored>),
    /// A parameter or state of a model.
    Param(Arc<Cell>),
    Module(Arc<Module>),
    Function(Arc<Function>),
    Builtin(&'static Builtin),
    TensorFunction(&'static tensor::Function),
    ModelDef(Arc<ModelDef>),
    Model(Arc<Model>),
    OptimizerDef(Arc<OptimizerDef>),
    Optimizer(Arc<Optimizer>),
    /// What `sync` does with a bucket of gradients.
    Hook(Arc<Hook>),
    Step(Arc<Step>),
    /// Gradients in the shape of a model's parameters.
    Tree(Arc<Tree>),
    Stream(Arc<Stream>),
    /// The characters of a text and their numbers, with `encode` and `decode`.
    Vocabulary(Arc<Vocabulary>),
    /// A method of a native value, with the value.
    Method(Arc<Method>),
    /// A function that the host registered.
    HostFunction(Arc<HostFunction>),
    /// An op that the host registered.
    HostOp(Arc<HostOp>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub low: i64,
    pub high: i64,
    pub step: i64,
    /// False in mode Check where a bound is only a sample.
    pub known: bool,
}

impl Range {
    /// How many numbers it holds; `step` is not 0.
    pub fn len(&self) -> u64 {
        let (span, step) = (i128::from(self.high) - i128::from(self.low), i128::from(self.step));
        let count =
            if step > 0 { (span + step - 1).div_euclid(step) } else { (span + step + 1) / step.min(-1) };
        u64::try_from(count.max(0)).unwrap_or(u64::MAX)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: u64) -> Option<i64> {
        if index >= self.len() {
            return None;
        }
        i64::try_from(i128::from(self.low) + i128::from(self.step) * i128::from(index)).ok()
    }
}

/// Named values: what `data.load` gives for a file with several tensors.
pub struct Record {
    pub what: &'static str,
    pub fields: Vec<(Name, Value)>,
}

impl Record {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(n, _)| &**n == name).map(|(_, v)| v)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphTensor {
    /// The frame whose graph holds it.
    pub frame: u64,
    pub value: ValueId,
    /// A run-time scalar: it takes the dtype of the tensor that it meets.
    pub weak: bool,
}

/// A tensor in host memory; in mode Check only its type is known. The result of a step may still be on
/// its way from a device: [`super::Evaluator::tensor_of`] waits for it.
pub struct Stored {
    pub id: u64,
    pub ty: Type,
    data: OnceLock<Tensor>,
    /// A step gives it later.
    is_promised: bool,
}

impl Stored {
    pub fn new(ty: Type, data: Option<Tensor>) -> Arc<Stored> {
        let data = data.map_or_else(OnceLock::new, OnceLock::from);
        Arc::new(Stored { id: fresh_id(), ty, data, is_promised: false })
    }

    /// What a step that was started gives when it has ended.
    pub fn promised(ty: Type) -> Arc<Stored> {
        Arc::new(Stored { id: fresh_id(), ty, data: OnceLock::new(), is_promised: true })
    }

    /// The tensor, if it is there by now.
    pub fn ready(&self) -> Option<&Tensor> {
        self.data.get()
    }

    /// Whether the step that gives it has yet to end.
    pub fn is_awaited(&self) -> bool {
        self.is_promised && self.data.get().is_none()
    }

    /// The step has ended.
    pub(super) fn keep_promise(&self, tensor: Tensor) {
        // A step ends once.
        let _ = self.data.set(tensor);
    }
}

pub struct Module {
    pub name: Name,
    pub scope: Arc<Scope>,
    /// Native members, looked up after the module's own.
    pub builtins: &'static [Builtin],
}

/// A function of the user or the library, with the scope it was declared in.
pub struct Function {
    pub id: u64,
    pub decl: Arc<FnDecl>,
    pub cx: Cx,
    /// `Linear` for `Linear.forward`.
    pub owner: Option<Name>,
}

impl Function {
    /// As in messages: `nn.Linear.forward`, `f`.
    pub fn title(&self) -> String {
        match &self.owner {
            Some(owner) => format!("{owner}.{}", self.decl.name.name),
            None => self.decl.name.name.to_string(),
        }
    }
}

pub struct ModelDef {
    pub id: u64,
    pub decl: Arc<ModelDecl>,
    pub cx: Cx,
}

pub struct OptimizerDef {
    pub id: u64,
    pub decl: Arc<OptimizerDecl>,
    pub cx: Cx,
}

/// A hook with the settings that it was called with, if it was.
pub struct Hook {
    pub id: u64,
    pub def: OptimizerDef,
    pub settings: Args,
}

/// A declared step, with what was compiled of it.
pub struct Step {
    pub id: u64,
    pub decl: Arc<FnDecl>,
    pub cx: Cx,
    pub compiled: Mutex<Vec<Arc<super::step::Compiled>>>,
    /// Optimizers written inside the step, by the place of their call: they keep their state when
    /// the step is compiled again for other shapes.
    pub optimizers: Mutex<FxHashMap<(Span, u64), Arc<Optimizer>>>,
    /// The states of hooks in the step.
    pub hook_states: Mutex<FxHashMap<super::sync::StateKey, Arc<Cell>>>,
    /// How often it has run.
    pub runs: AtomicU64,
}

impl Step {
    pub fn name(&self) -> &Name {
        &self.decl.name.name
    }
}

/// One gradient per parameter of `root`; `None` where the loss does not depend on it.
pub struct Tree {
    /// A model, a parameter, or a list of such.
    pub root: Value,
    pub entries: Vec<(Arc<Cell>, Option<Value>)>,
    /// Each rank has its own, of whole vectors where parameters are spread: `sync` makes parts of them.
    pub is_local: bool,
}

impl Tree {
    /// A tree for the same parameters.
    pub fn with(&self, entries: Vec<(Arc<Cell>, Option<Value>)>) -> Value {
        Value::Tree(Arc::new(Tree { root: self.root.clone(), entries, is_local: self.is_local }))
    }
}

/// A sequence of tensors read from data, for `for` loops.
pub struct Stream {
    pub kind: StreamKind,
    /// How many items an iteration gives; `None` in mode Check where only headers are known.
    pub len: Option<usize>,
}

pub enum StreamKind {
    /// Rows of tensors with one leading size, in groups.
    Batches { tensors: Vec<Arc<Stored>>, config: batches::Config },
    /// Pairs (ids[batch, length], the same one further on) from a row of numbers.
    Windows { ids: Arc<Stored>, length: usize, batch: usize, seed: u64, start: u64 },
    /// Another sequence, with a progress bar.
    Progress { items: Value, label: Arc<str> },
    /// Parts of graph values along axis 0, with a barrier between the iterations.
    Microbatches { items: Value, parts: usize },
}

pub struct Method {
    pub receiver: Value,
    pub builtin: &'static Builtin,
}

impl Value {
    pub fn str(text: impl AsRef<str>) -> Value {
        Value::Str(text.as_ref().into())
    }

    pub fn list(items: Vec<Value>) -> Value {
        Value::List(Arc::new(items))
    }

    pub fn tuple(items: Vec<Value>) -> Value {
        Value::Tuple(Arc::new(items))
    }

    /// Whether tensor operations apply to it.
    pub fn is_tensor(&self) -> bool {
        matches!(self, Value::Tensor(_) | Value::Stored(_) | Value::Param(_))
    }

    /// What tells apart things that are the same only if they are one.
    pub fn identity(&self) -> Option<u64> {
        Some(match self {
            Value::Param(cell) => cell.id,
            Value::Function(function) => function.id,
            Value::ModelDef(def) => def.id,
            Value::Model(model) => model.id,
            Value::OptimizerDef(def) => def.id,
            Value::Optimizer(optimizer) => optimizer.id,
            Value::Hook(hook) => hook.id,
            Value::Step(step) => step.id,
            _ => return None,
        })
    }

    /// What it is, for messages: "a list", "a model `Linear`".
    pub fn kind(&self) -> String {
        match self {
            Value::Unit => "nothing".into(),
            Value::Poison => "a value that could not be computed".into(),
            Value::Int(_) | Value::Unknown(Unknown::Int(_)) => "a whole number".into(),
            Value::Float(_) | Value::Unknown(Unknown::Float(_)) => "a number".into(),
            Value::Bool(_) | Value::Unknown(Unknown::Bool(_)) => "a bool".into(),
            Value::Str(_) | Value::Unknown(Unknown::Str) => "a string".into(),
            Value::Unknown(Unknown::Any) => "a value known only at run time".into(),
            Value::List(_) => "a list".into(),
            Value::Tuple(items) if items.is_empty() => "nothing".into(),
            Value::Tuple(_) => "a tuple".into(),
            Value::Range(_) => "a range".into(),
            Value::Record(record) => record.what.into(),
            Value::DType(dtype) => format!("the dtype `{dtype}`"),
            Value::Tensor(_) => "a tensor".into(),
            Value::Stored(stored) => format!("a tensor {}", stored.ty),
            Value::Param(cell) => format!("a parameter {}", cell.ty),
            Value::Module(module) => format!("the module `{}`", module.name),
            Value::Function(function) => format!("the function `{}`", function.title()),
            Value::Builtin(builtin) => format!("the function `{}`", builtin.name),
            Value::TensorFunction(function) => format!("the function `{}`", function.name),
            Value::ModelDef(def) => format!("the model `{}`", def.decl.name.name),
            Value::Model(model) => format!("a model `{}`", model.def.decl.name.name),
            Value::OptimizerDef(def) => format!("the optimizer `{}`", def.decl.name.name),
            Value::Optimizer(optimizer) => format!("an optimizer `{}`", optimizer.def.decl.name.name),
            Value::Hook(hook) => format!("the hook `{}`", hook.def.decl.name.name),
            Value::Step(step) => format!("the step `{}`", step.name()),
            Value::Tree(_) => "a tree of gradients".into(),
            Value::Stream(_) => "a sequence of batches".into(),
            Value::Vocabulary(_) => "a vocabulary".into(),
            Value::Method(method) => format!("the function `{}`", method.builtin.name),
            Value::HostFunction(function) => format!("the host function `{}`", function.name()),
            Value::HostOp(op) => format!("the host op `{}`", op.name()),
        }
    }
}

impl fmt::Debug for Value {
    /// Functions hold the scope that holds them, so nothing is walked here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Str(text) => write!(f, "{text:?}"),
            other => f.write_str(&other.kind()),
        }
    }
}
