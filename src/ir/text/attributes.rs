//! The attributes of an op, read by name and type.

use super::cursor::{Fault, Spanned, Value, Word, fault};
use crate::{
    codes,
    ir::{DType, Type},
    ops::Number,
    source::Span,
};

/// `{axis=0, …}` behind an op. Each attribute is taken once; what is left is an error.
pub(super) struct Attributes<'s> {
    pub op: Word<'s>,
    pub entries: Vec<(Word<'s>, Spanned<'s>)>,
}

impl<'s> Attributes<'s> {
    pub(super) fn take(&mut self, key: &str) -> Result<Spanned<'s>, Fault> {
        match self.entries.iter().position(|(k, _)| k.text == key) {
            Some(index) => Ok(self.entries.swap_remove(index).1),
            None => {
                let message = format!("`{}` needs the attribute `{key}`", self.op.text);
                Err(fault(codes::UNEXPECTED, self.op.span, message))
            }
        }
    }

    /// Reports an attribute that the op does not have.
    pub(super) fn finish(&self) -> Result<(), Fault> {
        match self.entries.first() {
            Some((key, _)) => {
                let message = format!("`{}` has no attribute `{}`", self.op.text, key.text);
                Err(fault(codes::UNEXPECTED, key.span, message))
            }
            None => Ok(()),
        }
    }

    pub(super) fn usize(&mut self, key: &str) -> Result<usize, Fault> {
        self.take(key)?.usize()
    }

    pub(super) fn u32(&mut self, key: &str) -> Result<u32, Fault> {
        self.take(key)?.u32()
    }

    pub(super) fn usizes(&mut self, key: &str) -> Result<Box<[usize]>, Fault> {
        self.take(key)?.list()?.iter().map(Spanned::usize).collect()
    }

    pub(super) fn pair(&mut self, key: &str) -> Result<(usize, usize), Fault> {
        let value = self.take(key)?;
        value.pair(value.list()?)
    }

    pub(super) fn bool(&mut self, key: &str) -> Result<bool, Fault> {
        let value = self.take(key)?;
        match value.value {
            Value::Word("true") => Ok(true),
            Value::Word("false") => Ok(false),
            _ => Err(value.expected("`true` or `false`")),
        }
    }

    pub(super) fn dtype(&mut self, key: &str) -> Result<DType, Fault> {
        let value = self.take(key)?;
        match value.value {
            Value::Word(name) => DType::parse(name),
            _ => None,
        }
        .ok_or_else(|| value.expected("an element type"))
    }

    pub(super) fn ty(&mut self, key: &str) -> Result<Type, Fault> {
        self.take(key)?.ty()
    }

    pub(super) fn float(&mut self, key: &str) -> Result<Number, Fault> {
        self.take(key)?.float().map(Number::Float)
    }

    pub(super) fn string(&mut self, key: &str) -> Result<String, Fault> {
        self.take(key)?.string()
    }
}

impl Spanned<'_> {
    pub(super) fn expected(&self, what: &str) -> Fault {
        fault(codes::UNEXPECTED, self.span, format!("expected {what}"))
    }

    pub(super) fn u64(&self) -> Result<u64, Fault> {
        let Value::Number(text) = self.value else { return Err(self.expected("a whole number")) };
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| self.not_a_number(text, "a whole number from 0 to 2^64 − 1"))
    }

    pub(super) fn usize(&self) -> Result<usize, Fault> {
        usize::try_from(self.u64()?).map_err(|_| self.expected("a smaller number"))
    }

    pub(super) fn u32(&self) -> Result<u32, Fault> {
        u32::try_from(self.u64()?).map_err(|_| self.expected("a number below 2^32"))
    }

    pub(super) fn i64(&self) -> Result<i64, Fault> {
        let Value::Number(text) = self.value else { return Err(self.expected("a whole number")) };
        text.parse().map_err(|_| self.not_a_number(text, "a whole number of 64 bits"))
    }

    /// The bits of a float: `NaN(0x…)` tells one NaN from another.
    pub(super) fn float(&self) -> Result<u64, Fault> {
        match &self.value {
            Value::Call("NaN", bits) => match bits.as_slice() {
                [bits] => bits.u64().and_then(|b| {
                    if f64::from_bits(b).is_nan() { Ok(b) } else { Err(self.expected("the bits of a NaN")) }
                }),
                _ => Err(self.expected("the bits of a NaN")),
            },
            Value::Word("NaN") => Ok(f64::NAN.to_bits()),
            Value::Word("inf") => Ok(f64::INFINITY.to_bits()),
            Value::Number(text) => match text.parse::<f64>() {
                Ok(value) => Ok(value.to_bits()),
                Err(_) => Err(self.not_a_number(text, "a number")),
            },
            _ => Err(self.expected("a number")),
        }
    }

    fn not_a_number(&self, text: &str, what: &str) -> Fault {
        let shown: String = text.chars().take(32).collect();
        fault(codes::BAD_NUMBER, self.span, format!("`{shown}` is not {what}"))
    }

    pub(super) fn string(&self) -> Result<String, Fault> {
        match &self.value {
            Value::Str(text) => Ok(text.clone()),
            _ => Err(self.expected("a string")),
        }
    }

    pub(super) fn list(&self) -> Result<&[Self], Fault> {
        match &self.value {
            Value::List(items) => Ok(items),
            _ => Err(self.expected("a list")),
        }
    }

    pub(super) fn tuple(&self) -> Result<&[Self], Fault> {
        match &self.value {
            Value::Tuple(items) => Ok(items),
            _ => Err(self.expected("a group in parentheses")),
        }
    }

    pub(super) fn pair(&self, items: &[Self]) -> Result<(usize, usize), Fault> {
        match items {
            [a, b] => Ok((a.usize()?, b.usize()?)),
            _ => Err(self.expected("two numbers")),
        }
    }

    pub(super) fn ty(&self) -> Result<Type, Fault> {
        let (name, dims) = match &self.value {
            Value::Word(name) => (*name, [].as_slice()),
            Value::Indexed(name, dims) => (*name, dims.as_slice()),
            _ => return Err(self.expected("a type such as `f32[2, 3]`")),
        };
        let dtype = DType::parse(name).ok_or_else(|| {
            let error = fault(codes::UNEXPECTED, self.span, format!("`{name}` is not an element type"));
            Box::new(error.help("the element types are `f32 f16 bf16 f64 i32 i64 bool u8`"))
        })?;
        let shape: Vec<usize> = dims.iter().map(Spanned::usize).collect::<Result<_, _>>()?;
        Type::new(dtype, shape).map_err(|error| too_large(self.span, error))
    }
}

fn too_large(span: Span, error: crate::ir::TooLarge) -> Fault {
    fault(codes::TENSOR_OP, span, error.to_string())
}
