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

use std::sync::{Arc, atomic::AtomicBool};

pub use tree::apply;

use crate::{
    codes,
    diagnostic::{Diagnostic, Edit, Fix, Savings, Severity},
    engine::Checked,
    ir::Graph,
    plan::Plan,
    report::Bytes,
};
use facts::Facts;
use finding::{Accept, Candidate, Finding};
use tree::Tree;
use trial::{Outcome, Recompile, Trials};

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

/// Findings that are still without an effect one by one, and may help two by two.
const PAIRED: usize = 4;

/// Looks for what a program keeps alive too long. `text` is the text it was compiled from;
/// `recompile` compiles another one with the same options. Sets fixes on errors about the peak that
/// are among the program's diagnostics.
pub fn diagnose(
    checked: &mut Checked,
    text: &str,
    options: &Options,
    recompile: Recompile<'_>,
    cancel: &AtomicBool,
) -> Found {
    let ast = Arc::clone(&checked.ast);
    let tree = Tree::new(&ast, text);
    let sources = Arc::clone(&checked.sources);
    let mut trials = Trials::new(checked, text, recompile, cancel);
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
    let nth = checked.plans.iter().take(k).filter(|p| is_it(&p.name, &p.graph)).filter(|p| p.name == plan.name);
    let nth = nth.filter(|p| p.graph.inputs == plan.graph.inputs).count();
    let mut graphs = checked.graphs.iter().filter(|(name, graph)| is_it(name, graph));
    graphs.nth(nth).map(|(_, graph)| Arc::clone(graph))
}

/// Tries the changes of a finding; `None` where it is not worth a message.
fn judge(trials: &mut Trials<'_>, step: usize, finding: &Finding) -> Option<Diagnostic> {
    match &finding.accept {
        Accept::Always => {
            let mut diagnostic = finding.diagnostic.clone();
            diagnostic.fixes = helpful(trials, step, &finding.candidates, 0.0, false);
            Some(diagnostic)
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
            let falls = savings.peak_after < savings.peak_before;
            match raises {
                Some((code, message)) if falls => {
                    diagnostic.code = *code;
                    diagnostic.message.clone_from(message);
                }
                // What has no effect at all must not change the worst case either.
                None if savings.worst_after > savings.worst_before => return None,
                _ => {}
            }
            if let Some(note) = work(trials, step, &outcome) {
                diagnostic.notes.push(note);
            }
            diagnostic.fixes.push(fix(removal, savings));
            let mut better = helpful(trials, step, others, 0.0, false);
            better.append(&mut diagnostic.fixes);
            diagnostic.fixes = better;
            Some(diagnostic)
        }
    }
}

fn with_fixes(
    trials: &mut Trials<'_>,
    step: usize,
    finding: &Finding,
    share: f64,
    worst_counts: bool,
) -> Option<Diagnostic> {
    let fixes = helpful(trials, step, &finding.candidates, share, worst_counts);
    let best = fixes.first()?.clone();
    let mut diagnostic = finding.diagnostic.clone();
    if let Some(outcome) = trials.run(&best.edits, step)
        && let Some(note) = work(trials, step, &outcome)
    {
        diagnostic.notes.push(note);
    }
    diagnostic.fixes = fixes;
    Some(diagnostic)
}

/// The candidates that lower the peak (or the worst legal order) by a share of it, best first. At
/// most two: alternatives, not a list to work through.
fn helpful(
    trials: &mut Trials<'_>,
    step: usize,
    candidates: &[Candidate],
    share: f64,
    worst_counts: bool,
) -> Vec<Fix> {
    let mut found: Vec<Fix> = Vec::new();
    for candidate in candidates {
        let Some(outcome) = trials.run(&candidate.edits, step) else { continue };
        let (Some(before), Some(after)) = (trials.plan(step).cloned(), outcome.plans.get(step)) else { continue };
        let enough = |before: u64, after: u64| {
            after < before && (before - after) as f64 >= share * before as f64
        };
        let peak_falls = enough(before.peak_bytes(), after.peak_bytes());
        if !peak_falls && (!worst_counts || after.peak_bytes() > before.peak_bytes()) {
            continue;
        }
        let Some(savings) = trials.savings(&outcome, step) else { continue };
        if peak_falls || enough(savings.worst_before, savings.worst_after) {
            found.push(fix(candidate, savings));
        }
    }
    // What keeps the results comes before what saves more but computes something else.
    found.sort_by_key(|f| {
        (!f.keeps_results, f.savings.map(|s| (s.peak_after, s.worst_after)), f.edits.len())
    });
    found.truncate(2);
    found
}

fn fix(candidate: &Candidate, savings: Savings) -> Fix {
    Fix {
        title: candidate.title.clone(),
        edits: candidate.edits.clone(),
        savings: Some(savings),
        keeps_results: candidate.keeps_results,
    }
}

/// What a change does to the work of a step, where that is worth a word.
fn work(trials: &Trials<'_>, step: usize, outcome: &Outcome) -> Option<String> {
    let before = trials.plan(step)?.flops;
    let after = outcome.plans.get(step)?.flops;
    let share = (after - before) / before.max(1.0) * 100.0;
    if share >= 0.05 {
        Some(format!("the first change adds {share:.1} % to the work of a step"))
    } else if share <= -0.05 {
        Some(format!("without it a step is {:.1} % less work", -share))
    } else {
        None
    }
}

/// Pairs of changes that help only together, offered as one.
fn pairs(trials: &mut Trials<'_>, without: &[(usize, Finding)]) -> Vec<(u64, Diagnostic)> {
    let few = without.iter().take(PAIRED).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (i, (step, first)) in few.iter().map(|p| (p.0, &p.1)).enumerate() {
        for (other_step, second) in few.iter().skip(i + 1).map(|p| (p.0, &p.1)) {
            let (Some(a), Some(b)) = (first.candidates.first(), second.candidates.first()) else { continue };
            if step != other_step || !tree::are_apart(&a.edits, &b.edits) {
                continue;
            }
            let share = match (&first.accept, &second.accept) {
                (Accept::PeakFalls(x), Accept::PeakFalls(y)) => x.max(*y),
                _ => continue,
            };
            let edits: Vec<Edit> = a.edits.iter().chain(&b.edits).cloned().collect();
            let title = format!("do both: {}; {}", a.title, b.title);
            let both = Candidate { title, edits, keeps_results: a.keeps_results && b.keeps_results };
            let fixes = helpful(trials, step, &[both], share, false);
            if fixes.is_empty() {
                continue;
            }
            let mut diagnostic = first.diagnostic.clone();
            let primary = &second.diagnostic.primary;
            if diagnostic.secondary.iter().all(|l| l.span != primary.span) {
                diagnostic.secondary.push(primary.clone());
            }
            diagnostic.notes.push(format!(
                "together with this it holds up the peak, and neither change alone lowers it: {}",
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
