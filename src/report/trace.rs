//! A trace of plans in the Trace Event Format, which Perfetto and Chrome open: each step is a
//! process, what is alive a counter in all and one by kind, its ops slices. The time is the index of
//! the instruction, one microsecond each, because a plan knows the order and not how long an op takes.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value, json};

use super::{
    Bytes,
    plan::{View, pass},
};
use crate::{
    plan::{BufferKind, Instruction, Plan},
    schedule::BufferId,
    source::SourceMap,
};

/// The rows of ops and of frees below the counter.
const OPS: u32 = 1;
const FREES: u32 = 2;

/// The trace of some plans, as one JSON text.
pub fn trace(plans: &[Arc<Plan>], sources: &SourceMap) -> String {
    let mut events = Events(r#"{"traceEvents":["#.to_owned());
    for (k, plan) in plans.iter().enumerate() {
        step(k as u32 + 1, plan, sources, &mut events);
    }
    // No unit for display: with `ns`, Perfetto takes the times for nanoseconds, and does not zoom in on
    // a small step.
    events.0.push_str("]}\n");
    events.0
}

/// The text so far: as values, the events of a large plan would take many times its room.
struct Events(String);

impl Events {
    fn push(&mut self, event: Value) {
        if !self.0.ends_with('[') {
            self.0.push(',');
        }
        self.0.push_str(&event.to_string());
    }
}

fn step(process: u32, plan: &Plan, sources: &SourceMap, events: &mut Events) {
    let view = View::new(plan, sources);
    let name = |what: &str, thread: u32, name: &str| json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } });
    events.push(name("process_name", 0, &format!("step {}", plan.name)));
    events.push(name("thread_name", OPS, "ops"));
    events.push(name("thread_name", FREES, "frees"));
    let graph = &plan.schedule_graph;
    let kind_of = |b: BufferId| plan.buffers.get(b.0 as usize).map_or(BufferKind::Temporaries, |i| i.kind);
    let mut memory: BTreeMap<BufferKind, u64> = BufferKind::ALL.into_iter().map(|k| (k, 0)).collect();
    let mut most = Most::default();
    let mut alive = vec![false; graph.buffer_count()];
    let mut start = |b: BufferId, memory: &mut BTreeMap<BufferKind, u64>| {
        if let Some(flag) = alive.get_mut(b.0 as usize).filter(|f| !**f) {
            *flag = true;
            *memory.entry(kind_of(b)).or_default() += graph.buffer(b).bytes;
        }
    };
    for id in graph.buffer_ids().filter(|&id| graph.maker(id).is_none()) {
        start(id, &mut memory);
    }
    for (at, instruction) in plan.instructions.iter().enumerate() {
        match *instruction {
            Instruction::Exec(op) => {
                // What is overwritten ends where its successor starts.
                for &made in graph.makes(op) {
                    start(made, &mut memory);
                    if let Some(old) = plan.schedule.overwrites.get(made.0 as usize).copied().flatten() {
                        end(old, plan, kind_of(old), &mut memory);
                    }
                }
                let workspace = graph.workspace(op);
                most.see(at, count(events, process, at, &memory, workspace));
                let node = view.op_node(op);
                events.push(json!({
                    "ph": "X", "name": view.op_name(op), "cat": "op", "pid": process, "tid": OPS,
                    "ts": at, "dur": 1,
                    "args": {
                        "op": op.0,
                        "line": view.op_place(op).map(|p| p.at.line),
                        "pass": node.map(|n| pass(n).name()),
                        "makes": graph.makes(op).iter().map(|&b| label(&view, b)).collect::<Vec<_>>(),
                        "workspace_bytes": workspace,
                    },
                }));
            }
            Instruction::Free(buffer) => {
                end(buffer, plan, kind_of(buffer), &mut memory);
                most.see(at, count(events, process, at, &memory, 0));
                events.push(json!({
                    "ph": "i", "s": "t", "name": format!("free {}", label(&view, buffer)), "cat": "free",
                    "pid": process, "tid": FREES, "ts": at,
                    "args": { "buffer": buffer.0, "bytes": graph.buffer(buffer).bytes },
                }));
            }
        }
    }
    events.push(json!({
        "ph": "i", "s": "p", "name": format!("most alive: {}", Bytes(most.bytes)), "cat": "peak",
        "pid": process, "tid": OPS, "ts": most.at,
    }));
}

/// When most is alive, for the first time.
#[derive(Default)]
struct Most {
    at: usize,
    bytes: u64,
}

impl Most {
    fn see(&mut self, at: usize, bytes: u64) {
        if bytes > self.bytes {
            *self = Most { at, bytes };
        }
    }
}

fn end(buffer: BufferId, plan: &Plan, kind: BufferKind, memory: &mut BTreeMap<BufferKind, u64>) {
    let bytes = memory.entry(kind).or_default();
    *bytes = bytes.saturating_sub(plan.schedule_graph.buffer(buffer).bytes);
}

/// Writes everything that is alive, persistent tensors included; gives the bytes of all. An op's
/// workspace counts as temporary.
fn count(
    events: &mut Events,
    process: u32,
    at: usize,
    memory: &BTreeMap<BufferKind, u64>,
    workspace: u64,
) -> u64 {
    let all = memory.values().fold(workspace, |sum, &bytes| sum.saturating_add(bytes));
    let mut kinds: Map<String, Value> = Map::new();
    for (kind, bytes) in memory {
        let extra = if *kind == BufferKind::Temporaries { workspace } else { 0 };
        kinds.insert(kind.name().to_owned(), bytes.saturating_add(extra).into());
    }
    let counter = |name: &str, args: Value| json!({ "ph": "C", "name": name, "pid": process, "tid": 0, "ts": at, "args": args });
    events.push(counter("alive (bytes)", json!({ "all": all })));
    events.push(counter("by kind (bytes)", kinds.into()));
    all
}

fn label(view: &View<'_>, buffer: BufferId) -> String {
    view.name(buffer, view.maker_node(buffer))
}
