//! The table of built-in tensor functions: what the evaluator binds arguments by, and calls.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use super::{
    Number, Operand, cast, collective, create, elementwise, matmul, network, pool, promote, reduce, rows,
    shape,
};
use crate::{
    ir::{DType, Graph, ValueId},
    ops::OpError,
};

/// A built-in tensor function.
#[derive(Debug)]
pub struct Function {
    pub name: &'static str,
    pub params: &'static [Param],
    pub results: Results,
    /// Takes an [`Arg::Key`] before the arguments of `params`.
    pub random: bool,
    /// What it computes, with shapes; Markdown.
    pub docs: &'static str,
    /// Called with one [`Arg`] for each of `params`, in order.
    pub call: fn(&mut Graph, &[Arg]) -> Result<Vec<Operand>, OpError>,
}

/// How the results of a function are handed to the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Results {
    /// One value.
    One,
    /// A fixed number of values, as a tuple.
    Tuple,
    /// Any number of values, as a list.
    List,
}

/// A parameter of a built-in function.
#[derive(Debug)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    /// `None` for parameters that must be given.
    pub default: Option<Default>,
}

impl Param {
    pub(super) const fn new(name: &'static str, kind: Kind) -> Param {
        Param { name, kind, default: None }
    }

    pub(super) const fn with(name: &'static str, kind: Kind, default: Default) -> Param {
        Param { name, kind, default: Some(default) }
    }
}

/// What a parameter takes, and as which [`Arg`] it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tensor, a run-time scalar or a number: `Arg::Operand`.
    Tensor,
    /// The same, or nothing: `Arg::Operand` or `Arg::None`.
    OptionalTensor,
    /// A list of them: `Arg::Operands`.
    Tensors,
    /// A number known at compile time: `Arg::Number`.
    Number,
    /// `Arg::Int`
    Int,
    /// A list of whole numbers, or one: `Arg::Ints`.
    Ints,
    /// Sizes, a list or one: `Arg::Ints`. Entries may be -1 where the function says so.
    Shape,
    /// `Arg::Bool`
    Bool,
    /// `Arg::DType`
    DType,
    /// `Arg::Str`
    Str,
    /// None, one or several axes: `Arg::None` or `Arg::Ints`.
    Axis,
    /// Numbers in nested lists: `Arg::Nested`.
    Nested,
}

/// The value of a parameter that is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Default {
    /// Nothing: the function decides.
    None,
    Int(i64),
    Float(f64),
    Bool(bool),
    DType(DType),
}

impl Default {
    /// The argument that a parameter of this kind gets when it is left out.
    pub fn arg(self, kind: Kind) -> Arg {
        match (self, kind) {
            (Default::None, _) => Arg::None,
            (Default::Int(value), Kind::Ints | Kind::Shape | Kind::Axis) => Arg::Ints(vec![value]),
            (Default::Int(value), Kind::Int) => Arg::Int(value),
            (Default::Int(value), Kind::Number) => Arg::Number(Number::Int(value)),
            (Default::Int(value), _) => Arg::Operand(Operand::int(value)),
            (Default::Float(value), Kind::Number) => Arg::Number(Number::Float(value)),
            (Default::Float(value), _) => Arg::Operand(Operand::float(value)),
            (Default::Bool(value), _) => Arg::Bool(value),
            (Default::DType(value), _) => Arg::DType(value),
        }
    }
}

/// A bound argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// Where random numbers come from: see [`crate::ops::Random`].
    Key {
        key: u64,
        per_step: bool,
    },
    /// An optional parameter that was left out.
    None,
    Operand(Operand),
    Operands(Vec<Operand>),
    Number(Number),
    Int(i64),
    Ints(Vec<i64>),
    Bool(bool),
    DType(DType),
    Str(Arc<str>),
    Nested(Nested),
    /// The number of ranks, behind the arguments of collectives.
    World(u32),
}

/// Numbers in nested lists.
#[derive(Debug, Clone, PartialEq)]
pub enum Nested {
    Number(Number),
    List(Vec<Nested>),
}

/// All built-in tensor functions, by family.
pub fn functions() -> &'static [Function] {
    &TABLE.0
}

/// The function of this name.
pub fn find(name: &str) -> Option<&'static Function> {
    let (functions, by_name) = &*TABLE;
    by_name.get(name).and_then(|&i| functions.get(i))
}

static TABLE: LazyLock<(Vec<Function>, FxHashMap<&'static str, usize>)> = LazyLock::new(|| {
    let families = [
        create::FUNCTIONS,
        elementwise::FUNCTIONS,
        reduce::FUNCTIONS,
        shape::FUNCTIONS,
        matmul::FUNCTIONS,
        rows::FUNCTIONS,
        network::FUNCTIONS,
        pool::FUNCTIONS,
        cast::FUNCTIONS,
        collective::FUNCTIONS,
    ];
    let functions: Vec<Function> = families.into_iter().flatten().map(Function::copy).collect();
    let by_name = functions.iter().enumerate().map(|(i, f)| (f.name, i)).collect();
    (functions, by_name)
});

impl Function {
    fn copy(&self) -> Function {
        let Function { name, params, results, random, docs, call } = *self;
        Function { name, params, results, random, docs, call }
    }
}

/// One result that is a tensor with a dtype of its own.
pub(super) fn tensor(value: ValueId) -> Result<Vec<Operand>, OpError> {
    Ok(vec![Operand::tensor(value)])
}

/// Bound arguments, read by position. A wrong kind is a fault of the caller, never of the user,
/// and an error all the same.
pub(super) struct Args<'a> {
    pub name: &'static str,
    args: &'a [Arg],
}

impl<'a> Args<'a> {
    pub fn new(name: &'static str, args: &'a [Arg]) -> Self {
        Args { name, args }
    }

    pub fn get(&self, k: usize) -> &'a Arg {
        self.args.get(k).unwrap_or(&Arg::None)
    }

    fn wrong(&self, k: usize, wanted: &str) -> OpError {
        OpError::new(format!("internal: argument {k} of `{}` is not {wanted}", self.name))
    }

    pub fn operand(&self, k: usize) -> Result<Operand, OpError> {
        self.optional(k)?.ok_or_else(|| self.wrong(k, "a tensor"))
    }

    pub fn optional(&self, k: usize) -> Result<Option<Operand>, OpError> {
        match self.get(k) {
            Arg::None => Ok(None),
            Arg::Operand(operand) => Ok(Some(*operand)),
            Arg::Number(number) => Ok(Some(Operand::Number(*number))),
            Arg::Int(value) => Ok(Some(Operand::int(*value))),
            Arg::Bool(value) => Ok(Some(Operand::bool(*value))),
            _ => Err(self.wrong(k, "a tensor")),
        }
    }

    /// A tensor operand as a value; numbers become constants of their own dtype.
    pub fn value(&self, graph: &mut Graph, k: usize) -> Result<ValueId, OpError> {
        let operand = self.operand(k)?;
        promote::value(graph, self.name, operand)
    }

    pub fn operands(&self, k: usize) -> Result<&'a [Operand], OpError> {
        match self.get(k) {
            Arg::Operands(list) => Ok(list),
            _ => Err(self.wrong(k, "a list of tensors")),
        }
    }

    pub fn number(&self, k: usize) -> Result<Number, OpError> {
        match self.get(k) {
            Arg::Number(number) | Arg::Operand(Operand::Number(number)) => Ok(*number),
            Arg::Int(value) => Ok(Number::Int(*value)),
            _ => Err(self.wrong(k, "a number")),
        }
    }

    pub fn int(&self, k: usize) -> Result<i64, OpError> {
        match self.get(k) {
            Arg::Int(value) => Ok(*value),
            _ => Err(self.wrong(k, "a whole number")),
        }
    }

    /// A whole number that is a size.
    pub fn size(&self, k: usize, what: &str) -> Result<usize, OpError> {
        size(self.name, what, self.int(k)?)
    }

    pub fn ints(&self, k: usize) -> Result<Option<&'a [i64]>, OpError> {
        match self.get(k) {
            Arg::None => Ok(None),
            Arg::Int(value) => Ok(Some(std::slice::from_ref(value))),
            Arg::Ints(list) => Ok(Some(list)),
            _ => Err(self.wrong(k, "a list of whole numbers")),
        }
    }

    /// A shape whose sizes are all given.
    pub fn shape(&self, k: usize) -> Result<Vec<usize>, OpError> {
        let Some(sizes) = self.ints(k)? else {
            return Err(OpError::new(format!("`{}` needs a shape here", self.name))
                .help(format!("`{}([2, 3])`; only a `param` or `state` with a type gives one", self.name)));
        };
        sizes.iter().map(|&s| size(self.name, "size", s)).collect()
    }

    pub fn bool(&self, k: usize) -> Result<bool, OpError> {
        match self.get(k) {
            Arg::Bool(value) | Arg::Operand(Operand::Number(Number::Bool(value))) => Ok(*value),
            _ => Err(self.wrong(k, "a bool")),
        }
    }

    pub fn dtype(&self, k: usize) -> Result<DType, OpError> {
        self.optional_dtype(k)?.ok_or_else(|| self.wrong(k, "a dtype"))
    }

    pub fn optional_dtype(&self, k: usize) -> Result<Option<DType>, OpError> {
        match self.get(k) {
            Arg::None => Ok(None),
            Arg::DType(dtype) => Ok(Some(*dtype)),
            _ => Err(self.wrong(k, "a dtype")),
        }
    }

    pub fn str(&self, k: usize) -> Result<Option<&'a Arc<str>>, OpError> {
        match self.get(k) {
            Arg::None => Ok(None),
            Arg::Str(text) => Ok(Some(text)),
            _ => Err(self.wrong(k, "a string")),
        }
    }

    pub fn key(&self) -> Result<(u64, bool), OpError> {
        match self.get(0) {
            Arg::Key { key, per_step } => Ok((*key, *per_step)),
            _ => Err(self.wrong(0, "a random key")),
        }
    }
}

/// A size that is not negative.
pub(super) fn size(op: &str, what: &str, value: i64) -> Result<usize, OpError> {
    usize::try_from(value).map_err(|_| OpError::new(format!("`{op}`: {what} {value} is negative")))
}
