//! Plans that are made once: a program and all its sessions share them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use super::value::lock;
use crate::{ir::Graph, ops::OpError, plan::Plan};

/// How many plans are kept. A program has few steps; a session that compiles ever new shapes must
/// not hold all of them for it.
const KEPT: usize = 64;

/// Plans by the graph that they were made of.
#[derive(Debug, Default)]
pub struct PlanCache {
    entries: Mutex<Vec<Entry>>,
    made: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Entry {
    name: Arc<str>,
    graph: Arc<Graph>,
    /// Whether the bound was to be proved: the plan is the same, what is known of it is not.
    is_proved: bool,
    plan: Arc<Plan>,
}

impl PlanCache {
    /// The plan of a step's graph, made by `plan` where nobody has made it.
    pub fn get(
        &self,
        name: &Arc<str>,
        graph: &Arc<Graph>,
        is_proved: bool,
        plan: impl FnOnce() -> Result<Plan, OpError>,
    ) -> Result<Arc<Plan>, OpError> {
        let fits = |entry: &Entry| {
            entry.is_proved >= is_proved
                && entry.name == *name
                && (Arc::ptr_eq(&entry.graph, graph) || entry.graph == *graph)
        };
        // A snapshot, so that comparing graphs does not keep others waiting.
        let known = lock(&self.entries).clone();
        if let Some(entry) = known.iter().find(|entry| fits(entry)) {
            return Ok(Arc::clone(&entry.plan));
        }
        let plan = Arc::new(plan()?);
        self.made.fetch_add(1, Ordering::Relaxed);
        let mut entries = lock(&self.entries);
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push(Entry {
            name: Arc::clone(name),
            graph: Arc::clone(graph),
            is_proved,
            plan: Arc::clone(&plan),
        });
        Ok(plan)
    }

    /// How many plans were made.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}
