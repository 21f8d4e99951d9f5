//! A graph from its text.
//!
//! First every line is read by itself, then the graph is built: so a node may name a later one that
//! it is the gradient of, and errors tell a value that comes too late from one that does not exist.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use super::{
    attributes::Attributes,
    cursor::{Cursor, Fault, Spanned, Value, Word, fault},
    ops,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{
        Bind, Cursor as Stamp, GradCallId, Graph, Input, NodeId, Origin, Output, Policy, Region, RegionId,
        Role, ScalarSource, Shard, Slot, SlotId, SlotKind, Type, ValueId, verify::faults,
    },
    ops::OpError,
    source::{FileId, Span},
};

/// Errors of one text beyond this many are not collected.
const MAX_ERRORS: usize = 200;

/// Regions nest no deeper: the time to build a graph grows with it.
const MAX_REGION_DEPTH: u32 = 256;

/// Reads a text that is in no [`crate::source::SourceMap`].
pub fn parse(text: &str) -> Result<Graph, Vec<Diagnostic>> {
    parse_file(FileId::default(), text)
}

/// Reads the text of `file`. Nodes have the places of their lines as origins.
pub fn parse_file(file: FileId, text: &str) -> Result<Graph, Vec<Diagnostic>> {
    if u32::try_from(text.len()).is_err() {
        let span = Span { file, start: 0, end: 0 };
        return Err(vec![Diagnostic::error(
            codes::TOO_LARGE,
            span,
            "a text of 4 GiB or more cannot be read",
        )]);
    }
    let mut errors = Vec::new();
    let lines = read(file, text, &mut errors);
    let mut builder = Builder { graph: Graph::new(), errors, values: FxHashMap::default() };
    builder.build(&lines);
    if builder.errors.is_empty() {
        for (node, message) in faults(&builder.graph) {
            let span = node
                .and_then(|n| lines.nodes.get(n.0 as usize))
                .map_or(Span { file, start: 0, end: 0 }, |n| n.span);
            builder.error(fault(codes::UNEXPECTED, span, message));
        }
    }
    builder.errors.sort_by_key(|e| (e.primary.span.start, e.primary.span.end));
    if builder.errors.is_empty() { Ok(builder.graph) } else { Err(builder.errors) }
}

/// The lines of a text, by kind.
#[derive(Default)]
struct Lines<'s> {
    slots: Vec<Slot>,
    shards: FxHashMap<SlotId, Shard>,
    inputs: Vec<Input>,
    scalars: Vec<ScalarSource>,
    grad_calls: u32,
    regions: Vec<RegionLine<'s>>,
    nodes: Vec<NodeLine<'s>>,
    outputs: Vec<(String, Word<'s>, Span)>,
}

struct RegionLine<'s> {
    span: Span,
    parent: Option<RegionId>,
    depth: u32,
    bind: Bind,
    policy: Policy,
    keep: Vec<Word<'s>>,
    outputs: Vec<Word<'s>>,
}

struct NodeLine<'s> {
    span: Span,
    label: Option<Word<'s>>,
    results: Vec<Word<'s>>,
    op: Word<'s>,
    args: Vec<Word<'s>>,
    attributes: Vec<(Word<'s>, Spanned<'s>)>,
    types: Vec<(Type, Span)>,
    after: Vec<Word<'s>>,
    marks: Vec<(Word<'s>, Vec<Spanned<'s>>)>,
}

fn read<'s>(file: FileId, text: &'s str, errors: &mut Vec<Diagnostic>) -> Lines<'s> {
    let mut lines = Lines::default();
    let mut base = 0u32;
    let mut has_header = false;
    for raw in text.split('\n') {
        let line = if base == 0 { raw.strip_prefix('\u{feff}').unwrap_or(raw) } else { raw };
        let mut cursor = Cursor::new(file, base + (raw.len() - line.len()) as u32, line);
        base += raw.len() as u32 + 1;
        if cursor.is_done() {
            continue;
        }
        let read = if has_header { lines.line(&mut cursor) } else { header(&mut cursor) };
        if let Err(error) = read
            && errors.len() < MAX_ERRORS
        {
            errors.push(*error);
        }
        // Without it, this is something else: one error says so.
        if !std::mem::replace(&mut has_header, true) && !errors.is_empty() {
            return lines;
        }
    }
    if !has_header {
        let span = Span { file, start: 0, end: 0 };
        errors.push(Diagnostic::error(codes::UNEXPECTED, span, "the text is empty: expected `tgir 1`"));
    }
    lines
}

fn header(cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    let whole = cursor.whole();
    let is_header = cursor.word("`tgir 1`").is_ok_and(|w| w.text == "tgir") && cursor.peek().is_some();
    let version = if is_header { cursor.value()?.u64()? } else { 0 };
    match version {
        1 => end(cursor),
        0 => Err(fault(codes::UNEXPECTED, whole, "expected `tgir 1` in the first line")),
        _ => Err(fault(
            codes::UNEXPECTED,
            whole,
            format!("version {version} of the form is not known: expected 1"),
        )),
    }
}

fn end(cursor: &Cursor<'_>) -> Result<(), Fault> {
    if cursor.is_done() { Ok(()) } else { Err(cursor.expected("the end of the line")) }
}

impl<'s> Lines<'s> {
    fn line(&mut self, cursor: &mut Cursor<'s>) -> Result<(), Fault> {
        let span = cursor.whole();
        if cursor.peek() == Some('%') {
            return self.node(cursor, span, None, None);
        }
        let word = cursor.word("a node or a declaration")?;
        match cursor.peek() {
            Some(':') => {
                cursor.eat(':');
                return self.node(cursor, span, Some(word), None);
            }
            Some('(') => return self.node(cursor, span, None, Some(word)),
            _ => {}
        }
        match word.text {
            "slot" => {
                number(cursor, "slot", self.slots.len())?;
                let name = cursor.string()?.into();
                let word = cursor.word("`param`, `frozen`, `state` or `optimizer`")?;
                let kind = match word.text {
                    "param" => SlotKind::Param { trainable: true },
                    "frozen" => SlotKind::Param { trainable: false },
                    "state" => SlotKind::State,
                    "optimizer" => SlotKind::OptimizerState,
                    _ => {
                        let message = "expected `param`, `frozen`, `state` or `optimizer`";
                        return Err(fault(codes::UNEXPECTED, word.span, message));
                    }
                };
                self.slots.push(Slot { name, ty: cursor.value()?.ty()?, kind });
            }
            "shard" => self.shard(cursor)?,
            "input" => {
                number(cursor, "input", self.inputs.len())?;
                self.inputs.push(Input { name: cursor.string()?.into(), ty: cursor.value()?.ty()? });
            }
            "scalar" => {
                number(cursor, "scalar", self.scalars.len())?;
                self.scalars.push(scalar(&cursor.value()?)?);
            }
            "grad_calls" => self.grad_calls = cursor.value()?.u32()?,
            "region" => self.region(cursor, span)?,
            "output" => {
                let name = cursor.string()?;
                self.outputs.push((name, cursor.result()?, span));
            }
            _ => {
                let message = format!("`{}` is neither an op with operands nor a declaration", word.text);
                return Err(fault(codes::UNEXPECTED, word.span, message));
            }
        }
        end(cursor)
    }

    /// `shard 3 4 1000 0 mean`: the slot, the ranks, the elements, how many units are gathered ahead.
    fn shard(&mut self, cursor: &mut Cursor<'s>) -> Result<(), Fault> {
        let slot = SlotId(cursor.value()?.u32()?);
        let (world, elements) = (cursor.value()?.u32()?, cursor.value()?.u64()?);
        let prefetch = cursor.value()?.u32()?;
        let word = cursor.word("`mean` or `sum`")?;
        if !matches!(word.text, "mean" | "sum") {
            return Err(fault(codes::UNEXPECTED, word.span, "expected `mean` or `sum`"));
        }
        let elements = usize::try_from(elements).unwrap_or(usize::MAX);
        self.shards.insert(slot, Shard { world, elements, prefetch, mean: word.text == "mean" });
        Ok(())
    }

    fn region(&mut self, cursor: &mut Cursor<'s>, span: Span) -> Result<(), Fault> {
        number(cursor, "region", self.regions.len())?;
        let mut line = RegionLine {
            span,
            parent: None,
            depth: 1,
            bind: Bind::All,
            policy: Policy::Nothing,
            keep: Vec::new(),
            outputs: Vec::new(),
        };
        while !cursor.is_done() {
            let key = cursor.word("an option of the region")?;
            if key.text == "in" {
                let value = cursor.value()?;
                let parent = value.u32()?;
                let Some(outer) = self.regions.get(parent as usize) else {
                    return Err(value.expected("a region declared above"));
                };
                line.depth = outer.depth + 1;
                if line.depth > MAX_REGION_DEPTH {
                    let message = format!("regions nested deeper than {MAX_REGION_DEPTH} levels");
                    return Err(fault(codes::NESTED_TOO_DEEP, span, message));
                }
                line.parent = Some(RegionId(parent));
                continue;
            }
            cursor.expect('=')?;
            let value = cursor.value()?;
            match key.text {
                "bind" => line.bind = bind(&value)?,
                "policy" => line.policy = policy(&value)?,
                "keep" => line.keep = results(&value)?,
                "outputs" => line.outputs = results(&value)?,
                other => {
                    let message = format!("a region has no option `{other}`");
                    return Err(fault(codes::UNEXPECTED, key.span, message));
                }
            }
        }
        self.regions.push(line);
        Ok(())
    }

    fn node(
        &mut self,
        cursor: &mut Cursor<'s>,
        span: Span,
        label: Option<Word<'s>>,
        op: Option<Word<'s>>,
    ) -> Result<(), Fault> {
        let mut results = Vec::new();
        if op.is_none() && cursor.peek() == Some('%') {
            results = cursor.list('=', Cursor::result)?;
        }
        let op = match op {
            Some(op) => op,
            None => cursor.word("an op")?,
        };
        cursor.expect('(')?;
        let args = cursor.list(')', Cursor::result)?;
        let mut line = NodeLine {
            span,
            label,
            results,
            op,
            args,
            attributes: Vec::new(),
            types: Vec::new(),
            after: Vec::new(),
            marks: Vec::new(),
        };
        if cursor.eat('{') {
            line.attributes = cursor.list('}', |c| {
                let key = c.word("an attribute")?;
                c.expect('=')?;
                Ok((key, c.value()?))
            })?;
        }
        if cursor.eat(':') {
            loop {
                let value = cursor.value()?;
                line.types.push((value.ty()?, value.span));
                if !cursor.eat(',') {
                    break;
                }
            }
        }
        if cursor.peek() == Some('a') {
            let word = cursor.word("`after`")?;
            if word.text != "after" {
                return Err(fault(codes::UNEXPECTED, word.span, "expected `after`"));
            }
            loop {
                line.after.push(cursor.word("the label of a node")?);
                if !cursor.eat(',') {
                    break;
                }
            }
        }
        while cursor.eat('@') {
            let key = cursor.word("a mark")?;
            cursor.expect('(')?;
            line.marks.push((key, cursor.list(')', Cursor::value)?));
        }
        end(cursor)?;
        self.nodes.push(line);
        Ok(())
    }
}

/// Declarations are numbered in their order, so that ids in the text are those of the graph.
fn number(cursor: &mut Cursor<'_>, what: &str, next: usize) -> Result<(), Fault> {
    let value = cursor.value()?;
    if value.u64()? == next as u64 {
        Ok(())
    } else {
        Err(fault(codes::UNEXPECTED, value.span, format!("the next {what} has the number {next}")))
    }
}

fn scalar(value: &Spanned<'_>) -> Result<ScalarSource, Fault> {
    match &value.value {
        Value::Word("step") => Ok(ScalarSource::Step),
        Value::Word("rank") => Ok(ScalarSource::Rank),
        Value::Call("update_count", args) => match args.as_slice() {
            [optimizer] => Ok(ScalarSource::UpdateCount { optimizer: optimizer.string()?.into() }),
            _ => Err(value.expected("the name of an optimizer")),
        },
        Value::Call("hyper", args) => match args.as_slice() {
            [name, number] => Ok(ScalarSource::Hyper {
                name: name.string()?.into(),
                value: f64::from_bits(number.float()?),
            }),
            _ => Err(value.expected("a name and a number")),
        },
        Value::Call("argument", args) => match args.as_slice() {
            [position] => Ok(ScalarSource::Argument(position.u32()?)),
            _ => Err(value.expected("the position of an argument")),
        },
        _ => Err(value.expected("`step`, `rank`, `update_count(…)`, `hyper(…)` or `argument(…)`")),
    }
}

fn bind(value: &Spanned<'_>) -> Result<Bind, Fault> {
    match value.value {
        Value::Word("all") => Ok(Bind::All),
        Value::Word("grad") => Ok(Bind::Grad),
        Value::Word("output") => Ok(Bind::Output),
        Value::Word("none") => Ok(Bind::None),
        _ => Err(value.expected("`all`, `grad`, `output` or `none`")),
    }
}

fn policy(value: &Spanned<'_>) -> Result<Policy, Fault> {
    match &value.value {
        Value::Word("nothing") => Ok(Policy::Nothing),
        Value::Word("dots") => Ok(Policy::Dots),
        Value::Word("gathers") => Ok(Policy::Gathers),
        Value::Word("everything") => Ok(Policy::Everything),
        Value::Call("names", names) => {
            let names: Vec<Arc<str>> =
                names.iter().map(|n| n.string().map(Arc::from)).collect::<Result<_, _>>()?;
            Ok(Policy::Names(names))
        }
        _ => Err(value.expected("`nothing`, `dots` or `names(…)`")),
    }
}

fn results<'s>(value: &Spanned<'s>) -> Result<Vec<Word<'s>>, Fault> {
    let name = |item: &Spanned<'s>| match item.value {
        Value::Result(text) => Ok(Word { text, span: item.span }),
        _ => Err(item.expected("a value such as `%3`")),
    };
    match &value.value {
        Value::List(items) => items.iter().map(name).collect(),
        _ => Err(value.expected("a list of values")),
    }
}

/// What a name stands for while the graph is built.
#[derive(Clone, Copy)]
enum Known {
    /// Made by the node of this line, which was not reached yet.
    Later,
    Made(ValueId),
    /// Its node has an error, which was reported.
    Broken,
}

struct Builder<'s> {
    graph: Graph,
    errors: Vec<Diagnostic>,
    values: FxHashMap<&'s str, Known>,
}

impl<'s> Builder<'s> {
    // Callers have faults, which are boxed.
    #[allow(clippy::boxed_local)]
    fn error(&mut self, error: Fault) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(*error);
        }
    }

    fn build(&mut self, lines: &Lines<'s>) {
        self.graph.slots.clone_from(&lines.slots);
        self.graph.shards.clone_from(&lines.shards);
        self.graph.inputs.clone_from(&lines.inputs);
        self.graph.scalars.clone_from(&lines.scalars);
        self.graph.grad_calls = lines.grad_calls;
        for region in &lines.regions {
            let origin = self.origin(region.span);
            self.graph.regions.push(Region {
                parent: region.parent,
                bind: region.bind,
                policy: region.policy.clone(),
                keep: Vec::new(),
                outputs: Vec::new(),
                origin,
                nodes: 0..0,
            });
        }
        let mut labels = FxHashMap::default();
        for (index, node) in lines.nodes.iter().enumerate() {
            if let Some(label) = node.label
                && labels.insert(label.text, NodeId(index as u32)).is_some()
            {
                let message = format!("two nodes have the label `{}`", label.text);
                self.error(fault(codes::UNEXPECTED, label.span, message));
            }
            for result in &node.results {
                if self.values.insert(result.text, Known::Later).is_some() {
                    let message = format!("`%{}` is made twice", result.text);
                    self.error(fault(codes::UNEXPECTED, result.span, message));
                }
            }
        }
        for (index, line) in lines.nodes.iter().enumerate() {
            match self.node(line, index as u32, &labels) {
                Ok(results) => {
                    for (name, value) in line.results.iter().zip(results) {
                        self.values.insert(name.text, Known::Made(value));
                    }
                }
                Err(error) => {
                    for name in &line.results {
                        self.values.insert(name.text, Known::Broken);
                    }
                    if let Some(error) = error {
                        self.error(error);
                    }
                }
            }
        }
        for (index, region) in lines.regions.iter().enumerate() {
            let keep = self.lookup_all(&region.keep);
            let outputs = self.lookup_all(&region.outputs);
            if let Some(region) = self.graph.regions.get_mut(index) {
                region.keep = keep;
                region.outputs = outputs;
            }
        }
        for (name, value, span) in &lines.outputs {
            let origin = self.origin(*span);
            for value in self.lookup_all(std::slice::from_ref(value)) {
                self.graph.outputs.push(Output { name: name.as_str().into(), value, origin });
            }
        }
    }

    /// The values of names; those that do not exist are reported and left out.
    fn lookup_all(&mut self, names: &[Word<'s>]) -> Vec<ValueId> {
        let mut values = Vec::with_capacity(names.len());
        for &name in names {
            match self.lookup(name) {
                Ok(value) => values.push(value),
                Err(Some(error)) => self.error(error),
                Err(None) => {}
            }
        }
        values
    }

    /// `Err(None)` where the reason was reported already.
    fn lookup(&self, name: Word<'s>) -> Result<ValueId, Option<Fault>> {
        match self.values.get(name.text) {
            Some(Known::Made(value)) => Ok(*value),
            Some(Known::Broken) => Err(None),
            Some(Known::Later) => {
                let message = format!("`%{}` is used before it is made", name.text);
                let error = fault(codes::UNEXPECTED, name.span, message);
                Err(Some(Box::new(
                    error.help("a node comes after the nodes whose results it uses: there are no cycles"),
                )))
            }
            None => {
                Err(Some(fault(codes::UNKNOWN_NAME, name.span, format!("nothing makes `%{}`", name.text))))
            }
        }
    }

    fn origin(&mut self, span: Span) -> crate::ir::OriginId {
        self.graph.origins.intern(Origin { span, parent: None, iteration: None })
    }

    /// Appends the node of a line and returns its results.
    fn node(
        &mut self,
        line: &NodeLine<'s>,
        index: u32,
        labels: &FxHashMap<&'s str, NodeId>,
    ) -> Result<Vec<ValueId>, Option<Fault>> {
        let op = ops::op(Attributes { op: line.op, entries: line.attributes.clone() })?;
        let args: Vec<ValueId> = line.args.iter().map(|&a| self.lookup(a)).collect::<Result<_, _>>()?;
        let mut after = Vec::with_capacity(line.after.len());
        for label in &line.after {
            let node = find(labels, *label)?;
            if node.0 >= index {
                let message = format!("`{}` is waited for before it is run", label.text);
                let error = fault(codes::UNEXPECTED, label.span, message);
                return Err(Some(Box::new(
                    error.help("a node comes after the nodes that it waits for: there are no cycles"),
                )));
            }
            after.push(node);
        }
        let (stamp, names, marks) = self.marks(line, labels)?;
        // After an error ids are not those of the text, and the graph is thrown away.
        if !self.errors.is_empty() {
            after.clear();
        }
        self.graph.cursor = stamp;
        let ill_typed = |error: OpError| {
            let message = error.message.strip_prefix("internal: ").unwrap_or(&error.message);
            let diagnostic = Diagnostic::error(codes::TENSOR_OP, line.op.span, message);
            Some(Box::new(error.help.iter().fold(diagnostic, |d, help| d.help(help))))
        };
        let id = self.graph.push_after(op, &args, &after).map_err(ill_typed)?;
        self.graph.extend_regions(id);
        let results: Vec<ValueId> = self.graph.node(id).results().collect();
        if results.len() != line.results.len() {
            let message =
                format!("`{}` has {} results, {} are named", line.op.text, results.len(), line.results.len());
            return Err(Some(fault(codes::TENSOR_OP, line.op.span, message)));
        }
        self.check_types(line, &results)?;
        for (position, name) in names {
            if let Some(&value) = results.get(position) {
                self.graph.names.insert(value, name);
            }
        }
        for (position, mark) in marks {
            if let Some(&value) = results.get(position) {
                self.graph.marks.insert(value, mark);
            }
        }
        Ok(results)
    }

    fn check_types(&self, line: &NodeLine<'s>, results: &[ValueId]) -> Result<(), Fault> {
        if !line.types.is_empty() && line.types.len() != results.len() {
            let message = format!(
                "`{}` has {} results, {} types are given",
                line.op.text,
                results.len(),
                line.types.len()
            );
            return Err(fault(codes::TENSOR_OP, line.op.span, message));
        }
        for ((stated, span), &result) in line.types.iter().zip(results) {
            let actual = self.graph.ty(result);
            if stated != actual {
                let message = format!("`{}` gives {actual} here, not {stated}", line.op.text);
                return Err(fault(codes::TENSOR_OP, *span, message));
            }
        }
        Ok(())
    }

    /// What the marks behind a node say about it: its stamp, the names and the marks of its results.
    #[allow(clippy::type_complexity)]
    fn marks(
        &mut self,
        line: &NodeLine<'s>,
        labels: &FxHashMap<&'s str, NodeId>,
    ) -> Result<(Stamp, Vec<(usize, Arc<str>)>, Vec<(usize, Arc<str>)>), Option<Fault>> {
        let mut stamp =
            Stamp { origin: self.origin(line.span), region: None, role: Role::Forward, instance: 0 };
        let (mut names, mut marks) = (Vec::new(), Vec::new());
        for (key, args) in &line.marks {
            match (key.text, args.as_slice()) {
                ("region", [region]) => {
                    let id = region.u32()?;
                    if id as usize >= self.graph.regions.len() {
                        let message = format!("region {id} is not declared");
                        return Err(Some(fault(codes::UNKNOWN_NAME, region.span, message)));
                    }
                    stamp.region = Some(RegionId(id));
                }
                ("backward", [of, call]) => {
                    let Value::Word(text) = of.value else {
                        return Err(Some(of.expected("the label of a node")));
                    };
                    let of = find(labels, Word { text, span: of.span })?;
                    stamp.role = Role::Backward { of, call: GradCallId(call.u32()?) };
                }
                ("update", [slot]) => stamp.role = Role::Update { slot: SlotId(slot.u32()?) },
                ("instance", [instance]) => stamp.instance = instance.u32()?,
                ("name" | "mark", [position, text]) => {
                    let entry = (position.usize()?, text.string()?.into());
                    if entry.0 >= line.results.len() {
                        return Err(Some(position.expected("the number of a result")));
                    }
                    if key.text == "name" { names.push(entry) } else { marks.push(entry) }
                }
                _ => {
                    let message =
                        format!("`@{}` with {} values is not a mark of a node", key.text, args.len());
                    return Err(Some(fault(codes::UNEXPECTED, key.span, message)));
                }
            }
        }
        Ok((stamp, names, marks))
    }
}

fn find(labels: &FxHashMap<&str, NodeId>, label: Word<'_>) -> Result<NodeId, Fault> {
    let missing =
        || fault(codes::UNKNOWN_NAME, label.span, format!("no node has the label `{}`", label.text));
    labels.get(label.text).copied().ok_or_else(missing)
}
