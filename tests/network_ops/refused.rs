//! Operands that an op cannot take: the message names the op and every shape.

use tg::{
    ir::{DType, Graph, Type},
    ops::*,
};

#[track_caller]
fn refused(op: impl Into<Op>, types: &[(DType, &[usize])], message: &str) {
    let types: Vec<Type> = types.iter().map(|(d, s)| Type::new(*d, *s).expect("small enough")).collect();
    let args: Vec<&Type> = types.iter().collect();
    let error = op.into().infer(&Graph::new(), &args).expect_err("the operands are refused");
    assert_eq!(error.message, message);
}

use DType::{F16, F32, I32};

#[test]
fn rows() {
    let eps = Number::float(1e-5);
    refused(Softmax, &[(I32, &[3])], "`softmax` needs floating-point values, got i32[3]");
    refused(Softmax, &[(F32, &[])], "`softmax` needs at least one axis, got the scalar f32");
    refused(
        LayerNorm { eps },
        &[(F32, &[2, 3]), (F32, &[2]), (F32, &[3])],
        "`layer_norm` of f32[2, 3], f32[2] and f32[3]: weight and bias must have the shape [3] of a row",
    );
    refused(
        RmsNorm { eps },
        &[(F16, &[2, 3]), (F32, &[3])],
        "`rms_norm` of f16[2, 3] and f32[3]: the element types differ",
    );
    refused(
        BatchNorm { eps },
        &[(F32, &[3]), (F32, &[3]), (F32, &[3])],
        "`batch_norm` of f32[3], f32[3] and f32[3]: the input needs at least two axes, [n, channels, …]",
    );
    refused(
        CrossEntropy,
        &[(F32, &[4, 3]), (I32, &[5])],
        "`cross_entropy` of f32[4, 3] and i32[5]: 4 rows of logits, but 5 labels",
    );
    refused(
        CrossEntropy,
        &[(F32, &[4, 3]), (F32, &[4])],
        "`cross_entropy` of f32[4, 3] and f32[4]: labels must be whole numbers, not f32",
    );
    refused(
        CrossEntropy,
        &[(F32, &[4, 3, 2]), (I32, &[4])],
        "`cross_entropy` of f32[4, 3, 2] and i32[4]: the logits must have two axes and the labels one",
    );
}

fn geometry(stride: usize, padding: usize, groups: usize) -> ConvShape {
    ConvShape { stride: (stride, stride), padding: (padding, padding), dilation: (1, 1), groups }
}

#[test]
fn convolutions() {
    let conv = |stride, padding, groups| Conv2d { shape: geometry(stride, padding, groups) };
    refused(
        conv(1, 0, 1),
        &[(F32, &[1, 3, 8, 8]), (F32, &[4, 2, 3, 3])],
        "`conv2d` of f32[1, 3, 8, 8] and f32[4, 2, 3, 3]: the input has 3 channels, 3 in a group, but the weight \
         takes 2",
    );
    refused(
        conv(1, 0, 2),
        &[(F32, &[1, 3, 8, 8]), (F32, &[4, 2, 3, 3])],
        "`conv2d` of f32[1, 3, 8, 8] and f32[4, 2, 3, 3]: 3 input and 4 output channels cannot be divided into 2 \
         groups",
    );
    refused(
        conv(1, 0, 0),
        &[(F32, &[1, 3, 8, 8]), (F32, &[4, 3, 3, 3])],
        "`conv2d` of f32[1, 3, 8, 8] and f32[4, 3, 3, 3]: 3 input and 4 output channels cannot be divided into 0 \
         groups",
    );
    refused(
        conv(1, 0, 1),
        &[(F32, &[1, 3, 2, 8]), (F32, &[4, 3, 3, 3])],
        "`conv2d` of f32[1, 3, 2, 8] and f32[4, 3, 3, 3]: a window of height 3 does not fit into the padded height 2",
    );
    refused(
        conv(0, 0, 1),
        &[(F32, &[1, 3, 8, 8]), (F32, &[4, 3, 3, 3])],
        "`conv2d` of f32[1, 3, 8, 8] and f32[4, 3, 3, 3]: the stride's height must be at least 1",
    );
    refused(
        conv(1, usize::MAX, 1),
        &[(F32, &[1, 3, 8, 8]), (F32, &[4, 3, 3, 3])],
        "`conv2d` of f32[1, 3, 8, 8] and f32[4, 3, 3, 3]: the padded height is too large",
    );
    refused(
        conv(1, 0, 1),
        &[(F32, &[3, 8, 8]), (F32, &[4, 3, 3, 3])],
        "`conv2d` of f32[3, 8, 8] and f32[4, 3, 3, 3]: the input must have the axes [n, channels, height, width], the \
         weight [outputs, channels / groups, height, width]",
    );
    refused(
        conv(1, 0, 1),
        &[(F32, &[1, 3, 8, 8]), (F32, &[4, 3, 3, 3]), (F32, &[3])],
        "`conv2d` of f32[1, 3, 8, 8], f32[4, 3, 3, 3] and f32[3]: the bias must have the shape [4]",
    );
    refused(
        Conv2dGradInput { shape: geometry(1, 0, 1), input: (8, 8) },
        &[(F32, &[4, 3, 3, 3]), (F32, &[1, 4, 8, 8])],
        "`conv2d_grad_input` of f32[4, 3, 3, 3] and f32[1, 4, 8, 8]: f32[1, 4, 8, 8] where f32[1, 4, 6, 6] belongs",
    );
}

/// The output's size fits into an index, but not into memory.
#[test]
fn too_large() {
    let huge = usize::MAX / 16;
    let shape = ConvShape { stride: (1, 1), padding: (huge, huge), dilation: (1, 1), groups: 1 };
    let types =
        [Type::new(F32, [1, 1, 1, 1]), Type::new(F32, [1, 1, 1, 1])].map(|t| t.expect("small enough"));
    let error = Op::from(Conv2d { shape }).infer(&Graph::new(), &types.each_ref()).expect_err("too large");
    assert!(error.message.contains("too large"), "{}", error.message);

    let table = Type::new(F32, [1, 1 << 40]).expect("small enough");
    let ids = Type::new(I32, [1 << 40]).expect("small enough");
    let error = Op::from(Gather).infer(&Graph::new(), &[&table, &ids]).expect_err("too large");
    assert!(error.message.contains("too large"), "{}", error.message);

    let rows = Type::new(F32, [1, 1 << 40]).expect("small enough");
    let ids = Type::new(I32, [1]).expect("small enough");
    let error =
        Op::from(ScatterAdd { rows: 1 << 40 }).infer(&Graph::new(), &[&ids, &rows]).expect_err("too large");
    assert!(error.message.contains("too large"), "{}", error.message);
}

#[test]
fn pools() {
    let pool = |kernel, stride, padding| PoolShape { kernel, stride, padding };
    refused(
        MaxPool2d { shape: pool((2, 2), (2, 2), (2, 0)) },
        &[(F32, &[1, 1, 4, 4])],
        "`max_pool2d` of f32[1, 1, 4, 4]: the padding (2, 0) must be less than the kernel (2, 2)",
    );
    refused(
        AvgPool2d { shape: pool((0, 2), (2, 2), (0, 0)) },
        &[(F32, &[1, 1, 4, 4])],
        "`avg_pool2d` of f32[1, 1, 4, 4]: the kernel's height must be at least 1",
    );
    refused(
        MaxPool2d { shape: pool((2, 5), (2, 2), (0, 0)) },
        &[(F32, &[1, 1, 4, 4])],
        "`max_pool2d` of f32[1, 1, 4, 4]: a window of width 5 does not fit into the padded width 4",
    );
    refused(
        MaxPool2d { shape: pool((2, 2), (2, 2), (0, 0)) },
        &[(F32, &[4, 4])],
        "`max_pool2d` of f32[4, 4]: the input must have the axes [n, channels, height, width]",
    );
}

#[test]
fn rows_by_index() {
    refused(
        Gather,
        &[(F32, &[]), (I32, &[2])],
        "`gather` of f32 and i32[2]: the table needs at least one axis",
    );
    refused(
        Gather,
        &[(F32, &[3]), (F32, &[2])],
        "`gather` of f32[3] and f32[2]: indices must be whole numbers, not f32",
    );
    refused(
        ScatterAdd { rows: 3 },
        &[(I32, &[2]), (F32, &[3, 2])],
        "`scatter_add` of i32[2] and f32[3, 2]: the first axes of the rows must be those of the indices",
    );
}

#[test]
fn attentions() {
    let op = Attention { causal: false, scale: Number::float(1.0) };
    refused(
        op.clone(),
        &[(F32, &[1, 2, 3, 4]), (F32, &[1, 2, 3, 5]), (F32, &[1, 2, 3, 4])],
        "`attention` of f32[1, 2, 3, 4], f32[1, 2, 3, 5] and f32[1, 2, 3, 4]: queries have depth 4, keys 5",
    );
    refused(
        op.clone(),
        &[(F32, &[1, 2, 3, 4]), (F32, &[1, 2, 5, 4]), (F32, &[1, 2, 6, 4])],
        "`attention` of f32[1, 2, 3, 4], f32[1, 2, 5, 4] and f32[1, 2, 6, 4]: there are 5 keys, but 6 values",
    );
    refused(
        op,
        &[(F32, &[1, 2, 3, 4]), (F32, &[1, 1, 3, 4]), (F32, &[1, 2, 3, 4])],
        "`attention` of f32[1, 2, 3, 4], f32[1, 1, 3, 4] and f32[1, 2, 3, 4]: batch and heads differ",
    );
}

/// What `attributes` writes.
#[test]
fn attributes() {
    let shape = ConvShape { stride: (1, 2), padding: (3, 4), dilation: (5, 6), groups: 7 };
    let conv = "stride=[1, 2], padding=[3, 4], dilation=[5, 6], groups=7";
    let pool = PoolShape { kernel: (1, 2), stride: (3, 4), padding: (0, 1) };
    let cases: Vec<(Op, String)> = vec![
        (Conv2d { shape }.into(), conv.into()),
        (Conv2dGradInput { shape, input: (8, 9) }.into(), format!("{conv}, input=[8, 9]")),
        (Conv2dGradWeight { shape, kernel: (2, 3) }.into(), format!("{conv}, kernel=[2, 3]")),
        (MaxPool2d { shape: pool }.into(), "kernel=[1, 2], stride=[3, 4], padding=[0, 1]".into()),
        (LayerNorm { eps: Number::float(1e-5) }.into(), "eps=1e-5".into()),
        (ScatterAdd { rows: 3 }.into(), "rows=3".into()),
        (Attention { causal: true, scale: Number::float(0.125) }.into(), "causal=true, scale=0.125".into()),
        (Softmax.into(), String::new()),
    ];
    for (op, text) in cases {
        assert_eq!(op.attributes(), text, "{}", op.name());
    }
}

/// Workspace and cost are those of the shapes, and a pointwise convolution copies nothing.
#[test]
fn workspace_and_flops() {
    let ty = |shape: &[usize]| Type::new(F32, shape).expect("small enough");
    let (x, w, y) = (ty(&[64, 1024, 14, 14]), ty(&[1024, 1024, 1, 1]), ty(&[64, 1024, 14, 14]));
    let shape = geometry(1, 0, 1);
    for (op, args, result) in [
        (Op::from(Conv2d { shape }), [&x, &w], &y),
        (Op::from(Conv2dGradInput { shape, input: (14, 14) }), [&w, &y], &x),
        (Op::from(Conv2dGradWeight { shape, kernel: (1, 1) }), [&x, &y], &w),
    ] {
        assert_eq!(op.workspace(&args, &[result]), 0, "{}", op.name());
        assert_eq!(op.flops(&args, &[result]), 2.0 * 64.0 * 196.0 * 1024.0 * 1024.0, "{}", op.name());
    }
    // No T×T buffer, however long the sequence.
    let q = ty(&[1, 1, 100_000, 64]);
    let op = Op::from(Attention { causal: true, scale: Number::float(0.125) });
    let results = [q.clone(), ty(&[1, 1, 100_000])];
    assert!(op.workspace(&[&q, &q, &q], &results.each_ref()) < 2 << 20);
}
