use tg::{
    exec::Tensor,
    ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight, ConvShape},
};

use super::support::*;

/// A convolution: sizes and geometry.
struct Case {
    images: usize,
    inputs: usize,
    outputs: usize,
    input: (usize, usize),
    kernel: (usize, usize),
    shape: ConvShape,
}

impl Case {
    fn new(sizes: [usize; 3], input: (usize, usize), kernel: (usize, usize)) -> Case {
        let [images, inputs, outputs] = sizes;
        let shape = ConvShape { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1 };
        Case { images, inputs, outputs, input, kernel, shape }
    }

    fn geometry(mut self, stride: (usize, usize), padding: (usize, usize), dilation: (usize, usize)) -> Case {
        self.shape = ConvShape { stride, padding, dilation, ..self.shape };
        self
    }

    fn groups(mut self, groups: usize) -> Case {
        self.shape.groups = groups;
        self
    }

    fn output(&self) -> (usize, usize) {
        let ConvShape { stride, padding, dilation, .. } = self.shape;
        (
            (self.input.0 + 2 * padding.0 - dilation.0 * (self.kernel.0 - 1) - 1) / stride.0 + 1,
            (self.input.1 + 2 * padding.1 - dilation.1 * (self.kernel.1 - 1) - 1) / stride.1 + 1,
        )
    }

    fn x(&self) -> Tensor {
        random(1, &[self.images, self.inputs, self.input.0, self.input.1])
    }

    fn weight(&self) -> Tensor {
        random(2, &[self.outputs, self.inputs / self.shape.groups, self.kernel.0, self.kernel.1])
    }

    fn bias(&self) -> Tensor {
        random(3, &[self.outputs])
    }

    fn g(&self) -> Tensor {
        let (height, width) = self.output();
        random(4, &[self.images, self.outputs, height, width])
    }

    /// Calls `term(x index, weight index, y index)` for every product of the convolution.
    fn terms(&self, mut term: impl FnMut(usize, usize, usize)) {
        let ConvShape { stride, padding, dilation, groups } = self.shape;
        let (height, width) = self.output();
        let (per_in, per_out) = (self.inputs / groups, self.outputs / groups);
        for image in 0..self.images {
            for o in 0..self.outputs {
                for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                    for c in 0..per_in {
                        for (i, j) in (0..self.kernel.0).flat_map(|i| (0..self.kernel.1).map(move |j| (i, j)))
                        {
                            let row = (y * stride.0 + i * dilation.0).checked_sub(padding.0);
                            let column = (x * stride.1 + j * dilation.1).checked_sub(padding.1);
                            let (Some(row), Some(column)) = (row, column) else { continue };
                            if row >= self.input.0 || column >= self.input.1 {
                                continue;
                            }
                            let channel = o / per_out * per_in + c;
                            term(
                                ((image * self.inputs + channel) * self.input.0 + row) * self.input.1
                                    + column,
                                ((o * per_in + c) * self.kernel.0 + i) * self.kernel.1 + j,
                                ((image * self.outputs + o) * height + y) * width + x,
                            );
                        }
                    }
                }
            }
        }
    }

    fn check_values(&self) {
        let (shape, input, kernel) = (self.shape, self.input, self.kernel);
        let (height, width) = self.output();
        let forward = |args: &[Vec<f64>]| {
            let mut y = vec![0.0; self.images * self.outputs * height * width];
            self.terms(|x, w, out| y[out] += args[0][x] * args[1][w]);
            if let Some(bias) = args.get(2) {
                for (k, y) in y.iter_mut().enumerate() {
                    *y += bias[k / (height * width) % self.outputs];
                }
            }
            vec![y]
        };
        check_values(Conv2d { shape }, &[self.x(), self.weight()], &[], forward);
        check_values(Conv2d { shape }, &[self.x(), self.weight(), self.bias()], &[], forward);
        check_values(Conv2dGradInput { shape, input }, &[self.weight(), self.g()], &[], |args| {
            let mut dx = vec![0.0; self.images * self.inputs * input.0 * input.1];
            self.terms(|x, w, out| dx[x] += args[0][w] * args[1][out]);
            vec![dx]
        });
        check_values(Conv2dGradWeight { shape, kernel }, &[self.x(), self.g()], &[], |args| {
            let mut dw = vec![0.0; self.outputs * self.inputs / shape.groups * kernel.0 * kernel.1];
            self.terms(|x, w, out| dw[w] += args[0][x] * args[1][out]);
            vec![dw]
        });
    }

    fn check_composed(&self) {
        let (shape, input, kernel) = (self.shape, self.input, self.kernel);
        check_composed(Conv2d { shape }, &[self.x(), self.weight(), self.bias()], &[]);
        check_composed(Conv2dGradInput { shape, input }, &[self.weight(), self.g()], &[]);
        check_composed(Conv2dGradWeight { shape, kernel }, &[self.x(), self.g()], &[]);
    }

    fn check_gradients(&self) {
        let (shape, input, kernel) = (self.shape, self.input, self.kernel);
        check_gradients(Conv2d { shape }, &[self.x(), self.weight(), self.bias()], &[0, 1, 2], 1);
        check_gradients(Conv2dGradInput { shape, input }, &[self.weight(), self.g()], &[0, 1], 1);
        check_gradients(Conv2dGradWeight { shape, kernel }, &[self.x(), self.g()], &[0, 1], 1);
    }
}

fn small_cases() -> Vec<Case> {
    vec![
        Case::new([2, 3, 4], (5, 6), (3, 3)),
        Case::new([2, 3, 4], (5, 6), (1, 1)),
        Case::new([1, 2, 3], (7, 5), (3, 2)).geometry((2, 3), (1, 0), (1, 1)),
        Case::new([2, 2, 2], (7, 8), (2, 3)).geometry((1, 1), (2, 3), (2, 1)),
        Case::new([1, 4, 6], (4, 4), (3, 3)).geometry((1, 1), (1, 1), (1, 1)).groups(2),
        // Depth-wise, with a stride that leaves inputs out.
        Case::new([2, 3, 3], (5, 5), (2, 2)).geometry((3, 3), (0, 0), (1, 1)).groups(3),
        // A 1×1 filter with stride or padding is not pointwise.
        Case::new([1, 2, 3], (5, 4), (1, 1)).geometry((2, 2), (0, 0), (1, 1)),
        Case::new([1, 2, 3], (3, 4), (1, 1)).geometry((1, 1), (1, 2), (1, 1)),
        // Grouped and pointwise; padding wider than the input; one row.
        Case::new([2, 4, 2], (3, 3), (1, 1)).groups(2),
        Case::new([1, 1, 1], (2, 2), (3, 3)).geometry((1, 1), (4, 5), (1, 1)),
        Case::new([1, 2, 2], (1, 9), (1, 4)).geometry((1, 2), (0, 3), (1, 2)),
    ]
}

#[test]
fn values_and_composed_forms() {
    for case in small_cases() {
        case.check_values();
        case.check_composed();
    }
}

/// Several tiles of positions, of channels and of output channels, and several segments of images.
#[test]
fn values_over_several_tiles() {
    let same = |case: Case| case.geometry((1, 1), (1, 1), (1, 1));
    for case in [
        same(Case::new([1, 2, 3], (70, 65), (3, 3))),
        same(Case::new([1, 60, 4], (13, 14), (3, 3))),
        same(Case::new([9, 3, 5], (9, 9), (3, 3))),
        Case::new([3, 40, 70], (9, 8), (1, 1)),
        Case::new([1, 40, 3], (17, 31), (1, 1)),
        Case::new([2, 300, 280], (3, 3), (1, 1)),
        Case::new([1, 200, 260], (4, 3), (2, 2)),
    ] {
        case.check_values();
    }
}

#[test]
fn gradients() {
    for case in small_cases() {
        case.check_gradients();
    }
}

/// f16 sums in f32: 8192 ones are 8192, not 2048.
#[test]
fn half_precision_sums_are_wide() {
    use tg::ir::DType;
    let x = tensor(DType::F16, &[1, 8192, 1, 1], &[1.0; 8192]);
    let weight = tensor(DType::F16, &[1, 8192, 1, 1], &[1.0; 8192]);
    let shape = ConvShape { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1 };
    assert_eq!(values(&run1(Conv2d { shape }, &[x, weight])), [8192.0]);
}
