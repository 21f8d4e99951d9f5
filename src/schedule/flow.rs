//! Maximum flow (Dinic 1970) on a network whose residual can be reused: more arcs may be added to a
//! solved network, and the flow continues from where it was.

use crate::guard;

/// Capacity of an arc that no minimum cut takes.
pub(crate) const INFINITE: i64 = 1 << 61;

const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Default)]
pub(crate) struct Network {
    /// First arc out of each node; arcs `2k` and `2k + 1` are each other's reverse.
    first: Vec<u32>,
    next: Vec<u32>,
    to: Vec<u32>,
    room: Vec<i64>,
    distance: Vec<u32>,
    cursor: Vec<u32>,
    queue: Vec<u32>,
    /// Flow pushed since the last [`Network::mark`], by arc.
    journal: Option<Vec<(u32, i64)>>,
}

/// What [`Network::push`] reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Units added by this call.
    pub(crate) amount: i64,
    /// No more can be pushed; otherwise `enough` was reached or `work` ran out.
    pub(crate) maximum: bool,
}

impl Network {
    pub(crate) fn reset(&mut self, nodes: usize) {
        self.first.clear();
        self.first.resize(nodes, NIL);
        self.next.clear();
        self.to.clear();
        self.room.clear();
    }

    pub(crate) fn node(&mut self) -> u32 {
        self.first.push(NIL);
        self.first.len() as u32 - 1
    }

    pub(crate) fn arc(&mut self, from: u32, to: u32, capacity: i64) {
        for (a, b, room) in [(from, to, capacity), (to, from, 0)] {
            self.to.push(b);
            self.room.push(room);
            self.next.push(self.first[a as usize]);
            self.first[a as usize] = self.to.len() as u32 - 1;
        }
    }

    /// An arc with a flow in it; the flows of all arcs have to be conserved.
    pub(super) fn arc_with_flow(&mut self, from: u32, to: u32, capacity: i64, flow: i64) {
        self.arc(from, to, capacity - flow);
        if let Some(back) = self.room.last_mut() {
            *back = flow;
        }
    }

    /// From here on, [`Network::undo`] takes back what is pushed.
    pub(crate) fn mark(&mut self) {
        self.journal = Some(Vec::new());
    }

    pub(crate) fn undo(&mut self) {
        for (arc, amount) in self.journal.take().unwrap_or_default().into_iter().rev() {
            self.room[arc as usize] += amount;
            self.room[arc as usize ^ 1] -= amount;
        }
    }

    pub(crate) fn size(&self) -> u64 {
        (self.first.len() + self.to.len()) as u64
    }

    /// Pushes flow from `source` to `sink` until it is maximal, at least `enough`, or `work` arcs
    /// have been looked at. What has been pushed is a lower bound on every cut in any case.
    pub(crate) fn push(&mut self, source: u32, sink: u32, enough: i64, work: &mut u64) -> Flow {
        let mut amount = 0;
        while amount < enough {
            if guard::cancelled() {
                *work = 0;
            }
            if *work == 0 {
                return Flow { amount, maximum: false };
            }
            if !self.layer(source, sink, work) {
                return Flow { amount, maximum: true };
            }
            self.cursor.clone_from(&self.first);
            amount += self.augment(source, sink, work);
        }
        Flow { amount, maximum: false }
    }

    /// Distances to the sink; false if it cannot be reached from the source.
    fn layer(&mut self, source: u32, sink: u32, work: &mut u64) -> bool {
        self.distance.clear();
        self.distance.resize(self.first.len(), NIL);
        self.distance[sink as usize] = 0;
        self.queue.clear();
        self.queue.push(sink);
        let mut head = 0;
        while head < self.queue.len() {
            let at = self.queue[head];
            head += 1;
            let mut arc = self.first[at as usize];
            while arc != NIL {
                *work = work.saturating_sub(1);
                let from = self.to[arc as usize];
                if self.room[arc as usize ^ 1] > 0 && self.distance[from as usize] == NIL {
                    self.distance[from as usize] = self.distance[at as usize] + 1;
                    if from == source {
                        return true;
                    }
                    self.queue.push(from);
                }
                arc = self.next[arc as usize];
            }
        }
        false
    }

    /// A blocking flow along arcs that lead one layer down.
    fn augment(&mut self, source: u32, sink: u32, work: &mut u64) -> i64 {
        let mut total = 0;
        let mut path: Vec<u32> = Vec::new();
        let mut at = source;
        loop {
            if at == sink {
                let most = path.iter().map(|&a| self.room[a as usize]).min().unwrap_or(0);
                let mut keep = path.len();
                for (depth, &arc) in path.iter().enumerate().rev() {
                    self.room[arc as usize] -= most;
                    self.room[arc as usize ^ 1] += most;
                    if self.room[arc as usize] == 0 {
                        keep = depth;
                    }
                    if let Some(journal) = &mut self.journal {
                        journal.push((arc, most));
                    }
                }
                *work = work.saturating_sub(path.len() as u64);
                total += most;
                at = path.get(keep).map_or(sink, |&arc| self.to[arc as usize ^ 1]);
                path.truncate(keep);
                // What has been pushed is a flow at any time.
                if at == sink || *work == 0 {
                    return total;
                }
                continue;
            }
            let mut arc = self.cursor[at as usize];
            while arc != NIL {
                let to = self.to[arc as usize] as usize;
                if self.room[arc as usize] > 0
                    && self.distance[to] != NIL
                    && self.distance[to] + 1 == self.distance[at as usize]
                {
                    break;
                }
                *work = work.saturating_sub(1);
                arc = self.next[arc as usize];
            }
            self.cursor[at as usize] = arc;
            if arc != NIL {
                path.push(arc);
                at = self.to[arc as usize];
            } else {
                let Some(arc) = path.pop() else { return total };
                at = self.to[arc as usize ^ 1];
                self.cursor[at as usize] = self.next[self.cursor[at as usize] as usize];
            }
        }
    }

    /// Nodes that the source reaches in the residual: the smallest source side of a minimum cut.
    pub(crate) fn source_side(&mut self, source: u32) -> Vec<bool> {
        self.reach(source, 0)
    }

    /// Nodes that do not reach the sink: the largest source side of a minimum cut.
    pub(crate) fn largest_source_side(&mut self, sink: u32) -> Vec<bool> {
        let mut side = self.reach(sink, 1);
        side.iter_mut().for_each(|s| *s = !*s);
        side
    }

    fn reach(&mut self, start: u32, flip: usize) -> Vec<bool> {
        let mut seen = vec![false; self.first.len()];
        seen[start as usize] = true;
        let mut stack = vec![start];
        while let Some(at) = stack.pop() {
            let mut arc = self.first[at as usize];
            while arc != NIL {
                let to = self.to[arc as usize];
                if self.room[arc as usize ^ flip] > 0 && !seen[to as usize] {
                    seen[to as usize] = true;
                    stack.push(to);
                }
                arc = self.next[arc as usize];
            }
        }
        seen
    }
}
