//! The two forms of a report on a line.

use serde_json::{Value, json};

use super::{BufferLife, Kept, LineReport};
use crate::{
    report::{
        Bytes, Style,
        plan::{Place, generalize},
        style::Part,
        visible,
    },
    source::{FileId, SourceMap},
};

const NAME_LIMIT: usize = 40;
/// Groups of buffers that are alike; smaller ones are summed up.
const GROUPS: usize = 12;
const LINES: usize = 12;
/// Operands of which is said why they were not written over.
const REASONS: usize = 3;
const WIDTH: usize = 80;

/// The report for a terminal.
pub fn render(
    reports: &[LineReport],
    file: FileId,
    line: usize,
    sources: &SourceMap,
    style: Style,
) -> String {
    let mut out = String::new();
    let name = sources.get(file).map_or("", |f| f.name.as_str());
    let code = sources.get(file).map_or("", |f| f.line(line)).trim();
    let head = format!("{}:{line}", visible::line(name, NAME_LIMIT));
    let room = WIDTH.saturating_sub(head.chars().count() + 7);
    out.push_str(&format!("{}  {}\n", style.paint(Part::Strong, &head), visible::line(code, room)));
    for report in reports {
        out.push('\n');
        step(report, line, sources, style, &mut out);
    }
    out
}

fn step(report: &LineReport, line: usize, sources: &SourceMap, style: Style, out: &mut String) {
    let name = format!("step {}", visible::line(&report.step, NAME_LIMIT));
    if report.buffers.is_empty() {
        out.push_str(&format!("{}: line {line} makes no buffer\n", style.paint(Part::Strong, &name)));
        if report.without.is_empty() {
            out.push_str("  no operation of the step comes from it\n");
        }
        for without in &report.without {
            let count = if without.count > 1 { format!("{} x ", without.count) } else { String::new() };
            wrapped(&format!("{count}`{}`: {}", without.op, without.why), 2, out);
        }
        let near = nearest(&report.lines, line);
        if !near.is_empty() {
            wrapped(&format!("lines that make buffers: {near}"), 2, out);
        }
        return;
    }
    let total: u64 = report.buffers.iter().map(|b| b.bytes).fold(0, u64::saturating_add);
    let count = report.buffers.len();
    out.push_str(&format!(
        "{}: {count} buffer{}, {} if all were alive at once\n",
        style.paint(Part::Strong, &name),
        if count == 1 { "" } else { "s" },
        Bytes(total)
    ));
    let groups = Group::of(&report.buffers);
    for group in groups.iter().take(GROUPS) {
        out.push('\n');
        group.write(report.instructions, sources, style, out);
    }
    let rest = groups.get(GROUPS..).unwrap_or_default();
    if !rest.is_empty() {
        let count: usize = rest.iter().map(|g| g.all.len()).sum();
        let bytes: u64 = rest.iter().map(|g| g.bytes()).fold(0, u64::saturating_add);
        out.push_str(&format!("\n  and {count} more, {} (`--json` lists all)\n", Bytes(bytes)));
    }
}

/// The lines closest to one, ascending.
fn nearest(lines: &[usize], line: usize) -> String {
    let mut near = lines.to_vec();
    near.sort_by_key(|l| l.abs_diff(line));
    near.truncate(LINES);
    near.sort_unstable();
    let text: Vec<String> = near.iter().map(usize::to_string).collect();
    text.join(", ")
}

/// Text in lines of at most [`WIDTH`] columns, indented.
fn wrapped(text: &str, indent: usize, out: &mut String) {
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column == 0 {
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if column + 1 + width > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent + 2));
            column = indent + 2;
        } else {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
}

/// Buffers that differ only in the numbers of their blocks.
struct Group<'a> {
    first: &'a BufferLife,
    all: Vec<&'a BufferLife>,
}

impl<'a> Group<'a> {
    fn of(buffers: &'a [BufferLife]) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for buffer in buffers {
            match groups.iter_mut().find(|g| is_alike(g.first, buffer)) {
                Some(group) => group.all.push(buffer),
                None => groups.push(Group { first: buffer, all: vec![buffer] }),
            }
        }
        groups.sort_by_key(|g| std::cmp::Reverse(g.bytes()));
        groups
    }

    fn bytes(&self) -> u64 {
        self.all.iter().map(|b| b.bytes).fold(0, u64::saturating_add)
    }

    fn write(&self, instructions: usize, sources: &SourceMap, style: Style, out: &mut String) {
        let first = self.first;
        let many = self.all.len() > 1;
        let name = match many {
            true => format!("{} x {}", self.all.len(), visible::line(&generalize(&first.name), NAME_LIMIT)),
            false => visible::line(&first.name, NAME_LIMIT).into_owned(),
        };
        let ty = first.ty.as_ref().map_or(String::new(), |t| format!("{t}, "));
        out.push_str(&format!(
            "  {}  {ty}{}{}, {}\n",
            style.paint(Part::Strong, &name),
            Bytes(first.bytes),
            if many { " each" } else { "" },
            first.kind.name(),
        ));
        let mut row = |label: &str, text: String| {
            let mut lines = String::new();
            wrapped(&text, 16, &mut lines);
            let text = lines.get(16..).unwrap_or_default();
            out.push_str(&format!("    {label:<12}{text}"));
        };
        let passes = ranges(self.all.iter().map(|b| b.iterations.as_str()));
        if !passes.is_empty() {
            row("in", passes);
        }
        let numbers = |of: &dyn Fn(&BufferLife) -> Option<usize>| {
            let all: Vec<usize> = self.all.iter().filter_map(|b| of(b)).map(|i| i + 1).collect();
            let (low, high) = (all.iter().min().copied()?, all.iter().max().copied()?);
            Some(if low == high { low.to_string() } else { format!("{low} to {high}") })
        };
        match numbers(&|b| b.born) {
            Some(at) => row(
                "born",
                format!(
                    "at {at} of {instructions} instructions, by `{}` ({})",
                    first.made_by,
                    first.pass.name()
                ),
            ),
            None => row("born", first.made_by.clone()),
        }
        match (&first.last_use, numbers(&|b| b.last_use.as_ref().map(|u| u.instruction))) {
            (Some(used), Some(at)) => {
                let line = used.place.map_or(String::new(), |p| format!(", {}", line_of(p, sources)));
                row("last used", format!("at {at}, by `{}`{line} ({})", used.op, used.pass.name()));
            }
            _ => row("last used", "never".to_owned()),
        }
        match numbers(&|b| b.freed) {
            Some(at) => row("freed", format!("at {at}")),
            None => row("freed", "not before the step ends".to_owned()),
        }
        let offsets: Vec<u64> = self.all.iter().filter_map(|b| b.offset).collect();
        match (offsets.iter().min(), offsets.iter().max()) {
            (Some(low), Some(high)) if low == high => row("offset", Bytes(*low).to_string()),
            (Some(low), Some(high)) => row("offset", format!("{} to {}", Bytes(*low), Bytes(*high))),
            _ => row("offset", "none: it lies outside of the arena".to_owned()),
        }
        row("kept by", kept(first, sources));
        for reason in first.beside.iter().take(REASONS) {
            row("beside", visible::line(reason, 200).into_owned());
        }
    }
}

fn is_alike(a: &BufferLife, b: &BufferLife) -> bool {
    let used = |b: &BufferLife| {
        b.last_use.as_ref().map(|u| (u.op.clone(), u.pass, u.place.map(|p| (p.file, p.at.line))))
    };
    a.kind == b.kind
        && a.bytes == b.bytes
        && a.ty == b.ty
        && a.made_by == b.made_by
        && a.pass == b.pass
        && std::mem::discriminant(&a.kept) == std::mem::discriminant(&b.kept)
        && used(a) == used(b)
        && generalize(&a.name) == generalize(&b.name)
}

/// `b 1`, `b 2`, `b 3` as `b 1..3`, in the order in which they come.
fn ranges<'a>(passes: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<(String, u64, u64)> = Vec::new();
    let mut plain: Vec<&str> = Vec::new();
    let mut numbered: Vec<(&str, u64)> = Vec::new();
    for pass in passes.filter(|p| !p.is_empty()) {
        match pass.rsplit_once(' ').and_then(|(label, n)| Some((label, n.parse::<u64>().ok()?))) {
            Some(pair) => numbered.push(pair),
            None if !plain.contains(&pass) => plain.push(pass),
            None => {}
        }
    }
    numbered.sort_unstable();
    numbered.dedup();
    for (label, n) in numbered {
        match all.last_mut() {
            Some((known, _, high)) if known == label && *high + 1 == n => *high = n,
            _ => all.push((label.to_owned(), n, n)),
        }
    }
    let count = all.len();
    let mut texts: Vec<String> = plain.into_iter().map(str::to_owned).collect();
    texts.extend(all.into_iter().take(8).map(|(label, low, high)| match low == high {
        true => format!("{label} {low}"),
        false => format!("{label} {low}..{high}"),
    }));
    if count > 8 {
        texts.push(format!("and {} more", count - 8));
    }
    texts.join("; ")
}

fn kept(buffer: &BufferLife, sources: &SourceMap) -> String {
    match (&buffer.kept, &buffer.last_use) {
        (Kept::Persistent, _) => "the program: a parameter or state outlives the step".to_owned(),
        (Kept::Output(Some(place)), _) => {
            format!("the caller: it is returned, {}", line_of(*place, sources))
        }
        (Kept::Output(None), _) => "the caller: it is returned".to_owned(),
        (Kept::TakenBy(name), _) => {
            format!(
                "its last use, which writes `{}` in its place",
                visible::line(&generalize(name), NAME_LIMIT)
            )
        }
        (Kept::LastUse, Some(used)) => {
            let line = used.place.map_or(String::new(), |p| format!(", {}", line_of(p, sources)));
            format!("its last use: `{}`{line}", used.op)
        }
        _ => "nothing: it is not read".to_owned(),
    }
}

fn line_of(place: Place, sources: &SourceMap) -> String {
    super::super::place_text(place, Some(FileId(0)), sources)
}

/// The report as JSON: instructions and offsets count from 0.
pub fn json(reports: &[LineReport], file: FileId, line: usize, sources: &SourceMap) -> Value {
    let source = sources.get(file);
    json!({
        "file": source.map(|f| f.name.as_str()),
        "line": line,
        "text": source.map(|f| f.line(line)),
        "steps": reports.iter().map(|r| json!({
            "name": r.step,
            "instructions": r.instructions,
            "buffers": r.buffers.iter().map(|b| buffer(b, sources)).collect::<Vec<_>>(),
            "without_buffer": r.without.iter().map(|w| json!({
                "op": w.op, "why": w.why, "count": w.count,
            })).collect::<Vec<_>>(),
            "lines_with_buffers": r.lines,
        })).collect::<Vec<_>>(),
    })
}

fn buffer(life: &BufferLife, sources: &SourceMap) -> Value {
    json!({
        "id": life.id.0,
        "name": life.name,
        "bytes": life.bytes,
        "dtype": life.ty.as_ref().map(|t| t.dtype().name()),
        "shape": life.ty.as_ref().map(|t| t.shape().to_vec()),
        "kind": life.kind.name(),
        "in": life.iterations,
        "made_by": life.made_by,
        "pass": life.pass.name(),
        "born": life.born,
        "last_used": life.last_use.as_ref().map(|u| json!({
            "instruction": u.instruction,
            "op": u.op,
            "pass": u.pass.name(),
            "line": u.place.map(|p| p.at.line),
        })),
        "freed": life.freed,
        "offset": life.offset,
        "kept_by": kept(life, sources),
        "not_in_place": life.beside,
    })
}
