//! Memory diagnostics: which buffers are kept alive too long, by what, and what a change really
//! saves.
//!
//! Each kind of finding (`kinds`) reads what is known of a planned step ([`facts`]) and proposes
//! changes of the text. A change is made, compiled and planned again ([`trial`]) before anybody
//! sees it; a finding whose changes help nothing is dropped. What remains is sorted by what it
//! saves, and only the worst few are shown ([`rank`]).

mod blame;
mod contract;
mod facts;
mod finding;
mod kinds;
mod rank;
mod recompute;
mod tree;
mod trial;

use std::sync::Arc;

pub(crate) use blame::Keeper;
pub use trial::Texts;

use crate::{
    codes,
    diagnostic::{Code, Diagnostic, Edit, Fix, Savings, Severity},
    edits,
    engine::Checked,
    guard::CancelToken,
    ir::Graph,
    plan::Plan,
    report::Bytes,
    syntax::ast::Ast,
};
use facts::Facts;
use finding::{Accept, Candidate, Finding, InVain};
use tree::Tree;
use trial::{Recompile, Trials};

/// What to look for, and how much of it to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Plan changes again. Without, only what is certain without a plan is reported.
    pub fixes: bool,
    /// Show everything that was found.
    pub all: bool,
    /// Show the lines of the library on the way to a buffer, too.
    pub library_frames: bool,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The worst few, or all.
    pub diagnostics: Vec<Diagnostic>,
    /// How many more there are.
    pub hidden: usize,
}

/// A figure that falls by less than this share of it stays as it is.
const NOTABLE: f64 = 0.01;
/// By which share a peak may rise where the worst order falls.
const SAME: f64 = 0.001;
/// Per cent of more work that nobody will notice.
const CHEAP: f64 = 5.0;
/// What is said where only the worst legal order falls.
const ONLY_WORST: &str = "the planned order happens to avoid this, so its peak stays; nothing in the program forbids the other orders, and `ensure peak <= … in every schedule` counts them";
/// Findings that are still without an effect one by one, and may help two by two.
const PAIRED: usize = 4;

/// Whether an error is about a contract on the peak: the plan behind it is there.
pub fn is_contract(code: Code) -> bool {
    code == codes::OVER_PEAK || code == codes::OVER_PEAK_IN_SOME_ORDER
}

/// Looks for what a program keeps alive too long. `ast` is the tree of the program and of its own
/// modules; `recompile` compiles it with other texts and the same options. Sets fixes on errors about
/// the peak that are among the program's diagnostics.
pub fn diagnose(
    checked: &mut Checked,
    ast: &Ast,
    options: &Options,
    recompile: Recompile<'_>,
    cancel: &CancelToken,
) -> Found {
    let sources = Arc::clone(&checked.sources);
    let tree = Tree::new(ast, &sources);
    let mut trials = Trials::new(checked, recompile, cancel);
    let mut pending: Vec<(usize, Finding)> = Vec::new();
    for finding in kinds::of_script(&tree, &checked.plans) {
        pending.push((usize::MAX, finding));
    }
    let plans = checked.plans.clone();
    for (k, plan) in plans.iter().enumerate() {
        let Some(graph) = graph_of(checked, k, plan) else { continue };
        let facts = Facts::new(plan, &graph, &sources, &tree);
        contract::explain(&mut checked.diagnostics, &facts, k, options.fixes.then_some(&mut trials));
        pending.extend(kinds::of_step(&facts).into_iter().map(|mut finding| {
            if options.library_frames {
                blame::library_frames(&facts, &mut finding);
            }
            (k, finding)
        }));
    }
    if !options.fixes {
        pending.retain(|(_, f)| matches!(f.accept, Accept::Always));
    }
    let mut findings = rank::one_per_place(pending);
    findings.sort_by_key(|(_, f)| std::cmp::Reverse(f.held));
    let mut shown = Vec::new();
    let mut without = Vec::new();
    for (step, finding) in findings {
        match judge(&mut trials, step, &finding) {
            Some(diagnostic) => shown.push((finding.held, diagnostic)),
            None if matches!(finding.accept, Accept::PeakFalls(_)) => without.push((step, finding)),
            None => {}
        }
    }
    if options.fixes {
        shown.extend(pairs(&mut trials, &without));
    }
    rank::choose(shown, options.all)
}

/// The graph that a plan was made from: that of its step with the same inputs.
fn graph_of(checked: &Checked, k: usize, plan: &Arc<Plan>) -> Option<Arc<Graph>> {
    let is_it = |name: &Arc<str>, graph: &Graph| *name == plan.name && graph.inputs == plan.graph.inputs;
    let nth =
        checked.plans.iter().take(k).filter(|p| is_it(&p.name, &p.graph)).filter(|p| p.name == plan.name);
    let nth = nth.filter(|p| p.graph.inputs == plan.graph.inputs).count();
    let mut graphs = checked.graphs.iter().filter(|(name, graph)| is_it(name, graph));
    graphs.nth(nth).map(|(_, graph)| Arc::clone(graph))
}

/// Tries the changes of a finding; `None` where it is not worth a message.
fn judge(trials: &mut Trials<'_>, step: usize, finding: &Finding) -> Option<Diagnostic> {
    match &finding.accept {
        Accept::Always => {
            let helpful = helpful(trials, step, &finding.candidates, 0.0, false);
            Some(helpful.added_to(finding.diagnostic.clone()))
        }
        Accept::PeakFalls(share) => with_fixes(trials, step, finding, *share, false),
        Accept::AnyFalls(share) => with_fixes(trials, step, finding, *share, true),
        Accept::Useless { raises } => {
            let (removal, others) = finding.candidates.split_first()?;
            let outcome = trials.run(&removal.edits, step)?;
            let savings = trials.savings(&outcome, step)?;
            if savings.peak_after > savings.peak_before {
                return None;
            }
            let mut diagnostic = finding.diagnostic.clone();
            let falls = share(savings.peak_before, savings.peak_after) >= NOTABLE;
            match raises {
                Some((code, message)) if falls => {
                    diagnostic.code = *code;
                    diagnostic.message.clone_from(message);
                }
                // What has no effect at all must not change the worst case either.
                None if savings.worst_after > savings.worst_before => return None,
                _ => {}
            }
            let Helpful { mut fixes, in_vain } = helpful(trials, step, others, NOTABLE, false);
            diagnostic.notes.extend(in_vain);
            // Another change is offered, and this one is of no use by itself.
            if !fixes.is_empty() {
                let peak = Bytes(savings.peak_after);
                let too =
                    if peak.to_string() == Bytes(savings.peak_before).to_string() { ", too" } else { "" };
                diagnostic.notes.push(format!("planned without this region, the peak is {peak}{too}"));
            } else {
                fixes.push(fix(removal, savings));
                // Advice then, not a fault: the region does something, if not for the planned order.
                if savings.worst_after > savings.worst_before {
                    diagnostic.severity = Severity::Note;
                    diagnostic.notes.push(
                        "a region orders the backward pass: without it, more may be alive in orders that are legal, but not planned".into(),
                    );
                }
            }
            diagnostic.fixes = fixes;
            Some(diagnostic)
        }
    }
}

/// By which share of it a figure falls.
fn share(before: u64, after: u64) -> f64 {
    before.saturating_sub(after) as f64 / before.max(1) as f64
}

fn with_fixes(
    trials: &mut Trials<'_>,
    step: usize,
    finding: &Finding,
    least: f64,
    worst_counts: bool,
) -> Option<Diagnostic> {
    let helpful = helpful(trials, step, &finding.candidates, least, worst_counts);
    if helpful.fixes.is_empty() {
        return None;
    }
    let mut diagnostic = finding.diagnostic.clone();
    // Why to change something where the figure that is reached stays.
    if helpful.fixes.iter().filter_map(|f| f.savings).all(|s| share(s.peak_before, s.peak_after) < NOTABLE) {
        diagnostic.notes.push(ONLY_WORST.to_owned());
    }
    Some(helpful.added_to(diagnostic))
}

/// The candidates of a finding that help, and what is said of those that a reader may miss among them.
#[derive(Default)]
struct Helpful {
    fixes: Vec<Fix>,
    in_vain: Vec<String>,
}

impl Helpful {
    fn added_to(self, mut diagnostic: Diagnostic) -> Diagnostic {
        diagnostic.notes.extend(self.in_vain);
        diagnostic.fixes = self.fixes;
        diagnostic
    }
}

/// The best of the candidates that lower the peak (or the worst legal order) by a share of it: of
/// those that keep the results, and of those that do not. Those that raise the worst legal order come
/// last, and cheap ones before those that save more for much more work.
fn helpful(
    trials: &mut Trials<'_>,
    step: usize,
    candidates: &[Candidate],
    least: f64,
    worst_counts: bool,
) -> Helpful {
    let mut in_vain = Vec::new();
    let mut found: Vec<(Fix, Savings)> = Vec::new();
    for candidate in candidates {
        let Some(outcome) = trials.run(&candidate.edits, step) else { continue };
        let (Some(before), Some(after)) = (trials.plan(step).cloned(), outcome.plans.get(step)) else {
            continue;
        };
        let (before, after) = (before.peak_bytes(), after.peak_bytes());
        let peak_falls = after < before && share(before, after) >= least;
        let rises = after.saturating_sub(before) as f64 > SAME * before as f64;
        if let Some(InVain { what, why }) = candidate.in_vain.as_ref().filter(|_| !peak_falls) {
            let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let stays = if rises { "rises to" } else { "stays at" };
            in_vain.push(format!("{what} lowers nothing (the peak {stays} {}){why}", Bytes(after)));
        }
        if !peak_falls && (!worst_counts || rises) {
            continue;
        }
        let Some(savings) = trials.savings(&outcome, step) else { continue };
        let worst_falls = savings.worst_after < savings.worst_before
            && share(savings.worst_before, savings.worst_after) >= least;
        if peak_falls || worst_falls {
            found.push((fix(candidate, savings), savings));
        }
    }
    found.sort_by_key(|(f, s)| {
        (!f.keeps_results(), s.raises_worst(), s.more_work() > CHEAP, s.peak_after, s.worst_after)
    });
    let mut fixes: Vec<Fix> = Vec::new();
    for (fix, _) in found {
        if fixes.iter().all(|f| f.keeps_results() != fix.keeps_results()) {
            fixes.push(fix);
        }
    }
    Helpful { fixes, in_vain }
}

fn fix(candidate: &Candidate, savings: Savings) -> Fix {
    Fix {
        title: candidate.title.clone(),
        edits: candidate.edits.clone(),
        savings: Some(savings),
        results: candidate.results,
    }
}

/// Pairs of changes that help only together, offered as one.
fn pairs(trials: &mut Trials<'_>, without: &[(usize, Finding)]) -> Vec<(u64, Diagnostic)> {
    let few = without.iter().take(PAIRED).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (i, (step, first)) in few.iter().map(|p| (p.0, &p.1)).enumerate() {
        for (other_step, second) in few.iter().skip(i + 1).map(|p| (p.0, &p.1)) {
            let (Some(a), Some(b)) = (first.candidates.first(), second.candidates.first()) else { continue };
            if step != other_step || !edits::are_apart(&a.edits, &b.edits) {
                continue;
            }
            let least = match (&first.accept, &second.accept) {
                (Accept::PeakFalls(x), Accept::PeakFalls(y)) => x.max(*y),
                _ => continue,
            };
            let edits: Vec<Edit> = a.edits.iter().chain(&b.edits).cloned().collect();
            let title = match a.title == b.title {
                true => format!("{}, in both places", a.title),
                false => format!("do both: {}; {}", a.title, b.title),
            };
            let results = a.results.max(b.results);
            let both = Candidate { results, ..Candidate::new(title, edits) };
            let fixes = helpful(trials, step, &[both], least, false).fixes;
            if fixes.is_empty() {
                continue;
            }
            let mut diagnostic = first.diagnostic.clone();
            let primary = &second.diagnostic.primary;
            if diagnostic.secondary.iter().all(|l| l.span != primary.span) {
                diagnostic.secondary.push(primary.clone());
            }
            diagnostic.notes.push(format!(
                "one change alone is of no use, since this holds up the peak, too: {}",
                second.diagnostic.message
            ));
            diagnostic.fixes = fixes;
            found.push((first.held + second.held, diagnostic));
        }
    }
    found
}

/// The note that says how a peak stands beside parameters that get no gradient.
pub fn note_on_low_peak(checked: &mut Checked) {
    let notes: Vec<(usize, String)> = checked
        .diagnostics
        .iter()
        .enumerate()
        .filter(|(_, d)| d.code == codes::NO_GRADIENT && d.severity == Severity::Warning)
        .filter_map(|(k, d)| {
            let step = checked.ast.stmts.iter().find_map(|s| match &s.kind {
                crate::syntax::ast::StmtKind::Step(decl)
                    if s.span.file == d.primary.span.file
                        && s.span.start <= d.primary.span.start
                        && d.primary.span.end <= s.span.end =>
                {
                    Some(Arc::clone(&decl.name.name))
                }
                _ => None,
            })?;
            let plan = checked.plans.iter().find(|p| p.name == step)?;
            let peak = Bytes(plan.peak_bytes());
            Some((k, format!("the peak of `{step}`, {peak}, is that of a step without their gradients")))
        })
        .collect();
    for (k, note) in notes {
        if let Some(diagnostic) = checked.diagnostics.get_mut(k) {
            diagnostic.notes.push(note);
        }
    }
}
