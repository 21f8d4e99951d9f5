//! Line plots as SVG files: `plot(…, to: "loss.svg")`.

use std::{fmt::Write as _, path::Path};

use super::{
    Error,
    plot::{Bounds, Series, label},
    write_atomically,
};

/// Size of the picture and of its margins, in pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;

/// Colours that stay apart for most eyes (Okabe and Ito, 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Writes a plot to a file, whole or not at all.
pub fn write(path: &Path, series: &[Series], title: &str) -> Result<(), Error> {
    let text = draw(series, title);
    write_atomically(path, |file| file.write_all(text.as_bytes()))
}

/// A plot as the text of an SVG file.
pub fn draw(series: &[Series], title: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, WIDTH / 2.0, TOP - 18.0, "middle", title);
    match Bounds::of(series) {
        Some(bounds) => {
            axes(&mut svg, &bounds);
            for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
                curve(&mut svg, series, &bounds, colour);
            }
            legend(&mut svg, series);
        }
        None => text(&mut svg, WIDTH / 2.0, HEIGHT / 2.0, "middle", "no points"),
    }
    svg.push_str("</svg>\n");
    svg
}

fn at(bounds: &Bounds, (x, y): (f64, f64)) -> (f64, f64) {
    let across = Bounds::place(bounds.x, x) * (WIDTH - LEFT - RIGHT);
    let down = (1.0 - Bounds::place(bounds.y, y)) * (HEIGHT - TOP - BOTTOM);
    (LEFT + across, TOP + down)
}

fn axes(svg: &mut String, bounds: &Bounds) {
    const TICKS: u32 = 4;
    let between = |(low, high): (f64, f64), k: u32| {
        let t = f64::from(k) / f64::from(TICKS);
        low * (1.0 - t) + high * t
    };
    for k in 0..=TICKS {
        let (x, y) = (between(bounds.x, k), between(bounds.y, k));
        let (across, down) = at(bounds, (x, y));
        line(svg, (LEFT, down), (WIDTH - RIGHT, down), "#e5e5e5");
        text(svg, LEFT - 8.0, down + 4.0, "end", &label(y));
        line(svg, (across, HEIGHT - BOTTOM), (across, HEIGHT - BOTTOM + 5.0), "#444");
        text(svg, across, HEIGHT - BOTTOM + 20.0, "middle", &label(x));
    }
    line(svg, (LEFT, TOP), (LEFT, HEIGHT - BOTTOM), "#444");
    line(svg, (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "#444");
}

fn curve(svg: &mut String, series: &Series, bounds: &Bounds, colour: &str) {
    // Points without a place cut the line.
    for part in series.points.split(|(x, y)| !x.is_finite() || !y.is_finite()) {
        match part {
            [] => {}
            [only] => {
                let (x, y) = at(bounds, *only);
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
            }
            part => {
                svg.push_str("<polyline fill=\"none\" stroke-width=\"1.6\" stroke-linejoin=\"round\" ");
                let _ = write!(svg, "stroke=\"{colour}\" points=\"");
                for (i, &point) in part.iter().enumerate() {
                    let (x, y) = at(bounds, point);
                    let _ = write!(svg, "{}{x:.1},{y:.1}", if i > 0 { " " } else { "" });
                }
                svg.push_str("\"/>\n");
            }
        }
    }
}

fn legend(svg: &mut String, series: &[Series]) {
    let mut y = TOP + 12.0;
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        if series.name.is_empty() {
            continue;
        }
        let x = WIDTH - RIGHT - 12.0;
        text(svg, x - 24.0, y + 4.0, "end", &series.name);
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            x - 18.0
        );
        y += 18.0;
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    if content.is_empty() {
        return;
    }
    let _ =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(content));
}

/// Text as XML holds it; characters that XML forbids become `?`.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() && !matches!(c, '\t' | '\n' | '\r') => escaped.push('?'),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}
