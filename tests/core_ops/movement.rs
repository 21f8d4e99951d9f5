//! Views and movement, against index arithmetic written out.

use tg::{
    exec::Tensor,
    ir::{DType, Graph, ValueId},
    ops::{
        Broadcast, Concat, Copy, Insert, Layout, Literal, OpError, Pad, Reshape, Slice, SliceRange,
        Transpose, Unary,
    },
};

use super::harness::*;

/// Every index of a shape, in order.
pub fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &dim in shape {
        all = all
            .into_iter()
            .flat_map(|index| (0..dim).map(move |i| index.iter().copied().chain([i]).collect::<Vec<_>>()))
            .collect();
    }
    all
}

/// The row-major number of an index.
pub fn flat(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |n, (&i, &dim)| n * dim + i)
}

fn counting(dtype: DType, shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..n)
        .map(|i| if dtype == DType::Bool { (i * 7 % 3 == 0).into() } else { (i % 100) as f64 })
        .collect();
    tensor(dtype, shape, &values)
}

type One<'a> = dyn Fn(&mut Graph, &[ValueId]) -> Result<ValueId, OpError> + 'a;

/// Element `index` of the result is element `f(index)` of the operand, or 0 for `None`.
fn check(shape: &[usize], op: &One<'_>, f: &dyn Fn(&[usize]) -> Option<Vec<usize>>) {
    for dtype in DType::ALL {
        let x = counting(dtype, shape);
        let y = run_both(std::slice::from_ref(&x), &|graph, args| {
            let value = op(graph, args)?;
            Ok(vec![graph.value(Copy, &[value])?])
        })
        .remove(0);
        for index in indices(y.shape()) {
            let expected = f(&index).map_or(0.0, |i| x.get_f64(flat(&i, shape)).expect("inside"));
            assert_eq!(y.get_f64(flat(&index, y.shape())), Some(expected), "{dtype} {index:?}");
        }
    }
}

#[test]
fn transposes() {
    check(&[3, 4, 5], &|graph, args| graph.transpose(args[0], &[2, 0, 1]), &|i| Some(vec![i[1], i[2], i[0]]));
    check(&[70, 40], &|graph, args| graph.transpose_last(args[0]), &|i| Some(vec![i[1], i[0]]));
    check(&[2, 33, 3, 35], &|graph, args| graph.value(Transpose { axes: [0, 3, 2, 1].into() }, args), &|i| {
        Some(vec![i[0], i[3], i[2], i[1]])
    });
}

#[test]
fn large_transposes_run_on_all_threads() {
    let x = tensor(DType::F32, &[900, 700], &noise(630_000, 3));
    let y = run1(std::slice::from_ref(&x), &|graph, args| {
        let t = graph.transpose_last(args[0])?;
        graph.value(Copy, &[t])
    });
    let (x, y) = (x.as_slice::<f32>().unwrap(), y.as_slice::<f32>().unwrap());
    assert!((0..630_000).all(|i| y[i] == x[i % 900 * 700 + i / 900]));
}

#[test]
fn broadcasts() {
    check(&[3, 1, 2], &|graph, args| graph.broadcast(args[0], &[4, 3, 5, 2]), &|i| Some(vec![i[1], 0, i[3]]));
    check(&[], &|graph, args| graph.value(Broadcast { shape: [2, 3].into() }, args), &|_| Some(vec![]));
    check(&[0, 1], &|graph, args| graph.broadcast(args[0], &[0, 3]), &|_| None);
}

#[test]
fn slices_and_pads() {
    let ranges = [
        SliceRange { start: 1, step: 2, size: 3 },
        SliceRange { start: 0, step: 1, size: 4 },
        SliceRange { start: 4, step: 5, size: 1 },
    ];
    check(&[7, 4, 5], &|graph, args| graph.value(Slice { ranges: ranges.into() }, args), &|i| {
        Some(vec![1 + 2 * i[0], i[1], 4])
    });
    check(
        &[3, 4, 1],
        &|graph, args| graph.value(Pad { shape: [7, 4, 5].into(), ranges: ranges.into() }, args),
        &|i| (i[0] % 2 == 1 && i[0] < 6 && i[2] == 4).then(|| vec![i[0] / 2, i[1], 0]),
    );
}

#[test]
fn inserts() {
    let ranges = [SliceRange { start: 1, step: 2, size: 3 }, SliceRange { start: 2, step: 1, size: 2 }];
    let is_inside = |i: &[usize]| i[0] % 2 == 1 && i[0] < 6 && i[1] >= 2;
    for dtype in DType::ALL {
        let (whole, piece) =
            (counting(dtype, &[7, 4]), tensor(dtype, &[2, 3], &[90.0, 91.0, 0.0, 93.0, 94.0, 95.0]));
        let y = run_both(&[whole.clone(), piece.clone()], &|graph, args| {
            let turned = graph.transpose_last(args[1])?;
            // Into an operand that others need, into one that is dead, into zeros that are not stored.
            let kept = graph.insert(args[0], turned, &ranges)?;
            let own = graph.value(Copy, &[args[0]])?;
            let over = graph.insert(own, turned, &ranges)?;
            let zeros = graph.splat_like(own, 0.0)?;
            let fresh = graph.insert(zeros, turned, &ranges)?;
            Ok(vec![kept, over, fresh])
        });
        for index in indices(&[7, 4]) {
            let at = flat(&index, &[7, 4]);
            let inside = is_inside(&index)
                .then(|| piece.get_f64(flat(&[index[1] - 2, index[0] / 2], &[2, 3])).unwrap());
            let old = whole.get_f64(at).unwrap();
            let expected = [inside.unwrap_or(old), inside.unwrap_or(old), inside.unwrap_or(0.0)];
            let got: Vec<f64> = y.iter().map(|y| y.get_f64(at).unwrap()).collect();
            assert_eq!(got, expected, "{dtype} {index:?}");
        }
    }
    // Nothing into something, and something into nothing but itself.
    let x = tensor(DType::F32, &[3], &[1.0, 2.0, 3.0]);
    let y = run_both(&[x.clone(), tensor(DType::F32, &[0], &[])], &|graph, args| {
        let empty = [SliceRange { start: 3, step: 1, size: 0 }];
        let all = [SliceRange { start: 0, step: 1, size: 3 }];
        let zeros = graph.splat_like(args[0], 0.0)?;
        Ok(vec![graph.insert(args[0], args[1], &empty)?, graph.insert(zeros, args[0], &all)?])
    });
    assert!(y[0] == x && y[1] == x);
}

/// The bytes that a chain of inserts of what `make` makes of each piece needs beside its inputs, and
/// whether its result is right.
fn chain(make: Function<'_>, bytes_of: &dyn Fn(f32) -> f32) -> u64 {
    let n = 1 << 16;
    let pieces: Vec<Tensor> = (0..3).map(|k| tensor(DType::F32, &[n / 4, 4], &noise(n, k))).collect();
    let graph = graph(&pieces, &|graph, args| {
        let zero = graph.constant(DType::F32, 0.0)?;
        let mut whole = graph.broadcast(zero, &[3 * n])?;
        for (k, &piece) in args.iter().enumerate() {
            let made = make(graph, &[piece])?;
            let flat = graph.reshape(made, &[n])?;
            whole = graph.insert(whole, flat, &[SliceRange { start: (2 - k) * n, step: 1, size: n }])?;
        }
        Ok(vec![whole])
    });
    let mut executable = executable(&graph);
    let run = run_executable(&mut executable, &mut [], &pieces);
    let expected =
        pieces.iter().rev().flat_map(|p| p.as_slice::<f32>().unwrap().iter().map(|&x| bytes_of(x)));
    assert!(run.outputs[0].as_slice::<f32>().unwrap().iter().copied().eq(expected));
    assert_eq!(run.high_water_bytes, executable.plan().schedule.arena_bytes);
    run.high_water_bytes - 3 * 4 * n as u64
}

#[test]
fn a_chain_of_inserts_has_one_buffer_in_which_its_pieces_are_made() {
    let whole = 3 * (1 << 16) * 4;
    // Inputs are copied into it.
    assert!(chain(&|_, args| Ok(args[0]), &|x| x) <= whole + 256);
    // Nothing is made elsewhere first.
    assert!(chain(&|graph, args| graph.unary(Unary::Neg, args[0]), &|x| -x) <= whole);
    assert!(chain(&|graph, args| graph.value(Copy, &[args[0]]), &|x| x) <= whole);
}

#[test]
fn inserts_that_do_not_fit_are_errors() {
    let mut graph = Graph::new();
    let whole = graph.value(Literal { ty: ty(DType::F32, &[4]), data: vec![0; 16].into() }, &[]).unwrap();
    let piece = graph.value(Literal { ty: ty(DType::F32, &[2]), data: vec![0; 8].into() }, &[]).unwrap();
    let range = |start, size| Insert { ranges: [SliceRange { start, step: 1, size }].into() };
    for wrong in [range(3, 2), range(0, 3), range(usize::MAX, 2)] {
        let error = graph.value(wrong, &[whole, piece]).unwrap_err();
        assert!(
            error.message.starts_with("`insert` of f32[2] into f32[4] at (start, step, size) ["),
            "{error}"
        );
    }
    let half = graph.cast(piece, DType::F16).unwrap();
    assert!(graph.value(range(0, 2), &[whole, half]).is_err());
    assert!(graph.value(range(2, 2), &[whole, piece]).is_ok());
}

#[test]
fn reshapes_of_any_view() {
    check(&[4, 6], &|graph, args| graph.reshape(args[0], &[2, 2, 3, 2]), &|i| {
        Some(vec![i[0] * 2 + i[1], i[2] * 2 + i[3]])
    });
    check(
        &[4, 6],
        &|graph, args| {
            let t = graph.transpose_last(args[0])?;
            graph.value(Reshape { shape: [3, 8].into() }, &[t])
        },
        &|i| {
            let n = i[0] * 8 + i[1];
            Some(vec![n % 4, n / 4])
        },
    );
}

#[test]
fn a_layout_is_reshaped_only_where_strides_can_say_it() {
    let shapes: [&[usize]; 9] =
        [&[24], &[4, 6], &[2, 2, 6], &[2, 3, 4], &[4, 1, 6], &[1, 24, 1], &[2, 2, 2, 3], &[8, 3], &[3, 8]];
    let bases = [
        Layout { offset: 5, strides: [6, 1].into() },
        Layout { offset: 0, strides: [1, 4].into() },
        Layout { offset: 0, strides: [0, 1].into() },
        Layout { offset: 0, strides: [1, 0].into() },
        Layout { offset: 2, strides: [12, 2].into() },
        Layout { offset: 0, strides: [7, 1].into() },
        Layout { offset: 0, strides: [0, 0].into() },
    ];
    let mut expressed = 0;
    for base in &bases {
        for shape in shapes {
            let from = [4, 6];
            let Some(new) = base.reshaped(&from, shape) else { continue };
            expressed += 1;
            let place = |layout: &Layout, index: &[usize]| {
                layout.offset + index.iter().zip(&layout.strides).map(|(i, s)| i * s).sum::<usize>()
            };
            for (a, b) in indices(&from).iter().zip(indices(shape)) {
                assert_eq!(place(base, a), place(&new, &b), "{base:?} as {shape:?}: {new:?}");
            }
        }
    }
    // A dense layout, one with gaps of its own, and a constant one can always be reshaped.
    assert!(expressed >= 3 * shapes.len());
    assert_eq!(Layout { offset: 0, strides: [1, 4].into() }.reshaped(&[4, 6], &[24]), None);
    assert!(Layout { offset: 0, strides: [7, 1].into() }.reshaped(&[4, 6], &[4, 2, 3]).is_some());
}

#[test]
fn concatenations() {
    for dtype in DType::ALL {
        let parts = [counting(dtype, &[2, 3]), counting(dtype, &[2, 0]), counting(dtype, &[2, 4])];
        let y = run_both(&parts, &|graph, args| Ok(vec![graph.value(Concat { axis: 1 }, args)?])).remove(0);
        assert_eq!(y.shape(), [2, 7]);
        for index in indices(&[2, 7]) {
            let (part, column) = if index[1] < 3 { (&parts[0], index[1]) } else { (&parts[2], index[1] - 3) };
            let expected = part.get_f64(flat(&[index[0], column], part.shape()));
            assert_eq!(y.get_f64(flat(&index, &[2, 7])), expected, "{dtype} {index:?}");
        }
    }
    // Transposed and repeated parts.
    let x = tensor(DType::F64, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = run_both(&[x], &|graph, args| {
        let t = graph.transpose_last(args[0])?;
        let one = graph.constant(DType::F64, 9.0)?;
        let ones = graph.broadcast(one, &[3, 1])?;
        Ok(vec![graph.value(Concat { axis: 1 }, &[t, ones, t])?])
    });
    assert_eq!(values(&y[0]), [1.0, 4.0, 9.0, 1.0, 4.0, 2.0, 5.0, 9.0, 2.0, 5.0, 3.0, 6.0, 9.0, 3.0, 6.0]);
}

#[test]
fn literals() {
    let x = tensor(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = run_both(&[], &|graph, _| {
        let literal = graph.value(Literal { ty: x.ty().clone(), data: x.bytes().into() }, &[])?;
        Ok(vec![literal, graph.transpose_last(literal)?])
    });
    assert_eq!(y[0], x);
    assert_eq!(values(&y[1]), [1.0, 3.0, 2.0, 4.0]);
}
