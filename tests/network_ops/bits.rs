//! The same bits from one thread and several, and from run to run.

use tg::{exec::Tensor, ir::DType, ops::*};

use super::support::*;

fn same_bits(op: impl Into<Op>, args: &[Tensor], wide: &[usize]) {
    let op = op.into();
    for dtype in [DType::F32, DType::BF16] {
        let args = in_dtype(args, dtype, wide);
        let with_threads = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
            pool.install(|| run(op.clone(), &args))
        };
        let one = with_threads(1);
        // `Tensor` compares bits.
        assert!(one == with_threads(2), "`{}` in {dtype}: two threads", op.name());
        assert!(one == with_threads(3), "`{}` in {dtype}: three threads", op.name());
        assert!(one == with_threads(1), "`{}` in {dtype}: second run", op.name());
        assert!(one.iter().flat_map(values).all(|v| v.is_finite()), "`{}` in {dtype}", op.name());
    }
}

#[test]
fn row_ops() {
    let eps = Number::float(1e-5);
    let (x, g, d) = (random(1, &[300, 200]), random(2, &[300, 200]), random(3, &[200]));
    same_bits(Softmax, std::slice::from_ref(&x), &[]);
    same_bits(LogSoftmax, std::slice::from_ref(&x), &[]);
    same_bits(SoftmaxGrad, &[run1(Softmax, std::slice::from_ref(&x)), g.clone()], &[]);
    let labels = ints(&[300], &(0..300).map(|i| i * 7 % 200).collect::<Vec<_>>());
    same_bits(CrossEntropy, &[x.clone(), labels.clone()], &[]);
    let lse = run(CrossEntropy, &[x.clone(), labels.clone()]).swap_remove(1);
    same_bits(CrossEntropyGrad, &[x.clone(), labels, lse, random(4, &[300])], &[2]);
    same_bits(LayerNorm { eps }, &[x.clone(), d.clone(), d.clone()], &[]);
    let norm = run(LayerNorm { eps }, &[x.clone(), d.clone(), d.clone()]);
    same_bits(LayerNormGrad, &[x.clone(), d.clone(), norm[1].clone(), norm[2].clone(), g.clone()], &[2, 3]);
    same_bits(RmsNorm { eps }, &[x.clone(), d.clone()], &[]);
    same_bits(RmsNormGrad, &[x.clone(), d.clone(), norm[2].clone(), g.clone()], &[2]);
    same_bits(BatchNorm { eps }, &[x.clone(), d.clone(), d.clone()], &[]);
    let norm = run(BatchNorm { eps }, &[x.clone(), d.clone(), d.clone()]);
    same_bits(BatchNormGrad { eps }, &[x, d, norm[1].clone(), norm[2].clone(), g], &[2, 3]);
}

#[test]
fn window_ops() {
    let conv = ConvShape { stride: (1, 1), padding: (1, 1), dilation: (1, 1), groups: 1 };
    let one = ConvShape { padding: (0, 0), ..conv };
    let (x, g) = (random(1, &[5, 20, 19, 21]), random(2, &[5, 24, 19, 21]));
    for (shape, kernel) in [(conv, (3, 3)), (one, (1, 1))] {
        let weight = random(3, &[24, 20, kernel.0, kernel.1]);
        same_bits(Conv2d { shape }, &[x.clone(), weight.clone(), random(4, &[24])], &[]);
        same_bits(Conv2dGradInput { shape, input: (19, 21) }, &[weight, g.clone()], &[]);
        same_bits(Conv2dGradWeight { shape, kernel }, &[x.clone(), g.clone()], &[]);
    }
    let shape = PoolShape { kernel: (3, 3), stride: (2, 2), padding: (1, 1) };
    let g = random(5, &[5, 20, 10, 11]);
    same_bits(MaxPool2d { shape }, std::slice::from_ref(&x), &[]);
    same_bits(MaxPool2dGrad { shape }, &[x.clone(), g.clone()], &[]);
    same_bits(MaxPool2dGather { shape }, &[x.clone(), x.clone()], &[]);
    same_bits(AvgPool2d { shape }, &[x], &[]);
    same_bits(AvgPool2dGrad { shape, input: (19, 21) }, &[g], &[]);
}

#[test]
fn index_ops() {
    let ids = ints(&[900], &(0..900).map(|i| i * i % 97).collect::<Vec<_>>());
    same_bits(Gather, &[random(1, &[97, 64]), ids.clone()], &[]);
    same_bits(ScatterAdd { rows: 97 }, &[ids, random(2, &[900, 64])], &[]);
}

#[test]
fn attentions() {
    let shape = [2, 3, 150, 16];
    let args = [random(1, &shape), random(2, &shape), random(3, &shape)];
    for causal in [false, true] {
        let scale = Number::float(0.25);
        same_bits(Attention { causal, scale }, &args, &[]);
        let forward = run(Attention { causal, scale }, &args);
        let mut all = args.to_vec();
        all.extend([forward[0].clone(), forward[1].clone(), random(4, &shape)]);
        same_bits(AttentionGrad { causal, scale }, &all, &[4]);
    }
}
