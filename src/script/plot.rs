//! Line plots in the terminal.

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Empty for a plot with one line.
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Values at x = 0, 1, 2, …
    pub fn of(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Series {
        let points = values.into_iter().enumerate().map(|(i, y)| (i as f64, y)).collect();
        Series { name: name.into(), points }
    }

    /// Points that have a place: NaN and infinities leave gaps.
    pub(super) fn finite(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
    }
}

/// How a plot looks.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub title: String,
    /// Columns of the whole plot, labels included; at least 30 are used.
    pub width: usize,
    /// Rows of the curve; at least 4 are used.
    pub height: usize,
    /// Letters instead of braille dots, for terminals without Unicode.
    pub ascii: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { title: String::new(), width: 80, height: 16, ascii: false }
    }
}

/// The smallest rectangle around all points; `None` where there are none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    pub x: (f64, f64),
    pub y: (f64, f64),
}

impl Bounds {
    pub fn of(series: &[Series]) -> Option<Bounds> {
        let mut points = series.iter().flat_map(Series::finite);
        let (x, y) = points.next()?;
        let mut bounds = Bounds { x: (x, x), y: (y, y) };
        for (x, y) in points {
            bounds.x = (bounds.x.0.min(x), bounds.x.1.max(x));
            bounds.y = (bounds.y.0.min(y), bounds.y.1.max(y));
        }
        Some(bounds)
    }

    /// Where a value lies between the ends, 0 to 1; in the middle where they are one point. Halves
    /// keep the difference of two huge numbers finite.
    pub fn place(range: (f64, f64), value: f64) -> f64 {
        let width = range.1 / 2.0 - range.0 / 2.0;
        if width > 0.0 { ((value / 2.0 - range.0 / 2.0) / width).clamp(0.0, 1.0) } else { 0.5 }
    }
}

/// Letters that mark the lines of a plot in plain ASCII.
const MARKS: [char; 6] = ['*', 'o', '+', 'x', '#', '@'];

/// Draws a plot as lines of text, without a line end after the last.
pub fn draw(series: &[Series], config: &Config) -> String {
    let mut lines = Vec::new();
    if !config.title.is_empty() {
        lines.push(config.title.clone());
    }
    let Some(bounds) = Bounds::of(series) else {
        lines.push("(no points)".into());
        return lines.join("\n");
    };
    let height = config.height.clamp(4, 200);
    let labels = [bounds.y.1, bounds.y.0 / 2.0 + bounds.y.1 / 2.0, bounds.y.0].map(label);
    let margin = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
    let width = config.width.clamp(30, 1000).saturating_sub(margin + 2).max(10);
    let rows = if config.ascii {
        ascii(series, &bounds, width, height)
    } else {
        braille(series, &bounds, width, height)
    };
    let [top, middle, bottom] = labels;
    let (axis, corner, line) = if config.ascii { ('|', '+', '-') } else { ('┤', '└', '─') };
    for (i, row) in rows.iter().enumerate() {
        let label = match i {
            0 => top.as_str(),
            i if i == height / 2 => &middle,
            i if i + 1 == height => &bottom,
            _ => "",
        };
        lines.push(format!("{label:>margin$} {axis}{}", row.trim_end()));
    }
    lines.push(format!("{:margin$} {corner}{}", "", line.to_string().repeat(width)));
    let (low, high) = (label(bounds.x.0), label(bounds.x.1));
    let gap = (width + 1).saturating_sub(low.chars().count() + high.chars().count()).max(1);
    lines.push(format!("{:margin$} {low}{}{high}", "", " ".repeat(gap)));
    if series.len() > 1 || series.iter().any(|s| !s.name.is_empty()) {
        let names: Vec<String> = series
            .iter()
            .zip(MARKS.iter().cycle())
            .map(|(s, mark)| if config.ascii { format!("{mark} {}", s.name) } else { s.name.clone() })
            .collect();
        lines.push(format!("{:margin$} {}", "", names.join("   ")));
    }
    lines.join("\n")
}

/// A number of at most five digits for an axis.
pub(super) fn label(value: f64) -> String {
    super::format::Format::parse(".4g").and_then(|f| f.float(value)).unwrap_or_default()
}

/// Calls `dot` for every dot of a grid that the line through the points covers.
fn trace(
    points: impl Iterator<Item = (f64, f64)>,
    bounds: &Bounds,
    columns: usize,
    rows: usize,
    mut dot: impl FnMut(usize, usize),
) {
    let last = |n: usize| n.saturating_sub(1) as f64;
    let mut before: Option<(f64, f64)> = None;
    for (x, y) in points {
        let column = Bounds::place(bounds.x, x) * last(columns);
        let row = (1.0 - Bounds::place(bounds.y, y)) * last(rows);
        let (from_column, from_row) = before.unwrap_or((column, row));
        let steps = (column - from_column).abs().max((row - from_row).abs()).ceil().max(1.0);
        for step in 0..=steps as usize {
            let t = step as f64 / steps;
            let column = from_column + (column - from_column) * t;
            let row = from_row + (row - from_row) * t;
            dot(column.round() as usize, row.round() as usize);
        }
        before = Some((column, row));
    }
}

fn ascii(series: &[Series], bounds: &Bounds, width: usize, height: usize) -> Vec<String> {
    let mut grid = vec![vec![' '; width]; height];
    for (series, &mark) in series.iter().zip(MARKS.iter().cycle()) {
        trace(series.finite(), bounds, width, height, |column, row| {
            if let Some(cell) = grid.get_mut(row).and_then(|r| r.get_mut(column)) {
                *cell = mark;
            }
        });
    }
    grid.into_iter().map(String::from_iter).collect()
}

/// Each character is a grid of 2 × 4 dots (Unicode U+2800 and following).
fn braille(series: &[Series], bounds: &Bounds, width: usize, height: usize) -> Vec<String> {
    const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let mut grid = vec![vec![0u8; width]; height];
    for series in series {
        trace(series.finite(), bounds, width * 2, height * 4, |column, row| {
            let bit = DOTS.get(row % 4).and_then(|r| r.get(column % 2)).copied().unwrap_or(0);
            if let Some(cell) = grid.get_mut(row / 4).and_then(|r| r.get_mut(column / 2)) {
                *cell |= bit;
            }
        });
    }
    let character = |bits: u8| match bits {
        0 => ' ',
        bits => char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' '),
    };
    grid.into_iter().map(|row| row.into_iter().map(character).collect()).collect()
}
