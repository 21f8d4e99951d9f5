//! Chains of blame: for a buffer, where it was born, what uses it last, and why that use exists.

use std::fmt::Write;

use super::facts::{Facts, Frame};
use crate::{
    diagnostic::Label,
    ir::{Phase, Role, SlotId},
    ops::Op,
    plan::{BufferKind, Home},
    report::{Bytes, visible},
    schedule::BufferId,
    source::Span,
};

/// Values looked at on the way from a gradient to its update.
const HOPS: usize = 16;

/// Why a buffer is still alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keeper {
    /// A result of the step: its number among the outputs.
    Output(usize),
    /// It outlives the step.
    State,
    /// A backward op needs it.
    Gradient,
    /// A region is computed again from it.
    Recompute,
    /// The update of a parameter.
    Update(SlotId),
    /// A `debug`.
    Debug,
    /// A later line of the forward pass.
    Forward,
    /// Nothing reads it.
    Nothing,
}

impl Keeper {
    /// Why something is kept, as the text of a label at the place that keeps it. `updated` is the
    /// parameter whose update does.
    pub fn label(self, updated: &str) -> String {
        match self {
            Keeper::Output(_) => "returned: alive to the end of the step".to_owned(),
            Keeper::State => "it outlives the step".to_owned(),
            Keeper::Gradient => "kept for the gradient of this".to_owned(),
            Keeper::Recompute => "kept to compute this again".to_owned(),
            Keeper::Update(_) => format!("kept for the update of `{updated}`"),
            Keeper::Debug => "kept for this `debug`".to_owned(),
            Keeper::Forward => "needed here".to_owned(),
            Keeper::Nothing => "nothing uses it".to_owned(),
        }
    }

    /// The same for a sentence, with the line of the place.
    pub fn reason(self, line: Option<usize>, updated: &str) -> String {
        let of = line.map(|l| format!(" of line {l}")).unwrap_or_default();
        let at = line.map(|l| format!(" on line {l}")).unwrap_or_default();
        match self {
            Keeper::Output(_) => format!("kept to the end of the step: returned{at}"),
            Keeper::State => "there before and after the step".to_owned(),
            Keeper::Gradient => format!("kept for the gradient{of}"),
            Keeper::Recompute => match line {
                Some(l) => format!("kept to compute line {l} again in the backward pass"),
                None => "kept to compute it again in the backward pass".to_owned(),
            },
            Keeper::Update(_) => format!("kept for the update of `{updated}`"),
            Keeper::Debug => format!("kept for the `debug`{at}"),
            Keeper::Forward => format!("needed{at}"),
            Keeper::Nothing => "used by nothing".to_owned(),
        }
    }
}

/// A buffer with its history.
#[derive(Debug, Clone)]
pub struct Blame {
    pub buffer: BufferId,
    /// How the program calls it, in backticks where it is code.
    pub name: String,
    pub bytes: u64,
    /// The line of the program that makes it; innermost, library code left out.
    pub born: Option<Span>,
    /// All lines that led there.
    pub born_frames: Vec<Frame>,
    pub keeper: Keeper,
    /// The line of the program that keeps it: for a gradient the forward line it is taken of.
    pub kept: Option<Span>,
    pub kept_frames: Vec<Frame>,
}

/// The history of one buffer.
pub fn blame(facts: &Facts<'_>, buffer: BufferId) -> Blame {
    let born_frames = facts.maker(buffer).map(|n| facts.frames(n.origin())).unwrap_or_default();
    let (keeper, kept_frames) = keeper(facts, buffer);
    let user = |frames: &[Frame]| frames.iter().find(|f| !f.is_library).map(|f| f.span);
    Blame {
        buffer,
        name: name(facts, buffer),
        bytes: facts.bytes(buffer),
        born: user(&born_frames),
        born_frames,
        keeper,
        kept: user(&kept_frames),
        kept_frames,
    }
}

fn keeper(facts: &Facts<'_>, buffer: BufferId) -> (Keeper, Vec<Frame>) {
    if facts.is_persistent(buffer) {
        return (Keeper::State, Vec::new());
    }
    let value = facts.value(buffer);
    let outputs = &facts.plan.graph.outputs;
    let returned = outputs.iter().position(|o| Some(facts.base(o.value)) == value);
    if let Some(k) = returned.filter(|_| facts.is_output(buffer)) {
        let origin = outputs.get(k).map(|o| o.origin);
        return (Keeper::Output(k), origin.map(|o| facts.frames(o)).unwrap_or_default());
    }
    let Some(user) = facts.last_user(buffer) else { return (Keeper::Nothing, Vec::new()) };
    let keeper = match (user.op(), user.role()) {
        (Op::Print(_), _) => Keeper::Debug,
        (_, Role::Update { slot }) => Keeper::Update(slot),
        (Op::Write(write), _) => Keeper::Update(write.slot),
        (_, Role::Backward { .. }) => Keeper::Gradient,
        _ if user.instance() != 0 => Keeper::Recompute,
        _ => Keeper::Forward,
    };
    (keeper, facts.frames(facts.forward_of(user).origin()))
}

/// What the program calls a buffer: the name of the parameter or input, the name of its `let`, or
/// the expression that makes it.
pub fn name(facts: &Facts<'_>, buffer: BufferId) -> String {
    let graph = &facts.plan.graph;
    match facts.home(buffer) {
        Home::Slot(slot) => return format!("`{}`", facts.slot_name(slot)),
        Home::Input(index) => {
            let name = graph.inputs.get(index as usize).map(|i| i.name.to_string());
            return format!("`{}`", name.unwrap_or_default());
        }
        Home::Arena => {}
    }
    let Some(maker) = facts.maker(buffer) else { return "a buffer".to_owned() };
    if let Some(slot) = gradient_of(facts, buffer) {
        return format!("the gradient of `{}`", facts.slot_name(slot));
    }
    let frames = facts.frames(maker.origin());
    // Names that the library gives mean nothing to the reader.
    let is_own = frames.first().is_some_and(|f| !f.is_library);
    let named = facts.value(buffer).and_then(|v| graph.names.get(&v)).filter(|_| is_own);
    let user = frames.iter().find(|f| !f.is_library).map(|f| f.span);
    let text = match (maker.role().phase(), named, user) {
        (Phase::Backward, _, Some(span)) => {
            return format!("a gradient of `{}`", code(facts, span));
        }
        (_, Some(name), _) => name.to_string(),
        (_, None, Some(span)) => code(facts, span),
        (_, None, None) => return format!("a result of {}", maker.op().name()),
    };
    format!("`{text}`")
}

/// The parameter whose gradient a buffer holds.
pub fn gradient_of(facts: &Facts<'_>, buffer: BufferId) -> Option<SlotId> {
    if facts.plan.buffers.get(buffer.0 as usize)?.kind != BufferKind::Grads {
        return None;
    }
    // Clipping and scaling stand between a gradient and its update.
    let graph = &facts.plan.graph;
    let mut todo = vec![facts.value(buffer)?];
    let mut steps = 0;
    while let Some(value) = todo.pop() {
        for &user in facts.users(value) {
            let user = graph.node(user);
            if let Role::Update { slot } = user.role() {
                return Some(slot);
            }
            let same = user.results().next().filter(|&r| graph.ty(r).shape() == graph.ty(value).shape());
            todo.extend(same);
        }
        steps += 1;
        if steps > HOPS {
            break;
        }
    }
    None
}

/// The text of a span on one line, short enough for a sentence.
pub fn code(facts: &Facts<'_>, span: Span) -> String {
    let text = facts.sources.text(span);
    let first = text.lines().next().unwrap_or_default().trim_end();
    let cut = if first.len() < text.len() { format!("{first} …") } else { first.to_owned() };
    visible::line(&cut, 40).into_owned()
}

/// `f32[8, 128], 4.0 KiB`.
pub fn size(facts: &Facts<'_>, buffer: BufferId) -> String {
    let bytes = Bytes(facts.bytes(buffer));
    match facts.ty(buffer) {
        Some(ty) => format!("{ty}, {bytes}"),
        None => bytes.to_string(),
    }
}

impl Blame {
    /// Why it is kept, as the text of a label at [`Blame::kept`].
    pub fn why(&self, facts: &Facts<'_>) -> String {
        self.keeper.label(&self.updated(facts))
    }

    /// The parameter whose update keeps it.
    fn updated(&self, facts: &Facts<'_>) -> String {
        match self.keeper {
            Keeper::Update(slot) => facts.slot_name(slot),
            _ => String::new(),
        }
    }

    /// The chain as one sentence, for notes: what, how much, from where, kept by what.
    pub fn sentence(&self, facts: &Facts<'_>, count: usize, total: u64) -> String {
        let line = |span: Option<Span>| span.map(|s| facts.sources.start(s).line);
        let mut text = String::new();
        if count > 1 {
            let _ = write!(text, "{count} x ");
        }
        let _ = write!(text, "{} ({})", self.name, size(facts, self.buffer));
        if count > 1 {
            let _ = write!(text, ", {} together", Bytes(total));
        }
        if let Some(line) = line(self.born) {
            let _ = write!(text, ", made on line {line}");
        }
        let why = self.keeper.reason(line(self.kept), &self.updated(facts));
        let _ = write!(text, ", {why}");
        text
    }
}

/// Where the peak is reached: a line of the program, and the work of it that runs there.
#[derive(Debug, Clone, Copy)]
pub struct Peak {
    pub span: Option<Span>,
    work: &'static str,
}

impl Peak {
    pub fn of(facts: &Facts<'_>) -> Option<Peak> {
        let node = facts.peak_node()?;
        let span = facts.span_of(facts.forward_of(node)).or_else(|| facts.span_of(node));
        let work = match (node.role(), node.instance()) {
            (Role::Backward { .. }, _) => "the backward pass of",
            (Role::Update { .. }, _) => "the update of",
            (Role::Forward, 0) if facts.is_forward_pass(facts.peak) => "the forward pass of",
            (Role::Forward, 0) => "the computation of",
            (Role::Forward, _) => "the recomputation of",
        };
        Some(Peak { span, work })
    }

    /// The place and what runs there, as a label.
    pub fn label(&self) -> Option<Label> {
        Some(Label { span: self.span?, text: format!("the peak: {} this", self.work) })
    }

    /// How high it is, of which step, at which moment, for which order. With `place`, where.
    pub fn note(&self, facts: &Facts<'_>, place: bool) -> String {
        let (at, all) = (facts.peak + 1, facts.plan.schedule.order.len());
        let step = &facts.plan.name;
        let peak = Bytes(facts.peak_bytes());
        match self.span.filter(|_| place) {
            Some(span) => {
                // Code that has to be cut says less than its line.
                let whole = facts.sources.text(span);
                let line = facts.sources.start(span).line;
                let what = match code(facts, span) {
                    code if code == whole => format!("`{code}` on line {line}"),
                    _ => format!("line {line}"),
                };
                format!(
                    "the peak of `{step}`, {peak}, is at op {at} of {all} ({} {what}) in the planned order",
                    self.work
                )
            }
            None => format!("the peak of `{step}`, {peak}, is at op {at} of {all} in the planned order"),
        }
    }
}

/// Adds a label for each line of the library on the way to the places of a finding.
pub fn library_frames(facts: &Facts<'_>, finding: &mut super::finding::Finding) {
    let mut spans: Vec<Span> = Vec::new();
    for &buffer in &facts.at_peak {
        let blame = blame(facts, buffer);
        for (place, frames) in [(blame.born, &blame.born_frames), (blame.kept, &blame.kept_frames)] {
            if place.is_none() || place != Some(finding.diagnostic.primary.span) {
                continue;
            }
            for frame in frames.iter().filter(|f| f.is_library) {
                // Once for each line: several places of one would say the same.
                let line = |s: &Span| (s.file, facts.sources.start(*s).line);
                if spans.iter().all(|s| line(s) != line(&frame.span)) {
                    spans.push(frame.span);
                }
            }
        }
    }
    for span in spans {
        finding.diagnostic.secondary.push(Label { span, text: "by way of this".into() });
    }
}
