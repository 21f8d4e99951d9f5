//! Matrix products against a plain loop in f64, with a bias and without.

use tg::{
    exec::Tensor,
    ir::DType,
    ops::{Copy, MatMul, Slice, SliceRange, Unary},
};

use super::harness::*;
use crate::device::agrees;

fn operand(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let n = shape.iter().product();
    let xs: Vec<f64> = noise(n, seed)
        .into_iter()
        .map(|x| match dtype {
            DType::U8 => ((x + 1.0) * 1.5).floor(),
            DType::I32 | DType::I64 => (x * 50.0).round(),
            _ => x,
        })
        .collect();
    tensor(dtype, shape, &xs)
}

/// The product and, for error bounds, the product of absolute values.
fn reference(a: &Tensor, b: &Tensor, [batch, m, k, n]: [usize; 4]) -> Vec<(f64, f64)> {
    let (a, b) = (values(a), values(b));
    let mut out = Vec::with_capacity(batch * m * n);
    for z in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let terms = (0..k).map(|l| a[(z * m + i) * k + l] * b[(z * k + l) * n + j]);
                out.push((terms.clone().sum(), terms.map(f64::abs).sum()));
            }
        }
    }
    out
}

fn check(dtype: DType, [batch, m, k, n]: [usize; 4]) {
    let a = operand(dtype, &[batch, m, k], 1);
    let b = operand(dtype, &[batch, k, n], 2);
    let expected = reference(&a, &b, [batch, m, k, n]);
    let inputs = [a, b];
    // Both operands as they are, and as views of transposed copies.
    let graph = graph(&inputs, &|graph, args| {
        let turn = |graph: &mut tg::ir::Graph, x| {
            let turned = graph.transpose_last(x)?;
            let copy = graph.value(Copy, &[turned])?;
            graph.transpose_last(copy)
        };
        let (at, bt) = (turn(graph, args[0])?, turn(graph, args[1])?);
        Ok(vec![
            graph.matmul(args[0], args[1])?,
            graph.matmul(at, args[1])?,
            graph.matmul(args[0], bt)?,
            graph.matmul(at, bt)?,
        ])
    });
    let outputs = run_executable(&mut executable(&graph), &mut [], &inputs).outputs;
    for (way, y) in outputs.iter().enumerate() {
        assert_eq!(y.shape(), [batch, m, n]);
        for (i, (y, &(expected, size))) in values(y).into_iter().zip(&expected).enumerate() {
            let expected = if dtype == DType::U8 { expected.rem_euclid(256.0) } else { expected };
            let bound = match dtype {
                DType::F64 => 1e-15 * (k as f64).sqrt().max(4.0) * size,
                DType::F32 => 1.2e-7 * (k as f64).sqrt().max(4.0) * size,
                DType::F16 | DType::BF16 => {
                    epsilon(dtype) * 1.001 * expected.abs()
                        + 1.2e-7 * (k as f64).sqrt().max(4.0) * size
                        + 1e-7
                }
                _ => 0.0,
            };
            assert!(
                (y - expected).abs() <= bound,
                "{dtype} {m}×{k}×{n} way {way} element {i}: {y}, not {expected}"
            );
        }
    }
}

#[test]
fn products_of_every_dtype() {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        for size in [
            [1, 2, 3, 4],
            [1, 7, 5, 9],
            [3, 17, 33, 5],
            [1, 1, 40, 37],
            [2, 41, 30, 1],
            [1, 1, 1, 1],
            [2, 1, 9, 1],
        ] {
            check(dtype, size);
        }
    }
}

#[test]
fn large_products_are_cut_into_tiles() {
    for dtype in FLOATS {
        check(dtype, [1, 200, 70, 410]);
        check(dtype, [2, 193, 600, 50]);
        check(dtype, [1, 1, 700, 300]);
        check(dtype, [1, 300, 700, 1]);
    }
}

#[test]
fn products_over_nothing_are_zeros() {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let y = run_both(&[tensor(dtype, &[2, 0], &[]), tensor(dtype, &[0, 3], &[])], &|graph, args| {
            Ok(vec![graph.matmul(args[0], args[1])?])
        });
        assert_eq!((y[0].shape(), values(&y[0])), (&[2, 3][..], vec![0.0; 6]), "{dtype}");
        let y =
            run_both(&[tensor(dtype, &[0, 2], &[]), tensor(dtype, &[2, 3], &[1.0; 6])], &|graph, args| {
                Ok(vec![graph.matmul(args[0], args[1])?])
            });
        assert_eq!(y[0].shape(), [0, 3]);
    }
}

#[test]
fn halves_round_only_at_the_end() {
    for dtype in [DType::F16, DType::BF16] {
        // 8192 ones; summed in the type itself they would stick at 2048 or 256.
        let (a, b) = (tensor(dtype, &[2, 8192], &[1.0; 16384]), tensor(dtype, &[8192, 2], &[1.0; 16384]));
        let y = run1(&[a, b], &|graph, args| graph.matmul(args[0], args[1]));
        assert_eq!(values(&y), [8192.0; 4], "{dtype}");
    }
}

#[test]
fn broadcast_operands_need_no_copy() {
    let inputs = [operand(DType::F32, &[5, 6], 3), operand(DType::F32, &[4, 6, 7], 4)];
    let y = run_both(&inputs, &|graph, args| {
        let a = graph.broadcast(args[0], &[4, 5, 6])?;
        Ok(vec![graph.matmul(a, args[1])?])
    });
    assert_eq!(y[0].shape(), [4, 5, 7]);
}

#[test]
fn nan_and_infinity_pass_through() {
    let a = tensor(DType::F32, &[2, 2], &[f64::NAN, 0.0, 0.0, 1.0]);
    let b = tensor(DType::F32, &[2, 2], &[0.0, 1.0, f64::INFINITY, 2.0]);
    let y = values(&run1(&[a, b], &|graph, args| graph.matmul(args[0], args[1])));
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == f64::INFINITY && y[3] == 2.0, "{y:?}");
}

#[test]
fn threads_do_not_change_bits() {
    for dtype in FLOATS {
        for [m, k, n] in [[300, 257, 500], [1, 1000, 900], [900, 1000, 1], [64, 2000, 10]] {
            let inputs = [operand(dtype, &[m, k], 5), operand(dtype, &[k, n], 6)];
            same_on_all_threads(&inputs, &|graph, args| Ok(vec![graph.matmul(args[0], args[1])?]));
        }
    }
}

/// `a @ b + bias` as one op: the operands as they are, the bias as a column of something else, as one number
/// for all columns, and from the second element of a vector on.
#[test]
fn a_bias_is_added_before_the_sums_are_rounded() {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        for [m, k, n] in [[2, 3, 4], [17, 33, 5], [1, 40, 37], [41, 30, 1], [1, 1, 1], [210, 70, 400]] {
            let (a, b) = (operand(dtype, &[m, k], 1), operand(dtype, &[k, n], 2));
            let (wide, one) = (operand(dtype, &[n + 1, 3], 3), operand(dtype, &[1], 4));
            let sums = reference(&a, &b, [1, m, k, n]);
            let (table, number) = (values(&wide), values(&one)[0]);
            let of_column = |j: usize| table[j * 3 + 1];
            let inputs = [a, b, wide, one];
            let build: Build<'_> = &|graph, args| {
                let column = SliceRange { start: 1, step: 1, size: 1 };
                let rows = |start| SliceRange { start, step: 1, size: n };
                let strided = graph.value(Slice { ranges: [rows(0), column].into() }, &[args[2]])?;
                let strided = graph.reshape(strided, &[n])?;
                let dense = graph.value(Copy, &[strided])?;
                let all = SliceRange { start: 0, step: 1, size: n + 1 };
                let longer = graph.value(Slice { ranges: [all, column].into() }, &[args[2]])?;
                let longer = graph.reshape(longer, &[n + 1])?;
                let longer = graph.value(Copy, &[longer])?;
                let behind = graph.value(Slice { ranges: [rows(1)].into() }, &[longer])?;
                let alike = graph.broadcast(args[3], &[n])?;
                let mut with = |bias| graph.value(MatMul, &[args[0], args[1], bias]);
                Ok(vec![with(dense)?, with(strided)?, with(behind)?, with(alike)?])
            };
            run_both(&inputs, build);
            for (way, y) in run(&inputs, build).iter().enumerate() {
                assert_eq!(y.shape(), [m, n]);
                for (i, (y, &(sum, size))) in values(y).into_iter().zip(&sums).enumerate() {
                    let j = i % n;
                    let bias = [of_column(j), of_column(j), of_column(j + 1), number][way];
                    let mut expected = sum + bias;
                    if dtype == DType::U8 {
                        expected = expected.rem_euclid(256.0);
                    }
                    let terms = (k as f64).sqrt().max(4.0) * (size + bias.abs());
                    let bound = match dtype {
                        DType::F64 => 1e-15 * terms,
                        DType::F32 => 1.2e-7 * terms,
                        DType::F16 | DType::BF16 => {
                            epsilon(dtype) * 1.001 * expected.abs() + 1.2e-7 * terms + 1e-7
                        }
                        _ => 0.0,
                    };
                    let off = (y - expected).abs();
                    assert!(off <= bound, "{dtype} {m}×{k}×{n} way {way} element {i}: {y}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn a_bias_is_the_sum_to_the_bit_where_nothing_is_rounded_between() {
    for dtype in [DType::F32, DType::F64] {
        for [m, k, n] in [[300, 257, 500], [1, 1000, 900], [900, 1000, 1], [3, 0, 5]] {
            let inputs = [operand(dtype, &[m, k], 5), operand(dtype, &[k, n], 6), operand(dtype, &[n], 7)];
            let build: Build<'_> = &|graph, args| {
                let product = graph.matmul(args[0], args[1])?;
                let rows = graph.broadcast(args[2], &[m, n])?;
                Ok(vec![graph.value(MatMul, args)?, graph.add(product, rows)?])
            };
            let outputs = run(&inputs, build);
            assert!(agrees(&outputs[0], &outputs[1]), "{dtype} {m}×{k}×{n}");
            same_on_all_threads(&inputs, build);
        }
    }
}

#[test]
fn halves_round_once_with_their_bias() {
    for (dtype, step) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        // Between `step` and the double of it, numbers are 2 apart, and ties go to a multiple of 4.
        let x = tensor(dtype, &[1, 2], &[step, 1.0]);
        let (w, b) = (tensor(dtype, &[2, 1], &[1.0, 3.0]), tensor(dtype, &[1], &[2.0]));
        // Rounded twice it would be step + 3 -> step + 4, step + 6; but step + 5 is nearer to step + 4 as a tie.
        let y = run1(&[x, w, b], &|graph, args| graph.value(MatMul, args));
        assert_eq!(values(&y), [step + 4.0], "{dtype}");
    }
}

#[test]
fn a_bias_over_nothing_is_what_there_is() {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let bias = tensor(dtype, &[3], &[1.0, 2.0, 3.0]);
        let empty = [tensor(dtype, &[2, 0], &[]), tensor(dtype, &[0, 3], &[]), bias.clone()];
        let y = run_both(&empty, &|graph, args| Ok(vec![graph.value(MatMul, args)?]));
        assert_eq!(values(&y[0]), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0], "{dtype}");
        let no_rows = [tensor(dtype, &[0, 2], &[]), tensor(dtype, &[2, 3], &[1.0; 6]), bias];
        let y = run_both(&no_rows, &|graph, args| Ok(vec![graph.value(MatMul, args)?]));
        assert_eq!(y[0].shape(), [0, 3], "{dtype}");
    }
}

#[test]
fn nan_comes_out_of_a_relu_behind_a_bias() {
    let inputs = [
        tensor(DType::F32, &[2, 2], &[f64::NAN, 0.0, 1.0, 1.0]),
        tensor(DType::F32, &[2, 2], &[1.0, 1.0, -3.0, 2.0]),
        tensor(DType::F32, &[2], &[1.0, 1.0]),
    ];
    let y = run_both(&inputs, &|graph, args| {
        let sums = graph.value(MatMul, args)?;
        Ok(vec![graph.unary(Unary::Relu, sums)?])
    });
    let y = values(&y[0]);
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 0.0 && y[3] == 4.0, "{y:?}");
}
