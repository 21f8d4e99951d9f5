//! Reductions against plain loops.

use tg::{
    exec::Tensor,
    ir::DType,
    ops::{ArgReduce, Cast, Reduce, ReduceKind},
};

use super::{
    harness::*,
    movement::{flat, indices},
};

const KINDS: [ReduceKind; 5] =
    [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod];

fn allowed(kind: ReduceKind, dtype: DType) -> bool {
    match kind {
        ReduceKind::Mean => dtype.is_float(),
        ReduceKind::Sum | ReduceKind::Prod => dtype != DType::Bool,
        ReduceKind::Max | ReduceKind::Min => true,
    }
}

fn reference(kind: ReduceKind, xs: &[f64]) -> f64 {
    match kind {
        ReduceKind::Sum => xs.iter().sum(),
        ReduceKind::Mean => xs.iter().sum::<f64>() / xs.len() as f64,
        ReduceKind::Max => xs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::Min => xs.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceKind::Prod => xs.iter().product(),
    }
}

fn input(dtype: DType, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    let xs: Vec<f64> = noise(n, 17)
        .into_iter()
        .map(|x| match dtype {
            DType::Bool => f64::from(x > 0.3),
            DType::U8 => ((x + 1.0) * 2.0).floor(),
            DType::I32 | DType::I64 => (x * 4.0).round(),
            _ => 1.0 + x * 0.5,
        })
        .collect();
    tensor(dtype, shape, &xs)
}

fn wrap(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::U8 => x.rem_euclid(256.0),
        _ => x,
    }
}

#[test]
fn every_kind_over_every_choice_of_axes() {
    let shape = [3, 4, 2, 5];
    for dtype in DType::ALL {
        let x = input(dtype, &shape);
        for kind in KINDS.into_iter().filter(|&kind| allowed(kind, dtype)) {
            for mask in 0..16usize {
                let axes: Vec<usize> = (0..4).filter(|axis| mask >> axis & 1 == 1).collect();
                let kept: Vec<usize> = (0..4).filter(|axis| !axes.contains(axis)).collect();
                // Dense, and as a view with the axes the other way round.
                let results = run(std::slice::from_ref(&x), &|graph, args| {
                    let plain = graph.value(Reduce { kind, axes: axes.clone().into() }, args)?;
                    Ok(vec![plain])
                });
                let turned = run_both(std::slice::from_ref(&x), &|graph, args| {
                    let turned = graph.transpose(args[0], &[3, 2, 1, 0])?;
                    let axes: Vec<usize> = axes.iter().rev().map(|a| 3 - a).collect();
                    let y = graph.reduce(kind, turned, &axes)?;
                    let order: Vec<usize> = (0..kept.len()).rev().collect();
                    let y = graph.transpose(y, &order)?;
                    Ok(vec![graph.value(tg::ops::Copy, &[y])?])
                });
                for y in [&results[0], &turned[0]] {
                    assert_eq!(y.shape(), kept.iter().map(|&a| shape[a]).collect::<Vec<_>>());
                    for index in indices(y.shape()) {
                        let members: Vec<f64> = indices(&shape)
                            .iter()
                            .filter(|i| kept.iter().zip(&index).all(|(&axis, &at)| i[axis] == at))
                            .map(|i| x.get_f64(flat(i, &shape)).unwrap())
                            .collect();
                        let expected = wrap(dtype, reference(kind, &members));
                        let got = y.get_f64(flat(&index, y.shape())).unwrap();
                        let bound = epsilon(dtype) * 1.01 * expected.abs()
                            + if dtype == DType::F64 {
                                1e-13
                            } else if dtype.is_float() {
                                4e-6
                            } else {
                                0.0
                            } * expected.abs().max(1.0);
                        assert!(
                            (got - expected).abs() <= bound,
                            "{kind:?} {dtype} over {axes:?}: {got}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

/// Sizes around the chunks and lanes of the kernels, in rows, columns and in between.
#[test]
fn long_reductions_and_their_tails() {
    for n in [1, 15, 16, 17, 1023, 1024, 1025, 5000, 70_001] {
        let x = tensor(DType::F64, &[n, 3], &noise(n * 3, 5));
        let sums: Vec<f64> = (0..3).map(|c| (0..n).map(|r| x.get_f64(r * 3 + c).unwrap()).sum()).collect();
        let y = run(std::slice::from_ref(&x), &|graph, args| {
            let columns = graph.reduce(ReduceKind::Sum, args[0], &[0])?;
            let turned = graph.transpose_last(args[0])?;
            let rows = graph.reduce(ReduceKind::Sum, turned, &[1])?;
            let all = graph.reduce(ReduceKind::Sum, args[0], &[0, 1])?;
            Ok(vec![columns, rows, all])
        });
        for (c, sum) in sums.iter().enumerate() {
            assert!((y[0].get_f64(c).unwrap() - sum).abs() < 1e-9, "{n}");
        }
        assert!((y[2].get_f64(0).unwrap() - sums.iter().sum::<f64>()).abs() < 1e-9, "{n}");
        // The tree depends on the shape only: rows, columns and strides give the same bits.
        assert_eq!(y[0], y[1]);
    }
}

#[test]
fn a_reduction_has_the_same_bits_in_every_layout() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (rows, columns) in [(1500, 100), (100, 1500), (3, 40_000), (40_000, 3)] {
            let x = tensor(dtype, &[rows, columns], &noise(rows * columns, 6));
            for axis in 0..2 {
                let graph = graph(std::slice::from_ref(&x), &|graph, args| {
                    let turned = graph.transpose_last(args[0])?;
                    Ok(vec![
                        graph.reduce(ReduceKind::Sum, args[0], &[axis])?,
                        graph.reduce(ReduceKind::Sum, turned, &[1 - axis])?,
                    ])
                });
                let y = run_executable(&mut executable(&graph), &mut [], std::slice::from_ref(&x)).outputs;
                assert!(y[0] == y[1], "{dtype} [{rows}, {columns}] over {axis}");
            }
        }
    }
}

#[test]
fn halves_are_accumulated_in_f32() {
    for dtype in [DType::F16, DType::BF16] {
        let ones = tensor(dtype, &[4096], &vec![1.0; 4096]);
        assert_eq!(
            run1(&[ones], &|g, args| g.reduce(ReduceKind::Sum, args[0], &[0])).get_f64(0),
            Some(4096.0)
        );
    }
    let large = tensor(DType::F16, &[3], &[40_000.0; 3]);
    assert_eq!(
        run1(&[large], &|g, args| g.reduce(ReduceKind::Mean, args[0], &[0])).get_f64(0),
        Some(40_000.0)
    );
}

#[test]
fn reductions_over_nothing() {
    for dtype in DType::ALL {
        let empty = tensor(dtype, &[2, 0, 4], &[]);
        for kind in KINDS.into_iter().filter(|&kind| allowed(kind, dtype)) {
            let y = run1(std::slice::from_ref(&empty), &|graph, args| graph.reduce(kind, args[0], &[1]));
            assert_eq!(y.shape(), [2, 4]);
            let (least, largest) = match dtype {
                DType::Bool => (0.0, 1.0),
                DType::U8 => (0.0, 255.0),
                DType::I32 => (i32::MIN.into(), i32::MAX.into()),
                DType::I64 => (i64::MIN as f64, i64::MAX as f64),
                _ => (f64::NEG_INFINITY, f64::INFINITY),
            };
            for y in values(&y) {
                match kind {
                    ReduceKind::Sum => assert_eq!(y, 0.0),
                    ReduceKind::Prod => assert_eq!(y, 1.0),
                    ReduceKind::Mean => assert!(y.is_nan()),
                    ReduceKind::Max => assert_eq!(y, least, "{dtype}"),
                    ReduceKind::Min => assert_eq!(y, largest, "{dtype}"),
                }
            }
        }
        // An axis that stays empty.
        let y = run1(&[empty], &|graph, args| graph.reduce(ReduceKind::Max, args[0], &[0]));
        assert_eq!(y.shape(), [0, 4]);
    }
}

#[test]
fn max_and_min_pass_nan_from_anywhere() {
    for n in [1, 5, 16, 33, 2000] {
        for place in [0, n / 2, n - 1] {
            for dtype in FLOATS {
                let mut xs = noise(n, 8);
                xs[place] = f64::NAN;
                let x = tensor(dtype, &[n], &xs);
                let y = run(&[x], &|graph, args| {
                    Ok(vec![
                        graph.reduce(ReduceKind::Max, args[0], &[0])?,
                        graph.reduce(ReduceKind::Min, args[0], &[0])?,
                        graph.value(ArgReduce { largest: true, axis: 0 }, args)?,
                        graph.value(ArgReduce { largest: false, axis: 0 }, args)?,
                    ])
                });
                assert!(y[0].get_f64(0).unwrap().is_nan() && y[1].get_f64(0).unwrap().is_nan());
                assert_eq!((y[2].get_f64(0), y[3].get_f64(0)), (Some(place as f64), Some(place as f64)));
            }
        }
    }
}

#[test]
fn argmax_takes_the_first_of_equals() {
    for dtype in DType::ALL {
        let x = input(dtype, &[6, 5, 4]);
        for axis in 0..3 {
            for largest in [true, false] {
                let y = run_both(std::slice::from_ref(&x), &|graph, args| {
                    Ok(vec![graph.value(ArgReduce { largest, axis }, args)?])
                })
                .remove(0);
                for index in indices(y.shape()) {
                    let size = x.shape()[axis];
                    let line: Vec<f64> = (0..size)
                        .map(|k| {
                            let mut full = index.clone();
                            full.insert(axis, k);
                            x.get_f64(flat(&full, x.shape())).unwrap()
                        })
                        .collect();
                    let best = reference(if largest { ReduceKind::Max } else { ReduceKind::Min }, &line);
                    let first = line.iter().position(|&v| v == best).unwrap();
                    assert_eq!(y.get_f64(flat(&index, y.shape())), Some(first as f64), "{dtype}");
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    let x = tensor(DType::F32, &[700, 900], &noise(630_000, 9));
    same_on_all_threads(&[x], &|graph, args| {
        let half = graph.value(Cast { to: DType::BF16 }, args)?;
        let mut all = Vec::new();
        for value in [args[0], half] {
            for axes in [&[0][..], &[1], &[0, 1]] {
                all.push(graph.reduce(ReduceKind::Sum, value, axes)?);
            }
        }
        Ok(all)
    });
}
