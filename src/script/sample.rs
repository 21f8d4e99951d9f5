//! Samples from categories on the host: `random.categorical`.

use super::{Error, random::Random};
use crate::exec::Tensor;

/// What the numbers of a row say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Logarithms of weights, up to a constant.
    Logits,
    /// Weights, at least 0; they need not add up to 1.
    Probabilities,
}

/// One category (i32) for each row: `[.., n]` gives `[..]`.
///
/// `temperature` divides the logits (probabilities are raised to its inverse); 0 takes the first
/// largest. Errors for rows with a NaN, without any weight, or with a negative one.
pub fn categorical(rows: &Tensor, weights: Weights, temperature: f64, seed: u64) -> Result<Tensor, Error> {
    if temperature.is_nan() || temperature < 0.0 {
        return Err(Error::new(format!(
            "`random.categorical`: the temperature is {temperature}, less than 0"
        )));
    }
    if !rows.dtype().is_float() {
        return Err(Error::new(format!(
            "`random.categorical` needs floating-point values, got {}",
            rows.ty()
        )));
    }
    let Some((&n, lead)) = rows.shape().split_last() else {
        return Err(Error::new(format!(
            "`random.categorical` of {}: it has no axis of categories",
            rows.ty()
        )));
    };
    let count: usize = lead.iter().product();
    if n == 0 && count > 0 {
        return Err(Error::new(format!("`random.categorical` of {}: there are no categories", rows.ty())));
    }
    if i32::try_from(n).is_err() {
        return Err(Error::new(format!("`random.categorical` of {}: too many categories", rows.ty())));
    }
    let mut random = Random::new(seed, 0);
    let mut chosen = Vec::with_capacity(count);
    let mut row = Vec::with_capacity(n);
    for i in 0..count {
        row.clear();
        row.extend((i * n..(i + 1) * n).map(|k| rows.get_f64(k).unwrap_or(f64::NAN)));
        let unit = random.unit();
        let pick = choose(&row, weights, temperature, unit).map_err(|why| {
            let which = if count > 1 { format!(" in row {i}") } else { String::new() };
            Error::new(format!("`random.categorical` of {}: {why}{which}", rows.ty()))
        })?;
        chosen.push(pick as i32);
    }
    Tensor::from_slice(lead, &chosen)
        .ok_or_else(|| Error::new(format!("`random.categorical` of {}: too many rows", rows.ty())))
}

/// The category at `unit` (in [0, 1)) of the cumulative weights of one row.
fn choose(row: &[f64], weights: Weights, temperature: f64, unit: f64) -> Result<usize, &'static str> {
    if row.iter().any(|x| x.is_nan()) {
        return Err("there is a NaN");
    }
    if weights == Weights::Probabilities && row.iter().any(|&x| x < 0.0) {
        return Err("a probability is negative");
    }
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let none = if weights == Weights::Logits { f64::NEG_INFINITY } else { 0.0 };
    if largest == none {
        return Err("no category has any weight");
    }
    let first_largest = row.iter().position(|&x| x == largest).unwrap_or(0);
    if temperature == 0.0 {
        return Ok(first_largest);
    }
    let weight = |x: f64| match weights {
        // An infinite weight leaves nothing for finite ones.
        _ if largest == f64::INFINITY => f64::from(u8::from(x == f64::INFINITY)),
        Weights::Logits => ((x - largest) / temperature).exp(),
        Weights::Probabilities => (x / largest).powf(temperature.recip()),
    };
    let total: f64 = row.iter().map(|&x| weight(x)).sum();
    let target = unit * total;
    let mut sum = 0.0;
    let mut last = first_largest;
    for (i, &x) in row.iter().enumerate() {
        let w = weight(x);
        if w > 0.0 {
            sum += w;
            last = i;
            if target < sum {
                return Ok(i);
            }
        }
    }
    // Only rounding leads here; the last category with a weight is the right one.
    Ok(last)
}
