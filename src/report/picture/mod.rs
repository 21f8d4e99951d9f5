//! A plan as a picture: one page of HTML that needs no network, for any browser.
//!
//! The page gets the plan as JSON, column by column with texts stored once, and draws it itself
//! (`page.js`): memory over time by kind, and the live ranges as time × address.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::plan::{self, Place, PlacedBuffer, PlacedOp};
use crate::{
    plan::{BufferKind, Plan},
    source::{FileId, SourceMap},
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Characters of a source line that the page shows at most.
const LINE_LIMIT: usize = 200;

/// What one step does with memory.
#[derive(Debug, Clone)]
pub struct Step {
    /// With the sizes it is planned for, where it is planned for several.
    pub name: String,
    pub peak_bytes: u64,
    pub lower_bound_bytes: u64,
    /// No legal order has more alive, persistent buffers included.
    pub worst_legal_bytes: Option<u64>,
    /// The chosen order first.
    pub orders: Vec<Order>,
}

/// One order of a step, with its places in the arena.
#[derive(Debug, Clone)]
pub struct Order {
    /// `chosen`, `worst legal`.
    pub label: &'static str,
    pub persistent_bytes: u64,
    pub arena_bytes: u64,
    /// Where in the order the peak is.
    pub peak_position: usize,
    pub ops: Vec<PlacedOp>,
    pub buffers: Vec<PlacedBuffer>,
}

impl Order {
    pub fn new(label: &'static str, plan: &Plan, sources: &SourceMap) -> Order {
        Order {
            label,
            persistent_bytes: plan.persistent_bytes,
            arena_bytes: plan.schedule.arena_bytes,
            peak_position: plan.schedule.peak_position,
            ops: plan::ops(plan, sources),
            buffers: plan::buffers(plan, sources),
        }
    }
}

/// The page. `title` is the name of the program.
pub fn page(title: &str, steps: &[Step], sources: &SourceMap) -> String {
    let data = Data::new(sources).file(title, steps).to_string();
    // Inside a script element only `<` could end it.
    let data = data.replace('<', "\\u003c");
    format!(include_str!("page.html"), title = escape(title), style = STYLE, script = SCRIPT, data = data)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The JSON of a page: texts and source lines are numbered.
struct Data<'a> {
    sources: &'a SourceMap,
    texts: Vec<Value>,
    numbers: FxHashMap<Arc<str>, usize>,
    /// `[text of "file:line", text of the line]`
    lines: Vec<Value>,
    line_numbers: FxHashMap<(FileId, usize), usize>,
}

impl<'a> Data<'a> {
    fn new(sources: &'a SourceMap) -> Self {
        Data {
            sources,
            texts: Vec::new(),
            numbers: FxHashMap::default(),
            lines: Vec::new(),
            line_numbers: FxHashMap::default(),
        }
    }

    fn file(mut self, title: &str, steps: &[Step]) -> Value {
        let steps: Vec<Value> = steps.iter().map(|step| self.step(step)).collect();
        let kinds: Vec<&str> = BufferKind::ALL.iter().map(|k| k.name()).collect();
        json!({ "file": title, "kinds": kinds, "texts": self.texts, "lines": self.lines, "steps": steps })
    }

    fn step(&mut self, step: &Step) -> Value {
        json!({
            "name": step.name,
            "peak": step.peak_bytes,
            "bound": step.lower_bound_bytes,
            "worst": step.worst_legal_bytes,
            "orders": step.orders.iter().map(|order| self.order(order)).collect::<Vec<_>>(),
        })
    }

    fn order(&mut self, order: &Order) -> Value {
        let ops = order.ops.iter();
        let buffers = order.buffers.iter();
        json!({
            "label": order.label,
            "persistent": order.persistent_bytes,
            "arena": order.arena_bytes,
            "peak": order.peak_position,
            "ops": {
                "name": ops.clone().map(|op| self.text(&op.name)).collect::<Vec<_>>(),
                "line": ops.clone().map(|op| self.line(op.place)).collect::<Vec<_>>(),
                "scratch": ops.clone().map(|op| op.workspace_bytes).collect::<Vec<_>>(),
                "at": ops.map(|op| op.workspace_offset).collect::<Vec<_>>(),
            },
            "buffers": {
                "name": buffers.clone().map(|b| self.text(&b.buffer.name)).collect::<Vec<_>>(),
                "type": buffers.clone().map(|b| self.ty(b)).collect::<Vec<_>>(),
                "kind": buffers.clone().map(|b| kind(b.buffer.kind)).collect::<Vec<_>>(),
                "bytes": buffers.clone().map(|b| b.buffer.bytes).collect::<Vec<_>>(),
                "from": buffers.clone().map(|b| *b.positions.start()).collect::<Vec<_>>(),
                "to": buffers.clone().map(|b| *b.positions.end()).collect::<Vec<_>>(),
                "at": buffers.clone().map(|b| b.offset).collect::<Vec<_>>(),
                "line": buffers.clone().map(|b| self.line(b.buffer.place)).collect::<Vec<_>>(),
                "by": buffers.clone().map(|b| self.text(&b.buffer.kept_by)).collect::<Vec<_>>(),
                "byLine": buffers.map(|b| self.line(b.buffer.kept_by_place)).collect::<Vec<_>>(),
            },
        })
    }

    fn ty(&mut self, placed: &PlacedBuffer) -> Option<usize> {
        let text = placed.buffer.ty.as_ref()?.to_string();
        Some(self.text(&text))
    }

    fn text(&mut self, text: &str) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len();
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }

    fn line(&mut self, place: Option<Place>) -> Option<usize> {
        let place = place?;
        let key = (place.file, place.at.line);
        if let Some(&number) = self.line_numbers.get(&key) {
            return Some(number);
        }
        let file = self.sources.get(place.file)?;
        let text: String = file.line(place.at.line).chars().take(LINE_LIMIT).collect();
        let number = self.lines.len();
        self.lines.push(json!([format!("{}:{}", file.name, place.at.line), text]));
        self.line_numbers.insert(key, number);
        Some(number)
    }
}

fn kind(kind: BufferKind) -> usize {
    BufferKind::ALL.iter().position(|&k| k == kind).unwrap_or_default()
}
