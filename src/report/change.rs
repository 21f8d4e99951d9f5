//! The lines of files that edits change, before and after.

use crate::{
    diagnostic::Edit,
    edits,
    source::{FileId, SourceFile, SourceMap},
};

/// Lines that stay between two changes, and are shown with both of them.
const BETWEEN: usize = 2;

/// Lines of a file that change together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub file: FileId,
    /// The first line, from 1, in the text before.
    pub line: usize,
    pub before: Vec<String>,
    /// Empty where the lines are taken away.
    pub after: Vec<String>,
}

impl Change {
    /// The last line in the text before.
    pub fn last_line(&self) -> usize {
        self.line + self.before.len().saturating_sub(1)
    }
}

/// What edits change, by file and line; `None` where they cannot be made.
pub fn changes(edits: &[Edit], sources: &SourceMap) -> Option<Vec<Change>> {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    sorted.sort_by_key(|e| (e.span.file, e.span.start, e.span.end));
    let mut groups: Vec<Group> = Vec::new();
    for edit in sorted {
        let file = sources.get(edit.span.file)?;
        let (first, last) = lines_of(file, edit)?;
        match groups.last_mut() {
            Some(g) if g.file == edit.span.file && first <= g.last + 1 + BETWEEN => {
                g.last = g.last.max(last);
                g.edits.push(edit.clone());
            }
            _ => groups.push(Group { file: edit.span.file, first, last, edits: vec![edit.clone()] }),
        }
    }
    groups.iter().map(|g| g.change(sources.get(g.file)?)).collect()
}

struct Group {
    file: FileId,
    /// Lines from 0.
    first: usize,
    last: usize,
    edits: Vec<Edit>,
}

impl Group {
    fn change(&self, file: &SourceFile) -> Option<Change> {
        let start = start_of(&file.text, self.first);
        let end = start_of(&file.text, self.last + 1);
        let moved = |edit: &Edit| {
            let mut edit = edit.clone();
            edit.span.start = edit.span.start.checked_sub(start as u32)?;
            edit.span.end = edit.span.end.checked_sub(start as u32)?;
            Some(edit)
        };
        let edits: Vec<Edit> = self.edits.iter().map(moved).collect::<Option<_>>()?;
        let before = file.text.get(start..end)?;
        let after = edits::apply(before, &edits)?;
        let lines = |text: &str| text.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<String>>();
        let mut after = lines(&after);
        // A statement that shared its line with nothing but a comment leaves an empty line.
        if after.iter().all(String::is_empty) {
            after.clear();
        }
        Some(Change { file: self.file, line: self.first + 1, before: lines(before), after })
    }
}

/// The lines, from 0, that an edit is in. One that takes whole lines away does not touch the next.
fn lines_of(file: &SourceFile, edit: &Edit) -> Option<(usize, usize)> {
    let (start, end) = (edit.span.start as usize, edit.span.end as usize);
    let line = |at: usize| Some(file.text.get(..at)?.bytes().filter(|&b| b == b'\n').count());
    let last = if end > start && file.text.get(..end)?.ends_with('\n') { end - 1 } else { end };
    Some((line(start)?, line(last)?))
}

/// Where a line starts, from 0; the end of the text where there is none.
fn start_of(text: &str, line: usize) -> usize {
    if line == 0 {
        return 0;
    }
    text.match_indices('\n').nth(line - 1).map_or(text.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Span;

    fn edit(file: FileId, text: &str, old: &str, new: &str) -> Edit {
        let start = text.find(old).unwrap() as u32;
        Edit { span: Span { file, start, end: start + old.len() as u32 }, text: new.into() }
    }

    #[test]
    fn lines_near_each_other_change_together() {
        let text = "a\nb\nc\nd\ne\nf\ng\nh\ni\n";
        let mut sources = SourceMap::new();
        let file = sources.add("x.tg", text);
        let all = changes(
            &[edit(file, text, "c", "C"), edit(file, text, "a", "A"), edit(file, text, "i", "I\nJ")],
            &sources,
        );
        let all = all.unwrap();
        let found: Vec<_> = all.iter().map(|c| (c.line, c.last_line(), c.after.join(" "))).collect();
        assert_eq!(found, [(1, 3, "A b C".to_owned()), (9, 9, "I J".to_owned())]);
        assert_eq!(all[0].before, ["a", "b", "c"]);
    }

    #[test]
    fn lines_that_go_leave_nothing() {
        let text = "let a = 1\r\n  release a\r\nb";
        let mut sources = SourceMap::new();
        let file = sources.add("x.tg", text);
        let all = changes(&[edit(file, text, "  release a\r\n", "")], &sources).unwrap();
        assert_eq!((all[0].line, all[0].last_line()), (2, 2));
        assert_eq!((all[0].before.concat(), all[0].after.len()), ("  release a".to_owned(), 0));
        // At the end of a text without a line end.
        let all = changes(&[edit(file, text, "b", "")], &sources).unwrap();
        assert_eq!((all[0].line, all[0].after.len()), (3, 0));
    }

    #[test]
    fn edits_that_cannot_be_made_are_no_change() {
        let mut sources = SourceMap::new();
        let file = sources.add("x.tg", "abc");
        let at = |start, end| Edit { span: Span { file, start, end }, text: "x".into() };
        assert_eq!(changes(&[at(0, 2), at(1, 3)], &sources), None);
        assert_eq!(changes(&[at(2, 9)], &sources), None);
        assert_eq!(changes(&[], &sources), Some(Vec::new()));
    }
}
