//! Element-wise ops: every op in every dtype it takes.

use half::{bf16, f16};
use tg::{
    exec::Tensor,
    ir::DType,
    ops::{Binary, Cast, Iota, Select, Unary},
};

use super::harness::*;

fn reference(op: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 || x.is_nan() => x,
        Unary::Sign => x.signum(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Relu if x < 0.0 => 0.0,
        Unary::Relu => x,
        Unary::Gelu => x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)),
        Unary::Silu => x * sigmoid(x),
        Unary::Erf => libm::erf(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Not => f64::from(x == 0.0),
        Unary::IsNan => f64::from(x.is_nan()),
    }
}

/// Values on a fine grid, near 0, huge, and at the edges.
fn arguments() -> Vec<f64> {
    let mut xs: Vec<f64> = (-3000..3000).map(|i| f64::from(i) * 0.0073).collect();
    for e in -20..16 {
        for m in [1.0, 1.3, -1.7] {
            xs.push(m * 2f64.powi(e));
        }
    }
    xs.extend([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.0, 1e-30, -1e-30, 80.0, -80.0, 1e4, -3e4, 6e4]);
    xs
}

/// Relative error that the f32 polynomials may have, in units of rounding errors; `floor` is the
/// size below which the error counts as absolute.
fn tolerance(op: Unary, x: f64) -> (f64, f64) {
    match op {
        Unary::Exp | Unary::Log | Unary::Log1p | Unary::Expm1 | Unary::Tanh | Unary::Erf => (4.0, 1e-37),
        Unary::Sigmoid | Unary::Rsqrt => (4.0, 1e-37),
        Unary::Silu => (4.0, 1e-37),
        // The rounding of exp's argument, of the size of x³, is the relative error of a small result.
        Unary::Gelu => (4.0 + 6.0 * (1.6 * x.abs() + 0.0714 * x.abs().powi(3)).min(90.0), 1e-37),
        Unary::Sin | Unary::Cos => (3.0, 1e-2),
        _ => (1.0, 1e-44),
    }
}

#[test]
fn unary_ops_agree_with_f64_references() {
    for dtype in FLOATS {
        let xs = tensor(dtype, &[arguments().len()], &arguments());
        for op in Unary::ALL.into_iter().filter(|&op| op != Unary::Not) {
            let y = run1(std::slice::from_ref(&xs), &|graph, args| graph.unary(op, args[0]));
            for (x, y) in values(&xs).into_iter().zip(values(&y)) {
                let exact = reference(op, x);
                let expected =
                    if y.is_finite() || dtype == DType::F64 { exact } else { round_to(dtype, exact) };
                if expected.is_nan() || expected.is_infinite() || op == Unary::IsNan {
                    let same = expected.is_nan() && y.is_nan() || y == expected;
                    assert!(same, "{op:?} {dtype} at {x:e}: {y:e}, not {expected:e}");
                    continue;
                }
                let (units, floor) = tolerance(op, x);
                // Halves are computed in f32 and rounded once more.
                let unit = match dtype {
                    DType::F32 | DType::F64 => epsilon(dtype) * units,
                    _ => epsilon(dtype) * 1.001 + epsilon(DType::F32) * units,
                };
                // One step of the smallest denormals besides.
                let smallest = match dtype {
                    DType::F64 => 1e-300,
                    DType::F16 => 2f64.powi(-25) * 1.01,
                    // exp overflows before its reciprocal leaves the normal numbers.
                    _ => 1e-36,
                };
                let allowed = unit * expected.abs().max(floor.min(1e-2)) + smallest;
                assert!((y - expected).abs() <= allowed, "{op:?} {dtype} at {x:e}: {y:e}, not {expected:e}");
            }
        }
    }
}

#[test]
fn unary_ops_at_the_edges() {
    let edges = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    for dtype in FLOATS {
        let xs = tensor(dtype, &[5], &edges);
        let at = |op| values(&run1(std::slice::from_ref(&xs), &|graph, args| graph.unary(op, args[0])));
        for op in Unary::ALL.into_iter().filter(|&op| op != Unary::Not && op != Unary::IsNan) {
            let y = at(op);
            assert!(y[0].is_nan(), "{op:?} hides NaN in {dtype}: {}", y[0]);
        }
        assert_eq!(at(Unary::Exp)[1..], [f64::INFINITY, 0.0, 1.0, 1.0]);
        let log = at(Unary::Log);
        assert!(log[1] == f64::INFINITY && log[2].is_nan() && log[3] == f64::NEG_INFINITY);
        assert_eq!(at(Unary::Relu)[1..], [f64::INFINITY, 0.0, 0.0, 0.0]);
        assert_eq!(at(Unary::Tanh)[1..], [1.0, -1.0, 0.0, 0.0]);
        assert_eq!(at(Unary::Erf)[1..], [1.0, -1.0, 0.0, 0.0]);
        assert_eq!(at(Unary::Sigmoid)[1..], [1.0, 0.0, 0.5, 0.5]);
        let log1p = at(Unary::Log1p);
        assert!(log1p[1] == f64::INFINITY && log1p[2].is_nan() && log1p[3] == 0.0);
        assert_eq!(at(Unary::Expm1)[1..], [f64::INFINITY, -1.0, 0.0, 0.0]);
        assert_eq!(at(Unary::IsNan), [1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(at(Unary::Sqrt)[1], f64::INFINITY);
    }
}

#[test]
fn unary_ops_of_whole_numbers() {
    let xs = Tensor::from_slice(&[5], &[i32::MIN, -3, 0, 3, i32::MAX]).unwrap();
    let at = |op| {
        let y = run1(std::slice::from_ref(&xs), &|graph, args| graph.unary(op, args[0]));
        y.as_slice::<i32>().unwrap().to_vec()
    };
    assert_eq!(at(Unary::Neg), [i32::MIN, 3, 0, -3, -i32::MAX]);
    assert_eq!(at(Unary::Abs), [i32::MIN, 3, 0, 3, i32::MAX]);
    assert_eq!(at(Unary::Sign), [-1, -1, 0, 1, 1]);
    assert_eq!(at(Unary::Relu), [0, 0, 0, 3, i32::MAX]);
    let bools = Tensor::from_slice(&[2], &[true, false]).unwrap();
    let not = run1(&[bools], &|graph, args| graph.unary(Unary::Not, args[0]));
    assert_eq!(not.as_slice::<bool>().unwrap(), [false, true]);
}

#[test]
fn binary_ops_of_floats_agree_with_f64_references() {
    let n = 700;
    for dtype in FLOATS {
        let a = tensor(dtype, &[n], &noise(n, 1).iter().map(|x| x * 9.0).collect::<Vec<_>>());
        let b = tensor(dtype, &[n], &noise(n, 2).iter().map(|x| x * 4.0 + 0.01).collect::<Vec<_>>());
        let positive = tensor(dtype, &[n], &values(&a).iter().map(|x| x.abs() + 0.1).collect::<Vec<_>>());
        type Reference = fn(f64, f64) -> f64;
        let exact: [(Binary, Reference); 12] = [
            (Binary::Add, |a, b| a + b),
            (Binary::Sub, |a, b| a - b),
            (Binary::Mul, |a, b| a * b),
            (Binary::Div, |a, b| a / b),
            (Binary::Max, f64::max),
            (Binary::Min, f64::min),
            (Binary::Eq, |a, b| f64::from(a == b)),
            (Binary::Ne, |a, b| f64::from(a != b)),
            (Binary::Lt, |a, b| f64::from(a < b)),
            (Binary::Le, |a, b| f64::from(a <= b)),
            (Binary::Gt, |a, b| f64::from(a > b)),
            (Binary::Ge, |a, b| f64::from(a >= b)),
        ];
        for (op, f) in exact {
            let y = run1(&[a.clone(), b.clone()], &|graph, args| graph.binary(op, args[0], args[1]));
            for ((a, b), y) in values(&a).into_iter().zip(values(&b)).zip(values(&y)) {
                // f32 rounds correctly; halves round the f32 result once more.
                let f32_first = if dtype == DType::F64 { f(a, b) } else { round_to(DType::F32, f(a, b)) };
                let expected = if y == 0.0 || y == 1.0 { f32_first } else { round_to(dtype, f32_first) };
                assert_eq!(y, round_to(dtype, expected), "{op:?} {dtype} of {a} and {b}");
            }
        }
        let pow =
            run1(&[positive.clone(), b.clone()], &|graph, args| graph.binary(Binary::Pow, args[0], args[1]));
        for ((a, b), y) in values(&positive).into_iter().zip(values(&b)).zip(values(&pow)) {
            let expected = a.powf(b);
            assert!((y - expected).abs() <= epsilon(dtype) * 2.5 * expected + 1e-7, "pow {dtype} {a} {b}");
        }
        let whole = run(&[a.clone(), b.clone()], &|graph, args| {
            let q = graph.binary(Binary::FloorDiv, args[0], args[1])?;
            let r = graph.binary(Binary::Rem, args[0], args[1])?;
            Ok(vec![q, r])
        });
        for (((a, b), q), r) in
            values(&a).into_iter().zip(values(&b)).zip(values(&whole[0])).zip(values(&whole[1]))
        {
            assert_eq!(q, round_to(dtype, (a / b).floor()), "{dtype} {a} // {b}");
            assert!((r == 0.0 || (r < 0.0) == (b < 0.0)) && r.abs() <= b.abs(), "{dtype} {a} % {b} = {r}");
            assert!((q * b + r - a).abs() <= epsilon(dtype) * 4.0 * (a.abs() + b.abs()), "{dtype} {a} {b}");
        }
    }
}

#[test]
fn max_and_min_pass_nan_in_both_orders() {
    for dtype in FLOATS {
        let a = tensor(dtype, &[3], &[f64::NAN, 1.0, 2.0]);
        let b = tensor(dtype, &[3], &[1.0, f64::NAN, 1.0]);
        for (op, last) in [(Binary::Max, 2.0), (Binary::Min, 1.0)] {
            let y = values(&run1(&[a.clone(), b.clone()], &|graph, args| graph.binary(op, args[0], args[1])));
            assert!(y[0].is_nan() && y[1].is_nan() && y[2] == last, "{op:?} {dtype}: {y:?}");
        }
    }
}

#[test]
fn whole_numbers_divide_rounding_down_for_every_pair() {
    let numbers = [i32::MIN, i32::MIN + 1, -7, -3, -2, -1, 0, 1, 2, 3, 7, i32::MAX];
    let pairs: Vec<(i32, i32)> = numbers.iter().flat_map(|&a| numbers.iter().map(move |&b| (a, b))).collect();
    let a = Tensor::from_slice(&[pairs.len()], &pairs.iter().map(|p| p.0).collect::<Vec<_>>()).unwrap();
    let b = Tensor::from_slice(&[pairs.len()], &pairs.iter().map(|p| p.1).collect::<Vec<_>>()).unwrap();
    let out = run(&[a, b], &|graph, args| {
        [Binary::FloorDiv, Binary::Rem, Binary::Pow, Binary::Mul]
            .iter()
            .map(|&op| graph.binary(op, args[0], args[1]))
            .collect()
    });
    let [q, r, pow, mul] = [0, 1, 2, 3].map(|k: usize| out[k].as_slice::<i32>().unwrap());
    for (i, &(a, b)) in pairs.iter().enumerate() {
        assert_eq!(q[i].wrapping_mul(b).wrapping_add(r[i]), a, "{a} and {b}");
        assert_eq!(mul[i], a.wrapping_mul(b));
        if b == 0 {
            assert_eq!((q[i], r[i]), (0, a));
        } else {
            let exact = (f64::from(a) / f64::from(b)).floor();
            assert!(f64::from(q[i]) == exact || (a, b) == (i32::MIN, -1), "{a} // {b} = {}", q[i]);
            assert!(r[i] == 0 || (r[i] < 0) == (b < 0), "{a} % {b} = {}", r[i]);
        }
        if let 0..=3 = b {
            assert_eq!(pow[i], a.wrapping_pow(b as u32));
        }
        if b == -3 {
            assert_eq!(
                pow[i],
                if a == 1 {
                    1
                } else if a == -1 {
                    -1
                } else {
                    0
                },
                "{a} to the -3"
            );
        }
    }
    let bytes = [tensor(DType::U8, &[3], &[250.0, 7.0, 9.0]), tensor(DType::U8, &[3], &[10.0, 2.0, 0.0])];
    let out = run(&bytes, &|graph, args| {
        [Binary::Add, Binary::Sub, Binary::FloorDiv, Binary::Rem, Binary::Lt]
            .iter()
            .map(|&op| graph.binary(op, args[0], args[1]))
            .collect()
    });
    assert_eq!(values(&out[0]), [4.0, 9.0, 9.0]);
    assert_eq!(values(&out[1]), [240.0, 5.0, 9.0]);
    assert_eq!(values(&out[2]), [25.0, 3.0, 0.0]);
    assert_eq!(values(&out[3]), [0.0, 1.0, 9.0]);
    assert_eq!(values(&out[4]), [0.0, 0.0, 0.0]);
    let long = [i64::MIN, i64::MAX, -5].map(|x| x);
    let a = Tensor::from_slice(&[3], &long).unwrap();
    let b = Tensor::from_slice(&[3], &[-1i64, 2, 3]).unwrap();
    let out = run(&[a, b], &|graph, args| {
        [Binary::FloorDiv, Binary::Rem].iter().map(|&op| graph.binary(op, args[0], args[1])).collect()
    });
    assert_eq!(out[0].as_slice::<i64>().unwrap(), [i64::MIN, i64::MAX / 2, -2]);
    assert_eq!(out[1].as_slice::<i64>().unwrap(), [0, 1, 1]);
}

#[test]
fn logical_ops_and_select() {
    let a = Tensor::from_slice(&[4], &[false, false, true, true]).unwrap();
    let b = Tensor::from_slice(&[4], &[false, true, false, true]).unwrap();
    let out = run(&[a.clone(), b], &|graph, args| {
        [Binary::And, Binary::Or, Binary::Eq, Binary::Lt]
            .iter()
            .map(|&op| graph.binary(op, args[0], args[1]))
            .collect()
    });
    assert_eq!(values(&out[0]), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(values(&out[1]), [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(values(&out[2]), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(values(&out[3]), [0.0, 1.0, 0.0, 0.0]);
    for dtype in DType::ALL {
        let x = tensor(dtype, &[4], &[1.0, 0.0, 1.0, 0.0]);
        let y = tensor(dtype, &[4], &[0.0, 1.0, 1.0, 1.0]);
        let out = run1(&[a.clone(), x, y], &|graph, args| graph.value(Select, args));
        assert_eq!(values(&out), [0.0, 1.0, 1.0, 0.0], "{dtype}");
    }
}

#[test]
fn casts_between_all_dtypes() {
    let xs = [0.0, 1.0, -1.0, 2.5, -2.5, 300.0, -300.0, 70000.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for from in DType::ALL {
        let x = tensor(from, &[xs.len()], &xs);
        for to in DType::ALL {
            let y = run1(std::slice::from_ref(&x), &|graph, args| graph.value(Cast { to }, args));
            for (x, y) in values(&x).into_iter().zip(values(&y)) {
                let expected = match (from, to) {
                    // From whole numbers to smaller ones, bits are cut off.
                    (DType::I32 | DType::I64, DType::U8) => f64::from(x as i64 as u8),
                    (DType::I64, DType::I32) => f64::from(x as i64 as i32),
                    _ => round_to(to, x),
                };
                assert!(y == expected || y.is_nan() && expected.is_nan(), "{x} from {from} to {to}: {y}");
            }
        }
    }
    // 1 + 2⁻¹¹ + 2⁻³⁰ is above the middle between two f16, but its f32 is the middle itself.
    let x = Tensor::from_slice(&[1], &[1.0 + 2f64.powi(-11) + 2f64.powi(-30)]).unwrap();
    let y = run1(&[x], &|graph, args| graph.value(Cast { to: DType::F16 }, args));
    assert_eq!(y.get_f64(0), Some(1.0 + 2f64.powi(-10)));
}

#[test]
fn every_instruction_rounds_to_its_dtype() {
    // 2049 is no f16: (2048 + 1) rounds back to 2048 before 1 is subtracted.
    let out =
        run_both(&[tensor(DType::F16, &[1], &[2048.0]), tensor(DType::F16, &[1], &[1.0])], &|graph, args| {
            let sum = graph.add(args[0], args[1])?;
            Ok(vec![graph.sub(sum, args[1])?])
        });
    assert_eq!(out[0].as_slice::<f16>().unwrap(), [f16::from_f32(2047.0)]);
    let out = run_both(
        &[tensor(DType::BF16, &[1], &[256.0]), tensor(DType::BF16, &[1], &[1.0])],
        &|graph, args| {
            let sum = graph.add(args[0], args[1])?;
            Ok(vec![graph.sub(sum, args[0])?])
        },
    );
    assert_eq!(out[0].as_slice::<bf16>().unwrap(), [bf16::from_f32(0.0)]);
}

#[test]
fn iota_counts_along_its_axis() {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        for axis in 0..3 {
            let shape = [3, 5, 7];
            let y = values(&run1(&[], &|graph, _| graph.value(Iota { ty: ty(dtype, &shape), axis }, &[])));
            for (i, y) in y.into_iter().enumerate() {
                let index = [i / 35, i / 7 % 5, i % 7][axis];
                assert_eq!(y, index as f64, "{dtype} axis {axis} element {i}");
            }
        }
    }
}

#[test]
fn values_do_not_depend_on_the_position_in_a_block() {
    let n = 3 * 512 + 5;
    for dtype in FLOATS {
        for op in Unary::ALL.into_iter().filter(|&op| op != Unary::Not) {
            let x = tensor(dtype, &[n], &vec![0.7371; n]);
            let y = run1(&[x], &|graph, args| graph.unary(op, args[0]));
            let size = y.dtype().size();
            let first = y.bytes()[..size].to_vec();
            assert!(y.bytes().chunks(size).all(|chunk| chunk == first), "{op:?} {dtype}");
        }
    }
}
