//! The items of the bound, and the runs that an order is merged from.

use super::{
    Item, Part, Trace,
    moments::{self, Moment},
};

impl Item {
    /// As an item of the whole: from `base` on, and with `floor` as the lowest valley elsewhere.
    pub(super) fn lift(self, base: i64, floor: i64) -> Item {
        let valley = (base + self.valley).min(floor);
        Item { steep: base + self.valley + self.steep - valley, valley, ..self }
    }
}

/// Leaves the items that no other is as steep and as high as, steepest first.
pub(super) fn prune(items: &mut Vec<Item>) {
    items.sort_by_key(|item| (std::cmp::Reverse(item.steep), std::cmp::Reverse(item.valley)));
    let mut best = i64::MIN;
    items.retain(|item| {
        let keep = item.valley > best;
        best = best.max(item.valley);
        keep
    });
}

/// The items of a section from those of its parts: for each steepness, the highest valleys of all.
pub(super) fn sweep<'a>(
    lists: impl Iterator<Item = &'a [Item]>,
    parts: &[Part],
    base: i64,
    moments: &mut Vec<Moment>,
) -> Vec<Item> {
    let mut all: Vec<(Item, u32)> = Vec::new();
    for (i, list) in lists.enumerate() {
        all.extend(list.iter().map(|&item| (item, i as u32)));
    }
    all.sort_by_key(|&(item, part)| (std::cmp::Reverse(item.steep), part, item.valley));
    let mut valley: Vec<i64> = parts.iter().map(|part| part.lowest).collect();
    let mut sum: i64 = base + valley.iter().sum::<i64>();
    let mut items: Vec<Item> = Vec::new();
    let mut before = None;
    for (item, part) in all {
        let at = &mut valley[part as usize];
        if item.valley >= *at {
            sum += item.valley - *at;
            *at = item.valley;
            let moment = moments::add(moments, Moment::Beside { before, part, moment: item.moment });
            before = Some(moment);
            items.push(Item { steep: item.steep, valley: sum, moment });
        }
    }
    prune(&mut items);
    items
}

/// Ops of a part that stay together, with what they are sorted by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) key: i64,
    pub(super) part: u32,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Cuts a part into runs: those down to its lowest valley, and those from there on.
pub(super) fn runs(trace: &Trace, part: u32, down: &mut Vec<Run>, up: &mut Vec<Run>) {
    let n = trace.live.len();
    let valley = |at: usize| if at == 0 { 0 } else { trace.after[at - 1] };
    let lowest = (0..=n).rev().min_by_key(|&at| valley(at)).unwrap_or(0);
    // Places of the highest hill and the lowest valley from each place on.
    let mut hill = vec![0; n];
    let mut low = vec![n; n];
    for at in (lowest..n).rev() {
        let next = at + 1;
        hill[at] = if next < n && trace.live[hill[next]] >= trace.live[at] { hill[next] } else { at };
        low[at] = if next < n && valley(low[next]) <= valley(next) { low[next] } else { next };
    }
    let mut at = lowest;
    while at < n {
        let top = hill[at];
        let end = low[top];
        up.push(Run { key: trace.live[top] - valley(end), part, start: at, end });
        at = end;
    }
    // The same backwards: up to each place.
    for at in 0..lowest {
        hill[at] = if at > 0 && trace.live[hill[at - 1]] >= trace.live[at] { hill[at - 1] } else { at };
        low[at] = if at > 0 && valley(low[at - 1]) <= valley(at) { low[at - 1] } else { at };
    }
    let mut at = lowest;
    let first = down.len();
    while at > 0 {
        let top = hill[at - 1];
        let start = low[top];
        down.push(Run { key: trace.live[top] - valley(start), part, start, end: at });
        at = start;
    }
    down[first..].reverse();
}
