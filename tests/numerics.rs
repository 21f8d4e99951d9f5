//! Values at awkward points, through the language. The expected numbers are closed forms.

#[path = "language/support.rs"]
#[allow(dead_code)]
mod support;

use support::run;

/// The numbers in what a program prints.
fn numbers(text: &str) -> Vec<f64> {
    run(text)
        .split(|c: char| c.is_whitespace() || "[](),".contains(c))
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (f, e) in found.iter().zip(expected) {
        assert!(
            f == e || (f - e).abs() <= tolerance * e.abs().max(1e-30),
            "{found:?}, expected {expected:?}"
        );
    }
}

/// (σ(x) − t) / n, also at logits that are exactly 0.
#[test]
fn binary_cross_entropy_of_zero_logits() {
    let text = r#"
use loss
step f(x: f32[2], t: f32[2]) { return grad(loss.bce_with_logits(x, t), [x])[0] }
let g = f(tensor([0.0, 0.0]), tensor([0.0, 1.0]))
print(float(g[0]), float(g[1]))
"#;
    close(&numbers(text), &[0.25, -0.25], 1e-6);
}

#[test]
fn inverse_squares_of_small_and_large_numbers() {
    let text = r#"
step f(x: f32[1]) { return x ** -2, grad(sum(x ** -2), [x])[0] }
let value, slope = f(tensor([1e-10]))
print(float(value[0]), float(slope[0]))
print(float(f32((f16(tensor([1000.0])) ** -2)[0])))
"#;
    close(&numbers(text), &[1e20, -2e30, 1e-6], 2e-2);
}

#[test]
fn floor_division_by_infinity() {
    let text = r#"
let big = exp(tensor([1000.0]))
print(float((tensor([-5.0]) // big)[0]), float((tensor([5.0]) // -big)[0]), float((tensor([5.0]) // big)[0]))
"#;
    assert_eq!(numbers(text), [-1.0, -1.0, 0.0]);
}

/// The second derivative of gelu far from 0, from f64.
#[test]
fn second_gradient_of_gelu() {
    let text = r#"
step f(x: f32[1]) {
  let g = grad(sum(gelu(x)), [x])[0]
  return grad(sum(g), [x])[0]
}
print(float(f(tensor([5.0]))[0]), float(f(tensor([-5.0]))[0]))
"#;
    // At 5 the slope of σ has lost all but its first digits in f32.
    close(&numbers(text), &[-9.934e-6, -9.934e-6], 5e-2);
}

/// In scripts as in tensors of f64: the quotient belongs to the remainder.
#[test]
fn floor_division_of_numbers() {
    let text = r#"
let a, b = (1.0, 0.1)
print(a // b, a % b, -5.0 // inf, 5.0 // 0.0, 5.5 // -2.0, 5.5 % -2.0)
let x, y = (tensor([a, -5.0, 5.0, 5.5], dtype: f64), tensor([b, inf, 0.0, -2.0], dtype: f64))
for q in x // y { print(float(q)) }
"#;
    let inf = f64::INFINITY;
    assert_eq!(numbers(text), [9.0, 0.099_999_999_999_999_95, -1.0, inf, -3.0, -0.5, 9.0, -1.0, inf, -3.0]);
}

#[test]
fn nan_passes_through_functions_of_numbers() {
    let text = r#"
print(max([1.0, nan]), max([nan, 1.0]), min([2.0, nan, 1.0]), clip(0.5, nan, 1), clip(0.5, 0, nan), clip(nan, 0, 1))
print(max([1.0, 3.0, 2.0]), min([1, 3, 2]), clip(0.5, 1, 2))
"#;
    let found = numbers(text);
    assert!(found.iter().take(6).all(|x| x.is_nan()), "{found:?}");
    assert_eq!(found.get(6..), Some([3.0, 1.0, 1.0].as_slice()));
}

/// Before a program runs, what is computed from a tensor's value is not known.
#[test]
fn conditions_on_functions_of_tensor_values() {
    let text = r#"
let y = tensor([2.0])
assert(abs(float(y) - 2.0) < 1e-5, "y is {y}")
assert(max([0.5, float(y)]) > 1.0 and sqrt(float(y)) > 1.4)
let total = 0.0
step double(x) { return x * 2.0 }
for i in 0..3 { total += double(y) }
print(float(total))
"#;
    assert_eq!(numbers(text), [12.0]);
}

/// Gradients of f16 overflow when squared in f16, and a model may have parameters of several dtypes.
#[test]
fn gradients_of_any_dtype_are_clipped() {
    let text = r#"
use optim
model Half() { param w: f16[4] = full(300.0)
  param b: f64[2] = full(0.0) }
let m = Half()
step f() {
  let g = grad(sum(m.w ** 2) * 0.5, m.w)
  let both = grad(sum(f64(m.w) ** 2) * 0.5 + 800.0 * sum(m.b), m)
  let none = grad(sum(m.b * 0.0) + 0.0 * sum(f64(m.w)), m)
  let c = optim.clip(both, 1.0)
  return norm(g), norm(both), c.w, c.b, optim.clip(none, 1.0).b
}
let a, b, w, bias, none = f()
assert(w.dtype == f16 and bias.dtype == f64)
print(float(a), float(b), float(f32(w)[0]), float(bias[0]), float(none[0]))
"#;
    let norm = (360_000.0f64 + 1_280_000.0).sqrt();
    close(&numbers(text), &[600.0, norm, 300.0 / norm, 800.0 / norm, 0.0], 1e-3);
}
