//! The graph and the plan of a step, complete: what `tg plan --json --full` adds, so that programs
//! that share nothing with `tg` can check them. The fields are described in the reference.

use serde_json::{Map, Value, json};

use super::{View, op_name};
use crate::{
    plan::{Home, Instruction, Kernel, Plan},
    schedule::{BufferId, End, OpId, Refutation},
    source::SourceMap,
};

/// Writes a step that [`super::json`] made, with its graph and its plan. Buffers and ops become text
/// one by one: as values, those of a large plan would take many times the room of the text.
pub fn full(step: &Value, plan: &Plan, sources: &SourceMap, out: &mut String) {
    let view = View::new(plan, sources);
    let text = step.to_string();
    out.push_str(text.strip_suffix('}').unwrap_or(&text));
    list(out, "buffers", plan.schedule_graph.buffer_ids().map(|id| buffer(&view, id)));
    list(out, "ops", plan.schedule_graph.ops().map(|id| op(&view, id)));
    let mut rest = Map::new();
    schedule(&mut rest, plan);
    let rest = Value::Object(rest).to_string();
    out.push(',');
    out.push_str(rest.strip_prefix('{').unwrap_or(&rest));
}

/// One more field of an object that has some: a list.
fn list(out: &mut String, name: &str, items: impl Iterator<Item = Value>) {
    out.push_str(&format!(",\"{name}\":["));
    for (k, item) in items.enumerate() {
        if k > 0 {
            out.push(',');
        }
        out.push_str(&item.to_string());
    }
    out.push(']');
}

fn buffer(view: &View<'_>, id: BufferId) -> Value {
    let graph = &view.plan.schedule_graph;
    let shape = graph.buffer(id);
    let info = view.plan.buffers.get(id.0 as usize);
    let node = view.maker_node(id);
    let ty = info.filter(|_| node.is_some()).map(|b| view.graph().ty(b.value));
    json!({
        "id": id.0,
        "bytes": shape.bytes,
        // Views have no buffers of their own: they are reads of the buffer that they look at.
        "alias_of": null,
        "persistent": shape.flags.persistent,
        "input": matches!(info.map(|b| b.home), Some(Home::Input(_))),
        "output": shape.flags.output,
        "copyable_view": false,
        "name": view.name(id, node),
        "dtype": ty.map(|t| t.dtype().name()),
        "shape": ty.map(|t| t.shape().to_vec()),
        "kind": info.map(|b| b.kind.name()),
        "line": node.and_then(|n| view.place(n)).map(|p| p.at.line),
    })
}

fn op(view: &View<'_>, id: OpId) -> Value {
    let graph = &view.plan.schedule_graph;
    let node = view.op_node(id);
    let ids = |list: &[BufferId]| list.iter().map(|b| b.0).collect::<Vec<u32>>();
    // Edges that data asks for are in `reads` already.
    let is_data = |before: &OpId| graph.reads(id).iter().any(|&b| graph.maker(b) == Some(*before));
    let after: Vec<u32> = graph.after(id).iter().filter(|o| !is_data(o)).map(|o| o.0).collect();
    let pairs: Vec<[u32; 2]> = graph.may_overwrite(id).iter().map(|(made, read)| [made.0, read.0]).collect();
    json!({
        "id": id.0,
        "name": node.map(|n| op_name(n)),
        "line": node.and_then(|n| view.place(n)).map(|p| p.at.line),
        "pass": node.map(|n| super::pass(n).name()),
        "reads": ids(graph.reads(id)),
        "writes": ids(&writes(view.plan, id)),
        "makes": ids(graph.makes(id)),
        "may_overwrite": pairs,
        "after": after,
        "workspace_bytes": graph.workspace(id),
    })
}

/// The persistent buffers to which an op commits new values; they are among its reads.
fn writes(plan: &Plan, id: OpId) -> Vec<BufferId> {
    let persistent = |b: &BufferId| plan.schedule_graph.buffer(*b).flags.persistent;
    let all: Vec<BufferId> = match plan.kernels.get(id.0 as usize) {
        Some(Kernel::Node { results, .. }) => results.iter().map(|r| r.buffer).collect(),
        Some(Kernel::Elementwise(program)) => program.outputs.iter().map(|(_, o)| o.buffer).collect(),
        Some(Kernel::Copy { to, .. }) => vec![to.buffer],
        Some(Kernel::Wait { .. } | Kernel::Nothing) | None => Vec::new(),
    };
    let mut written: Vec<BufferId> = all.into_iter().filter(persistent).collect();
    written.dedup();
    written
}

fn schedule(step: &mut Map<String, Value>, plan: &Plan) {
    let graph = &plan.schedule_graph;
    let chosen = &plan.schedule;
    let order = |ops: &[OpId]| ops.iter().map(|op| op.0).collect::<Vec<u32>>();
    let overwrites: Vec<[u32; 3]> = graph
        .buffer_ids()
        .zip(&chosen.overwrites)
        .filter_map(|(made, read)| Some([graph.maker(made)?.0, made.0, (*read)?.0]))
        .collect();
    let mut ran = 0usize;
    let mut frees: Vec<[u64; 2]> = Vec::new();
    for instruction in &plan.instructions {
        match instruction {
            Instruction::Exec(_) => ran += 1,
            Instruction::Free(buffer) => frees.push([ran.saturating_sub(1) as u64, u64::from(buffer.0)]),
        }
    }
    let bound = &chosen.bound;
    step.insert("order".into(), order(&chosen.order).into());
    step.insert("overwrites".into(), json!(overwrites));
    step.insert("offsets".into(), json!(chosen.offsets));
    step.insert("workspace_offsets".into(), json!(chosen.workspace_offsets));
    step.insert("frees".into(), json!(frees));
    step.insert("witness".into(), plan.worst.as_ref().map(|w| order(&w.witness)).into());
    step.insert("witness_position".into(), plan.worst.as_ref().map(|w| w.witness_position).into());
    step.insert(
        "bound".into(),
        json!({
            "live_bytes": chosen.lower_bound_bytes,
            "op": bound.op.map(|op| op.0),
            "before": order(&bound.before),
            "branched": bound.branched,
            "relaxed": !plan.views.is_empty(),
            "refutation": bound.refutation.as_ref().map(refutation),
        }),
    );
}

/// Case distinctions are at most a few deep.
fn refutation(proof: &Refutation) -> Value {
    let edges: Vec<[u32; 3]> = proof.edges.iter().map(|e| [e.op.0, e.first.0, e.second.0]).collect();
    let ids = |ops: &[OpId]| ops.iter().map(|op| op.0).collect::<Vec<u32>>();
    let end = match &proof.end {
        End::Last(ops) => json!({ "last": ids(ops) }),
        End::First(ops) => json!({ "first": ids(ops) }),
        End::Cut(op) => json!({ "cut": op.0 }),
        End::Search => json!({ "search": true }),
        End::Both { op, other } => json!({ "both": [op.0, other.0] }),
        End::Fork { ops: [a, b], cases } => {
            json!({ "fork": [a.0, b.0], "cases": cases.iter().map(refutation).collect::<Vec<Value>>() })
        }
    };
    json!({ "edges": edges, "end": end })
}
