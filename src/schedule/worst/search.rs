//! Branch and bound over the moments of all orders, the worst first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Instant,
};

use crate::{guard, schedule::index::Index};

use super::{
    WorstOptions,
    closure::{Closure, Moment},
    greedy::pile_up,
    plain_peak,
    section::{Sections, sections},
};

/// Arcs that all closures together may look at.
const WORK: u64 = 12_000_000;
/// Closures in a row that improve a guess of last readers.
const ROUNDS: usize = 6;

pub(super) struct Found {
    /// No order has more units alive.
    pub(super) bound: i64,
    pub(super) witness: Vec<u32>,
}

/// A reader with a smaller value is guessed to be the last.
type Rule = fn(&Index, u32) -> (i64, i64);

/// A moment to look at: the heap gives the one with the highest bound.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    bound: i64,
    /// Older cases first among equals.
    age: Reverse<u64>,
    section: u32,
    running: u32,
    /// The bound is that of a closure.
    is_solved: bool,
    /// Readers that are known to be done or not.
    known: Vec<(u32, bool)>,
    /// The buffer whose readers are told apart next: an index into the deaths of the section.
    fork: u32,
}

struct Search<'a> {
    ix: &'a Index,
    sections: &'a Sections,
    moments: BTreeMap<u32, Moment<'a>>,
    cases: BinaryHeap<Case>,
    age: u64,
    /// The worst moment found: units, section, done ops of it, running op.
    worst: i64,
    moment: Option<(u32, Vec<bool>, u32)>,
    work: u64,
    limit: i64,
    end: Option<Instant>,
}

/// A witness above `limit` ends the search.
pub(super) fn search(ix: &Index, options: &WorstOptions, limit: i64) -> Found {
    let sections = sections(ix);
    let source: Vec<u32> = (0..ix.ops as u32).collect();
    let orders = [source, pile_up(ix, false), pile_up(ix, true)];
    let orders = orders.map(|order| (plain_peak(ix, &order).0, order));
    let (start, known) = orders.into_iter().max_by_key(|&(peak, _)| peak).unwrap_or_default();
    let mut search = Search {
        ix,
        sections: &sections,
        moments: BTreeMap::new(),
        cases: BinaryHeap::new(),
        age: 0,
        worst: start,
        moment: None,
        work: WORK.saturating_mul(options.effort.max(1).into()),
        limit,
        end: Instant::now().checked_add(options.time_limit),
    };
    let first = search.first_op();
    search.look_between();
    let bound = search.run();
    let witness = search.witness().or(first).unwrap_or(known);
    Found { bound: bound.max(search.worst), witness }
}

impl<'a> Search<'a> {
    /// Inputs that nobody reads are alive during the first op only: the worst op to begin with.
    fn first_op(&mut self) -> Option<Vec<u32>> {
        let ix = self.ix;
        if ix.unread == 0 {
            return None;
        }
        let inputs: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
        let here = |v: u32| inputs + ix.unread + ix.made[v as usize] + ix.workspace[v as usize];
        let firsts = (0..ix.ops as u32).filter(|&v| ix.preds.count(v as usize) == 0);
        let first = firsts.max_by_key(|&v| (here(v), Reverse(v))).filter(|&v| here(v) > self.worst)?;
        self.worst = here(first);
        let rest = (0..ix.ops as u32).filter(|&v| v != first);
        Some(std::iter::once(first).chain(rest).collect())
    }

    /// Bounds what is alive between the ops of each section, and from that every op of it.
    fn look_between(&mut self) {
        let ix = self.ix;
        for (k, section) in self.sections.sections.iter().enumerate() {
            let mut moment = Moment::new(ix, section, &self.sections.single);
            let between = moment.closure(None, &mut self.work);
            for op in section.start..section.end {
                let v = op as usize;
                // Ops that add nothing are no worse than the one before them.
                let adds = ix.made[v] + ix.workspace[v];
                let takes = ix.dead[v] + self.sections.freed[v] + ix.workspace[v];
                if adds > 0 {
                    let bound = between.units + adds.min(takes);
                    self.push(Case {
                        bound,
                        age: Reverse(0),
                        section: k as u32,
                        running: op,
                        is_solved: false,
                        known: Vec::new(),
                        fork: 0,
                    });
                }
            }
            self.moments.insert(k as u32, moment);
        }
    }

    fn push(&mut self, mut case: Case) {
        if case.bound > self.worst {
            self.age += 1;
            case.age = Reverse(self.age);
            self.cases.push(case);
        }
    }

    /// Looks at cases until none is worse than the witness; what is left bounds all orders.
    fn run(&mut self) -> i64 {
        while let Some(case) = self.cases.pop() {
            if case.bound <= self.worst {
                return self.worst;
            }
            if self.worst > self.limit {
                return case.bound;
            }
            if self.work == 0 || guard::cancelled() || self.end.is_some_and(|end| Instant::now() >= end) {
                return case.bound;
            }
            let Some(mut moment) = self.moments.remove(&case.section) else { continue };
            if case.is_solved {
                self.branch(&mut moment, &case);
            } else {
                moment.reset(Some(case.running));
                self.solve(&mut moment, case.clone());
            }
            self.moments.insert(case.section, moment);
        }
        self.worst
    }

    /// Bounds a case by a closure, whose set is a candidate for the witness.
    fn solve(&mut self, moment: &mut Moment<'a>, mut case: Case) {
        self.work = self.work.saturating_sub(u64::from(moment.section.end - moment.section.start));
        let closure = moment.closure(None, &mut self.work);
        let is_first = !case.is_solved;
        case.bound = case.bound.min(closure.units);
        case.is_solved = true;
        self.consider(moment, &closure.done, case.section, case.running);
        if case.bound <= self.worst {
            return;
        }
        if !closure.is_maximal {
            // The work ran out in the middle.
            self.push(case);
            return;
        }
        if is_first {
            self.seek(moment, &closure, &case);
        }
        // The largest buffer that is counted although all its readers are done.
        let deaths = moment.section.deaths.iter().enumerate();
        let at = |u: u32| (u - moment.section.start) as usize;
        let fork = deaths
            .filter(|(_, death)| moment.is_open(death) && death.readers.iter().all(|&u| closure.done[at(u)]))
            .max_by_key(|&(k, death)| (death.size, Reverse(k)));
        if let Some((fork, _)) = fork {
            case.fork = fork as u32;
            self.push(case);
        }
    }

    /// One of the readers of the case's buffer is not done, the ones before it are; or all are.
    fn branch(&mut self, moment: &mut Moment<'a>, case: &Case) {
        let Some(death) = moment.section.deaths.get(case.fork as usize) else { return };
        let readers: Vec<u32> = death.readers.clone();
        for k in 0..=readers.len() {
            let mut known = case.known.clone();
            known.extend(readers.iter().take(k).map(|&u| (u, true)));
            known.extend(readers.get(k).map(|&u| (u, false)));
            moment.reset(Some(case.running));
            let is_possible =
                known.iter().all(|&(u, done)| if done { moment.done(u) } else { moment.not_done(u) });
            if is_possible {
                self.solve(moment, Case { known, ..case.clone() });
            }
        }
    }

    /// Guesses the last readers, and again from the set that follows from the guess: each set has at
    /// least as much alive as the one before.
    fn seek(&mut self, moment: &mut Moment<'a>, closure: &Closure, case: &Case) {
        let ix = self.ix;
        let rules: [Rule; 2] = [|ix, u| (ix.made[u as usize], -i64::from(u)), |_, u| (0, -i64::from(u))];
        for rule in rules {
            let mut done = closure.done.clone();
            let mut most = i64::MIN;
            for _ in 0..ROUNDS {
                let guess = moment.guess(&done, |u| rule(ix, u));
                let better = moment.closure(Some(&guess), &mut self.work);
                if better.units <= most {
                    break;
                }
                most = better.units;
                done = better.done;
                self.consider(moment, &done, case.section, case.running);
            }
        }
    }

    fn consider(&mut self, moment: &Moment<'a>, done: &[bool], section: u32, running: u32) {
        let alive = moment.alive(done);
        if alive > self.worst {
            self.worst = alive;
            self.moment = Some((section, done.to_vec(), running));
        }
    }

    /// The order that goes through the worst moment.
    fn witness(&self) -> Option<Vec<u32>> {
        let (section, done, running) = self.moment.as_ref()?;
        let section = self.sections.sections.get(*section as usize)?;
        let is_done = |op: u32| {
            op < section.start
                || op < section.end && done.get((op - section.start) as usize).copied().unwrap_or(false)
        };
        let ops = 0..self.ix.ops as u32;
        let first = ops.clone().filter(|&op| is_done(op));
        let rest = ops.filter(|&op| !is_done(op) && op != *running);
        Some(first.chain(std::iter::once(*running)).chain(rest).collect())
    }
}
