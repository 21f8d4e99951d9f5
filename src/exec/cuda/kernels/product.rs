//! Matrix products: through the library of products where it takes the layouts, else by a kernel.

use super::{
    Address, Kernel, OpError, Tensor, Work,
    call::Call,
    internal,
    launch::{element, index_type, locate, with_types},
    movement,
};
use crate::{
    exec::{
        cpu::strided::{Axis, Walk},
        cuda::work::{Bias, Matrix, Product},
    },
    ir::Type,
};

const TEXT: &str = include_str!("product.cu");
pub(super) const TILE: &str = include_str!("tile.cu");

/// Products with more batch axes than can be walked with one stride are made in at most as many parts.
const PARTS: usize = 64;

/// Rows and columns of a tile of the result, as the library makes them.
const SIDE: u64 = 128;

/// So many tiles keep any device busy: sums are divided among blocks only where there are fewer.
const TILES: u64 = 128;

/// A part of a sum has at least so many terms.
const TERMS: u64 = 512;

/// The library reads a bias in pieces of so many bytes. What it says of alignment leaves room for less, but it
/// has been seen to fail there.
const BIAS_ALIGNMENT: usize = 16;

/// Bytes beside the operands: partial sums, where a result has so few tiles that its sums are divided among
/// blocks. At most those of `TILES` tiles.
pub(super) fn workspace(args: &[&Type], results: &[&Type]) -> u64 {
    let (&[a, _, ..], &[c]) = (args, results) else { return 0 };
    let (&[.., inner], &[ref batch @ .., rows, columns]) = (a.shape(), c.shape()) else { return 0 };
    if !c.dtype().is_float() {
        return 0;
    }
    let tiles = batch
        .iter()
        .map(|&size| size as u64)
        .chain([rows, columns].map(|size| (size as u64).div_ceil(SIDE)))
        .fold(1, u64::saturating_mul);
    let parts = (TILES / tiles.max(1)).min(inner as u64 / TERMS);
    match parts {
        0 | 1 => 0,
        _ => parts * c.elements() as u64 * c.dtype().accumulator().size() as u64,
    }
}

#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

pub(super) fn works(call: &Call) -> Result<Vec<Work>, OpError> {
    let (a, b, c, bias) = (call.arg(0)?, call.arg(1)?, call.result(0)?, call.args.get(2));
    let ([.., m, k], [.., n]) = (a.shape(), b.shape()) else {
        return Err(internal("a product of no matrices"));
    };
    let sizes = Sizes { m: *m, k: *k, n: *n };
    if c.elements() == 0 {
        return Ok(Vec::new());
    }
    if sizes.k == 0 && bias.is_none() {
        return Ok(movement::zero(c));
    }
    let lead = c.shape().len().saturating_sub(2);
    let axis = |k: usize| Axis { size: c.dim(k), strides: [a.stride(k), b.stride(k), c.stride(k)] };
    let batch = Walk::new((0..lead).map(axis));
    let workspace_bytes = workspace(&[a.ty(), b.ty()], &[c.ty()]);
    let workspace = call.workspace(workspace_bytes)?;
    let Some(products) = library(a, b, c, sizes, &batch) else {
        return kernel(a, b, c, bias, sizes, &batch);
    };
    let mut works = Vec::with_capacity(products.len());
    for product in products {
        let product = Product { workspace, workspace_bytes, ..product };
        let Some(bias) = bias else {
            works.push(Work::Product(product));
            continue;
        };
        let spread = movement::copy(&bias.as_rows(sizes.m)?, c)?;
        let product = Product { bias: Some(Bias { at: bias.address(), spread }), ..product };
        let is_vector = bias.stride(0) == 1 || sizes.n == 1;
        match is_vector && bias.is_aligned(BIAS_ALIGNMENT) {
            true => works.push(Work::Product(product)),
            false => works.extend(product.spread()),
        }
    }
    Ok(works)
}

/// The products of the library, without their workspace; `None` where it does not take them.
fn library(a: &Tensor, b: &Tensor, c: &Tensor, sizes: Sizes, batch: &Walk<3>) -> Option<Vec<Product>> {
    if !c.dtype().is_float() || sizes.k == 0 {
        return None;
    }
    let Sizes { m, k, n } = sizes;
    let (a, b, c_matrix) = (matrix(a, m, k)?, matrix(b, k, n)?, matrix(c, m, n)?);
    let (inner, outer) = match batch.axes.split_last() {
        Some((&inner, outer)) => (inner, outer),
        None => (Axis { size: 1, strides: [0; 3] }, &[][..]),
    };
    let outer = Walk { axes: outer.to_vec() };
    if outer.count() > PARTS || c_matrix.transposed && m > 1 {
        return None;
    }
    let size = c.dtype().size();
    let shifted = |matrix: Matrix, offset: usize, stride: usize| Matrix {
        at: Address { offset: matrix.at.offset + (offset * size) as u64, ..matrix.at },
        stride: stride as u64,
        ..matrix
    };
    let parts = (0..outer.count()).map(|part| {
        let offsets = outer.offsets(part);
        Some(Product {
            dtype: c.dtype(),
            rows: m as u64,
            columns: n as u64,
            inner: k as u64,
            batch: u32::try_from(inner.size).ok().filter(|&batch| batch <= i32::MAX as u32)?,
            a: shifted(a, offsets[0], inner.strides[0]),
            b: shifted(b, offsets[1], inner.strides[1]),
            c: shifted(c_matrix, offsets[2], inner.strides[2]),
            plus: None,
            bias: None,
            tf32: false,
            workspace: c_matrix.at,
            workspace_bytes: 0,
        })
    });
    parts.collect()
}

/// The last two axes as a matrix whose rows or columns lie without gaps inside.
fn matrix(tensor: &Tensor, rows: usize, columns: usize) -> Option<Matrix> {
    let [.., row, column] = *tensor.strides() else { return None };
    // The stride of a single row or column is whatever fits.
    let (row, column) = match (rows, columns) {
        (1, 1) => (1, 1),
        (1, _) if column == 1 => (columns, 1),
        (1, _) => (1, column),
        (_, 1) => (row, 1),
        _ => (row, column),
    };
    let (leading, transposed) = match (row, column) {
        (leading, 1) if leading >= columns.max(1) => (leading, false),
        (1, leading) if leading >= rows.max(1) => (leading, true),
        _ => return None,
    };
    Some(Matrix { at: tensor.address(), leading: leading as u64, transposed, stride: 0 })
}

fn kernel(
    a: &Tensor,
    b: &Tensor,
    c: &Tensor,
    bias: Option<&Tensor>,
    sizes: Sizes,
    batch: &Walk<3>,
) -> Result<Vec<Work>, OpError> {
    let Sizes { m, k, n } = sizes;
    let matrix_strides = |tensor: &Tensor| match *tensor.strides() {
        [.., row, column] => [row, column],
        _ => [0, 0],
    };
    let [a_strides, b_strides, c_strides] = [a, b, c].map(matrix_strides);
    let located = |name: &str, operand: usize| {
        let sizes: Vec<usize> = batch.axes.iter().map(|axis| axis.size).collect();
        let strides: Vec<usize> =
            batch.axes.iter().filter_map(|axis| axis.strides.get(operand).copied()).collect();
        locate(name, &sizes, &strides)
    };
    let is_f64 = c.dtype() == crate::ir::DType::F64 || c.dtype() == crate::ir::DType::I64;
    let micro = if is_f64 { 2 } else { 4 };
    let reach = [Some(a), Some(b), Some(c), bias].into_iter().flatten().map(Tensor::reach).max().unwrap_or(0);
    let text = format!(
        "#define MICRO {micro}\n#define HAS_BIAS {}\n#define A_ALONG {}\n#define B_ALONG {}\n{}{}{}{}",
        bias.is_some(),
        a_strides[1] == 1,
        b_strides[0] == 1 && b_strides[1] != 1,
        located("a_batch_at", 0),
        located("b_batch_at", 1),
        located("c_batch_at", 2),
        TEXT.replace("TILE_TEXT\n", TILE),
    );
    let types = [("T", element(c.dtype())), ("I", index_type(reach.max(k + 64).max(c.elements())))];
    let side = 16 * micro;
    let blocks = m.div_ceil(side).saturating_mul(n.div_ceil(side)).saturating_mul(batch.count());
    let work = Kernel::new(with_types(&types, &text), "matmul")
        // Without a bias nothing is read there.
        .args([a, b, bias.unwrap_or(b), c])
        .sizes([m, n, k])
        .sizes([a_strides, b_strides, c_strides].concat())
        .size(bias.map_or(0, |bias| bias.stride(0)))
        .blocks(blocks, 1, 1, 256)?;
    Ok(vec![work])
}
