//! Labels in 80 columns: a text for which there is no room beside its code is shortened there, and
//! stands whole among the notes.

use std::ops::Range;

use unicode_width::UnicodeWidthStr;

/// Columns of a diagnostic.
pub const WIDTH: usize = 80;

/// The pieces between which a text may be broken: words, with the sizes of a shape, a number with its unit,
/// the number of a line, and code that fits in `room` columns in one piece.
pub fn words(text: &str, room: usize) -> Vec<&str> {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "%"];
    // A bracket with more inside than a shape has is prose or code like any other.
    const LONGEST: usize = 32;
    let mut pieces: Vec<&str> = Vec::new();
    let mut start = 0;
    let mut open: Option<usize> = None;
    let mut ends = text.match_indices(' ').map(|(at, _)| at).chain([text.len()]).peekable();
    while let Some(end) = ends.next() {
        let piece = text.get(start..end).unwrap_or_default();
        let next = ends.peek().map(|&e| text.get(end + 1..e).unwrap_or_default());
        let word = piece.rsplit(' ').next().unwrap_or_default();
        open = match (word.rfind('['), word.rfind(']')) {
            (Some(o), c) if c.is_none_or(|c| c < o) => Some(open.unwrap_or(start)),
            (_, Some(_)) => None,
            _ => open,
        };
        let is_unit = next.is_some_and(|n| UNITS.contains(&n.trim_end_matches([',', ';', ':', ')'])));
        // `line 8`, `op 27`.
        let counts = matches!(word.trim_start_matches('('), "line" | "lines" | "op")
            && next.is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
        let is_number = word.ends_with(|c: char| c.is_ascii_digit());
        let is_shape = open.is_some_and(|o| end - o < LONGEST)
            && text.get(end..).is_some_and(|rest| rest.find(']').is_some_and(|c| c < LONGEST));
        if next.is_some()
            && (is_shape || counts || (is_unit && is_number) || is_in_code(text, start..end, room))
        {
            continue;
        }
        open = None;
        pieces.push(piece);
        start = end + 1;
    }
    pieces
}

/// Whether a piece of a text ends inside of code that is no wider than `room`, with what it is attached to.
fn is_in_code(text: &str, piece: Range<usize>, room: usize) -> bool {
    let is_open = text.get(piece.clone()).is_some_and(|p| p.matches('`').count() % 2 == 1);
    let whole = || {
        let rest = text.get(piece.end..)?;
        let close = rest.find('`')?;
        let end = rest.get(close..)?.find(' ').map_or(rest.len(), |blank| close + blank);
        text.get(piece.start..piece.end + end)
    };
    is_open && whole().is_some_and(|code| code.width() <= room)
}

/// Breaks a line between words, so that it fits in `width` columns where its words do.
pub fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in words(line, width) {
        let columns = word.width();
        match lines.last_mut() {
            Some(last) if last.is_empty() || used + 1 + columns <= width => {
                if !last.is_empty() {
                    last.push(' ');
                    used += 1;
                }
                last.push_str(word);
                used += columns;
            }
            _ => {
                lines.push(word.to_owned());
                used = columns;
            }
        }
    }
    lines
}

/// A text in at most `columns`: up to the last colon, semicolon or comma that fits, otherwise up to
/// a word.
pub fn shorten(text: &str, columns: usize, ellipsis: &str) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let fits = |end: &usize| text.get(..*end).is_some_and(|t| t.width() <= columns);
    for mark in [": ", "; ", ", "] {
        let cuts = text.match_indices(mark).map(|(at, _)| at);
        if let Some(end) = cuts.filter(fits).last() {
            return text.get(..end).unwrap_or_default().to_owned();
        }
    }
    let room = columns.saturating_sub(ellipsis.width());
    let mut words = text.match_indices(' ').map(|(at, _)| at);
    let end = words.rfind(|&at| text.get(..at).is_some_and(|t| t.width() <= room));
    format!("{}{ellipsis}", end.and_then(|end| text.get(..end)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_figures_stay_in_one_piece() {
        assert_eq!(
            words("3 x f32[512, 1024], 4.0 MiB, twice", 80),
            ["3", "x", "f32[512, 1024],", "4.0 MiB,", "twice"]
        );
        assert_eq!(words("a [list that goes on and on without any end] b", 80).len(), 11);
        assert_eq!(words("for 1.5 % more", 80), ["for", "1.5 %", "more"]);
        assert_eq!(words("keep it (line 8): at op 3", 80), ["keep", "it", "(line 8):", "at", "op 3"]);
        assert_eq!(words("x[0] and y[1]", 80), ["x[0]", "and", "y[1]"]);
        assert_eq!(words("an open [ stays", 80), ["an", "open", "[", "stays"]);
        assert_eq!(words("", 80), [""]);
    }

    #[test]
    fn code_stays_in_one_piece_where_it_fits() {
        assert_eq!(words("wrap it: `copy(a, b)`, or not", 20), ["wrap", "it:", "`copy(a, b)`,", "or", "not"]);
        assert_eq!(words("`copy(a, b)` it", 11), ["`copy(a,", "b)`", "it"]);
        assert_eq!(words("`a b`/`c d` e", 80), ["`a b`/`c d`", "e"]);
        assert_eq!(words("one ` alone", 80), ["one", "`", "alone"]);
    }

    #[test]
    fn texts_are_cut_where_a_thought_ends() {
        assert_eq!(shorten("made here: f32[8], 32 B", 23, "…"), "made here: f32[8], 32 B");
        assert_eq!(shorten("made here: f32[8], 32 B", 20, "…"), "made here");
        assert_eq!(shorten("needs all of them first", 14, "…"), "needs all of…");
        assert_eq!(shorten("needs all of them first", 14, "..."), "needs all...");
        assert_eq!(shorten("needs all of them first", 3, "…"), "…");
        assert_eq!(shorten("", 3, "…"), "");
    }
}
