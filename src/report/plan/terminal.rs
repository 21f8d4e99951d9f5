//! A plan for the terminal: figures, the memory curve, and the table of what is alive at the peak.

use rustc_hash::FxHashMap;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{LiveBuffer, Place, PlanReport};
use crate::{
    report::{Bytes, Style, bytes::Unit, style::Part, visible},
    source::{FileId, SourceMap},
};

/// Width of the report in columns.
const WIDTH: usize = 80;
/// Height of the memory curve in rows.
const HEIGHT: usize = 8;
/// Columns that one op takes at most.
const WIDEST: usize = 6;
/// Rows of the table for each kind, of buffers that are alike; what is smaller is summed up.
const ROWS_PER_KIND: usize = 8;
const NAME_LIMIT: usize = 40;

/// `main` is the file that was planned: places in it are written without its name.
pub fn render(plan: &PlanReport, main: Option<FileId>, sources: &SourceMap, style: Style) -> String {
    let mut out = String::new();
    header(plan, main, sources, style, &mut out);
    if !plan.curve.is_empty() {
        out.push('\n');
        curve(plan, main, sources, style, &mut out);
    }
    if !plan.live_at_peak.is_empty() {
        out.push('\n');
        table(plan, main, sources, style, &mut out);
    }
    out
}

fn header(plan: &PlanReport, main: Option<FileId>, sources: &SourceMap, style: Style, out: &mut String) {
    let name = format!("step {}", visible::line(&plan.name, NAME_LIMIT));
    out.push_str(&format!(
        "{}: peak {}, lower bound {} (gap {})\n",
        style.paint(Part::Strong, &name),
        style.paint(Part::Peak, &Bytes(plan.peak_bytes).to_string()),
        Bytes(plan.lower_bound_bytes),
        gap(plan.peak_bytes, plan.lower_bound_bytes),
    ));
    if let Some(worst) = plan.worst {
        let text = match worst.is_exact() {
            true => format!("{} (exact)", Bytes(worst.bytes)),
            false => format!("between {} and {}", Bytes(worst.witness_bytes), Bytes(worst.bytes)),
        };
        out.push_str(&format!("  worst legal order {text}\n"));
    }
    out.push_str(&format!(
        "  persistent {}, arena {} (live {})\n  {}, {}, order `{}`\n",
        Bytes(plan.persistent_bytes),
        Bytes(plan.arena_bytes),
        Bytes(plan.live_peak_bytes),
        count(plan.nodes, "node"),
        count(plan.ops, "op"),
        plan.order,
    ));
    if let Some(device) = &plan.device {
        match device.workspace_bytes {
            0 => out.push_str("  workspace none\n"),
            bytes => {
                let place = device.workspace_place.map(|p| format!(", {}", place_text(p, main, sources)));
                out.push_str(&format!(
                    "  workspace {} at most ({}{}), {} of it at the peak\n",
                    Bytes(bytes),
                    device.workspace_op,
                    place.unwrap_or_default(),
                    Bytes(device.workspace_at_peak_bytes),
                ));
            }
        }
        out.push_str(&format!(
            "  second input slot {}, beside the peak: {} in all\n",
            Bytes(device.beside_bytes),
            Bytes(plan.peak_bytes.saturating_add(device.beside_bytes)),
        ));
    }
    if let Some(ranks) = &plan.ranks {
        out.push_str(&format!(
            "  each of {} ranks sends {}, {} of it beside other work\n",
            ranks.world,
            Bytes(ranks.all.bytes),
            Bytes(ranks.overlapped.bytes),
        ));
        for (name, sent) in &ranks.by_kind {
            out.push_str(&format!("    {} in {}\n", Bytes(sent.bytes), count(sent.count, name)));
        }
        if ranks.padding_bytes > 0 {
            out.push_str(&format!("  {} of what a rank keeps is padding\n", Bytes(ranks.padding_bytes)));
        }
    }
    if !plan.curve.is_empty() {
        let place = plan.peak_at.place.map(|p| format!(", {}", place_text(p, main, sources)));
        out.push_str(&format!(
            "  the peak is reached at op {} of {}: {}{}\n",
            plan.peak_at.position + 1,
            plan.curve.len(),
            plan.peak_at.op,
            place.unwrap_or_default(),
        ));
    }
}

/// `1 op`, `2 ops`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// How far the peak is above the bound, in per cent of the bound.
fn gap(peak: u64, bound: u64) -> String {
    match bound {
        _ if peak <= bound => "0.00 %".to_owned(),
        0 => "no bound".to_owned(),
        _ => format!("{:.2} %", (peak - bound) as f64 / bound as f64 * 100.0),
    }
}

pub(crate) fn place_text(place: Place, main: Option<FileId>, sources: &SourceMap) -> String {
    match sources.get(place.file) {
        Some(file) if main != Some(place.file) => {
            format!("{}:{}", visible::line(&file.name, NAME_LIMIT), place.at.line)
        }
        _ => format!("line {}", place.at.line),
    }
}

/// The resident bytes over the order. Each column is the largest of the ops it stands for, so the
/// peak is never averaged away.
fn curve(plan: &PlanReport, main: Option<FileId>, sources: &SourceMap, style: Style, out: &mut String) {
    let top = plan.curve.iter().copied().max().unwrap_or(0).max(1);
    let unit = Unit::of(top);
    let label = unit.write(top).len();
    let columns = WIDTH - label - 4;
    let values = columns_of(&plan.curve, columns);
    let blocks: &[char] = if style.unicode {
        &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
    } else {
        &[' ', '.', ':', '#']
    };
    let steps = blocks.len() - 1;
    let peak_column = column_of(plan.peak_at.position, plan.curve.len(), values.len());
    let axis = style.paint(Part::Margin, if style.unicode { "┤" } else { "|" });
    for row in (0..HEIGHT).rev() {
        // Labels at the top, the middle and the bottom.
        let text = match row {
            r if r == HEIGHT - 1 => unit.write(top),
            r if r == HEIGHT / 2 - 1 => unit.write(top / 2),
            0 => unit.write(0),
            _ => String::new(),
        };
        out.push_str(&format!("  {} {axis}", style.paint(Part::Margin, &format!("{text:>label$}"))));
        let line: String = values
            .iter()
            .map(|&value| {
                let filled = (value as f64 / top as f64 * (HEIGHT * steps) as f64).round() as usize;
                // A value above zero shows as at least one step.
                let filled = if value > 0 { filled.max(1) } else { 0 };
                let here = filled.saturating_sub(row * steps).min(steps);
                blocks.get(here).copied().unwrap_or(' ')
            })
            .collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let arrow = if style.unicode { "▲" } else { "^" };
    let mut text = match plan.peak_bytes.saturating_sub(top) {
        0 => format!("peak {}", Bytes(plan.peak_bytes)),
        gaps => format!("{} alive, {} fragmented", Bytes(top), Bytes(gaps)),
    };
    if let Some(place) = plan.peak_at.place {
        text = format!("{text}, {}", place_text(place, main, sources));
    }
    let indent = label + 4;
    // The text stands on the side where there is room.
    let marker = if peak_column + text.width() + 2 <= columns {
        format!("{:1$}{arrow} {text}", "", indent + peak_column)
    } else {
        format!("{:1$}{text} {arrow}", "", (indent + peak_column).saturating_sub(text.width() + 1))
    };
    out.push_str(&style.paint(Part::Peak, &marker));
    out.push('\n');
    out.push_str(&format!(
        "  {:label$}  {} over {}, in the order they run\n",
        "",
        unit.name(),
        count(plan.curve.len(), "op")
    ));
}

/// At most `columns` values, each the largest of its share. A short curve is drawn wider.
fn columns_of(curve: &[u64], columns: usize) -> Vec<u64> {
    if curve.len() <= columns {
        let repeat = (columns / curve.len().max(1)).clamp(1, WIDEST);
        return curve.iter().flat_map(|&bytes| std::iter::repeat_n(bytes, repeat)).collect();
    }
    let mut values = vec![0; columns];
    for (position, &bytes) in curve.iter().enumerate() {
        if let Some(value) = values.get_mut(column_of(position, curve.len(), columns)) {
            *value = bytes.max(*value);
        }
    }
    values
}

/// The column of a position; the first one where it has several.
fn column_of(position: usize, positions: usize, columns: usize) -> usize {
    let column = position as u128 * columns as u128 / positions.max(1) as u128;
    (column as usize).min(columns.saturating_sub(1))
}

/// What is alive at the peak: kinds by their share, the largest buffers of each.
fn table(plan: &PlanReport, main: Option<FileId>, sources: &SourceMap, style: Style, out: &mut String) {
    let unit = Unit::of(plan.peak_bytes);
    let mut kinds = plan.by_kind.clone();
    kinds.retain(|(_, bytes)| *bytes > 0);
    kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let rows: Vec<(&str, u64, Vec<Row>)> = kinds
        .into_iter()
        .map(|(kind, bytes)| {
            let of_kind = plan.live_at_peak.iter().filter(|b| b.kind.name() == kind);
            (kind, bytes, rows_of(of_kind, unit, main, sources))
        })
        .collect();
    let size = unit.write(plan.peak_bytes).len();
    out.push_str(&format!("  alive at the peak, in {}\n", unit.name()));
    for (kind, bytes, rows) in &rows {
        let share = *bytes as f64 / plan.peak_bytes.max(1) as f64 * 100.0;
        let (bytes, kind) = (unit.write(*bytes), style.paint(Part::Strong, kind));
        out.push_str(&format!("  {bytes:>size$}  {kind}, {share:.1} %\n"));
        let width = |f: fn(&Row) -> &str| rows.iter().map(|r| f(r).width()).max().unwrap_or(0);
        let (name, ty, line) = (width(|r| &r.name), width(|r| &r.ty), width(|r| &r.line));
        for row in rows {
            let mut text = format!(
                "  {:>size$}    {}  {}  {}",
                row.bytes,
                pad_to(&row.name, name),
                pad_to(&row.ty, ty),
                pad_to(&row.line, line),
            );
            let is_wide = text.width() + 2 + row.kept_by.width() > WIDTH;
            if !row.kept_by.is_empty() {
                if is_wide {
                    text.truncate(text.trim_end().len());
                    text.push_str(&format!("\n  {:size$}      ", ""));
                } else {
                    text.push_str("  ");
                }
                text.push_str(&row.kept_by);
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
}

struct Row {
    name: String,
    ty: String,
    bytes: String,
    line: String,
    kept_by: String,
}

/// Buffers that differ only in the number of their block, as one row.
struct Alike<'a> {
    first: &'a LiveBuffer,
    general_name: String,
    count: usize,
    bytes: u64,
}

impl<'a> Alike<'a> {
    fn group(buffers: impl Iterator<Item = &'a LiveBuffer>) -> Vec<Alike<'a>> {
        let mut groups: Vec<Alike<'a>> = Vec::new();
        let mut index = FxHashMap::default();
        for buffer in buffers {
            let general_name = generalize(&buffer.name);
            let key = (
                general_name.clone(),
                buffer.ty.clone(),
                buffer.place.map(|p| (p.file, p.at.line)),
                generalize(&buffer.kept_by),
                buffer.kept_by_place.map(|p| (p.file, p.at.line)),
            );
            let at = *index.entry(key).or_insert(groups.len());
            match groups.get_mut(at) {
                Some(group) => {
                    group.count += 1;
                    group.bytes = group.bytes.saturating_add(buffer.bytes);
                }
                None => groups.push(Alike { first: buffer, general_name, count: 1, bytes: buffer.bytes }),
            }
        }
        groups.sort_by_key(|g| std::cmp::Reverse(g.bytes));
        groups
    }

    fn name(&self) -> String {
        match self.count {
            1 => visible::line(&self.first.name, NAME_LIMIT).into_owned(),
            n => format!("{n} x {}", visible::line(&self.general_name, NAME_LIMIT)),
        }
    }
}

/// `blocks.12.w` as `blocks.*.w`.
pub(crate) fn generalize(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

fn rows_of<'a>(
    buffers: impl Iterator<Item = &'a LiveBuffer>,
    unit: Unit,
    main: Option<FileId>,
    sources: &SourceMap,
) -> Vec<Row> {
    let groups = Alike::group(buffers);
    let place = |place: Option<Place>| place.map_or(String::new(), |p| place_text(p, main, sources));
    let mut rows: Vec<Row> = groups
        .iter()
        .take(ROWS_PER_KIND)
        .map(|group| Row {
            name: group.name(),
            ty: group.first.ty.as_ref().map_or(String::new(), |t| t.to_string()),
            bytes: unit.write(group.bytes),
            line: place(group.first.place),
            kept_by: match (group.first.kept_by.as_str(), group.first.kept_by_place) {
                ("state", _) => String::new(),
                ("output", None) => "kept as an output".to_owned(),
                ("output", Some(at)) => format!("kept as an output, {}", place_text(at, main, sources)),
                ("nothing", _) => "not read".to_owned(),
                (op, None) => format!("kept for {op}"),
                (op, Some(at)) => format!("kept for {op}, {}", place_text(at, main, sources)),
            },
        })
        .collect();
    let rest = groups.get(ROWS_PER_KIND..).unwrap_or_default();
    if !rest.is_empty() {
        rows.push(Row {
            name: format!("and {} more", rest.iter().map(|g| g.count).sum::<usize>()),
            ty: String::new(),
            bytes: unit.write(rest.iter().map(|g| g.bytes).sum()),
            line: String::new(),
            kept_by: String::new(),
        });
    }
    rows
}

/// `format!` pads by characters; terminals show columns.
fn pad_to(text: &str, width: usize) -> String {
    let columns: usize = text.chars().map(|c| c.width().unwrap_or(0)).sum();
    format!("{text}{:1$}", "", width.saturating_sub(columns))
}
