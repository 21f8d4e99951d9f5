//! Units of a sharded model: views of a gathered vector among the results of a step, and units that are
//! gathered long before their use.

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
    },
    diagnostic::{Diagnostic, Edit},
    ir::ValueId,
    ops::{Alias, Op},
    report::Bytes,
    schedule::BufferId,
    syntax::ast::StmtKind,
};

/// So many views of a unit are named.
const NAMED: usize = 4;

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(returned_views(facts));
    all.extend(ahead(facts));
    all
}

fn returned_views(facts: &Facts<'_>) -> Option<Finding> {
    let graph = &facts.plan.graph;
    let kept = |&&b: &&BufferId| facts.is_output(b) && facts.is_gathered(b);
    let mut held: Vec<BufferId> = facts.at_peak.iter().filter(kept).copied().collect();
    held.sort_by_key(|b| facts.range(*b));
    let bytes: u64 = held.iter().map(|&b| facts.bytes(b)).sum();
    if held.is_empty() || !is_large(facts, bytes) {
        return None;
    }
    let is_held = |v: ValueId| held.iter().any(|&b| facts.value(b) == Some(facts.base(v)));
    let first = graph.outputs.iter().find(|o| is_held(o.value))?;
    let place = facts.user_span(first.origin)?;
    // What is returned beside the views has the name of an output.
    let others: Vec<&str> = graph.outputs.iter().filter(|o| !is_held(o.value)).map(|o| &*o.name).collect();
    let values = super::output::returned(facts.tree, place);
    let text = |k: usize| values.get(k).map(|&e| facts.tree.text(facts.tree.ast.expr(e).span).to_string());
    let views: Vec<usize> =
        (0..values.len()).filter(|&k| text(k).is_some_and(|t| !others.contains(&t.as_str()))).collect();
    let primary = match (views.first(), views.last()) {
        (Some(&first), Some(&last)) => {
            let span = |k: usize| values.get(k).map(|&e| facts.tree.ast.expr(e).span);
            span(first).zip(span(last)).map_or(place, |(a, b)| a.to(b))
        }
        _ => place,
    };
    let message = match held.as_slice() {
        [one] => format!(
            "returned views keep all of the gathered {}, {}, from the forward pass to the end of the step",
            name(facts, *one),
            Bytes(bytes)
        ),
        all => format!(
            "returned views keep {} gathered units, {}, from the forward pass to the end of the step",
            all.len(),
            Bytes(bytes)
        ),
    };
    let diagnostic = Diagnostic::warning(codes::VIEW_OF_GATHERED, primary, message)
        .label(format!("returned here: keeps {}", Bytes(bytes)));
    let mut finding = Finding::new(diagnostic, bytes, Accept::PeakFalls(super::SMALL));
    for &buffer in &held {
        let Some(base) = facts.value(buffer) else { continue };
        let of: Vec<ValueId> =
            graph.outputs.iter().map(|o| o.value).filter(|&v| facts.base(v) == base).collect();
        let names: Vec<String> =
            of.iter().take(NAMED).map(|&v| format!("`{}`", view_name(facts, v))).collect();
        let more = match of.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        finding.diagnostic.notes.push(format!(
            "views of {}, {}: {}{more}",
            name(facts, buffer),
            Bytes(facts.bytes(buffer)),
            names.join(", ")
        ));
        let taken = super::view::slices(facts, base);
        for place in taken.into_iter().take(1) {
            finding = finding.label(Some(place), format!("a view of {}", name(facts, buffer)));
        }
    }
    if views.len() < values.len() {
        let names: Vec<String> = views.iter().filter_map(|&k| Some(format!("`{}`", text(k)?))).collect();
        let edits: Vec<Edit> = super::output::leave_out(facts.tree, &values, &views);
        let title = format!("do not return {}", names.join(", "));
        finding = finding.candidate(Candidate::new(title, edits).by_hand());
    }
    Some(with_peak(facts, finding))
}

/// What a gathered vector is called.
fn name(facts: &Facts<'_>, buffer: BufferId) -> String {
    let name = facts.value(buffer).and_then(|v| facts.plan.graph.names.get(&v));
    name.map_or_else(|| blame::name(facts, buffer), |name| format!("`{name}`"))
}

/// The parameter that a value is a view of.
fn view_name(facts: &Facts<'_>, mut value: ValueId) -> String {
    let graph = &facts.plan.graph;
    let mut name = None;
    loop {
        let (node, _) = graph.producer(value);
        if matches!(node.op(), Op::CollectiveDone(_)) || node.op().memory().alias != Alias::View {
            break;
        }
        // The name nearest to the vector is that of the parameter.
        name = graph.names.get(&value).cloned().or(name);
        let Some(&next) = node.args().first() else { break };
        value = next;
    }
    name.map_or_else(|| "a part".to_owned(), |name| name.to_string())
}

/// `prefetch: 4`: one unit ahead hides as much time.
fn ahead(facts: &Facts<'_>) -> Vec<Finding> {
    let graph = &facts.plan.graph;
    let most = graph.shards.values().map(|s| s.prefetch).max().unwrap_or(0);
    if most < 2 {
        return Vec::new();
    }
    let mut all = Vec::new();
    for stmt in facts.tree.statements(|s| matches!(s, StmtKind::Shard(_))) {
        let StmtKind::Shard(decl) = &facts.tree.ast.stmt(stmt).kind else { continue };
        let option = decl.options.iter().find(|o| o.name.as_ref().is_some_and(|n| &*n.name == "prefetch"));
        let Some(option) = option else { continue };
        let span = facts.tree.ast.expr(option.value).span;
        let text = facts.tree.text(span);
        // The number of this statement; what is no number there is at most that of all.
        let units = text.parse().unwrap_or(most);
        if units < 2 {
            continue;
        }
        let gathers = graph.nodes().filter(|n| graph.gathers(n).is_some());
        let largest = gathers.flat_map(|n| n.results()).map(|r| graph.ty(r).bytes()).max().unwrap_or(0);
        let message = format!("up to {text} units are gathered ahead of their use, {} each", Bytes(largest));
        let diagnostic =
            Diagnostic::warning(codes::GATHERED_AHEAD, span, message).label("the next one is enough");
        let edit = Edit { span, text: "1".into() };
        all.push(
            Finding::new(
                diagnostic,
                largest.saturating_mul(u64::from(units)),
                Accept::AnyFalls(super::SMALL),
            )
            .candidate(Candidate::new("gather one unit ahead", vec![edit])),
        );
    }
    all
}
