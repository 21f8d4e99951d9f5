//! What a step sends between ranks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    ops::Op,
    plan::{Kernel, Plan},
};

/// The collectives of one kind in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// As the language names it.
    pub name: &'static str,
    pub count: usize,
    /// What one rank gives to all of them; the engine decides what travels.
    pub bytes: u64,
    /// What one rank gets from them.
    pub result_bytes: u64,
}

/// The collectives that a plan runs between several ranks, by name.
pub fn sent(plan: &Plan) -> Vec<Sent> {
    let mut kinds: BTreeMap<&'static str, Sent> = BTreeMap::new();
    for kernel in &plan.kernels {
        let Kernel::Node { node, args, results } = kernel else { continue };
        if node.0 as usize >= plan.graph.len() {
            continue;
        }
        let (Op::CollectiveStart(start), [operand], [result]) =
            (plan.graph.node(*node).op(), args.as_slice(), results.as_slice())
        else {
            continue;
        };
        if start.world > 1 {
            let name = start.kind.name();
            let sent = kinds.entry(name).or_insert(Sent { name, count: 0, bytes: 0, result_bytes: 0 });
            sent.count += 1;
            sent.bytes = sent.bytes.saturating_add(operand.ty.bytes());
            sent.result_bytes = sent.result_bytes.saturating_add(result.ty.bytes());
        }
    }
    kinds.into_values().collect()
}

impl Sent {
    pub(super) fn json(&self) -> Value {
        json!({
            "collective": self.name,
            "count": self.count,
            "bytes": self.bytes,
            "result_bytes": self.result_bytes,
        })
    }
}
