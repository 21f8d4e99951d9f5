//! What is alive at most while an op runs, or between ops, given that some ops are done and others
//! are not.

use crate::schedule::{
    flow::{INFINITE, Network},
    index::Index,
};

use super::section::{Death, Section};

/// Where an op of the section stands at the moment that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Done,
    NotDone,
    Open,
}

/// How the readers of a buffer stand.
enum Fate {
    /// One of them is not done.
    Alive,
    Dead,
    /// Dies with this op.
    With(u32),
    /// Several are open.
    Open,
}

/// A set of done ops and what is alive at most.
#[derive(Debug, Clone, Default)]
pub(super) struct Closure {
    /// No set has more alive.
    pub(super) units: i64,
    /// The ops of the section in an optimal set, or in a good one.
    pub(super) done: Vec<bool>,
    /// The flow was carried to its end, so that the set is optimal.
    pub(super) is_maximal: bool,
}

/// The section at hand, with what is known of each op.
pub(super) struct Moment<'a> {
    ix: &'a Index,
    pub(super) section: &'a Section,
    single: &'a [i64],
    /// By op of the section.
    side: Vec<Side>,
    running: Option<u32>,
    node: Vec<u32>,
    network: Network,
    stack: Vec<u32>,
    /// What each op adds or takes away when it is done.
    gain: Vec<i64>,
    loss: Vec<i64>,
    /// The flow to begin with: into each op from the source, from it into the sink, and to its open
    /// predecessors, in the order of the ops.
    sent: Vec<i64>,
    absorbed: Vec<i64>,
    flow: Vec<i64>,
}

const SOURCE: u32 = 0;
const SINK: u32 = 1;

impl<'a> Moment<'a> {
    pub(super) fn new(ix: &'a Index, section: &'a Section, single: &'a [i64]) -> Self {
        let size = (section.end - section.start) as usize;
        Moment {
            ix,
            section,
            single,
            side: vec![Side::Open; size],
            running: None,
            node: vec![0; size],
            network: Network::default(),
            stack: Vec::new(),
            gain: vec![0; size],
            loss: vec![0; size],
            sent: vec![0; size],
            absorbed: vec![0; size],
            flow: Vec::new(),
        }
    }

    fn at(&self, op: u32) -> usize {
        (op - self.section.start) as usize
    }

    fn holds(&self, op: u32) -> bool {
        (self.section.start..self.section.end).contains(&op)
    }

    pub(super) fn side(&self, op: u32) -> Side {
        if op < self.section.start {
            Side::Done
        } else if op >= self.section.end {
            Side::NotDone
        } else {
            self.side[self.at(op)]
        }
    }

    /// Forgets all that is known, and looks at the moment when `running` runs, or at those between ops.
    pub(super) fn reset(&mut self, running: Option<u32>) {
        self.side.fill(Side::Open);
        self.running = running;
        if let Some(v) = running {
            self.not_done(v);
            for &p in self.ix.preds.get(v as usize) {
                self.done(p);
            }
        }
    }

    /// `op` and all before it are done. False if that contradicts what is known.
    pub(super) fn done(&mut self, op: u32) -> bool {
        self.set(op, Side::Done)
    }

    /// `op` and all after it are not done. False if that contradicts what is known.
    pub(super) fn not_done(&mut self, op: u32) -> bool {
        self.set(op, Side::NotDone)
    }

    fn set(&mut self, op: u32, side: Side) -> bool {
        let ix = self.ix;
        self.stack.push(op);
        while let Some(u) = self.stack.pop() {
            let known = self.side(u);
            if known == side {
                continue;
            }
            if known != Side::Open {
                self.stack.clear();
                return false;
            }
            let at = self.at(u);
            self.side[at] = side;
            let next = if side == Side::Done { &ix.preds } else { &ix.succs };
            for &w in next.get(u as usize) {
                if self.holds(w) && self.side[self.at(w)] == Side::Open {
                    self.stack.push(w);
                } else if self.side(w) != side {
                    self.stack.clear();
                    return false;
                }
            }
        }
        true
    }

    fn fate(&self, death: &Death) -> Fate {
        let mut open = None;
        let mut several = false;
        for &u in &death.readers {
            match self.side(u) {
                Side::NotDone => return Fate::Alive,
                Side::Done => {}
                Side::Open => several |= open.replace(u).is_some(),
            }
        }
        match open {
            None => Fate::Dead,
            Some(only) if !several => Fate::With(only),
            Some(_) => Fate::Open,
        }
    }

    /// Whether several readers of a buffer can be the last still.
    pub(super) fn is_open(&self, death: &Death) -> bool {
        matches!(self.fate(death), Fate::Open)
    }

    /// What the running op adds.
    fn transient(&self) -> i64 {
        self.running.map_or(0, |v| self.ix.made[v as usize] + self.ix.workspace[v as usize])
    }

    fn weight(&self, op: u32) -> i64 {
        let v = op as usize;
        self.ix.made[v] - self.ix.dead[v] - self.single[v]
    }

    /// The most that is alive. Where several readers can be the last, a buffer is alive until an op
    /// behind all of them is done; with a `guess`, which has a reader for each of the section's
    /// deaths, it dies with that one, and some set does have as much alive.
    pub(super) fn closure(&mut self, guess: Option<&[u32]>, work: &mut u64) -> Closure {
        let ix = self.ix;
        let mut network = std::mem::take(&mut self.network);
        network.reset(2);
        let mut units = self.section.base + self.transient();
        self.gain.fill(0);
        self.loss.fill(0);
        for op in self.section.start..self.section.end {
            let at = self.at(op);
            match self.side[at] {
                Side::Done => units += self.weight(op),
                Side::NotDone => {}
                Side::Open => {
                    let weight = self.weight(op);
                    self.node[at] = network.node();
                    self.gain[at] = weight.max(0);
                    self.loss[at] = (-weight).max(0);
                }
            }
        }
        for (k, death) in self.section.deaths.iter().enumerate() {
            match (self.fate(death), guess) {
                (Fate::Alive, _) => {}
                (Fate::Dead, _) => units -= death.size,
                (Fate::With(op), _) => self.loss[(op - self.section.start) as usize] += death.size,
                (Fate::Open, Some(guess)) => {
                    self.loss[(guess[k] - self.section.start) as usize] += death.size;
                }
                (Fate::Open, None) => {
                    let joins = death.joins.iter().filter(|&&join| self.side(join) == Side::Open);
                    let joins: Vec<u32> = joins.map(|&join| self.at(join) as u32).collect();
                    match joins.as_slice() {
                        [] => {}
                        &[only] => self.loss[only as usize] += death.size,
                        _ => {
                            let gone = network.node();
                            network.arc(gone, SINK, death.size);
                            for join in joins {
                                network.arc(self.node[join as usize], gone, INFINITE);
                            }
                        }
                    }
                }
            }
        }
        self.begin();
        let mut flow = self.flow.iter();
        for op in self.section.start..self.section.end {
            let at = self.at(op);
            if self.side[at] != Side::Open {
                continue;
            }
            let node = self.node[at];
            units += self.gain[at] - self.sent[at];
            if self.gain[at] > 0 {
                network.arc_with_flow(SOURCE, node, self.gain[at], self.sent[at]);
            }
            if self.loss[at] > 0 {
                network.arc_with_flow(node, SINK, self.loss[at], self.absorbed[at]);
            }
            for &p in ix.preds.get(op as usize) {
                if self.side(p) == Side::Open {
                    let flow = flow.next().copied().unwrap_or(0);
                    network.arc_with_flow(node, self.node[self.at(p)], INFINITE, flow);
                }
            }
        }
        *work = work.saturating_sub(2 * network.size());
        let flow = network.push(SOURCE, SINK, INFINITE, work);
        units -= flow.amount;
        let chosen = network.source_side(SOURCE);
        let done = self.side.iter().zip(&self.node).map(|(side, &node)| match side {
            Side::Done => true,
            Side::NotDone => false,
            Side::Open => chosen[node as usize],
        });
        let done = done.collect();
        self.network = network;
        Closure { units, done, is_maximal: flow.maximum }
    }

    /// A flow to begin with, in two passes over the section: what an op gains goes to what it or ops
    /// before it lose, along the predecessors that can take most; what finds no place returns.
    fn begin(&mut self) {
        let ix = self.ix;
        let (start, end) = (self.section.start, self.section.end);
        let count = (end - start) as usize;
        let open = |side: &[Side], p: u32| p >= start && p < end && side[(p - start) as usize] == Side::Open;
        // What an op and some chain of ops before it can take.
        let mut takes = vec![0i64; count];
        // First arc of each op in `flow`.
        let mut first = vec![0u32; count];
        let mut arcs = 0u32;
        for op in start..end {
            let at = (op - start) as usize;
            first[at] = arcs;
            if self.side[at] == Side::Open {
                let preds = ix.preds.get(op as usize).iter().filter(|&&p| open(&self.side, p));
                let mut most = 0;
                for &p in preds {
                    arcs += 1;
                    most = most.max(takes[(p - start) as usize]);
                }
                takes[at] = self.loss[at] + most;
            }
        }
        self.flow.clear();
        self.flow.resize(arcs as usize, 0);
        self.sent.clone_from(&self.gain);
        self.absorbed.fill(0);
        // What came in, and then what could not go on.
        let mut excess = vec![0i64; count];
        let mut into = vec![0i64; count];
        for op in (start..end).rev() {
            let at = (op - start) as usize;
            if self.side[at] != Side::Open {
                continue;
            }
            let mut left = self.gain[at] + into[at];
            self.absorbed[at] = left.min(self.loss[at]);
            left -= self.absorbed[at];
            let preds = ix.preds.get(op as usize).iter().filter(|&&p| open(&self.side, p));
            for (arc, &p) in (first[at] as usize..).zip(preds) {
                let target = (p - start) as usize;
                let amount = left.min(takes[target] - into[target]).max(0);
                self.flow[arc] = amount;
                into[target] += amount;
                left -= amount;
            }
            excess[at] = left;
        }
        for op in start..end {
            let at = (op - start) as usize;
            if self.side[at] != Side::Open {
                continue;
            }
            let preds = ix.preds.get(op as usize).iter().filter(|&&p| open(&self.side, p));
            for (arc, &p) in (first[at] as usize..).zip(preds) {
                let source = (p - start) as usize;
                let amount = self.flow[arc].min(excess[source]);
                self.flow[arc] -= amount;
                excess[source] -= amount;
                excess[at] += amount;
            }
        }
        // Successors have taken back what they sent; the rest was gained here.
        for (sent, excess) in self.sent.iter_mut().zip(&excess) {
            *sent -= excess;
        }
    }

    /// What is alive when the running op runs and exactly the ops in `done` precede it.
    pub(super) fn alive(&self, done: &[bool]) -> i64 {
        let made = (self.section.start..self.section.end).filter(|&op| done[self.at(op)]);
        let made: i64 = made.map(|op| self.weight(op)).sum();
        let is_dead = |death: &&Death| death.readers.iter().all(|&u| done[self.at(u)]);
        let dead: i64 = self.section.deaths.iter().filter(is_dead).map(|death| death.size).sum();
        self.section.base + self.transient() + made - dead
    }

    /// A reader for each death of the section: one that `done` lacks, where there is one, or the open
    /// one that `rule` has least for.
    pub(super) fn guess(&self, done: &[bool], rule: impl Fn(u32) -> (i64, i64)) -> Vec<u32> {
        let pick = |death: &Death| {
            let open = death.readers.iter().copied().filter(|&u| self.side(u) == Side::Open);
            open.min_by_key(|&u| (done.get(self.at(u)).copied().unwrap_or(true), rule(u)))
        };
        self.section.deaths.iter().map(|death| pick(death).unwrap_or(0)).collect()
    }
}
