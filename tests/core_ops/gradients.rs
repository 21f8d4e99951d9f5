//! Gradients by finite differences in f64, and at the points where they trip.

use tg::{
    exec::Tensor,
    grad::gradients,
    ir::{DType, Graph, ValueId},
    ops::*,
};

use super::harness::*;
use crate::device::eval;

/// Compares the gradients of Σ w·f(x) with central differences, for fixed w.
pub fn check(f: Function<'_>, inputs: &[Tensor]) {
    let count = inputs.len();
    let output = run1(inputs, f);
    let weights = tensor(DType::F64, output.shape(), &noise(output.ty().elements(), 99));
    let all: Vec<Tensor> = inputs.iter().cloned().chain([weights.clone()]).collect();
    let graph = graph(&all, &|graph, args| {
        let y = f(graph, &args[..count])?;
        let grads = gradients(graph, &[(y, args[count])], &args[..count]).map_err(|e| e.error)?;
        let mut out = vec![y];
        for (k, grad) in grads.into_iter().enumerate() {
            out.push(match grad {
                Some(grad) => grad,
                None => graph.splat_like(args[k], 0.0)?,
            });
        }
        Ok(out)
    });
    let at = |inputs: &[Tensor]| {
        let outputs = eval(&graph, &mut [], inputs, &page()).expect("the graph runs");
        let loss: f64 = values(&outputs[0]).iter().zip(values(&weights)).map(|(y, w)| y * w).sum();
        (loss, outputs)
    };
    let (_, outputs) = at(&all);
    for (k, input) in inputs.iter().enumerate() {
        let grad = values(&outputs[k + 1]);
        assert_eq!(outputs[k + 1].ty(), input.ty());
        for (i, &g) in grad.iter().enumerate() {
            let x = values(input)[i];
            let h = 1e-5 * x.abs().max(1.0);
            let moved = |by: f64| {
                let mut xs = values(input);
                xs[i] += by;
                let mut all = all.clone();
                all[k] = tensor(DType::F64, input.shape(), &xs);
                at(&all).0
            };
            // Fourth order: the error is far below the tolerance.
            let slope = (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h);
            let bound = 1e-6 * slope.abs().max(1.0);
            assert!((g - slope).abs() <= bound, "operand {k} element {i} at {x}: {g}, not {slope}");
        }
    }
}

/// First and second gradients.
fn check_twice(f: Function<'_>, inputs: &[Tensor]) {
    check(f, inputs);
    for wrt in 0..inputs.len() {
        let slope = |graph: &mut Graph, args: &[ValueId]| {
            let y = f(graph, args)?;
            // A cotangent that depends on y, as that of a squared loss does.
            let grad = gradients(graph, &[(y, y)], &args[wrt..=wrt]).map_err(|e| e.error)?;
            match grad.first().copied().flatten() {
                Some(grad) => Ok(grad),
                None => graph.splat_like(args[wrt], 0.0),
            }
        };
        check(&slope, inputs);
    }
}

fn x(shape: &[usize], seed: u64) -> Tensor {
    let n = shape.iter().product();
    tensor(DType::F64, shape, &noise(n, seed).into_iter().map(|x| 1.7 * x + 0.013).collect::<Vec<_>>())
}

fn positive(shape: &[usize], seed: u64) -> Tensor {
    tensor(DType::F64, shape, &values(&x(shape, seed)).into_iter().map(|x| x.abs() + 0.3).collect::<Vec<_>>())
}

#[test]
fn unary_ops() {
    for op in Unary::ALL {
        let input = match op {
            Unary::Not | Unary::IsNan => continue,
            Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Recip | Unary::Log1p => positive(&[7], 3),
            _ => x(&[9], 3),
        };
        check_twice(&|graph, args| graph.unary(op, args[0]), &[input]);
    }
}

#[test]
fn binary_ops() {
    for op in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min, Binary::Rem] {
        let b = if op == Binary::Rem || op == Binary::Div { positive(&[6], 5) } else { x(&[6], 5) };
        check_twice(&|graph, args| graph.binary(op, args[0], args[1]), &[x(&[6], 4), b]);
    }
    check_twice(&|graph, args| graph.binary(Binary::Pow, args[0], args[1]), &[positive(&[6], 4), x(&[6], 5)]);
    // Negative bases with whole exponents.
    let whole = tensor(DType::F64, &[4], &[2.0, 3.0, -1.0, 1.0]);
    check_twice(
        &|graph, args| {
            let exponents =
                graph.value(Literal { ty: whole.ty().clone(), data: whole.bytes().into() }, &[])?;
            graph.binary(Binary::Pow, args[0], exponents)
        },
        &[tensor(DType::F64, &[4], &[-1.3, -0.7, -2.0, 0.4])],
    );
}

#[test]
fn select_cast_and_views() {
    check_twice(
        &|graph, args| {
            let zero = graph.splat_like(args[0], 0.1)?;
            let c = graph.binary(Binary::Gt, args[0], zero)?;
            let square = graph.mul(args[1], args[1])?;
            graph.select(c, square, args[0])
        },
        &[x(&[8], 1), x(&[8], 2)],
    );
    check_twice(&|graph, args| graph.reshape(args[0], &[3, 4]), &[x(&[2, 6], 1)]);
    check_twice(&|graph, args| graph.transpose(args[0], &[1, 2, 0]), &[x(&[2, 3, 4], 1)]);
    check_twice(&|graph, args| graph.broadcast(args[0], &[2, 3, 4]), &[x(&[3, 1], 1)]);
    check_twice(&|graph, args| graph.value(Copy, args), &[x(&[3], 1)]);
    let ranges: [SliceRange; 2] =
        [SliceRange { start: 1, step: 2, size: 2 }, SliceRange { start: 0, step: 1, size: 3 }];
    check_twice(&|graph, args| graph.value(Slice { ranges: ranges.into() }, args), &[x(&[5, 3], 1)]);
    check_twice(
        &|graph, args| graph.value(Pad { shape: [5, 3].into(), ranges: ranges.into() }, args),
        &[x(&[2, 3], 1)],
    );
    check_twice(&|graph, args| graph.insert(args[0], args[1], &ranges), &[x(&[5, 3], 1), x(&[2, 3], 2)]);
    check_twice(&|graph, args| graph.value(Concat { axis: 1 }, args), &[x(&[2, 3], 1), x(&[2, 1], 2)]);
    check_twice(
        &|graph, args| {
            let barrier = graph.push(Barrier { kind: BarrierKind::User }, args)?;
            let (a, b) = (graph.node(barrier).result(0), graph.node(barrier).result(1));
            graph.mul(a, b)
        },
        &[x(&[4], 1), x(&[4], 2)],
    );
}

#[test]
fn reductions() {
    for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
        for axes in [&[0][..], &[2], &[0, 2], &[0, 1, 2]] {
            check_twice(&|graph, args| graph.reduce(kind, args[0], axes), &[x(&[2, 3, 4], 7)]);
        }
    }
}

#[test]
fn a_product_has_the_right_gradient_at_zeros() {
    for zeros in [&[][..], &[1], &[1, 3], &[0, 1, 2]] {
        let mut xs = values(&x(&[5], 11));
        zeros.iter().for_each(|&k: &usize| xs[k] = 0.0);
        check_twice(
            &|graph, args| graph.reduce(ReduceKind::Prod, args[0], &[0]),
            &[tensor(DType::F64, &[5], &xs)],
        );
    }
}

#[test]
fn products() {
    check_twice(&|graph, args| graph.matmul(args[0], args[1]), &[x(&[2, 3], 1), x(&[3, 4], 2)]);
    check_twice(&|graph, args| graph.matmul(args[0], args[1]), &[x(&[2, 3, 2], 1), x(&[2, 2, 3], 2)]);
    check_twice(
        &|graph, args| {
            let t = graph.transpose_last(args[0])?;
            graph.matmul(t, args[0])
        },
        &[x(&[3, 2], 1)],
    );
    let inputs = [x(&[5, 3], 1), x(&[4, 3], 2), x(&[4], 3)];
    check_twice(&|graph, args| graph.linear(args[0], args[1], args[2]), &inputs);
    // The bias is not dense, and no parameter of its own.
    check_twice(
        &|graph, args| {
            let t = graph.transpose_last(args[0])?;
            let column =
                [SliceRange { start: 0, step: 1, size: 4 }, SliceRange { start: 1, step: 1, size: 1 }];
            let b = graph.value(Slice { ranges: column.into() }, &[args[1]])?;
            let b = graph.reshape(b, &[4])?;
            graph.linear(t, args[1], b)
        },
        &[x(&[3, 5], 1), x(&[4, 3], 2)],
    );
}

#[test]
fn the_gradient_of_a_bias_needs_no_product() {
    let inputs = [x(&[5, 3], 1), x(&[4, 3], 2), x(&[4], 3)];
    let graph = graph(&inputs, &|graph, args| {
        let y = graph.linear(args[0], args[1], args[2])?;
        let one = graph.splat_like(y, 1.0)?;
        let grads = gradients(graph, &[(y, one)], &args[2..]).map_err(|e| e.error)?;
        Ok(grads.into_iter().flatten().collect())
    });
    assert_eq!(graph.nodes().filter(|node| matches!(node.op(), Op::MatMul(_))).count(), 1);
    let outputs = run_executable(&mut executable(&graph), &mut [], &inputs).outputs;
    assert_eq!(values(&outputs[0]), [5.0; 4]);
}

/// The gradient of Σ f(x), for f64 values.
fn slopes(f: Function<'_>, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let outputs = run(inputs, &|graph, args| {
        let y = f(graph, args)?;
        let one = graph.splat_like(y, 1.0)?;
        let grads = gradients(graph, &[(y, one)], args).map_err(|e| e.error)?;
        Ok(grads.into_iter().flatten().collect())
    });
    outputs.iter().map(values).collect()
}

fn slope_at(op: Unary, at: f64) -> f64 {
    slopes(&|graph, args| graph.unary(op, args[0]), &[tensor(DType::F64, &[], &[at])])[0][0]
}

#[test]
fn conventions_at_kinks() {
    for zero in [0.0, -0.0] {
        assert_eq!(slope_at(Unary::Relu, zero), 0.0);
        assert_eq!(slope_at(Unary::Abs, zero), 0.0);
    }
    assert_eq!(slope_at(Unary::Relu, 1e-310), 1.0);
    for op in [Binary::Max, Binary::Min] {
        let at = |a: f64, b: f64| {
            let inputs = [tensor(DType::F64, &[], &[a]), tensor(DType::F64, &[], &[b])];
            let s = slopes(&|graph, args| graph.binary(op, args[0], args[1]), &inputs);
            (s[0][0], s[1][0])
        };
        assert_eq!(at(2.0, 2.0), (0.5, 0.5));
        assert_eq!(at(0.0, -0.0), (0.5, 0.5));
        let (a, b) = at(3.0, 2.0);
        assert_eq!((a, b), if op == Binary::Max { (1.0, 0.0) } else { (0.0, 1.0) });
    }
    let ties = tensor(DType::F64, &[3], &[2.0, 2.0, 1.0]);
    let s = slopes(&|graph, args| graph.reduce(ReduceKind::Max, args[0], &[0]), &[ties]);
    assert_eq!(s[0], [0.5, 0.5, 0.0]);
    let nan = tensor(DType::F64, &[3], &[2.0, f64::NAN, 1.0]);
    let s = slopes(&|graph, args| graph.reduce(ReduceKind::Max, args[0], &[0]), &[nan]);
    assert_eq!(s[0], [0.0, 1.0, 0.0]);
}

#[test]
fn a_dead_branch_contributes_nothing() {
    // where(x > 0, f(x), 0) at points where f's slope is infinite.
    for (op, at) in [
        (Unary::Sqrt, 0.0),
        (Unary::Log, 0.0),
        (Unary::Rsqrt, 0.0),
        (Unary::Recip, 0.0),
        (Unary::Log1p, -1.0),
        (Unary::Exp, 1e4),
        (Unary::Expm1, 1e4),
    ] {
        let s = slopes(
            &|graph, args| {
                let y = graph.unary(op, args[0])?;
                let zero = graph.splat_like(y, 0.0)?;
                let no = graph.binary(Binary::Ne, args[0], args[0])?;
                graph.select(no, y, zero)
            },
            &[tensor(DType::F64, &[], &[at])],
        );
        assert_eq!(s[0], [0.0], "{op:?}");
    }
    let s = slopes(
        &|graph, args| {
            let y = graph.div(args[0], args[1])?;
            let zero = graph.splat_like(y, 0.0)?;
            let safe = graph.binary(Binary::Ne, args[1], zero)?;
            graph.select(safe, y, zero)
        },
        &[tensor(DType::F64, &[], &[1.0]), tensor(DType::F64, &[], &[0.0])],
    );
    assert_eq!(s, [[0.0], [0.0]]);
    // max(√(x² + y²), 10⁻¹⁰) at 0.
    let s = slopes(
        &|graph, args| {
            let (a, b) = (graph.mul(args[0], args[0])?, graph.mul(args[1], args[1])?);
            let sum = graph.add(a, b)?;
            let root = graph.unary(Unary::Sqrt, sum)?;
            let floor = graph.splat_like(root, 1e-10)?;
            graph.binary(Binary::Max, root, floor)
        },
        &[tensor(DType::F64, &[], &[0.0]), tensor(DType::F64, &[], &[0.0])],
    );
    assert_eq!(s, [[0.0], [0.0]]);
}

#[test]
fn powers_at_zero() {
    let at = |x: f64, y: f64| {
        let inputs = [tensor(DType::F64, &[], &[x]), tensor(DType::F64, &[], &[y])];
        let s = slopes(&|graph, args| graph.binary(Binary::Pow, args[0], args[1]), &inputs);
        (s[0][0], s[1][0])
    };
    assert_eq!(at(0.0, 2.0), (0.0, 0.0));
    assert_eq!(at(0.0, 1.0), (1.0, 0.0));
    assert_eq!(at(0.0, 0.0), (0.0, 0.0));
    assert_eq!(at(0.0, 3.0), (0.0, 0.0));
    assert_eq!(at(-2.0, 3.0).0, 12.0);
    assert_eq!(at(2.0, 0.0).0, 0.0);
}

#[test]
fn a_second_gradient_sees_a_cotangent_of_zero() {
    // (√x − 1)² at 1: the cotangent of the root is 0 there, its slope is not.
    let f = |graph: &mut Graph, args: &[ValueId]| {
        let root = graph.unary(Unary::Sqrt, args[0])?;
        let one = graph.splat_like(root, 1.0)?;
        let rest = graph.sub(root, one)?;
        let y = graph.mul(rest, rest)?;
        let one = graph.splat_like(y, 1.0)?;
        let grad = gradients(graph, &[(y, one)], args).map_err(|e| e.error)?;
        Ok(grad[0].expect("a gradient"))
    };
    let s = slopes(&f, &[tensor(DType::F64, &[], &[1.0])]);
    assert!((s[0][0] - 0.5).abs() < 1e-12, "{}", s[0][0]);
}

#[test]
fn gradients_of_halves_stay_finite() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        // 1/100000 is no f16 by itself; gelu's inner cube overflows beyond 40.
        let n = 100_000;
        let s = slopes(
            &|graph, args| graph.reduce(ReduceKind::Mean, args[0], &[0]),
            &[tensor(dtype, &[n], &vec![1.0; n])],
        );
        assert!((s[0][0] - 1e-5).abs() < 1e-7, "{dtype}: {}", s[0][0]);
        let far = [-60000.0, -300.0, -50.0, 50.0, 300.0, 60000.0];
        let s = slopes(&|graph, args| graph.unary(Unary::Gelu, args[0]), &[tensor(dtype, &[6], &far)]);
        assert!(s[0][..3].iter().all(|s| s.abs() < 1e-30) && s[0][3..] == [1.0; 3], "{dtype}: {:?}", s[0]);
        let s = slopes(&|graph, args| graph.unary(Unary::Silu, args[0]), &[tensor(dtype, &[6], &far)]);
        assert!(
            s[0].iter().zip([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-3),
            "{dtype}: {:?}",
            s[0]
        );
    }
}

#[test]
fn whole_numbers_pass_no_gradient() {
    let inputs = [tensor(DType::F64, &[3], &[0.4, 1.6, 2.5])];
    let graph = graph(&inputs, &|graph, args| {
        let whole = graph.cast(args[0], DType::I32)?;
        let back = graph.cast(whole, DType::F64)?;
        let floor = graph.unary(Unary::Floor, args[0])?;
        let sum = graph.add(back, floor)?;
        let one = graph.splat_like(sum, 1.0)?;
        let grads = gradients(graph, &[(sum, one)], args).map_err(|e| e.error)?;
        assert_eq!(grads, [None]);
        Ok(vec![sum])
    });
    assert_eq!(values(&eval(&graph, &mut [], &inputs, &page()).unwrap()[0]), [0.0, 2.0, 4.0]);
}
