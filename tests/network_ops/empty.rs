//! Tensors without elements.

use tg::{exec::Tensor, ir::DType, ops::*};

use super::support::*;

/// Runs in every type; every result element is `expected`.
#[track_caller]
fn all_are(op: impl Into<Op>, shapes: &[&[usize]], wide: &[usize], expected: &[&[f64]]) {
    let op = op.into();
    let args: Vec<Tensor> = shapes.iter().enumerate().map(|(k, shape)| random(k as u64, shape)).collect();
    for dtype in FLOATS {
        let results = run(op.clone(), &in_dtype(&args, dtype, wide));
        for (result, expected) in results.iter().zip(expected) {
            assert_close(&values(result), expected, 0.0, &format!("`{}` in {dtype}", op.name()));
        }
    }
}

#[test]
fn rows() {
    let eps = Number::float(1e-5);
    all_are(Softmax, &[&[0, 3]], &[], &[&[]]);
    all_are(Softmax, &[&[3, 0]], &[], &[&[]]);
    all_are(LogSoftmax, &[&[0]], &[], &[&[]]);
    all_are(SoftmaxGrad, &[&[0, 3], &[0, 3]], &[], &[&[]]);
    all_are(LayerNorm { eps }, &[&[0, 2], &[2], &[2]], &[], &[&[], &[], &[]]);
    all_are(LayerNormGrad, &[&[0, 2], &[2], &[0], &[0], &[0, 2]], &[2, 3], &[&[], &[0.0; 2], &[0.0; 2]]);
    all_are(LayerNormGrad, &[&[2, 0], &[0], &[2], &[2], &[2, 0]], &[2, 3], &[&[], &[], &[]]);
    all_are(RmsNorm { eps }, &[&[2, 0, 3], &[3]], &[], &[&[], &[]]);
    all_are(RmsNormGrad, &[&[0, 3], &[3], &[0], &[0, 3]], &[2], &[&[], &[0.0; 3]]);
    let nan = [f64::NAN; 2];
    all_are(BatchNorm { eps }, &[&[0, 2, 4], &[2], &[2]], &[], &[&[], &nan, &nan]);
    all_are(
        BatchNormGrad { eps },
        &[&[3, 2, 0], &[2], &[2], &[2], &[3, 2, 0]],
        &[2, 3],
        &[&[], &[0.0; 2], &[0.0; 2]],
    );
}

#[test]
fn losses() {
    for dtype in FLOATS {
        let (logits, labels) =
            (Tensor::zeros(random(0, &[0, 5]).ty().with_dtype(dtype).expect("small")), ints(&[0], &[]));
        let results = run(CrossEntropy, &[logits.clone(), labels.clone()]);
        assert_eq!(results[0].shape(), [0]);
        let dx = run1(CrossEntropyGrad, &[logits, labels, results[1].clone(), results[0].clone()]);
        assert_eq!(dx.shape(), [0, 5]);
    }
}

#[test]
fn convolutions() {
    let shape = ConvShape { stride: (1, 1), padding: (1, 1), dilation: (1, 1), groups: 1 };
    let one = ConvShape { padding: (0, 0), ..shape };
    // No images.
    all_are(Conv2d { shape }, &[&[0, 2, 4, 4], &[3, 2, 3, 3], &[3]], &[], &[&[]]);
    all_are(Conv2dGradInput { shape, input: (4, 4) }, &[&[3, 2, 3, 3], &[0, 3, 4, 4]], &[], &[&[]]);
    all_are(Conv2dGradWeight { shape, kernel: (3, 3) }, &[&[0, 2, 4, 4], &[0, 3, 4, 4]], &[], &[&[0.0; 54]]);
    all_are(
        Conv2dGradWeight { shape: one, kernel: (1, 1) },
        &[&[0, 2, 4, 4], &[0, 3, 4, 4]],
        &[],
        &[&[0.0; 6]],
    );
    // No input channels: sums of nothing.
    all_are(Conv2d { shape }, &[&[1, 0, 2, 2], &[1, 0, 3, 3]], &[], &[&[0.0; 4]]);
    all_are(Conv2d { shape: one }, &[&[1, 0, 2, 2], &[1, 0, 1, 1]], &[], &[&[0.0; 4]]);
    all_are(Conv2dGradInput { shape, input: (2, 2) }, &[&[1, 0, 3, 3], &[1, 1, 2, 2]], &[], &[&[]]);
    all_are(Conv2dGradWeight { shape, kernel: (3, 3) }, &[&[1, 0, 2, 2], &[1, 1, 2, 2]], &[], &[&[]]);
    // No output channels.
    all_are(Conv2d { shape }, &[&[1, 2, 2, 2], &[0, 2, 3, 3]], &[], &[&[]]);
    all_are(Conv2dGradInput { shape, input: (2, 2) }, &[&[0, 2, 3, 3], &[1, 0, 2, 2]], &[], &[&[0.0; 8]]);
    all_are(
        Conv2dGradInput { shape: one, input: (2, 2) },
        &[&[0, 2, 1, 1], &[1, 0, 2, 2]],
        &[],
        &[&[0.0; 8]],
    );
    // No pixels but padding.
    all_are(Conv2d { shape }, &[&[1, 2, 0, 1], &[1, 2, 2, 3]], &[], &[&[0.0; 1]]);
    all_are(Conv2dGradWeight { shape, kernel: (2, 3) }, &[&[1, 1, 0, 1], &[1, 1, 1, 1]], &[], &[&[0.0; 6]]);
}

#[test]
fn pools() {
    let shape = PoolShape { kernel: (2, 2), stride: (2, 2), padding: (0, 0) };
    all_are(MaxPool2d { shape }, &[&[0, 2, 4, 4]], &[], &[&[]]);
    all_are(MaxPool2dGrad { shape }, &[&[0, 2, 4, 4], &[0, 2, 2, 2]], &[], &[&[]]);
    all_are(MaxPool2dGather { shape }, &[&[2, 0, 4, 4], &[2, 0, 4, 4]], &[], &[&[]]);
    all_are(AvgPool2d { shape }, &[&[0, 2, 4, 4]], &[], &[&[]]);
    all_are(AvgPool2dGrad { shape, input: (4, 4) }, &[&[0, 2, 2, 2]], &[], &[&[]]);
    // A window of padding only.
    let shape = PoolShape { kernel: (2, 2), stride: (1, 1), padding: (1, 1) };
    all_are(MaxPool2d { shape }, &[&[1, 1, 0, 0]], &[], &[&[-f64::INFINITY]]);
    all_are(MaxPool2dGather { shape }, &[&[1, 1, 0, 0], &[1, 1, 0, 0]], &[], &[&[0.0]]);
    all_are(AvgPool2d { shape }, &[&[1, 1, 0, 0]], &[], &[&[0.0]]);
}

#[test]
fn rows_by_index() {
    let none = ints(&[0], &[]);
    assert_eq!(run1(Gather, &[random(1, &[3, 2]), none.clone()]).shape(), [0, 2]);
    assert_eq!(run1(Gather, &[random(1, &[0, 2]), none.clone()]).shape(), [0, 2]);
    assert_eq!(run1(Gather, &[random(1, &[3, 0]), ints(&[2], &[0, 2])]).shape(), [2, 0]);
    let zeros = run1(ScatterAdd { rows: 2 }, &[none, random(2, &[0, 3])]);
    assert_eq!(values(&zeros), [0.0; 6]);
    assert_eq!(run1(ScatterAdd { rows: 2 }, &[ints(&[1], &[1]), random(2, &[1, 0])]).shape(), [2, 0]);
    let error = try_run(Gather, &[random(1, &[0, 2]), ints(&[1], &[0])]).expect_err("an empty table");
    assert_eq!(error, "`gather`: index 0 at position 0 is outside 0 ≤ index < 0");
}

#[test]
fn attentions() {
    let (causal, scale) = (true, Number::float(1.0));
    for [b, t, s, d, e] in
        [[0, 3, 3, 2, 2], [1, 0, 3, 2, 2], [1, 3, 3, 0, 2], [1, 3, 3, 2, 0], [1, 0, 0, 0, 0]]
    {
        for dtype in [DType::F64, DType::F16] {
            let args = in_dtype(
                &[random(1, &[b, 1, t, d]), random(2, &[b, 1, s, d]), random(3, &[b, 1, s, e])],
                dtype,
                &[],
            );
            let forward = run(Attention { causal, scale }, &args);
            assert_eq!(forward[0].shape(), [b, 1, t, e]);
            let mut all = args.clone();
            all.extend([forward[0].clone(), forward[1].clone(), forward[0].clone()]);
            let gradients = run(AttentionGrad { causal, scale }, &all);
            for (gradient, arg) in gradients.iter().zip(&args) {
                assert_eq!(gradient.ty(), arg.ty());
            }
            if t == 0 || e == 0 {
                assert!(gradients.iter().flat_map(values).all(|g| g == 0.0));
            }
        }
    }
}
