//! Case 1 as a schedule graph: blocks of two convolutions with a relu each, checkpointed or not,
//! updates fused into the backward pass.

use tg::schedule::{BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph};

pub const MIB: u64 = 1 << 20;

/// What a region's barrier holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    None,
    /// Saved input and incoming gradient.
    Grad,
    /// And the updates of the region after it, and inside a region each layer's weight gradient
    /// and update before the step back.
    All,
}

#[derive(Debug, Clone, Copy)]
pub struct Block64 {
    pub blocks: usize,
    pub checkpoint: bool,
    pub binding: Binding,
}

const ACTIVATION: u64 = 49 * MIB;
const WEIGHT: u64 = 4 * MIB;
const BIAS: u64 = 4096;
const PLAIN: BufferFlags = BufferFlags { persistent: false, input: false, output: false };

struct Builder {
    graph: GraphBuilder,
    weight: Vec<BufferId>,
    bias: Vec<BufferId>,
}

impl Builder {
    fn make(
        &mut self,
        bytes: u64,
        reads: &[BufferId],
        after: &[OpId],
        over: &[BufferId],
    ) -> (BufferId, OpId) {
        let made = self.graph.buffer(bytes, PLAIN);
        let pairs: Vec<_> = over.iter().map(|&r| (made, r)).collect();
        (made, self.graph.op(reads, &[made], after, &pairs, 0))
    }

    /// The gradient of a layer's weight and bias, each with its update, which follows every reader
    /// of the old value.
    fn update(
        &mut self,
        layer: usize,
        x: BufferId,
        dz: BufferId,
        after: &[OpId],
        readers: &[OpId],
    ) -> Vec<OpId> {
        let (gw, _) = self.make(WEIGHT, &[x, dz], after, &[]);
        let weight = self.graph.op(&[gw, self.weight[layer]], &[], readers, &[], 0);
        let (gb, _) = self.make(BIAS, &[dz], after, &[]);
        let bias = self.graph.op(&[gb, self.bias[layer]], &[], readers, &[], 0);
        vec![weight, bias]
    }
}

pub fn case1(case: Block64) -> ScheduleGraph {
    let persistent = BufferFlags { persistent: true, ..PLAIN };
    let mut graph = GraphBuilder::new();
    let weight = (0..case.blocks * 2).map(|_| graph.buffer(WEIGHT, persistent)).collect();
    let bias = (0..case.blocks * 2).map(|_| graph.buffer(BIAS, persistent)).collect();
    let x0 = graph.buffer(ACTIVATION, BufferFlags { input: true, ..PLAIN });
    let mut b = Builder { graph, weight, bias };
    let conv = |b: &mut Builder, layer: usize, x: BufferId, after: &[OpId]| {
        let reads = [x, b.weight[layer], b.bias[layer]];
        b.make(ACTIVATION, &reads, after, &[])
    };

    // Convolution and relu are one op: the mask comes from the result.
    let mut inputs = vec![x0];
    let mut inner = Vec::new();
    let mut results = Vec::new();
    let mut forward_readers = vec![Vec::new(); case.blocks * 2];
    for k in 0..case.blocks {
        let (r1, first) = conv(&mut b, 2 * k, inputs[k], &[]);
        let (y, second) = conv(&mut b, 2 * k + 1, r1, &[]);
        forward_readers[2 * k].push(first);
        forward_readers[2 * k + 1].push(second);
        inner.push(r1);
        results.push(y);
        inputs.push(y);
    }
    let loss = b.graph.buffer(256, BufferFlags { output: true, ..PLAIN });
    let loss_op = b.graph.op(&[results[case.blocks - 1]], &[loss], &[], &[], 0);

    // The gradient of `sum` is a broadcast constant: it takes no room.
    let mut incoming: Option<(BufferId, OpId)> = None;
    let mut updates: Vec<OpId> = Vec::new();
    for k in (0..case.blocks).rev() {
        let recompute = case.checkpoint && k > 0;
        let mut bound = Vec::new();
        if recompute && case.binding != Binding::None {
            bound.extend(incoming.map(|(_, op)| op));
            if case.binding == Binding::All {
                bound.extend(&updates);
                if incoming.is_none() {
                    bound.push(loss_op);
                }
            }
        }
        let (r1, y) = if recompute {
            let barrier =
                if bound.is_empty() { Vec::new() } else { vec![b.graph.op(&[], &[], &bound, &[], 0)] };
            let (r1, first) = conv(&mut b, 2 * k, inputs[k], &barrier);
            let (y, second) = conv(&mut b, 2 * k + 1, r1, &[]);
            forward_readers[2 * k].push(first);
            forward_readers[2 * k + 1].push(second);
            (r1, y)
        } else {
            (inner[k], results[k])
        };
        let dz2 = match incoming {
            Some((g, _)) => b.make(ACTIVATION, &[g, y], &[], &[g, y]).0,
            None => b.make(ACTIVATION, &[y], &[], &[y]).0,
        };
        // The step back reads the old weight, so the update waits for it, unless the step back
        // waits for the gradient: then only the update does.
        let (w1, w2) = (b.weight[2 * k], b.weight[2 * k + 1]);
        let (gw2, gw2_op) = b.make(WEIGHT, &[r1, dz2], &[], &[]);
        let (gb2, gb2_op) = b.make(BIAS, &[dz2], &[], &[]);
        let inside: Vec<OpId> =
            if recompute && case.binding == Binding::All { vec![gw2_op, gb2_op] } else { Vec::new() };
        let (dr1, dr1_op) = b.make(ACTIVATION, &[dz2, w2], &inside, &[]);
        let mut readers = forward_readers[2 * k + 1].clone();
        readers.push(dr1_op);
        let weight2 = b.graph.op(&[gw2, w2], &[], &readers, &[], 0);
        let bias2 = b.graph.op(&[gb2, b.bias[2 * k + 1]], &[], &readers, &[], 0);
        updates = vec![weight2, bias2];
        let (dz1, _) = b.make(ACTIVATION, &[dr1, r1], &inside, &[dr1, r1]);
        let mut readers = forward_readers[2 * k].clone();
        if k > 0 {
            let (gw1, gw1_op) = b.make(WEIGHT, &[inputs[k], dz1], &[], &[]);
            let (gb1, gb1_op) = b.make(BIAS, &[dz1], &[], &[]);
            let inside: Vec<OpId> =
                if recompute && case.binding == Binding::All { vec![gw1_op, gb1_op] } else { Vec::new() };
            let (dx, dx_op) = b.make(ACTIVATION, &[dz1, w1], &inside, &[]);
            readers.push(dx_op);
            updates.push(b.graph.op(&[gw1, w1], &[], &readers, &[], 0));
            updates.push(b.graph.op(&[gb1, b.bias[2 * k]], &[], &readers, &[], 0));
            incoming = Some((dx, dx_op));
        } else {
            let after = readers.clone();
            b.update(0, inputs[0], dz1, &[], &after);
        }
    }
    b.graph.finish()
}
