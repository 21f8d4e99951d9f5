//! Diagnostics with their source lines, drawn by `ariadne`.
//!
//! The frame with the source lines is ariadne's. The first line, the places in file headers and
//! the notes and help below are written here: ariadne colours the first even when colours are
//! off, and computes the places from the excerpt it is given.

use std::{fmt, ops::Range};

use super::{
    Style,
    excerpt::{Excerpt, excerpt},
    fit, fix, has_place, labels, severity_name,
    style::Part,
    visible,
};
use crate::{
    diagnostic::{Diagnostic, Label, Severity},
    source::{FileId, SourceFile, SourceMap},
};
use ariadne::{CharSet, Color, Config, IndexType, Label as Drawn, Report, ReportKind, Source};

/// Longer messages, labels and notes are cut.
const TEXT_LIMIT: usize = 1000;
/// Code that stands for its place.
const CODE_LIMIT: usize = 60;
/// How often a frame is drawn at most until it fits.
const FITTINGS: usize = 24;
/// The least of a source line that is shown around its labels.
const LEAST_COLUMNS: usize = 24;
/// Further places of one fault that are drawn; the lines of others are listed.
const AGAIN_DRAWN: usize = 3;
/// Lines that are listed.
const AGAIN_LISTED: usize = 12;
/// Columns for the message.
const MESSAGE_WIDTH: usize = 78;
/// These two stand around a file number where ariadne writes a place; `visible` keeps them out of
/// source text.
const PLACE_START: char = '\u{e000}';
const PLACE_END: char = '\u{e001}';

pub fn render(diagnostic: &Diagnostic, sources: &SourceMap, style: Style) -> String {
    let part = part_of(diagnostic.severity);
    let head = format!("{}[{}]", severity_name(diagnostic.severity), diagnostic.code.0);
    let message = visible::line(&diagnostic.message, TEXT_LIMIT);
    // The first line has the head before it; others are set in under it.
    let mut lines = fit::wrap(&format!("{head}: {message}"), MESSAGE_WIDTH).into_iter();
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix(&head).and_then(|rest| rest.strip_prefix(':')).unwrap_or(&first);
    let mut out = format!("{}{}{first}\n", style.paint(part, &head), style.paint(Part::Strong, ":"));
    for line in lines {
        out.push_str(&format!("  {line}\n"));
    }
    let files = fitted(diagnostic, sources, style);
    let frame = if files.is_empty() { None } else { draw(diagnostic.severity, &files, style) };
    match frame {
        Some(frame) => finish(&mut out, &frame, diagnostic, &files, sources, style),
        None => {
            for line in footer(diagnostic, &[], sources, style, fit::WIDTH - "  = ".len()) {
                out.push_str(&format!("  {} {line}\n", style.paint(Part::Margin, "=")));
            }
        }
    }
    out
}

/// The labels of one file, from top to bottom, with what is shown of it.
struct Group<'a> {
    id: FileId,
    file: &'a SourceFile,
    labels: Vec<&'a Label>,
    /// What is drawn beside them.
    texts: Vec<String>,
    /// Which of `labels` is the primary one.
    primary: Option<usize>,
    excerpt: Excerpt,
    /// Which of `labels` are not drawn.
    left_out: Vec<usize>,
}

/// The labels as they fit into the columns there are: long source lines are cropped where their
/// texts would find no room beside them.
fn fitted<'a>(diagnostic: &'a Diagnostic, sources: &'a SourceMap, style: Style) -> Vec<Group<'a>> {
    let plain = Style { color: false, ..style };
    let mut columns = fit::WIDTH;
    let mut files = group(diagnostic, sources, style, columns);
    for _ in 0..FITTINGS {
        let Some(frame) = draw(diagnostic.severity, &files, plain) else { break };
        // A long name of a file is shown whole.
        let shown: String =
            frame.lines().filter(|l| !l.contains(PLACE_START)).flat_map(|l| [l, "\n"]).collect();
        let over = labels::excess(&shown, &texts_of(&files));
        if over == 0 || columns <= LEAST_COLUMNS {
            break;
        }
        columns = columns.saturating_sub(over.max(2)).max(LEAST_COLUMNS);
        files = group(diagnostic, sources, style, columns);
    }
    files
}

/// The texts of all labels, in the order in which they are numbered.
fn texts_of(files: &[Group<'_>]) -> Vec<String> {
    files.iter().flat_map(|g| g.texts.iter().cloned()).collect()
}

fn ellipsis(style: Style) -> &'static str {
    if style.unicode { "…" } else { "..." }
}

fn label_text(label: &Label) -> String {
    match label.text.as_str() {
        // Without a text ariadne draws no underline.
        "" => "here".to_owned(),
        text => visible::line(text, TEXT_LIMIT).into_owned(),
    }
}

fn group<'a>(
    diagnostic: &'a Diagnostic,
    sources: &'a SourceMap,
    style: Style,
    columns: usize,
) -> Vec<Group<'a>> {
    if !has_place(diagnostic, sources) {
        return Vec::new();
    }
    let mut groups: Vec<(FileId, Vec<(bool, &Label)>)> = Vec::new();
    let shown = drawn(diagnostic, sources).0;
    let all = std::iter::once((true, &diagnostic.primary)).chain(shown.into_iter().map(|l| (false, l)));
    for (is_primary, label) in all {
        let id = label.span.file;
        match groups.iter_mut().find(|g| g.0 == id) {
            Some(group) => group.1.push((is_primary, label)),
            None => groups.push((id, vec![(is_primary, label)])),
        }
    }
    groups
        .into_iter()
        .filter_map(|(id, mut labels)| {
            let file = sources.get(id)?;
            // ariadne keeps labels of one file together only if their last lines do not decrease.
            labels.sort_by_key(|(_, l)| {
                let range = file.clamp(l.span);
                let last = if range.end > range.start { range.end - 1 } else { range.start };
                let line = file.text.as_bytes().iter().take(last).filter(|&&b| b == b'\n').count();
                (line, range.start)
            });
            let spans: Vec<Range<usize>> = labels.iter().map(|(_, l)| file.clamp(l.span)).collect();
            let excerpt = excerpt(&file.text, &spans, ellipsis(style), columns);
            let primary = labels.iter().position(|(is_primary, _)| *is_primary);
            Some(Group {
                id,
                file,
                primary,
                texts: labels.iter().map(|(_, l)| label_text(l)).collect(),
                labels: labels.into_iter().map(|(_, l)| l).collect(),
                left_out: left_out(&excerpt, primary),
                excerpt,
            })
        })
        .collect()
}

/// The secondary labels that are drawn: of the places of one fault the first few, one a line. Where the
/// others are, in words.
fn drawn<'a>(diagnostic: &'a Diagnostic, sources: &SourceMap) -> (Vec<&'a Label>, Vec<String>) {
    let place = |l: &Label| (l.span.file, sources.start(l.span).line);
    let mut seen = vec![place(&diagnostic.primary)];
    let mut shown = Vec::new();
    let mut drawn = 0;
    let (mut lines, mut elsewhere) = (Vec::new(), Vec::new());
    for label in &diagnostic.secondary {
        if label.is_again() {
            let (file, line) = place(label);
            if seen.contains(&(file, line)) {
                continue;
            }
            seen.push((file, line));
            if file != diagnostic.primary.span.file {
                let name = sources.get(file).map_or("", |f| f.name.as_str());
                elsewhere.push(format!("the same in {name}, line {line}"));
                continue;
            }
            drawn += 1;
            if drawn > AGAIN_DRAWN {
                lines.push(line);
                continue;
            }
        }
        shown.push(label);
    }
    elsewhere.truncate(AGAIN_DRAWN);
    let mut notes = match lines.as_slice() {
        [] => Vec::new(),
        [line] => vec![format!("the same on line {line}")],
        [first, ..] if lines.len() > AGAIN_LISTED => {
            vec![format!("the same on {} more lines, the first of them {first}", lines.len())]
        }
        lines => {
            let texts: Vec<String> = lines.iter().map(usize::to_string).collect();
            vec![format!("the same on lines {}", texts.join(", "))]
        }
    };
    notes.append(&mut elsewhere);
    (shown, notes)
}

struct Cache(Vec<(usize, Source<String>)>);

impl ariadne::Cache<usize> for Cache {
    type Storage = String;

    fn fetch(&mut self, id: &usize) -> Result<&Source<String>, impl fmt::Debug> {
        self.0.iter().find(|(k, _)| k == id).map(|(_, source)| source).ok_or("no such file")
    }

    fn display<'a>(&self, id: &'a usize) -> Option<impl fmt::Display + 'a> {
        Some(format!("{PLACE_START}{id}{PLACE_END}"))
    }
}

/// Labels by the lines that they end on, and on a line from right to left: the arm of one goes to the
/// right, and would cross the bars of those that are drawn after it there. Those that began on a line
/// above come last.
fn drawing_order(excerpt: &Excerpt) -> Vec<usize> {
    let mut order: Vec<usize> = (0..excerpt.spans.len()).collect();
    order.sort_by_key(|&k| {
        let lines = excerpt.lines.get(k).map_or((0, false), |l| (l.end, l.start != l.end));
        let column = excerpt.spans.get(k).map_or(0, middle);
        (lines, std::cmp::Reverse(column))
    });
    order
}

/// Where the bar of a label hangs.
fn middle(span: &Range<usize>) -> usize {
    (span.start + span.end) / 2
}

/// Labels whose bars would hang in one place with that of another on their line: nobody could tell which
/// text is about what. They stand among the notes.
fn left_out(excerpt: &Excerpt, primary: Option<usize>) -> Vec<usize> {
    let place = |k: usize| {
        let lines = excerpt.lines.get(k).filter(|l| l.start == l.end)?;
        Some((lines.end, middle(excerpt.spans.get(k)?)))
    };
    let mut all: Vec<usize> = (0..excerpt.spans.len()).collect();
    all.sort_by_key(|&k| primary != Some(k));
    let mut taken = Vec::new();
    let mut out = Vec::new();
    for k in all {
        match place(k) {
            Some(place) if taken.contains(&place) => out.push(k),
            place => taken.extend(place),
        }
    }
    out
}

/// ariadne's output, without its first line.
fn draw(severity: Severity, files: &[Group<'_>], style: Style) -> Option<String> {
    // Spans are those of the excerpt, in characters: for labels in a second file ariadne takes
    // character offsets for byte offsets, which panics after text that is not ASCII.
    let config = Config::new()
        .with_index_type(IndexType::Char)
        .with_color(style.color)
        .with_char_set(if style.unicode { CharSet::Unicode } else { CharSet::Ascii });
    let start = files.first()?.excerpt.spans.first()?.clone();
    // `with_config` comes first: adding a label drops its colour by the configuration found then.
    // The kind is only for the first line, which is not used.
    let mut report = Report::build(ReportKind::Error, (0usize, start)).with_config(config).with_message("");
    let mut order = 0;
    let mut first_text = 0;
    for (number, group) in files.iter().enumerate() {
        for k in drawing_order(&group.excerpt) {
            let Some(span) = group.excerpt.spans.get(k).filter(|_| !group.left_out.contains(&k)) else {
                continue;
            };
            let is_primary = group.primary == Some(k);
            let color = match (is_primary, severity) {
                (true, Severity::Error) => Color::Red,
                (true, Severity::Warning) => Color::Yellow,
                _ => Color::Blue,
            };
            order += 1;
            report = report.with_label(
                Drawn::new((number, span.clone()))
                    .with_message(labels::mark(first_text + k))
                    .with_color(color)
                    .with_order(order)
                    .with_priority(is_primary.into()),
            );
        }
        first_text += group.texts.len();
    }
    let sources = files.iter().enumerate().map(|(i, g)| (i, Source::from(g.excerpt.text.clone()))).collect();
    let mut bytes = Vec::new();
    report.finish().write(Cache(sources), &mut bytes).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(text.split_once('\n')?.1.to_owned())
}

/// Writes the frame with the right places, and notes and help before its last line.
fn finish(
    out: &mut String,
    frame: &str,
    diagnostic: &Diagnostic,
    files: &[Group<'_>],
    sources: &SourceMap,
    style: Style,
) {
    let placed = labels::place(frame, &texts_of(files), ellipsis(style));
    let all: Vec<&Label> = files.iter().flat_map(|g| g.labels.iter().copied()).collect();
    let mut whole: Vec<String> = Vec::new();
    for label in placed.cut.iter().filter_map(|&k| all.get(k)) {
        whole.push(format!("line {}: {}", sources.start(label.span).line, label.text));
    }
    for group in files {
        for label in group.left_out.iter().filter_map(|&k| group.labels.get(k)) {
            let code = sources.text(label.span).lines().next().unwrap_or_default();
            let line = sources.start(label.span).line;
            whole.push(format!("line {line}, `{}`: {}", visible::line(code, CODE_LIMIT), label_text(label)));
        }
    }
    let mut lines: Vec<String> = placed
        .lines
        .iter()
        .map(|line| join_colors(&with_place(line, files, sources)).trim_end().to_owned())
        .collect();
    let last = lines.pop();
    // ariadne's margin is as wide as the largest line number.
    let largest = files.iter().flat_map(|g| &g.excerpt.lines).map(|l| l.end).max().unwrap_or(1);
    let width = largest.to_string().len() + 2;
    let bar = style.paint(Part::Margin, if style.unicode { "│" } else { "|" });
    let columns = fit::WIDTH.saturating_sub(width + "│ ".chars().count());
    let footer = footer(diagnostic, &whole, sources, style, columns);
    if !footer.is_empty() {
        lines.push(format!("{:width$}{bar}", ""));
    }
    lines.extend(footer.into_iter().map(|line| format!("{:width$}{bar} {line}", "")));
    lines.extend(last);
    for line in lines {
        out.push_str(&line);
        out.push('\n');
    }
}

/// ariadne colours every character by itself: drops a reset that the same colour follows at once.
fn join_colors(line: &str) -> String {
    const RESET: &str = "\x1b[0m";
    let mut out = String::with_capacity(line.len());
    let mut color = "";
    let mut rest = line;
    while let Some(at) = rest.find('\x1b') {
        let (text, from) = rest.split_at(at);
        let end = from.find('m').map_or(from.len(), |i| i + 1);
        let (mut code, mut after) = from.split_at(end);
        out.push_str(text);
        if code == RESET && !color.is_empty() && after.starts_with(color) {
            after = after.get(color.len()..).unwrap_or_default();
            code = "";
        } else {
            color = if code == RESET { "" } else { code };
        }
        out.push_str(code);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Puts the name, line and column of a file where [`Cache::display`] left its number.
fn with_place(line: &str, files: &[Group<'_>], sources: &SourceMap) -> String {
    let replaced = || {
        let (before, rest) = line.split_once(PLACE_START)?;
        let (number, rest) = rest.split_once(PLACE_END)?;
        let after = rest.trim_start_matches(|c: char| c == ':' || c == '?' || c.is_ascii_digit());
        let group = files.get(number.parse::<usize>().ok()?)?;
        let label = group.labels.get(group.primary.unwrap_or(0))?;
        let at = sources.start(crate::source::Span { file: group.id, ..label.span });
        let name = visible::line(&group.file.name, TEXT_LIMIT);
        Some(format!("{before}{name}:{}:{}{after}", at.line, at.column))
    };
    replaced().unwrap_or_else(|| line.to_owned())
}

/// Notes, help, fixes: one entry a line, without margin. First the labels that were shortened.
fn footer(
    diagnostic: &Diagnostic,
    whole: &[String],
    sources: &SourceMap,
    style: Style,
    columns: usize,
) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |kind: &str, entry: Vec<String>| {
        for (i, line) in entry.into_iter().enumerate() {
            lines.push(match i {
                0 => format!("{} {line}", style.paint(Part::Footer, &format!("{kind}:"))),
                _ => format!("{:1$} {line}", "", kind.len() + 1),
            });
        }
    };
    // The kind, a colon and a blank stand before the text.
    let width = columns.saturating_sub("note: ".len());
    let wrapped = |text: &String| -> Vec<String> {
        text.lines().flat_map(|line| fit::wrap(&visible::line(line, TEXT_LIMIT), width)).collect()
    };
    for text in whole.iter().chain(&drawn(diagnostic, sources).1).chain(&diagnostic.notes) {
        add("note", wrapped(text));
    }
    for text in &diagnostic.help {
        add("help", wrapped(text));
    }
    for one in &diagnostic.fixes {
        add("help", fix::advice(one, diagnostic.primary.span.file, sources, width));
    }
    lines
}

fn part_of(severity: Severity) -> Part {
    match severity {
        Severity::Error => Part::Error,
        Severity::Warning => Part::Warning,
        Severity::Note => Part::Note,
    }
}
