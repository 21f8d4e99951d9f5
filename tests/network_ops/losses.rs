use tg::{
    exec::Tensor,
    ir::DType,
    ops::{CrossEntropy, CrossEntropyGrad},
};

use super::{softmax::softmax_rows, support::*};

const INF: f64 = f64::INFINITY;

fn reference(logits: &[f64], labels: &[f64], classes: usize) -> Vec<Vec<f64>> {
    let mut loss = Vec::new();
    let mut lse = Vec::new();
    for (row, &label) in logits.chunks(classes).zip(labels) {
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        lse.push(total.ln());
        loss.push(total.ln() - row[label as usize]);
    }
    vec![loss, lse]
}

fn labels(dtype: DType, rows: usize, classes: usize) -> Tensor {
    let labels: Vec<f64> = (0..rows).map(|i| (i * 7 % classes) as f64).collect();
    tensor(dtype, &[rows], &labels)
}

#[test]
fn values_in_every_type() {
    for (rows, classes) in [(5, 4), (3, 700), (1, 1)] {
        for dtype in [DType::I32, DType::I64, DType::U8] {
            let args = [random(1, &[rows, classes]), labels(dtype, rows, classes.min(250))];
            check_values(CrossEntropy, &args, &[], |args| reference(&args[0], &args[1], classes));
            check_composed(CrossEntropy, &args, &[]);
        }
    }
}

#[test]
fn gradient_values_in_every_type() {
    for (rows, classes) in [(5, 4), (3, 700)] {
        let (logits, labels) = (random(2, &[rows, classes]), labels(DType::I32, rows, classes));
        let lse = run(CrossEntropy, &[logits.clone(), labels.clone()]).swap_remove(1);
        let args = [logits, labels, lse, random(3, &[rows])];
        check_values(CrossEntropyGrad, &args, &[2], |args| {
            let mut dx = softmax_of(&args[0], &args[2], classes);
            for (row, (&label, &g)) in args[1].iter().zip(&args[3]).enumerate() {
                let dx = &mut dx[row * classes..(row + 1) * classes];
                dx[label as usize] -= 1.0;
                dx.iter_mut().for_each(|d| *d *= g);
            }
            vec![dx]
        });
        check_composed(CrossEntropyGrad, &args, &[2]);
    }
}

/// exp(x − lse), with the lse that the kernel gets (which is rounded).
fn softmax_of(x: &[f64], lse: &[f64], classes: usize) -> Vec<f64> {
    x.iter().enumerate().map(|(i, x)| (x - lse[i / classes]).exp()).collect()
}

#[test]
fn gradients() {
    let (logits, labels) = (random(4, &[3, 5]), labels(DType::I64, 3, 5));
    check_gradients(CrossEntropy, &[logits.clone(), labels.clone()], &[0], 1);
    // Through the log-sum-exp too.
    check_gradients(CrossEntropy, &[logits.clone(), labels.clone()], &[0], 2);
    let lse = random(5, &[3]);
    check_gradients(CrossEntropyGrad, &[logits, labels, lse, random(6, &[3])], &[0, 2, 3], 1);
}

/// A label at −∞ gives an infinite loss and the gradient p − onehot; a row of −∞ an infinite loss
/// and no gradient.
#[test]
fn masked_logits() {
    let logits = [-INF, 0.0, 1.0, -INF, -INF, -INF, 1e30, -1e30, 0.0];
    for dtype in [DType::F64, DType::F32] {
        let logits = tensor(dtype, &[3, 3], &logits);
        let labels = ints(&[3], &[0, 1, 0]);
        let results = run(CrossEntropy, &[logits.clone(), labels.clone()]);
        assert_eq!(values(&results[0]), [INF, INF, 0.0], "{dtype}");
        let g = tensor(dtype, &[3], &[1.0, 1.0, 1.0]);
        let grad_args = [logits, labels, results[1].clone(), g];
        let dx = values(&run1(CrossEntropyGrad, &grad_args));
        let p = softmax_rows(&[0.0, 1.0], 2);
        let expected = [-1.0, p[0], p[1], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_close(&dx, &expected, 1e-6, "cross_entropy_grad");
        let composed =
            run_graph(&grad_args, |graph, args| tg::ops::Op::from(CrossEntropyGrad).decompose(graph, args))
                .expect("the composed form runs");
        assert_close(&values(&composed[0]), &expected, 1e-6, "cross_entropy_grad, composed");
        let composed =
            run_graph(&grad_args[..2], |graph, args| tg::ops::Op::from(CrossEntropy).decompose(graph, args))
                .expect("the composed form runs");
        assert_eq!(values(&composed[0]), [INF, INF, 0.0], "{dtype}, composed");
    }
}

/// Near a probability of 1 the gradient p − 1 is small, not 0 by cancellation of g.
#[test]
fn confident_rows_keep_a_gradient() {
    let logits = tensor(DType::F32, &[1, 2], &[10.0, 0.0]);
    let labels = ints(&[1], &[0]);
    let lse = run(CrossEntropy, &[logits.clone(), labels.clone()]).swap_remove(1);
    let g = tensor(DType::F32, &[1], &[1.0]);
    let dx = values(&run1(CrossEntropyGrad, &[logits, labels, lse, g]));
    let p = 1.0 / (1.0 + 10f64.exp());
    assert_close(&dx, &[-p, p], 2e-3, "dx");
}

#[test]
fn wrong_labels() {
    let logits = random(7, &[3, 4]);
    for (labels, text) in [
        ([0, 4, 9], "`cross_entropy`: label 4 of row 1 is outside 0 ≤ label < 4"),
        ([0, 1, -1], "`cross_entropy`: label -1 of row 2 is outside 0 ≤ label < 4"),
    ] {
        let error = try_run(CrossEntropy, &[logits.clone(), ints(&[3], &labels)]).expect_err("a wrong label");
        assert_eq!(error, text);
    }
    let error = try_run(CrossEntropy, &[random(8, &[1, 0]), ints(&[1], &[0])]).expect_err("no classes");
    assert_eq!(error, "`cross_entropy`: label 0 of row 0 is outside 0 ≤ label < 0");
}
