//! Convolution of half types by tensor cores, in tiles of results. Weights are packed first, in the order in
//! which their products are summed.

use std::sync::Arc;

use super::{
    Address, Call, ConvShape, DType, Kernel, OpError, Part, SEGMENTS, Sizes, THREADS, Tensor, Work,
    sum_segments,
};

const MMA: &str = include_str!("../mma.cu");
const TEXT: &str = include_str!("warps.cu");

/// Terms of a sum that are looked up together, and multiplied together.
const UNIT: usize = 16;
const STEP: usize = 32;

/// Tiles that keep any device busy: they are smaller, and sums are divided, where there are fewer.
const TILES: usize = 256;

/// Of at most so many channels, units have terms in the order of the weights: those of one tap would be mostly
/// empty.
const FEW_CHANNELS: usize = 8;

/// Of more remainders by the stride in both directions, a block would look too long for its own.
const MOST_REMAINDERS: usize = 16;

/// Rows and columns of the results of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    rows: usize,
    columns: usize,
}

impl Tile {
    /// The largest that leaves as many tiles as keep a device busy.
    pub fn new(sizes: &Sizes, part: Part) -> Tile {
        let (rows, columns) = results(sizes, part);
        let count = |rows_of: usize, columns_of: usize| {
            let tile = Tile { rows: rows_of, columns: columns_of };
            tile.count(sizes, part)
        };
        // Segments make up for few tiles.
        let is_enough = |count: usize| part == Part::GradWeight || count >= TILES;
        let high = if rows <= 32 { 32 } else { 64 };
        let (rows, columns) = if rows > 64 && columns > 64 && is_enough(count(128, 128)) {
            (128, 128)
        } else if columns > 64 && is_enough(count(high, 128)) {
            (high, 128)
        } else {
            (high, 64)
        };
        Tile { rows, columns }
    }

    /// Tiles of all groups.
    fn count(self, sizes: &Sizes, part: Part) -> usize {
        let (rows, _) = results(sizes, part);
        rows.div_ceil(self.rows).saturating_mul(self.across(sizes, part)).saturating_mul(sizes.shape.groups)
    }

    /// Tiles beside each other.
    fn across(self, sizes: &Sizes, part: Part) -> usize {
        let (_, columns) = results(sizes, part);
        if !skips(sizes, part) {
            return columns.div_ceil(self.columns);
        }
        let ConvShape { stride, padding, .. } = sizes.shape;
        // How many places of an axis have a remainder; as in the kernel.
        let places = |size: usize, stride: usize, padding: usize, remainder: usize| {
            let first = (remainder + stride - padding % stride) % stride;
            (size + stride - 1 - first) / stride
        };
        let remainders = (0..stride.0).flat_map(|below| (0..stride.1).map(move |beside| (below, beside)));
        let tiles = remainders.map(|(below, beside)| {
            let high = places(sizes.input.0, stride.0, padding.0, below);
            let wide = places(sizes.input.1, stride.1, padding.1, beside);
            sizes.images.saturating_mul(high).saturating_mul(wide).div_ceil(self.columns)
        });
        tiles.fold(0, usize::saturating_add)
    }

    /// Warps of a block have 32 columns, and two are above each other.
    fn threads(self) -> u32 {
        2 * self.columns as u32
    }
}

/// Rows and columns of the results of a group.
fn results(sizes: &Sizes, part: Part) -> (usize, usize) {
    match part {
        Part::Forward => (sizes.outputs, sizes.images.saturating_mul(sizes.pixels())),
        Part::GradInput => (sizes.inputs, sizes.images.saturating_mul(sizes.plane())),
        Part::GradWeight => (sizes.outputs, units(sizes, part).saturating_mul(UNIT)),
    }
}

/// The channels that are summed over; for the weights, those that terms have.
fn channels(sizes: &Sizes, part: Part) -> usize {
    if part == Part::GradInput { sizes.outputs } else { sizes.inputs }
}

fn is_by_tap(sizes: &Sizes, part: Part) -> bool {
    channels(sizes, part) > FEW_CHANNELS
}

/// Whether tiles have places of the input with one remainder by the stride, and leave taps out.
fn skips(sizes: &Sizes, part: Part) -> bool {
    let steps = sizes.shape.stride.0.saturating_mul(sizes.shape.stride.1);
    part == Part::GradInput && is_by_tap(sizes, part) && (2..=MOST_REMAINDERS).contains(&steps)
}

/// How many taps are from one to the next whose places have the same remainder by the stride.
fn tap_step(stride: usize, dilation: usize) -> usize {
    let (mut a, mut b) = (stride, dilation);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    stride / a.max(1)
}

/// Units of terms.
fn units(sizes: &Sizes, part: Part) -> usize {
    let channels = channels(sizes, part);
    if is_by_tap(sizes, part) {
        channels.div_ceil(UNIT).saturating_mul(sizes.taps())
    } else {
        channels.saturating_mul(sizes.taps()).div_ceil(UNIT)
    }
}

/// Elements of the packed weights.
fn packed(sizes: &Sizes, part: Part) -> usize {
    let (rows, _) = results(sizes, part);
    let terms = units(sizes, part).saturating_mul(UNIT).next_multiple_of(STEP);
    sizes.shape.groups.saturating_mul(rows).saturating_mul(terms)
}

/// Into how many segments the sums of the weights' gradient are divided.
fn segments(sizes: &Sizes, tile: Tile) -> usize {
    sizes.segments(tile.count(sizes, Part::GradWeight), TILES)
}

/// Bytes of the packed weights, or of the sums of segments.
pub(super) fn workspace(sizes: &Sizes, part: Part, dtype: DType, tile: Tile) -> u64 {
    match part {
        Part::Forward | Part::GradInput => (packed(sizes, part) as u64).saturating_mul(dtype.size() as u64),
        Part::GradWeight => sizes.segment_bytes(segments(sizes, tile), dtype),
    }
}

fn source(sizes: &Sizes, part: Part, dtype: DType, tile: Tile, bias: bool) -> Arc<str> {
    let units = units(sizes, part);
    let reach = sizes.reach().max(packed(sizes, part)).max(units.saturating_mul(UNIT));
    let mut text = format!(
        "#define HALF_NAME \"{dtype}\"\n#define IS_F16 {}\n#define BM {}\n#define BN {}\n#define BY_TAP {}\n\
         #define GRADIENT {}\n#define WEIGHTS {}\n#define HAS_BIAS {bias}\n#define UNITS ((I){units}ull)\n\
         #define SKIPS {}\n#define TAP_STEP_H ((I){}ull)\n#define TAP_STEP_W ((I){}ull)\n",
        u8::from(dtype == DType::F16),
        tile.rows,
        tile.columns,
        u8::from(is_by_tap(sizes, part)),
        u8::from(part == Part::GradInput),
        u8::from(part == Part::GradWeight),
        u8::from(skips(sizes, part)),
        tap_step(sizes.shape.stride.0, sizes.shape.dilation.0),
        tap_step(sizes.shape.stride.1, sizes.shape.dilation.1),
    );
    text += MMA;
    text += TEXT;
    if part == Part::GradWeight {
        text += SEGMENTS;
    }
    sizes.source(dtype, reach, &text)
}

/// The weights in the order in which their products are summed.
fn pack(source: Arc<str>, sizes: &Sizes, part: Part, w: &Tensor, weights: Address) -> Result<Work, OpError> {
    Kernel::new(source, "conv_pack").arg(w).arg(weights).for_each(packed(sizes, part), THREADS)
}

/// x, weight → y
pub(super) fn forward(
    call: &Call,
    sizes: &Sizes,
    tile: Tile,
    [x, w, y]: [&Tensor; 3],
    bias: Option<&Tensor>,
) -> Result<Vec<Work>, OpError> {
    let (part, dtype) = (Part::Forward, y.dtype());
    let weights = call.workspace(workspace(sizes, part, dtype, tile))?;
    let source = source(sizes, part, dtype, tile, bias.is_some());
    Ok(vec![
        pack(source.clone(), sizes, part, w, weights)?,
        Kernel::new(source, "conv")
            .arg(x)
            .arg(weights)
            .args([bias.unwrap_or(x), y])
            .sizes([sizes.images, tile.across(sizes, part)])
            .blocks(tile.count(sizes, part), 1, 1, tile.threads())?,
    ])
}

/// weight, g → dx
pub(super) fn grad_input(
    call: &Call,
    sizes: &Sizes,
    tile: Tile,
    [w, g, dx]: [&Tensor; 3],
) -> Result<Vec<Work>, OpError> {
    let (part, dtype) = (Part::GradInput, dx.dtype());
    let weights = call.workspace(workspace(sizes, part, dtype, tile))?;
    let source = source(sizes, part, dtype, tile, false);
    Ok(vec![
        pack(source.clone(), sizes, part, w, weights)?,
        Kernel::new(source, "conv_grad_input")
            .arg(weights)
            .args([g, dx])
            .sizes([sizes.images, tile.across(sizes, part)])
            .blocks(tile.count(sizes, part), 1, 1, tile.threads())?,
    ])
}

/// x, g → dweight
pub(super) fn grad_weight(
    call: &Call,
    sizes: &Sizes,
    tile: Tile,
    [x, g, dw]: [&Tensor; 3],
) -> Result<Vec<Work>, OpError> {
    let (part, dtype) = (Part::GradWeight, dw.dtype());
    let segments = segments(sizes, tile);
    let partial = call.workspace(workspace(sizes, part, dtype, tile))?;
    let source = source(sizes, part, dtype, tile, false);
    let blocks = tile.count(sizes, part).saturating_mul(segments);
    let mut works = vec![
        Kernel::new(source.clone(), "conv_grad_weight")
            .args([x, g, dw])
            .arg(partial)
            .sizes([sizes.images, segments])
            .blocks(blocks, 1, 1, tile.threads())?,
    ];
    if segments > 1 {
        works.push(sum_segments(source, sizes, partial, dw, segments)?);
    }
    Ok(works)
}
