//! The least work for every amount of memory, on a chain of stages: a dynamic program after Rotor
//! (Beaumont, Herrmann, Pallez, Shilova 2019), with stages that may keep a part of what they make.
//!
//! `cost(s, t, m)` is the extra work of the backward pass through stages `s..t` with `m` units of
//! memory, where what comes into `s` is there and the forward pass goes through once without being
//! counted. Either stage `s` is gone through in one of its modes, or stages `s..k` become a region:
//! they are run again, and the same question is asked of them with the memory that is free then.

use super::chain::Chain;
use crate::guard;

/// Memory is counted in so many units.
pub(super) const SLOTS: usize = 320;

/// What a solution does, in the order of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// One stage, in this mode.
    Stage { stage: usize, mode: usize },
    /// These stages are a region, made up like this.
    Region { first: usize, end: usize, inside: Vec<Step> },
}

pub(super) struct Table<'c> {
    chain: &'c Chain,
    unit: u64,
    /// Prefix sums of the work to make stages again.
    work: Vec<f64>,
    /// `crossing[s][k]` in units.
    crossing: Vec<Vec<usize>>,
    /// Rows of `SLOTS + 1` costs, by the index of (s, t).
    costs: Vec<f32>,
}

impl<'c> Table<'c> {
    pub fn new(chain: &'c Chain, unit: u64) -> Table<'c> {
        let count = chain.stages.len();
        let mut work = vec![0.0];
        for stage in &chain.stages {
            work.push(work.last().copied().unwrap_or(0.0) + stage.full_flops);
        }
        let mut table = Table { chain, unit: unit.max(1), work, crossing: Vec::new(), costs: Vec::new() };
        table.crossing = (0..count)
            .map(|s| (0..=count).map(|k| table.units(chain.crossing_bytes(s, k))).collect())
            .collect();
        table.costs = vec![f32::INFINITY; count * (count + 1) / 2 * (SLOTS + 1)];
        for length in 1..=count {
            // What is left open costs infinitely much: there is no solution then.
            if guard::cancelled() {
                break;
            }
            for s in 0..=count - length {
                table.fill(s, s + length);
            }
        }
        table
    }

    fn units(&self, bytes: u64) -> usize {
        usize::try_from((bytes.saturating_add(self.unit / 2)) / self.unit)
            .unwrap_or(usize::MAX)
            .min(SLOTS + 1)
    }

    fn row(&self, s: usize, t: usize) -> &[f32] {
        if s == t {
            return &[0.0; SLOTS + 1];
        }
        // Rows of the same length lie together.
        let (count, length) = (self.chain.stages.len(), t - s);
        let before = (length - 1) * count - (length - 1) * (length.max(2) - 2) / 2;
        let start = (before + s) * (SLOTS + 1);
        &self.costs[start..start + SLOTS + 1]
    }

    fn fill(&mut self, s: usize, t: usize) {
        let mut best = vec![f32::INFINITY; SLOTS + 1];
        self.each_choice(s, t, |fixed, held, least, rest, inner| {
            let from = least.max(held);
            if from > SLOTS {
                return;
            }
            // Zipped, so that the compiler can use vector instructions.
            let rest = &rest[from - held..];
            match inner {
                None => best[from..].iter_mut().zip(rest).for_each(|(b, r)| *b = b.min(fixed + r)),
                Some(inner) => {
                    let costs = rest.iter().zip(&inner[from..]);
                    best[from..].iter_mut().zip(costs).for_each(|(b, (r, i))| *b = b.min(fixed + r + i));
                }
            }
        });
        let (count, length) = (self.chain.stages.len(), t - s);
        let before = (length - 1) * count - (length - 1) * (length.max(2) - 2) / 2;
        let start = (before + s) * (SLOTS + 1);
        self.costs[start..start + SLOTS + 1].copy_from_slice(&best);
    }

    /// Calls `visit(fixed cost, units held, least units, costs of the rest, costs of the inside)` for
    /// every first step of `s..t`: the modes of stage `s`, then the regions.
    fn each_choice(
        &self,
        s: usize,
        t: usize,
        mut visit: impl FnMut(f32, usize, usize, &[f32], Option<&[f32]>),
    ) {
        let stage = &self.chain.stages[s];
        let least = self.units(stage.backward_bytes);
        for mode in &stage.modes {
            visit(mode.flops as f32, self.units(mode.bytes), least, self.row(s + 1, t), None);
        }
        for k in s + 1..t {
            let held = self.crossing[s][k];
            visit(self.again(s, k) as f32, held, 0, self.row(k, t), Some(self.row(s, k)));
        }
    }

    /// Work to make stages `s..k` again, where what stage `k` needs is there.
    fn again(&self, s: usize, k: usize) -> f64 {
        self.work[k - 1] - self.work[s] + self.chain.stages[k - 1].last_flops
    }

    pub fn cost(&self, m: usize) -> f32 {
        self.row(0, self.chain.stages.len()).get(m).copied().unwrap_or(f32::INFINITY)
    }

    /// The solution with `m` units; `None` where there is none.
    pub fn solution(&self, m: usize) -> Option<Vec<Step>> {
        self.cost(m).is_finite().then(|| self.steps(0, self.chain.stages.len(), m))
    }

    fn steps(&self, mut s: usize, t: usize, mut m: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while s < t {
            let target = self.row(s, t)[m];
            let (mut choice, mut found) = (0, None);
            self.each_choice(s, t, |fixed, held, least, rest, inner| {
                if found.is_none() && m >= least.max(held) {
                    let cost = match inner {
                        None => fixed + rest[m - held],
                        Some(inner) => fixed + rest[m - held] + inner[m],
                    };
                    found = (cost == target).then_some((choice, held));
                }
                choice += 1;
            });
            let Some((choice, held)) = found else { return steps };
            let modes = self.chain.stages[s].modes.len();
            if choice < modes {
                steps.push(Step::Stage { stage: s, mode: choice });
                s += 1;
            } else {
                let k = s + 1 + choice - modes;
                steps.push(Step::Region { first: s, end: k, inside: self.steps(s, k, m) });
                s = k;
            }
            m -= held;
        }
        steps
    }
}
