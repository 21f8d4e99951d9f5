//! Fixes in words: what to do, the lines as they are then, and what becomes of both figures.

use std::cmp::Ordering;

use super::{
    Bytes, Style,
    change::{Change, changes},
    code, diff, fit, visible,
};
use crate::{
    diagnostic::{Fix, Results, Savings},
    source::{FileId, SourceMap},
};

/// Longer titles and lines are cut.
const TEXT_LIMIT: usize = 1000;
/// Lines of code that are shown of one fix; `tg fix --dry-run` shows the rest.
const LINES: usize = 40;
/// How far code is set in under the sentence that it belongs to.
const INDENT: &str = "    ";

/// A fix that is offered, in lines of `width` columns. Code stands under the sentence, as it can be pasted.
/// `home` is the file that the message is about.
pub fn advice(fix: &Fix, home: FileId, sources: &SourceMap, width: usize) -> Vec<String> {
    let Some(savings) = fix.savings else { return fit::wrap(&short(fix, home, sources), width) };
    let all = changes(&fix.edits, sources).unwrap_or_default();
    let title = visible::line(&fix.title, TEXT_LIMIT);
    let mut lines = match all.as_slice() {
        [] => fit::wrap(&title, width),
        [one] => {
            let end = if one.after.is_empty() { "" } else { ":" };
            fit::wrap(&format!("{title} ({}){end}", place(one, home, sources)), width)
        }
        _ => fit::wrap(&format!("{title}:"), width),
    };
    let mut left = LINES;
    for change in &all {
        if all.len() > 1 {
            let goes = if change.before.len() > 1 { "go" } else { "goes" };
            let end = if change.after.is_empty() { format!(" {goes}") } else { ":".to_owned() };
            lines.push(format!("{}{end}", place(change, home, sources)));
        }
        let block = block(&change.after, width);
        let hidden = block.len().saturating_sub(left);
        lines.extend(block.into_iter().take(left));
        if hidden > 0 {
            lines.push(format!("{INDENT}# and {hidden} more lines"));
        }
        left = left.saturating_sub(change.after.len());
    }
    lines.extend(figures(&savings));
    lines.extend(remarks(fix, &savings));
    lines
}

/// A change of a word or two, as it is written beside its title.
fn short(fix: &Fix, home: FileId, sources: &SourceMap) -> String {
    // Where the change is not in the file that the message is about, its name is said.
    let elsewhere = fix.edits.first().map(|e| e.span.file).filter(|f| *f != home);
    let place = elsewhere.and_then(|f| sources.get(f)).map(|f| format!("in {}: ", f.name));
    let mut text = format!("{}{}", place.unwrap_or_default(), fix.title);
    if let [edit] = fix.edits.as_slice()
        && !edit.text.contains('\n')
        && edit.text.contains(char::is_alphanumeric)
        && !text.contains(edit.text.trim())
    {
        let add = if sources.text(edit.span).is_empty() { "add " } else { "" };
        text.push_str(&format!(", {add}`{}`", edit.text.trim()));
    }
    visible::line(&text, TEXT_LIMIT).into_owned()
}

/// `line 4`, `lines 4 to 7`, `line 4 of net.tg` where that is not the file of the message.
fn place(change: &Change, home: FileId, sources: &SourceMap) -> String {
    let lines = match (change.line, change.last_line()) {
        (first, last) if first == last => format!("line {first}"),
        (first, last) => format!("lines {first} to {last}"),
    };
    match sources.get(change.file).filter(|_| change.file != home) {
        Some(file) => format!("{lines} of {}", visible::line(&file.name, TEXT_LIMIT)),
        None => lines,
    }
}

fn block(after: &[String], width: usize) -> Vec<String> {
    let lines: Vec<String> =
        after.iter().map(|line| visible::line(&line.replace('\t', "  "), TEXT_LIMIT).into_owned()).collect();
    let block = code::block(&lines, width.saturating_sub(INDENT.len()));
    block.into_iter().map(|line| format!("{INDENT}{line}").trim_end().to_owned()).collect()
}

/// The lines of a change that was made, each with its mark.
pub fn marked(change: &Change, style: Style) -> Vec<String> {
    let all: Vec<String> =
        change.before.iter().chain(&change.after).map(|line| line.replace('\t', "  ")).collect();
    let all = code::block(&all, usize::MAX);
    let (before, after) = all.split_at_checked(change.before.len()).unwrap_or((&all, &[]));
    diff::marked(&before.join("\n"), &after.join("\n"), style)
}

/// What a fix does to the peak of the order that is planned and of the worst order that is legal: a row
/// for each. Both were found by planning the changed program.
pub fn figures(savings: &Savings) -> Vec<String> {
    vec![
        format!("peak in the planned order:     {}", from_to(savings.peak_before, savings.peak_after)),
        format!("peak in the worst legal order: {}", from_to(savings.worst_before, savings.worst_after)),
    ]
}

fn from_to(before: u64, after: u64) -> String {
    let (from, to) = (Bytes(before).to_string(), Bytes(after).to_string());
    // A difference that cannot be read is none.
    let order = if from == to { Ordering::Equal } else { after.cmp(&before) };
    let number = match (from.split_once(' '), to.split_once(' ')) {
        (Some((number, a)), Some((_, b))) if a == b => number,
        _ => &from,
    };
    match order {
        Ordering::Less => format!("{number} -> {to}"),
        Ordering::Equal => format!("stays at {to}"),
        // One that rises where the other does not must not be overlooked.
        Ordering::Greater => format!("{number} -> {to}, more than now"),
    }
}

/// What a fix costs, and what it does to the results.
pub fn remarks(fix: &Fix, savings: &Savings) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let more = savings.more_work();
    if more >= 0.05 {
        parts.push(format!("{more:.1} % more work"));
    } else if more <= -0.05 {
        parts.push(format!("{:.1} % less work", -more));
    }
    match fix.results {
        Results::Same => {}
        Results::Rounded => parts.push("results are rounded differently".to_owned()),
        Results::Others => parts.push("this changes what the program computes".to_owned()),
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_say_what_falls_stays_and_rises() {
        let mib = 1u64 << 20;
        assert_eq!(from_to(3 * mib, 2 * mib), "3.0 -> 2.0 MiB");
        assert_eq!(from_to(3 * mib, mib / 2), "3.0 MiB -> 512.0 KiB");
        assert_eq!(from_to(3 * mib, 3 * mib - 8), "stays at 3.0 MiB");
        assert_eq!(from_to(2 * mib, 3 * mib), "2.0 -> 3.0 MiB, more than now");
    }
}
