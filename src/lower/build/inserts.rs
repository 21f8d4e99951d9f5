//! Pieces that are written into one buffer, such as gradients into the bucket that ranks exchange.
//!
//! A chain of inserts, each into the result of the one before that nobody else reads, has one buffer
//! in every order. A piece that only its insert reads is made in that buffer, at its place: then the
//! insert has nothing left to do. The op that starts the buffer comes before all others that write
//! into it.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Unit, UnitId, Units};
use crate::{
    ir::{Node, NodeId, ValueId},
    lower::{fuse::is_elementwise, layout::Laid},
    ops::{Alias, Insert, Op, SliceRange},
    plan::Target,
};

/// The chains of a step.
#[derive(Debug, Default)]
pub(super) struct Inserts {
    chains: Vec<Chain>,
    /// The value in whose buffer an insert's result lies: that of the last of its chain.
    root: FxHashMap<ValueId, ValueId>,
    /// Pieces that are made in their buffer: its value, and the element where they start.
    made_inside: FxHashMap<ValueId, (ValueId, usize)>,
    /// Inserts whose piece is there already.
    idle: FxHashSet<NodeId>,
}

#[derive(Debug)]
struct Chain {
    /// In order.
    inserts: Vec<NodeId>,
    /// Of each insert, the value that can be made inside.
    pieces: Vec<Option<ValueId>>,
}

impl Inserts {
    pub(super) fn find(laid: &Laid, target: Target) -> Inserts {
        let mut inserts = Inserts::default();
        if !laid.graph.nodes().any(|n| matches!(n.op(), Op::Insert(_))) {
            return inserts;
        }
        let readers = readers(laid);
        for chain in chains(laid, &readers) {
            inserts.add(laid, target, &readers, chain);
        }
        inserts
    }

    /// The value whose buffer holds this one.
    pub(super) fn root(&self, value: ValueId) -> ValueId {
        let inside = self.made_inside.get(&value).map(|(root, _)| root);
        inside.or(self.root.get(&value)).copied().unwrap_or(value)
    }

    /// Where in that buffer it starts, in elements.
    pub(super) fn offset(&self, value: ValueId) -> usize {
        self.made_inside.get(&value).map_or(0, |(_, offset)| *offset)
    }

    pub(super) fn is_idle(&self, node: NodeId) -> bool {
        self.idle.contains(&node)
    }

    /// Whether an insert does not even read the value that it writes into: the parts cover it.
    pub(super) fn starts_idle(&self, node: &Node<'_>) -> bool {
        self.is_idle(node.id) && node.args().first().is_none_or(|whole| !self.root.contains_key(whole))
    }

    fn add(&mut self, laid: &Laid, target: Target, readers: &[Readers], chain: Vec<NodeId>) {
        let graph = &laid.graph;
        let parts: Vec<Option<(usize, usize)>> = chain.iter().map(|&n| part(&graph.node(n))).collect();
        let Some(&last) = chain.last() else { return };
        let root = graph.node(last).result(0);
        // Parts that overlap must be written in their order, each by an op of its own.
        let mut known: Vec<(usize, usize)> = parts.iter().copied().flatten().collect();
        known.sort_unstable();
        let is_apart = known.windows(2).all(|w| matches!(w, [a, b] if a.0 + a.1 <= b.0));
        if known.len() < chain.len() || !is_apart || readers[root.0 as usize].is_written {
            return;
        }
        let covered: usize = known.iter().map(|(_, size)| size).sum();
        let mut pieces: Vec<Option<ValueId>> =
            chain.iter().map(|&n| piece(laid, readers, &graph.node(n))).collect();
        // What no part covers comes with the value that the first insert copies. One that waits for other
        // ops begins the buffer itself, behind them.
        let waits = chain.first().is_some_and(|&first| !graph.node(first).after().is_empty());
        if (waits || covered < graph.ty(root).elements())
            && let Some(first) = pieces.first_mut()
        {
            *first = None;
        }
        let size = graph.ty(root).dtype().size();
        for (piece, part) in pieces.iter_mut().zip(&parts) {
            *piece = piece.filter(|_| part.is_some_and(|(start, _)| is_aligned(target, start * size)));
        }
        for ((&insert, piece), part) in chain.iter().zip(&pieces).zip(&parts) {
            self.root.insert(graph.node(insert).result(0), root);
            if let (Some(piece), Some((start, _))) = (piece, part) {
                self.made_inside.insert(*piece, (root, *start));
                self.idle.insert(insert);
            }
        }
        self.chains.push(Chain { inserts: chain, pieces });
    }
}

/// Kernels of the GPU write several elements at once.
fn is_aligned(target: Target, byte: usize) -> bool {
    match target {
        Target::Cpu => true,
        Target::Cuda => byte.is_multiple_of(16),
    }
}

/// Who reads the memory of a value or of a view of it.
#[derive(Debug, Clone, Copy, Default)]
struct Readers {
    /// Operands of ops that are neither views nor barriers.
    count: u32,
    /// It is an output, or committed to a persistent tensor.
    is_written: bool,
}

fn readers(laid: &Laid) -> Vec<Readers> {
    let mut readers = vec![Readers::default(); laid.graph.value_count()];
    let base = |value: ValueId| laid.places[value.0 as usize].base.0 as usize;
    for node in laid.graph.nodes() {
        let is_view = match node.op() {
            Op::Barrier(_) => true,
            Op::CollectiveDone(_) | Op::Write(_) | Op::Print(_) => false,
            op => op.memory().alias == Alias::View,
        };
        for &arg in node.args().iter().filter(|_| !is_view) {
            readers[base(arg)].count += 1;
            readers[base(arg)].is_written |= matches!(node.op(), Op::Write(_));
        }
    }
    for output in &laid.graph.outputs {
        readers[base(output.value)].count += 1;
    }
    readers
}

/// Inserts into a vector, each into the result of the one before that nothing else reads.
fn chains(laid: &Laid, readers: &[Readers]) -> Vec<Vec<NodeId>> {
    let mut chains: Vec<Vec<NodeId>> = Vec::new();
    let mut of_result: FxHashMap<ValueId, usize> = FxHashMap::default();
    for node in laid.graph.nodes() {
        let (Op::Insert(_), &[whole, _]) = (node.op(), node.args()) else { continue };
        let is_only_reader = readers[whole.0 as usize].count == 1;
        let chain = match of_result.remove(&whole).filter(|_| is_only_reader) {
            Some(chain) => chain,
            None => {
                chains.push(Vec::new());
                chains.len() - 1
            }
        };
        chains[chain].push(node.id);
        of_result.insert(node.result(0), chain);
    }
    chains
}

/// First element and number of elements, for an insert without gaps into a vector.
fn part(node: &Node<'_>) -> Option<(usize, usize)> {
    let Op::Insert(Insert { ranges }) = node.op() else { return None };
    match **ranges {
        [SliceRange { start, step: 1, size }] => Some((start, size)),
        _ => None,
    }
}

/// The value that an insert writes, where its maker can write it into the whole.
fn piece(laid: &Laid, readers: &[Readers], insert: &Node<'_>) -> Option<ValueId> {
    let graph = &laid.graph;
    let &[_, piece] = insert.args() else { return None };
    let place = &laid.places[piece.0 as usize];
    let ty = graph.ty(piece);
    let is_all = place.layout.offset == 0
        && place.layout.is_dense(ty.shape())
        && ty.elements() == graph.ty(place.base).elements()
        && ty.elements() > 0;
    let maker = graph.producer(place.base).0;
    let writes_anywhere = is_elementwise(maker.op())
        || maker.op().memory().alias == Alias::Fresh
            && !matches!(
                maker.op(),
                Op::Input(_)
                    | Op::Const(_)
                    | Op::Scalar(_)
                    | Op::Read(_)
                    | Op::Opaque(_)
                    | Op::Insert(_)
                    | Op::CollectiveStart(_)
            );
    let is_own = readers[place.base.0 as usize].count == 1;
    (is_all && writes_anywhere && is_own).then_some(place.base)
}

impl Units<'_> {
    /// Puts the op that starts the buffer of a chain before the others that write into it. A piece
    /// whose maker the start waits for gets a buffer of its own.
    pub(super) fn order_inserts(&mut self) {
        let mut seen = vec![false; self.units.len()];
        for chain in std::mem::take(&mut self.inserts.chains) {
            let Some(&first) = chain.inserts.first() else { continue };
            let starts = match chain.pieces.first().copied().flatten() {
                Some(piece) => self.maker(piece),
                None => self.of_node[first.0 as usize],
            };
            let Some(start) = starts else { continue };
            self.mark_before(start, &mut seen);
            for (&insert, &piece) in chain.inserts.iter().zip(&chain.pieces) {
                let (Some(piece), Some(unit)) = (piece, self.of_node[insert.0 as usize]) else { continue };
                match self.maker(piece) {
                    Some(maker) if maker == start || !seen[maker as usize] => self.wait(maker, start),
                    _ => {
                        self.inserts.made_inside.remove(&piece);
                        self.inserts.idle.remove(&insert);
                        self.units[unit as usize] = Unit::Node(insert);
                    }
                }
            }
            seen.fill(false);
        }
    }

    fn maker(&self, value: ValueId) -> Option<UnitId> {
        self.of_node[self.graph.producer(value).0.id.0 as usize]
    }

    /// Marks everything that a unit waits for, directly or not.
    fn mark_before(&self, unit: UnitId, seen: &mut [bool]) {
        let mut stack = vec![unit];
        while let Some(unit) = stack.pop() {
            for &before in &self.before[unit as usize] {
                if !std::mem::replace(&mut seen[before as usize], true) {
                    stack.push(before);
                }
            }
        }
    }
}
