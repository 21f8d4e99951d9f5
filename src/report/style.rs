//! What the place that text is written to can show: colours, and characters beyond ASCII.

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    Always,
    Never,
}

/// How text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub color: bool,
    /// Box-drawing and block characters instead of ASCII.
    pub unicode: bool,
}

impl Style {
    /// No colours, box-drawing characters.
    pub const PLAIN: Style = Style { color: false, unicode: true };
    pub const ASCII: Style = Style { color: false, unicode: false };
}

impl ColorChoice {
    /// Whether to colour. `no_color` is the value of that variable: the convention (no-color.org)
    /// is that any non-empty value counts.
    pub fn enabled(self, is_terminal: bool, no_color: Option<&str>) -> bool {
        match self {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && no_color.is_none_or(str::is_empty),
        }
    }
}

/// Whether a locale (the first of `LC_ALL`, `LC_CTYPE`, `LANG` that is set) shows UTF-8. With none
/// set it is assumed: containers set none, and their output is read by UTF-8 terminals.
pub fn locale_is_utf8(variables: [Option<&str>; 3]) -> bool {
    let Some(locale) = variables.into_iter().flatten().find(|v| !v.is_empty()) else { return true };
    let lower = locale.to_ascii_lowercase();
    lower.contains("utf-8") || lower.contains("utf8")
}

/// The parts of a report that have a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Error,
    Warning,
    Note,
    /// `help:`, `note:` below a report.
    Footer,
    /// Line numbers and frames.
    Margin,
    Strong,
    /// The peak in a memory curve.
    Peak,
}

impl Style {
    /// `text` in the colour of `part`; unchanged where colours are off.
    pub fn paint(self, part: Part, text: &str) -> String {
        if !self.color {
            return text.to_owned();
        }
        let code = match part {
            Part::Error | Part::Peak => "1;31",
            Part::Warning => "1;33",
            Part::Note => "1;34",
            Part::Footer => "36",
            Part::Margin => "38;5;246",
            Part::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_follows_the_terminal_and_no_color() {
        assert!(ColorChoice::Auto.enabled(true, None));
        assert!(ColorChoice::Auto.enabled(true, Some("")));
        assert!(!ColorChoice::Auto.enabled(true, Some("1")));
        assert!(!ColorChoice::Auto.enabled(false, None));
        assert!(ColorChoice::Always.enabled(false, Some("1")));
        assert!(!ColorChoice::Never.enabled(true, None));
    }

    #[test]
    fn locale() {
        assert!(locale_is_utf8([None, None, None]));
        assert!(locale_is_utf8([Some(""), None, Some("de_DE.UTF-8")]));
        assert!(locale_is_utf8([None, Some("C.utf8"), Some("C")]));
        assert!(!locale_is_utf8([Some("C"), None, Some("en_US.UTF-8")]));
        assert!(!locale_is_utf8([None, None, Some("de_DE.ISO-8859-1")]));
    }

    #[test]
    fn no_escape_codes_without_colour() {
        assert_eq!(Style::PLAIN.paint(Part::Error, "x"), "x");
        let style = Style { color: true, unicode: true };
        assert_eq!(style.paint(Part::Strong, "x"), "\x1b[1mx\x1b[0m");
    }
}
