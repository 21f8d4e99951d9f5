//! The JSON form of `tg plan --json`. Names are stable; more may be added.

use serde_json::{Map, Value, json};

use super::{LiveBuffer, PlanReport};
use crate::{diagnostic::Diagnostic, report, source::SourceMap};

/// A file with its steps, as [`step`] gives them.
pub fn steps(file: &str, steps: Vec<Value>) -> Value {
    json!({ "file": file, "steps": steps })
}

/// One step. `dims` are the sizes chosen for its dimension variables; `elsewhere_bytes` is what the
/// session keeps on the device beside this step.
pub fn step(
    plan: &PlanReport,
    target: &str,
    dims: &[(String, u64)],
    elsewhere_bytes: u64,
    diagnostics: &[Diagnostic],
    sources: &SourceMap,
) -> Value {
    let dims: Map<String, Value> = dims.iter().map(|(name, size)| (name.clone(), (*size).into())).collect();
    let by_kind: Map<String, Value> =
        plan.by_kind.iter().map(|&(kind, bytes)| (kind.to_owned(), bytes.into())).collect();
    let peak = &plan.peak_at;
    let mut value = json!({
        "name": &*plan.name,
        "nodes": plan.nodes,
        "op_count": plan.ops,
        "instructions": plan.instructions,
        "dims": dims,
        "target": target,
        "found_by": plan.order,
        "peak_bytes": plan.peak_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "arena_bytes": plan.arena_bytes,
        "live_peak_bytes": plan.live_peak_bytes,
        "elsewhere_bytes": elsewhere_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "worst_legal_bytes": plan.worst.map(|w| w.bytes),
        "worst_legal_witness_bytes": plan.worst.map(|w| w.witness_bytes),
        "worst_exact": plan.worst.map(super::WorstLegal::is_exact),
        "peak_at": {
            "line": peak.place.map(|p| p.at.line),
            "column": peak.place.map(|p| p.at.column),
            "op": peak.op,
            "instruction": peak.instruction,
        },
        "by_kind": by_kind,
        "live_at_peak": plan.live_at_peak.iter().map(buffer).collect::<Vec<_>>(),
        "diagnostics": diagnostics.iter().map(|d| report::json::value(d, sources)).collect::<Vec<_>>(),
    });
    if let (Some(device), Some(map)) = (&plan.device, value.as_object_mut()) {
        map.insert("workspace_bytes".into(), device.workspace_bytes.into());
        map.insert("workspace_at_peak_bytes".into(), device.workspace_at_peak_bytes.into());
        map.insert("beside_bytes".into(), device.beside_bytes.into());
    }
    // Only steps of several ranks have it. All ranks have one plan, so the other figures are each one's.
    if let (Some(ranks), Some(map)) = (&plan.ranks, value.as_object_mut()) {
        map.insert("ranks".into(), ranks.json());
    }
    value
}

fn buffer(buffer: &LiveBuffer) -> Value {
    json!({
        "name": buffer.name,
        "bytes": buffer.bytes,
        "dtype": buffer.ty.as_ref().map(|t| t.dtype().name()),
        "shape": buffer.ty.as_ref().map(|t| t.shape().to_vec()),
        "kind": buffer.kind.name(),
        "line": buffer.place.map(|p| p.at.line),
        "kept_by": buffer.kept_by,
        "kept_by_line": buffer.kept_by_place.map(|p| p.at.line),
        "from": buffer.from,
        "to": buffer.to,
    })
}
