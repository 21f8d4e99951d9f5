//! What a `budget` chose: the regions it added, the lines whose values are made again, and what is
//! kept instead.

use serde_json::{Value, json};

use super::{Place, View, op_name, place_text};
use crate::{
    ir::{Graph, Node, Region, Role},
    ops::Alias,
    plan::Plan,
    report::{Bytes, visible},
    source::{FileId, SourceMap},
};

/// Columns of the text, and lines and kinds of ops that it names; JSON has all.
const WIDTH: usize = 80;
const LINES: usize = 8;
const OPS: usize = 4;

/// A budget and what it took.
#[derive(Debug, Clone)]
pub struct Recompute {
    pub budget_bytes: u64,
    /// Regions on top of those of the program.
    pub regions: usize,
    /// Floating-point operations of the step, and those among them that make something again.
    pub flops: f64,
    pub recomputed_flops: f64,
    /// What is made again, the most work first: the regions of the program are among it.
    pub again: Vec<Line>,
    /// What the added regions keep and hand on, the most bytes first.
    pub kept: Vec<Line>,
}

/// The values of one line of the program.
#[derive(Debug, Clone)]
pub struct Line {
    pub place: Option<Place>,
    /// Names of ops and how often each occurs.
    pub ops: Vec<(String, usize)>,
    pub flops: f64,
    pub bytes: u64,
}

/// Works out what a budget chose. `written` is the step as it stands in the program, `fitted` the
/// graph that was planned.
pub fn recompute(
    plan: &Plan,
    (written, fitted): (&Graph, &Graph),
    budget_bytes: u64,
    sources: &SourceMap,
) -> Recompute {
    let view = View::new(plan, sources);
    let mut again = Vec::new();
    for node in plan.graph.nodes() {
        let makes = node.op().memory().alias == Alias::Fresh && node.results().next().is_some();
        if node.instance() != 0 && node.role() == Role::Forward && makes {
            count(&mut again, &view, node, &plan.graph);
        }
    }
    again.sort_by(|a, b| b.flops.total_cmp(&a.flops));
    let added = added(written, fitted);
    let mut kept = Vec::new();
    for &value in added.iter().flat_map(|region| region.keep.iter().chain(&region.outputs)) {
        count(&mut kept, &view, fitted.producer(value).0, fitted);
    }
    kept.sort_by_key(|line| std::cmp::Reverse(line.bytes));
    Recompute {
        budget_bytes,
        regions: added.len(),
        flops: plan.flops,
        recomputed_flops: plan.recomputed_flops,
        again,
        kept,
    }
}

/// The regions that are not those of the program: each of these has its own place in the text, which
/// replaying keeps.
fn added<'g>(written: &Graph, fitted: &'g Graph) -> Vec<&'g Region> {
    let mut known: Vec<_> = written.regions.iter().map(|region| region.origin).collect();
    let is_added = |region: &&Region| match known.iter().position(|&origin| origin == region.origin) {
        Some(at) => {
            known.swap_remove(at);
            false
        }
        None => true,
    };
    fitted.regions.iter().filter(is_added).collect()
}

fn count(lines: &mut Vec<Line>, view: &View<'_>, node: Node<'_>, graph: &Graph) {
    let place = view.place(node);
    let key = |place: &Option<Place>| place.map(|p| (p.file, p.at.line));
    let index = match lines.iter().position(|line| key(&line.place) == key(&place)) {
        Some(index) => index,
        None => {
            lines.push(Line { place, ops: Vec::new(), flops: 0.0, bytes: 0 });
            lines.len() - 1
        }
    };
    let Some(line) = lines.get_mut(index) else { return };
    let args: Vec<_> = node.arg_types().collect();
    let results: Vec<_> = node.results().map(|r| graph.ty(r)).collect();
    line.flops += node.op().flops(&args, &results);
    line.bytes = results.iter().map(|ty| ty.bytes()).fold(line.bytes, u64::saturating_add);
    let name = op_name(node);
    match line.ops.iter_mut().find(|(known, _)| known == name) {
        Some((_, times)) => *times += 1,
        None => line.ops.push((name.to_owned(), 1)),
    }
}

impl Recompute {
    /// Extra work, as a part of what the step takes without it.
    fn extra(&self) -> f64 {
        let plain = self.flops - self.recomputed_flops;
        if plain > 0.0 { self.recomputed_flops / plain } else { 0.0 }
    }

    /// Some lines of text under the figures of a plan.
    pub fn render(&self, main: Option<FileId>, sources: &SourceMap) -> String {
        let regions = match self.regions {
            0 => "nothing added, the step fits as it is written".to_owned(),
            1 => "1 region added".to_owned(),
            n => format!("{n} regions added"),
        };
        let mut out = format!(
            "  budget {}: {regions}, {:.1} % of the work is done again\n",
            Bytes(self.budget_bytes),
            100.0 * self.extra()
        );
        for (what, lines) in [("made again", &self.again), ("kept", &self.kept)] {
            for line in lines.iter().take(LINES) {
                let place = line.place.map_or("elsewhere".to_owned(), |p| place_text(p, main, sources));
                let row = format!("    {what:<10}  {place}: {}", line.names());
                out.push_str(&visible::line(&row, WIDTH));
                out.push('\n');
            }
            if lines.len() > LINES {
                let rest = lines.len() - LINES;
                out.push_str(&format!(
                    "    {what:<10}  and {rest} more line{}\n",
                    if rest == 1 { "" } else { "s" }
                ));
            }
        }
        out
    }

    /// The same in full, for the JSON form of a step.
    pub fn json(&self) -> Value {
        let lines = |lines: &[Line]| -> Value {
            let each = lines.iter().map(|line| {
                let mut ops = serde_json::Map::new();
                for (name, times) in &line.ops {
                    ops.insert(name.clone(), (*times).into());
                }
                json!({
                    "line": line.place.map(|p| p.at.line),
                    "ops": ops,
                    "flops": line.flops,
                    "bytes": line.bytes,
                })
            });
            each.collect()
        };
        json!({
            "bytes": self.budget_bytes,
            "regions": self.regions,
            "flops": self.flops,
            "recomputed_flops": self.recomputed_flops,
            "made_again": lines(&self.again),
            "kept": lines(&self.kept),
        })
    }
}

impl Line {
    /// `10 x matmul, add`.
    fn names(&self) -> String {
        let mut ops: Vec<&(String, usize)> = self.ops.iter().collect();
        ops.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let name = |(name, times): &(String, usize)| match times {
            1 => visible::line(name, 40).into_owned(),
            _ => format!("{times} x {}", visible::line(name, 40)),
        };
        let mut names: Vec<String> = ops.iter().take(OPS).map(|op| name(op)).collect();
        if ops.len() > OPS {
            names.push("…".to_owned());
        }
        names.join(", ")
    }
}
