//! Proofs by case distinction: every edge that is assumed and every end of a case is a minimum cut of
//! its own, worked out again here; a search is made again in `search`.

use serde_json::Value;

use crate::{
    check::{Check, Step, reversed},
    cut::{choices, minimum, own},
    search::below,
};

/// Edges that hold on top of those of the graph, first and second.
type Edges = Vec<(usize, usize)>;

fn op(value: &Value, step: &Step) -> Check<usize> {
    let op = value.as_u64().ok_or_else(|| format!("{value} is no op"))? as usize;
    if op < step.ops.len() { Ok(op) } else { Err(format!("there is no op {op}")) }
}

/// Follows a proof that every order of a step has `target` bytes alive; `edges` are assumed.
pub fn follow(step: &Step, proof: &Value, mut edges: Edges, target: u64) -> Check {
    for edge in proof["edges"].as_array().ok_or("a refutation has no edges")? {
        let (at, first, second) = (op(&edge[0], step)?, op(&edge[1], step)?, op(&edge[2], step)?);
        // The opposite place of the other op is what the cut excludes.
        let (done, late): (&[usize], &[usize]) = if at == first { (&[second], &[]) } else { (&[], &[first]) };
        if at != first && at != second {
            return Err(format!("the edge {first}, {second} has nothing to do with op {at}"));
        }
        let bytes = least(step, at, &edges, done, late);
        if bytes < target {
            return Err(format!("refutation: op {first} need not run before {second}: the cut is {bytes}"));
        }
        edges.push((first, second));
    }
    let end = &proof["end"];
    if !end["cut"].is_null() {
        let bytes = least(step, op(&end["cut"], step)?, &edges, &[], &[]);
        return if bytes >= target { Ok(()) } else { Err(format!("refutation: the last cut is {bytes}")) };
    }
    if let Some(pair) = end["both"].as_array() {
        let (at, other) = (op(&pair[0], step)?, op(&pair[1], step)?);
        for places in [[&[other][..], &[]], [&[], &[other]]] {
            let bytes = least(step, at, &edges, places[0], places[1]);
            if bytes < target {
                return Err(format!("refutation: op {other} has a place: the cut at {at} is {bytes}"));
            }
        }
        return Ok(());
    }
    for (name, is_last) in [("last", true), ("first", false)] {
        let Some(list) = end[name].as_array() else { continue };
        let ops = list.iter().map(|value| op(value, step)).collect::<Check<Vec<usize>>>()?;
        if ops.is_empty() {
            return Err(format!("refutation: no op is the {name} one"));
        }
        for (k, &at) in ops.iter().enumerate() {
            let others = [&ops[..k], &ops[k + 1..]].concat();
            let (done, late): (&[usize], &[usize]) = if is_last { (&others, &[]) } else { (&[], &others) };
            let bytes = least(step, at, &edges, done, late);
            if bytes < target {
                return Err(format!("refutation: where op {at} is the {name} one, the cut is {bytes}"));
            }
        }
        return Ok(());
    }
    if end["search"] == true {
        return match below(step, &edges, target) {
            Some(true) => Err("refutation: an order stays below".to_owned()),
            Some(false) => Ok(()),
            None => Err("refutation: too much to search".to_owned()),
        };
    }
    let fork = end["fork"].as_array().ok_or("a refutation has no end")?;
    let (a, b) = (op(&fork[0], step)?, op(&fork[1], step)?);
    for (case, edge) in [(a, b), (b, a)].into_iter().enumerate() {
        let mut with = edges.clone();
        with.push(edge);
        follow(step, &end["cases"][case], with, target)?;
    }
    Ok(())
}

/// The least that is alive while an op runs, where some op is done by then, or is not. As much as can
/// be where the edges contradict each other.
fn least(step: &Step, at: usize, edges: &[(usize, usize)], done: &[usize], late: &[usize]) -> u64 {
    let count = step.ops.len();
    let preds = step.preds(edges);
    let succs = reversed(&preds);
    let reach = |lists: &[Vec<usize>], from: Vec<usize>| {
        let mut seen = vec![false; count];
        let mut stack = from;
        while let Some(k) = stack.pop() {
            for &next in &lists[k] {
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push(next);
                }
            }
        }
        seen
    };
    let mut before = reach(&preds, [done, &[at]].concat());
    let mut behind = reach(&succs, [late, &[at]].concat());
    done.iter().for_each(|&op| before[op] = true);
    late.iter().for_each(|&op| behind[op] = true);
    let mut best = u64::MAX;
    for choice in choices(&step.ops[at].may_overwrite) {
        let mut forced = before.clone();
        let mut usable = true;
        let mut saved = 0;
        for &(made, read) in &choice {
            let flags = &step.buffers[read];
            usable &= !flags.output && !flags.persistent;
            saved += step.buffers[made].bytes;
            for &r in step.readers[read].iter().filter(|&&r| r != at) {
                forced[r] = true;
            }
        }
        if usable && let Some(flow) = minimum(step, at, &forced, &behind, &preds) {
            best = best.min((flow + own(step, at)).saturating_sub(saved));
        }
    }
    best
}
