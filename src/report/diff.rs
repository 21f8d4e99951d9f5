//! The difference of two texts, in the unified form that `patch` reads.

use super::{Style, style::Part, visible};

/// Lines shown around a change.
const CONTEXT: usize = 3;
/// Longer lines are cut on the screen.
const LINE: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Both(&'a str),
    Old(&'a str),
    New(&'a str),
}

impl Line<'_> {
    /// The line behind its mark and a gap.
    fn marked(self, gap: &str, style: Style) -> String {
        match self {
            Line::Both(text) => format!(" {gap}{}", visible::line(text, LINE)),
            Line::Old(text) => style.paint(Part::Error, &format!("-{gap}{}", visible::line(text, LINE))),
            Line::New(text) => style.paint(Part::Footer, &format!("+{gap}{}", visible::line(text, LINE))),
        }
    }
}

/// All lines of two short texts, each with its mark: `- old`, `+ new`.
pub fn marked(old: &str, new: &str, style: Style) -> Vec<String> {
    compare(old, new).into_iter().map(|line| line.marked(" ", style).trim_end().to_owned()).collect()
}

/// Where a line of `old` (from 1) is in `new`; for one that went, where it was.
pub fn line_in(old: &str, line: usize, new: &str) -> usize {
    let (mut before, mut after) = (0, 0);
    for one in compare(old, new) {
        match one {
            Line::Both(_) => (before, after) = (before + 1, after + 1),
            Line::Old(_) => before += 1,
            Line::New(_) => after += 1,
        }
        if before >= line {
            return if matches!(one, Line::Old(_)) { after + 1 } else { after.max(1) };
        }
    }
    after.max(1)
}

/// The changes from `old` to `new`; empty where there are none.
pub fn unified(name: &str, old: &str, new: &str, style: Style) -> String {
    let lines = compare(old, new);
    if lines.iter().all(|l| matches!(l, Line::Both(_))) {
        return String::new();
    }
    let name = visible::line(name, LINE);
    let mut out = format!("--- {name}\n+++ {name}\n");
    for (start, end) in hunks(&lines) {
        let before = lines.get(..start).unwrap_or_default();
        let hunk = lines.get(start..end).unwrap_or_default();
        let count = |all: &[Line<'_>], old: bool| {
            all.iter()
                .filter(|l| {
                    matches!((l, old), (Line::Both(_), _) | (Line::Old(_), true) | (Line::New(_), false))
                })
                .count()
        };
        out.push_str(&format!(
            "@@ -{},{} +{},{} @@\n",
            count(before, true) + 1,
            count(hunk, true),
            count(before, false) + 1,
            count(hunk, false)
        ));
        for line in hunk {
            out.push_str(&line.marked("", style));
            out.push('\n');
        }
    }
    out
}

/// Ranges of lines that hold changes with their context.
fn hunks(lines: &[Line<'_>]) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for (k, line) in lines.iter().enumerate() {
        if matches!(line, Line::Both(_)) {
            continue;
        }
        let (start, end) = (k.saturating_sub(CONTEXT), (k + CONTEXT + 1).min(lines.len()));
        match all.last_mut() {
            Some(last) if last.1 >= start => last.1 = end,
            _ => all.push((start, end)),
        }
    }
    all
}

/// The lines of both texts in one list: by the longest common subsequence of what is between the
/// common start and the common end. Fixes change few lines, so that part is short; one that is not
/// is shown as replaced as a whole.
fn compare<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    const CELLS: usize = 4_000_000;
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let most = a.len().min(b.len()) - start;
    let end = a.iter().rev().zip(b.iter().rev()).take(most).take_while(|(x, y)| x == y).count();
    let middle_a = a.get(start..a.len() - end).unwrap_or_default();
    let middle_b = b.get(start..b.len() - end).unwrap_or_default();
    let mut out: Vec<Line<'_>> = a.iter().take(start).map(|l| Line::Both(l)).collect();
    if middle_a.len().saturating_mul(middle_b.len()) > CELLS {
        out.extend(middle_a.iter().map(|l| Line::Old(l)));
        out.extend(middle_b.iter().map(|l| Line::New(l)));
    } else {
        between(middle_a, middle_b, &mut out);
    }
    out.extend(a.iter().skip(a.len() - end).map(|l| Line::Both(l)));
    out
}

fn between<'a>(a: &[&'a str], b: &[&'a str], out: &mut Vec<Line<'a>>) {
    let width = b.len() + 1;
    // `common[i * width + j]`: the longest common subsequence of `a[i..]` and `b[j..]`.
    let mut common = vec![0u32; (a.len() + 1) * width];
    let at = |common: &[u32], i: usize, j: usize| common.get(i * width + j).copied().unwrap_or(0);
    for (i, x) in a.iter().enumerate().rev() {
        for (j, y) in b.iter().enumerate().rev() {
            let value = if x == y {
                at(&common, i + 1, j + 1) + 1
            } else {
                at(&common, i + 1, j).max(at(&common, i, j + 1))
            };
            if let Some(cell) = common.get_mut(i * width + j) {
                *cell = value;
            }
        }
    }
    let (mut i, mut j) = (0, 0);
    loop {
        match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) if x == y => {
                out.push(Line::Both(x));
                (i, j) = (i + 1, j + 1);
            }
            (Some(x), Some(_)) if at(&common, i + 1, j) >= at(&common, i, j + 1) => {
                out.push(Line::Old(x));
                i += 1;
            }
            (Some(x), None) => {
                out.push(Line::Old(x));
                i += 1;
            }
            (_, Some(y)) => {
                out.push(Line::New(y));
                j += 1;
            }
            (None, None) => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_has_its_context() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\n";
        let new = "a\nb\nc\nd\nE\nf\ng\nh\ni\n";
        let expected = "--- x.tg\n+++ x.tg\n@@ -2,7 +2,7 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n";
        assert_eq!(unified("x.tg", old, new, Style::PLAIN), expected);
    }

    #[test]
    fn changes_far_apart_are_two_hunks() {
        let old: String = (0..30).map(|k| format!("{k}\n")).collect();
        let new = old.replacen("2\n", "", 1).replacen("25\n", "25\nnew\n", 1);
        let text = unified("x.tg", &old, &new, Style::PLAIN);
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert!(
            text.contains("@@ -1,6 +1,5 @@\n 0\n 1\n-2\n 3\n") && text.contains(" 25\n+new\n 26\n"),
            "{text}"
        );
    }

    #[test]
    fn lines_are_found_again() {
        let (old, new) = ("a\nb\nc\nd\n", "x\na\nc\nd\ny\n");
        let found: Vec<usize> = (1..=4).map(|line| line_in(old, line, new)).collect();
        assert_eq!(found, [2, 3, 3, 4]);
        assert_eq!((line_in("", 1, ""), line_in("a\n", 9, "a\n")), (1, 1));
    }

    #[test]
    fn short_texts_are_shown_whole() {
        assert_eq!(marked("  a\n  b", "  a\n  c", Style::PLAIN), ["    a", "-   b", "+   c"]);
        assert_eq!(marked("a", "", Style::PLAIN), ["- a"]);
    }

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(unified("x.tg", "a\n", "a\n", Style::PLAIN), "");
    }
}
