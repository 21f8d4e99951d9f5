//! The worst legal order of a step, told in source lines: what it has alive, which ops are to blame,
//! and what prevents it.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::{
    diagnostic::Diagnostic,
    ir::{Bind, Graph},
    plan::{Excess, Moved, Plan},
    report::{
        Bytes,
        plan::{Deed, Place, View, generalize},
    },
    schedule::{self, OpId},
    source::{SourceMap, Span},
};

/// Groups of ops that a message tells of: the rest is small beside them.
const GROUPS_SHOWN: usize = 3;
/// Names of buffers that it gives for each.
const NAMES_SHOWN: usize = 2;

/// Waits that are told one by one.
const WAITS_SHOWN: usize = 3;
/// For the search for waits that keep the promise: longer than it takes on a step of some thousand ops.
const REPAIR_TIME: Duration = Duration::from_secs(5);

/// Adds to a diagnostic what the worst order of a plan does, and what keeps all orders within
/// `limit` bytes. `elaborated` is the graph before lowering, which still has its regions.
pub(super) fn tell(
    mut diagnostic: Diagnostic,
    plan: &Plan,
    limit: u64,
    elaborated: &Graph,
    sources: &SourceMap,
) -> Diagnostic {
    let view = View::new(plan, sources);
    let weak = weak_binding(elaborated, &view);
    if let (Some(excess), Some(bytes)) = (plan.excess(), plan.worst_legal_witness_bytes()) {
        let groups = Group::of(&view, &excess);
        diagnostic = blame(diagnostic, &view, &excess, bytes, &groups);
        if weak.is_none() {
            let guess = || groups.first().map(|group| barrier(&view, &excess, group));
            diagnostic.help.extend(repaired(&view, limit).or_else(guess));
        }
    }
    diagnostic.help.extend(weak);
    diagnostic.help("`tg plan --order witness` shows that order")
}

/// Ops that do the same, on the same line, and are moved in the same way.
struct Group {
    deed: Deed,
    place: Option<Place>,
    moved: Moved,
    ops: Vec<OpId>,
    bytes: u64,
    /// What is alive because of them: name, count, bytes.
    kept: Vec<(String, usize, u64)>,
}

impl Group {
    /// The largest first.
    fn of(view: &View<'_>, excess: &Excess) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut index = FxHashMap::default();
        for one in &excess.moves {
            let (deed, place) = (view.deed(one.op), view.op_place(one.op));
            let key = (deed.clone(), place.map(|p| (p.file.0, p.at.line)), one.moved);
            let at = *index.entry(key).or_insert(groups.len());
            if at == groups.len() {
                let (ops, kept) = (Vec::new(), Vec::new());
                groups.push(Group { deed, place, moved: one.moved, ops, bytes: 0, kept });
            }
            let Some(group) = groups.get_mut(at) else { continue };
            let bytes = view.plan.schedule_graph.arena_bytes(one.buffer);
            group.bytes = group.bytes.saturating_add(bytes);
            group.ops.push(one.op);
            let name = generalize(&view.name(one.buffer, view.maker_node(one.buffer)));
            match group.kept.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, count, sum)) => (*count, *sum) = (*count + 1, sum.saturating_add(bytes)),
                None => group.kept.push((name, 1, bytes)),
            }
        }
        for group in &mut groups {
            group.ops.sort_unstable();
            group.ops.dedup();
            group.kept.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        }
        groups.sort_by_key(|g| std::cmp::Reverse(g.bytes));
        groups
    }

    /// `the 64 parameter gradients`
    fn who(&self) -> String {
        self.deed.phrase(self.ops.len())
    }

    /// What the ops may do, and what that costs.
    fn sentence(&self, view: &View<'_>) -> String {
        let what = match (self.moved, self.ops.len()) {
            (Moved::Later, 1) => "may be put off until after that: what waits for it takes",
            (Moved::Later, _) => "may be put off until after that: what waits for them takes",
            (Moved::Earlier, 1) => "may run before that, though nobody can use the result yet: it takes",
            (Moved::Earlier, _) => "may run before that, though nobody can use the results yet: they take",
        };
        let names: Vec<String> = self
            .kept
            .iter()
            .take(NAMES_SHOWN)
            .map(
                |(name, count, _)| {
                    if *count == 1 { format!("`{name}`") } else { format!("{count} x `{name}`") }
                },
            )
            .collect();
        let rest = if self.kept.len() > NAMES_SHOWN { " and others" } else { "" };
        let (who, line) = (self.who(), of_line(view, self.place));
        format!("{who}{line} {what} {} ({}{rest})", Bytes(self.bytes), names.join(", "))
    }
}

/// ` of line 6`
fn of_line(view: &View<'_>, place: Option<Place>) -> String {
    place.map_or(String::new(), |p| format!(" of {}", view.line(p)))
}

/// The op that runs at the worst moment: `` the `relu` of line 6 ``.
fn worst_op(view: &View<'_>, excess: &Excess) -> String {
    format!("{}{}", view.deed(excess.op).phrase(1), of_line(view, view.op_place(excess.op)))
}

fn blame(
    mut diagnostic: Diagnostic,
    view: &View<'_>,
    excess: &Excess,
    bytes: u64,
    groups: &[Group],
) -> Diagnostic {
    diagnostic = diagnostic.note(format!(
        "that order has {} alive when {} runs; the planned order has {} alive then",
        Bytes(bytes),
        worst_op(view, excess),
        Bytes(view.plan.persistent_bytes.saturating_add(excess.planned_bytes)),
    ));
    for group in groups.iter().take(GROUPS_SHOWN) {
        diagnostic = diagnostic.note(group.sentence(view));
        if let Some(place) = group.place
            && diagnostic.secondary.iter().all(|l| l.span != place.span)
        {
            let text = match group.moved {
                Moved::Later => format!("{} may wait", group.who()),
                Moved::Earlier => format!("{} may run early", group.who()),
            };
            diagnostic = diagnostic.secondary(place.span, text);
        }
    }
    if excess.overwritten_bytes > 0 {
        diagnostic = diagnostic.note(format!(
            "the planned order saves {} there by writing over an operand; a promise for every schedule does not count on that",
            Bytes(excess.overwritten_bytes)
        ));
    }
    diagnostic
}

/// The waits that keep every order within the limit, with the figures of the step planned with them.
/// `None` where no such waits are found.
fn repaired(view: &View<'_>, limit: u64) -> Option<String> {
    let plan = view.plan;
    let within = limit.checked_sub(plan.persistent_bytes)?;
    let options = schedule::Options { time_limit: REPAIR_TIME, prove: false, ..Default::default() };
    let repair = schedule::repair(&plan.schedule_graph, within, &options)?;
    let op = |op: OpId| format!("{}{}", view.deed(op).phrase(1), of_line(view, view.op_place(op)));
    let mut waits: Vec<(String, usize)> = Vec::new();
    for (firsts, second) in repair.barriers() {
        let mut names: Vec<String> = firsts.into_iter().map(op).collect();
        names.dedup();
        let text = format!("{} waits for {}", op(second), names.join(" and "));
        match waits.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => waits.push((text, 1)),
        }
    }
    let mut shown: Vec<String> = waits
        .iter()
        .take(WAITS_SHOWN)
        .map(|(text, count)| if *count == 1 { text.clone() } else { format!("{text} ({count} times)") })
        .collect();
    let rest: usize = waits.iter().skip(WAITS_SHOWN).map(|(_, count)| count).sum();
    if rest > 0 {
        shown.push(format!("{rest} more like that"));
    }
    let resident = |bytes: u64| Bytes(plan.persistent_bytes.saturating_add(bytes));
    Some(format!(
        "the promise holds if {}: then the worst legal order needs {}, the best one {} (planned again); `let a, b = barrier(a, b)` makes what uses `a` wait until `b` is there",
        shown.join(", "),
        resident(repair.worst.bytes),
        resident(repair.live_peak_bytes),
    ))
}

/// The barrier that would take the largest group away.
fn barrier(view: &View<'_>, excess: &Excess, group: &Group) -> String {
    let (op, who) = (worst_op(view, excess), format!("{}{}", group.who(), of_line(view, group.place)));
    let (waits, first) = match group.moved {
        Moved::Later => (op, who),
        Moved::Earlier => (who, op),
    };
    format!(
        "make {waits} wait for {first}: `let a, b = barrier(a, b)` holds back what uses `a` until `b` is there"
    )
}

/// A region with a weaker binding than the default one.
fn weak_binding(graph: &Graph, view: &View<'_>) -> Option<String> {
    let (region, name) = graph.regions.iter().find_map(|r| match r.bind {
        Bind::All => None,
        Bind::Grad => Some((r, "grad")),
        Bind::Output => Some((r, "output")),
        Bind::None => Some((r, "none")),
    })?;
    let span = graph.origins.chain(region.origin).map(|o| o.span).find(|s| *s != Span::default());
    let line = of_line(view, span.map(|s| view.at(s)));
    Some(format!(
        "leave out `bind: {name}` in the `checkpoint`{line}: by default the way back waits for the parameter gradients behind it"
    ))
}
