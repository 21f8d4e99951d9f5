//! `tg plan --why LINE`: every buffer that a line makes, how long it lives, and what keeps it.

use rustc_hash::FxHashMap;

use super::{Pass, Place, View, live::Live, op_name, pass};
use crate::{
    ir::{Node, OriginId, Origins, Type, ValueId},
    ops::{Alias, Op},
    plan::{BufferKind, Home, Instruction, Plan},
    schedule::{BufferId, OpId},
    source::{FileId, SourceMap},
};

mod beside;
mod text;

pub use text::{json, render};

/// Ops without a buffer that are named.
const OTHERS_LIMIT: usize = 6;
/// How far a value inside a fused op is followed to what is stored.
const FUSED_STEPS: usize = 64;

/// What one line makes in one step.
#[derive(Debug, Clone)]
pub struct LineReport {
    pub step: String,
    pub instructions: usize,
    /// In source order.
    pub buffers: Vec<BufferLife>,
    /// Ops of the line that make no buffer, and why; each kind once.
    pub without: Vec<WithoutBuffer>,
    /// Other lines of the file that make buffers, ascending.
    pub lines: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithoutBuffer {
    pub op: String,
    pub why: String,
    pub count: usize,
}

/// The life of one buffer. Instructions count from 0.
#[derive(Debug, Clone)]
pub struct BufferLife {
    pub id: BufferId,
    pub name: String,
    pub bytes: u64,
    pub ty: Option<Type>,
    pub kind: BufferKind,
    /// The passes of the loops that led to the line, outermost first: `b 12`.
    pub iterations: String,
    /// The op that makes it, when; `None` for what is there from the start.
    pub made_by: String,
    pub pass: Pass,
    pub born: Option<usize>,
    pub last_use: Option<LastUse>,
    /// The instruction that frees it, or with which another buffer takes its place over; `None`
    /// for what outlives the step.
    pub freed: Option<usize>,
    pub offset: Option<u64>,
    pub kept: Kept,
    /// Why it was not made in the place of an operand of its op, one sentence for each that it could
    /// have taken.
    pub beside: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct LastUse {
    pub instruction: usize,
    pub op: String,
    pub pass: Pass,
    pub place: Option<Place>,
}

/// What keeps a buffer to the end of its life.
#[derive(Debug, Clone)]
pub enum Kept {
    /// A parameter or state: it lives outside of the arena.
    Persistent,
    /// It is returned, here.
    Output(Option<Place>),
    /// Its last use, after which its memory is free.
    LastUse,
    /// The same, but this buffer takes over its memory.
    TakenBy(String),
    /// Nobody reads it.
    Nothing,
}

/// What a line of a file makes in a step.
pub fn line(plan: &Plan, sources: &SourceMap, file: FileId, line: usize) -> LineReport {
    let view = View::new(plan, sources);
    let mut lines = Lines { view: &view, file, line, known: FxHashMap::default() };
    let ids: Vec<BufferId> = plan.schedule_graph.buffer_ids().collect();
    let mut found: Vec<(BufferId, bool)> = Vec::new();
    let mut others: Vec<usize> = Vec::new();
    for &id in &ids {
        let Some(node) = view.maker_node(id) else { continue };
        if let Some(place) = view.place(node).filter(|p| p.file == file) {
            others.push(place.at.line);
        }
        match lines.of(node.origin()) {
            At::Line => found.push((id, true)),
            At::Call => found.push((id, false)),
            At::Elsewhere => {}
        }
    }
    // A call's line makes what the function makes, where nothing is made at the line itself.
    let is_direct = found.iter().any(|f| f.1);
    found.retain(|f| f.1 || !is_direct);
    others.sort_unstable();
    others.dedup();
    others.retain(|&l| l != line);
    let lives = Lives::new(&view);
    LineReport {
        step: plan.name.to_string(),
        instructions: plan.instructions.len(),
        buffers: found.iter().map(|&(id, _)| lives.of(id)).collect(),
        without: if found.is_empty() { without(&mut lines) } else { Vec::new() },
        lines: others,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The innermost place outside of the library.
    Line,
    /// A call on the way there.
    Call,
    Elsewhere,
}

/// Which origins lead through the line.
struct Lines<'a, 'v> {
    view: &'v View<'a>,
    file: FileId,
    line: usize,
    known: FxHashMap<OriginId, At>,
}

impl Lines<'_, '_> {
    fn of(&mut self, origin: OriginId) -> At {
        if origin == Origins::NOWHERE {
            return At::Elsewhere;
        }
        if let Some(&known) = self.known.get(&origin) {
            return known;
        }
        let sources = self.view.sources;
        let chain: Vec<_> = self.view.graph().origins.chain(origin).map(|o| o.span).collect();
        let is_library = |file: FileId| sources.get(file).is_none_or(|f| f.is_library);
        // In a library's file the line is a place of its own right.
        let innermost = match is_library(self.file) {
            true => chain.first(),
            false => chain.iter().find(|s| !is_library(s.file)).or(chain.first()),
        };
        let is_here =
            |span: &crate::source::Span| span.file == self.file && sources.start(*span).line == self.line;
        let at = if innermost.is_some_and(is_here) {
            At::Line
        } else if chain.iter().any(is_here) {
            At::Call
        } else {
            At::Elsewhere
        };
        self.known.insert(origin, at);
        at
    }
}

/// Lives of the buffers of a plan.
struct Lives<'a, 'v> {
    view: &'v View<'a>,
    live: Live,
    /// For each op, its instruction; for each buffer, that which frees it.
    executed: FxHashMap<OpId, usize>,
    freed: FxHashMap<BufferId, usize>,
    /// For each buffer, the one that takes its place over.
    taken: FxHashMap<BufferId, BufferId>,
    beside: FxHashMap<BufferId, Vec<String>>,
}

impl<'a, 'v> Lives<'a, 'v> {
    fn new(view: &'v View<'a>) -> Self {
        let plan = view.plan;
        let (mut executed, mut freed, mut taken) =
            (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        for (at, instruction) in plan.instructions.iter().enumerate() {
            match instruction {
                Instruction::Exec(op) => executed.insert(*op, at).map(drop),
                Instruction::Free(buffer) => freed.insert(*buffer, at).map(drop),
            };
        }
        for (made, read) in plan.schedule_graph.buffer_ids().zip(&plan.schedule.overwrites) {
            if let Some(read) = read {
                taken.insert(*read, made);
            }
        }
        let beside = beside::reasons(view);
        Lives { view, live: Live::new(plan), executed, freed, taken, beside }
    }

    fn of(&self, id: BufferId) -> BufferLife {
        let view = self.view;
        let plan = view.plan;
        let node = view.maker_node(id);
        let info = plan.buffers.get(id.0 as usize);
        let graph = &plan.schedule_graph;
        let flags = graph.buffer(id).flags;
        let maker = graph.maker(id).filter(|_| !flags.input && !flags.persistent);
        let reader = self.live.last_readers.get(id.0 as usize).copied().flatten();
        let at = |op: OpId| self.executed.get(&op).copied();
        let taker = self.taken.get(&id).copied();
        let kept = match (flags.persistent, flags.output, taker) {
            (true, ..) => Kept::Persistent,
            (_, true, _) => Kept::Output(info.and_then(|b| view.output_place(b.value))),
            (.., Some(by)) => Kept::TakenBy(view.name(by, view.maker_node(by))),
            _ if reader.is_some() => Kept::LastUse,
            _ => Kept::Nothing,
        };
        let freed = match &kept {
            Kept::Persistent | Kept::Output(_) => None,
            Kept::TakenBy(_) => taker.and_then(|by| graph.maker(by)).and_then(at),
            _ => self.freed.get(&id).copied(),
        };
        BufferLife {
            id,
            name: view.name(id, node),
            bytes: graph.buffer(id).bytes,
            ty: info.filter(|_| node.is_some()).map(|b| view.graph().ty(b.value).clone()),
            kind: info.map_or(BufferKind::Temporaries, |b| b.kind),
            iterations: node.map_or(String::new(), |n| iterations(view, n)),
            made_by: match (maker, info.map(|b| b.home)) {
                (Some(op), _) => view.op_name(op).to_owned(),
                (None, Some(Home::Input(_))) => "an argument of the step".to_owned(),
                (None, _) => "there before the step".to_owned(),
            },
            pass: maker.and_then(|op| view.op_node(op)).map_or(Pass::Forward, pass),
            born: maker.and_then(at),
            last_use: reader.and_then(|op| {
                let node = view.op_node(op)?;
                Some(LastUse {
                    instruction: at(op)?,
                    op: op_name(node).to_owned(),
                    pass: pass(node),
                    place: view.place(node),
                })
            }),
            freed,
            offset: plan.schedule.offsets.get(id.0 as usize).copied().flatten(),
            kept,
            beside: self.beside.get(&id).cloned().unwrap_or_default(),
        }
    }
}

/// The passes of loops that led to a node, outermost first.
fn iterations(view: &View<'_>, node: Node<'_>) -> String {
    let mut parts: Vec<&str> =
        view.graph().origins.chain(node.origin()).filter_map(|o| o.iteration.as_deref()).collect();
    parts.reverse();
    parts.dedup();
    parts.join(", ")
}

/// Why the ops of a line that makes no buffer make none.
fn without(lines: &mut Lines<'_, '_>) -> Vec<WithoutBuffer> {
    let view = lines.view;
    let graph = view.graph();
    let stored: FxHashMap<ValueId, BufferId> = view
        .plan
        .buffers
        .iter()
        .zip(view.plan.schedule_graph.buffer_ids())
        .map(|(b, id)| (b.value, id))
        .collect();
    let mut first_user: Vec<Option<crate::ir::NodeId>> = vec![None; graph.value_count()];
    for node in graph.nodes() {
        for arg in node.args() {
            if let Some(user) = first_user.get_mut(arg.0 as usize) {
                user.get_or_insert(node.id);
            }
        }
    }
    let mut all: Vec<WithoutBuffer> = Vec::new();
    for node in graph.nodes() {
        if lines.of(node.origin()) == At::Elsewhere {
            continue;
        }
        let why = match node.op() {
            Op::Const(_) | Op::Scalar(_) => "a number that its users hold in registers".to_owned(),
            Op::Read(_) | Op::Write(_) => "a parameter or state, which lies outside of the arena".to_owned(),
            Op::Barrier(_) => "order only: its results are its operands".to_owned(),
            Op::Print(_) => "it shows a value".to_owned(),
            op if op.memory().alias == Alias::View => {
                let mut base = node;
                while base.op().memory().alias != Alias::Fresh
                    && let Some(&arg) = base.args().first()
                {
                    base = graph.producer(arg).0;
                }
                format!("a view of {}", place_of(view, base, &stored))
            }
            _ => {
                let mut at = Some(node);
                for _ in 0..FUSED_STEPS {
                    let Some(here) = at else { break };
                    if here.results().any(|r| stored.contains_key(&r)) {
                        break;
                    }
                    at = first_user.get(here.result(0).0 as usize).copied().flatten().map(|n| graph.node(n));
                }
                match at {
                    Some(end) if end.id != node.id => {
                        format!("computed together with {}", place_of(view, end, &stored))
                    }
                    _ => "computed together with its user".to_owned(),
                }
            }
        };
        let op = op_name(node).to_owned();
        if let Some(known) = all.iter_mut().find(|w| w.op == op && w.why == why) {
            known.count += 1;
        } else if all.len() < OTHERS_LIMIT {
            all.push(WithoutBuffer { op, why, count: 1 });
        }
    }
    all
}

/// `` `h`, line 21 `` for a node whose result is stored.
fn place_of(view: &View<'_>, node: Node<'_>, stored: &FxHashMap<ValueId, BufferId>) -> String {
    let buffer = node.results().find_map(|r| stored.get(&r).copied());
    let name = match buffer {
        Some(id) => super::generalize(&view.name(id, Some(node))),
        None => op_name(node).to_owned(),
    };
    match view.place(node) {
        Some(place) => format!("`{name}`, {}", view.line(place)),
        None => format!("`{name}`"),
    }
}
