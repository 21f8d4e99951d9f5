//! The texts of labels beside the source lines of a frame.
//!
//! The drawing library puts a text behind the last label of its line, on one line however long it
//! is. So it gets a mark instead, and the text is written here: on as many lines as it needs to stay
//! within the columns there are.

use unicode_width::UnicodeWidthStr;

use super::fit::{self, WIDTH};

/// These stand around the number of a text; `visible` keeps them out of source text.
const START: char = '\u{e002}';
const END: char = '\u{e003}';
/// A text on more lines than this is hard to read beside code. On fewer, more source lines would have
/// to be cropped, which is worse.
const MOST_LINES: usize = 5;

/// What is drawn in place of the text of this number.
pub fn mark(number: usize) -> String {
    format!("{START}{number}{END}")
}

/// A frame with texts in place of marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub lines: Vec<String>,
    /// Numbers of the texts that are not there as a whole.
    pub cut: Vec<usize>,
}

/// By how many columns a frame is too wide for its texts, at least: 0 where all of them fit. Texts
/// may go on for [`MOST_LINES`] lines.
pub fn excess(frame: &str, texts: &[String]) -> usize {
    let of_line = |line: &str| {
        let Some((before, number, _)) = split(line) else {
            return visible_width(line.trim_end()).saturating_sub(WIDTH);
        };
        let text = texts.get(number).map_or("", String::as_str);
        let room = WIDTH.saturating_sub(visible_width(before));
        let fits = |room: usize| {
            let pieces = wrap(text, room);
            pieces.len() <= MOST_LINES && pieces.iter().all(|p| p.width() <= room)
        };
        (0..WIDTH).find(|more| fits(room + more)).unwrap_or(WIDTH)
    };
    frame.lines().map(of_line).max().unwrap_or(0)
}

/// Writes the texts. Those that do not fit in [`MOST_LINES`] lines are cut off.
pub fn place(frame: &str, texts: &[String], ellipsis: &str) -> Placed {
    let mut placed = Placed { lines: Vec::new(), cut: Vec::new() };
    let mut lines = frame.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((before, number, after)) = split(line) else {
            placed.lines.push(line.trim_end().to_owned());
            continue;
        };
        let text = texts.get(number).map_or("", String::as_str);
        let column = visible_width(before);
        let room = WIDTH.saturating_sub(column);
        let mut pieces = wrap(text, room);
        if pieces.len() > MOST_LINES || pieces.iter().any(|p| p.width() > room) {
            placed.cut.push(number);
            pieces = vec![fit::shorten(text, room, ellipsis)];
        }
        let mut pieces = pieces.into_iter();
        let first = pieces.next().unwrap_or_default();
        placed.lines.push(format!("{before}{first}{after}").trim_end().to_owned());
        // The next line holds the bars of the labels below, and nothing else: texts go on beside it.
        let beside = lines.peek().filter(|next| split(next).is_none() && is_bars(next, before)).copied();
        let bars = beside.map_or_else(|| bars_of(before), str::to_owned);
        let mut has_more = false;
        for piece in pieces {
            has_more = true;
            let gap = column.saturating_sub(visible_width(&bars));
            placed.lines.push(format!("{bars}{:gap$}{piece}", ""));
        }
        if has_more && beside.is_some() {
            lines.next();
        }
    }
    placed
}

/// What stands before a mark, its number, and what stands behind it.
fn split(line: &str) -> Option<(&str, usize, &str)> {
    let (before, rest) = line.split_once(START)?;
    let (number, after) = rest.split_once(END)?;
    Some((before, number.parse().ok()?, after))
}

/// Breaks a text between words. The last line is not left with a short word of its own where the
/// lines can be evened out.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let greedy = |room: usize| {
        let mut lines: Vec<String> = Vec::new();
        for word in fit::words(text, room) {
            match lines.last_mut() {
                Some(last) if last.width() + 1 + word.width() <= room => {
                    last.push(' ');
                    last.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines
    };
    let lines = greedy(room);
    let widest = |lines: &[String]| lines.iter().map(|l| l.width()).max().unwrap_or(0);
    if lines.len() < 2 || widest(&lines) > room {
        return lines;
    }
    let least = text.width() / lines.len();
    (least..room).map(greedy).find(|l| l.len() == lines.len() && widest(l) <= room).unwrap_or(lines)
}

/// Columns of a text that may hold colours.
fn visible_width(text: &str) -> usize {
    without_colors(text).width()
}

fn is_bar(c: char) -> bool {
    matches!(c, '│' | '┆' | '|' | ':')
}

/// Whether a line of a frame holds nothing but its margin and the bars of labels left of `before`'s
/// end.
fn is_bars(line: &str, before: &str) -> bool {
    let plain = without_colors(line);
    let margin = plain.find(is_bar).and_then(|at| plain.get(at..)).unwrap_or_default();
    let is_empty = plain.chars().all(|c| c == ' ' || is_bar(c));
    is_empty
        && margin.chars().filter(|&c| is_bar(c)).count() > 1
        && plain.trim_end().width() <= visible_width(before)
}

fn without_colors(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_code = false;
    for c in text.chars() {
        match c {
            '\u{1b}' => in_code = true,
            'm' if in_code => in_code = false,
            _ if in_code => {}
            c => out.push(c),
        }
    }
    out
}

/// The bars of a line up to where the arrow of its label starts, with their colours.
fn bars_of(before: &str) -> String {
    let mut out = String::new();
    let mut in_code = false;
    for c in before.chars() {
        match c {
            '\u{1b}' => {
                in_code = true;
                out.push(c);
            }
            c if in_code => {
                in_code = c != 'm';
                out.push(c);
            }
            c if c == ' ' || is_bar(c) => out.push(c),
            _ => break,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: &str = "  8 │   x = f(a) + g(b)\n    │       ──┬─   ──┬─\n    │         ╰──────────── \u{e002}0\u{e003}\n    │                │\n    │                ╰──── \u{e002}1\u{e003}\n";

    #[test]
    fn texts_that_fit_stand_on_their_line() {
        let texts = ["one".to_owned(), "two".to_owned()];
        assert_eq!(excess(FRAME, &texts), 0);
        let placed = place(FRAME, &texts, "…");
        assert_eq!(placed.cut, [0usize; 0]);
        assert_eq!(
            placed.lines[2..],
            ["    │         ╰──────────── one", "    │                │", "    │                ╰──── two"]
        );
    }

    #[test]
    fn long_texts_go_on_beside_the_bars_below() {
        let long = "the weight gradients of this region may wait to the end of the step, all together";
        let texts = [long.to_owned(), long.to_owned()];
        assert_eq!(excess(FRAME, &texts), 0);
        let placed = place(FRAME, &texts, "…");
        assert_eq!(
            placed.lines[2..],
            [
                "    │         ╰──────────── the weight gradients of this region may",
                "    │                │      wait to the end of the step, all together",
                "    │                ╰──── the weight gradients of this region may",
                "    │                      wait to the end of the step, all together"
            ]
        );
    }

    #[test]
    fn what_fits_nowhere_is_cut_and_said() {
        let word = "x".repeat(200);
        let texts = [format!("made here: {word}"), String::new()];
        assert!(excess(FRAME, &texts) > 0);
        let placed = place(FRAME, &texts, "…");
        assert_eq!(placed.cut, [0]);
        assert!(placed.lines[2].ends_with("── made here"), "{:?}", placed.lines);
    }

    #[test]
    fn colours_take_no_columns() {
        let frame = "\u{1b}[31m  8 │\u{1b}[0m \u{1b}[33m╰──\u{1b}[0m \u{e002}0\u{e003}\n";
        let placed = place(frame, &["a ".repeat(60).trim_end().to_owned()], "…");
        assert_eq!(placed.lines.len(), 2);
        assert!(placed.lines.iter().all(|l| visible_width(l) <= WIDTH));
        assert!(!placed.lines[1].contains('╰') && placed.lines[1].contains("\u{1b}[31m"), "{placed:?}");
    }
}
