use tg::{
    ir::DType,
    ops::{LogSoftmax, Slice, SliceRange, Softmax, SoftmaxGrad},
};

use super::support::*;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

pub fn softmax_rows(x: &[f64], columns: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(columns) {
        let top = row.iter().copied().fold(-INF, f64::max);
        let exp: Vec<f64> = row.iter().map(|x| (x - top).exp()).collect();
        let total: f64 = exp.iter().sum();
        y.extend(exp.iter().map(|e| e / total));
    }
    y
}

#[test]
fn softmax_values() {
    for shape in [vec![7], vec![3, 5], vec![2, 3, 600], vec![4, 1]] {
        let columns = shape[shape.len() - 1];
        check_values(Softmax, &[random(1, &shape)], &[], |args| vec![softmax_rows(&args[0], columns)]);
        check_composed(Softmax, &[random(2, &shape)], &[]);
    }
}

#[test]
fn log_softmax_values() {
    for shape in [vec![7], vec![3, 5], vec![2, 3, 600]] {
        let columns = shape[shape.len() - 1];
        check_values(LogSoftmax, &[random(3, &shape)], &[], |args| {
            vec![softmax_rows(&args[0], columns).iter().map(|p| p.ln()).collect()]
        });
        check_composed(LogSoftmax, &[random(4, &shape)], &[]);
    }
}

#[test]
fn softmax_grad_values() {
    for shape in [vec![7], vec![3, 5], vec![3, 600]] {
        let columns = shape[shape.len() - 1];
        let y = run1(Softmax, &[random(5, &shape)]);
        check_values(SoftmaxGrad, &[y.clone(), random(6, &shape)], &[], |args| {
            let mut dx = Vec::new();
            for (y, g) in args[0].chunks(columns).zip(args[1].chunks(columns)) {
                let total: f64 = y.iter().zip(g).map(|(y, g)| y * g).sum();
                dx.extend(y.iter().zip(g).map(|(y, g)| y * (g - total)));
            }
            vec![dx]
        });
        check_composed(SoftmaxGrad, &[y, random(7, &shape)], &[]);
    }
}

#[test]
fn gradients() {
    check_gradients(Softmax, &[random(8, &[3, 5])], &[0], 1);
    check_gradients(LogSoftmax, &[random(9, &[3, 5])], &[0], 1);
    check_gradients(SoftmaxGrad, &[random(10, &[3, 5]), random(11, &[3, 5])], &[0, 1], 1);
}

/// Masked rows give 0s; +∞ gives NaN; large and very negative values do not overflow.
#[test]
fn special_rows() {
    let cases: [(&[f64], &[f64]); 8] = [
        (&[-INF, -INF, -INF], &[0.0, 0.0, 0.0]),
        (&[-INF, 2.0, -INF], &[0.0, 1.0, 0.0]),
        (&[INF, 0.0, 1.0], &[NAN, NAN, NAN]),
        (&[INF, INF, 1.0], &[NAN, NAN, NAN]),
        (&[1e30, 0.0, 1e30], &[0.5, 0.0, 0.5]),
        (&[-1e30, -1e30, -INF], &[0.5, 0.5, 0.0]),
        (&[-INF, NAN, -INF], &[NAN, NAN, NAN]),
        (&[0.0, NAN, 1.0], &[NAN, NAN, NAN]),
    ];
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        for (row, y) in cases {
            let x = tensor(dtype, &[1, 3], row);
            assert_close(
                &values(&run1(Softmax, std::slice::from_ref(&x))),
                y,
                0.0,
                &format!("softmax in {dtype}"),
            );
            let top = row.iter().copied().fold(-INF, f64::max);
            let total: f64 = row.iter().map(|x| (x - top).exp()).sum();
            let masked = top == -INF && !y[0].is_nan();
            for (k, got) in values(&run1(LogSoftmax, &[x])).into_iter().enumerate() {
                let log = if masked { -INF } else { row[k] - top - total.ln() };
                let log = if y[0].is_nan() { NAN } else { log };
                // One by one: −10³⁰ beside log ½. In the types with few bits both are rounded.
                assert_close(&[got], &[log], tolerance(dtype), &format!("log_softmax of {row:?} in {dtype}"));
            }
        }
    }
}

/// A masked row has no gradient, whatever arrives, and no NaN either order.
#[test]
fn masked_rows_have_zero_gradients() {
    let x = tensor(DType::F64, &[3, 3], &[-INF, -INF, -INF, 0.5, -INF, 0.25, 1.0, 2.0, 3.0]);
    for log in [false, true] {
        let y = run1(Softmax, std::slice::from_ref(&x));
        let g = tensor(DType::F64, &[3, 3], &[1.0, 2.0, INF, 1.0, 0.0, 3.0, 1.0, 1.0, 1.0]);
        let dx = values(&run1(SoftmaxGrad, &[y, g]));
        assert_eq!(dx[..3], [0.0, 0.0, 0.0]);
        assert!(dx.iter().all(|d| d.is_finite()), "{dx:?}");
        assert!(dx[6..].iter().all(|d| d.abs() < 1e-15), "{dx:?}");
        // The whole chain, with the masked row cut away after the softmax.
        let build = |graph: &mut tg::ir::Graph, args: &[tg::ir::ValueId]| {
            let y = if log { graph.value(LogSoftmax, args)? } else { graph.value(Softmax, args)? };
            let at = |start, size| SliceRange { start, step: 1, size };
            let kept = graph.value(Slice { ranges: Box::new([at(2, 1), at(0, 3)]) }, &[y])?;
            let loss = graph.mul(kept, kept)?;
            let one = graph.splat_like(loss, 1.0)?;
            let dx = tg::grad::gradients(graph, &[(loss, one)], &[args[0]]).map_err(|e| e.error)?;
            let dx = dx[0].expect("the loss depends on x");
            let again = graph.splat_like(dx, 1.0)?;
            let ddx = tg::grad::gradients(graph, &[(dx, again)], &[args[0]]).map_err(|e| e.error)?;
            Ok(vec![dx, ddx[0].expect("the gradient depends on x")])
        };
        for result in run_graph(std::slice::from_ref(&x), build).expect("the gradients run") {
            let result = values(&result);
            assert_eq!(result[..6], [0.0; 6], "log {log}");
            assert!(result[6..].iter().all(|d| d.is_finite()), "{result:?}");
        }
    }
}

/// Sums are wide: neither 512 equal bf16 logits nor 4096 f16 ones lose terms.
#[test]
fn long_rows_of_half_precision() {
    let y = values(&run1(Softmax, &[tensor(DType::BF16, &[1, 512], &[3.0; 512])]));
    assert!(y.iter().all(|&y| y == 1.0 / 512.0), "{}", y[0]);
    let y = values(&run1(Softmax, &[tensor(DType::F16, &[1, 4096], &[1.0; 4096])]));
    assert_eq!(y.iter().sum::<f64>(), 1.0);
    let y = values(&run1(LogSoftmax, &[tensor(DType::F16, &[1, 4096], &[-2.0; 4096])]));
    assert!((y[0] + 4096f64.ln()).abs() < 4e-3, "{}", y[0]);
}
