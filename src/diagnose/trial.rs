//! Trying changes: the program with the edits made is compiled and planned again, with the same
//! options.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::{
    diagnostic::{Edit, Savings},
    edits,
    engine::Checked,
    guard::CancelToken,
    plan::Plan,
    schedule::{self, WorstOptions},
    source::{FileId, SourceMap, Span},
    syntax::ast::StmtKind,
};

/// Nodes that all trials of one program may plan together: what keeps a check of a step of ordinary
/// size under a second.
const NODES: usize = 150_000;
const FEWEST: usize = 3;
const MOST: usize = 24;

/// Texts that files have after a change; all others stay as they are.
pub type Texts = Vec<(FileId, String)>;

/// Compiles the program that is looked at, with other texts.
pub type Recompile<'a> = &'a dyn Fn(&Texts) -> Checked;

/// The program before, and what changes of it gave.
pub struct Trials<'a> {
    sources: Arc<SourceMap>,
    recompile: Recompile<'a>,
    cancel: &'a CancelToken,
    before: Vec<Arc<Plan>>,
    /// Which `ensure` of the texts fail already.
    broken: Vec<Contract>,
    left: usize,
    done: FxHashMap<Texts, Option<Outcome>>,
    worst: FxHashMap<usize, u64>,
}

/// The plans of a changed program, in the order of those before.
#[derive(Clone)]
pub struct Outcome {
    pub plans: Vec<Arc<Plan>>,
}

impl<'a> Trials<'a> {
    pub fn new(checked: &Checked, recompile: Recompile<'a>, cancel: &'a CancelToken) -> Trials<'a> {
        let nodes: usize = checked.plans.iter().map(|p| p.graph.len()).sum();
        Trials {
            sources: Arc::clone(&checked.sources),
            recompile,
            cancel,
            before: checked.plans.clone(),
            broken: broken(checked),
            left: (NODES / nodes.max(1)).clamp(FEWEST, MOST),
            done: FxHashMap::default(),
            worst: FxHashMap::default(),
        }
    }

    /// Whether another change may be tried.
    pub fn may_go_on(&self) -> bool {
        self.left > 0 && !self.cancel.is_cancelled()
    }

    pub fn plan(&self, step: usize) -> Option<&Arc<Plan>> {
        self.before.get(step)
    }

    /// Plans the program with the edits made. `None` where it does not compile, where a step other
    /// than `step` gets a higher peak, or where no more may be tried.
    pub fn run(&mut self, edits: &[Edit], step: usize) -> Option<Outcome> {
        let texts = edits::apply_all(&self.sources, edits)?;
        if let Some(known) = self.done.get(&texts) {
            return known.clone();
        }
        if !self.may_go_on() {
            return None;
        }
        self.left -= 1;
        let checked = (self.recompile)(&texts);
        let outcome = self.outcome(&checked, step);
        self.done.insert(texts, outcome.clone());
        outcome
    }

    fn outcome(&self, checked: &Checked, step: usize) -> Option<Outcome> {
        let mut errors = checked.diagnostics.iter().filter(|d| d.is_error());
        // A change that mends one contract must not break another, on every order above all.
        let is_sound = errors.all(|d| super::is_contract(d.code))
            && broken(checked).iter().all(|k| self.broken.contains(k));
        let same_steps = checked.plans.len() == self.before.len()
            && checked.plans.iter().zip(&self.before).all(|(a, b)| a.name == b.name);
        if !is_sound || !same_steps {
            return None;
        }
        let mut others = checked.plans.iter().zip(&self.before).enumerate().filter(|(k, _)| *k != step);
        let are_no_worse = others.all(|(_, (now, before))| now.peak_bytes() <= before.peak_bytes());
        are_no_worse.then(|| Outcome { plans: checked.plans.clone() })
    }

    /// The figures of a step, before and after.
    pub fn savings(&mut self, outcome: &Outcome, step: usize) -> Option<Savings> {
        let before = Arc::clone(self.before.get(step)?);
        let after = Arc::clone(outcome.plans.get(step)?);
        Some(Savings {
            peak_before: before.peak_bytes(),
            peak_after: after.peak_bytes(),
            worst_before: self.worst(&before),
            worst_after: self.worst(&after),
            work_before: before.flops as u64,
            work_after: after.flops as u64,
        })
    }

    /// What no legal order of a step exceeds, with the persistent tensors.
    fn worst(&mut self, plan: &Arc<Plan>) -> u64 {
        if let Some(known) = plan.worst_legal_bytes() {
            return known;
        }
        let key = Arc::as_ptr(plan) as usize;
        *self.worst.entry(key).or_insert_with(|| {
            let worst = schedule::worst_order(&plan.schedule_graph, &WorstOptions::default());
            plan.persistent_bytes.saturating_add(worst.bytes)
        })
    }
}

/// An `ensure`: the name of its file, and the how many-th of the file it is.
type Contract = (String, Option<usize>);

/// Which of the `ensure` statements of a program fail.
fn broken(checked: &Checked) -> Vec<Contract> {
    // Mostly none does, and modules are parsed to count them.
    if !checked.diagnostics.iter().any(|d| super::is_contract(d.code)) {
        return Vec::new();
    }
    let ast = checked.whole_ast();
    let stmts = ast.stmts.iter();
    let mut ensures: Vec<_> =
        stmts.filter(|s| matches!(s.kind, StmtKind::Ensure { .. })).map(|s| s.span).collect();
    ensures.sort_unstable();
    let failed = checked.diagnostics.iter().filter(|d| super::is_contract(d.code));
    let contract = |at: Span| {
        let mut here = ensures.iter().filter(|s| s.file == at.file);
        let name = checked.sources.get(at.file).map(|f| f.name.clone());
        (name.unwrap_or_default(), here.position(|s| *s == at))
    };
    failed.map(|d| contract(d.primary.span)).collect()
}
