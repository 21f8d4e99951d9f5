//! How the worst order that was found differs from the planned one: what it has alive at its worst
//! moment that the planned order has not, and the ops that are to blame.

use rustc_hash::FxHashMap;

use super::Plan;
use crate::schedule::{BufferId, OpId};

/// What the worst order does with an op that keeps a buffer alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moved {
    /// It could run before the worst moment, and would then free the buffer, or let others free it.
    Later,
    /// It makes the buffer before the worst moment, though whoever reads it has to wait for that; in
    /// the planned order it runs after the op of that moment.
    Earlier,
}

/// One op that moved, and a buffer that is alive because it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub op: OpId,
    pub moved: Moved,
    pub buffer: BufferId,
}

/// The worst moment of the worst order, against the planned one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// The op that runs then.
    pub op: OpId,
    /// Its positions in the witness and in the planned order.
    pub witness_position: usize,
    pub planned_position: usize,
    /// What the planned order has alive when that op runs, in bytes of the arena.
    pub planned_bytes: u64,
    /// What it saves there by writing over operands; the worst order does not count on that.
    pub overwritten_bytes: u64,
    /// For buffers that the witness has alive at its worst moment, and the planned order does not while
    /// the same op runs or at its own peak; in source order.
    pub moves: Vec<Move>,
}

impl Plan {
    /// Compares the worst order with the planned one. `None` where [`Plan::worst`] is not known or
    /// the graph is empty.
    pub fn excess(&self) -> Option<Excess> {
        let worst = self.worst.as_ref()?;
        let graph = &self.schedule_graph;
        let (count, at) = (graph.op_count(), worst.witness_position);
        let op = *worst.witness.get(at)?;
        let witness = Positions::new(&worst.witness, count);
        let planned = Positions::new(&self.schedule.order, count);
        let here = planned.of(op)?;
        let mut readers: Vec<Vec<OpId>> = vec![Vec::new(); graph.buffer_count()];
        for op in graph.ops() {
            for read in graph.reads(op) {
                if let Some(list) = readers.get_mut(read.0 as usize) {
                    list.push(op);
                }
            }
        }
        let mut moves = Vec::new();
        let mut planned_bytes = u128::from(graph.workspace(op));
        let mut overwritten_bytes = 0u64;
        let mut known = FxHashMap::default();
        for (buffer, readers) in graph.buffer_ids().zip(&readers) {
            let bytes = graph.arena_bytes(buffer);
            if bytes == 0 {
                continue;
            }
            let maker = graph.maker(buffer);
            let is_output = graph.buffer(buffer).flags.output;
            let alive = |order: &Positions, at: usize| {
                let from = maker.map_or(Some(0), |m| order.of(m));
                let last = readers.iter().filter_map(|&r| order.of(r)).max().or(from);
                from.is_some_and(|f| f <= at) && (is_output || last.is_some_and(|l| l >= at))
            };
            let in_plan = alive(&planned, here);
            if in_plan {
                let replaces = self.schedule.overwrites.get(buffer.0 as usize).is_some_and(Option::is_some);
                if replaces && maker == Some(op) {
                    overwritten_bytes = overwritten_bytes.saturating_add(bytes);
                } else {
                    planned_bytes += u128::from(bytes);
                }
            }
            if !alive(&witness, at) || (in_plan && alive(&planned, self.schedule.peak_position)) {
                continue;
            }
            let pending = readers.iter().filter(|&&r| witness.of(r).is_some_and(|p| p > at));
            let mut held = pending.filter_map(|&r| self.held_back(r, &witness, at, &mut known));
            let moved = match held.next() {
                Some(late) if !is_output => Some((late, Moved::Later)),
                _ => maker
                    .filter(|&m| m != op && planned.of(m).is_some_and(|p| p > here))
                    .map(|maker| (maker, Moved::Earlier)),
            };
            moves.extend(moved.map(|(op, moved)| Move { op, moved, buffer }));
        }
        Some(Excess {
            op,
            witness_position: at,
            planned_position: here,
            planned_bytes: u64::try_from(planned_bytes).unwrap_or(u64::MAX),
            overwritten_bytes,
            moves,
        })
    }

    /// Of what a late op waits for, or it itself: an op that could run before the position `at`. `None`
    /// where all of that needs the op which runs there.
    fn held_back(
        &self,
        op: OpId,
        witness: &Positions,
        at: usize,
        known: &mut FxHashMap<OpId, Option<OpId>>,
    ) -> Option<OpId> {
        let graph = &self.schedule_graph;
        let mut path = vec![op];
        let root = loop {
            let &last = path.last()?;
            if let Some(&root) = known.get(&last) {
                break root;
            }
            let makers = graph.reads(last).iter().filter_map(|&b| graph.maker(b));
            let before = makers.chain(graph.after(last).iter().copied()).filter(|&p| p < last);
            // The latest of them: what is behind it waits for it in any case.
            let latest = before.filter_map(|p| Some((witness.of(p)?, p))).max();
            match latest {
                Some((position, earlier)) if position > at => path.push(earlier),
                Some((position, _)) if position == at => break None,
                _ => break Some(last),
            }
        };
        known.extend(path.into_iter().map(|op| (op, root)));
        root
    }
}

/// Where each op stands in an order.
struct Positions(Vec<Option<usize>>);

impl Positions {
    fn new(order: &[OpId], count: usize) -> Positions {
        let mut positions = vec![None; count];
        for (at, op) in order.iter().enumerate() {
            if let Some(position) = positions.get_mut(op.0 as usize) {
                *position = Some(at);
            }
        }
        Positions(positions)
    }

    fn of(&self, op: OpId) -> Option<usize> {
        self.0.get(op.0 as usize).copied().flatten()
    }
}
