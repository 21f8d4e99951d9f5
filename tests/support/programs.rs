//! Random programs that train a small network: nested checkpoint regions, state, slices, clipping.

use tg::{
    exec::{Tensor, cpu::ScalarPage},
    grad::gradients,
    ir::{
        Bind, DType, Graph, Input, Origins, Output, Policy, Region, RegionId, Role, Slot, SlotId, SlotKind,
        Type, ValueId,
    },
    ops::{self, Binary, Number, OpError, ReduceKind, Unary},
};

/// A small generator of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

// Large enough for slices that take fewer of the arena's units than what they are cut from.
const ROWS: usize = 12;
const WIDTH: usize = 16;

struct Program {
    graph: Graph,
    params: Vec<(SlotId, ValueId)>,
    random: Random,
    /// The regions can be turned off, for the plain run.
    regions: bool,
    bind: Bind,
    keys: u64,
    /// Small slices of large values, for later.
    kept: Vec<ValueId>,
}

impl Program {
    fn param(&mut self, shape: &[usize]) -> Result<ValueId, OpError> {
        // Some parameters are shared.
        if self.random.below(4) == 0
            && let Some(&(_, known)) = self.params.iter().find(|p| self.graph.ty(p.1).shape() == shape)
        {
            return Ok(known);
        }
        let slot = SlotId(self.graph.slots.len() as u32);
        let ty = Type::new(DType::F32, shape)?;
        self.graph.slots.push(Slot {
            name: format!("p{}", slot.0).into(),
            ty,
            kind: SlotKind::Param { trainable: true },
        });
        let stamp = self.graph.cursor;
        self.graph.cursor.region = None;
        let value = self.graph.value(ops::Read { slot }, &[])?;
        self.graph.cursor = stamp;
        self.params.push((slot, value));
        Ok(value)
    }

    /// One layer: [ROWS, WIDTH] to [ROWS, WIDTH].
    fn layer(&mut self, x: ValueId, others: &[ValueId]) -> Result<ValueId, OpError> {
        let shape = [ROWS, WIDTH];
        match self.random.below(13) {
            0 => {
                let w = self.param(&[WIDTH, WIDTH])?;
                let b = self.param(&[WIDTH])?;
                // As one op, or as two.
                if self.params.len() % 4 < 2 {
                    return self.graph.linear(x, w, b);
                }
                let w = self.graph.transpose_last(w)?;
                let y = self.graph.matmul(x, w)?;
                let b = self.graph.broadcast(b, &shape)?;
                self.graph.add(y, b)
            }
            1 => {
                let op = [Unary::Relu, Unary::Tanh, Unary::Gelu, Unary::Sigmoid][self.random.below(4)];
                self.graph.unary(op, x)
            }
            2 => {
                let other = others[self.random.below(others.len())];
                let op = [Binary::Add, Binary::Mul, Binary::Sub, Binary::Max][self.random.below(4)];
                self.graph.binary(op, x, other)
            }
            3 => {
                // Dropout.
                self.keys += 1;
                let ty = self.graph.ty(x).clone();
                let random = ops::Random {
                    ty,
                    distribution: ops::Distribution::Uniform,
                    key: self.keys,
                    per_step: true,
                };
                let bits = self.graph.value(random, &[])?;
                let rate = self.graph.splat_like(x, 0.3)?;
                let keep = self.graph.binary(Binary::Lt, rate, bits)?;
                let zero = self.graph.splat_like(x, 0.0)?;
                self.graph.select(keep, x, zero)
            }
            4 => {
                let (w, b) = (self.param(&[WIDTH])?, self.param(&[WIDTH])?);
                self.graph.value(ops::LayerNorm { eps: Number::float(1e-5) }, &[x, w, b])
            }
            5 => self.graph.value(ops::Softmax, &[x]),
            6 => {
                // Through a transposed product and back.
                let t = self.graph.transpose_last(x)?;
                let gram = self.graph.matmul(t, x)?;
                let y = self.graph.matmul(x, gram)?;
                self.graph.unary(Unary::Tanh, y)
            }
            7 => {
                // Halves swapped.
                let half = |start| ops::SliceRange { start, step: 1, size: WIDTH / 2 };
                let all = ops::SliceRange { start: 0, step: 1, size: ROWS };
                let left = self.graph.value(ops::Slice { ranges: [all, half(0)].into() }, &[x])?;
                let right = self.graph.value(ops::Slice { ranges: [all, half(WIDTH / 2)].into() }, &[x])?;
                self.graph.value(ops::Concat { axis: 1 }, &[right, left])
            }
            8 => {
                // A part of something larger, and a smaller one for later.
                let w = self.param(&[WIDTH, 4 * WIDTH])?;
                let large = self.graph.matmul(x, w)?;
                let large =
                    if self.random.below(2) == 0 { self.graph.unary(Unary::Relu, large)? } else { large };
                let start = self.random.below(3 * WIDTH);
                let part = self.columns(large, start, WIDTH)?;
                let at = self.random.below(4 * WIDTH);
                let column = self.columns(large, at, 1)?;
                self.kept.push(column);
                if self.random.below(2) == 0 {
                    let row = self.row(large)?;
                    let part = self.slice(row, [(0, 1), (0, WIDTH)])?;
                    self.kept.push(part);
                }
                // Read by whatever comes next, or only element by element.
                if self.random.below(2) == 0 { Ok(part) } else { self.graph.unary(Unary::Tanh, part) }
            }
            9 => {
                // A row or a column of the value at hand, for later.
                let slice = if self.random.below(2) == 0 {
                    self.row(x)?
                } else {
                    let start = self.random.below(WIDTH);
                    self.columns(x, start, 1)?
                };
                self.kept.push(slice);
                self.graph.unary(Unary::Sigmoid, x)
            }
            10 if !self.kept.is_empty() => {
                let kept = self.kept[self.random.below(self.kept.len())];
                let kept = if self.random.below(3) == 0 {
                    let barrier =
                        self.graph.push(ops::Barrier { kind: ops::BarrierKind::User }, &[kept, x])?;
                    self.graph.node(barrier).result(0)
                } else {
                    kept
                };
                let kept = self.graph.value(ops::Broadcast { shape: shape.into() }, &[kept])?;
                let op = [Binary::Add, Binary::Mul, Binary::Max][self.random.below(3)];
                self.graph.binary(op, x, kept)
            }
            11 => {
                // Parts of a vector: into zeros, or into a value that may be read later; with a gap or
                // without; some read by others too.
                let (all, half) = (ROWS * WIDTH, ROWS * WIDTH / 2);
                let range = |start, size| [ops::SliceRange { start, step: 1, size }];
                let w = self.param(&[WIDTH, WIDTH / 2])?;
                let left = self.graph.matmul(x, w)?;
                if self.random.below(3) == 0 {
                    let column = self.columns(left, 1, 1)?;
                    self.kept.push(column);
                }
                let left = self.graph.reshape(left, &[half])?;
                let right = self.columns(x, 1, WIDTH / 2)?;
                let right = self.graph.unary(Unary::Tanh, right)?;
                let right = self.graph.reshape(right, &[half])?;
                let start = match self.random.below(2) {
                    0 => self.graph.splat_like(x, 0.5)?,
                    _ => x,
                };
                let mut whole = self.graph.reshape(start, &[all])?;
                let mut parts = vec![(left, half), (right, 0)];
                if self.random.below(2) == 0 {
                    parts.reverse();
                }
                parts.truncate(1 + self.random.below(2));
                for (part, start) in parts {
                    whole = self.graph.insert(whole, part, &range(start, half))?;
                }
                self.graph.reshape(whole, &shape)
            }
            _ => {
                let sum = self.graph.reduce_keep(ReduceKind::Mean, x, &[0])?;
                let sum = self.graph.broadcast(sum, &shape)?;
                self.graph.sub(x, sum)
            }
        }
    }

    fn slice(&mut self, x: ValueId, ranges: [(usize, usize); 2]) -> Result<ValueId, OpError> {
        let range = |(start, size)| ops::SliceRange { start, step: 1, size };
        self.graph.value(ops::Slice { ranges: ranges.map(range).into() }, &[x])
    }

    fn columns(&mut self, x: ValueId, start: usize, size: usize) -> Result<ValueId, OpError> {
        self.slice(x, [(0, ROWS), (start, size)])
    }

    /// Some row, as a matrix of one row.
    fn row(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let (row, width) = (self.random.below(ROWS), self.graph.ty(x).shape()[1]);
        self.slice(x, [(row, 1), (0, width)])
    }

    fn chain(&mut self, mut x: ValueId, length: usize, depth: usize) -> Result<ValueId, OpError> {
        let mut seen = vec![x];
        for _ in 0..length {
            x = if depth < 3 && self.random.below(3) == 0 {
                let inner = 1 + self.random.below(4);
                self.region(x, inner, depth + 1)?
            } else {
                self.layer(x, &seen)?
            };
            seen.push(x);
        }
        Ok(x)
    }

    fn region(&mut self, x: ValueId, length: usize, depth: usize) -> Result<ValueId, OpError> {
        if !self.regions {
            let kept = self.kept.len();
            let y = self.chain(x, length, depth)?;
            self.kept.truncate(kept);
            return Ok(y);
        }
        let parent = self.graph.cursor.region;
        let start = self.graph.len() as u32;
        let id = RegionId(self.graph.regions.len() as u32);
        self.graph.regions.push(Region {
            parent,
            bind: self.bind,
            policy: Policy::Nothing,
            keep: Vec::new(),
            outputs: Vec::new(),
            origin: Origins::NOWHERE,
            nodes: start..start,
        });
        self.graph.cursor.region = Some(id);
        // What is made inside is used inside.
        let kept = self.kept.len();
        let y = self.chain(x, length, depth)?;
        self.kept.truncate(kept);
        self.graph.cursor.region = parent;
        let end = self.graph.len() as u32;
        let region = &mut self.graph.regions[id.0 as usize];
        region.nodes = start..end;
        region.outputs = vec![y];
        Ok(y)
    }
}

/// A step that trains a random network; the same network whatever `regions` and `bind`.
pub fn program(seed: u64, regions: bool, bind: Bind) -> Result<Graph, OpError> {
    let mut p = Program {
        graph: Graph::new(),
        params: Vec::new(),
        random: Random(seed),
        regions,
        bind,
        keys: 0,
        kept: Vec::new(),
    };
    p.graph.inputs.push(Input { name: "x".into(), ty: Type::new(DType::F32, [ROWS, WIDTH])? });
    let x = p.graph.value(ops::Input { index: 0 }, &[])?;
    let w = p.param(&[WIDTH, WIDTH])?;
    let h = p.graph.matmul(x, w)?;
    let length = 2 + p.random.below(8);
    let y = p.chain(h, length, 0)?;
    let square = p.graph.mul(y, y)?;
    let loss = p.graph.reduce(ReduceKind::Mean, square, &[0, 1])?;
    let seed = p.graph.constant(DType::F32, 1.0)?;
    let wrt: Vec<ValueId> = p.params.iter().map(|p| p.1).collect();
    let grads = gradients(&mut p.graph, &[(loss, seed)], &wrt).map_err(|e| e.error)?;
    let clip = p.random.below(4) == 0;
    let scale = if clip {
        let mut total: Option<ValueId> = None;
        for &grad in grads.iter().flatten() {
            let axes: Vec<usize> = (0..p.graph.ty(grad).rank()).collect();
            let square = p.graph.mul(grad, grad)?;
            let sum = p.graph.reduce(ReduceKind::Sum, square, &axes)?;
            total = Some(match total {
                Some(total) => p.graph.add(total, sum)?,
                None => sum,
            });
        }
        total.map(|t| p.graph.unary(Unary::Rsqrt, t)).transpose()?
    } else {
        None
    };
    for (&(slot, value), grad) in p.params.clone().iter().zip(grads) {
        let Some(mut grad) = grad else { continue };
        if let Some(scale) = scale {
            let shape = p.graph.ty(grad).clone();
            let scale = p.graph.broadcast(scale, shape.shape())?;
            grad = p.graph.mul(grad, scale)?;
        }
        // Momentum, a state of its own.
        let state = SlotId(p.graph.slots.len() as u32);
        let ty = p.graph.ty(value).clone();
        p.graph.slots.push(Slot { name: format!("m{}", slot.0).into(), ty, kind: SlotKind::OptimizerState });
        p.graph.cursor.role = Role::Update { slot };
        let old = p.graph.value(ops::Read { slot: state }, &[])?;
        let decay = p.graph.splat_like(grad, 0.9)?;
        let kept = p.graph.mul(old, decay)?;
        let sum = p.graph.add(kept, grad)?;
        let sum = p.graph.value(ops::Write { slot: state }, &[sum])?;
        let rate = p.graph.splat_like(grad, 0.1)?;
        let step = p.graph.mul(rate, sum)?;
        let new = p.graph.sub(value, step)?;
        let new = p.graph.value(ops::Write { slot }, &[new])?;
        // Some parameters are written twice, and some of their values are returned: the one before
        // the step, the one in between, the last one.
        let last = if p.random.below(3) == 0 {
            let shrink = p.graph.splat_like(new, 0.99)?;
            let last = p.graph.mul(new, shrink)?;
            p.graph.value(ops::Write { slot }, &[last])?
        } else {
            new
        };
        for returned in [value, new, last] {
            if p.random.below(4) == 0 {
                let origin = Origins::NOWHERE;
                p.graph.outputs.push(Output { name: "p".into(), value: returned, origin });
            }
        }
        p.graph.cursor.role = Role::Forward;
    }
    let origin = Origins::NOWHERE;
    p.graph.outputs.push(Output { name: "loss".into(), value: loss, origin });
    p.graph.outputs.push(Output { name: "w".into(), value: w, origin });
    // A part of the last value, or all of it; slices that were kept.
    let y = match p.random.below(3) {
        0 => y,
        1 => p.row(y)?,
        _ => p.columns(y, 3, 2)?,
    };
    p.graph.outputs.push(Output { name: "y".into(), value: y, origin });
    for kept in p.kept.clone() {
        if p.random.below(3) == 0 {
            p.graph.outputs.push(Output { name: "kept".into(), value: kept, origin });
        }
    }
    Ok(p.graph)
}

fn tensor(shape: &[usize], random: &mut Random) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| (random.below(2000) as f32 - 1000.0) / 1500.0).collect();
    Tensor::from_slice(shape, &values).expect("the shape fits")
}

pub fn start(graph: &Graph) -> (Vec<Tensor>, Vec<Tensor>) {
    let mut random = Random(7);
    let slots = graph
        .slots
        .iter()
        .map(|s| match s.kind {
            SlotKind::Param { .. } => tensor(s.ty.shape(), &mut random),
            _ => Tensor::zeros(s.ty.clone()),
        })
        .collect();
    let inputs = graph.inputs.iter().map(|i| tensor(i.ty.shape(), &mut random)).collect();
    (slots, inputs)
}

pub const STEPS: u64 = 3;

pub fn page(step: u64) -> ScalarPage {
    ScalarPage { values: Vec::new(), seed: 11, step }
}
