//! Tensors as text, the way NumPy prints them: aligned columns, the middle of large ones left out.

use super::format::{float, float32, scientific};
use crate::{exec::Tensor, ir::DType};

/// Tensors with more elements are summarised.
const SUMMARISE_ABOVE: usize = 1000;
/// How many entries stay at both ends of a summarised axis.
const EDGE: usize = 3;
/// Rows longer than this many columns are broken.
const LINE: usize = 78;
/// Digits after the point at most.
const DIGITS: usize = 8;

/// Type and elements: `f32[2, 3]` on a line of its own, then nested brackets. A scalar is its
/// number alone.
pub fn tensor(tensor: &Tensor) -> String {
    if tensor.shape().is_empty() {
        return scalar(tensor, 0);
    }
    let mut text = format!("{}\n", tensor.ty());
    if tensor.ty().elements() == 0 {
        text.push_str("[]");
        return text;
    }
    let summarise = tensor.ty().elements() > SUMMARISE_ABOVE;
    let mut indices = Vec::new();
    visible(tensor.shape(), summarise, 0, &mut indices);
    let cells = aligned(tensor, &indices);
    let mut writer = Writer { shape: tensor.shape(), summarise, cells: cells.into_iter(), text };
    writer.axis(0);
    writer.text
}

/// One element as text; an index that there is none of gives nothing.
fn scalar(tensor: &Tensor, index: usize) -> String {
    match tensor.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => {
            tensor.get_f64(index).map(|x| float32(x as f32)).unwrap_or_default()
        }
        DType::F64 => tensor.get_f64(index).map(float).unwrap_or_default(),
        DType::I32 => element::<i32>(tensor, index),
        DType::I64 => element::<i64>(tensor, index),
        DType::U8 => element::<u8>(tensor, index),
        DType::Bool => element::<bool>(tensor, index),
    }
}

fn element<T: crate::exec::Element + ToString>(tensor: &Tensor, index: usize) -> String {
    tensor.as_slice::<T>().and_then(|s| s.get(index)).map(ToString::to_string).unwrap_or_default()
}

/// The positions along an axis that are shown.
fn shown(size: usize, summarise: bool) -> impl Iterator<Item = usize> {
    let cut = summarise && size > 2 * EDGE;
    (0..if cut { EDGE } else { size }).chain(if cut { size - EDGE..size } else { 0..0 })
}

/// The flat indices of the elements that are shown, in row-major order.
fn visible(shape: &[usize], summarise: bool, base: usize, out: &mut Vec<usize>) {
    let Some((&size, inner)) = shape.split_first() else {
        out.push(base);
        return;
    };
    let stride: usize = inner.iter().product();
    for i in shown(size, summarise) {
        visible(inner, summarise, base + i * stride, out);
    }
}

/// The elements as texts of one width.
fn aligned(tensor: &Tensor, indices: &[usize]) -> Vec<String> {
    let mut cells: Vec<String> = if tensor.dtype().is_float() {
        floats(tensor, indices)
    } else {
        indices.iter().map(|&i| scalar(tensor, i)).collect()
    };
    let width = cells.iter().map(|c| c.chars().count()).max().unwrap_or(0);
    for cell in &mut cells {
        let missing = width - cell.chars().count();
        cell.insert_str(0, &" ".repeat(missing));
    }
    cells
}

/// Floats with their points in one column; in scientific form where sizes differ too much for
/// that. NumPy changes over at a ratio of 1000 already, which weights often reach.
fn floats(tensor: &Tensor, indices: &[usize]) -> Vec<String> {
    let values: Vec<f64> = indices.iter().filter_map(|&i| tensor.get_f64(i)).collect();
    let sizes = values.iter().map(|v| v.abs()).filter(|v| v.is_finite() && *v != 0.0);
    let (least, largest) = sizes.fold((f64::INFINITY, 0f64), |(l, h), v| (l.min(v), h.max(v)));
    let wide = tensor.dtype() == DType::F64;
    if largest > 0.0 && (largest >= 1e8 || least < 1e-4 || largest / least > 1e6) {
        let digits = values.iter().filter(|v| v.is_finite()).map(|&v| mantissa_digits(v, wide)).max();
        let digits = digits.unwrap_or(0).min(DIGITS);
        return values
            .into_iter()
            .map(|v| if v.is_finite() { scientific(v, digits) } else { float(v) })
            .collect();
    }
    let texts: Vec<String> = values
        .into_iter()
        .map(|v| {
            if !v.is_finite() {
                return float(v);
            }
            let shortest = if wide { format!("{v}") } else { format!("{}", v as f32) };
            let decimals = shortest.split_once('.').map_or(0, |(_, d)| d.len());
            let text = if decimals > DIGITS { format!("{v:.DIGITS$}") } else { shortest };
            match text.split_once('.') {
                Some((whole, decimals)) => format!("{whole}.{}", decimals.trim_end_matches('0')),
                None => text + ".",
            }
        })
        .collect();
    let decimals = |t: &String| t.split_once('.').map_or(0, |(_, d)| d.len());
    let most = texts.iter().map(decimals).max().unwrap_or(0);
    texts
        .into_iter()
        .map(|t| {
            let missing = if t.contains('.') { most - decimals(&t) } else { 0 };
            t + &" ".repeat(missing)
        })
        .collect()
}

/// Digits after the point of the shortest scientific form.
fn mantissa_digits(value: f64, wide: bool) -> usize {
    let text = if wide { format!("{value:e}") } else { format!("{:e}", value as f32) };
    let mantissa = text.split_once('e').map_or(text.as_str(), |(m, _)| m);
    mantissa.split_once('.').map_or(0, |(_, d)| d.len())
}

struct Writer<'a> {
    shape: &'a [usize],
    summarise: bool,
    cells: std::vec::IntoIter<String>,
    text: String,
}

impl Writer<'_> {
    /// Writes one axis at this depth, with the axes inside it.
    fn axis(&mut self, depth: usize) {
        let size = self.shape.get(depth).copied().unwrap_or(0);
        let last = depth + 1 == self.shape.len();
        let cut = (self.summarise && size > 2 * EDGE).then_some(EDGE);
        self.text.push('[');
        let mut column = depth + 1;
        let indent = " ".repeat(depth + 1);
        // Outer axes are set apart by blank lines, one for each axis inside but the rows.
        let between = "\n".repeat(self.shape.len().saturating_sub(depth + 1).max(1));
        for (k, _) in shown(size, self.summarise).enumerate() {
            if cut == Some(k) {
                if last {
                    self.item("...", k, &mut column, &indent);
                } else {
                    self.text += &format!("{between}{indent}...");
                }
            }
            if last {
                let cell = self.cells.next().unwrap_or_default();
                self.item(&cell, k, &mut column, &indent);
            } else {
                if k > 0 {
                    self.text += &between;
                    self.text += &indent;
                }
                self.axis(depth + 1);
            }
        }
        self.text.push(']');
    }

    /// Writes one entry of a row, on a new line where it does not fit.
    fn item(&mut self, cell: &str, k: usize, column: &mut usize, indent: &str) {
        let width = cell.chars().count() + 1;
        if k > 0 && *column + width > LINE {
            self.text.push('\n');
            self.text += indent;
            *column = indent.len();
        } else if k > 0 {
            self.text.push(' ');
            *column += 1;
        }
        self.text += cell;
        *column += width - 1;
    }
}
