//! Tensors in host memory: what goes into a step and what comes out.

use std::{alloc, fmt, sync::Arc};

use half::{bf16, f16};

use crate::ir::{DType, TooLarge, Type};

/// A Rust type that is the element of a tensor.
///
/// # Safety
/// Every bit pattern that a kernel or [`Tensor::from_bytes`] lets through is a valid value, the
/// type has the size of its dtype and an alignment of at most 16, and no padding.
pub unsafe trait Element:
    fmt::Debug + std::marker::Copy + Default + PartialEq + Send + Sync + 'static
{
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),*) => {
        // SAFETY: plain numbers without padding; `bool` bytes are checked on the way in.
        $(unsafe impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i32 => I32, i64 => I64, bool => Bool, u8 => U8);

/// A dense row-major tensor, shared when cloned.
#[derive(Clone)]
pub struct Tensor {
    ty: Type,
    /// 16-byte words, so that every element type is aligned.
    words: Arc<Vec<u128>>,
}

impl Tensor {
    /// All elements zero (`false`). Ends the process where memory is short; where a size comes from
    /// a user, [`Tensor::try_zeros`] does not.
    pub fn zeros(ty: Type) -> Tensor {
        let words = vec![0u128; (ty.bytes() as usize).div_ceil(16)];
        Tensor { words: Arc::new(words), ty }
    }

    /// All elements zero (`false`); `None` where there is not enough memory.
    pub fn try_zeros(ty: Type) -> Option<Tensor> {
        let count = usize::try_from(ty.bytes()).ok()?.div_ceil(16);
        let words = if count == 0 {
            Vec::new()
        } else {
            let layout = alloc::Layout::array::<u128>(count).ok()?;
            // SAFETY: the layout has a size above 0.
            let start = unsafe { alloc::alloc_zeroed(layout) }.cast::<u128>();
            if start.is_null() {
                return None;
            }
            // SAFETY: allocated just now, by the allocator of vectors, for `count` words, all zero.
            unsafe { Vec::from_raw_parts(start, count, count) }
        };
        Some(Tensor { words: Arc::new(words), ty })
    }

    /// `None` where the number of elements is not that of the shape.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Option<Tensor> {
        let ty = Type::new(T::DTYPE, shape).ok()?;
        if ty.elements() != values.len() {
            return None;
        }
        let mut tensor = Tensor::zeros(ty);
        tensor.as_mut_slice::<T>()?.copy_from_slice(values);
        Some(tensor)
    }

    /// From little-endian bytes; `None` where their number is wrong. Any byte but 0 is `true`.
    pub fn from_bytes(ty: Type, bytes: &[u8]) -> Option<Tensor> {
        if ty.bytes() != bytes.len() as u64 {
            return None;
        }
        let is_bool = ty.dtype() == DType::Bool;
        let mut tensor = Tensor::zeros(ty);
        let target = tensor.bytes_mut();
        target.copy_from_slice(bytes);
        if is_bool {
            target.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Some(tensor)
    }

    pub fn ty(&self) -> &Type {
        &self.ty
    }

    pub fn shape(&self) -> &[usize] {
        self.ty.shape()
    }

    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// The elements, where `T` is their type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if T::DTYPE != self.ty.dtype() {
            return None;
        }
        // SAFETY: the words hold at least `elements()` values of T (see `zeros`), aligned to 16
        // bytes, every bit pattern of which is valid (see `Element`).
        Some(unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<T>(), self.ty.elements()) })
    }

    /// The elements, copied first if they are shared.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.ty.dtype() {
            return None;
        }
        let elements = self.ty.elements();
        let words = Arc::make_mut(&mut self.words);
        // SAFETY: as in `as_slice`; `make_mut` gives unique access.
        Some(unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<T>(), elements) })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes()` bytes were allocated and initialised in `zeros`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.ty.bytes() as usize) }
    }

    /// Writing a byte other than 0 or 1 into a `bool` tensor is a fault of the caller, so this is
    /// for the crate only.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.ty.bytes() as usize;
        let words = Arc::make_mut(&mut self.words);
        // SAFETY: as in `bytes`, with unique access.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), len) }
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
        Ok((ty.elements() == self.ty.elements()).then(|| Tensor { ty, words: Arc::clone(&self.words) }))
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
