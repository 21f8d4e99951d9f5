//! Text from programs and files, made safe to print.
//!
//! A program may contain terminal escape sequences, or characters that change the direction of the
//! text around them so that it reads as something else (CVE-2021-42574). Reports show such
//! characters as `\u{1b}`.

use std::borrow::Cow;

/// Whether a character is shown as an escape instead of itself. Tabs and line ends are the
/// caller's business; they count as hidden here.
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    c.is_control()
        || matches!(c,
            // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            // Zero-width space and direction marks. The joiners U+200C and U+200D are part of
            // ordinary words and emoji.
            | '\u{200b}' | '\u{200e}' | '\u{200f}'
            // Line and paragraph separators, direction embeddings and overrides.
            | '\u{2028}'..='\u{202e}'
            // Word joiner, invisible operators, direction isolates, deprecated format characters.
            | '\u{2060}'..='\u{206f}'
            // Private use: `human` and `labels` mark places with these, so source text must not have
            // them.
            | '\u{e000}'..='\u{e003}'
            // Byte order mark, interlinear annotations, tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line: hidden characters, tabs and line ends are escaped, and what exceeds `limit` characters
/// is cut off with `...`.
pub fn line(text: &str, limit: usize) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) && text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i >= limit {
            out.push_str("...");
            break;
        }
        push(&mut out, c);
    }
    Cow::Owned(out)
}

/// Appends a character, escaped where it is hidden.
pub fn push(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_hidden(c) => out.extend(c.escape_unicode()),
        c => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_cuts() {
        assert_eq!(line("plain 名 ü", 100), "plain 名 ü");
        assert_eq!(line("a\x1b[31mb\tc\nd\r", 100), "a\\u{1b}[31mb\\tc\\nd\\r");
        assert_eq!(line("x\u{202e}y\u{2066}z\u{7f}\u{85}", 100), "x\\u{202e}y\\u{2066}z\\u{7f}\\u{85}");
        assert_eq!(line("abcdef", 3), "abc...");
        assert_eq!(line("👨\u{200d}👩", 10), "👨\u{200d}👩");
    }
}
