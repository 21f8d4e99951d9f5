//! How a convolution is cut into tiles, and what scratch memory they take: by shapes only.

use super::{
    im2col::Window,
    rows::{LANES, lanes},
};
use crate::{ir::Type, ops::ConvShape};

/// Elements of a tile of columns: 256 KiB in f32.
const TILE: usize = 64 * 1024;

/// The sizes of a convolution.
#[derive(Clone, Copy)]
pub struct Conv {
    pub window: Window,
    pub images: usize,
    /// Channels of the input and of the output in a group.
    pub inputs: usize,
    pub outputs: usize,
    /// The element type is its own accumulator.
    pub exact: bool,
}

impl Conv {
    /// `output` is [n, o, h', w'], `weight` [o, c / groups, kh, kw].
    pub fn new(shape: ConvShape, input: (usize, usize), weight: &Type, output: &Type) -> Conv {
        let at = |ty: &Type, k: usize| ty.shape().get(k).copied().unwrap_or(0);
        Conv {
            window: Window {
                shape,
                input,
                output: (at(output, 2), at(output, 3)),
                kernel: (at(weight, 2), at(weight, 3)),
            },
            images: at(output, 0),
            inputs: at(weight, 1),
            outputs: at(weight, 0) / shape.groups.max(1),
            exact: weight.dtype() == weight.dtype().accumulator(),
        }
    }

    pub fn groups(&self) -> usize {
        self.window.shape.groups
    }

    /// Terms of each output: rows of the columns of a group.
    pub fn terms(&self) -> usize {
        self.inputs * self.window.taps()
    }

    pub fn weights(&self) -> usize {
        self.groups() * self.outputs * self.terms()
    }

    /// Products read the images themselves.
    pub fn direct(&self) -> bool {
        self.exact && self.window.is_pointwise()
    }

    /// Places for converted weights.
    pub fn converted(&self) -> usize {
        if self.exact { 0 } else { self.weights() }
    }

    /// Channels of a tile for which its columns have about `rows` rows.
    pub fn channels(&self, rows: usize) -> usize {
        (rows / self.window.taps().max(1)).clamp(1, self.inputs.max(1))
    }

    /// Output positions of a tile with this many rows.
    pub fn positions(&self, rows: usize) -> usize {
        (TILE / rows.max(1)).clamp(16, 4096).min(self.window.pixels().max(1))
    }

    /// Into how many parts each image and group is divided, so that there is work for every lane.
    pub fn split(&self) -> usize {
        LANES.div_ceil((self.images * self.groups()).max(1))
    }

    /// Channels and positions of a tile of the forward pass.
    pub fn forward_tile(&self) -> (usize, usize) {
        if self.direct() {
            (self.inputs, self.window.pixels().div_ceil(self.split()).max(64))
        } else {
            let channels = self.channels(512);
            (channels, self.positions(channels * self.window.taps()))
        }
    }

    /// Elements of scratch memory of a lane in the forward pass.
    pub fn forward_lane(&self) -> usize {
        if self.direct() {
            return 0;
        }
        let (channels, positions) = self.forward_tile();
        let outputs = if self.exact { 0 } else { self.outputs };
        (channels * self.window.taps()).saturating_add(outputs).saturating_mul(positions)
    }

    pub fn forward_units(&self) -> usize {
        self.images * self.groups() * self.window.pixels().div_ceil(self.forward_tile().1)
    }

    /// Elements of workspace for [`conv2d`].
    pub fn forward_workspace(&self) -> usize {
        lanes(self.forward_units()).saturating_mul(self.forward_lane()).saturating_add(self.converted())
    }

    /// Channels and positions of a tile of the input gradient.
    pub fn input_tile(&self) -> (usize, usize) {
        if self.direct() {
            (self.inputs.div_ceil(self.split()).max(32), self.window.pixels())
        } else {
            let mut channels = self.channels(128);
            if !self.exact {
                // The planes are summed in scratch memory.
                channels = channels.min((TILE / self.window.plane().max(1)).max(1));
            }
            (channels, self.positions(channels * self.window.taps()))
        }
    }

    pub fn input_lane(&self) -> usize {
        if self.direct() {
            return 0;
        }
        let (channels, positions) = self.input_tile();
        let columns = (channels * self.window.taps()).saturating_mul(positions);
        if self.exact {
            columns
        } else {
            columns
                .saturating_add(self.outputs.saturating_mul(positions))
                .saturating_add(channels.saturating_mul(self.window.plane()))
        }
    }

    pub fn input_units(&self) -> usize {
        self.images * self.groups() * self.inputs.div_ceil(self.input_tile().0)
    }

    /// Elements of workspace for [`conv2d_grad_input`].
    pub fn input_workspace(&self) -> usize {
        lanes(self.input_units()).saturating_mul(self.input_lane()).saturating_add(self.converted())
    }

    /// Output channels, input channels and positions of a tile of the weight gradient.
    pub fn weight_tile(&self) -> (usize, usize, usize) {
        let channels = self.channels(256);
        let positions =
            if self.direct() { self.window.pixels() } else { self.positions(channels * self.window.taps()) };
        (self.outputs.clamp(1, 256), channels, positions)
    }

    /// Blocks of the weight gradient: independent of each other.
    pub fn weight_blocks(&self) -> usize {
        let (outputs, channels, _) = self.weight_tile();
        self.groups() * self.outputs.div_ceil(outputs) * self.inputs.div_ceil(channels)
    }

    /// Into how many segments the images are divided, where the blocks alone are too few.
    pub fn weight_segments(&self) -> usize {
        LANES.div_ceil(self.weight_blocks().max(1)).min(self.images).max(1)
    }

    /// Whether segments are summed apart and added up at the end.
    pub fn weight_partial(&self) -> bool {
        self.weight_segments() > 1 || !self.exact
    }

    pub fn weight_lane(&self) -> usize {
        if self.direct() {
            return 0;
        }
        let (outputs, channels, positions) = self.weight_tile();
        let outputs = if self.exact { 0 } else { outputs };
        (channels * self.window.taps()).saturating_add(outputs).saturating_mul(positions)
    }

    pub fn weight_sums(&self) -> usize {
        if self.weight_partial() { self.weight_segments().saturating_mul(self.weights()) } else { 0 }
    }

    /// Elements of workspace for [`conv2d_grad_weight`].
    pub fn weight_workspace(&self) -> usize {
        lanes(self.weight_blocks() * self.weight_segments())
            .saturating_mul(self.weight_lane())
            .saturating_add(self.weight_sums())
    }

    /// Multiplications and additions of any of the three.
    pub fn flops(&self) -> f64 {
        2.0 * self.images as f64 * self.window.pixels() as f64 * self.weights() as f64
    }
}
