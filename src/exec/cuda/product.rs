//! Matrix products through cublasLt: descriptors made once for each product of a plan, the algorithm
//! chosen once for each shape.

use std::{ffi::c_void, ptr, sync::Mutex};

use cudarc::{
    cublaslt::{
        result::{self, CublasError},
        sys::{
            self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
            cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as DescAttribute,
            cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute,
            cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cudaDataType,
        },
    },
    driver::sys::CUstream,
};
use rustc_hash::FxHashMap;

use super::{
    context::lock,
    work::{Address, Matrix, Product},
};
use crate::{ir::DType, ops::OpError};

/// The library's handle and the algorithms that it chose.
pub(super) struct Products {
    handle: cublasLtHandle_t,
    chosen: Mutex<FxHashMap<Key, Algorithm>>,
}

/// What an algorithm is chosen for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    dtype: DType,
    tf32: bool,
    sizes: [u64; 4],
    matrices: [(u64, bool, u64); 3],
    workspace: u64,
    /// Largest powers of two that divide the addresses of a, b and c.
    alignment: [u32; 3],
    /// That of the bias, if there is one.
    bias: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Algorithm {
    algorithm: cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// Where the operands of a product are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    /// What is added to the sums, stored as `c` is.
    pub plus: Option<u64>,
    pub bias: Option<u64>,
    pub workspace: u64,
}

/// A product that is ready to run, any number of times.
pub(super) struct Prepared {
    desc: Desc,
    a: Layout,
    b: Layout,
    c: Layout,
    algorithm: Algorithm,
    operands: Operands,
    dtype: DType,
}

struct Desc(cublasLtMatmulDesc_t);
struct Layout(cublasLtMatrixLayout_t);
struct Preference(cublasLtMatmulPreference_t);

// SAFETY: descriptors are plain data of the library, used by one thread at a time.
unsafe impl Send for Prepared {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY (here and below): created by this module, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// What the library said, with the product that it said it of.
fn failed(doing: &str, product: &Product, error: CublasError) -> OpError {
    let Product { dtype, rows, inner, columns, batch, .. } = product;
    OpError::new(format!(
        "cublasLt failed while {doing} the product of {dtype}[{batch}, {rows}, {inner}] and {dtype}[{batch}, {inner}, {columns}]: {:?}",
        error.0
    ))
}

const fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    (ptr::from_ref(value).cast(), size_of::<T>())
}

impl Layout {
    /// The library counts columns first: a row-major matrix is its transpose there.
    fn new(
        dtype: cudaDataType,
        matrix: &Matrix,
        rows: u64,
        columns: u64,
        batch: u32,
    ) -> Result<Layout, CublasError> {
        let (first, second) = if matrix.transposed { (rows, columns) } else { (columns, rows) };
        // A single column has no distance to the next; the library wants one that is possible.
        let leading = matrix.leading.max(first).max(1);
        let layout = Layout(result::create_matrix_layout(dtype, first, second, leading as i64)?);
        if batch > 1 {
            let (count, offset) = (batch as i32, matrix.stride as i64);
            let (count, offset) = (bytes_of(&count), bytes_of(&offset));
            // SAFETY: the values live to the end of the calls, and have the sizes that are given.
            unsafe {
                let set = result::set_matrix_layout_attribute;
                set(layout.0, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count.0, count.1)?;
                let attribute = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                set(layout.0, attribute, offset.0, offset.1)?;
            }
        }
        Ok(layout)
    }
}

impl Desc {
    fn new(
        product: &Product,
        operands: &Operands,
        compute: cublasComputeType_t,
        scale: cudaDataType,
    ) -> Result<Desc, CublasError> {
        let desc = Desc(result::create_matmul_desc(compute, scale)?);
        // The operands change places (see `Prepared::new`), and each is transposed as it lies there.
        desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &operation(product.b.transposed))?;
        desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &operation(product.a.transposed))?;
        if let Some(bias) = operands.bias {
            // Rows of the result are columns there, and the library adds the bias along columns. It has the
            // result's type where nothing else is said. Activations stay ops of their own: the library's relu is
            // max(x, 0), which makes 0 of NaN, and what its gelu gives to the last bit is not written down.
            let epilogue = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            // An algorithm is chosen by its alignment, too, so it is there before.
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        Ok(desc)
    }

    fn set<T>(&self, attribute: DescAttribute, value: &T) -> Result<(), CublasError> {
        let (value, bytes) = bytes_of(value);
        // SAFETY: as in `Layout::new`.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, value, bytes) }
    }
}

impl Operands {
    /// Places that are as aligned as those of the product will be: tensors lie in buffers that are aligned to
    /// more than anybody asks.
    fn like(product: &Product) -> Operands {
        const BUFFER: u64 = 1 << 20;
        let at = |at: Address| BUFFER + at.offset % BUFFER;
        Operands {
            a: at(product.a.at),
            b: at(product.b.at),
            c: at(product.c.at),
            plus: product.plus.map(at),
            bias: product.bias.as_ref().map(|bias| at(bias.at)),
            workspace: BUFFER,
        }
    }
}

impl Preference {
    fn set<T>(&self, attribute: PreferenceAttribute, value: &T) -> Result<(), CublasError> {
        let (value, bytes) = bytes_of(value);
        // SAFETY: as in `Layout::new`.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, value, bytes) }
    }
}

/// `CUBLAS_OP_T` or `CUBLAS_OP_N`, as the library's attribute holds it.
fn operation(transposed: bool) -> i32 {
    i32::from(transposed)
}

/// The largest power of two, up to 256, that divides the place of every matrix of a batch.
fn alignment(address: u64, stride: u64, batch: u32, element: u64) -> u32 {
    let apart = if batch > 1 { stride.saturating_mul(element) } else { 0 };
    let bits = (address | apart | 256).trailing_zeros();
    1 << bits
}

/// The scheme that adds parts of a sum up in the result itself, in the order in which they come, is
/// not among these: its bits differ from run to run.
const REDUCTIONS_WITH_FIXED_ORDER: u32 =
    sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32
        | sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE as u32;

impl Products {
    pub fn new() -> Result<Products, OpError> {
        super::library::products()?;
        let handle = result::create_handle()
            .map_err(|error| OpError::new(format!("cublasLt does not start: {:?}", error.0)))?;
        Ok(Products { handle, chosen: Mutex::default() })
    }

    /// Makes a product ready for operands at these addresses. The context is current.
    pub fn prepare(&self, product: &Product, operands: Operands) -> Result<Prepared, OpError> {
        let (data, compute, scale) = match product.dtype {
            DType::F32 if product.tf32 => (
                cudaDataType::CUDA_R_32F,
                cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
                cudaDataType::CUDA_R_32F,
            ),
            DType::F32 => {
                (cudaDataType::CUDA_R_32F, cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType::CUDA_R_32F)
            }
            DType::F16 => {
                (cudaDataType::CUDA_R_16F, cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType::CUDA_R_32F)
            }
            DType::BF16 => {
                (cudaDataType::CUDA_R_16BF, cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType::CUDA_R_32F)
            }
            DType::F64 => {
                (cudaDataType::CUDA_R_64F, cublasComputeType_t::CUBLAS_COMPUTE_64F, cudaDataType::CUDA_R_64F)
            }
            other => return Err(OpError::new(format!("internal: a product of {other} by cublasLt"))),
        };
        if product.c.transposed {
            return Err(OpError::new("internal: a product whose result is transposed"));
        }
        let made = |error| failed("preparing", product, error);
        let Product { rows, columns, inner, batch, .. } = *product;
        let desc = Desc::new(product, &operands, compute, scale).map_err(made)?;
        let layout = |matrix, rows, columns| Layout::new(data, matrix, rows, columns, batch).map_err(made);
        let (a, b) = (layout(&product.a, rows, inner)?, layout(&product.b, inner, columns)?);
        let c = layout(&product.c, rows, columns)?;
        let element = product.dtype.size() as u64;
        let facts = |matrix: &Matrix| (matrix.leading, matrix.transposed, matrix.stride);
        let aligned = |matrix: &Matrix, address| alignment(address, matrix.stride, batch, element);
        let key = Key {
            dtype: product.dtype,
            tf32: product.tf32,
            sizes: [rows, columns, inner, u64::from(batch)],
            matrices: [facts(&product.a), facts(&product.b), facts(&product.c)],
            workspace: product.workspace_bytes,
            alignment: [
                aligned(&product.a, operands.a),
                aligned(&product.b, operands.b),
                aligned(&product.c, operands.c),
            ],
            bias: operands.bias.map(|bias| alignment(bias, 0, 1, element)),
        };
        let known = lock(&self.chosen).get(&key).copied();
        let algorithm = match known {
            Some(algorithm) => algorithm,
            None => {
                let choose = |error| failed("choosing an algorithm for", product, error);
                let algorithm = self.choose(&key, &desc, &a, &b, &c).map_err(choose)?;
                lock(&self.chosen).insert(key, algorithm);
                algorithm
            }
        };
        Ok(Prepared { desc, a, b, c, algorithm, operands, dtype: product.dtype })
    }

    /// Whether the library adds the bias of a product itself. The context is current.
    pub fn takes(&self, product: &Product) -> bool {
        self.prepare(product, Operands::like(product)).is_ok()
    }

    fn choose(
        &self,
        key: &Key,
        desc: &Desc,
        a: &Layout,
        b: &Layout,
        c: &Layout,
    ) -> Result<Algorithm, CublasError> {
        let preference = Preference(result::create_matmul_pref()?);
        let workspace = key.workspace;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace)?;
        let schemes = REDUCTIONS_WITH_FIXED_ORDER;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes)?;
        let [of_a, of_b, of_c] = key.alignment;
        // The operands change places.
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &of_b)?;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &of_a)?;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &of_c)?;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &of_c)?;
        // SAFETY: all descriptors are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(self.handle, desc.0, b.0, a.0, c.0, c.0, preference.0)
        }?;
        Ok(Algorithm { algorithm: found.algo, workspace: found.workspaceSize })
    }

    /// Adds a product to a stream, whose context is current.
    pub fn enqueue(&self, product: &Prepared, stream: CUstream) -> Result<(), OpError> {
        let Prepared { desc, a, b, c, algorithm, operands, dtype } = product;
        // The product counts once, and so does what is added, if anything is: in the dtype of the sums.
        let factor = |is_one: bool| match (dtype, is_one) {
            (DType::F64, true) => ptr::from_ref(&1f64).cast(),
            (DType::F64, false) => ptr::from_ref(&0f64).cast(),
            (_, true) => ptr::from_ref(&1f32).cast(),
            (_, false) => ptr::from_ref(&0f32).cast(),
        };
        let (alpha, beta) = (factor(true), factor(operands.plus.is_some()));
        let at = |address: u64| address as usize as *mut c_void;
        // c = a · b, row by row, is c' = b' · a' where columns come first.
        // SAFETY: the descriptors are alive; the addresses are those of the plan, and the workspace has
        // the size that the algorithm was chosen within.
        let result = unsafe {
            result::matmul(
                self.handle,
                desc.0,
                alpha,
                beta,
                at(operands.b),
                b.0,
                at(operands.a),
                a.0,
                at(operands.plus.unwrap_or(operands.c)),
                c.0,
                at(operands.c),
                c.0,
                &raw const algorithm.algorithm,
                at(operands.workspace),
                algorithm.workspace,
                stream.cast(),
            )
        };
        result
            .map_err(|error| OpError::new(format!("cublasLt failed while starting a product: {:?}", error.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_that_of_every_matrix() {
        assert_eq!(alignment(0x1000, 0, 1, 4), 256);
        assert_eq!(alignment(0x1010, 0, 1, 4), 16);
        assert_eq!(alignment(0x1000, 6, 2, 4), 8);
        assert_eq!(alignment(0x1000, 6, 1, 4), 256);
        assert_eq!(alignment(0x1001, 1, 1, 1), 1);
    }
}
