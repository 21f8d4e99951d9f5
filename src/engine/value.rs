//! What goes into a script and comes out of it.

use std::{fmt, sync::Arc};

use crate::{check, exec::Tensor, ir::DType};

/// A value that crosses between a host and a script.
///
/// Hosts make values with `into()` and take them apart with `try_into()` or the accessors:
///
/// ```
/// use tg::{Tensor, engine::Value};
///
/// let list: Value = vec![1, 2, 3].into();
/// assert_eq!(list.items().map(<[Value]>::len), Some(3));
/// let half: f64 = Value::from(0.5).try_into()?;
/// let x = Tensor::from_slice(&[1], &[2.5f32]).ok_or("memory")?;
/// // A tensor of one element is a number too: a loss, say.
/// assert_eq!(Value::from(x).as_f64(), Some(2.5));
/// # assert_eq!(half, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Value {
    /// Nothing: the result of a function that returns none.
    #[default]
    Unit,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of the script.
    Int(i64),
    /// A number of the script.
    Float(f64),
    /// A string.
    Str(Arc<str>),
    /// The name of an element type: `bf16`.
    DType(DType),
    /// A tensor in host memory.
    Tensor(Tensor),
    /// `[a, b]`
    List(Vec<Value>),
    /// `(a, b)`: what a step with several results returns.
    Tuple(Vec<Value>),
    /// Named values: gradients by parameter, the tensors of a file.
    Record(Vec<(Arc<str>, Value)>),
    /// What only the script can look into: a model, a function, an optimizer. It can be passed back
    /// to the session that it comes from.
    Object(Object),
}

/// A handle on a value of one session: a model, a function, an optimizer.
#[derive(Clone)]
pub struct Object {
    pub(crate) value: check::value::Value,
    /// Which session it belongs to.
    pub(crate) session: u64,
    kind: Arc<str>,
}

/// A value is of another kind than what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongKind {
    /// What was asked for: "a number".
    pub expected: &'static str,
    /// What there is: "a list of 3 items".
    pub got: String,
}

impl Object {
    pub(crate) fn new(value: check::value::Value, session: u64) -> Object {
        let kind = value.kind().into();
        Object { value, session, kind }
    }

    /// What it is, in words: "a model `Linear`".
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

impl PartialEq for Object {
    /// The same thing of the same session.
    fn eq(&self, other: &Self) -> bool {
        self.session == other.session
            && self.value.identity().is_some_and(|id| other.value.identity() == Some(id))
    }
}

impl fmt::Display for WrongKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, got {}", self.expected, self.got)
    }
}

impl std::error::Error for WrongKind {}

impl Value {
    /// The tensor, where it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The number, also of a tensor with one element.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            Value::Int(number) => Some(*number as f64),
            Value::Tensor(tensor) if tensor.ty().elements() == 1 => tensor.get_f64(0),
            _ => None,
        }
    }

    /// The whole number, also of a tensor with one whole number.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Tensor(tensor) if tensor.ty().elements() == 1 && tensor.dtype().is_int() => {
                match tensor.as_slice::<i64>() {
                    Some(numbers) => numbers.first().copied(),
                    // The other whole types are exact in f64.
                    None => tensor.get_f64(0).map(|number| number as i64),
                }
            }
            _ => None,
        }
    }

    /// The truth value, also of a `bool` tensor with one element.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(flag) => Some(*flag),
            Value::Tensor(tensor) if tensor.ty().elements() == 1 => {
                tensor.as_slice::<bool>()?.first().copied()
            }
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list or tuple.
    pub fn items(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) | Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The field of a record.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Record(fields) => fields.iter().find(|(n, _)| &**n == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// All tensors in it, in order.
    pub fn tensors(&self) -> Vec<&Tensor> {
        fn collect<'v>(value: &'v Value, into: &mut Vec<&'v Tensor>) {
            match value {
                Value::Tensor(tensor) => into.push(tensor),
                Value::List(items) | Value::Tuple(items) => {
                    items.iter().for_each(|item| collect(item, into));
                }
                Value::Record(fields) => fields.iter().for_each(|(_, item)| collect(item, into)),
                _ => {}
            }
        }
        let mut tensors = Vec::new();
        collect(self, &mut tensors);
        tensors
    }

    /// What it is, in words: "a list of 3 items", "a tensor f32[2]".
    pub fn kind(&self) -> String {
        match self {
            Value::Unit => "nothing".into(),
            Value::Bool(_) => "a bool".into(),
            Value::Int(_) => "a whole number".into(),
            Value::Float(_) => "a number".into(),
            Value::Str(_) => "a string".into(),
            Value::DType(dtype) => format!("the dtype `{dtype}`"),
            Value::Tensor(tensor) => format!("a tensor {}", tensor.ty()),
            Value::List(items) => format!("a list of {} items", items.len()),
            Value::Tuple(items) => format!("a tuple of {} values", items.len()),
            Value::Record(fields) => format!("a record of {} fields", fields.len()),
            Value::Object(object) => object.kind().into(),
        }
    }

    fn wrong(&self, expected: &'static str) -> WrongKind {
        WrongKind { expected, got: self.kind() }
    }
}

macro_rules! from {
    ($($ty:ty => |$value:ident| $make:expr;)*) => {
        $(impl From<$ty> for Value {
            fn from($value: $ty) -> Value {
                $make
            }
        })*
    };
}

from! {
    () => |_unit| Value::Unit;
    bool => |flag| Value::Bool(flag);
    i64 => |number| Value::Int(number);
    i32 => |number| Value::Int(number.into());
    u32 => |number| Value::Int(number.into());
    u8 => |number| Value::Int(number.into());
    f64 => |number| Value::Float(number);
    f32 => |number| Value::Float(number.into());
    &str => |text| Value::Str(text.into());
    String => |text| Value::Str(text.into());
    Arc<str> => |text| Value::Str(text);
    DType => |dtype| Value::DType(dtype);
    Tensor => |tensor| Value::Tensor(tensor);
    &Tensor => |tensor| Value::Tensor(tensor.clone());
    Object => |object| Value::Object(object);
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::List(items.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value> + Clone> From<&[T]> for Value {
    fn from(items: &[T]) -> Value {
        Value::List(items.iter().cloned().map(Into::into).collect())
    }
}

impl<A: Into<Value>, B: Into<Value>> From<(A, B)> for Value {
    fn from((a, b): (A, B)) -> Value {
        Value::Tuple(vec![a.into(), b.into()])
    }
}

impl<A: Into<Value>, B: Into<Value>, C: Into<Value>> From<(A, B, C)> for Value {
    fn from((a, b, c): (A, B, C)) -> Value {
        Value::Tuple(vec![a.into(), b.into(), c.into()])
    }
}

macro_rules! try_from {
    ($($ty:ty, $expected:literal, |$value:ident| $take:expr;)*) => {
        $(impl TryFrom<Value> for $ty {
            type Error = WrongKind;

            fn try_from($value: Value) -> Result<$ty, WrongKind> {
                $take.ok_or_else(|| $value.wrong($expected))
            }
        })*
    };
}

try_from! {
    f64, "a number", |value| value.as_f64();
    i64, "a whole number", |value| value.as_i64();
    bool, "a bool", |value| value.as_bool();
    String, "a string", |value| value.as_str().map(String::from);
    Tensor, "a tensor", |value| value.as_tensor().cloned();
    Vec<Value>, "a list or tuple", |value| value.items().map(<[Value]>::to_vec);
}

impl TryFrom<Value> for f32 {
    type Error = WrongKind;

    /// Rounds to the nearest f32.
    fn try_from(value: Value) -> Result<f32, WrongKind> {
        value.as_f64().map(|number| number as f32).ok_or_else(|| value.wrong("a number"))
    }
}
