//! Element types and shapes.

use std::fmt;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    F32,
    F16,
    BF16,
    F64,
    I32,
    I64,
    Bool,
    U8,
}

impl DType {
    pub const ALL: [DType; 8] =
        [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::Bool, DType::U8];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Bool | DType::U8 => 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::Bool => "bool",
            DType::U8 => "u8",
        }
    }

    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// Whole numbers, `u8` included, `bool` not.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::I64 | DType::U8)
    }

    /// The type in which sums and products of this type are accumulated.
    pub fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and shape of a value. Made by [`Type::new`], so its size in bytes fits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Type {
    dtype: DType,
    shape: Box<[usize]>,
}

/// The largest tensor, in bytes, and the largest product of the non-zero sizes of a shape: an
/// axis of size 0 must not hide one that would overflow when it is reduced away.
pub const MAX_BYTES: u128 = isize::MAX as u128 / 2;

/// A shape whose size in bytes does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLarge {
    pub dtype: DType,
    pub shape: Vec<usize>,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{} is too large: its size in bytes does not fit in 62 bits",
            self.dtype,
            ShapeText(&self.shape)
        )
    }
}

impl Type {
    pub fn new(dtype: DType, shape: impl Into<Box<[usize]>>) -> Result<Type, TooLarge> {
        let shape = shape.into();
        let mut bytes = dtype.size() as u128;
        for &dim in shape.iter().filter(|&&d| d != 0) {
            // Each factor is below 2^64 and the product below 2^62 so far: no overflow.
            bytes *= dim as u128;
            if bytes > MAX_BYTES {
                return Err(TooLarge { dtype, shape: shape.into() });
            }
        }
        Ok(Type { dtype, shape })
    }

    pub fn scalar(dtype: DType) -> Type {
        Type { dtype, shape: Box::new([]) }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of a dense copy.
    pub fn bytes(&self) -> u64 {
        (self.elements() * self.dtype.size()) as u64
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Result<Type, TooLarge> {
        Type::new(dtype, self.shape.clone())
    }

    /// The same element type with another shape.
    pub fn with_shape(&self, shape: impl Into<Box<[usize]>>) -> Result<Type, TooLarge> {
        Type::new(self.dtype, shape)
    }
}

/// `f32[64, 784]`, `f32` for a scalar.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        if self.shape.is_empty() { Ok(()) } else { write!(f, "{}", ShapeText(&self.shape)) }
    }
}

/// Writes a shape as `[64, 784]`.
pub struct ShapeText<'a>(pub &'a [usize]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
