//! Code in messages that can be pasted: lines of a program with their indentation, broken only where the
//! language does not mind.

use unicode_width::UnicodeWidthStr;

/// How much further in the rest of a broken line stands.
const FURTHER: &str = "  ";

/// Lines of a program without the indentation that they have in common. A line of more than `width`
/// columns goes on in the next where it stands in brackets: a new line there is as good as a blank. What
/// cannot be broken stays whole, however wide it is.
pub fn block(lines: &[String], width: usize) -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|l| !l.trim().is_empty()).map(|l| indent(l)).min().unwrap_or(0);
    lines.iter().flat_map(|line| broken(line.get(common..).unwrap_or_default().trim_end(), width)).collect()
}

/// A place at which a line may be broken.
#[derive(Debug, Clone, Copy)]
struct Break {
    /// Bytes of the line before it, blanks at its end left out, and where the rest starts.
    end: usize,
    next: usize,
    /// Brackets that are open there.
    depth: usize,
}

fn broken(line: &str, width: usize) -> Vec<String> {
    let body = line.trim_start();
    let indent = line.get(..line.len() - body.len()).unwrap_or_default();
    let breaks = breaks(body);
    let mut out = Vec::new();
    let mut start = 0;
    let mut prefix = indent.to_owned();
    loop {
        let rest = body.get(start..).unwrap_or_default();
        let fits = |end: usize| {
            prefix.width() + body.get(start..end).map_or(usize::MAX / 2, UnicodeWidthStr::width) <= width
        };
        let here = breaks.iter().filter(|b| b.end > start && b.next < body.len());
        let chosen = if fits(body.len()) {
            None
        } else {
            // As far outside as possible, and then as late; where none fits, the first that there is.
            let fitting = here.clone().filter(|b| fits(b.end));
            fitting.min_by_key(|b| (b.depth, std::cmp::Reverse(b.end))).or(here.clone().next()).copied()
        };
        let Some(at) = chosen else {
            out.push(format!("{prefix}{rest}"));
            return out;
        };
        out.push(format!("{prefix}{}", body.get(start..at.end).unwrap_or_default()));
        start = at.next;
        prefix = format!("{indent}{FURTHER}");
    }
}

/// Blanks between brackets, and the places behind those that open. Not before a word that could start a
/// statement: it would end the brackets.
fn breaks(line: &str) -> Vec<Break> {
    let mut all = Vec::new();
    let mut open: Vec<char> = Vec::new();
    let mut in_string = false;
    let mut previous = ' ';
    for (at, c) in line.char_indices() {
        let rest = line.get(at + c.len_utf8()..).unwrap_or_default();
        match c {
            '"' if previous != '\\' => in_string = !in_string,
            _ if in_string => {}
            '#' => break,
            '(' | '[' | '{' => open.push(c),
            '<' if opens_region(line.get(..at).unwrap_or_default()) => open.push(c),
            '>' if open.last() == Some(&'<') => {
                open.pop();
            }
            ')' | ']' | '}' => {
                open.pop();
            }
            _ => {}
        }
        previous = c;
        let is_inside = open.last().is_some_and(|&o| o != '{');
        let may_break = c == ' ' || (matches!(c, '(' | '[') && !rest.is_empty());
        if !in_string && is_inside && may_break && !starts_with_word(rest) {
            let end = at + if c == ' ' { 0 } else { 1 };
            all.push(Break { end, next: at + 1, depth: open.len() });
        }
    }
    all
}

/// Whether `<` behind this text begins the body of a region.
fn opens_region(before: &str) -> bool {
    let before = before.trim_end();
    let options = before.rfind("checkpoint(").filter(|_| before.ends_with(')'));
    before.ends_with("checkpoint") || options.is_some()
}

/// Whether a text starts with a word and a blank: `for k`, `let x`.
fn starts_with_word(text: &str) -> bool {
    let word = text.len() - text.trim_start_matches(|c: char| c.is_alphabetic()).len();
    word > 0 && text.get(word..).is_some_and(|rest| rest.starts_with(' ') || rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn code_that_fits_keeps_its_lines() {
        let code = lines("    for part in 0..8 {\n      a += f(part)\n\n    }");
        assert_eq!(block(&code, 60), ["for part in 0..8 {", "  a += f(part)", "", "}"]);
    }

    #[test]
    fn long_lines_are_broken_between_brackets_as_far_outside_as_possible() {
        let code = lines(
            "  parts = parts + loss.cross_entropy(f32(h[part * 64..(part + 1) * 64] @ net.table.T), labels[part])",
        );
        assert_eq!(
            block(&code, 60),
            [
                "parts = parts + loss.cross_entropy(",
                "  f32(h[part * 64..(part + 1) * 64] @ net.table.T),",
                "  labels[part])"
            ]
        );
    }

    #[test]
    fn nothing_is_broken_where_a_line_would_end() {
        // Outside of brackets, in strings, behind a comment's mark, before a keyword.
        for text in [
            "let loss = first_of_all + second_of_all + third_of_all",
            "print(\"a text that is much longer than the line\")",
            "f(x)  # a comment (that is longer than the line, too)",
        ] {
            let broken = block(&lines(text), 30);
            assert!(broken.iter().all(|l| !l.starts_with("  second") && !l.contains("# a comment (\n")));
            assert_eq!(broken.concat().replace(' ', ""), text.replace(' ', ""));
        }
        assert_eq!(block(&lines("let loss = first_of_all + second_of_all"), 30).len(), 1);
        let list = block(&lines("let blocks = [Block(channels) for i in 0..depth]"), 36);
        assert_eq!(list, ["let blocks = [", "  Block(channels) for i in 0..depth]"]);
    }

    #[test]
    fn regions_are_brackets() {
        let code = lines("x = checkpoint(policy: dots) < gelu(up(norm(x))) + gelu(up(norm(y))) >");
        assert_eq!(
            block(&code, 50),
            ["x = checkpoint(policy: dots) < gelu(up(norm(x))) +", "  gelu(up(norm(y))) >"]
        );
    }
}
