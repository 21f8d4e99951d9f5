use tg::{
    exec::Tensor,
    ir::DType,
    ops::{CrossEntropy, CrossEntropyGrad},
};

use super::{softmax::softmax_rows, support::*};

const INF: f64 = f64::INFINITY;

fn reference(logits: &[f64], labels: &[f64], classes: usize) -> Vec<Vec<f64>> {
    let mut loss = Vec::new();
    let mut logs = Vec::new();
    for (row, &label) in logits.chunks(classes).zip(labels) {
        let top = largest(row);
        let log = row.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
        logs.push(log);
        loss.push(top + log - row[label as usize]);
    }
    vec![loss, logs]
}

fn largest(row: &[f64]) -> f64 {
    row.iter().copied().fold(-INF, f64::max)
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
        let logs = run(CrossEntropy, &[logits.clone(), labels.clone()]).swap_remove(1);
        let args = [logits, labels, logs, random(3, &[rows])];
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

/// exp(x − the largest x − log), with the logarithms that the kernel gets (which are rounded).
fn softmax_of(x: &[f64], logs: &[f64], classes: usize) -> Vec<f64> {
    let rows = x.chunks(classes).zip(logs);
    rows.flat_map(|(row, log)| row.iter().map(move |x| (x - largest(row) - log).exp())).collect()
}

#[test]
fn gradients() {
    let (logits, labels) = (random(4, &[3, 5]), labels(DType::I64, 3, 5));
    // The second gradients go through the logarithms. By themselves they, and the softmax for other
    // logarithms than its own, depend on the largest logit, which the ops count as a constant.
    check_gradients(CrossEntropy, &[logits.clone(), labels.clone()], &[0], 1);
    let logs = random(5, &[3]);
    check_gradients(CrossEntropyGrad, &[logits, labels, logs, random(6, &[3])], &[2, 3], 1);
}

/// Large logits keep their differences: PyTorch's gradient in f32 is as exact.
#[test]
fn large_logits() {
    let labels = ints(&[2], &[0, 2]);
    let g = tensor(DType::F32, &[2], &[1.0, 1.0]);
    let p = softmax_rows(&[0.0, 1.0, 0.0, 0.0, 0.0, -INF], 3);
    let expected = [p[0] - 1.0, p[1], p[2], p[3], p[4], p[5] - 1.0];
    for size in [3e4, 1e6] {
        let logits = tensor(DType::F32, &[2, 3], &[size, size + 1.0, size, size, size, -size]);
        let logs = run(CrossEntropy, &[logits.clone(), labels.clone()]).swap_remove(1);
        let args = [logits, labels.clone(), logs, g.clone()];
        let dx = values(&run1(CrossEntropyGrad, &args));
        assert_close(&dx, &expected, 1e-6, "cross_entropy_grad");
        let composed =
            run_graph(&args, |graph, args| tg::ops::Op::from(CrossEntropyGrad).decompose(graph, args))
                .expect("the composed form runs");
        assert_close(&values(&composed[0]), &expected, 1e-6, "cross_entropy_grad, composed");
    }
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
    let logs = run(CrossEntropy, &[logits.clone(), labels.clone()]).swap_remove(1);
    let g = tensor(DType::F32, &[1], &[1.0]);
    let dx = values(&run1(CrossEntropyGrad, &[logits, labels, logs, g]));
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
