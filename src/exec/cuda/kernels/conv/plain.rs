//! Convolution in portable CUDA C: products of tiles whose columns are looked up where the images lie.

use std::sync::Arc;

use super::{Call, DType, Kernel, OpError, SEGMENTS, Sizes, THREADS, TILE, Tensor, Work, sum_segments};

const TEXT: &str = include_str!("conv.cu");

/// Tiles that keep any device busy: sums are divided only where there are fewer.
const TILES: usize = 256;

/// A thread computes this many rows and columns of a tile.
fn micro(dtype: DType) -> usize {
    if dtype == DType::F64 { 2 } else { 4 }
}

/// Blocks of tiles with this many rows and columns in each group.
fn blocks(sizes: &Sizes, dtype: DType, rows: usize, columns: usize) -> usize {
    let side = 16 * micro(dtype);
    rows.div_ceil(side).saturating_mul(columns.div_ceil(side)).saturating_mul(sizes.shape.groups)
}

/// Into how many segments the sums of the weights' gradient are divided.
pub(super) fn segments(sizes: &Sizes, dtype: DType) -> usize {
    sizes.segments(blocks(sizes, dtype, sizes.outputs, sizes.terms()), TILES)
}

fn source(sizes: &Sizes, dtype: DType, bias: bool) -> Arc<str> {
    let text = TEXT.replace("TILE_TEXT\n", TILE);
    let text = format!("#define MICRO {}\n#define HAS_BIAS {bias}\n{text}{SEGMENTS}", micro(dtype));
    sizes.source(dtype, sizes.reach(), &text)
}

/// x, weight → y
pub(super) fn forward(
    sizes: &Sizes,
    dtype: DType,
    [x, w, y]: [&Tensor; 3],
    bias: Option<&Tensor>,
) -> Result<Vec<Work>, OpError> {
    let blocks = blocks(sizes, dtype, sizes.outputs, sizes.images.saturating_mul(sizes.pixels()));
    let kernel = Kernel::new(source(sizes, dtype, bias.is_some()), "conv")
        .args([x, w, bias.unwrap_or(w), y])
        .size(sizes.images);
    Ok(vec![kernel.blocks(blocks, 1, 1, THREADS)?])
}

/// weight, g → dx
pub(super) fn grad_input(
    sizes: &Sizes,
    dtype: DType,
    [w, g, dx]: [&Tensor; 3],
) -> Result<Vec<Work>, OpError> {
    let blocks = blocks(sizes, dtype, sizes.inputs, sizes.images.saturating_mul(sizes.plane()));
    let kernel =
        Kernel::new(source(sizes, dtype, false), "conv_grad_input").args([w, g, dx]).size(sizes.images);
    Ok(vec![kernel.blocks(blocks, 1, 1, THREADS)?])
}

/// x, g → dweight
pub(super) fn grad_weight(
    call: &Call,
    sizes: &Sizes,
    dtype: DType,
    [x, g, dw]: [&Tensor; 3],
) -> Result<Vec<Work>, OpError> {
    let segments = segments(sizes, dtype);
    let partial = call.workspace(sizes.segment_bytes(segments, dtype))?;
    let source = source(sizes, dtype, false);
    let blocks = blocks(sizes, dtype, sizes.outputs, sizes.terms()).saturating_mul(segments);
    let mut works = vec![
        Kernel::new(source.clone(), "conv_grad_weight")
            .args([x, g, dw])
            .arg(partial)
            .sizes([sizes.images, segments])
            .blocks(blocks, 1, 1, THREADS)?,
    ];
    if segments > 1 {
        works.push(sum_segments(source, sizes, partial, dw, segments)?);
    }
    Ok(works)
}
