//! The views whose copies would lower what is alive at the hottest ops of an order.

use super::{OpId, ScheduleGraph, ViewId, choose::Trial};

/// Views to copy, all of one base.
pub(super) struct Candidate {
    saves: u64,
    pub(super) views: Vec<ViewId>,
}

/// A base that is held by views alone from some position on.
struct Held {
    from: usize,
    bytes: u64,
    /// The last reader of each, the bytes of a copy, and the view; the last readers first.
    views: Vec<(usize, u64, ViewId)>,
}

/// The bases that only views hold while one of the hottest ops runs, the largest saving first. The
/// hottest are those that reach the peak; `around`, those that the largest saving would bring under
/// it too.
pub(super) fn candidates(graph: &ScheduleGraph, trial: &Trial, around: bool) -> Vec<Candidate> {
    let (resolved, order, profile) = (&trial.resolved, &trial.full, &trial.profile);
    let mut position = vec![0usize; resolved.graph.op_count()];
    for (at, &op) in order.iter().enumerate() {
        position[op as usize] = at;
    }
    let peak = profile.peak;
    let at = |op: OpId| resolved.ops.get(op.0 as usize).map_or(0, |op| position[op.0 as usize]);
    // By base: from where on only views hold it, and its views with their last readers.
    let mut held: Vec<Held> = Vec::new();
    let mut most = 0;
    for (viewed, base) in graph.viewed().iter().enumerate() {
        let maker = graph.maker(base.buffer).map(at);
        let ids = (0..base.views.len()).map(|view| ViewId { viewed: viewed as u32, view: view as u32 });
        let mut last = base.readers.iter().map(|&op| at(op)).chain(maker).max();
        let mut views = Vec::new();
        for (id, view) in ids.zip(&base.views) {
            if trial.copied.binary_search(&id).is_ok() {
                let copy =
                    resolved.copies.binary_search_by_key(&id, |c| c.0).map(|k| resolved.copies[k].1).ok();
                let made = copy.and_then(|copy| resolved.graph.maker(copy));
                last = last.max(made.map(|op| position[op.0 as usize]));
                continue;
            }
            let end =
                if view.output { Some(order.len()) } else { view.readers.iter().map(|&op| at(op)).max() };
            views.extend(end.map(|end| (end, view.bytes, id)));
        }
        views.sort_unstable_by_key(|&(end, _, id)| (std::cmp::Reverse(end), id));
        let Some(&(end, smallest, _)) = views.first() else { continue };
        let bytes = graph.arena_bytes(base.buffer);
        let from = last.map_or(0, |last| last + 1);
        if from <= end && smallest < bytes {
            most = most.max(bytes - smallest);
            held.push(Held { from, bytes, views });
        }
    }
    let most = i64::try_from(most >> trial.shift).unwrap_or(i64::MAX);
    let threshold = if around { peak.saturating_sub(most).saturating_add(1) } else { peak };
    // The next position from each on that is hot.
    let mut next = vec![usize::MAX; order.len() + 1];
    for at in (0..order.len()).rev() {
        next[at] = if profile.live[at] >= threshold { at } else { next[at + 1] };
    }
    let mut found: Vec<Candidate> = Vec::new();
    for Held { from, bytes, views } in held {
        // At the first hot op the most parts are still read, so the last one saves most.
        let mut best: Option<Candidate> = None;
        let mut hot = next.get(from).copied().unwrap_or(usize::MAX);
        let mut looks = 0;
        while hot < order.len() && looks < 64 {
            let needed: Vec<(u64, ViewId)> =
                views.iter().take_while(|&&(end, _, _)| end >= hot).map(|&(_, b, id)| (b, id)).collect();
            if needed.is_empty() {
                break;
            }
            let copies: u64 = needed.iter().map(|(b, _)| *b).fold(0, u64::saturating_add);
            if copies < bytes && best.as_ref().is_none_or(|b| bytes - copies > b.saves) {
                best = Some(Candidate {
                    saves: bytes - copies,
                    views: needed.into_iter().map(|(_, id)| id).collect(),
                });
            }
            hot = next.get(hot + 1).copied().unwrap_or(usize::MAX);
            looks += 1;
        }
        found.extend(best);
    }
    found.sort_by_key(|c| (std::cmp::Reverse(c.saves), c.views.first().copied()));
    found
}
