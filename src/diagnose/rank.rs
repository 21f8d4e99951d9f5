//! Which findings are shown: one for each place and code, the worst few.

use rustc_hash::FxHashSet;

use super::{Found, finding::Finding};
use crate::{codes, diagnostic::Diagnostic, edits, source::Span};

/// How many are shown unless all are asked for.
const SHOWN: usize = 4;

/// A line that several steps share, or several sizes of one step, is reported once: where it is
/// about most.
pub fn one_per_place(mut all: Vec<(usize, Finding)>) -> Vec<(usize, Finding)> {
    all.sort_by_key(|(_, f)| std::cmp::Reverse(f.held));
    let mut seen: FxHashSet<(&'static str, Span)> = FxHashSet::default();
    all.retain(|(_, f)| seen.insert((f.diagnostic.code.0, f.diagnostic.primary.span)));
    all
}

/// Sorts by what the best fix saves, then by what is held; leaves out those that another one's fix
/// takes care of.
pub fn choose(mut all: Vec<(u64, Diagnostic)>, show_all: bool) -> Found {
    let saves = |d: &Diagnostic| {
        d.savings().map_or((0, 0), |s| (s.saves_bytes(), s.worst_before.saturating_sub(s.worst_after)))
    };
    // A release that changes no figure is a remark that is checked: nobody has to hear of it.
    all.retain(|(_, d)| show_all || d.code != codes::USELESS_RELEASE);
    all.sort_by_key(|(held, d)| std::cmp::Reverse((saves(d), *held)));
    let mut kept: Vec<(Diagnostic, usize)> = Vec::new();
    for (_, diagnostic) in all {
        let best = diagnostic.fixes.first();
        // A change of the same text that saves no more is no second thing to do.
        let same = kept.iter_mut().find(|(k, _)| match (k.fixes.first(), best) {
            (Some(a), Some(b)) => {
                a.keeps_results() == b.keeps_results() && !edits::are_apart(&a.edits, &b.edits)
            }
            _ => false,
        });
        match same {
            Some((_, others)) => *others += 1,
            None => kept.push((diagnostic, 0)),
        }
    }
    let with_count = |(mut diagnostic, others): (Diagnostic, usize)| {
        if others > 0 {
            let s = if others == 1 { "" } else { "s" };
            diagnostic.notes.push(format!("the change takes care of {others} smaller finding{s}, too"));
        }
        diagnostic
    };
    let mut kept: Vec<Diagnostic> = kept.into_iter().map(with_count).collect();
    let hidden = if show_all { 0 } else { kept.len().saturating_sub(SHOWN) };
    kept.truncate(kept.len() - hidden);
    Found { diagnostics: kept, hidden }
}
