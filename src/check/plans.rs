//! Plans that are made once: a program and all its sessions share them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use super::value::lock;
use crate::{
    ir::Graph,
    plan::{Plan, Target},
};

/// How many plans are kept. A program has few steps; a session that compiles ever new shapes must
/// not hold all of them for it.
const KEPT: usize = 64;

/// Plans by the graph that they were made of.
#[derive(Debug, Default)]
pub struct PlanCache {
    entries: Mutex<Vec<Entry>>,
    made: AtomicUsize,
}

/// A plan, with the graph that it is made of where a `budget` chose another than the written one.
#[derive(Debug)]
pub struct Made {
    pub plan: Plan,
    pub fitted: Option<Graph>,
}

impl From<Plan> for Made {
    fn from(plan: Plan) -> Made {
        Made { plan, fitted: None }
    }
}

/// The same, shared.
#[derive(Debug, Clone)]
pub struct Known {
    pub plan: Arc<Plan>,
    pub fitted: Option<Arc<Graph>>,
}

#[derive(Debug, Clone)]
struct Entry {
    name: Arc<str>,
    /// As written.
    graph: Arc<Graph>,
    budget: Option<u64>,
    /// Whether the bound was to be proved: the plan is the same, what is known of it is not.
    is_proved: bool,
    known: Known,
}

impl PlanCache {
    /// The plan of a step's graph, made by `plan` where nobody has made it.
    pub fn get<E>(
        &self,
        name: &Arc<str>,
        graph: &Arc<Graph>,
        budget: Option<u64>,
        (target, is_proved): (Target, bool),
        plan: impl FnOnce() -> Result<Made, E>,
    ) -> Result<Known, E> {
        let fits = |entry: &Entry| {
            entry.is_proved >= is_proved
                && entry.known.plan.target == target
                && entry.budget == budget
                && entry.name == *name
                && (Arc::ptr_eq(&entry.graph, graph) || entry.graph == *graph)
        };
        // A snapshot, so that comparing graphs does not keep others waiting.
        let known = lock(&self.entries).clone();
        if let Some(entry) = known.iter().find(|entry| fits(entry)) {
            return Ok(entry.known.clone());
        }
        let Made { plan, fitted } = plan()?;
        let known = Known { plan: Arc::new(plan), fitted: fitted.map(Arc::new) };
        self.made.fetch_add(1, Ordering::Relaxed);
        let mut entries = lock(&self.entries);
        // Ranks of one program run one plan: of two that were made at the same time, the first.
        if let Some(entry) = entries.iter().find(|entry| fits(entry)) {
            return Ok(entry.known.clone());
        }
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push(Entry {
            name: Arc::clone(name),
            graph: Arc::clone(graph),
            budget,
            is_proved,
            known: known.clone(),
        });
        Ok(known)
    }

    /// How many plans were made.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}
