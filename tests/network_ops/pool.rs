use tg::{
    ir::DType,
    ops::{AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGather, MaxPool2dGrad, PoolShape},
};

use super::support::*;

const NAN: f64 = f64::NAN;

fn shapes() -> Vec<PoolShape> {
    let pool = |kernel, stride, padding| PoolShape { kernel, stride, padding };
    vec![
        pool((2, 2), (2, 2), (0, 0)),
        pool((3, 2), (1, 2), (1, 1)),
        pool((3, 3), (2, 1), (2, 0)),
        pool((1, 1), (2, 3), (0, 0)),
        pool((2, 3), (3, 4), (0, 1)),
    ]
}

const INPUT: [usize; 4] = [2, 3, 7, 6];

/// For each window, the indices inside the plane.
fn windows(pool: &PoolShape, (h, w): (usize, usize)) -> Vec<Vec<usize>> {
    let count = |size: usize, k: usize, s: usize, p: usize| (size + 2 * p - k) / s + 1;
    let (rows, columns) = (
        count(h, pool.kernel.0, pool.stride.0, pool.padding.0),
        count(w, pool.kernel.1, pool.stride.1, pool.padding.1),
    );
    let mut windows = Vec::new();
    for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
        let mut inside = Vec::new();
        for (i, j) in (0..pool.kernel.0).flat_map(|i| (0..pool.kernel.1).map(move |j| (i, j))) {
            let row = (y * pool.stride.0 + i).checked_sub(pool.padding.0).filter(|&r| r < h);
            let column = (x * pool.stride.1 + j).checked_sub(pool.padding.1).filter(|&c| c < w);
            if let (Some(row), Some(column)) = (row, column) {
                inside.push(row * w + column);
            }
        }
        windows.push(inside);
    }
    windows
}

/// For each window of each plane: index of the output, indices of the window's elements in x.
fn all_windows(pool: &PoolShape) -> Vec<Vec<usize>> {
    let [n, c, h, w] = INPUT;
    let one = windows(pool, (h, w));
    (0..n * c).flat_map(|p| one.iter().map(move |i| i.iter().map(|k| p * h * w + k).collect())).collect()
}

fn first_largest(x: &[f64], window: &[usize]) -> usize {
    *window.iter().rev().max_by(|&&a, &&b| x[a].total_cmp(&x[b])).expect("a window has elements")
}

fn pooled_shape(pool: &PoolShape) -> Vec<usize> {
    run1(AvgPool2d { shape: *pool }, &[random(1, &INPUT)]).shape().to_vec()
}

/// Few different values, so that there are many ties.
fn with_ties(seed: u64) -> tg::exec::Tensor {
    let count = INPUT.iter().product();
    let values: Vec<f64> = numbers(seed, count).iter().map(|v| (v * 2.0).round()).collect();
    tensor(DType::F64, &INPUT, &values.iter().map(|v| v + 0.0).collect::<Vec<_>>())
}

#[test]
fn values_in_every_type() {
    for shape in shapes() {
        let windows = all_windows(&shape);
        let pooled = pooled_shape(&shape);
        for x in [random(2, &INPUT), with_ties(3)] {
            check_values(MaxPool2d { shape }, std::slice::from_ref(&x), &[], |args| {
                vec![windows.iter().map(|w| args[0][first_largest(&args[0], w)]).collect()]
            });
            check_values(MaxPool2dGather { shape }, &[x.clone(), random(4, &INPUT)], &[], |args| {
                vec![windows.iter().map(|w| args[1][first_largest(&args[0], w)]).collect()]
            });
            check_values(MaxPool2dGrad { shape }, &[x.clone(), random(5, &pooled)], &[], |args| {
                let mut dx = vec![0.0; args[0].len()];
                for (window, g) in windows.iter().zip(&args[1]) {
                    dx[first_largest(&args[0], window)] += g;
                }
                vec![dx]
            });
            check_composed(MaxPool2d { shape }, std::slice::from_ref(&x), &[]);
            check_composed(MaxPool2dGather { shape }, &[x.clone(), random(6, &INPUT)], &[]);
            check_composed(MaxPool2dGrad { shape }, &[x, random(7, &pooled)], &[]);
        }
        let area = (shape.kernel.0 * shape.kernel.1) as f64;
        let input = (INPUT[2], INPUT[3]);
        check_values(AvgPool2d { shape }, &[random(8, &INPUT)], &[], |args| {
            vec![windows.iter().map(|w| w.iter().map(|&i| args[0][i]).sum::<f64>() / area).collect()]
        });
        check_values(AvgPool2dGrad { shape, input }, &[random(9, &pooled)], &[], |args| {
            let mut dx = vec![0.0; INPUT.iter().product()];
            for (window, g) in windows.iter().zip(&args[0]) {
                window.iter().for_each(|&i| dx[i] += g / area);
            }
            vec![dx]
        });
        check_composed(AvgPool2d { shape }, &[random(10, &INPUT)], &[]);
        check_composed(AvgPool2dGrad { shape, input }, &[random(11, &pooled)], &[]);
    }
}

#[test]
fn gradients() {
    for shape in shapes() {
        let pooled = pooled_shape(&shape);
        let input = (INPUT[2], INPUT[3]);
        let x = random(12, &INPUT);
        check_gradients(MaxPool2d { shape }, std::slice::from_ref(&x), &[0], 1);
        check_gradients(MaxPool2dGather { shape }, &[x.clone(), random(13, &INPUT)], &[1], 1);
        check_gradients(MaxPool2dGrad { shape }, &[x.clone(), random(14, &pooled)], &[1], 1);
        check_gradients(AvgPool2d { shape }, &[x], &[0], 1);
        check_gradients(AvgPool2dGrad { shape, input }, &[random(15, &pooled)], &[0], 1);
    }
}

/// Ties go to the first, NaN wins (the first one), padding never does.
#[test]
fn ties_nan_and_padding() {
    let whole = PoolShape { kernel: (2, 2), stride: (2, 2), padding: (0, 0) };
    let padded = PoolShape { kernel: (2, 2), stride: (2, 2), padding: (1, 1) };
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        for (x, top, dx) in [
            ([2.0, 2.0, 1.0, 2.0], 2.0, [1.0, 0.0, 0.0, 0.0]),
            ([1.0, NAN, 5.0, NAN], NAN, [0.0, 1.0, 0.0, 0.0]),
            ([-f64::INFINITY; 4], -f64::INFINITY, [1.0, 0.0, 0.0, 0.0]),
        ] {
            let x = tensor(dtype, &[1, 1, 2, 2], &x);
            let g = tensor(dtype, &[1, 1, 1, 1], &[1.0]);
            assert_close(
                &values(&run1(MaxPool2d { shape: whole }, std::slice::from_ref(&x))),
                &[top],
                0.0,
                "max",
            );
            assert_eq!(values(&run1(MaxPool2dGrad { shape: whole }, &[x.clone(), g.clone()])), dx);
            let composed = run_graph(&[x, g], |graph, args| {
                tg::ops::Op::from(MaxPool2dGrad { shape: whole }).decompose(graph, args)
            });
            assert_eq!(values(&composed.expect("the composed form runs")[0]), dx);
        }
        let x = tensor(dtype, &[1, 1, 2, 2], &[-1.0, -2.0, -3.0, -4.0]);
        assert_eq!(values(&run1(MaxPool2d { shape: padded }, &[x])), [-1.0, -2.0, -3.0, -4.0]);
    }
}
