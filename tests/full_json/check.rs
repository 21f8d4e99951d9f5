//! The checker. Its only source is the text of the reference on `--full`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    cut::{Cut, least},
    refuted::follow,
};

pub type Check<T = ()> = Result<T, String>;

pub struct Buffer {
    pub bytes: u64,
    pub persistent: bool,
    pub input: bool,
    pub output: bool,
}

pub struct Op {
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    pub makes: Vec<usize>,
    pub may_overwrite: Vec<(usize, usize)>,
    pub after: Vec<usize>,
    pub workspace: u64,
}

pub struct Step {
    pub buffers: Vec<Buffer>,
    pub ops: Vec<Op>,
    pub maker: Vec<Option<usize>>,
    pub readers: Vec<Vec<usize>>,
    order: Vec<usize>,
    overwrites: Vec<(usize, usize, usize)>,
    offsets: Vec<Option<u64>>,
    workspace_offsets: Vec<Option<u64>>,
    frees: Vec<(usize, usize)>,
    witness: Vec<usize>,
    witness_position: usize,
    bound_bytes: u64,
    bound_op: Option<usize>,
    bound_before: Vec<usize>,
    branched: bool,
    refutation: Value,
    /// The bound holds for slices that are copied and for slices that are not.
    relaxed: bool,
    figures: BTreeMap<String, u64>,
    worst_exact: bool,
}

fn number(value: &Value, what: &str) -> Check<u64> {
    value.as_u64().ok_or_else(|| format!("{what} is {value}, not a number"))
}

fn numbers(value: &Value, what: &str) -> Check<Vec<usize>> {
    let list = value.as_array().ok_or_else(|| format!("{what} is not a list"))?;
    list.iter().map(|v| Ok(number(v, what)? as usize)).collect()
}

fn lists(value: &Value, what: &str) -> Check<Vec<Vec<usize>>> {
    let list = value.as_array().ok_or_else(|| format!("{what} is not a list"))?;
    list.iter().map(|v| numbers(v, what)).collect()
}

fn flag(value: &Value, what: &str) -> Check<bool> {
    value.as_bool().ok_or_else(|| format!("{what} is {value}, not true or false"))
}

fn offsets(value: &Value, what: &str) -> Check<Vec<Option<u64>>> {
    let list = value.as_array().ok_or_else(|| format!("{what} is not a list"))?;
    list.iter().map(|v| if v.is_null() { Ok(None) } else { number(v, what).map(Some) }).collect()
}

fn ensure(holds: bool, fault: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(fault()) }
}

/// Who waits for each op, from what each waits for.
pub fn reversed(preds: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut succs = vec![Vec::new(); preds.len()];
    for (k, list) in preds.iter().enumerate() {
        for &p in list {
            succs[p].push(k);
        }
    }
    succs
}

impl Step {
    /// What each op waits for, with edges (first, second) on top.
    pub fn preds(&self, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
        let of =
            |o: &Op| o.reads.iter().filter_map(|&b| self.maker[b]).chain(o.after.iter().copied()).collect();
        let mut preds: Vec<Vec<usize>> = self.ops.iter().map(of).collect();
        for &(first, second) in edges {
            preds[second].push(first);
        }
        preds
    }

    pub fn read(step: &Value) -> Check<Step> {
        let mut buffers = Vec::new();
        for (k, b) in step["buffers"].as_array().ok_or("no buffers")?.iter().enumerate() {
            ensure(number(&b["id"], "id")? as usize == k, || format!("buffer {k} has another id"))?;
            ensure(b["alias_of"].is_null(), || format!("buffer {k} is an alias"))?;
            buffers.push(Buffer {
                bytes: number(&b["bytes"], "bytes")?,
                persistent: flag(&b["persistent"], "persistent")?,
                input: flag(&b["input"], "input")?,
                output: flag(&b["output"], "output")?,
            });
        }
        let mut ops = Vec::new();
        for (k, op) in step["ops"].as_array().ok_or("no ops")?.iter().enumerate() {
            ensure(number(&op["id"], "id")? as usize == k, || format!("op {k} has another id"))?;
            let pairs = lists(&op["may_overwrite"], "may_overwrite")?;
            ops.push(Op {
                reads: numbers(&op["reads"], "reads")?,
                writes: numbers(&op["writes"], "writes")?,
                makes: numbers(&op["makes"], "makes")?,
                may_overwrite: pairs.iter().map(|p| (p[0], p[1])).collect(),
                after: numbers(&op["after"], "after")?,
                workspace: number(&op["workspace_bytes"], "workspace_bytes")?,
            });
        }
        let mut maker = vec![None; buffers.len()];
        let mut readers = vec![Vec::new(); buffers.len()];
        for (k, op) in ops.iter().enumerate() {
            for &b in &op.makes {
                ensure(b < buffers.len(), || format!("op {k} makes buffer {b}, which is not there"))?;
                let flags = &buffers[b];
                ensure(!flags.persistent && !flags.input, || format!("op {k} makes buffer {b}"))?;
                ensure(maker[b].replace(k).is_none(), || format!("buffer {b} is made twice"))?;
            }
            for &b in &op.reads {
                ensure(b < buffers.len(), || format!("op {k} reads buffer {b}, which is not there"))?;
                readers[b].push(k);
            }
        }
        let mut figures = BTreeMap::new();
        for name in [
            "peak_bytes",
            "persistent_bytes",
            "arena_bytes",
            "live_peak_bytes",
            "lower_bound_bytes",
            "worst_legal_bytes",
            "worst_legal_witness_bytes",
        ] {
            figures.insert(name.to_owned(), number(&step[name], name)?);
        }
        let bound = &step["bound"];
        Ok(Step {
            buffers,
            ops,
            maker,
            readers,
            order: numbers(&step["order"], "order")?,
            overwrites: lists(&step["overwrites"], "overwrites")?
                .iter()
                .map(|o| (o[0], o[1], o[2]))
                .collect(),
            offsets: offsets(&step["offsets"], "offsets")?,
            workspace_offsets: offsets(&step["workspace_offsets"], "workspace_offsets")?,
            frees: lists(&step["frees"], "frees")?.iter().map(|f| (f[0], f[1])).collect(),
            witness: numbers(&step["witness"], "witness")?,
            witness_position: number(&step["witness_position"], "witness_position")? as usize,
            bound_bytes: number(&bound["live_bytes"], "live_bytes")?,
            bound_op: bound["op"].as_u64().map(|op| op as usize),
            bound_before: numbers(&bound["before"], "before")?,
            branched: flag(&bound["branched"], "branched")?,
            refutation: bound["refutation"].clone(),
            relaxed: flag(&bound["relaxed"], "relaxed")?,
            figures,
            worst_exact: flag(&step["worst_exact"], "worst_exact")?,
        })
    }

    fn figure(&self, name: &str) -> u64 {
        self.figures[name]
    }

    pub fn check(&self) -> Check {
        self.legal(&self.order, "order")?;
        self.legal(&self.witness, "witness")?;
        let persistent: u64 = self.buffers.iter().filter(|b| b.persistent).map(|b| b.bytes).sum();
        ensure(persistent == self.figure("persistent_bytes"), || {
            format!("persistent bytes are {persistent}")
        })?;
        let replaced = self.overwriting()?;
        self.frees(&replaced)?;
        let (peak, _) = self.peak(&self.order, &replaced);
        ensure(peak == self.figure("live_peak_bytes"), || format!("the live peak is {peak}"))?;
        let (worst, at) = self.peak(&self.witness, &vec![None; self.buffers.len()]);
        ensure(persistent + worst == self.figure("worst_legal_witness_bytes"), || {
            format!("the worst order has {worst} alive")
        })?;
        ensure(self.ops.is_empty() || at == self.witness_position, || format!("the witness peaks at {at}"))?;
        self.places(&replaced)?;
        self.compare(persistent, peak)?;
        self.cut()
    }

    /// Every op once, behind what it needs.
    fn legal(&self, order: &[usize], what: &str) -> Check {
        let mut position = vec![None; self.ops.len()];
        for (at, &op) in order.iter().enumerate() {
            let free = position.get_mut(op).is_some_and(|p| p.replace(at).is_none());
            ensure(free, || format!("{what}: not a permutation, op {op}"))?;
        }
        ensure(order.len() == self.ops.len(), || format!("{what}: not a permutation"))?;
        let precedes = |a: usize, b: usize| {
            ensure(position[a] < position[b], || format!("{what}: op {a} has to run before op {b}"))
        };
        for (k, op) in self.ops.iter().enumerate() {
            for &b in &op.reads {
                match self.maker[b] {
                    Some(maker) => precedes(maker, k)?,
                    None => {
                        let flags = &self.buffers[b];
                        ensure(flags.input || flags.persistent, || format!("nobody makes buffer {b}"))?;
                    }
                }
            }
            for &other in &op.after {
                precedes(other, k)?;
            }
            // A write of a persistent buffer stays where the source has it among the uses.
            for &b in &op.writes {
                ensure(self.buffers[b].persistent, || format!("op {k} writes buffer {b}"))?;
                for &user in self.readers[b].iter().filter(|&&user| user != k) {
                    if user < k { precedes(user, k)? } else { precedes(k, user)? }
                }
            }
        }
        Ok(())
    }

    /// For each buffer, the one whose place it takes.
    fn overwriting(&self) -> Check<Vec<Option<usize>>> {
        let position = positions(&self.order);
        let mut replaced = vec![None; self.buffers.len()];
        let mut taken = BTreeSet::new();
        for &(op, made, read) in &self.overwrites {
            let what = || format!("op {op} may not overwrite buffer {read} by {made}");
            ensure(self.ops[op].may_overwrite.contains(&(made, read)), what)?;
            ensure(self.maker[made] == Some(op) && self.ops[op].reads.contains(&read), what)?;
            ensure(self.buffers[made].bytes == self.buffers[read].bytes, what)?;
            let flags = &self.buffers[read];
            ensure(!flags.output && !flags.persistent && taken.insert(read), what)?;
            ensure(self.readers[read].iter().all(|&r| position[r] <= position[op]), what)?;
            ensure(replaced[made].replace(read).is_none(), what)?;
        }
        Ok(replaced)
    }

    /// The first and last position of a buffer that takes room in the arena.
    fn life(&self, position: &[usize], b: usize) -> Option<(usize, usize)> {
        let buffer = &self.buffers[b];
        if buffer.persistent || buffer.bytes == 0 {
            return None;
        }
        let first = self.maker[b].map_or(0, |m| position[m]);
        let last = self.readers[b].iter().map(|&r| position[r]).max().unwrap_or(first);
        Some((first, if buffer.output { position.len().saturating_sub(1) } else { last }))
    }

    /// Whatever is not kept is freed behind its last use, and nothing else is.
    fn frees(&self, replaced: &[Option<usize>]) -> Check {
        let position = positions(&self.order);
        let taken: BTreeSet<usize> = replaced.iter().flatten().copied().collect();
        let mut freed = BTreeMap::new();
        for &(at, b) in &self.frees {
            ensure(freed.insert(b, at).is_none(), || format!("a second free of buffer {b}"))?;
        }
        for b in 0..self.buffers.len() {
            let life = self.life(&position, b).filter(|_| !self.ops.is_empty());
            let expected =
                life.filter(|_| !self.buffers[b].output && !taken.contains(&b)).map(|(_, last)| last);
            ensure(freed.get(&b).copied() == expected, || {
                format!("the free of buffer {b} is at {:?}, its last use at {expected:?}", freed.get(&b))
            })?;
        }
        Ok(())
    }

    /// The most bytes alive, and where first.
    fn peak(&self, order: &[usize], replaced: &[Option<usize>]) -> (u64, usize) {
        let position = positions(order);
        let mut change = vec![0i128; order.len() + 1];
        let mut alone = 0;
        for b in 0..self.buffers.len() {
            let Some((first, last)) = self.life(&position, b) else { continue };
            let bytes = i128::from(self.buffers[b].bytes);
            if order.is_empty() {
                alone += bytes;
                continue;
            }
            // Two buffers in one place count once while the op runs that replaces one.
            if replaced[b].is_some() {
                change[first] -= bytes;
                change[first + 1] += bytes;
            }
            change[first] += bytes;
            change[last + 1] -= bytes;
        }
        let (mut now, mut best, mut at) = (0i128, alone, 0);
        for (p, &op) in order.iter().enumerate() {
            now += change[p];
            let here = now + i128::from(self.ops[op].workspace);
            if here > best {
                (best, at) = (here, p);
            }
        }
        (u64::try_from(best).unwrap(), at)
    }

    /// No two that are alive at once overlap, and the arena is as high as they reach.
    fn places(&self, replaced: &[Option<usize>]) -> Check {
        let position = positions(&self.order);
        let mut starts: Vec<Vec<usize>> = vec![Vec::new(); self.order.len().max(1)];
        let mut ends = starts.clone();
        for b in 0..self.buffers.len() {
            ensure(self.offsets[b].is_none() == self.buffers[b].persistent, || {
                format!("offset of buffer {b}")
            })?;
            if let Some((first, last)) = self.life(&position, b) {
                starts[first].push(b);
                ends[last].push(b);
            }
        }
        // Offset of each that is alive, its end, who it is.
        let mut alive: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        let mut height = 0;
        let mut put = |alive: &mut BTreeMap<u64, (u64, String)>, offset: u64, bytes: u64, who: String| {
            let end = offset + bytes;
            height = height.max(end);
            if let Some((_, (_, other))) = alive.range(..end).next_back().filter(|(_, (e, _))| *e > offset) {
                return Err(format!("overlap of {who} and {other} at {offset}"));
            }
            alive.insert(offset, (end, who));
            Ok(())
        };
        for at in 0..starts.len() {
            for &b in &starts[at] {
                let offset = self.offsets[b].unwrap_or(0);
                if let Some(old) = replaced[b] {
                    ensure(self.offsets[old] == Some(offset), || format!("buffer {b} is not over {old}"))?;
                    alive.remove(&offset);
                }
                put(&mut alive, offset, self.buffers[b].bytes, format!("buffer {b}"))?;
            }
            if let Some(&op) = self.order.get(at)
                && self.ops[op].workspace > 0
            {
                let offset = self.workspace_offsets[op].ok_or_else(|| format!("op {op} has no workspace"))?;
                put(&mut alive, offset, self.ops[op].workspace, format!("workspace of op {op}"))?;
                alive.remove(&offset);
            }
            for &b in &ends[at] {
                let offset = self.offsets[b].unwrap_or(0);
                if alive.get(&offset).is_some_and(|(_, who)| *who == format!("buffer {b}")) {
                    alive.remove(&offset);
                }
            }
        }
        ensure(height == self.figure("arena_bytes"), || format!("the height of the arena is {height}"))
    }

    fn compare(&self, persistent: u64, live: u64) -> Check {
        let (peak, arena) = (self.figure("peak_bytes"), self.figure("arena_bytes"));
        ensure(peak == persistent + arena, || "peak and height do not fit".to_owned())?;
        ensure(arena >= live, || "the arena is lower than its live peak".to_owned())?;
        let bound = self.figure("lower_bound_bytes");
        ensure(bound == persistent + self.bound_bytes, || "the bound has two values".to_owned())?;
        ensure(bound <= persistent + live, || format!("the bound {bound} is above the live peak"))?;
        let (worst, witness) = (self.figure("worst_legal_bytes"), self.figure("worst_legal_witness_bytes"));
        ensure(persistent + live <= worst, || format!("the worst order, {worst}, is below the live peak"))?;
        ensure(witness <= worst, || format!("the worst order, {worst}, is below the witness"))?;
        ensure(self.worst_exact == (witness == worst), || "worst_exact is wrong".to_owned())
    }

    /// The set that proves the bound has the bytes that it claims, and no set has fewer.
    fn cut(&self) -> Check {
        let Some(op) = self.bound_op else { return Ok(()) };
        let Cut { bytes, of_set } = least(self, op, &self.bound_before)?;
        let start = self.start();
        // With several places told apart, the single cut proves less than the bound.
        let claimed = self.bound_bytes;
        ensure(of_set >= bytes, || format!("a set costs {of_set}, less than the least cut {bytes}"))?;
        ensure(self.branched || claimed <= bytes.max(start), || {
            format!("the least cut at op {op} is {bytes}, the bound {claimed}")
        })?;
        ensure(self.branched || self.relaxed || of_set.max(start) == claimed, || {
            format!("the set given for op {op} has {of_set} alive, the bound is {claimed}")
        })?;
        ensure(!self.branched || self.relaxed || bytes <= claimed, || {
            format!("the least cut at op {op} is {bytes}, above the bound {claimed}")
        })?;
        ensure(self.refutation.is_null() != self.branched, || {
            "a bound with one cut and a refutation, or with neither".to_owned()
        })?;
        if !self.branched {
            return Ok(());
        }
        follow(self, &self.refutation, Vec::new(), claimed)
    }

    /// What is alive at the very start: all inputs, and what the first op makes at least.
    fn start(&self) -> u64 {
        let inputs: u64 = self.buffers.iter().filter(|b| b.input).map(|b| b.bytes).sum();
        let ready = |op: &&Op| op.after.is_empty() && op.reads.iter().all(|&b| self.maker[b].is_none());
        let grows = self.ops.iter().filter(ready).map(|op| {
            let made: u64 = op.makes.iter().map(|&b| self.buffers[b].bytes).sum();
            (made + op.workspace).saturating_sub(self.most_saved(op, &|_| true))
        });
        inputs + grows.min().unwrap_or(0)
    }

    /// The most bytes that overwriting can save at an op, where `dies` says what may be overwritten.
    pub fn most_saved(&self, op: &Op, dies: &dyn Fn(usize) -> bool) -> u64 {
        fn best(step: &Step, pairs: &[(usize, usize)], used: &mut Vec<usize>) -> u64 {
            let Some((&(made, read), rest)) = pairs.split_first() else { return 0 };
            let without = best(step, rest, used);
            if used.contains(&made) || used.contains(&(read + step.buffers.len())) {
                return without;
            }
            used.extend([made, read + step.buffers.len()]);
            let with = step.buffers[made].bytes + best(step, rest, used);
            used.truncate(used.len() - 2);
            with.max(without)
        }
        let usable = |&&(_, read): &&(usize, usize)| {
            let flags = &self.buffers[read];
            !flags.output && !flags.persistent && dies(read)
        };
        let pairs: Vec<(usize, usize)> = op.may_overwrite.iter().filter(usable).copied().collect();
        best(self, &pairs, &mut Vec::new())
    }
}

fn positions(order: &[usize]) -> Vec<usize> {
    let mut position = vec![0; order.len()];
    for (at, &op) in order.iter().enumerate() {
        position[op] = at;
    }
    position
}
