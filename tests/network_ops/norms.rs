use tg::{
    ir::DType,
    ops::{BatchNorm, BatchNormGrad, LayerNorm, LayerNormGrad, Number, RmsNorm, RmsNormGrad},
};

use super::support::*;

const EPS: f64 = 1e-3;

fn eps() -> Number {
    Number::float(EPS)
}

fn layer_norm_reference(args: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let d = args[1].len();
    let (mut y, mut means, mut rstds) = (vec![], vec![], vec![]);
    for row in args[0].chunks(d) {
        let mean = row.iter().sum::<f64>() / d as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / d as f64;
        let rstd = 1.0 / (variance + EPS).sqrt();
        y.extend(row.iter().enumerate().map(|(i, x)| (x - mean) * rstd * args[1][i] + args[2][i]));
        means.push(mean);
        rstds.push(rstd);
    }
    vec![y, means, rstds]
}

fn rms_norm_reference(args: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let d = args[1].len();
    let (mut y, mut rstds) = (vec![], vec![]);
    for row in args[0].chunks(d) {
        let rstd = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / d as f64 + EPS).sqrt();
        y.extend(row.iter().enumerate().map(|(i, x)| x * rstd * args[1][i]));
        rstds.push(rstd);
    }
    vec![y, rstds]
}

#[test]
fn layer_norm_values() {
    for shape in [vec![5], vec![3, 5], vec![2, 3, 600]] {
        let d = shape[shape.len() - 1];
        let args = [random(1, &shape), random(2, &[d]), random(3, &[d])];
        check_values(LayerNorm { eps: eps() }, &args, &[], layer_norm_reference);
        check_composed(LayerNorm { eps: eps() }, &args, &[]);
    }
}

#[test]
fn rms_norm_values() {
    for shape in [vec![5], vec![3, 5], vec![2, 3, 600]] {
        let d = shape[shape.len() - 1];
        let args = [random(4, &shape), random(5, &[d])];
        check_values(RmsNorm { eps: eps() }, &args, &[], rms_norm_reference);
        check_composed(RmsNorm { eps: eps() }, &args, &[]);
    }
}

/// Few rows and many: the sums of dw and db are divided by rows from 64 on.
#[test]
fn gradient_values() {
    for shape in [vec![5], vec![3, 5], vec![2, 100, 9], vec![70, 300]] {
        let d = shape[shape.len() - 1];
        let (x, w, b, g) = (random(6, &shape), random(7, &[d]), random(8, &[d]), random(9, &shape));
        let forward = run(LayerNorm { eps: eps() }, &[x.clone(), w.clone(), b]);
        let args = [x.clone(), w.clone(), forward[1].clone(), forward[2].clone(), g.clone()];
        check_composed(LayerNormGrad, &args, &[2, 3]);
        let forward = run(RmsNorm { eps: eps() }, &[x.clone(), w.clone()]);
        check_composed(RmsNormGrad, &[x, w, forward[1].clone(), g], &[2]);
    }
}

#[test]
fn gradients() {
    let (x, w, b, g) = (random(10, &[3, 5]), random(11, &[5]), random(12, &[5]), random(13, &[3, 5]));
    let args = [x.clone(), w.clone(), b];
    check_gradients(LayerNorm { eps: eps() }, &args, &[0, 1, 2], 1);
    check_gradients(LayerNorm { eps: eps() }, &args, &[0, 1, 2], 3);
    check_gradients(RmsNorm { eps: eps() }, &args[..2], &[0, 1], 1);
    check_gradients(RmsNorm { eps: eps() }, &args[..2], &[0, 1], 2);
    let (mean, rstd) = (random(14, &[3]), random(15, &[3]));
    let args = [x.clone(), w.clone(), mean, rstd.clone(), g.clone()];
    check_gradients(LayerNormGrad, &args, &[0, 1, 2, 3, 4], 3);
    check_gradients(RmsNormGrad, &[x, w, rstd, g], &[0, 1, 2, 3], 2);
}

fn batch_norm_reference(args: &[Vec<f64>], shape: &[usize]) -> Vec<Vec<f64>> {
    let (n, c, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
    let places =
        |channel: usize| (0..n).flat_map(move |i| (0..inner).map(move |j| (i * c + channel) * inner + j));
    let mut y = vec![0.0; args[0].len()];
    let (mut means, mut variances) = (vec![], vec![]);
    for channel in 0..c {
        let count = (n * inner) as f64;
        let mean = places(channel).map(|p| args[0][p]).sum::<f64>() / count;
        let variance = places(channel).map(|p| (args[0][p] - mean).powi(2)).sum::<f64>() / count;
        for p in places(channel) {
            y[p] = (args[0][p] - mean) / (variance + EPS).sqrt() * args[1][channel] + args[2][channel];
        }
        means.push(mean);
        variances.push(variance);
    }
    vec![y, means, variances]
}

#[test]
fn batch_norm_values() {
    for shape in [vec![6, 3], vec![4, 3, 5], vec![3, 2, 9, 11], vec![1, 2, 40, 40]] {
        let c = shape[1];
        let (x, w, b, g) = (random(20, &shape), random(21, &[c]), random(22, &[c]), random(23, &shape));
        let args = [x.clone(), w.clone(), b];
        check_values(BatchNorm { eps: eps() }, &args, &[], |args| batch_norm_reference(args, &shape));
        check_composed(BatchNorm { eps: eps() }, &args, &[]);
        let forward = run(BatchNorm { eps: eps() }, &args);
        let args = [x, w, forward[1].clone(), forward[2].clone(), g];
        check_composed(BatchNormGrad { eps: eps() }, &args, &[2, 3]);
    }
}

#[test]
fn batch_norm_gradients() {
    let (x, w, b) = (random(24, &[3, 2, 4]), random(25, &[2]), random(26, &[2]));
    let args = [x.clone(), w.clone(), b];
    check_gradients(BatchNorm { eps: eps() }, &args, &[0, 1, 2], 1);
    check_gradients(BatchNorm { eps: eps() }, &args, &[0, 1, 2], 3);
    let variance = tensor(DType::F64, &[2], &[0.5, 0.8]);
    let args = [x, w, random(27, &[2]), variance, random(28, &[3, 2, 4])];
    check_gradients(BatchNormGrad { eps: eps() }, &args, &[0, 1, 2, 3, 4], 3);
}

/// Sums are wide: means of large f16 values fit though their sum does not; one element has no
/// variance and no NaN; constant rows have the gradient of eps alone.
#[test]
fn extreme_rows() {
    let one = tensor(DType::F16, &[3], &[1.0; 3]);
    let zero = tensor(DType::F16, &[3], &[0.0; 3]);
    let x = tensor(DType::F16, &[1, 3], &[40000.0; 3]);
    let results = run(LayerNorm { eps: eps() }, &[x, one, zero]);
    assert_eq!(values(&results[0]), [0.0; 3]);
    assert_eq!(values(&results[1]), [40000.0]);

    let x = tensor(DType::F32, &[2, 1], &[3.0, -5.0]);
    let w = tensor(DType::F32, &[1], &[2.0]);
    let results = run(LayerNorm { eps: eps() }, &[x.clone(), w.clone(), w.clone()]);
    assert_eq!(values(&results[0]), [2.0, 2.0]);
    let dx = run(LayerNormGrad, &[x.clone(), w.clone(), results[1].clone(), results[2].clone(), x.clone()]);
    assert_eq!(values(&dx[0]), [0.0, 0.0]);

    let x = tensor(DType::F32, &[1, 1], &[3.0]);
    let results = run(BatchNorm { eps: eps() }, &[x, w.clone(), w]);
    assert_eq!((values(&results[0]), values(&results[2])), (vec![2.0], vec![0.0]));
}
