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
