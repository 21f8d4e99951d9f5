//! Operators, indices and built-in tensor functions: values against closed forms, types, weakness,
//! and every message.

#[path = "support/device.rs"]
mod device;
mod tensor_support;

use tensor_support::{Bench, close, float, host, int, message, numbers, op};
use tg::{
    check::tensor::{self, Arg, Index, Kind, Nested, Number, Operand},
    exec::Tensor,
    ir::DType::{self, *},
    syntax::ast::{BinaryOp, UnaryOp},
};

const WHOLE: Index = Index::Slice { low: None, high: None, step: None };

fn slice(low: i64, high: i64) -> Index {
    Index::Slice { low: Some(low), high: Some(high), step: None }
}

#[test]
fn promotion() {
    let mut b = Bench::default();
    let cases: [(DType, DType, &str); 9] = [
        (F32, F32, "f32[2]"),
        (F32, I32, "f32[2]"),
        (Bool, F16, "f16[2]"),
        (I64, BF16, "bf16[2]"),
        (F64, U8, "f64[2]"),
        (I32, I32, "i32[2]"),
        (I64, I64, "i64[2]"),
        (U8, U8, "u8[2]"),
        (F16, F16, "f16[2]"),
    ];
    for (left, right, expected) in cases {
        let (x, y) = (b.typed(left, &[2]), b.typed(right, &[2]));
        let sum = b.binary(BinaryOp::Add, x, y).unwrap();
        assert_eq!(b.ty(sum), expected, "{left} + {right}");
    }
    for dtype in DType::ALL.into_iter().filter(|&d| d != Bool) {
        let x = b.typed(dtype, &[2]);
        let with_int = b.binary(BinaryOp::Mul, x, int(3)).unwrap();
        assert_eq!(b.ty(with_int), format!("{dtype}[2]"));
        let with_float = b.binary(BinaryOp::Mul, x, float(0.5)).unwrap();
        assert_eq!(b.ty(with_float), format!("{}[2]", if dtype.is_float() { dtype } else { F32 }));
        let lr = b.weak(0.1);
        let with_weak = b.binary(BinaryOp::Mul, lr, x).unwrap();
        assert_eq!(b.ty(with_weak), format!("{}[2]", if dtype.is_float() { dtype } else { F32 }));
    }
    let mask = b.typed(Bool, &[2]);
    let counted = b.binary(BinaryOp::Mul, mask, int(2)).unwrap();
    assert_eq!(b.ty(counted), "i32[2]");
}

#[test]
fn dtypes_that_do_not_mix() {
    let mut b = Bench::default();
    let (x, y) = (b.typed(F32, &[2, 3]), b.typed(F64, &[3]));
    assert_eq!(
        message(b.binary(BinaryOp::Add, x, y)),
        "`+` of f32[2, 3] and f64[3] mixes the dtypes f32 and f64\nhelp: convert one of them: `f64(x)` of the f32 operand"
    );
    let (x, y) = (b.typed(I64, &[2]), b.typed(I32, &[2]));
    assert_eq!(
        message(b.binary(BinaryOp::Lt, x, y)),
        "`<` of i64[2] and i32[2] mixes the dtypes i64 and i32\nhelp: convert one of them: `i64(x)` of the i32 operand"
    );
    let (x, y) = (b.typed(Bool, &[]), b.typed(I32, &[2]));
    assert_eq!(
        message(b.binary(BinaryOp::Mul, x, y)),
        "`*` of bool and i32[2] mixes the dtypes bool and i32\nhelp: convert one of them: `i32(x)` of the bool operand"
    );
    let x = b.typed(U8, &[2]);
    assert_eq!(message(b.binary(BinaryOp::Add, x, int(256))), "`+`: 256 does not fit in u8");
    let x = b.typed(I32, &[2]);
    assert_eq!(message(b.binary(BinaryOp::Add, x, int(1 << 31))), "`+`: 2147483648 does not fit in i32");
}

#[test]
fn weak_scalars_stay_weak_among_themselves() {
    let mut b = Bench::default();
    let t = b.weak(25.0);
    let half = b.binary(BinaryOp::Div, t, int(100)).unwrap();
    assert_eq!(b.ty(half), "weak f64");
    let angle = b.binary(BinaryOp::Mul, half, float(std::f64::consts::PI)).unwrap();
    let cosine = b.of("cos", angle).unwrap();
    let warm = b.binary(BinaryOp::Lt, t, int(10)).unwrap();
    assert_eq!(b.ty(warm), "weak bool");
    let rate = b.call("where", &[("condition", op(warm)), ("a", op(float(1.0))), ("b", op(cosine))]).unwrap();
    let rate = b.call("maximum", &[("a", op(rate)), ("b", op(float(0.1)))]).unwrap();
    let rate = b.call("clip", &[("x", op(rate)), ("low", op(int(-9))), ("high", op(int(2)))]).unwrap();
    assert_eq!(b.ty(rate), "weak f64");
    close(&numbers(&b.run(rate)), &[(std::f64::consts::PI / 4.0).cos()], 1e-15);
    let choice = b.call("where", &[("condition", op(warm)), ("a", op(int(1))), ("b", op(int(2)))]).unwrap();
    assert_eq!(b.ty(choice), "weak f64");

    let p = b.input(F16, &[2], &[1.0, 2.0]);
    let step = b.binary(BinaryOp::Mul, rate, p).unwrap();
    assert_eq!(b.ty(step), "f16[2]");
    let mask = b.typed(Bool, &[3]);
    let spread = b.call("where", &[("condition", op(mask)), ("a", op(t)), ("b", op(int(0)))]).unwrap();
    assert_eq!(b.ty(spread), "f32[3]");
    let list = b.call("stack", &[("list", Arg::Operands(vec![t, t]))]).unwrap();
    assert_eq!(b.ty(list), "f32[2]");
    let strong = b.of("f64", t).unwrap();
    assert_eq!(b.ty(strong), "f64");
}

#[test]
fn broadcasting() {
    let mut b = Bench::default();
    let (x, y) = (b.count(&[2, 1, 3]), b.count(&[2, 1]));
    let sum = b.binary(BinaryOp::Add, x, y).unwrap();
    let result = b.run(sum);
    assert_eq!(result.shape(), [2, 2, 3]);
    assert_eq!(numbers(&result), [0., 1., 2., 1., 2., 3., 3., 4., 5., 4., 5., 6.]);
    let (x, y) = (b.count(&[0, 1]), b.count(&[1, 3]));
    let empty = b.binary(BinaryOp::Add, x, y).unwrap();
    assert_eq!(b.run(empty).shape(), [0, 3]);

    let (x, y) = (b.typed(F32, &[2, 3]), b.typed(F32, &[4, 3]));
    assert_eq!(
        message(b.binary(BinaryOp::Sub, x, y)),
        "`-` cannot broadcast f32[2, 3] with f32[4, 3]: axis 0 is 2 on the left and 4 on the right"
    );
    let (x, y) = (b.typed(F32, &[5, 2, 3]), b.typed(I32, &[4, 3]));
    assert_eq!(
        message(b.binary(BinaryOp::Eq, x, y)),
        "`==` cannot broadcast f32[5, 2, 3] with i32[4, 3]: axis 1 on the left is 2, axis 0 on the right is 4"
    );
    let (x, y) = (b.typed(F32, &[64, 10]), b.typed(F32, &[64]));
    assert_eq!(
        message(b.binary(BinaryOp::Div, x, y)),
        "`/` cannot broadcast f32[64, 10] with f32[64]: axis 1 on the left is 10, axis 0 on the right is 64\n\
         help: axes are aligned at the end; to align the first axis, write `x[.., new]` for the 1-d operand"
    );
    let (x, y) = (b.typed(F32, &[0]), b.typed(F32, &[3]));
    assert!(b.binary(BinaryOp::Add, x, y).is_err());
}

#[test]
fn operators_on_tensors() {
    let mut b = Bench::default();
    let pairs: Vec<(f64, f64)> = (-7..8).flat_map(|x| [-3, -2, 2, 3].map(|y| (x as f64, y as f64))).collect();
    let (left, right): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    for dtype in [I32, I64, F32, F64] {
        let x = b.input(dtype, &[pairs.len()], &left);
        let y = b.input(dtype, &[pairs.len()], &right);
        let quotient = b.binary(BinaryOp::FloorDiv, x, y).unwrap();
        let remainder = b.binary(BinaryOp::Rem, x, y).unwrap();
        let expected: Vec<f64> = pairs.iter().map(|(x, y)| (x / y).floor()).collect();
        assert_eq!(numbers(&b.run(quotient)), expected);
        let expected: Vec<f64> = pairs.iter().map(|(x, y)| x - y * (x / y).floor()).collect();
        assert_eq!(numbers(&b.run(remainder)), expected);
        let greater = b.binary(BinaryOp::Ge, x, y).unwrap();
        let expected: Vec<f64> = pairs.iter().map(|(x, y)| f64::from(u8::from(x >= y))).collect();
        assert_eq!(numbers(&b.run(greater)), expected);
    }
    let x = b.input(Bool, &[4], &[0., 0., 1., 1.]);
    let y = b.input(Bool, &[4], &[0., 1., 0., 1.]);
    for (op, expected) in [
        (BinaryOp::And, [0., 0., 0., 1.]),
        (BinaryOp::Or, [0., 1., 1., 1.]),
        (BinaryOp::Lt, [0., 1., 0., 0.]),
        (BinaryOp::Ne, [0., 1., 1., 0.]),
    ] {
        let result = b.binary(op, x, y).unwrap();
        assert_eq!(b.ty(result), "bool[4]");
        assert_eq!(numbers(&b.run(result)), expected, "{op:?}");
    }
    let not = b.unary(UnaryOp::Not, x).unwrap();
    assert_eq!(numbers(&b.run(not)), [1., 1., 0., 0.]);
    let z = b.input(I32, &[2], &[3., -4.]);
    let negative = b.unary(UnaryOp::Neg, z).unwrap();
    assert_eq!(numbers(&b.run(negative)), [-3., 4.]);
}

#[test]
fn operators_that_refuse() {
    let mut b = Bench::default();
    let (ints, bools, bytes) = (b.typed(I32, &[3]), b.typed(Bool, &[3]), b.typed(U8, &[3]));
    let cases = [
        (
            message(b.binary(BinaryOp::Div, ints, int(2))),
            "`/` of i32[3] and `2`: whole numbers have no fractions\n\
             help: `//` rounds down; for fractions convert first, `f32(x)`",
        ),
        (message(b.binary(BinaryOp::Rem, ints, int(0))), "`%` of i32[3] and `0`: division by zero"),
        (
            message(b.binary(BinaryOp::Add, bools, bools)),
            "`+` of bool[3] and bool[3]: booleans are not numbers\n\
             help: use `and`, `or`, `not`, or convert first: `f32(x)`",
        ),
        (
            message(b.binary(BinaryOp::And, ints, bools)),
            "`and` of i32[3] and bool[3] mixes the dtypes i32 and bool\n\
             help: convert one of them: `i32(x)` of the bool operand",
        ),
        (
            message(b.binary(BinaryOp::Or, ints, ints)),
            "`or` needs bools, got i32[3] and i32[3]\nhelp: compare first: `x != 0`",
        ),
        (
            message(b.unary(UnaryOp::Not, ints)),
            "`not` needs bools, got i32[3]\nhelp: compare first: `x != 0`",
        ),
        (
            message(b.unary(UnaryOp::Neg, bools)),
            "`-` of bool[3]: booleans are not numbers\nhelp: write `not x`, or convert first: `f32(x)`",
        ),
        (
            message(b.unary(UnaryOp::Neg, bytes)),
            "`-` of u8[3]: u8 has no negative numbers\nhelp: convert first: `i32(x)`",
        ),
        (
            message(b.binary(BinaryOp::Pow, ints, int(-1))),
            "`**` of i32[3] and `-1`: whole numbers have no negative powers\nhelp: convert first: `f32(x)`",
        ),
        (
            message(b.binary(BinaryOp::Div, int(7), int(2))),
            "`/` of the whole numbers `7` and `2`\n\
             help: `//` rounds down; for a fraction write one of them as a float, `float(x)`",
        ),
        (message(b.binary(BinaryOp::FloorDiv, int(7), int(0))), "`//` of `7` and `0`: division by zero"),
        (
            message(b.binary(BinaryOp::Add, int(i64::MAX), int(1))),
            "`+` of `9223372036854775807` and `1`: the result does not fit in 64 bits\n\
             help: write one of them as a float, `float(x)`",
        ),
        (
            message(b.binary(BinaryOp::Add, Operand::bool(true), int(1))),
            "`+` of `true` and `1`: booleans are not numbers\nhelp: convert with `int(x)`",
        ),
        (
            message(b.binary(BinaryOp::MatMul, int(2), int(1))),
            "`@` needs tensors, got `2` and `1`\nhelp: use `*`",
        ),
        (
            message(b.unary(UnaryOp::Neg, int(i64::MIN))),
            "`-` of `-9223372036854775808`: the result does not fit in 64 bits",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn powers() {
    let mut b = Bench::default();
    let values = [0.25, 1.0, 2.0, 9.0];
    let x = b.input(F64, &[4], &values);
    for exponent in [1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0, 0.0, 2.5, -3.7] {
        let power = b.binary(BinaryOp::Pow, x, float(exponent)).unwrap();
        close(&numbers(&b.run(power)), &values.map(|v: f64| v.powf(exponent)), 1e-15);
        let gradient = b.gradient(power, x).map(|g| numbers(&g)).unwrap_or(vec![0.0; 4]);
        close(&gradient, &values.map(|v: f64| exponent * v.powf(exponent - 1.0)), 1e-14);
    }
    let base = b.binary(BinaryOp::Pow, int(2), x).unwrap();
    close(&numbers(&b.run(base)), &values.map(f64::exp2), 1e-15);
    let whole = b.input(I32, &[3], &[-2., 0., 3.]);
    for (exponent, expected) in [(0, [1., 1., 1.]), (1, [-2., 0., 3.]), (5, [-32., 0., 243.])] {
        let power = b.binary(BinaryOp::Pow, whole, int(exponent)).unwrap();
        assert_eq!(b.ty(power), "i32[3]");
        assert_eq!(numbers(&b.run(power)), expected);
    }
    let root = b.binary(BinaryOp::Pow, whole, float(2.0)).unwrap();
    assert_eq!(b.ty(root), "f32[3]");
    assert_eq!(b.binary(BinaryOp::Pow, int(2), int(-1)), Ok(float(0.5)));
}

/// A product by its definition, for any ranks.
fn product(a: &Tensor, b: &Tensor) -> (Vec<usize>, Vec<f64>) {
    let (x, y) = (numbers(a), numbers(b));
    let widen = |shape: &[usize], row: bool| match (shape, row) {
        ([k], true) => vec![1, *k],
        ([k], false) => vec![*k, 1],
        (shape, _) => shape.to_vec(),
    };
    let (p, q) = (widen(a.shape(), true), widen(b.shape(), false));
    let (m, k, n) = (p[p.len() - 2], p[p.len() - 1], q[q.len() - 1]);
    let rank = p.len().max(q.len()) - 2;
    let dim = |s: &[usize], i: usize| {
        let lead = s.len() - 2;
        if i + lead < rank { 1 } else { s[i + lead - rank] }
    };
    let lead: Vec<usize> = (0..rank).map(|i| if dim(&p, i) == 1 { dim(&q, i) } else { dim(&p, i) }).collect();
    let mut values = Vec::new();
    for flat in 0..lead.iter().product::<usize>() {
        let place = |s: &[usize]| {
            let (mut rest, mut index, mut stride) = (flat, 0, 1);
            for i in (0..rank).rev() {
                let at = rest % lead[i];
                rest /= lead[i];
                index += if dim(s, i) == 1 { 0 } else { at * stride };
                stride *= dim(s, i);
            }
            index
        };
        let (i0, j0) = (place(&p) * m * k, place(&q) * k * n);
        for i in 0..m {
            for j in 0..n {
                values.push((0..k).map(|l| x[i0 + i * k + l] * y[j0 + l * n + j]).sum());
            }
        }
    }
    let mut shape = lead;
    if a.shape().len() > 1 {
        shape.push(m);
    }
    if b.shape().len() > 1 {
        shape.push(n);
    }
    (shape, values)
}

#[test]
fn products() {
    let shapes: [(&[usize], &[usize]); 14] = [
        (&[3], &[3]),
        (&[2, 3], &[3]),
        (&[3], &[3, 4]),
        (&[2, 3], &[3, 4]),
        (&[5, 2, 3], &[3, 4]),
        (&[5, 1, 2, 3], &[3, 4]),
        (&[5, 2, 3], &[3]),
        (&[3], &[5, 3, 4]),
        (&[2, 3], &[5, 3, 4]),
        (&[5, 2, 3], &[5, 3, 4]),
        (&[6, 1, 2, 3], &[5, 3, 4]),
        (&[1, 2, 3], &[5, 3, 4]),
        (&[2, 0], &[0, 3]),
        (&[0, 2, 3], &[3, 4]),
    ];
    for (left, right) in shapes {
        let mut b = Bench::default();
        let (x, y) = (b.count(left), b.count(right));
        let result = b.binary(BinaryOp::MatMul, x, y).unwrap();
        let found = b.run(result);
        let (shape, values) = product(&b.run(x), &b.run(y));
        assert_eq!(found.shape(), shape, "{left:?} @ {right:?}");
        assert_eq!(numbers(&found), values, "{left:?} @ {right:?}");
    }
    let mut b = Bench::default();
    let (x, y) = (b.count(&[3]), b.count(&[2]));
    let outer = b.call("outer", &[("a", op(x)), ("b", op(y))]).unwrap();
    assert_eq!(numbers(&b.run(outer)), [0., 0., 0., 1., 0., 2.]);
    let dot = b.call("dot", &[("a", op(x)), ("b", op(x))]).unwrap();
    assert_eq!(numbers(&b.run(dot)), [5.]);
}

#[test]
fn products_with_a_bias() {
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[3], &[4, 3]),
        (&[2, 3], &[4, 3]),
        (&[5, 2, 3], &[4, 3]),
        (&[5, 1, 2, 3], &[1, 3]),
        (&[2, 0], &[3, 0]),
        (&[0, 2, 3], &[4, 3]),
    ];
    for (of_x, of_w) in shapes {
        let mut b = Bench::default();
        let (x, w, bias) = (b.count(of_x), b.count(of_w), b.count(&of_w[..1]));
        let one = b.call("linear", &[("x", op(x)), ("w", op(w)), ("b", op(bias))]).unwrap();
        assert_eq!(b.graph.nodes().filter(|n| n.op().is_elementwise()).count(), 0);
        let without = b.call("linear", &[("x", op(x)), ("w", op(w))]).unwrap();
        let turned = b.call("transpose", &[("x", op(w)), ("axes", Arg::Ints(vec![1, 0]))]).unwrap();
        let product = b.binary(BinaryOp::MatMul, x, turned).unwrap();
        let sum = b.binary(BinaryOp::Add, product, bias).unwrap();
        assert_eq!(b.run(one), b.run(sum), "{of_x:?} {of_w:?}");
        assert_eq!(b.run(without), b.run(product), "{of_x:?} {of_w:?}");
        for wrt in [x, w, bias] {
            assert_eq!(b.gradient(one, wrt), b.gradient(sum, wrt), "{of_x:?} {of_w:?}");
        }
    }
    let mut b = Bench::default();
    let (x, w, bias) = (b.typed(BF16, &[2, 3]), b.typed(BF16, &[4, 3]), b.typed(I32, &[4]));
    let y = b.call("linear", &[("x", op(x)), ("w", op(w)), ("b", op(bias))]).unwrap();
    assert_eq!(b.ty(y), "bf16[2, 4]");
}

#[test]
fn products_with_a_bias_that_do_not_fit() {
    let mut b = Bench::default();
    let mut error = |x: &[usize], w: &[usize], bias: &[usize]| {
        let (x, w, bias) = (b.typed(F32, x), b.typed(F32, w), b.typed(F32, bias));
        message(b.call("linear", &[("x", op(x)), ("w", op(w)), ("b", op(bias))]))
    };
    let cases = [
        (
            error(&[2, 3], &[4, 5], &[4]),
            "`linear` of f32[2, 3] and f32[4, 5]: the last axis of x is 3, that of w is 5",
        ),
        (
            error(&[2, 3], &[3, 5], &[5]),
            "`linear` of f32[2, 3] and f32[3, 5]: the last axis of x is 3, that of w is 5\nhelp: `linear(x, w.T)` fits",
        ),
        (error(&[2, 3], &[4, 3], &[3]), "`linear` of f32[2, 3] and f32[4, 3]: `b` has shape [4], got f32[3]"),
        (error(&[2, 3], &[4, 3], &[]), "`linear` of f32[2, 3] and f32[4, 3]: `b` has shape [4], got f32"),
        (
            error(&[], &[4, 3], &[4]),
            "`linear` of f32 and f32[4, 3]: it takes x: [.., n_in] and w: [n_out, n_in]",
        ),
        (
            error(&[3], &[3], &[3]),
            "`linear` of f32[3] and f32[3]: it takes x: [.., n_in] and w: [n_out, n_in]",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn a_matrix_used_by_a_batch_has_one_product_as_gradient() {
    let mut b = Bench::default();
    let (x, w) = (b.count(&[4, 5, 3]), b.count(&[3, 2]));
    let y = b.binary(BinaryOp::MatMul, x, w).unwrap();
    let before = b.graph.len();
    let gradient = b.gradient(y, w).unwrap();
    assert_eq!(gradient.shape(), [3, 2]);
    let products = b.graph.nodes().skip(before).filter(|n| n.op().name() == "matmul").count();
    let sums = b.graph.nodes().skip(before).filter(|n| n.op().name() == "sum").count();
    assert_eq!((products, sums), (1, 0));
}

#[test]
fn products_that_do_not_fit() {
    let mut b = Bench::default();
    let mut error = |left: &[usize], right: &[usize]| {
        let (x, y) = (b.typed(F32, left), b.typed(F32, right));
        message(b.binary(BinaryOp::MatMul, x, y))
    };
    assert_eq!(
        error(&[2, 3], &[4, 3]),
        "`@` of f32[2, 3] and f32[4, 3]: axis 1 on the left is 3, axis 0 on the right is 4\nhelp: `a @ b.T` fits"
    );
    assert_eq!(
        error(&[3, 2], &[3, 4]),
        "`@` of f32[3, 2] and f32[3, 4]: axis 1 on the left is 2, axis 0 on the right is 3\nhelp: `a.T @ b` fits"
    );
    assert_eq!(
        error(&[2, 3], &[5, 7]),
        "`@` of f32[2, 3] and f32[5, 7]: axis 1 on the left is 3, axis 0 on the right is 5"
    );
    assert_eq!(
        error(&[4, 2, 3], &[5, 3, 2]),
        "`@` of f32[4, 2, 3] and f32[5, 3, 2]: the leading axes do not broadcast"
    );
    assert_eq!(error(&[], &[2]), "`@` of f32 and f32[2]: the left is a scalar\nhelp: use `*`");
    assert_eq!(error(&[2], &[]), "`@` of f32[2] and f32: the right is a scalar\nhelp: use `*`");
    let x = b.typed(F32, &[2, 2]);
    assert_eq!(
        message(b.call("dot", &[("a", op(x)), ("b", op(x))])),
        "`dot` takes two vectors, got f32[2, 2] and f32[2, 2]\nhelp: `a @ b` is the product of matrices"
    );
}

#[test]
fn indexing() {
    let mut b = Bench::default();
    let x = b.count(&[3, 4, 2]);
    let flat = |i: usize, j: usize, k: usize| (i * 8 + j * 2 + k) as f64;
    let ids = b.input(I32, &[2, 2], &[2., 0., 1., 1.]);
    let Operand::Tensor { value: ids, .. } = ids else { unreachable!() };
    type Case<'a> = (&'a [Index], &'a [usize], Vec<f64>);
    let cases: [Case; 9] = [
        (&[Index::At(-1), Index::At(1), Index::At(0)], &[], vec![flat(2, 1, 0)]),
        (&[Index::At(1)], &[4, 2], (8..16).map(f64::from).collect()),
        (&[Index::Ellipsis, Index::At(1)], &[3, 4], (0..12).map(|i| (2 * i + 1) as f64).collect()),
        (
            &[WHOLE, Index::Slice { low: Some(-3), high: None, step: Some(2) }, Index::At(0)],
            &[3, 2],
            vec![2., 6., 10., 14., 18., 22.],
        ),
        (&[slice(1, 1)], &[0, 4, 2], vec![]),
        (&[Index::NewAxis, Index::At(0), slice(0, 1), Index::NewAxis], &[1, 1, 1, 2], vec![0., 1.]),
        (&[Index::At(0), Index::Tensor(ids)], &[2, 2, 2], vec![4., 5., 0., 1., 2., 3., 2., 3.]),
        (
            &[slice(0, 2), Index::Tensor(ids), Index::At(1)],
            &[2, 2, 2],
            vec![5., 1., 3., 3., 13., 9., 11., 11.],
        ),
        (&[Index::Tensor(ids), Index::At(3), Index::At(0)], &[2, 2], vec![22., 6., 14., 14.]),
    ];
    for (items, shape, expected) in cases {
        let result = b.index(x, items).unwrap();
        let result = b.run(result);
        assert_eq!(result.shape(), shape, "{items:?}");
        assert_eq!(numbers(&result), expected, "{items:?}");
    }
}

#[test]
fn indices_that_do_not_fit() {
    let mut b = Bench::default();
    let x = b.typed(F32, &[3, 4]);
    let Operand::Tensor { value: floats, .. } = x else { unreachable!() };
    let Operand::Tensor { value: mask, .. } = b.typed(Bool, &[3]) else { unreachable!() };
    let Operand::Tensor { value: ids, .. } = b.typed(I32, &[3]) else { unreachable!() };
    let step = |step| Index::Slice { low: None, high: None, step: Some(step) };
    let cases: [(&[Index], &str); 13] = [
        (&[Index::At(3)], "index 3 of axis 0 is out of bounds: f32[3, 4] has 3 there"),
        (&[WHOLE, Index::At(-5)], "index -5 of axis 1 is out of bounds: f32[3, 4] has 4 there"),
        (
            &[WHOLE, slice(2, 5)],
            "slice `2..5` of axis 1 is out of bounds: f32[3, 4] has 4 there\nhelp: `2..` goes to the end",
        ),
        (
            &[Index::Slice { low: None, high: Some(9), step: None }],
            "slice `..9` of axis 0 is out of bounds: f32[3, 4] has 3 there\nhelp: `..` is the whole axis",
        ),
        (&[slice(-4, 2)], "slice `-4..2` of axis 0 is out of bounds: f32[3, 4] has 3 there"),
        (&[slice(2, 1)], "slice `2..1` of axis 0 runs backwards: 2 is after 1"),
        (&[step(-1)], "slice `....-1` has a negative step\nhelp: slices run forward; steps are at least 1"),
        (&[step(0)], "slice `....0` has step 0\nhelp: steps are at least 1"),
        (&[Index::At(0), Index::At(0), Index::At(0)], "f32[3, 4] has 2 axes, but is indexed with 3 items"),
        (&[Index::Ellipsis, Index::Ellipsis], "f32[3, 4] is indexed with more than one `...`"),
        (
            &[Index::Tensor(mask)],
            "a mask (bool[3]) cannot index f32[3, 4]\n\
             help: how many elements it picks is not known before it runs; use `where(mask, x, 0)`",
        ),
        (
            &[Index::Tensor(floats)],
            "f32[3, 4] cannot index f32[3, 4]\nhelp: indices are whole numbers: `i32(x)`",
        ),
        (
            &[Index::Tensor(ids), Index::Tensor(ids)],
            "f32[3, 4] is indexed by more than one tensor\n\
             help: pick along one axis at a time, or use `one_hot` and a sum",
        ),
    ];
    for (items, expected) in cases {
        assert_eq!(message(b.index(x, items)), expected);
    }
    assert_eq!(message(b.index(int(3), &[Index::At(0)])), "`3` has no axes to index");
    let huge = Index::Slice { low: Some(i64::MIN), high: Some(i64::MAX), step: Some(i64::MAX) };
    assert!(b.index(x, &[huge]).is_err());
    let one = b.index(x, &[step(i64::MAX)]).unwrap();
    assert_eq!(b.ty(one), "f32[1, 4]");
}

#[test]
fn elementwise_functions() {
    let values = [-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5];
    type F = fn(f64) -> f64;
    let cases: [(&str, F); 19] = [
        ("abs", f64::abs),
        ("sign", |x| if x == 0.0 { 0.0 } else { x.signum() }),
        ("exp", f64::exp),
        ("log", f64::ln),
        ("log1p", f64::ln_1p),
        ("expm1", f64::exp_m1),
        ("sqrt", f64::sqrt),
        ("rsqrt", |x| 1.0 / x.sqrt()),
        ("recip", f64::recip),
        ("sin", f64::sin),
        ("cos", f64::cos),
        ("tanh", f64::tanh),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
        ("relu", |x| x.max(0.0)),
        ("silu", |x| x / (1.0 + (-x).exp())),
        ("floor", f64::floor),
        ("ceil", f64::ceil),
        ("round", f64::round_ties_even),
        ("square", |x| x * x),
    ];
    for (name, f) in cases {
        let mut b = Bench::default();
        let x = b.input(F64, &[8], &values);
        let y = b.of(name, x).unwrap();
        close(&numbers(&b.run(y)), &values.map(f), 1e-14);
        // A number folds to the same.
        for value in values {
            let Operand::Number(folded) = b.of(name, float(value)).unwrap() else { panic!("{name} folds") };
            close(&[folded.as_f64()], &[f(value)], 1e-14);
        }
    }
    let mut b = Bench::default();
    let x = b.input(F64, &[3], &[0.0, 0.5, -1.0]);
    let erf = b.of("erf", x).unwrap();
    close(&numbers(&b.run(erf)), &[0.0, 0.520_499_877_813_046_5, -0.842_700_792_949_714_9], 1e-14);
    let gelu = b.of("gelu", x).unwrap();
    let tanh_form =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    close(&numbers(&b.run(gelu)), &[0.0, 0.5, -1.0].map(tanh_form), 1e-14);
    let folded = b.of("erf", float(0.5)).unwrap();
    assert_eq!(b.ty(folded), "weak f64");
    let nan = b.input(F32, &[2], &[f64::NAN, 1.0]);
    let isnan = b.of("isnan", nan).unwrap();
    assert_eq!(numbers(&b.run(isnan)), [1., 0.]);
    for name in ["relu", "sign", "abs"] {
        let result = b.of(name, nan).unwrap();
        assert!(numbers(&b.run(result))[0].is_nan(), "{name}");
    }
}

#[test]
fn elementwise_functions_of_whole_numbers() {
    let mut b = Bench::default();
    let x = b.input(I32, &[2], &[-3., 4.]);
    for (name, expected) in
        [("abs", [3., 4.]), ("sign", [-1., 1.]), ("floor", [-3., 4.]), ("square", [9., 16.])]
    {
        let y = b.of(name, x).unwrap();
        assert_eq!((b.ty(y).as_str(), numbers(&b.run(y)).as_slice()), ("i32[2]", expected.as_slice()));
    }
    assert_eq!(b.of("abs", int(-3)), Ok(int(3)));
    assert_eq!(b.of("sqrt", int(4)), Ok(float(2.0)));
    assert_eq!(b.call("maximum", &[("a", op(int(2))), ("b", op(int(3)))]), Ok(int(3)));
    assert_eq!(b.call("minimum", &[("a", op(int(2))), ("b", op(float(1.5)))]), Ok(float(1.5)));
    assert_eq!(b.call("clip", &[("x", op(int(7))), ("low", op(int(0))), ("high", op(int(5)))]), Ok(int(5)));
    assert_eq!(b.call("pow", &[("a", op(int(3))), ("b", op(int(2)))]), Ok(int(9)));
    let bools = b.typed(Bool, &[2]);
    assert_eq!(
        message(b.of("exp", x)),
        "`exp` needs floating-point values, got i32[2]\nhelp: convert it first: `f32(x)` makes f32[2]"
    );
    assert_eq!(
        message(b.of("abs", bools)),
        "`abs` of bool[2]: booleans are not numbers\nhelp: use `and`, `or`, `not`, or convert first: `f32(x)`"
    );
    assert_eq!(
        message(b.of("abs", int(i64::MIN))),
        "`abs` of `-9223372036854775808`: the result does not fit in 64 bits"
    );
    assert_eq!(
        message(b.call("where", &[("condition", op(x)), ("a", op(x)), ("b", op(x))])),
        "`where`: the condition is i32[2]\nhelp: compare first: `x != 0`"
    );
}

#[test]
fn clip_where_and_extremes() {
    let mut b = Bench::default();
    let x = b.input(F64, &[5], &[-2., -1., 0.5, 1., f64::NAN]);
    let clipped = b.call("clip", &[("x", op(x)), ("low", op(int(-1))), ("high", op(float(1.0)))]).unwrap();
    close(&numbers(&b.run(clipped)), &[-1., -1., 0.5, 1., f64::NAN], 0.0);
    let gradient = b.gradient(clipped, x).unwrap();
    assert_eq!(numbers(&gradient), [0., 1., 1., 1., 1.]);
    let largest = b.call("maximum", &[("a", op(x)), ("b", op(int(0)))]).unwrap();
    close(&numbers(&b.run(largest)), &[0., 0., 0.5, 1., f64::NAN], 0.0);
    let positive = b.binary(BinaryOp::Gt, x, int(0)).unwrap();
    let chosen = b.call("where", &[("condition", op(positive)), ("a", op(x)), ("b", op(int(9)))]).unwrap();
    assert_eq!(numbers(&b.run(chosen)), [9., 9., 0.5, 1., 9.]);
    let column = b.input(Bool, &[2, 1], &[1., 0.]);
    let table =
        b.call("where", &[("condition", op(column)), ("a", op(int(1))), ("b", op(float(0.5)))]).unwrap();
    assert_eq!(b.ty(table), "f32[2, 1]");
    assert_eq!(numbers(&b.run(table)), [1., 0.5]);
}

#[test]
fn reductions() {
    let mut b = Bench::default();
    let x = b.count(&[2, 3, 2]);
    let mut check = |name: &str, axis: Arg, keep: bool, shape: &[usize], expected: &[f64]| {
        let args = [("x", op(x)), ("axis", axis), ("keep", Arg::Bool(keep))];
        let result = b.call(name, &args).unwrap();
        let result = b.run(result);
        assert_eq!(result.shape(), shape, "{name}");
        close(&numbers(&result), expected, 1e-12);
    };
    check("sum", Arg::None, false, &[], &[66.]);
    check("sum", Arg::Ints(vec![]), false, &[2, 3, 2], &(0..12).map(f64::from).collect::<Vec<_>>());
    check("sum", Arg::Int(-2), false, &[2, 2], &[6., 9., 24., 27.]);
    check("mean", Arg::Ints(vec![-1, 0]), true, &[1, 3, 1], &[3.5, 5.5, 7.5]);
    check("prod", Arg::Ints(vec![2]), false, &[2, 3], &[0., 6., 20., 42., 72., 110.]);
    check("max", Arg::Ints(vec![0]), true, &[1, 3, 2], &[6., 7., 8., 9., 10., 11.]);
    check("min", Arg::None, true, &[1, 1, 1], &[0.]);
    check("any", Arg::Ints(vec![0, 2]), false, &[3], &[1., 1., 1.]);
    check("all", Arg::Ints(vec![0, 2]), false, &[3], &[0., 1., 1.]);
    check("norm", Arg::Ints(vec![1, 2]), false, &[2], &[55f64.sqrt(), 451f64.sqrt()]);
    check("var", Arg::Ints(vec![1]), false, &[2, 2], &[8. / 3.; 4]);
    check("std", Arg::Ints(vec![1]), true, &[2, 1, 2], &[(8f64 / 3.).sqrt(); 4]);
    check("argmax", Arg::Ints(vec![1]), false, &[2, 2], &[2.; 4]);
    check("argmin", Arg::None, true, &[1, 1, 1], &[0.]);
    check("argmax", Arg::None, false, &[], &[11.]);
    let lse: Vec<f64> = (0..6).map(|i| (2. * f64::from(i) + 1.) + (1. + (-1f64).exp()).ln()).collect();
    check("logsumexp", Arg::Int(2), false, &[2, 3], &lse);
}

#[test]
fn reductions_change_dtypes_where_they_must() {
    let mut b = Bench::default();
    for (name, dtype, expected) in [
        ("sum", Bool, "i32"),
        ("sum", U8, "i32"),
        ("sum", I64, "i64"),
        ("sum", F16, "f16"),
        ("mean", Bool, "f32"),
        ("mean", I64, "f32"),
        ("mean", BF16, "bf16"),
        ("max", I32, "i32"),
        ("var", I32, "f32"),
        ("norm", F16, "f16"),
        ("any", F32, "bool"),
        ("all", Bool, "bool"),
        ("argmax", Bool, "i32"),
        ("logsumexp", F16, "f16"),
    ] {
        let x = b.typed(dtype, &[4]);
        let result = b.of(name, x).unwrap();
        assert_eq!(b.ty(result), expected, "{name} of {dtype}");
    }
    let mut b = Bench::default();
    let bytes = b.input(U8, &[300], &[255.0; 300]);
    let sum = b.of("sum", bytes).unwrap();
    assert_eq!(numbers(&b.run(sum)), [76_500.]);
    // In f16 the squares alone would be infinite.
    let halves = b.input(F16, &[4], &[300.; 4]);
    let norm = b.of("norm", halves).unwrap();
    assert_eq!(numbers(&b.run(norm)), [600.]);
}

#[test]
fn reductions_over_nothing() {
    let mut b = Bench::default();
    let x = b.input(F32, &[2, 0], &[]);
    for (name, expected) in [
        ("sum", 0.0),
        ("prod", 1.0),
        ("mean", f64::NAN),
        ("max", f64::NEG_INFINITY),
        ("min", f64::INFINITY),
        ("any", 0.0),
        ("all", 1.0),
        ("norm", 0.0),
        ("var", f64::NAN),
        ("std", f64::NAN),
        ("logsumexp", f64::NEG_INFINITY),
    ] {
        let result = b.call(name, &[("x", op(x)), ("axis", Arg::Int(1))]).unwrap();
        close(&numbers(&b.run(result)), &[expected; 2], 0.0);
    }
    assert_eq!(
        message(b.call("argmax", &[("x", op(x)), ("axis", Arg::Int(1))])),
        "`argmax` of f32[2, 0] over nothing: there is no element to point at"
    );
    let huge = b.typed(F32, &[0, 1 << 40]);
    assert!(b.call("sum", &[("x", op(huge)), ("axis", Arg::Int(0))]).is_ok());
}

#[test]
fn roots_at_zero_have_finite_gradients() {
    for dtype in [F64, F32, F16] {
        for name in ["norm", "std"] {
            let mut b = Bench::default();
            let x = b.input(dtype, &[2, 2], &[0., 0., 3., 4.]);
            let y = b.call(name, &[("x", op(x)), ("axis", Arg::Int(1))]).unwrap();
            let expected = if name == "norm" { [0., 5.] } else { [0., 0.5] };
            close(&numbers(&b.run(y)), &expected, 1e-3);
            let gradient = numbers(&b.gradient(y, x).unwrap());
            let last = if name == "norm" { [0.6, 0.8] } else { [-0.5, 0.5] };
            close(&gradient, &[0., 0., last[0], last[1]], 1e-3);
        }
    }
    let mut b = Bench::default();
    let x = b.input(F64, &[2], &[f64::NAN, 1.0]);
    let y = b.of("norm", x).unwrap();
    assert!(numbers(&b.run(y))[0].is_nan());
}

#[test]
fn variance_without_freedom() {
    for (size, ddof) in [(1, 1), (2, 2), (2, 3), (0, 1)] {
        let mut b = Bench::default();
        let x = b.count(&[size]);
        let y = b.call("var", &[("x", op(x)), ("ddof", Arg::Int(ddof))]).unwrap();
        assert!(numbers(&b.run(y))[0].is_nan());
        let gradient = b.gradient(y, x).unwrap();
        assert_eq!(gradient.shape(), [size]);
        assert!(numbers(&gradient).iter().all(|g| g.is_nan()));
    }
    let mut b = Bench::default();
    let x = b.count(&[4]);
    let y = b.call("var", &[("x", op(x)), ("ddof", Arg::Int(1))]).unwrap();
    close(&numbers(&b.run(y)), &[5. / 3.], 1e-15);
    assert_eq!(message(b.call("var", &[("x", op(x)), ("ddof", Arg::Int(-1))])), "`var`: ddof -1 is negative");
}

#[test]
fn log_sum_exp_of_extremes() {
    let infinity = f64::INFINITY;
    let mut b = Bench::default();
    let rows =
        [[-infinity, -infinity], [0., -infinity], [1e4, 1e4], [-1e4, -1e4], [infinity, 0.], [f64::NAN, 0.]];
    let x = b.input(F64, &[6, 2], &rows.concat());
    let y = b.call("logsumexp", &[("x", op(x)), ("axis", Arg::Int(1))]).unwrap();
    let two = 2f64.ln();
    close(&numbers(&b.run(y)), &[-infinity, 0., 1e4 + two, two - 1e4, infinity, f64::NAN], 1e-15);
    let finite = b.index(y, &[slice(0, 4)]).unwrap();
    let gradient = numbers(&b.gradient(finite, x).unwrap());
    close(&gradient[..8], &[0., 0., 1., 0., 0.5, 0.5, 0.5, 0.5], 1e-12);
    // An infinite element: ∞/∞ there and 0 elsewhere, as in JAX and PyTorch.
    let mut b = Bench::default();
    let x = b.input(F64, &[3, 3], &[1., infinity, 2., infinity, infinity, 0., 0., 0., -infinity]);
    let y = b.call("logsumexp", &[("x", op(x)), ("axis", Arg::Int(1))]).unwrap();
    let gradient = numbers(&b.gradient(y, x).unwrap());
    let nan = f64::NAN;
    close(&gradient, &[0., nan, 0., nan, nan, 0., 0.5, 0.5, 0.], 1e-12);
}

#[test]
fn axes_that_do_not_exist() {
    let mut b = Bench::default();
    let (x, scalar) = (b.typed(F32, &[2, 3]), b.typed(F32, &[]));
    let mut error = |name: &str, x, axis| message(b.call(name, &[("x", op(x)), ("axis", axis)]));
    assert_eq!(
        error("sum", x, Arg::Int(2)),
        "`sum`: axis 2 is out of range for f32[2, 3]\nhelp: its axes are 0 … 1 (or -2 … -1)"
    );
    assert_eq!(
        error("softmax", x, Arg::Int(-3)),
        "`softmax`: axis -3 is out of range for f32[2, 3]\nhelp: its axes are 0 … 1 (or -2 … -1)"
    );
    assert_eq!(
        error("mean", scalar, Arg::Int(0)),
        "`mean`: axis 0 is out of range for f32\nhelp: it is a scalar: it has no axes"
    );
    assert_eq!(error("max", x, Arg::Ints(vec![1, -1])), "`max`: axis 1 of f32[2, 3] is listed twice");
    assert_eq!(
        error("argmax", x, Arg::Ints(vec![0, 1])),
        "`argmax` takes one axis, got 2\nhelp: without `axis` it is the index in the flattened tensor"
    );
    assert_eq!(
        error("unsqueeze", x, Arg::Int(4)),
        "`unsqueeze`: no new axis 4 for f32[2, 3]\nhelp: it can go to -3 … 2"
    );
    assert_eq!(error("squeeze", x, Arg::Int(0)), "`squeeze`: axis 0 of f32[2, 3] has size 2, not 1");
    let bools = b.typed(Bool, &[2]);
    assert_eq!(
        message(b.of("max", bools)),
        "`max` of bool[2]: booleans are not numbers\nhelp: use `any` or `all`"
    );
}

#[test]
fn creation() {
    let mut b = Bench::default();
    let shape = || Arg::Ints(vec![2, 2]);
    let mut check = |name: &str, args: &[(&str, Arg)], ty: &str, expected: &[f64]| {
        let result = b.call(name, args).unwrap();
        assert_eq!(b.ty(result), ty, "{name}");
        assert_eq!(numbers(&b.run(result)), expected, "{name}");
    };
    check("zeros", &[("shape", shape())], "f32[2, 2]", &[0.; 4]);
    check("ones", &[("shape", shape()), ("dtype", Arg::DType(Bool))], "bool[2, 2]", &[1.; 4]);
    check("full", &[("shape", shape()), ("value", op(float(2.5)))], "f32[2, 2]", &[2.5; 4]);
    check(
        "full",
        &[("shape", Arg::Ints(vec![])), ("value", op(float(3.0))), ("dtype", Arg::DType(I32))],
        "i32",
        &[3.],
    );
    check("arange", &[("low", Arg::Int(4))], "i32[4]", &[0., 1., 2., 3.]);
    check(
        "arange",
        &[("low", Arg::Int(2)), ("high", Arg::Int(9)), ("step", Arg::Int(3))],
        "i32[3]",
        &[2., 5., 8.],
    );
    check(
        "arange",
        &[("low", Arg::Int(3)), ("high", Arg::Int(0)), ("step", Arg::Int(-2))],
        "i32[2]",
        &[3., 1.],
    );
    check("arange", &[("low", Arg::Int(-3))], "i32[0]", &[]);
    check("eye", &[("n", Arg::Int(2)), ("dtype", Arg::DType(F16))], "f16[2, 2]", &[1., 0., 0., 1.]);
    let list = |items: &[Number]| Nested::List(items.iter().map(|&n| Nested::Number(n)).collect());
    let nested = Nested::List(vec![
        list(&[Number::Int(1), Number::Float(0.5)]),
        list(&[Number::Int(2), Number::Int(3)]),
    ]);
    check("tensor", &[("list", Arg::Nested(nested.clone()))], "f32[2, 2]", &[1., 0.5, 2., 3.]);
    check(
        "tensor",
        &[("list", Arg::Nested(nested)), ("dtype", Arg::DType(F64))],
        "f64[2, 2]",
        &[1., 0.5, 2., 3.],
    );
    check("tensor", &[("list", Arg::Nested(list(&[Number::Int(-1)])))], "i32[1]", &[-1.]);
    check("tensor", &[("list", Arg::Nested(list(&[Number::Bool(true)])))], "bool[1]", &[1.]);
    check("tensor", &[("list", Arg::Nested(list(&[])))], "f32[0]", &[]);
    check("tensor", &[("list", Arg::Nested(Nested::Number(Number::Int(7))))], "i32", &[7.]);
    for dtype in DType::ALL {
        let ones = Arg::Nested(list(&[Number::Int(1), Number::Int(0)]));
        check("tensor", &[("list", ones), ("dtype", Arg::DType(dtype))], &format!("{dtype}[2]"), &[1., 0.]);
    }
    let x = b.input(I64, &[2], &[5., 6.]);
    let zeros = b.of("zeros_like", x).unwrap();
    assert_eq!((b.ty(zeros).as_str(), numbers(&b.run(zeros))), ("i64[2]", vec![0., 0.]));
    let ones = b.of("ones_like", x).unwrap();
    assert_eq!(numbers(&b.run(ones)), [1., 1.]);
}

#[test]
fn creation_that_fails() {
    let mut b = Bench::default();
    assert_eq!(
        message(b.call("zeros", &[])),
        "`zeros` needs a shape here\nhelp: `zeros([2, 3])`; only a `param` or `state` with a type gives one"
    );
    assert_eq!(message(b.call("ones", &[("shape", Arg::Ints(vec![2, -1]))])), "`ones`: size -1 is negative");
    assert_eq!(
        message(b.call("zeros", &[("shape", Arg::Ints(vec![1 << 40, 1 << 40]))])),
        "f32[1099511627776, 1099511627776] is too large: its size in bytes does not fit in 62 bits"
    );
    let half = [("shape", Arg::Ints(vec![2])), ("value", op(float(0.5))), ("dtype", Arg::DType(I32))];
    assert_eq!(message(b.call("full", &half)), "`full`: 0.5 does not fit in i32");
    let x = b.typed(F32, &[2]);
    assert_eq!(
        message(b.call("full", &[("shape", Arg::Ints(vec![2])), ("value", op(x))])),
        "`full`: `value` is a scalar, got f32[2]"
    );
    let arange =
        |low, high, step| [("low", Arg::Int(low)), ("high", Arg::Int(high)), ("step", Arg::Int(step))];
    assert_eq!(message(b.call("arange", &arange(0, 4, 0))), "`arange`: the step is 0");
    assert_eq!(
        message(b.call("arange", &arange(i64::MIN, i64::MAX, 1))),
        "`arange`: -9223372036854775808 … 9223372036854775806 does not fit in i32"
    );
    assert_eq!(
        message(b.call("uniform", &[("shape", Arg::Ints(vec![2])), ("dtype", Arg::DType(I32))])),
        "`uniform` makes floating-point numbers, not i32\nhelp: convert them: `i32(uniform(…))`"
    );
    assert_eq!(message(b.call("eye", &[("n", Arg::Int(-1))])), "`eye`: n -1 is negative");
    let number = |x: i64| Nested::Number(Number::Int(x));
    let list = |items: Vec<Nested>| Nested::List(items);
    let cases = [
        (
            list(vec![list(vec![number(1)]), list(vec![number(1), number(2)])]),
            "`tensor`: the lists on level 2 differ in length, 1 and 2",
        ),
        (list(vec![number(1), list(vec![number(2)])]), "`tensor`: level 1 has both numbers and lists"),
        (list(vec![list(vec![number(2)]), number(1)]), "`tensor`: level 1 has both numbers and lists"),
        (
            list(vec![number(1), Nested::Number(Number::Bool(true))]),
            "`tensor`: the list has both booleans and numbers\nhelp: name the dtype: `tensor(list, dtype: f32)`",
        ),
        (
            list(vec![number(1 << 40)]),
            "`tensor`: 1099511627776 does not fit in i32\nhelp: name the dtype: `tensor(list, dtype: i64)`",
        ),
    ];
    for (nested, expected) in cases {
        assert_eq!(message(b.call("tensor", &[("list", Arg::Nested(nested))])), expected);
    }
    let deep = (0..100).fold(number(1), |inner, _| Nested::List(vec![inner]));
    assert_eq!(
        message(b.call("tensor", &[("list", Arg::Nested(deep))])),
        "`tensor`: lists are nested deeper than 64"
    );
}

#[test]
fn random_numbers() {
    let mut b = Bench::default();
    let shape = || Arg::Ints(vec![100, 100]);
    let x =
        b.call("uniform", &[("shape", shape()), ("low", op(int(-3))), ("high", op(float(-1.0)))]).unwrap();
    let values = numbers(&b.run(x));
    assert!(values.iter().all(|v| (-3.0..=-1.0).contains(v)));
    let mean = values.iter().sum::<f64>() / 1e4;
    assert!((mean + 2.0).abs() < 0.03, "{mean}");
    let x = b.call("normal", &[("shape", shape()), ("mean", op(int(5))), ("std", op(int(2)))]).unwrap();
    let values = numbers(&b.run(x));
    let mean = values.iter().sum::<f64>() / 1e4;
    let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e4;
    assert!((mean - 5.0).abs() < 0.1 && (var - 4.0).abs() < 0.3, "{mean} {var}");
    assert_eq!(values, numbers(&b.run(x)), "the same key gives the same numbers");
    let wide = b.typed(F32, &[3]);
    assert_eq!(
        message(b.call("normal", &[("shape", Arg::Ints(vec![2, 1])), ("mean", op(wide))])),
        "`normal`: f32[3] does not broadcast to f32[2, 1]"
    );
}

#[test]
fn shapes() {
    let mut b = Bench::default();
    let x = b.count(&[2, 3, 1]);
    let counted: Vec<f64> = (0..6).map(f64::from).collect();
    let mut check = |name: &str, arg: &str, value: Arg, shape: &[usize], expected: &[f64]| {
        let result = b.call(name, &[("x", op(x)), (arg, value)]).unwrap();
        let result = b.run(result);
        assert_eq!(result.shape(), shape, "{name}");
        assert_eq!(numbers(&result), expected, "{name}");
    };
    check("reshape", "shape", Arg::Ints(vec![3, -1]), &[3, 2], &counted);
    check("reshape", "shape", Arg::Ints(vec![-1]), &[6], &counted);
    check("flatten", "from", Arg::Int(1), &[2, 3], &counted);
    check("flatten", "from", Arg::Int(-1), &[2, 3, 1], &counted);
    check("transpose", "axes", Arg::Ints(vec![2, 1, 0]), &[1, 3, 2], &[0., 3., 1., 4., 2., 5.]);
    check("transpose", "axes", Arg::Ints(vec![-2, -3, -1]), &[3, 2, 1], &[0., 3., 1., 4., 2., 5.]);
    check("squeeze", "axis", Arg::None, &[2, 3], &counted);
    check("squeeze", "axis", Arg::Int(-1), &[2, 3], &counted);
    check("unsqueeze", "axis", Arg::Int(0), &[1, 2, 3, 1], &counted);
    check("unsqueeze", "axis", Arg::Int(-1), &[2, 3, 1, 1], &counted);
    check(
        "broadcast",
        "shape",
        Arg::Ints(vec![2, 3, 2]),
        &[2, 3, 2],
        &[0., 0., 1., 1., 2., 2., 3., 3., 4., 4., 5., 5.],
    );
    let copy = b.of("copy", x).unwrap();
    assert_eq!(numbers(&b.run(copy)), counted);

    let (y, z) = (b.count(&[2, 1]), b.input(I32, &[2, 2], &[7., 8., 9., 10.]));
    let joined = b.call("concat", &[("list", Arg::Operands(vec![y, z])), ("axis", Arg::Int(-1))]).unwrap();
    assert_eq!(
        (b.ty(joined).as_str(), numbers(&b.run(joined))),
        ("f64[2, 3]", vec![0., 7., 8., 1., 9., 10.])
    );
    let stacked = b.call("stack", &[("list", Arg::Operands(vec![z, z])), ("axis", Arg::Int(1))]).unwrap();
    assert_eq!(
        (b.ty(stacked).as_str(), numbers(&b.run(stacked))),
        ("i32[2, 2, 2]", vec![7., 8., 7., 8., 9., 10., 9., 10.])
    );
    let scalars = b.call("stack", &[("list", Arg::Operands(vec![int(1), float(2.5)]))]).unwrap();
    assert_eq!((b.ty(scalars).as_str(), numbers(&b.run(scalars))), ("f32[2]", vec![1., 2.5]));

    let parts = b.all("split", &[("x", op(z)), ("n", Arg::Ints(vec![2])), ("axis", Arg::Int(1))]).unwrap();
    let values: Vec<Vec<f64>> = parts.iter().map(|&p| numbers(&b.run(p))).collect();
    assert_eq!(values, [[7., 9.], [8., 10.]]);
    let parts =
        b.all("split", &[("x", op(x)), ("n", Arg::Ints(vec![1, 0, 2])), ("axis", Arg::Int(1))]).unwrap();
    let shapes: Vec<String> = parts.iter().map(|&p| b.ty(p)).collect();
    assert_eq!(shapes, ["f64[2, 1, 1]", "f64[2, 0, 1]", "f64[2, 2, 1]"]);
}

#[test]
fn padding() {
    let mut b = Bench::default();
    let x = b.input(I32, &[2, 2], &[1., 2., 3., 4.]);
    let pad = |before: Vec<i64>, after: Arg, value: i64| {
        [
            ("x", op(x)),
            ("before", Arg::Ints(before)),
            ("after", after),
            ("value", Arg::Number(Number::Int(value))),
        ]
    };
    let padded = b.call("pad", &pad(vec![0, 1], Arg::None, 0)).unwrap();
    assert_eq!(b.ty(padded), "i32[2, 4]");
    assert_eq!(numbers(&b.run(padded)), [0., 1., 2., 0., 0., 3., 4., 0.]);
    let padded = b.call("pad", &pad(vec![1, 0], Arg::Ints(vec![0, 1]), 9)).unwrap();
    assert_eq!(numbers(&b.run(padded)), [9., 9., 9., 1., 2., 9., 3., 4., 9.]);
    assert_eq!(
        message(b.call("pad", &pad(vec![1], Arg::None, 0))),
        "`pad` of i32[2, 2] takes 2 numbers, one for each axis, got [1]"
    );
    assert_eq!(message(b.call("pad", &pad(vec![1, -1], Arg::None, 0))), "`pad`: amount -1 is negative");
    assert!(b.call("pad", &pad(vec![i64::MAX, i64::MAX], Arg::None, 0)).is_err());
}

#[test]
fn shapes_that_do_not_fit() {
    let mut b = Bench::default();
    let x = b.typed(F32, &[2, 3]);
    let empty = b.typed(F32, &[0, 3]);
    let mut error = |name: &str, x, arg: &str, value: Vec<i64>| {
        message(b.all(name, &[("x", op(x)), (arg, Arg::Ints(value))]))
    };
    let cases = [
        (
            error("reshape", x, "shape", vec![4, 2]),
            "`reshape` of f32[2, 3] to [4, 2]: 6 elements do not make 8",
        ),
        (
            error("reshape", x, "shape", vec![4, -1]),
            "`reshape` of f32[2, 3] to [4, -1]: 6 elements do not divide by 4",
        ),
        (
            error("reshape", x, "shape", vec![-1, -1]),
            "`reshape` of f32[2, 3] to [-1, -1]: more than one size is -1",
        ),
        (error("reshape", x, "shape", vec![-2]), "`reshape` of f32[2, 3] to [-2]: size -2 is negative"),
        (
            error("reshape", empty, "shape", vec![0, -1]),
            "`reshape` of f32[0, 3] to [0, -1]: the size for -1 could be any, since another is 0",
        ),
        (
            error("transpose", x, "axes", vec![0, 0]),
            "`transpose` of f32[2, 3] with axes [0, 0]: every axis is listed once\nhelp: `x.T` swaps the last two axes",
        ),
        (
            error("broadcast", x, "shape", vec![2, 1]),
            "`broadcast`: f32[2, 3] cannot become [2, 1]\nhelp: axes are aligned at the end, and only sizes of 1 repeat",
        ),
        (
            error("split", x, "n", vec![4]),
            "`split`: axis 0 of f32[2, 3] does not divide into 4 equal parts\nhelp: list the sizes: `split(x, [2, 3])`",
        ),
        (
            error("split", x, "n", vec![1, 2]),
            "`split`: the sizes [1, 2] do not add up to axis 0 of f32[2, 3]",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    let y = b.typed(F32, &[2, 4]);
    let scalar = b.typed(F32, &[]);
    let mut join = |name: &str, list: Vec<Operand>| message(b.call(name, &[("list", Arg::Operands(list))]));
    assert_eq!(
        join("concat", vec![x, y]),
        "`concat` of f32[2, 3] and f32[2, 4] along axis 0: the other sizes differ"
    );
    assert_eq!(join("stack", vec![x, y]), "`stack` of f32[2, 3] and f32[2, 4]: the shapes differ");
    assert_eq!(join("stack", vec![]), "`stack` of an empty list");
    assert_eq!(
        join("concat", vec![scalar]),
        "`concat` of scalars: they have no axes\nhelp: `stack` joins them along a new axis"
    );
}

#[test]
fn rows() {
    let mut b = Bench::default();
    let table = b.count(&[3, 2]);
    let ids = b.input(I64, &[2], &[2., 0.]);
    let rows = b.call("gather", &[("table", op(table)), ("ids", op(ids))]).unwrap();
    assert_eq!(numbers(&b.run(rows)), [4., 5., 0., 1.]);
    let x = b.count(&[2, 3]);
    let taken = b.call("take", &[("x", op(x)), ("ids", op(ids)), ("axis", Arg::Int(-1))]).unwrap();
    assert_eq!(numbers(&b.run(taken)), [2., 0., 5., 3.]);
    let one = b.call("take", &[("x", op(x)), ("ids", op(int(1)))]).unwrap();
    assert_eq!(numbers(&b.run(one)), [3., 4., 5.]);
    let hot = b.call("one_hot", &[("ids", op(ids)), ("n", Arg::Int(3))]).unwrap();
    assert_eq!((b.ty(hot).as_str(), numbers(&b.run(hot))), ("f32[2, 3]", vec![0., 0., 1., 1., 0., 0.]));
    let bytes = b.input(U8, &[2], &[1., 255.]);
    let hot = b.call("one_hot", &[("ids", op(bytes)), ("n", Arg::Int(300))]).unwrap();
    assert_eq!(numbers(&b.run(hot)).iter().sum::<f64>(), 2.0);
    // A row named twice gets both gradients.
    let twice = b.input(I32, &[3], &[0., 0., 2.]);
    let rows = b.call("gather", &[("table", op(table)), ("ids", op(twice))]).unwrap();
    assert_eq!(numbers(&b.gradient(rows, table).unwrap()), [2., 2., 0., 0., 1., 1.]);
    assert_eq!(
        message(b.call("gather", &[("table", op(table)), ("ids", op(table))])),
        "`gather`: the ids are f64[3, 2]\nhelp: ids are whole numbers: `i32(x)`"
    );
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let total: f64 = row.iter().map(|x| x.exp()).sum();
    row.iter().map(|x| x.exp() / total).collect()
}

#[test]
fn networks() {
    let mut b = Bench::default();
    let values = [0.1, -0.4, 1.2, 0.7, 0.0, -2.0];
    let x = b.input(F64, &[2, 3], &values);
    let rows = b.of("softmax", x).unwrap();
    let expected: Vec<f64> = values.chunks(3).flat_map(softmax).collect();
    close(&numbers(&b.run(rows)), &expected, 1e-14);
    let logs = b.of("log_softmax", x).unwrap();
    close(&numbers(&b.run(logs)), &expected.iter().map(|p| p.ln()).collect::<Vec<_>>(), 1e-14);
    let columns = b.call("softmax", &[("x", op(x)), ("axis", Arg::Int(0))]).unwrap();
    let pairs: Vec<Vec<f64>> = (0..3).map(|j| softmax(&[values[j], values[j + 3]])).collect();
    let expected: Vec<f64> = (0..2).flat_map(|i| pairs.iter().map(move |p| p[i])).collect();
    close(&numbers(&b.run(columns)), &expected, 1e-14);

    let labels = b.input(I32, &[2], &[2., 0.]);
    let loss = b.call("cross_entropy", &[("logits", op(x)), ("labels", op(labels))]).unwrap();
    let expected = [-softmax(&values[..3])[2].ln(), -softmax(&values[3..])[0].ln()];
    close(&numbers(&b.run(loss)), &expected, 1e-14);
    let deep = b.input(F64, &[2, 1, 3], &values);
    let deep_labels = b.input(I32, &[2, 1], &[2., 0.]);
    let loss = b.call("cross_entropy", &[("logits", op(deep)), ("labels", op(deep_labels))]).unwrap();
    assert_eq!(b.ty(loss), "f64[2, 1]");
    close(&numbers(&b.run(loss)), &expected, 1e-14);

    let normal = |row: &[f64], eps: f64| -> Vec<f64> {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        row.iter().map(|x| (x - mean) / (var + eps).sqrt()).collect()
    };
    let plain = b.of("layer_norm", x).unwrap();
    let rows: Vec<f64> = values.chunks(3).flat_map(|row| normal(row, 1e-5)).collect();
    close(&numbers(&b.run(plain)), &rows, 1e-13);
    let (w, bias) = (b.input(F64, &[3], &[1., 2., 3.]), b.input(F64, &[3], &[0.5, 0., -1.]));
    let scaled = b.call("layer_norm", &[("x", op(x)), ("w", op(w)), ("b", op(bias))]).unwrap();
    let affine = |i: usize, v: f64| v * [1., 2., 3.][i % 3] + [0.5, 0., -1.][i % 3];
    close(
        &numbers(&b.run(scaled)),
        &rows.iter().enumerate().map(|(i, &v)| affine(i, v)).collect::<Vec<_>>(),
        1e-13,
    );
    let rms = b.call("rms_norm", &[("x", op(x)), ("w", op(w))]).unwrap();
    let expected: Vec<f64> = values
        .chunks(3)
        .flat_map(|row| {
            let scale = (row.iter().map(|x| x * x).sum::<f64>() / 3. + 1e-6).sqrt();
            row.iter().enumerate().map(move |(i, x)| x / scale * [1., 2., 3.][i]).collect::<Vec<_>>()
        })
        .collect();
    close(&numbers(&b.run(rms)), &expected, 1e-13);
    let results = b.all("batch_norm", &[("x", op(x)), ("w", op(w)), ("b", op(bias))]).unwrap();
    assert_eq!(results.iter().map(|&r| b.ty(r)).collect::<Vec<_>>(), ["f64[2, 3]", "f64[3]", "f64[3]"]);
    let means: Vec<f64> = (0..3).map(|j| (values[j] + values[j + 3]) / 2.).collect();
    close(&numbers(&b.run(results[1])), &means, 1e-14);
}

#[test]
fn images() {
    let mut b = Bench::default();
    let x = b.count(&[1, 1, 3, 3]);
    let w = b.input(F64, &[1, 1, 2, 2], &[1., 0., 0., 1.]);
    let bias = b.input(F64, &[1], &[10.]);
    let y = b.call("conv2d", &[("x", op(x)), ("w", op(w)), ("bias", op(bias))]).unwrap();
    assert_eq!(numbers(&b.run(y)), [14., 16., 20., 22.]);
    let y = b
        .call(
            "conv2d",
            &[("x", op(x)), ("w", op(w)), ("stride", Arg::Ints(vec![2, 1])), ("padding", Arg::Ints(vec![1]))],
        )
        .unwrap();
    assert_eq!(b.ty(y), "f64[1, 1, 2, 4]");
    let pool =
        |kernel: Vec<i64>, stride: Arg| [("x", op(x)), ("kernel", Arg::Ints(kernel)), ("stride", stride)];
    let y = b.call("max_pool2d", &pool(vec![2], Arg::Ints(vec![1]))).unwrap();
    assert_eq!(numbers(&b.run(y)), [4., 5., 7., 8.]);
    let y = b.call("avg_pool2d", &pool(vec![3, 1], Arg::None)).unwrap();
    assert_eq!(numbers(&b.run(y)), [3., 4., 5.]);

    let flat = b.typed(F32, &[3, 3]);
    assert_eq!(
        message(b.call("max_pool2d", &[("x", op(flat)), ("kernel", Arg::Ints(vec![2]))])),
        "`max_pool2d` takes [n, c, h, w], got f32[3, 3]"
    );
    assert_eq!(
        message(b.call("avg_pool2d", &pool(vec![0], Arg::None))),
        "`avg_pool2d`: `kernel` is 0, less than 1"
    );
    assert_eq!(
        message(b.call("max_pool2d", &pool(vec![1, 2, 3], Arg::None))),
        "`max_pool2d`: `kernel` is one number or two, got 3"
    );
    assert_eq!(
        message(b.call("conv2d", &[("x", op(x)), ("w", op(w)), ("padding", Arg::Ints(vec![-1]))])),
        "`conv2d`: `padding` -1 is negative"
    );
    assert_eq!(
        message(b.call("conv2d", &[("x", op(x)), ("w", op(w)), ("groups", Arg::Int(0))])),
        "`conv2d`: `groups` is 0, less than 1"
    );
}

#[test]
fn attention() {
    let (t, s, d) = (2, 3, 2);
    let q = [0.1, 0.2, -0.3, 0.4];
    let k = [0.5, -0.1, 0.2, 0.3, 0.0, 1.0];
    let v = [1., 2., 3., 4., 5., 6.];
    let scale = 1.0 / (d as f64).sqrt();
    let mut expected = Vec::new();
    for i in 0..t {
        let scores: Vec<f64> = (0..s)
            .map(|j| (0..d).map(|l| q[i * d + l] * k[j * d + l]).sum::<f64>() * scale)
            .map(|score: f64| score)
            .collect();
        let causal: Vec<f64> = scores
            .iter()
            .enumerate()
            .map(|(j, &x)| if j <= i + (s - t) { x } else { f64::NEG_INFINITY })
            .collect();
        let p = softmax(&causal);
        expected.extend((0..d).map(|l| (0..s).map(|j| p[j] * v[j * d + l]).sum::<f64>()));
    }
    for lead in [vec![], vec![1], vec![1, 1], vec![1, 1, 1]] {
        let mut b = Bench::default();
        let shape = |rows: usize| [lead.as_slice(), &[rows, d]].concat();
        let (q, k, v) =
            (b.input(F64, &shape(t), &q), b.input(F64, &shape(s), &k), b.input(F64, &shape(s), &v));
        let y = b
            .call("attention", &[("q", op(q)), ("k", op(k)), ("v", op(v)), ("causal", Arg::Bool(true))])
            .unwrap();
        let y = b.run(y);
        assert_eq!(y.shape(), shape(t));
        close(&numbers(&y), &expected, 1e-13);
    }
    let mut b = Bench::default();
    let (q, k) = (b.typed(F32, &[4, 2, 8]), b.typed(F32, &[4, 3, 6]));
    assert_eq!(
        message(b.call("attention", &[("q", op(q)), ("k", op(k)), ("v", op(k))])),
        "`attention` of f32[4, 2, 8], f32[4, 3, 6], f32[4, 3, 6]: the last axis of q is 8, that of k is 6"
    );
    assert_eq!(
        message(b.call("attention", &[("q", op(q)), ("k", op(q)), ("v", op(k))])),
        "`attention` of f32[4, 2, 8], f32[4, 2, 8], f32[4, 3, 6]: k has 2 positions, v has 3"
    );
}

#[test]
fn networks_that_do_not_fit() {
    let mut b = Bench::default();
    let (x, ints) = (b.typed(F32, &[8, 10]), b.typed(I32, &[8, 10]));
    let (labels, short) = (b.typed(I32, &[7]), b.typed(F32, &[9]));
    assert_eq!(
        message(b.of("softmax", ints)),
        "`softmax` needs floating-point values, got i32[8, 10]\nhelp: convert it first: `f32(x)` makes f32[8, 10]"
    );
    let mut loss = |y| message(b.call("cross_entropy", &[("logits", op(x)), ("labels", op(y))]));
    assert_eq!(loss(labels), "`cross_entropy` of f32[8, 10] and i32[7]: logits [.., 10] go with labels [8]");
    assert_eq!(
        loss(x),
        "`cross_entropy` of f32[8, 10] and f32[8, 10]: the labels are class numbers\n\
         help: for one-hot labels or probabilities: `-sum(labels * log_softmax(logits), axis: -1)`"
    );
    assert_eq!(
        loss(short),
        "`cross_entropy` of f32[8, 10] and f32[9]: the labels are class numbers\n\
         help: class numbers are whole: `i32(labels)`"
    );
    assert_eq!(
        message(b.call("layer_norm", &[("x", op(x)), ("w", op(short))])),
        "`layer_norm` of f32[8, 10] needs `w` of shape [10], got f32[9]"
    );
    assert_eq!(
        message(b.call("batch_norm", &[("x", op(short))])),
        "`batch_norm` of f32[9]: there is no axis 1\nhelp: it takes [n, c, ..]"
    );
    let eps = Arg::Number(Number::Float(-1.0));
    assert_eq!(
        message(b.call("rms_norm", &[("x", op(x)), ("eps", eps)])),
        "`rms_norm`: `eps` is -1, less than 0"
    );
}

#[test]
fn casts_and_marks() {
    let mut b = Bench::default();
    let x = b.input(F32, &[5], &[-1.5, 0.0, 0.4, 300.0, f64::NAN]);
    for (name, expected) in
        [("i32", [-1., 0., 0., 300., 0.]), ("u8", [0., 0., 0., 255., 0.]), ("bool", [1., 0., 1., 1., 1.])]
    {
        let y = b.of(name, x).unwrap();
        assert_eq!(b.ty(y), format!("{name}[5]"));
        assert_eq!(numbers(&b.run(y)), expected, "{name}");
    }
    let y = b.call("cast", &[("x", op(x)), ("dtype", Arg::DType(F16))]).unwrap();
    assert_eq!(b.ty(y), "f16[5]");
    let y = b.call("like", &[("x", op(float(0.5))), ("y", op(y))]).unwrap();
    assert_eq!((b.ty(y).as_str(), numbers(&b.run(y))), ("f16", vec![0.5]));
    let y = b.of("u8", float(300.5)).unwrap();
    assert_eq!((b.ty(y).as_str(), numbers(&b.run(y))), ("u8", vec![255.]));
    assert_eq!(message(b.of("u8", int(300))), "`u8`: 300 does not fit in u8");

    let x = b.input(F64, &[2], &[2., 3.]);
    let fixed = b.of("stop_grad", x).unwrap();
    let y = b.binary(BinaryOp::Mul, x, fixed).unwrap();
    assert_eq!(numbers(&b.gradient(y, x).unwrap()), [2., 3.]);
    assert!(b.gradient(fixed, x).is_none());
    let named = b.call("name", &[("x", op(x)), ("label", Arg::Str("attn_out".into()))]).unwrap();
    assert_eq!(named, x);
    assert_eq!(b.graph.marks.values().map(|n| n.as_ref()).collect::<Vec<_>>(), ["attn_out"]);
    let shown = b.of("debug", x).unwrap();
    assert_eq!(numbers(&b.run(shown)), [2., 3.]);
}

#[test]
fn the_table_is_whole() {
    let listed = "zeros ones full zeros_like ones_like arange eye uniform normal tensor \
        abs sign exp log log1p expm1 sqrt rsqrt recip sin cos tanh sigmoid relu gelu silu erf floor ceil round isnan \
        maximum minimum clip where pow square \
        sum mean max min prod var std all any argmax argmin norm logsumexp \
        reshape flatten transpose squeeze unsqueeze broadcast concat stack split pad copy \
        matmul linear dot outer gather one_hot take \
        softmax log_softmax cross_entropy layer_norm rms_norm batch_norm conv2d max_pool2d avg_pool2d attention \
        all_reduce all_gather reduce_scatter \
        f32 f16 bf16 f64 i32 i64 bool u8 cast like stop_grad name debug";
    let names: Vec<&str> = listed.split_whitespace().collect();
    for name in &names {
        assert!(tensor::find(name).is_some(), "`{name}` is missing");
    }
    assert_eq!(tensor::functions().len(), names.len());
    for function in tensor::functions() {
        assert!(!function.docs.is_empty(), "`{}` has no docs", function.name);
        assert_eq!(tensor::find(function.name).map(|f| f.name), Some(function.name));
        let optional = function.params.iter().skip_while(|p| p.default.is_none());
        assert!(
            optional.clone().all(|p| p.default.is_some()),
            "`{}`: required after optional",
            function.name
        );
    }
    assert!(tensor::find("sinh").is_none());
}

/// Whatever is passed, a call returns: no panic, no overflow.
#[test]
fn odd_arguments_never_panic() {
    let mut b = Bench::default();
    let operands = [
        b.typed(F32, &[]),
        b.typed(F32, &[0]),
        b.typed(Bool, &[2]),
        b.typed(I32, &[2, 3]),
        b.typed(F16, &[0, 1 << 40, 3]),
        b.typed(F64, &[1, 2, 3, 4]),
        b.weak(1.0),
        int(-1),
        float(f64::NAN),
        Operand::bool(true),
    ];
    let ints = [i64::MIN, -2, -1, 0, 1, 3, i64::MAX];
    let (mut calls, mut errors) = (0, 0);
    for function in tensor::functions() {
        for round in 0..400usize {
            let mut state = round.wrapping_mul(0x9e37_79b9) ^ function.name.len().wrapping_mul(0x85eb_ca6b);
            let mut pick = |n: usize| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % n
            };
            let mut args = Vec::new();
            if function.random {
                args.push(Arg::Key { key: 1, per_step: false });
            }
            for param in function.params {
                let default = param.default.map(|d| d.arg(param.kind));
                args.push(match param.kind {
                    _ if default.is_some() && pick(3) == 0 => default.unwrap_or(Arg::None),
                    Kind::Tensor | Kind::OptionalTensor => Arg::Operand(operands[pick(operands.len())]),
                    Kind::Tensors => {
                        let count = pick(4);
                        Arg::Operands((0..count).map(|_| operands[pick(operands.len())]).collect())
                    }
                    Kind::Number => Arg::Number(Number::Int(ints[pick(ints.len())])),
                    Kind::Int => Arg::Int(ints[pick(ints.len())]),
                    Kind::Ints | Kind::Shape | Kind::Axis => {
                        let count = pick(4);
                        Arg::Ints((0..count).map(|_| ints[pick(ints.len())]).collect())
                    }
                    Kind::Bool => Arg::Bool(pick(2) == 0),
                    Kind::DType => Arg::DType(DType::ALL[pick(8)]),
                    Kind::Str => Arg::Str("label".into()),
                    Kind::Nested => Arg::Nested(Nested::Number(Number::Int(ints[pick(ints.len())]))),
                });
            }
            calls += 1;
            if let Err(error) = (function.call)(&mut b.graph, &args) {
                errors += 1;
                assert!(!error.message.starts_with("internal"), "`{}` {args:?}: {error}", function.name);
                assert!(!error.message.ends_with('.'), "{error}");
            }
        }
    }
    assert!(errors > 0 && errors < calls, "{errors} of {calls}");
    assert_eq!(host(F32, &[1], &[1.0]).shape(), [1]);
}
