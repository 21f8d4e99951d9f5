//! Recompute under a budget: which forward values to make again, so that the planned peak fits at the
//! least extra work.
//!
//! The forward part of a step is cut into stages; a dynamic program gives, for every amount of memory,
//! the regions with the least recomputed work. Each such candidate is a graph with `checkpoint`
//! regions, made by replaying the elaborated one, and is planned like any other. What counts is the
//! peak of that plan. The list of candidates does not depend on the budget, so a smaller budget never
//! gets a larger peak.
//!
//! The modules own every id that they index their arrays by: ids come from the graph that an array was
//! sized for.
#![allow(clippy::indexing_slicing)]

mod candidates;
mod chain;
mod dp;
mod facts;
mod keep;
mod replay;

use std::time::Duration;

use crate::{
    ir::Graph,
    lower::{self, PlanOptions},
    ops::OpError,
    plan::{Plan, Target},
    schedule,
};

use candidates::Candidates;
pub use replay::{Assignment, replay};

/// So many candidates are always planned, spread over the list.
const ANCHORS: usize = 20;
/// So many more at most are planned between two of them, where the budget lies.
const BETWEEN: usize = 12;
/// Large graphs are planned less often: so many nodes in all, for either of the two.
const PLANNED_NODES: usize = 2_000_000;
const FEWEST: usize = 4;

/// A planned candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Of its plan, everything that is resident.
    pub peak_bytes: u64,
    /// Floating-point operations of the step.
    pub flops: f64,
    /// Regions that were added.
    pub regions: usize,
    /// Position in the list of candidates; 0 is the step as it is written.
    candidate: usize,
}

/// The peaks that a step can have, and the work each of them takes.
pub struct Curve<'g> {
    graph: &'g Graph,
    target: Target,
    candidates: Candidates<'g>,
    points: Vec<Option<Point>>,
}

impl<'g> Curve<'g> {
    /// Finds the candidates for an elaborated graph. Nothing is planned yet.
    pub fn new(graph: &'g Graph, target: Target) -> Curve<'g> {
        let candidates = Candidates::new(graph);
        Curve { graph, target, points: vec![None; candidates.len()], candidates }
    }

    /// The step as it is written.
    pub fn plain(&mut self) -> Result<Point, OpError> {
        self.measure(0)
    }

    /// The point with the least work whose peak is at most `budget`; `None` where no peak is.
    pub fn fit(&mut self, budget: u64) -> Result<Option<Point>, OpError> {
        let plain = self.plain()?;
        if plain.peak_bytes <= budget {
            return Ok(Some(plain));
        }
        let anchors = self.anchors()?;
        let Some(below) = anchors.iter().position(|a| a.peak_bytes <= budget) else { return Ok(None) };
        let points = self.refine(&anchors, below)?;
        Ok(points.into_iter().find(|p| p.peak_bytes <= budget))
    }

    /// The point with the smallest peak.
    pub fn smallest(&mut self) -> Result<Point, OpError> {
        let plain = self.plain()?;
        Ok(self.anchors()?.last().copied().unwrap_or(plain))
    }

    /// Points of less and less peak and more and more work, the step as written first. Near `budget`
    /// there are more of them.
    pub fn points(&mut self, budget: Option<u64>) -> Result<Vec<Point>, OpError> {
        let anchors = self.anchors()?;
        let mut points = anchors.clone();
        let below = budget.and_then(|b| anchors.iter().position(|a| a.peak_bytes <= b));
        if let Some(below) = below.filter(|&k| k > 0) {
            points.splice(below..=below, self.refine(&anchors, below)?);
        }
        Ok(points)
    }

    /// The graph of a point.
    pub fn graph_of(&self, point: &Point) -> Result<Graph, OpError> {
        match point.candidate {
            0 => Ok(self.graph.clone()),
            candidate => replay(self.graph, &self.candidates.assignment(candidate)),
        }
    }

    /// The plan that the figures of a point are from.
    pub fn plan_of(&self, point: &Point, name: &str) -> Result<Plan, OpError> {
        lower::plan(&self.graph_of(point)?, name, &quick(self.target))
    }

    fn measure(&mut self, candidate: usize) -> Result<Point, OpError> {
        if let Some(Some(point)) = self.points.get(candidate) {
            return Ok(*point);
        }
        OpError::if_cancelled()?;
        let mut point = Point { peak_bytes: 0, flops: 0.0, regions: 0, candidate };
        let graph = self.graph_of(&point)?;
        let plan = lower::plan(&graph, "", &quick(self.target))?;
        point.regions = graph.regions.len().saturating_sub(self.graph.regions.len());
        (point.peak_bytes, point.flops) = (plan.peak_bytes(), plan.flops);
        if let Some(entry) = self.points.get_mut(candidate) {
            *entry = Some(point);
        }
        Ok(point)
    }

    fn at_most(&self, plans: usize) -> usize {
        (PLANNED_NODES / self.graph.len().max(1)).clamp(FEWEST, plans)
    }

    /// The candidates that are always planned, those left out that others beat.
    fn anchors(&mut self) -> Result<Vec<Point>, OpError> {
        let chosen = spread(0, self.candidates.len(), self.at_most(ANCHORS));
        let points = chosen.into_iter().map(|k| self.measure(k)).collect::<Result<Vec<_>, _>>()?;
        Ok(pareto(points))
    }

    /// The points between the anchor at `below` and the one before it, and that at `below`.
    fn refine(&mut self, anchors: &[Point], below: usize) -> Result<Vec<Point>, OpError> {
        let (Some(high), Some(low)) = (below.checked_sub(1).and_then(|k| anchors.get(k)), anchors.get(below))
        else {
            return Ok(anchors.get(below).copied().into_iter().collect());
        };
        let (first, last) = (high.candidate.min(low.candidate) + 1, high.candidate.max(low.candidate));
        let mut points = Vec::new();
        for candidate in spread(first, last, self.at_most(BETWEEN)) {
            // Within the range of the two, so that a smaller budget, which looks elsewhere, never
            // finds less work or a larger peak.
            let point = self.measure(candidate)?;
            let is_between = low.peak_bytes < point.peak_bytes && point.peak_bytes < high.peak_bytes;
            points.extend(Some(point).filter(|p| is_between && high.flops <= p.flops && p.flops < low.flops));
        }
        points.push(*low);
        Ok(pareto(points))
    }
}

/// At most `count` numbers from `first` to before `end`, both ends among them.
fn spread(first: usize, end: usize, count: usize) -> Vec<usize> {
    let length = end.saturating_sub(first);
    if length <= count {
        return (first..end).collect();
    }
    (0..count).map(|k| first + k * (length - 1) / (count - 1)).collect()
}

/// The points that no other beats, by work.
fn pareto(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.flops.total_cmp(&b.flops).then(a.peak_bytes.cmp(&b.peak_bytes)));
    let mut lowest = u64::MAX;
    points.retain(|p| {
        let is_lower = p.peak_bytes < lowest;
        lowest = lowest.min(p.peak_bytes);
        is_lower
    });
    points
}

/// How candidates are planned: the order is that of the plan that is shown, without a proof, and it
/// does not depend on the machine.
pub fn quick(target: Target) -> PlanOptions {
    PlanOptions {
        target,
        schedule: schedule::Options { prove: false, time_limit: Duration::MAX, ..Default::default() },
    }
}
