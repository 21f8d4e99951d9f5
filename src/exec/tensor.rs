//! Tensors in host memory: what goes into a step and what comes out.

use std::{alloc, fmt, sync::Arc};

use half::{bf16, f16};

use crate::{
    guard::{self, Charge, OutOfMemory},
    ir::{DType, TooLarge, Type},
};

/// A Rust type that is the element of a tensor.
///
/// # Safety
/// Every bit pattern that a kernel or [`Tensor::from_bytes`] lets through is a valid value, the
/// type has the size of its dtype and an alignment of at most 16, and no padding.
pub unsafe trait Element:
    fmt::Debug + std::marker::Copy + Default + PartialEq + Send + Sync + 'static
{
    /// The dtype whose elements have this type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),*) => {
        // SAFETY: plain numbers without padding; `bool` bytes are checked on the way in.
        $(unsafe impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i32 => I32, i64 => I64, bool => Bool, u8 => U8);

/// Why a tensor cannot be made from what was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorError {
    /// The shape has more elements than a tensor may have.
    TooLarge(TooLarge),
    /// The number of elements, or of bytes, is not that of the type.
    Length {
        /// The type that was asked for.
        ty: Type,
        /// How many elements (or bytes) it has.
        expected: u64,
        /// How many were given.
        got: u64,
    },
    /// There is not enough memory.
    Memory(OutOfMemory),
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorError::TooLarge(error) => error.fmt(f),
            TensorError::Length { ty, expected, got } => write!(f, "{ty} holds {expected}, got {got}"),
            TensorError::Memory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TensorError {}

impl From<OutOfMemory> for TensorError {
    fn from(error: OutOfMemory) -> Self {
        TensorError::Memory(error)
    }
}

impl From<TooLarge> for TensorError {
    fn from(error: TooLarge) -> Self {
        TensorError::TooLarge(error)
    }
}

/// A dense row-major tensor, shared when cloned.
#[derive(Clone)]
pub struct Tensor {
    ty: Type,
    storage: Arc<Storage>,
}

struct Storage {
    /// 16-byte words, so that every element type is aligned.
    words: Vec<u128>,
    /// What the session that made it was charged.
    _charge: Option<Charge>,
}

impl Storage {
    /// Zeros for `ty`, charged to the session that this thread works for.
    fn zeroed(ty: &Type) -> Result<Storage, OutOfMemory> {
        let bytes = ty.bytes();
        let charge = guard::charge(bytes, ty)?;
        let missing = || OutOfMemory::system(ty, bytes);
        let count = usize::try_from(bytes).map_err(|_| missing())?.div_ceil(16);
        if count == 0 {
            return Ok(Storage { words: Vec::new(), _charge: charge });
        }
        let layout = alloc::Layout::array::<u128>(count).map_err(|_| missing())?;
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc::alloc_zeroed(layout) }.cast::<u128>();
        if start.is_null() {
            return Err(missing());
        }
        // SAFETY: allocated just now, by the allocator of vectors, for `count` words, all zero.
        let words = unsafe { Vec::from_raw_parts(start, count, count) };
        Ok(Storage { words, _charge: charge })
    }
}

impl Tensor {
    /// All elements zero (`false`). Ends the process where memory is short, and is charged to no
    /// session; where a size comes from a user, use [`Tensor::try_zeros`].
    pub fn zeros(ty: Type) -> Tensor {
        let words = vec![0u128; (ty.bytes() as usize).div_ceil(16)];
        Tensor { storage: Arc::new(Storage { words, _charge: None }), ty }
    }

    /// All elements zero (`false`); an error where there is not enough memory.
    pub fn try_zeros(ty: Type) -> Result<Tensor, OutOfMemory> {
        Ok(Tensor { storage: Arc::new(Storage::zeroed(&ty)?), ty })
    }

    /// `None` where the number of elements is not that of the shape, or where memory is short;
    /// [`Tensor::try_from_slice`] says which.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Option<Tensor> {
        Tensor::try_from_slice(shape, values).ok()
    }

    /// A tensor with these elements, in row-major order.
    pub fn try_from_slice<T: Element>(shape: &[usize], values: &[T]) -> Result<Tensor, TensorError> {
        let ty = Type::new(T::DTYPE, shape)?;
        let (expected, got) = (ty.elements() as u64, values.len() as u64);
        if expected != got {
            return Err(TensorError::Length { ty, expected, got });
        }
        let mut tensor = Tensor::try_zeros(ty)?;
        if let Some(elements) = tensor.as_mut_slice::<T>() {
            elements.copy_from_slice(values);
        }
        Ok(tensor)
    }

    /// From little-endian bytes, as in a safetensors file; an error where their number is wrong. Any
    /// byte but 0 is `true`.
    pub fn from_bytes(ty: Type, bytes: &[u8]) -> Result<Tensor, TensorError> {
        let (expected, got) = (ty.bytes(), bytes.len() as u64);
        if expected != got {
            return Err(TensorError::Length { ty, expected, got });
        }
        let is_bool = ty.dtype() == DType::Bool;
        let mut tensor = Tensor::try_zeros(ty)?;
        let target = tensor.bytes_mut()?;
        target.copy_from_slice(bytes);
        if is_bool {
            target.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(tensor)
    }

    /// The storage, copied first if it is shared.
    fn unique(&mut self) -> Result<&mut Vec<u128>, OutOfMemory> {
        if Arc::get_mut(&mut self.storage).is_none() {
            let mut own = Storage::zeroed(&self.ty)?;
            for (to, from) in own.words.iter_mut().zip(&self.storage.words) {
                *to = *from;
            }
            self.storage = Arc::new(own);
        }
        match Arc::get_mut(&mut self.storage) {
            Some(storage) => Ok(&mut storage.words),
            // Nobody else can hold what was made just now.
            None => Err(OutOfMemory::system(&self.ty, self.ty.bytes())),
        }
    }

    /// Its dtype and shape.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        self.ty.shape()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// The elements, where `T` is their type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if T::DTYPE != self.ty.dtype() {
            return None;
        }
        // SAFETY: the words hold at least `elements()` values of T (see `Storage`), aligned to 16
        // bytes, every bit pattern of which is valid (see `Element`).
        Some(unsafe {
            std::slice::from_raw_parts(self.storage.words.as_ptr().cast::<T>(), self.ty.elements())
        })
    }

    /// The elements, where `T` is their type, copied first if they are shared; `None` also where
    /// memory is short for the copy.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.ty.dtype() {
            return None;
        }
        let elements = self.ty.elements();
        let words = self.unique().ok()?;
        // SAFETY: as in `as_slice`; `unique` gives unique access.
        Some(unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<T>(), elements) })
    }

    /// The elements as little-endian bytes, in row-major order.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes()` bytes were allocated and initialised with the storage.
        unsafe {
            std::slice::from_raw_parts(self.storage.words.as_ptr().cast::<u8>(), self.ty.bytes() as usize)
        }
    }

    /// The bytes, copied first if they are shared; an error where memory is short for the copy.
    /// Writing a byte other than 0 or 1 into a `bool` tensor is a fault of the caller, so this is
    /// for the crate only.
    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8], OutOfMemory> {
        let len = self.ty.bytes() as usize;
        let words = self.unique()?;
        // SAFETY: as in `bytes`, with unique access.
        Ok(unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), len) })
    }

    /// The value of the `index`-th element as `f64`.
    pub fn get_f64(&self, index: usize) -> Option<f64> {
        Some(match self.ty.dtype() {
            DType::F32 => (*self.as_slice::<f32>()?.get(index)?).into(),
            DType::F16 => self.as_slice::<f16>()?.get(index)?.to_f64(),
            DType::BF16 => self.as_slice::<bf16>()?.get(index)?.to_f64(),
            DType::F64 => *self.as_slice::<f64>()?.get(index)?,
            DType::I32 => (*self.as_slice::<i32>()?.get(index)?).into(),
            DType::I64 => *self.as_slice::<i64>()?.get(index)? as f64,
            DType::Bool => u8::from(*self.as_slice::<bool>()?.get(index)?).into(),
            DType::U8 => (*self.as_slice::<u8>()?.get(index)?).into(),
        })
    }

    /// The same elements in another shape; `None` where their number differs.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Option<Tensor>, TooLarge> {
        let ty = self.ty.with_shape(shape)?;
        Ok((ty.elements() == self.ty.elements()).then(|| Tensor { ty, storage: Arc::clone(&self.storage) }))
    }
}

impl PartialEq for Tensor {
    /// The same type and the same bits.
    fn eq(&self, other: &Self) -> bool {
        self.ty == other.ty && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.ty)
    }
}

impl From<f32> for Tensor {
    fn from(value: f32) -> Self {
        let mut tensor = Tensor::zeros(Type::scalar(DType::F32));
        if let Some([x]) = tensor.as_mut_slice::<f32>() {
            *x = value;
        }
        tensor
    }
}
