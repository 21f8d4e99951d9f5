//! A graph as text.

use std::fmt::{self, Write};

use rustc_hash::FxHashMap;

use crate::{
    ir::{Bind, Graph, Node, OriginId, Policy, Region, Role, ScalarSource, Shard, SlotKind, ValueId},
    source::SourceMap,
};

/// The text form of a graph. With `sources`, a comment on each node says which line it is from.
pub fn print(graph: &Graph, sources: Option<&SourceMap>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = Printer { graph, sources, places: FxHashMap::default() }.graph(&mut out);
    out
}

struct Printer<'g> {
    graph: &'g Graph,
    sources: Option<&'g SourceMap>,
    /// The comments of origins: many nodes share one.
    places: FxHashMap<OriginId, String>,
}

impl Printer<'_> {
    fn graph(&mut self, out: &mut String) -> fmt::Result {
        let graph = self.graph;
        writeln!(out, "tgir 1")?;
        for (index, slot) in graph.slots.iter().enumerate() {
            let kind = match slot.kind {
                SlotKind::Param { trainable: true } => "param",
                SlotKind::Param { trainable: false } => "frozen",
                SlotKind::State => "state",
                SlotKind::OptimizerState => "optimizer",
            };
            writeln!(out, "slot {index} {:?} {kind} {}", slot.name, slot.ty)?;
        }
        let mut shards: Vec<_> = graph.shards.iter().collect();
        shards.sort_unstable_by_key(|(slot, _)| **slot);
        for (slot, shard) in shards {
            let Shard { world, elements, prefetch, mean } = shard;
            let sum = if *mean { "mean" } else { "sum" };
            writeln!(out, "shard {} {world} {elements} {prefetch} {sum}", slot.0)?;
        }
        for (index, input) in graph.inputs.iter().enumerate() {
            writeln!(out, "input {index} {:?} {}", input.name, input.ty)?;
        }
        for (index, scalar) in graph.scalars.iter().enumerate() {
            write!(out, "scalar {index} ")?;
            match scalar {
                ScalarSource::Step => writeln!(out, "step")?,
                ScalarSource::Rank => writeln!(out, "rank")?,
                ScalarSource::UpdateCount { optimizer } => writeln!(out, "update_count({optimizer:?})")?,
                ScalarSource::Hyper { name, value } => writeln!(out, "hyper({name:?}, {value:?})")?,
                ScalarSource::Argument(position) => writeln!(out, "argument({position})")?,
            }
        }
        if graph.grad_calls > 0 {
            writeln!(out, "grad_calls {}", graph.grad_calls)?;
        }
        for (index, region) in graph.regions.iter().enumerate() {
            self.region(out, index, region)?;
        }
        for node in graph.nodes() {
            self.node(out, &node)?;
        }
        for output in &graph.outputs {
            writeln!(out, "output {:?} {}", output.name, output.value)?;
        }
        Ok(())
    }

    fn region(&self, out: &mut String, index: usize, region: &Region) -> fmt::Result {
        write!(out, "region {index} ")?;
        if let Some(parent) = region.parent {
            write!(out, "in {} ", parent.0)?;
        }
        let bind = match region.bind {
            Bind::All => "all",
            Bind::Grad => "grad",
            Bind::Output => "output",
            Bind::None => "none",
        };
        write!(out, "bind={bind} policy=")?;
        match &region.policy {
            Policy::Nothing => write!(out, "nothing")?,
            Policy::Dots => write!(out, "dots")?,
            Policy::Gathers => write!(out, "gathers")?,
            Policy::Everything => write!(out, "everything")?,
            Policy::Names(names) => {
                let names: Vec<String> = names.iter().map(|n| format!("{n:?}")).collect();
                write!(out, "names({})", names.join(", "))?;
            }
        }
        writeln!(out, " keep=[{}] outputs=[{}]", List(&region.keep), List(&region.outputs))
    }

    fn node(&mut self, out: &mut String, node: &Node<'_>) -> fmt::Result {
        let graph = self.graph;
        write!(out, "{}: ", node.id)?;
        let results: Vec<ValueId> = node.results().collect();
        if !results.is_empty() {
            write!(out, "{} = ", List(&results))?;
        }
        write!(out, "{}({})", node.op().name(), List(node.args()))?;
        let attributes = node.op().attributes();
        if !attributes.is_empty() {
            write!(out, " {{{attributes}}}")?;
        }
        if !results.is_empty() {
            let types: Vec<_> = results.iter().map(|&r| graph.ty(r)).collect();
            write!(out, " : {}", List(&types))?;
        }
        if !node.after().is_empty() {
            write!(out, " after {}", List(node.after()))?;
        }
        if let Some(region) = node.region() {
            write!(out, " @region({})", region.0)?;
        }
        match node.role() {
            Role::Forward => {}
            Role::Backward { of, call } => write!(out, " @backward({of}, {})", call.0)?,
            Role::Update { slot } => write!(out, " @update({})", slot.0)?,
        }
        if node.instance() != 0 {
            write!(out, " @instance({})", node.instance())?;
        }
        for (index, result) in results.iter().enumerate() {
            if let Some(name) = graph.names.get(result) {
                write!(out, " @name({index}, {name:?})")?;
            }
            if let Some(mark) = graph.marks.get(result) {
                write!(out, " @mark({index}, {mark:?})")?;
            }
        }
        if let Some(sources) = self.sources {
            let place =
                self.places.entry(node.origin()).or_insert_with(|| place(graph, sources, node.origin()));
            out.push_str(place);
        }
        writeln!(out)
    }
}

/// `  # blocks.tg:12:5`, and `, block 3` in a loop; nothing where no source asked for the node.
fn place(graph: &Graph, sources: &SourceMap, origin: OriginId) -> String {
    let origin = graph.origins.get(origin);
    let Some(file) = sources.get(origin.span.file).filter(|_| origin.span.end > 0) else {
        return String::new();
    };
    let at = sources.start(origin.span);
    // A line end in a name would end the comment.
    let name = file.name.replace(['\n', '\r'], " ");
    match &origin.iteration {
        Some(iteration) => {
            format!("  # {name}:{}:{}, {}", at.line, at.column, iteration.replace(['\n', '\r'], " "))
        }
        None => format!("  # {name}:{}:{}", at.line, at.column),
    }
}

/// Items with `, ` between them.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{item}")?;
        }
        Ok(())
    }
}
