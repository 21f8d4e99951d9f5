//! How the worst order that was found differs from the planned one: what it has alive at its worst
//! moment that the planned order has not alive when the same op runs, and the ops that moved there.

use rustc_hash::FxHashMap;

use super::Plan;
use crate::schedule::{BufferId, OpId};

/// Where an op went in the worst order, seen from the op that runs at its worst moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moved {
    /// From before it to behind it.
    Later,
    /// From behind it to before it.
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
    /// One for each buffer that only the witness has alive then, in source order.
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
            if alive(&planned, here) {
                let replaces = self.schedule.overwrites.get(buffer.0 as usize).is_some_and(Option::is_some);
                if replaces && maker == Some(op) {
                    overwritten_bytes = overwritten_bytes.saturating_add(bytes);
                } else {
                    planned_bytes += u128::from(bytes);
                }
                continue;
            }
            if !alive(&witness, at) {
                continue;
            }
            let is_later = |r: &&OpId| witness.of(**r).is_some_and(|p| p >= at);
            let moved = match maker.filter(|&m| planned.of(m).is_some_and(|p| p > here)) {
                Some(maker) => Some((maker, Moved::Earlier)),
                None => readers
                    .iter()
                    .filter(is_later)
                    .max_by_key(|&&r| planned.of(r))
                    .map(|&reader| (self.held_back(reader, &witness, at, &mut known), Moved::Later)),
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

    /// The op that an op which runs late waits for, and that could have run.
    fn held_back(&self, op: OpId, witness: &Positions, at: usize, known: &mut FxHashMap<OpId, OpId>) -> OpId {
        let graph = &self.schedule_graph;
        let mut path = vec![op];
        let root = loop {
            let Some(&last) = path.last() else { return op };
            if let Some(&root) = known.get(&last) {
                break root;
            }
            let makers = graph.reads(last).iter().filter_map(|&b| graph.maker(b));
            let mut before = makers.chain(graph.after(last).iter().copied());
            match before.find(|&p| p < last && witness.of(p).is_some_and(|position| position >= at)) {
                Some(earlier) => path.push(earlier),
                None => break last,
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
