//! The kinds of findings, one file each. A kind reads [`Facts`] and gives [`Finding`]s; it changes
//! nothing and plans nothing.

mod backward;
mod bucket;
mod cast;
mod donation;
mod frozen;
mod gathered;
mod in_place;
mod loss;
mod optimizer;
mod order;
mod output;
mod region;
mod script;
mod useless;
mod view;

pub use loss::in_parts;
pub use script::of_script;

use rustc_hash::FxHashMap;

use super::{
    blame::{self, Blame, Keeper},
    facts::Facts,
    finding::Finding,
};
use crate::{
    diagnostic::{Code, Label},
    ir::Phase,
    plan::Home,
    schedule::BufferId,
    source::Span,
};

/// What is too small a part of the peak to talk about.
pub(super) const SMALL: f64 = 0.01;

/// Buffers that are alive at the peak and have one history: the passes of a loop, the layers of a
/// model.
pub struct Holding {
    /// Of the largest of them.
    pub blame: Blame,
    pub buffers: Vec<BufferId>,
    pub bytes: u64,
}

impl Holding {
    /// `12 x f32[8, 128], 4.0 KiB each`.
    pub fn size(&self, facts: &Facts<'_>) -> String {
        let one = blame::size(facts, self.blame.buffer);
        match self.buffers.len() {
            1 => one,
            n => format!("{n} x {one} each"),
        }
    }
}

/// All findings in one step.
pub fn of_step(facts: &Facts<'_>) -> Vec<Finding> {
    let holdings = holdings(facts);
    let mut all = Vec::new();
    all.extend(gathered::find(facts));
    all.extend(output::find(facts));
    all.extend(view::find(facts));
    all.extend(backward::find(facts, &holdings));
    all.extend(cast::find(facts, &holdings));
    all.extend(bucket::find(facts));
    all.extend(optimizer::find(facts));
    all.extend(order::find(facts));
    all.extend(donation::find(facts));
    all.extend(frozen::find(facts));
    all.extend(in_place::find(facts));
    all.extend(loss::find(facts));
    all.extend(useless::find(facts));
    all.extend(region::find(facts));
    all
}

/// What is alive at the peak, grouped by history, largest first.
pub fn holdings(facts: &Facts<'_>) -> Vec<Holding> {
    type Key = (Option<Span>, Keeper, Option<Span>, &'static str, Option<Phase>, Option<u64>);
    let mut places: FxHashMap<Key, usize> = FxHashMap::default();
    let mut all: Vec<Holding> = Vec::new();
    for &buffer in &facts.at_peak {
        if facts.bytes(buffer) == 0 {
            continue;
        }
        let blame = blame::blame(facts, buffer);
        let op = facts.maker(buffer).map_or("", |n| n.op().name());
        let slot = match facts.home(buffer) {
            Home::Slot(slot) => Some(u64::from(slot.0)),
            _ => None,
        };
        // The updates of several parameters are one reason.
        let keeper = match blame.keeper {
            Keeper::Update(_) => Keeper::Update(crate::ir::SlotId(0)),
            other => other,
        };
        let key = (blame.born, keeper, blame.kept, op, facts.phase(buffer), slot);
        match places.get(&key).and_then(|&k| all.get_mut(k)) {
            Some(holding) => {
                holding.bytes += blame.bytes;
                holding.buffers.push(buffer);
            }
            None => {
                places.insert(key, all.len());
                all.push(Holding { bytes: blame.bytes, buffers: vec![buffer], blame });
            }
        }
    }
    all.sort_by_key(|h| std::cmp::Reverse(h.bytes));
    all
}

/// Whether a number of bytes is worth a message, for a step with this peak.
pub fn is_large(facts: &Facts<'_>, bytes: u64) -> bool {
    bytes as f64 >= SMALL * facts.peak_bytes() as f64
}

/// A finding about what is held at the peak, with labels where it was born, by what it is kept, and
/// where the peak is. The primary place is that of its birth.
pub fn held(
    facts: &Facts<'_>,
    holding: &Holding,
    code: Code,
    severity: crate::diagnostic::Severity,
    message: String,
    accept: super::finding::Accept,
) -> Option<Finding> {
    let born = holding.blame.born?;
    let diagnostic = crate::diagnostic::Diagnostic::new(severity, code, born, message)
        .label(format!("made here: {}", holding.size(facts)));
    let finding = Finding::new(diagnostic, holding.bytes, accept)
        .label(holding.blame.kept.filter(|k| *k != born), holding.blame.why(facts));
    Some(with_peak(facts, finding))
}

/// Adds the place of the peak, and what is to know of it.
pub fn with_peak(facts: &Facts<'_>, mut finding: Finding) -> Finding {
    if let Some(peak) = blame::Peak::of(facts) {
        // Beside another text, or around it, nobody would see which place is meant: then a note says it.
        let d = &finding.diagnostic;
        let mut labels = std::iter::once(&d.primary).chain(&d.secondary);
        let is_free = |l: &Label| labels.all(|other| !overlap(other.span, l.span));
        let label = peak.label().filter(is_free);
        finding.diagnostic.notes.push(peak.note(facts, label.is_none()));
        finding.diagnostic.secondary.extend(label);
    }
    name_overlapping(facts, &mut finding);
    finding
}

fn overlap(a: Span, b: Span) -> bool {
    a == b || (a.file == b.file && a.start < b.end && b.start < a.end)
}

/// Labels say "this" of what they underline. Where one stands inside of another nobody sees which is
/// which: then they say the code.
fn name_overlapping(facts: &Facts<'_>, finding: &mut Finding) {
    /// Longer code is no name.
    const LONGEST: usize = 28;
    let d = &mut finding.diagnostic;
    let spans: Vec<Span> = std::iter::once(&d.primary).chain(&d.secondary).map(|l| l.span).collect();
    let overlaps = |a: Span| spans.iter().any(|b| *b != a && overlap(a, *b));
    for label in std::iter::once(&mut d.primary).chain(&mut d.secondary) {
        let code = blame::code(facts, label.span);
        if !overlaps(label.span) || code.chars().count() > LONGEST {
            continue;
        }
        for (text, named) in [
            ("made here", format!("`{code}` is made here")),
            ("computed twice", format!("`{code}` is computed twice")),
            ("of this", format!("of `{code}`")),
            ("compute this", format!("compute `{code}`")),
        ] {
            if label.text.contains(text) {
                label.text = label.text.replacen(text, &named, 1);
                break;
            }
        }
    }
}
