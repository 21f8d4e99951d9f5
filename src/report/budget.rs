//! The curve of peak against extra work: what a `budget` chooses from.

use serde_json::{Value, json};

use super::{Bytes, Style, bytes::Unit, style::Part, visible};

/// Width of the drawing in columns.
const WIDTH: usize = 80;
const BAR: usize = 40;
const NAME_LIMIT: usize = 40;

/// What recomputing can reach for one step.
#[derive(Debug, Clone)]
pub struct BudgetCurve {
    pub step: String,
    pub budget_bytes: Option<u64>,
    /// From the step as it is written to the smallest peak.
    pub points: Vec<CurvePoint>,
}

#[derive(Debug, Clone)]
pub struct CurvePoint {
    pub peak_bytes: u64,
    /// Floating-point operations of a step.
    pub flops: f64,
    /// The same, with those of the step as it is written as 1.
    pub work: f64,
    /// Regions that are added.
    pub regions: usize,
    /// The budget takes this one.
    pub chosen: bool,
    pub as_written: bool,
}

/// A table with a bar for each peak.
pub fn render(curve: &BudgetCurve, style: Style) -> String {
    let name = format!("step {}", visible::line(&curve.step, NAME_LIMIT));
    let mut out = format!("{}: peak against work\n", style.paint(Part::Strong, &name));
    let largest = curve.points.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
    let unit = Unit::of(largest);
    let head = format!("peak ({})", unit.name());
    let width = unit.write(largest).len().max(head.len());
    out.push_str(&format!("  {head:>width$}   work  regions\n"));
    for point in &curve.points {
        let bar = usize::try_from(u128::from(point.peak_bytes) * BAR as u128 / u128::from(largest.max(1)))
            .unwrap_or(BAR)
            .max(1);
        let block = if style.unicode { "█" } else { "#" };
        let mark = match (point.chosen, point.as_written) {
            (true, true) => "as written, chosen",
            (true, false) => "chosen",
            (false, true) => "as written",
            (false, false) => "",
        };
        let peak = unit.write(point.peak_bytes);
        let row = format!("  {peak:>width$}  {:.3}  {:>7}  ", point.work, point.regions);
        let room = WIDTH.saturating_sub(row.len() + mark.len() + 1);
        let drawn = block.repeat(bar.min(room));
        let drawn = if point.chosen { style.paint(Part::Peak, &drawn) } else { drawn };
        let line = format!("{row}{drawn} {mark}");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if let Some(budget) = curve.budget_bytes {
        let text = match curve.points.iter().find(|p| p.chosen) {
            Some(point) => {
                format!("budget {}: {:.3} times the work as written", Bytes(budget), point.work)
            }
            None => format!("budget {}: no plan fits", Bytes(budget)),
        };
        out.push_str(&format!("  {text}\n"));
    }
    out
}

pub fn json(curve: &BudgetCurve) -> Value {
    let points: Vec<Value> = curve
        .points
        .iter()
        .map(|p| {
            json!({
                "peak_bytes": p.peak_bytes,
                "flops": p.flops,
                "work": p.work,
                "regions": p.regions,
                "chosen": p.chosen,
                "as_written": p.as_written,
            })
        })
        .collect();
    json!({ "name": curve.step, "budget_bytes": curve.budget_bytes, "budget_curve": points })
}
