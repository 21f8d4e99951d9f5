//! Texts with edits made to them.

use std::collections::BTreeSet;

use crate::{
    diagnostic::Edit,
    source::{FileId, SourceMap},
};

/// The text with the edits made; `None` where two of them touch the same text, or one is not in it. New
/// lines end as those of the text do.
pub fn apply(text: &str, edits: &[Edit]) -> Option<String> {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    // Stable: additions at one place stay in their order.
    sorted.sort_by_key(|e| (e.span.start, e.span.end));
    let mut out = String::with_capacity(text.len() + 64);
    let mut done = 0;
    let is_crlf = text.contains("\r\n");
    for edit in sorted {
        let (start, end) = (edit.span.start as usize, edit.span.end as usize);
        if start < done {
            return None;
        }
        out.push_str(text.get(done..start)?);
        text.get(start..end)?;
        if is_crlf && edit.text.contains('\n') {
            out.push_str(&edit.text.replace("\r\n", "\n").replace('\n', "\r\n"));
        } else {
            out.push_str(&edit.text);
        }
        done = end;
    }
    out.push_str(text.get(done..)?);
    Some(out)
}

/// The files that edits change, with their texts after it; `None` where [`apply`] refuses.
pub fn apply_all(sources: &SourceMap, edits: &[Edit]) -> Option<Vec<(FileId, String)>> {
    let files: BTreeSet<FileId> = edits.iter().map(|e| e.span.file).collect();
    let of_file = |file: FileId| {
        let here: Vec<Edit> = edits.iter().filter(|e| e.span.file == file).cloned().collect();
        Some((file, apply(&sources.get(file)?.text, &here)?))
    };
    files.into_iter().map(of_file).collect()
}

/// Whether two lists of edits can be made together: no text belongs to both.
pub fn are_apart(a: &[Edit], b: &[Edit]) -> bool {
    let bounds = |edits: &[Edit], file: FileId| {
        let here = edits.iter().filter(|e| e.span.file == file).map(|e| (e.span.start, e.span.end));
        here.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
    };
    let mut files = a.iter().map(|e| e.span.file);
    files.all(|file| match (bounds(a, file), bounds(b, file)) {
        (Some((a_start, a_end)), Some((b_start, b_end))) => a_end < b_start || b_end < a_start,
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Span;

    fn edit(start: u32, end: u32, text: &str) -> Edit {
        Edit { span: Span { file: FileId(0), start, end }, text: text.into() }
    }

    #[test]
    fn edits_are_applied_from_the_front() {
        let edits = [edit(4, 5, "xyz"), edit(0, 0, "<"), edit(2, 2, ">")];
        assert_eq!(apply("abcdef", &edits).as_deref(), Some("<ab>cdxyzf"));
    }

    #[test]
    fn new_lines_end_as_the_others_do() {
        let edits = [edit(3, 3, "x\ny\r\n")];
        assert_eq!(apply("a\r\nb\r\n", &edits).as_deref(), Some("a\r\nx\r\ny\r\nb\r\n"));
        assert_eq!(apply("a\n b", &[edit(2, 2, "x\n")]).as_deref(), Some("a\nx\n b"));
    }

    #[test]
    fn edits_that_overlap_or_leave_the_text_are_refused() {
        assert_eq!(apply("abcdef", &[edit(0, 3, ""), edit(2, 4, "")]), None);
        assert_eq!(apply("abc", &[edit(2, 9, "")]), None);
        assert_eq!(apply("é", &[edit(1, 2, "")]), None);
    }

    #[test]
    fn edits_of_two_files_change_both_and_never_meet() {
        let mut sources = SourceMap::new();
        let (a, b) = (sources.add("a.tg", "abc"), sources.add("b.tg", "abc"));
        let at = |file, start, end, text: &str| Edit { span: Span { file, start, end }, text: text.into() };
        let edits = [at(b, 0, 1, "x"), at(a, 2, 3, "y")];
        assert_eq!(apply_all(&sources, &edits), Some(vec![(a, "aby".into()), (b, "xbc".into())]));
        assert!(are_apart(&edits[..1], &edits[1..]) && !are_apart(&edits, &edits[1..]));
        assert_eq!(apply_all(&sources, &[at(b, 2, 9, "")]), None);
    }

    #[test]
    fn lists_that_share_text_are_not_apart() {
        assert!(are_apart(&[edit(0, 2, "")], &[edit(3, 4, "")]));
        assert!(!are_apart(&[edit(0, 3, "")], &[edit(3, 4, "")]));
        assert!(!are_apart(&[edit(0, 0, ""), edit(9, 9, "")], &[edit(3, 4, "")]));
    }
}
