//! What the reference interpreter does not try: strided operands, results over operands, scratch
//! memory and results full of rubbish. Whatever of it an op's `memory` allows must give the bits of
//! the plain call.

use half::{bf16, f16};

use crate::{
    exec::{
        Tensor,
        cpu::{Call, Operand, ScalarPage},
    },
    ir::{DType, Graph, Type},
    ops::*,
};

/// A tensor with elements between −1 and 1.
fn random(seed: u64, dtype: DType, shape: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect();
    match dtype {
        DType::F64 => Tensor::from_slice(shape, &values.iter().map(|&v| v.into()).collect::<Vec<f64>>()),
        DType::F16 => {
            Tensor::from_slice(shape, &values.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>())
        }
        DType::BF16 => {
            Tensor::from_slice(shape, &values.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>())
        }
        DType::I32 => {
            Tensor::from_slice(shape, &values.iter().map(|v| (v.abs() * 3.0) as i32).collect::<Vec<_>>())
        }
        _ => Tensor::from_slice(shape, &values),
    }
    .expect("as many values as the shape has elements")
}

/// A buffer with an operand somewhere in it.
struct Placed {
    buffer: Tensor,
    ty: Type,
    layout: Layout,
}

/// Bytes that are NaN in every floating-point type.
fn rubbish(bytes: usize) -> Tensor {
    let ty = Type::new(DType::U8, [bytes]).expect("small enough");
    Tensor::from_bytes(ty, &vec![0xff; bytes]).expect("as many bytes")
}

/// Lays the elements of `from` out with these strides, the first at `offset`.
fn place(from: &Tensor, offset: usize, strides: &[usize]) -> Placed {
    let (shape, size) = (from.shape(), from.dtype().size());
    let last: usize = shape.iter().zip(strides).map(|(dim, stride)| (dim - 1) * stride).sum();
    let mut buffer = rubbish((offset + last + 1) * size);
    let dense = Layout::dense(shape).strides;
    for index in 0..from.ty().elements() {
        let to: usize =
            dense.iter().zip(strides).zip(shape).map(|((&d, &s), &dim)| index / d % dim * s).sum();
        let to = (offset + to) * size;
        buffer.bytes_mut().expect("memory")[to..to + size]
            .copy_from_slice(&from.bytes()[index * size..(index + 1) * size]);
    }
    Placed { buffer, ty: from.ty().clone(), layout: Layout { offset, strides: strides.into() } }
}

/// Strides of the axes in another order of memory, with gaps.
fn scrambled(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut next = 2;
    // The first axis innermost, as after a transpose.
    for (stride, dim) in strides.iter_mut().zip(shape) {
        *stride = next;
        next *= dim + 1;
    }
    strides
}

/// Runs an op; `over` is a pair (result, operand) that share memory.
fn call(op: &Op, mut args: Vec<Placed>, results: &[Type], over: Option<(usize, usize)>) -> Vec<Tensor> {
    let arg_types: Vec<&Type> = args.iter().map(|a| &a.ty).collect();
    let workspace_len = op.workspace(&arg_types, &results.iter().collect::<Vec<_>>()) as usize;
    let mut workspace = rubbish(workspace_len + 64);
    let mut buffers: Vec<Tensor> = results.iter().map(|ty| rubbish(ty.bytes() as usize + 16)).collect();
    let layouts: Vec<Layout> = results.iter().map(|ty| Layout::dense(ty.shape())).collect();
    let addresses: Vec<*mut u8> =
        args.iter_mut().map(|a| a.buffer.bytes_mut().expect("memory").as_mut_ptr()).collect();
    let page = ScalarPage::default();
    // SAFETY: every operand and result lies inside its buffer, which lives until the end; they are
    // disjoint but for the pair that the op allows; the workspace is moved up to its alignment.
    unsafe {
        let operands: Vec<Operand<'_>> =
            args.iter().zip(&addresses).map(|(a, &start)| Operand::new(start, &a.ty, &a.layout)).collect();
        let targets: Vec<Operand<'_>> = (0..results.len())
            .map(|k| match over {
                Some((result, arg)) if result == k => Operand::new(addresses[arg], &results[k], &layouts[k]),
                _ => Operand::new(
                    buffers[k].bytes_mut().expect("memory").as_mut_ptr(),
                    &results[k],
                    &layouts[k],
                ),
            })
            .collect();
        let start = workspace.bytes_mut().expect("memory").as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(64));
        op.cpu(&Call::new(&operands, &targets, start, workspace_len, &page)).expect("the kernel runs");
    }
    results
        .iter()
        .enumerate()
        .map(|(k, ty)| {
            let buffer = match over {
                Some((result, arg)) if result == k => &args[arg].buffer,
                _ => &buffers[k],
            };
            Tensor::from_bytes(ty.clone(), &buffer.bytes()[..ty.bytes() as usize]).expect("as many bytes")
        })
        .collect()
}

fn infer(op: &Op, args: &[Tensor]) -> Vec<Type> {
    op.infer(&Graph::new(), &args.iter().map(Tensor::ty).collect::<Vec<_>>()).expect("the op takes these")
}

fn densely(args: &[Tensor]) -> Vec<Placed> {
    args.iter().map(|a| place(a, 0, &Layout::dense(a.shape()).strides)).collect()
}

/// Every pair that the op lists, and strided operands if it takes them, against the plain call.
fn check(op: impl Into<Op>, args: &[Tensor]) {
    let op = op.into();
    let results = infer(&op, args);
    let plain = call(&op, densely(args), &results, None);
    assert!(
        plain.iter().all(|r| (0..r.ty().elements()).all(|i| r.get_f64(i).is_some_and(f64::is_finite))),
        "`{}`: rubbish in the results",
        op.name()
    );
    let memory = op.memory();
    for &(result, arg) in &memory.overwrites {
        let over = call(&op, densely(args), &results, Some((result, arg)));
        assert!(over == plain, "`{}`: result {result} over operand {arg}", op.name());
    }
    if memory.strided {
        let strided = args.iter().map(|a| place(a, 3, &scrambled(a.shape()))).collect();
        assert!(close(&call(&op, strided, &results, None), &plain), "`{}`: strided", op.name());
        // The last operand as a broadcast scalar, such as the gradient of a sum.
        let mut last = args.to_vec();
        let scalar = args[args.len() - 1].clone();
        let size = scalar.dtype().size();
        let repeated = scalar.bytes()[..size].repeat(scalar.ty().elements());
        last[args.len() - 1] = Tensor::from_bytes(scalar.ty().clone(), &repeated).expect("as many bytes");
        let plain = call(&op, densely(&last), &results, None);
        let mut broadcast = densely(&last);
        let place_of_last = broadcast.len() - 1;
        broadcast[place_of_last] = place(&scalar, 0, &vec![0; scalar.shape().len()]);
        broadcast[place_of_last].buffer.bytes_mut().expect("memory")[..size]
            .copy_from_slice(&scalar.bytes()[..size]);
        assert!(close(&call(&op, broadcast, &results, None), &plain), "`{}`: broadcast", op.name());
    }
}

/// Equal but for the order in which products sum.
fn close(a: &[Tensor], b: &[Tensor]) -> bool {
    a.iter().zip(b).all(|(a, b)| {
        (0..a.ty().elements()).all(|i| {
            let (a, b) = (a.get_f64(i).unwrap_or(f64::NAN), b.get_f64(i).unwrap_or(f64::NAN));
            let tolerance = if b.abs() > 1e-3 { 1e-2 } else { 1e-4 };
            (a - b).abs() <= tolerance * b.abs().max(1.0)
        })
    })
}

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

#[test]
fn rows_in_place_and_strided() {
    let eps = Number::float(1e-5);
    for dtype in TYPES {
        let wide = dtype.accumulator();
        let (x, g) = (random(1, dtype, &[3, 2, 300]), random(2, dtype, &[3, 2, 300]));
        let (w, b) = (random(3, dtype, &[300]), random(4, dtype, &[300]));
        let (mean, rstd) = (random(5, wide, &[3, 2]), random(6, wide, &[3, 2]));
        check(Softmax, std::slice::from_ref(&x));
        check(LogSoftmax, std::slice::from_ref(&x));
        check(SoftmaxGrad, &[x.clone(), g.clone()]);
        check(LayerNorm { eps }, &[x.clone(), w.clone(), b.clone()]);
        check(LayerNormGrad, &[x.clone(), w.clone(), mean, rstd.clone(), g.clone()]);
        check(RmsNorm { eps }, &[x.clone(), w.clone()]);
        check(RmsNormGrad, &[x, w, rstd, g]);
        let (logits, labels) = (random(7, dtype, &[5, 300]), random(8, DType::I32, &[5]));
        check(CrossEntropy, &[logits.clone(), labels.clone()]);
        let logs = random(9, wide, &[5]);
        check(CrossEntropyGrad, &[logits, labels, logs, random(10, dtype, &[5])]);
        let (x, w) = (random(11, dtype, &[4, 3, 70]), random(12, dtype, &[3]));
        check(BatchNorm { eps }, &[x.clone(), w.clone(), w.clone()]);
        let mean = random(13, wide, &[3]);
        // A variance is not negative.
        let variance = squared(&random(14, wide, &[3]));
        check(BatchNormGrad { eps }, &[x.clone(), w, mean, variance, x]);
    }
}

fn squared(x: &Tensor) -> Tensor {
    let square = |i| x.get_f64(i).map_or(0.0, |v| v * v);
    let values: Vec<f64> = (0..x.ty().elements()).map(square).collect();
    match x.dtype() {
        DType::F64 => Tensor::from_slice(x.shape(), &values),
        _ => Tensor::from_slice(x.shape(), &values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
    }
    .expect("as many values")
}

#[test]
fn attention_strided() {
    for dtype in TYPES {
        for causal in [false, true] {
            let scale = Number::float(0.5);
            let (q, k) = (random(1, dtype, &[2, 2, 70, 5]), random(2, dtype, &[2, 2, 140, 5]));
            let v = random(3, dtype, &[2, 2, 140, 4]);
            let op = Op::from(Attention { causal, scale });
            check(op.clone(), &[q.clone(), k.clone(), v.clone()]);
            let args = [q.clone(), k.clone(), v.clone()];
            let forward = call(&op, densely(&args), &infer(&op, &args), None);
            let g = random(4, dtype, &[2, 2, 70, 4]);
            check(AttentionGrad { causal, scale }, &[q, k, v, forward[0].clone(), forward[1].clone(), g]);
        }
    }
}

/// Results and workspace are written before they are read.
#[test]
fn windows_and_indices_with_rubbish() {
    let padded = ConvShape { stride: (2, 1), padding: (1, 2), dilation: (1, 2), groups: 2 };
    let pointwise = ConvShape { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 2 };
    for dtype in TYPES {
        let x = random(1, dtype, &[3, 4, 9, 8]);
        for (shape, kernel, output) in [(padded, (3, 3), (5, 8)), (pointwise, (1, 1), (9, 8))] {
            let weight = random(2, dtype, &[6, 2, kernel.0, kernel.1]);
            let g = random(3, dtype, &[3, 6, output.0, output.1]);
            check(Conv2d { shape }, &[x.clone(), weight.clone(), random(4, dtype, &[6])]);
            check(Conv2dGradInput { shape, input: (9, 8) }, &[weight, g.clone()]);
            check(Conv2dGradWeight { shape, kernel }, &[x.clone(), g]);
        }
        let shape = PoolShape { kernel: (3, 2), stride: (2, 2), padding: (1, 0) };
        let g = random(5, dtype, &[3, 4, 5, 4]);
        check(MaxPool2d { shape }, std::slice::from_ref(&x));
        check(MaxPool2dGrad { shape }, &[x.clone(), g.clone()]);
        check(MaxPool2dGather { shape }, &[x.clone(), x.clone()]);
        check(AvgPool2d { shape }, &[x]);
        check(AvgPool2dGrad { shape, input: (9, 8) }, &[g]);
        let ids = random(6, DType::I32, &[9]);
        check(Gather, &[random(7, dtype, &[4, 10]), ids.clone()]);
        check(ScatterAdd { rows: 5 }, &[ids, random(8, dtype, &[9, 10])]);
    }
}
