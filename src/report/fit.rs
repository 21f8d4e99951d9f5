//! Labels in 80 columns: a text for which there is no room beside its code is shortened there, and
//! stands whole among the notes.

use unicode_width::UnicodeWidthStr;

/// Columns of a diagnostic.
pub const WIDTH: usize = 80;

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
    fn texts_are_cut_where_a_thought_ends() {
        assert_eq!(shorten("made here: f32[8], 32 B", 23, "…"), "made here: f32[8], 32 B");
        assert_eq!(shorten("made here: f32[8], 32 B", 20, "…"), "made here");
        assert_eq!(shorten("needs all of them first", 14, "…"), "needs all of…");
        assert_eq!(shorten("needs all of them first", 14, "..."), "needs all...");
        assert_eq!(shorten("needs all of them first", 3, "…"), "…");
        assert_eq!(shorten("", 3, "…"), "");
    }
}
