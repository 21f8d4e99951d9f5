//! Convolution with filters of one pixel, one step at a time and without padding: products of matrices of channels
//! and pixels, by the library of products.

use super::{Call, DType, Kernel, OpError, Part, Sizes, THREADS, Tensor, Type, Work, product};
use crate::exec::cuda::work::{Matrix, Product};

const TEXT: &str = include_str!("bias.cu");

/// An image has so many pixels at least, beside one: the library's tiles would be mostly empty.
const LEAST_PIXELS: usize = 32;

/// Half types have rows whose starts are aligned to so many elements: the library needs that for its fast forms.
const ALIGNED: usize = 4;

/// The sizes of a batch of products.
struct Extents {
    batch: usize,
    rows: usize,
    inner: usize,
    columns: usize,
}

/// Whether an op is a product that the library makes well.
pub(super) fn takes(sizes: &Sizes, part: Part, is_half: bool) -> bool {
    let shape = sizes.shape;
    let is_pointwise =
        sizes.kernel == (1, 1) && shape.stride == (1, 1) && shape.padding == (0, 0) && shape.groups == 1;
    let pixels = sizes.pixels();
    let fits = pixels >= LEAST_PIXELS && (!is_half || pixels.is_multiple_of(ALIGNED));
    let fits = fits && sizes.images <= i32::MAX as usize;
    // The sum over the pixels of several images is none over a matrix, unless these have but one pixel each.
    let is_one = part != Part::GradWeight || sizes.images == 1;
    is_pointwise && (pixels == 1 || fits && is_one)
}

fn extents(sizes: &Sizes, part: Part) -> Extents {
    let Sizes { images, inputs, outputs, .. } = *sizes;
    let pixels = sizes.pixels();
    let [batch, rows, inner, columns] = match (part, pixels) {
        (Part::Forward, 1) => [1, images, inputs, outputs],
        (Part::Forward, _) => [images, outputs, inputs, pixels],
        (Part::GradInput, 1) => [1, images, outputs, inputs],
        (Part::GradInput, _) => [images, inputs, outputs, pixels],
        (Part::GradWeight, 1) => [1, outputs, images, inputs],
        (Part::GradWeight, _) => [1, outputs, pixels, inputs],
    };
    Extents { batch, rows, inner, columns }
}

/// Bytes for the library: those of the product as one of matrices.
pub(super) fn workspace(sizes: &Sizes, part: Part, dtype: DType) -> u64 {
    let Extents { batch, rows, inner, columns } = extents(sizes, part);
    let types = [
        Type::new(dtype, [batch, rows, inner]),
        Type::new(dtype, [batch, inner, columns]),
        Type::new(dtype, [batch, rows, columns]),
    ];
    match &types {
        [Ok(a), Ok(b), Ok(c)] => product::workspace(&[a, b], &[c]),
        _ => 0,
    }
}

/// A matrix with rows of so many elements, which may be the columns of what is meant; the next of a batch lies
/// `stride` elements behind.
fn matrix(tensor: &Tensor, leading: usize, transposed: bool, stride: usize) -> Matrix {
    Matrix { at: tensor.address(), leading: leading as u64, transposed, stride: stride as u64 }
}

fn product(
    call: &Call,
    sizes: &Sizes,
    part: Part,
    [a, b, c]: [Matrix; 3],
    result: &Tensor,
) -> Result<Product, OpError> {
    let workspace_bytes = workspace(sizes, part, result.dtype());
    let Extents { batch, rows, inner, columns } = extents(sizes, part);
    Ok(Product {
        dtype: result.dtype(),
        rows: rows as u64,
        columns: columns as u64,
        inner: inner as u64,
        // No more than an i32 holds.
        batch: batch as u32,
        a,
        b,
        c,
        plus: None,
        bias: None,
        tf32: false,
        workspace: call.workspace(workspace_bytes)?,
        workspace_bytes,
    })
}

/// x, weight → y: weight · x for each image, or x · weightᵀ for images of one pixel. The bias is put where the
/// result will be, and the product added to it.
pub(super) fn forward(
    call: &Call,
    sizes: &Sizes,
    [x, w, y]: [&Tensor; 3],
    bias: Option<&Tensor>,
) -> Result<Vec<Work>, OpError> {
    let Sizes { inputs, outputs, .. } = *sizes;
    let pixels = sizes.pixels();
    let matrices = if pixels == 1 {
        [matrix(x, inputs, false, 0), matrix(w, inputs, true, 0), matrix(y, outputs, false, 0)]
    } else {
        [
            matrix(w, inputs, false, 0),
            matrix(x, pixels, false, inputs * pixels),
            matrix(y, pixels, false, outputs * pixels),
        ]
    };
    let mut product = product(call, sizes, Part::Forward, matrices, y)?;
    let mut works = Vec::new();
    if let Some(bias) = bias {
        let source = sizes.source(y.dtype(), y.elements(), TEXT);
        let kernel = Kernel::new(source, "conv_bias").args([bias, y]).size(y.elements());
        works.push(kernel.for_each(y.elements(), THREADS)?);
        product.plus = Some(y.address());
    }
    works.push(Work::Product(product));
    Ok(works)
}

/// weight, g → dx, or x, g → dweight
pub(super) fn gradient(
    call: &Call,
    sizes: &Sizes,
    part: Part,
    [first, g, result]: [&Tensor; 3],
) -> Result<Vec<Work>, OpError> {
    let Sizes { inputs, outputs, .. } = *sizes;
    let pixels = sizes.pixels();
    let c = matrix(result, inputs, false, 0);
    let matrices = match (part, pixels) {
        // dw = gᵀ · x
        (Part::GradWeight, 1) => [matrix(g, outputs, true, 0), matrix(first, inputs, false, 0), c],
        // dw = g · xᵀ
        (Part::GradWeight, _) => [matrix(g, pixels, false, 0), matrix(first, pixels, true, 0), c],
        // dx = g · w
        (_, 1) => [matrix(g, outputs, false, 0), matrix(first, inputs, false, 0), c],
        // dx = wᵀ · g for each image
        (_, _) => [
            matrix(first, inputs, true, 0),
            matrix(g, pixels, false, outputs * pixels),
            matrix(result, pixels, false, inputs * pixels),
        ],
    };
    Ok(vec![Work::Product(product(call, sizes, part, matrices, result)?)])
}
