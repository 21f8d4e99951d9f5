//! Two-dimensional convolution and its two gradients, as matrix products over tiles.
//!
//! A tile is some channels of one image under a run of output positions. Where a filter is 1×1 with
//! stride 1 and the type needs no conversion, products read the image itself and nothing is copied;
//! otherwise the tile's columns are laid out in the lane's scratch memory first.

use super::{
    conv_tiles::Conv,
    product::{Matrix, product},
    real::{Accumulator, Real, for_float},
    rows::{Shared, for_rows, for_units, part},
};
use crate::{
    exec::cpu::{Call, parallel},
    ops::OpError,
};

/// Splits the workspace after the first `len` elements.
fn split_workspace<A>(workspace: &mut [A], len: usize) -> Result<(&mut [A], &mut [A]), OpError> {
    workspace
        .split_at_mut_checked(len)
        .ok_or_else(|| OpError::new("internal: a convolution got less workspace than it asked for"))
}

/// The weights in the accumulator's type: themselves, or converted into `converted`. For reading.
fn convert<T: Real>(weights: &[T], converted: &mut [T::Acc]) -> Shared<T::Acc> {
    if T::EXACT {
        return Shared::new(weights.as_ptr().cast::<T::Acc>().cast_mut());
    }
    let task = 16 * 1024;
    let count = weights.len().min(converted.len());
    parallel::chunks(&mut converted[..count], task, &|k, to| {
        T::widen_slice(&weights[k * task..k * task + to.len()], to);
    });
    Shared::of(converted)
}

/// `rows` rows of `count` elements, `stride` apart, in the accumulator's type: where they are, or
/// converted into `scratch`. For reading.
fn tile<T: Real>(
    from: &[T],
    stride: usize,
    [rows, count]: [usize; 2],
    scratch: &mut [T::Acc],
) -> Matrix<T::Acc> {
    if T::EXACT {
        return Matrix::new(from.as_ptr().cast::<T::Acc>().cast_mut(), stride, 1);
    }
    for (row, to) in scratch.chunks_exact_mut(count.max(1)).take(rows).enumerate() {
        T::widen_slice(&from[row * stride..row * stride + count], to);
    }
    Matrix::new(scratch.as_mut_ptr(), count, 1)
}

/// Operands (x, weight[, bias]) → y.
pub fn conv2d(call: &Call<'_>, conv: &Conv) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), forward((call, conv)))
}

fn forward<T: Real>((call, conv): (&Call<'_>, &Conv)) -> Result<(), OpError> {
    let (x, weights, y) = (call.arg::<T>(0)?, call.arg::<T>(1)?, Shared::of(call.result::<T>(0)?));
    let bias = if call.args.len() > 2 { Some(call.arg::<T>(2)?) } else { None };
    let (converted, scratch) = split_workspace(call.workspace(), conv.converted())?;
    let weights = convert(weights, converted);
    let Conv { window, inputs, outputs, .. } = *conv;
    let (pixels, plane, taps, terms) = (window.pixels(), window.plane(), window.taps(), conv.terms());
    let (channels, positions) = conv.forward_tile();
    let tiles = pixels.div_ceil(positions);
    for_units(conv.forward_units(), scratch, conv.forward_lane(), |unit, scratch| {
        let (tile, group, image) = (unit % tiles, unit / tiles % conv.groups(), unit / tiles / conv.groups());
        let tile = tile * positions..pixels.min((tile + 1) * positions);
        let count = tile.len();
        let first = image * conv.groups() + group;
        let planes = &x[first * inputs * plane..(first + 1) * inputs * plane];
        let weights = Matrix::new(weights.at(group * outputs * terms), terms, 1);
        let place = |output: usize| (first * outputs + output) * pixels + tile.start;
        let (columns, sums) =
            scratch.split_at_mut(if conv.direct() { 0 } else { channels * taps * positions });
        let to = if T::EXACT {
            Matrix::new(y.at(place(0)).cast::<T::Acc>(), pixels, 1)
        } else {
            Matrix::new(sums.as_mut_ptr(), count, 1)
        };
        if conv.direct() || inputs == 0 {
            let columns =
                Matrix::new(planes.as_ptr().wrapping_add(tile.start).cast::<T::Acc>().cast_mut(), plane, 1);
            // SAFETY: tiles of the result are disjoint and inside it; the rest is only read.
            unsafe { product([outputs, inputs, count], to, false, T::Acc::ONE, weights, columns) };
        } else {
            for channel in (0..inputs).step_by(channels) {
                let rows = channels.min(inputs - channel) * taps;
                let columns = &mut columns[..rows * count];
                window.gather(&planes[channel * plane..], tile.clone(), columns);
                let columns = Matrix::new(columns.as_mut_ptr(), count, 1);
                // SAFETY: as above; columns and sums are the lane's own, of the sizes that
                // `forward_lane` counts.
                unsafe {
                    let weights = weights.at(0, channel * taps);
                    product([outputs, rows, count], to, channel > 0, T::Acc::ONE, weights, columns);
                }
            }
        }
        for output in 0..outputs {
            let shift = bias.map(|bias| bias[group * outputs + output].widen());
            // SAFETY: this row of the tile is inside the result, and only this unit uses it.
            let y = unsafe { y.write(place(output), count) };
            if T::EXACT {
                if let Some(shift) = shift {
                    y.iter_mut().for_each(|y| *y = T::narrow(y.widen() + shift));
                }
            } else {
                let sums = &mut sums[output * count..(output + 1) * count];
                if let Some(shift) = shift {
                    sums.iter_mut().for_each(|sum| *sum += shift);
                }
                T::narrow_slice(sums, y);
            }
        }
    })
}

/// Operands (weight, g) → dx.
pub fn conv2d_grad_input(call: &Call<'_>, conv: &Conv) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), grad_input((call, conv)))
}

fn grad_input<T: Real>((call, conv): (&Call<'_>, &Conv)) -> Result<(), OpError> {
    let (weights, g, dx) = (call.arg::<T>(0)?, call.arg::<T>(1)?, Shared::of(call.result::<T>(0)?));
    let (converted, scratch) = split_workspace(call.workspace(), conv.converted())?;
    let weights = convert(weights, converted);
    let Conv { window, inputs, outputs, .. } = *conv;
    let (pixels, plane, taps, terms) = (window.pixels(), window.plane(), window.taps(), conv.terms());
    let (channels, positions) = conv.input_tile();
    let blocks = inputs.div_ceil(channels);
    for_units(conv.input_units(), scratch, conv.input_lane(), |unit, scratch| {
        let (block, group, image) =
            (unit % blocks, unit / blocks % conv.groups(), unit / blocks / conv.groups());
        let channel = block * channels;
        let count = channels.min(inputs - channel);
        let first = image * conv.groups() + group;
        let g = &g[first * outputs * pixels..(first + 1) * outputs * pixels];
        let weights = Matrix::new(weights.at(group * outputs * terms), terms, 1).at(0, channel * taps);
        // SAFETY: these channels' planes are inside the result, and only this unit uses them.
        let dx = unsafe { dx.write((first * inputs + channel) * plane, count * plane) };
        if conv.direct() {
            let to = Matrix::new(dx.as_mut_ptr().cast::<T::Acc>(), plane, 1);
            let g = tile(g, pixels, [outputs, pixels], &mut []);
            // SAFETY: the planes are this unit's, the rest is only read.
            unsafe {
                product([count, outputs, pixels], to, false, T::Acc::ONE, weights.transposed(), g);
            }
            return;
        }
        let rows = count * taps;
        let (columns, rest) = scratch.split_at_mut(channels * taps * positions);
        let (g_tile, planes) = rest.split_at_mut(if T::EXACT { 0 } else { outputs * positions });
        let planes = if T::EXACT {
            // SAFETY: the same memory as `dx`, which is not used below in this case, in the type that
            // it has here.
            unsafe { std::slice::from_raw_parts_mut(dx.as_mut_ptr().cast::<T::Acc>(), dx.len()) }
        } else {
            &mut planes[..dx.len()]
        };
        planes.fill(T::Acc::ZERO);
        for start in (0..pixels).step_by(positions) {
            let positions = start..pixels.min(start + positions);
            let width = positions.len();
            let g = tile(&g[start..], pixels, [outputs, width], g_tile);
            let columns = &mut columns[..rows * width];
            // SAFETY: the columns are this lane's, of the size that `input_lane` counts.
            unsafe {
                let to = Matrix::new(columns.as_mut_ptr(), width, 1);
                product([rows, outputs, width], to, false, T::Acc::ONE, weights.transposed(), g);
            }
            window.scatter(columns, positions, planes);
        }
        if !T::EXACT {
            T::narrow_slice(planes, dx);
        }
    })
}

/// Operands (x, g) → dweight.
pub fn conv2d_grad_weight(call: &Call<'_>, conv: &Conv) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), grad_weight((call, conv)))
}

fn grad_weight<T: Real>((call, conv): (&Call<'_>, &Conv)) -> Result<(), OpError> {
    let (x, g, dw) = (call.arg::<T>(0)?, call.arg::<T>(1)?, call.result::<T>(0)?);
    let (sums, scratch) = split_workspace(call.workspace::<T::Acc>(), conv.weight_sums())?;
    let partial = conv.weight_partial();
    let to = if partial { Shared::of(sums) } else { Shared::new(dw.as_mut_ptr().cast::<T::Acc>()) };
    let Conv { window, inputs, outputs, .. } = *conv;
    let (pixels, plane, taps, terms) = (window.pixels(), window.plane(), window.taps(), conv.terms());
    let (block_outputs, block_inputs, positions) = conv.weight_tile();
    let (across, down) = (inputs.div_ceil(block_inputs), outputs.div_ceil(block_outputs));
    let (blocks, segments) = (conv.weight_blocks(), conv.weight_segments());
    for_units(blocks * segments, scratch, conv.weight_lane(), |unit, scratch| {
        let (block, segment) = (unit % blocks, unit / blocks);
        let channel = block % across * block_inputs;
        let output = block / across % down * block_outputs;
        let group = block / across / down;
        let channels = block_inputs.min(inputs - channel);
        let (rows, columns) = (block_outputs.min(outputs - output), channels * taps);
        let place = segment * conv.weights() + (group * outputs + output) * terms + channel * taps;
        let to = Matrix::new(to.at(place), terms, 1);
        let mut started = false;
        for image in part(conv.images, segments, segment) {
            let first = image * conv.groups() + group;
            let planes = &x[(first * inputs + channel) * plane..];
            let planes = &planes[..channels * plane];
            for start in (0..pixels).step_by(positions) {
                let positions = start..pixels.min(start + positions);
                let width = positions.len();
                let g = &g[(first * outputs + output) * pixels + start..];
                // SAFETY: blocks of a segment's sum are disjoint and inside it; columns and the
                // converted tile are the lane's own, of the sizes that `weight_lane` counts.
                unsafe {
                    if conv.direct() {
                        let g = tile(g, pixels, [rows, width], &mut []);
                        let x = tile(&planes[start..], plane, [channels, width], &mut []);
                        product([rows, width, columns], to, started, T::Acc::ONE, g, x.transposed());
                    } else {
                        let (x, g_tile) = scratch.split_at_mut(columns * width);
                        window.gather(planes, positions, x);
                        let g = tile(g, pixels, [rows, width], g_tile);
                        let x = Matrix::new(x.as_mut_ptr(), width, 1);
                        product([rows, width, columns], to, started, T::Acc::ONE, g, x.transposed());
                    }
                }
                started = true;
            }
        }
        if !started {
            // SAFETY: as above; a product over nothing clears the block.
            unsafe { product([rows, 0, columns], to, false, T::Acc::ONE, to, to) };
        }
    })?;
    if partial {
        let (sums, dw) = (&*sums, Shared::of(dw));
        for_rows(conv.weights(), segments, |range| {
            for index in range {
                let mut total = T::Acc::ZERO;
                for segment in 0..segments {
                    total += sums[segment * conv.weights() + index];
                }
                // SAFETY: an element of the result that only this task writes.
                unsafe { *dw.at(index) = T::narrow(total) };
            }
        });
    }
    Ok(())
}
