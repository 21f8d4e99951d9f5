//! The least that is alive while one op runs, over all sets of ops that may be done by then: a
//! minimum cut, by shortest augmenting paths.

use std::collections::VecDeque;

use crate::check::{Step, reversed};

pub struct Cut {
    /// No set has fewer bytes alive.
    pub bytes: u64,
    /// What the given set has alive.
    pub of_set: u64,
}

const NO_LIMIT: u64 = u64::MAX / 4;

/// The cut at an op, and the cost of one set of ops done before it.
pub fn least(step: &Step, op: usize, before: &[usize]) -> Result<Cut, String> {
    let count = step.ops.len();
    let preds = step.preds(&[]);
    let succs = reversed(&preds);
    let reach = |edges: &[Vec<usize>]| {
        let mut seen = vec![false; count];
        let mut stack = vec![op];
        while let Some(k) = stack.pop() {
            for &next in &edges[k] {
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push(next);
                }
            }
        }
        seen
    };
    let (ancestors, descendants) = (reach(&preds), reach(&succs));
    let mut done = vec![false; count];
    for &k in before {
        done[k] = true;
    }
    for k in 0..count {
        let closed = !done[k] || preds[k].iter().all(|&p| done[p]);
        if !closed || (ancestors[k] && !done[k]) || (done[k] && (descendants[k] || k == op)) {
            return Err(format!("the set of the cut is not one that can be done before op {op}"));
        }
    }
    let mut bytes = u64::MAX;
    // Every choice of what the op overwrites: the other readers of that are done then.
    for choice in choices(&step.ops[op].may_overwrite) {
        let usable = choice.iter().all(|&(_, read)| {
            let flags = &step.buffers[read];
            let readers = &step.readers[read];
            !flags.output && !flags.persistent && readers.iter().all(|&r| r == op || !descendants[r])
        });
        if !usable {
            continue;
        }
        let mut forced = ancestors.clone();
        for &(_, read) in &choice {
            for &r in step.readers[read].iter().filter(|&&r| r != op) {
                forced[r] = true;
            }
        }
        let saved: u64 = choice.iter().map(|&(made, _)| step.buffers[made].bytes).sum();
        if let Some(flow) = minimum(step, op, &forced, &descendants, &preds) {
            bytes = bytes.min((flow + own(step, op)).saturating_sub(saved));
        }
    }
    let alive: u64 = (0..step.buffers.len())
        .filter(|&b| {
            let buffer = &step.buffers[b];
            let made = step.maker[b].is_none_or(|m| done[m]);
            !buffer.persistent && made && (buffer.output || step.readers[b].iter().any(|&r| !done[r]))
        })
        .map(|b| step.buffers[b].bytes)
        .sum();
    let dies = |b: usize| step.readers[b].iter().all(|&r| r == op || done[r]);
    let of_set = (alive + own(step, op)).saturating_sub(step.most_saved(&step.ops[op], &dies));
    Ok(Cut { bytes, of_set })
}

/// What the op makes, and its scratch space.
pub fn own(step: &Step, op: usize) -> u64 {
    step.ops[op].makes.iter().map(|&b| step.buffers[b].bytes).sum::<u64>() + step.ops[op].workspace
}

/// All ways to pair made with read buffers, none twice.
pub fn choices(pairs: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
    let mut all: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
    for &(made, read) in pairs {
        for k in 0..all.len() {
            if all[k].iter().all(|&(m, r)| m != made && r != read) {
                let mut with = all[k].clone();
                with.push((made, read));
                all.push(with);
            }
        }
    }
    all
}

/// Bytes of what is made and still read, at least, where `forced` is done and `late`, and the op, is
/// not. `None` where that cannot be.
pub fn minimum(step: &Step, op: usize, forced: &[bool], late: &[bool], preds: &[Vec<usize>]) -> Option<u64> {
    // 0 is the source (done), 1 the sink (not done), then the ops, then the buffers.
    let count = step.ops.len();
    let mut network = Network { arcs: Vec::new(), out: vec![Vec::new(); 2 + count] };
    for k in 0..count {
        if forced[k] && (late[k] || k == op) {
            return None;
        }
        if forced[k] {
            network.arc(0, 2 + k, NO_LIMIT);
        }
        if late[k] || k == op {
            network.arc(2 + k, 1, NO_LIMIT);
        }
        for &p in &preds[k] {
            network.arc(2 + k, 2 + p, NO_LIMIT);
        }
    }
    for (b, buffer) in step.buffers.iter().enumerate() {
        if buffer.persistent || buffer.bytes == 0 || (step.readers[b].is_empty() && !buffer.output) {
            continue;
        }
        let from = step.maker[b].map_or(0, |m| 2 + m);
        let node = network.out.len();
        network.out.push(Vec::new());
        network.arc(from, node, buffer.bytes);
        for &r in &step.readers[b] {
            network.arc(node, 2 + r, NO_LIMIT);
        }
        if buffer.output {
            network.arc(node, 1, NO_LIMIT);
        }
    }
    network.flow()
}

struct Network {
    /// Target and what is left, each arc beside its reverse.
    arcs: Vec<(usize, u64)>,
    out: Vec<Vec<usize>>,
}

impl Network {
    fn arc(&mut self, from: usize, to: usize, limit: u64) {
        self.out[from].push(self.arcs.len());
        self.arcs.push((to, limit));
        self.out[to].push(self.arcs.len());
        self.arcs.push((from, 0));
    }

    /// The maximum flow from 0 to 1, by blocking flows; `None` where nothing limits it.
    fn flow(&mut self) -> Option<u64> {
        let mut total = 0u64;
        loop {
            let level = self.levels();
            if level[1] == usize::MAX {
                return Some(total);
            }
            let mut next = vec![0; self.out.len()];
            while let Some(path) = self.path(&level, &mut next) {
                let amount = path.iter().map(|&a| self.arcs[a].1).min().unwrap_or(0);
                if amount >= NO_LIMIT / 2 {
                    return None;
                }
                for a in path {
                    self.arcs[a].1 -= amount;
                    self.arcs[a ^ 1].1 += amount;
                }
                total += amount;
            }
        }
    }

    fn levels(&self) -> Vec<usize> {
        let mut level = vec![usize::MAX; self.out.len()];
        level[0] = 0;
        let mut queue = VecDeque::from([0]);
        while let Some(node) = queue.pop_front() {
            for &a in &self.out[node] {
                let (to, left) = self.arcs[a];
                if left > 0 && level[to] == usize::MAX {
                    level[to] = level[node] + 1;
                    queue.push_back(to);
                }
            }
        }
        level
    }

    /// A path to the sink along rising levels, as arcs.
    fn path(&self, level: &[usize], next: &mut [usize]) -> Option<Vec<usize>> {
        let mut path: Vec<usize> = Vec::new();
        let mut node = 0;
        while node != 1 {
            match self.out[node].get(next[node]) {
                Some(&a) => {
                    let (to, left) = self.arcs[a];
                    if left > 0 && level[to] == level[node] + 1 {
                        path.push(a);
                        node = to;
                    } else {
                        next[node] += 1;
                    }
                }
                None => {
                    let back = path.pop()?;
                    node = self.arcs[back ^ 1].0;
                    next[node] += 1;
                }
            }
        }
        Some(path)
    }
}
