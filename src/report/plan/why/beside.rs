//! Why a result lies beside its operands instead of in the place of one of them.

use rustc_hash::FxHashMap;

use crate::{
    plan::RefusalReason,
    report::plan::{View, generalize},
    schedule::BufferId,
};

/// For each buffer that could have been made in the place of an operand and was not, why not: one
/// sentence for each operand.
pub fn reasons(view: &View<'_>) -> FxHashMap<BufferId, Vec<String>> {
    let plan = view.plan;
    let name = |id: BufferId| generalize(&view.name(id, view.maker_node(id)));
    let mut all: FxHashMap<BufferId, Vec<String>> = FxHashMap::default();
    for refusal in plan.refused() {
        let ty = |id: BufferId| {
            plan.buffers.get(id.0 as usize).map_or_else(String::new, |b| view.graph().ty(b.value).to_string())
        };
        // What is smaller than the result could never have held it.
        let bytes = |id: BufferId| plan.schedule_graph.buffer(id).bytes;
        if bytes(refusal.operand) < bytes(refusal.made) {
            continue;
        }
        let operand = name(refusal.operand);
        let why = match refusal.reason {
            RefusalReason::ReadLater(reader) => {
                let place = view.op_node(reader).and_then(|n| view.place(n));
                let line = place.map(|p| format!(", {},", view.line(p))).unwrap_or_default();
                format!("`{}`{line} reads it afterwards", view.op_name(reader))
            }
            RefusalReason::Returned => "it is returned".to_owned(),
            RefusalReason::Persistent => "only its own update may change a parameter or state".to_owned(),
            RefusalReason::Size => {
                format!("the sizes differ: {} and {}", ty(refusal.made), ty(refusal.operand))
            }
            RefusalReason::Part => {
                "only a part of it is read, or in another order than is written".to_owned()
            }
            RefusalReason::ReadTwice => "the op reads it in two ways".to_owned(),
            RefusalReason::Taken(other) => format!("`{}` takes it", name(other)),
        };
        let text = format!("not in the place of `{operand}`: {why}");
        let of_buffer = all.entry(refusal.made).or_default();
        if !of_buffer.contains(&text) {
            of_buffer.push(text);
        }
    }
    all
}
