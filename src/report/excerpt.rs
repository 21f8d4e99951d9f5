//! The lines of a source that a report shows, in a form that is safe to draw.
//!
//! The drawing library prints whole lines, raw control characters, and its own idea of line ends.
//! So it gets a copy of the file instead of the file: only the lines that carry labels have text,
//! long ones are cropped around the labels, tabs are expanded, hidden characters escaped. Line
//! numbers stay the same, spans are mapped.

use std::ops::Range;

use unicode_width::UnicodeWidthChar;

use super::visible;

/// What is shown on each side of a place in a line that is too long: the most that fits.
const CONTEXTS: [usize; 9] = [40, 30, 24, 18, 13, 9, 6, 3, 1];
const TAB_WIDTH: usize = 4;

/// A drawable copy of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    /// The given spans in characters of `text`; each covers at least one.
    pub spans: Vec<Range<usize>>,
    /// The lines (from 1) on which each span starts and ends.
    pub lines: Vec<Range<usize>>,
}

/// `spans` are bytes of `text`, in bounds and on character boundaries (`SourceFile::clamp`). Lines of
/// up to `columns` characters are shown whole.
pub fn excerpt(text: &str, spans: &[Range<usize>], ellipsis: &str, columns: usize) -> Excerpt {
    let mut shown: Vec<Shown> = Vec::new();
    let ends: Vec<(Place, Place)> = spans
        .iter()
        .map(|span| {
            // The last byte decides on which line a span ends, so that one that includes a line
            // end does not reach into the next line.
            let last = if span.end > span.start { span.end - 1 } else { span.start };
            (
                Place { line: line_at(text, span.start), byte: span.start },
                Place { line: line_at(text, last), byte: span.end },
            )
        })
        .collect();
    for &(start, end) in &ends {
        for line in [start.line, end.line] {
            if !shown.iter().any(|s| s.line == line) {
                shown.push(Shown { line, points: Vec::new() });
            }
        }
        for s in shown.iter_mut().filter(|s| s.line == start.line || s.line == end.line) {
            s.focus_on(start, end);
        }
    }
    shown.sort_by_key(|s| s.line.number);
    let mut out = String::new();
    let mut characters = 0;
    let mut number = 1;
    for s in &mut shown {
        while number < s.line.number {
            out.push('\n');
            characters += 1;
            number += 1;
        }
        characters += s.draw(text, &mut out, characters, ellipsis, columns);
        out.push('\n');
        characters += 1;
        number += 1;
    }
    let find = |place: Place| {
        let points = shown.iter().find(|s| s.line == place.line).map(|s| s.points.as_slice());
        let byte = place.byte.min(place.line.end);
        points.into_iter().flatten().find(|(b, _)| *b == byte).map_or(0, |&(_, c)| c)
    };
    Excerpt {
        spans: ends
            .iter()
            .map(|&(start, end)| {
                let (from, to) = (find(start), find(end));
                from..to.max(from + 1)
            })
            .collect(),
        lines: ends.iter().map(|(start, end)| start.line.number..end.line.number).collect(),
        text: out,
    }
}

/// A line of the file: its number from 1 and its bytes without the line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    number: usize,
    start: usize,
    end: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    line: Line,
    byte: usize,
}

fn line_at(text: &str, byte: usize) -> Line {
    let byte = text.floor_char_boundary(byte);
    let (before, after) = text.split_at(byte);
    let start = before.rfind('\n').map_or(0, |i| i + 1);
    let mut end = after.find('\n').map_or(text.len(), |i| byte + i);
    if end > start && text.as_bytes().get(end - 1) == Some(&b'\r') {
        end -= 1;
    }
    Line { number: before.bytes().filter(|&b| b == b'\n').count() + 1, start, end }
}

/// A line that carries labels.
#[derive(Debug)]
struct Shown {
    line: Line,
    /// Bytes that labels ask for, and where they are in the copy, in characters.
    points: Vec<(usize, usize)>,
}

impl Shown {
    /// Keeps the surroundings of both ends of a span, or what there is of them on this line.
    fn focus_on(&mut self, start: Place, end: Place) {
        for place in [start, end] {
            if place.line == self.line {
                self.points.push((place.byte.min(self.line.end), 0));
            }
        }
    }

    fn around(&self, text: &str, byte: usize, context: usize) -> Range<usize> {
        let before = text.get(self.line.start..byte).unwrap_or_default();
        let after = text.get(byte..self.line.end).unwrap_or_default();
        let start = before.char_indices().rev().nth(context - 1).map_or(0, |(i, _)| i);
        let end = after.char_indices().nth(context).map_or(after.len(), |(i, _)| i);
        self.line.start + start + part_of_word(before, start)..byte + whole_words(after, end)
    }

    /// What is shown of the line: all of it, or as much around the points as fits.
    fn kept(&self, text: &str, ellipsis: &str, columns: usize) -> Vec<Range<usize>> {
        let line = text.get(self.line.start..self.line.end).unwrap_or_default();
        if line.char_indices().nth(columns).is_none() {
            return std::iter::once(self.line.start..self.line.end).collect();
        }
        let gap = ellipsis.chars().count();
        let mut kept = Vec::new();
        for context in CONTEXTS {
            kept = merge(self.points.iter().map(|p| self.around(text, p.0, context)).collect());
            let characters = kept.iter().map(|r| text.get(r.clone()).map_or(0, |t| t.chars().count()));
            if characters.sum::<usize>() + gap * (kept.len() + 1) <= columns {
                break;
            }
        }
        kept
    }

    /// Appends the line to `out`, whose length so far is `base` characters, and finds the points.
    /// Returns how many characters it appended.
    fn draw(&mut self, text: &str, out: &mut String, base: usize, ellipsis: &str, columns: usize) -> usize {
        let kept = self.kept(text, ellipsis, columns);
        self.points.sort_unstable();
        let mut points = self.points.iter_mut().peekable();
        let mut written = 0;
        let mut column = 0;
        let mut at = self.line.start;
        for range in kept {
            if range.start > at {
                out.push_str(ellipsis);
                written += ellipsis.chars().count();
                column += ellipsis.chars().count();
            }
            let piece = text.get(range.clone()).unwrap_or_default();
            for (offset, c) in piece.char_indices() {
                let byte = range.start + offset;
                while let Some(point) = points.next_if(|p| p.0 <= byte) {
                    point.1 = base + written;
                }
                // A byte order mark is not part of the program.
                if byte == 0 && c == '\u{feff}' {
                    continue;
                }
                let from = out.len();
                if c == '\t' {
                    out.extend(std::iter::repeat_n(' ', TAB_WIDTH - column % TAB_WIDTH));
                } else {
                    visible::push(out, c);
                }
                let added = out.get(from..).unwrap_or_default();
                written += added.chars().count();
                column += added.chars().map(|c| c.width().unwrap_or(1)).sum::<usize>();
            }
            at = range.end;
            while let Some(point) = points.next_if(|p| p.0 <= at) {
                point.1 = base + written;
            }
        }
        if at < self.line.end {
            out.push_str(ellipsis);
            written += ellipsis.chars().count();
        }
        written
    }
}

/// What names and numbers are made of, paths such as `net.blocks.0` included.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.')
}

/// The bytes of `text` from `at` that are the rest of a word or space; 0 where a word is all there is.
fn part_of_word(text: &str, at: usize) -> usize {
    let (before, after) = text.split_at_checked(at).unwrap_or(("", text));
    if before.is_empty() {
        return 0;
    }
    let is_inside = before.ends_with(is_word);
    let rest = after.trim_start_matches(|c| is_inside && is_word(c)).trim_start();
    if rest.is_empty() { 0 } else { after.len() - rest.len() }
}

/// How many of the first `at` bytes of `text` end with a whole word; `at` where that is none.
fn whole_words(text: &str, at: usize) -> usize {
    let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
    if after.is_empty() {
        return at;
    }
    let is_inside = after.starts_with(is_word);
    let rest = before.trim_end_matches(|c| is_inside && is_word(c)).trim_end();
    if rest.is_empty() { at } else { rest.len() }
}

/// Joins ranges that overlap or nearly touch.
fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|r| (r.start, r.end));
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end + 4 => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

// One span is a list of one range, not the list of its numbers.
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn shown(excerpt: &Excerpt, k: usize) -> String {
        let range = excerpt.spans[k].clone();
        excerpt.text.chars().skip(range.start).take(range.len()).collect()
    }

    #[test]
    fn only_lines_with_labels_have_text() {
        let text = "one\ntwo\nthree\nfour\n";
        let e = excerpt(text, &[8..13], "...", 80);
        assert_eq!(e.text, "\n\nthree\n");
        assert_eq!(shown(&e, 0), "three");
        assert_eq!(e.lines, [3..3]);
    }

    #[test]
    fn a_long_line_is_cropped_around_each_label() {
        let text = format!("{}HERE{}THERE{}", "a".repeat(500_000), "b".repeat(300_000), "c".repeat(200_000));
        let e = excerpt(&text, &[500_000..500_004, 800_004..800_009], "…", 180);
        assert_eq!(
            e.text,
            format!("…{}HERE{}…{}THERE{}…\n", "a".repeat(40), "b".repeat(40), "b".repeat(40), "c".repeat(40))
        );
        assert_eq!((shown(&e, 0).as_str(), shown(&e, 1).as_str()), ("HERE", "THERE"));
    }

    #[test]
    fn less_is_shown_around_labels_where_there_is_less_room() {
        let text = format!("{}HERE{}", "a".repeat(100), "b".repeat(100));
        let e = excerpt(&text, &[100..104], "…", 40);
        assert_eq!(e.text, format!("…{}HERE{}…\n", "a".repeat(13), "b".repeat(13)));
        assert_eq!(shown(&e, 0), "HERE");
    }

    #[test]
    fn lines_are_cropped_between_words() {
        let text = "let loss = sum(tanh(first.projection(x) @ net.weights)) + HERE + mean(second_row * 0.25)";
        let at = text.find("HERE").unwrap();
        let crop = |columns| excerpt(text, &[at..at + 4], "…", columns).text;
        assert_eq!(crop(72), "…(first.projection(x) @ net.weights)) + HERE + mean(second_row * 0.25)\n");
        assert_eq!(crop(44), "…@ net.weights)) + HERE + mean(second_row…\n");
        // A word that is longer than what is shown of it is cropped all the same.
        let word = format!("{}HERE", "a".repeat(100));
        assert_eq!(excerpt(&word, &[100..104], "…", 30).text, format!("…{}HERE\n", "a".repeat(24)));
    }

    #[test]
    fn tabs_controls_and_wide_characters_keep_their_spans() {
        let text = "\tx\t名\x1b = \u{202e}y\r\n";
        let x = text.find('x').unwrap();
        let name = text.find('名').unwrap();
        let y = text.find('y').unwrap();
        let e = excerpt(text, &[x..x + 1, name..name + 3, y..y + 1, 0..text.len()], "…", 180);
        assert_eq!(e.text, "    x   名\\u{1b} = \\u{202e}y\n");
        assert_eq!(shown(&e, 0), "x");
        assert_eq!(shown(&e, 1), "名");
        assert_eq!(shown(&e, 2), "y");
        assert_eq!(shown(&e, 3), "    x   名\\u{1b} = \\u{202e}y");
    }

    #[test]
    fn empty_files_and_ends_of_files_get_one_character() {
        assert_eq!(
            excerpt("", &[0..0], "…", 180),
            Excerpt { text: "\n".into(), spans: vec![0..1], lines: vec![1..1] }
        );
        let e = excerpt("ab\n", &[3..3], "…", 180);
        assert_eq!((e.text.as_str(), e.spans[0].clone(), e.lines[0].clone()), ("\n\n", 1..2, 2..2));
        let e = excerpt("ab", &[2..2], "…", 180);
        assert_eq!((e.text.as_str(), e.spans[0].clone()), ("ab\n", 2..3));
    }

    #[test]
    fn a_byte_order_mark_is_not_shown() {
        let e = excerpt("\u{feff}let x", &[3..6], "…", 180);
        assert_eq!(e.text, "let x\n");
        assert_eq!(shown(&e, 0), "let");
    }

    #[test]
    fn other_line_ends_do_not_shift_lines() {
        let e =
            excerpt("a\x0bb\u{2028}c\nd", &["a\x0bb\u{2028}c\n".len().."a\x0bb\u{2028}c\nd".len()], "…", 180);
        assert_eq!(e.text, "\nd\n");
        assert_eq!(e.lines, [2..2]);
    }
}
