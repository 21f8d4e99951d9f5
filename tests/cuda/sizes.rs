//! Sizes at which kernels divide their work among blocks: many chunks of a sum, tiles of a product, parts and
//! segments that are added up. The cases of the ops are smaller.

use tg::{
    exec::Tensor,
    ir::{DType, Graph, ValueId},
    ops::{
        ArgReduce, Attention, AttentionGrad, BatchNorm, BatchNormGrad, Conv2d, Conv2dGradInput,
        Conv2dGradWeight, ConvShape, CrossEntropy, Gather, LayerNorm, LayerNormGrad, LogSoftmax, MaxPool2d,
        MaxPool2dGrad, Number, Op, OpError, PoolShape, Reduce, ReduceKind, RmsNormGrad, ScatterAdd, Slice,
        SliceRange, Softmax, SoftmaxGrad,
    },
};

use crate::{
    device,
    network_ops::support::{apply, cast, inputs, ints, output, page, random, tensor},
};

type Build<'a> = &'a dyn Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, OpError>;

/// Random numbers; whole ones for the integer types.
fn noise(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let numbers = random(seed, shape);
    if dtype.is_float() {
        return cast(&numbers, dtype);
    }
    let elements = numbers.ty().elements();
    let whole: Vec<f64> =
        (0..elements).map(|k| (numbers.get_f64(k).expect("an element") * 100.0).trunc().abs()).collect();
    tensor(dtype, shape, &whole)
}

/// The device gives what the reference interpreter gives; with `same`, in every bit.
fn compare(args: &[Tensor], same: bool, build: Build<'_>) {
    let mut graph = Graph::new();
    let values = inputs(&mut graph, args);
    for value in build(&mut graph, &values).expect("the graph is built") {
        output(&mut graph, value);
    }
    let expected = device::reference(&graph, &mut [], args, &page()).expect("the graph runs");
    let found = device::eval(&graph, &mut [], args, &page()).expect("the graph runs on the device");
    for (k, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let types: Vec<String> = args.iter().map(|arg| arg.ty().to_string()).collect();
        let agrees = if same { expected == found } else { device::agrees(expected, found) };
        assert!(agrees, "result {k} for {}", types.join(", "));
    }
}

fn one(op: impl Into<Op>, args: &[Tensor], same: bool) {
    compare(args, same, &apply(op));
}

#[test]
fn reductions_have_the_bits_of_the_cpu() {
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[3, 100_000], &[1]),
        (&[5, 1025], &[1]),
        (&[20_000, 37], &[0]),
        (&[3, 3000, 40], &[1]),
        (&[300, 40, 9], &[0, 2]),
        (&[300_000], &[0]),
        (&[17_000, 8], &[0]),
    ];
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        for (shape, axes) in shapes {
            for kind in [ReduceKind::Sum, ReduceKind::Max] {
                one(Reduce { kind, axes: axes.into() }, &[noise(dtype, shape, 3)], true);
            }
        }
        one(ArgReduce { largest: true, axis: 1 }, &[noise(dtype, &[5, 1000], 4)], true);
        one(ArgReduce { largest: false, axis: 0 }, &[noise(dtype, &[300, 7], 5)], true);
    }
}

#[test]
fn long_rows_and_many_rows() {
    let eps = Number::float(1e-5);
    for dtype in [DType::F32, DType::BF16] {
        let wide = dtype.accumulator();
        let x = noise(dtype, &[7, 20_001], 1);
        one(Softmax, std::slice::from_ref(&x), true);
        one(LogSoftmax, std::slice::from_ref(&x), false);
        one(SoftmaxGrad, &[x.clone(), x], true);
        for (rows, columns) in [(5000, 33), (70, 3000)] {
            let (x, w) = (noise(dtype, &[rows, columns], 1), noise(dtype, &[columns], 2));
            let statistic = noise(wide, &[rows], 3);
            one(LayerNorm { eps }, &[x.clone(), w.clone(), w.clone()], true);
            let args = [x.clone(), w.clone(), statistic.clone(), statistic.clone(), x.clone()];
            one(LayerNormGrad, &args, false);
            one(RmsNormGrad, &[x.clone(), w, statistic, x], false);
        }
        let (x, w) = (noise(dtype, &[9, 5, 40, 40], 1), noise(dtype, &[5], 2));
        let statistic = noise(wide, &[5], 3);
        one(BatchNorm { eps }, &[x.clone(), w.clone(), w.clone()], true);
        let variance = tensor(wide, &[5], &[0.5, 1.0, 2.0, 0.1, 3.0]);
        one(BatchNormGrad { eps }, &[x.clone(), w, statistic, variance, x], true);
        let labels: Vec<i32> = (0..300).map(|row| row * 37 % 1000).collect();
        one(CrossEntropy, &[noise(dtype, &[300, 1000], 1), ints(&[300], &labels)], false);
    }
}

#[test]
fn rows_by_many_indices() {
    for dtype in [DType::F32, DType::BF16] {
        for (count, rows, width) in [(5000usize, 300usize, 24), (129, 5000, 3), (2000, 2, 5)] {
            let ids: Vec<i32> = (0..count).map(|k| ((k * k * 31 + k) % rows) as i32).collect();
            let ids = ints(&[count], &ids);
            one(ScatterAdd { rows }, &[ids.clone(), noise(dtype, &[count, width], 3)], true);
            one(Gather, &[noise(dtype, &[rows, width], 4), ids], true);
        }
    }
}

/// (queries, keys, depth, values, causal)
const ATTENTIONS: [(usize, usize, usize, usize, bool); 7] = [
    (150, 150, 64, 64, true),
    (70, 200, 40, 24, false),
    (200, 90, 16, 72, true),
    (130, 130, 128, 128, true),
    (67, 65, 160, 136, true),
    (33, 3, 8, 8, false),
    (65, 129, 5, 7, true),
];

#[test]
fn attention_over_several_tiles() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (t, s, d, e, causal) in ATTENTIONS {
            let scale = Number::float(1.0 / (d as f64).sqrt());
            let operands = [[1, 2, t, d], [1, 2, s, d], [1, 2, s, e], [1, 2, t, e]];
            let args: Vec<Tensor> =
                (1..).zip(&operands).map(|(seed, shape)| noise(dtype, shape, seed)).collect();
            compare(&args, false, &|graph, args| {
                let &[q, k, v, g] = args else { return Err(OpError::new("four operands")) };
                attention_and_gradient(graph, [q, k, v, g], causal, scale)
            });
        }
    }
}

/// Queries, keys and values as parts of one tensor, as models have them.
#[test]
fn attention_of_views() {
    let (t, d, scale) = (70, 24, Number::float(0.2));
    for dtype in [DType::BF16, DType::F32] {
        for inner in [d, d - 1] {
            let args = [noise(dtype, &[2, t, 3, 2, inner], 1), noise(dtype, &[2, 2, t, inner], 2)];
            compare(&args, false, &|graph, args| {
                let &[x, g] = args else { return Err(OpError::new("two operands")) };
                let x = graph.transpose(x, &[2, 0, 3, 1, 4])?;
                let mut parts = [g; 4];
                for (k, part) in parts.iter_mut().take(3).enumerate() {
                    let range = |start, size| SliceRange { start, step: 1, size };
                    let ranges = [range(k, 1), range(0, 2), range(0, 2), range(0, t), range(0, inner)];
                    let slice = graph.value(Slice { ranges: Box::new(ranges) }, &[x])?;
                    *part = graph.reshape(slice, &[2, 2, t, inner])?;
                }
                attention_and_gradient(graph, parts, true, scale)
            });
        }
    }
}

fn attention_and_gradient(
    graph: &mut Graph,
    [q, k, v, g]: [ValueId; 4],
    causal: bool,
    scale: Number,
) -> Result<Vec<ValueId>, OpError> {
    let forward = graph.push(Attention { causal, scale }, &[q, k, v])?;
    let mut results: Vec<ValueId> = graph.node(forward).results().collect();
    let args = [&[q, k, v][..], &results, &[g]].concat();
    let backward = graph.push(AttentionGrad { causal, scale }, &args)?;
    results.extend(graph.node(backward).results());
    Ok(results)
}

/// A convolution of `images` with `channels` planes of `input`, by square filters.
#[derive(Clone, Copy)]
struct Filter {
    images: usize,
    channels: usize,
    input: (usize, usize),
    outputs: usize,
    kernel: usize,
    /// Stride, padding, dilation.
    geometry: [usize; 3],
    groups: usize,
}

impl Filter {
    fn compare(self, dtype: DType) {
        let Filter { images, channels, input, outputs, kernel, geometry, groups } = self;
        let [stride, padding, dilation] = geometry.map(|size| (size, size));
        let shape = ConvShape { stride, padding, dilation, groups };
        let weight = [outputs, channels / groups, kernel, kernel];
        let x = noise(dtype, &[images, channels, input.0, input.1], 1);
        compare(&[x, noise(dtype, &weight, 2), noise(dtype, &[outputs], 3)], false, &|graph, args| {
            let &[x, w, _] = args else { return Err(OpError::new("three operands")) };
            let y = graph.value(Conv2d { shape }, args)?;
            let dx = graph.value(Conv2dGradInput { shape, input }, &[w, y])?;
            let dw = graph.value(Conv2dGradWeight { shape, kernel: (kernel, kernel) }, &[x, y])?;
            Ok(vec![y, dx, dw])
        });
    }
}

fn filter(images: usize, channels: usize, input: (usize, usize), outputs: usize, kernel: usize) -> Filter {
    Filter { images, channels, input, outputs, kernel, geometry: [1, 0, 1], groups: 1 }
}

#[test]
fn convolutions_over_several_tiles_and_segments() {
    for dtype in [DType::F32, DType::BF16, DType::F64, DType::F16] {
        Filter { geometry: [1, 1, 1], ..filter(3, 6, (33, 34), 70, 3) }.compare(dtype);
        Filter { geometry: [2, 1, 1], groups: 8, ..filter(2, 8, (20, 21), 8, 3) }.compare(dtype);
        Filter { geometry: [3, 0, 2], groups: 2, ..filter(2, 12, (17, 18), 10, 2) }.compare(dtype);
    }
}

/// One channel and many, channels and places that are no multiples of a tile, groups, filters that skip places.
#[test]
fn convolutions_by_tensor_cores() {
    for dtype in [DType::BF16, DType::F16] {
        Filter { geometry: [1, 2, 1], ..filter(3, 1, (20, 21), 24, 5) }.compare(dtype);
        Filter { geometry: [2, 1, 1], groups: 2, ..filter(2, 40, (11, 12), 36, 3) }.compare(dtype);
        Filter { geometry: [2, 3, 2], groups: 3, ..filter(1, 51, (13, 9), 33, 3) }.compare(dtype);
        Filter { geometry: [3, 0, 1], ..filter(2, 16, (10, 14), 17, 1) }.compare(dtype);
        Filter { geometry: [1, 2, 2], ..filter(1, 130, (9, 10), 140, 3) }.compare(dtype);
        Filter { geometry: [2, 1, 1], ..filter(9, 8, (23, 22), 9, 3) }.compare(dtype);
        // Strides that leave places out which no tap sees, that share factors with dilations, or are long.
        Filter { geometry: [2, 0, 1], ..filter(2, 20, (12, 9), 30, 1) }.compare(dtype);
        Filter { geometry: [4, 1, 2], ..filter(2, 9, (19, 22), 21, 4) }.compare(dtype);
        Filter { geometry: [3, 4, 1], ..filter(2, 12, (11, 8), 16, 5) }.compare(dtype);
        Filter { geometry: [5, 1, 1], ..filter(1, 12, (16, 13), 11, 3) }.compare(dtype);
        Filter { geometry: [4, 0, 4], ..filter(1, 12, (15, 14), 19, 3) }.compare(dtype);
    }
    // As many tiles as make them large.
    Filter { geometry: [2, 0, 1], ..filter(2, 16, (182, 182), 129, 1) }.compare(DType::BF16);
}

/// With enough pixels for products, with fewer, with one; one image.
#[test]
fn convolutions_of_single_pixels() {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        for (images, side) in
            [(4, (28, 29)), (3, (7, 8)), (1, (7, 8)), (3, (7, 9)), (2, (3, 5)), (70, (1, 1))]
        {
            filter(images, 24, side, 20, 1).compare(dtype);
        }
        Filter { groups: 2, ..filter(2, 24, (7, 8), 20, 1) }.compare(dtype);
        Filter { geometry: [1, 1, 1], ..filter(2, 24, (7, 8), 20, 1) }.compare(dtype);
        // Sums long enough to be divided through the workspace.
        filter(2, 1100, (7, 8), 20, 1).compare(dtype);
    }
}

#[test]
fn pools_have_the_bits_of_the_cpu() {
    let shape = PoolShape { kernel: (3, 2), stride: (2, 1), padding: (1, 0) };
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        compare(&[noise(dtype, &[2, 3, 31, 30], 1)], true, &|graph, args| {
            let y = graph.value(MaxPool2d { shape }, args)?;
            let x = args.first().copied().unwrap_or(y);
            Ok(vec![y, graph.value(MaxPool2dGrad { shape }, &[x, y])?])
        });
    }
}

#[test]
fn products_over_several_tiles() {
    for dtype in [DType::I32, DType::U8, DType::I64, DType::F32, DType::F16] {
        let args = [noise(dtype, &[2, 70, 33], 1), noise(dtype, &[2, 33, 90], 2)];
        compare(&args, false, &|graph, args| {
            let &[a, b] = args else { return Err(OpError::new("two operands")) };
            let product = graph.matmul(a, b)?;
            let (a, b) = (graph.transpose_last(a)?, graph.transpose_last(b)?);
            Ok(vec![product, graph.matmul(b, a)?])
        });
    }
}
