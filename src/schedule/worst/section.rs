//! The parts of a graph between ops that all others precede or follow.

use crate::schedule::index::Index;

use super::readers::{Spine, joins, last_readers};

/// A buffer that can die in a section, in several ways.
#[derive(Debug, Clone)]
pub(super) struct Death {
    pub(super) size: i64,
    /// The readers that can be its last; two at least.
    pub(super) readers: Vec<u32>,
    /// Ops behind all of them.
    pub(super) joins: Vec<u32>,
}

/// The ops from `start` to `end` in source order: every op before them precedes them all, every op
/// after them follows them all.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Units alive before the first of them.
    pub(super) base: i64,
    pub(super) deaths: Vec<Death>,
}

/// The sections of a graph, and for each op the units that die with it as the only possible last
/// reader of them.
#[derive(Debug, Clone)]
pub(super) struct Sections {
    pub(super) sections: Vec<Section>,
    pub(super) single: Vec<i64>,
    /// The most units of what an op reads that can die with it.
    pub(super) freed: Vec<i64>,
}

pub(super) fn sections(ix: &Index) -> Sections {
    let spans = spans(ix);
    let mut section_of = vec![u32::MAX; ix.ops];
    for (k, &(start, end)) in spans.iter().enumerate() {
        section_of[start as usize..end as usize].fill(k as u32);
    }
    let alive = alive_before(ix);
    let mut sections: Vec<Section> = spans
        .iter()
        .map(|&(start, end)| Section { start, end, base: alive[start as usize], deaths: Vec::new() })
        .collect();
    let mut single = vec![0; ix.ops];
    let mut freed = vec![0; ix.ops];
    // Buffers whose last reader in source order is in a section die in it, and the readers before
    // the section do not matter.
    let mut lists = Vec::new();
    let mut buffers = Vec::new();
    for b in 0..ix.buffers {
        let users = ix.users.get(b);
        let Some(&last) = users.last().filter(|_| ix.size[b] > 0 && !ix.output[b]) else { continue };
        let Some(section) = sections.get(section_of[last as usize] as usize) else { continue };
        let first = users.partition_point(|&u| u < section.start);
        if users.len() - first == 1 {
            single[last as usize] += ix.size[b];
            freed[last as usize] += ix.size[b];
        } else {
            lists.push(users[first..].to_vec());
            buffers.push((b, section_of[last as usize]));
        }
    }
    if lists.is_empty() {
        return Sections { sections, single, freed };
    }
    let spine = Spine::new(ix);
    let lists = last_readers(ix, &spine, lists);
    for (readers, (b, section)) in lists.into_iter().zip(buffers) {
        for &u in &readers {
            freed[u as usize] += ix.size[b];
        }
        if let &[only] = readers.as_slice() {
            single[only as usize] += ix.size[b];
        } else {
            let end = sections[section as usize].end;
            let mut joins = joins(ix, &spine, &readers);
            joins.retain(|&join| join < end);
            sections[section as usize].deaths.push(Death { size: ix.size[b], readers, joins });
        }
    }
    Sections { sections, single, freed }
}

/// Runs of ops between those that every other op precedes or follows.
fn spans(ix: &Index) -> Vec<(u32, u32)> {
    // Every earlier op leads to op `i` if each has a successor no later than `i`, and so on up; the
    // same from behind for the later ones.
    let mut led = vec![0u32; ix.ops];
    let mut reach = 0;
    for (v, led) in led.iter_mut().enumerate() {
        *led = reach;
        reach = reach.max(ix.succs.get(v).iter().copied().min().unwrap_or(u32::MAX));
    }
    let mut spans = Vec::new();
    let mut end = ix.ops as u32;
    let mut lowest = i64::MAX;
    for v in (0..ix.ops as u32).rev() {
        if led[v as usize] <= v && lowest >= i64::from(v) {
            if v + 1 < end {
                spans.push((v + 1, end));
            }
            end = v;
        }
        lowest = lowest.min(ix.preds.get(v as usize).iter().copied().max().map_or(-1, i64::from));
    }
    if end > 0 {
        spans.push((0, end));
    }
    spans.reverse();
    spans
}

/// Units alive before each op of the source order.
fn alive_before(ix: &Index) -> Vec<i64> {
    let mut left: Vec<u32> = (0..ix.buffers).map(|b| ix.users.count(b) as u32).collect();
    let mut now: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
    let mut alive = Vec::with_capacity(ix.ops);
    for v in 0..ix.ops {
        alive.push(now);
        now += ix.made[v] - ix.dead[v];
        for &r in ix.reads.get(v) {
            let r = r as usize;
            left[r] -= 1;
            if left[r] == 0 && !ix.output[r] {
                now -= ix.size[r];
            }
        }
    }
    alive
}
