//! What a script shows: `print`, `progress`, `plot`, `log`.

use std::{path::PathBuf, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    Evaluator, Mode,
    args::Args,
    errors::Eval,
    frame::FrameKind,
    value::{Stream, StreamKind, Value, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    script::{self, log::Log, plot, progress::Progress},
    source::Span,
};

/// Files that the script appends to.
#[derive(Default)]
pub(super) struct Console {
    logs: FxHashMap<PathBuf, Log>,
}

impl Evaluator {
    pub(super) fn write_line(&mut self, line: &str) {
        (lock(&self.output))(line);
    }

    /// Whether what a script does to the world is done.
    pub(super) fn acts(&self) -> bool {
        self.mode == Mode::Run
    }

    /// A path of the script, from its folder.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        self.settings.directory.join(text)
    }

    /// Effects belong to the script: in a step they would happen when it is compiled.
    pub(super) fn only_in_script(&mut self, what: &str, span: Span) -> Eval<()> {
        match self.frames.last().map(|f| &f.kind) {
            Some(FrameKind::Step(_)) => Err(self.report(
                Diagnostic::error(codes::NOT_IN_GRAPH, span, format!("`{what}` in a step")).help(
                    "return the value and use it in the script; `debug(x)` shows one while the step runs",
                ),
            )),
            // The function's body is a graph that is yet to run: there is nothing to write or to fill.
            Some(_) if matches!(what, "save" | "load") => Err(self.report(
                Diagnostic::error(codes::NOT_IN_GRAPH, span, format!("`{what}` in a function"))
                    .help(format!("write `{what}` at the top level of the script")),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn print(&mut self, args: Args, span: Span) -> Eval {
        if let Some((name, _, _)) = args.named.first() {
            let name = name.clone();
            return Err(self.error(
                codes::ARGUMENTS,
                name.span,
                format!("`print` has no parameter `{}`", name.name),
            ));
        }
        let mut parts = Vec::with_capacity(args.positional.len());
        for (value, at) in &args.positional {
            // In graph code this reports tensors, which have no value yet.
            parts.push(self.text(value, *at)?);
        }
        self.only_in_script("print", span)?;
        if self.acts() && self.leads() {
            let line: Vec<String> = parts.into_iter().flatten().collect();
            self.write_line(&line.join(" "));
        }
        Ok(Value::Unit)
    }

    pub(super) fn progress(&mut self, args: Args, span: Span) -> Eval {
        let [items, label] = self.take_some("progress", ["xs", "label"], 1, args, span)?;
        let Some((items, _)) = items else { return Ok(Value::Unit) };
        if self.in_graph() {
            return Ok(items);
        }
        let label = match label {
            Some((label, at)) => self.known_text(&label, "the label of `progress`", at)?,
            None => None,
        };
        let len = self.count(&items).and_then(|n| usize::try_from(n).ok());
        let label = label.unwrap_or_default();
        Ok(Value::Stream(Arc::new(Stream { kind: StreamKind::Progress { items, label }, len })))
    }

    pub(super) fn each_with_progress(
        &mut self,
        items: &Value,
        label: &str,
        total: Option<usize>,
        span: Span,
        once: bool,
        visit: &mut dyn FnMut(&mut Self, usize, Value) -> Eval<()>,
    ) -> Eval<()> {
        if !self.acts() || !self.leads() {
            return self.each(items, span, once, visit);
        }
        let mut bar = Progress::new(label, total.map(|n| n as u64));
        self.each(items, span, once, &mut |ev, k, item| {
            visit(ev, k, item)?;
            bar.advance();
            Ok(())
        })
    }

    /// `plot(losses)`, `plot(train: a, test: b, title: "…", file: "x.svg")`
    pub(super) fn plot(&mut self, args: Args, span: Span) -> Eval {
        self.only_in_script("plot", span)?;
        let mut series = Vec::new();
        let mut title = None;
        let mut file = None;
        let mut known = true;
        let mut lines: Vec<(String, Value, Span)> = Vec::new();
        for (k, (value, at)) in args.positional.into_iter().enumerate() {
            let name = if k == 0 { String::new() } else { format!("{}", k + 1) };
            lines.push((name, value, at));
        }
        for (name, value, at) in args.named {
            match &*name.name {
                "title" => title = self.known_text(&value, "the title of `plot`", at)?,
                "file" => file = self.known_text(&value, "the file of `plot`", at)?,
                _ => lines.push((name.name.to_string(), value, at)),
            }
        }
        for (name, value, at) in lines {
            match self.numbers(&value, at)? {
                Some(numbers) => series.push(plot::Series::of(name, numbers)),
                None => known = false,
            }
        }
        if !self.acts() || !self.leads() || !known {
            return Ok(Value::Unit);
        }
        let title = title.unwrap_or_default().to_string();
        if let Some(file) = file {
            let path = self.path(&file);
            script::svg::write(&path, &series, &title)
                .map_err(|e| self.script_error(codes::FILE, span, e))?;
            return Ok(Value::Unit);
        }
        let text = plot::draw(&series, &plot::Config { title, ..plot::Config::default() });
        self.write_line(&text);
        Ok(Value::Unit)
    }

    /// Numbers of a list or a tensor; `None` where they are not known.
    fn numbers(&mut self, value: &Value, span: Span) -> Eval<Option<Vec<f64>>> {
        match value {
            Value::Unknown(_) => Ok(None),
            v if v.is_tensor() => {
                let tensor = self.host_tensor(v, span)?;
                Ok(tensor.map(|t| (0..t.ty().elements()).filter_map(|k| t.get_f64(k)).collect()))
            }
            Value::List(items) | Value::Tuple(items) => {
                let mut numbers = Vec::with_capacity(items.len());
                for item in items.iter() {
                    match item {
                        Value::Unknown(_) => return Ok(None),
                        v if v.is_tensor() && self.tensor_type(v).is_some_and(|t| t.elements() == 1) => {
                            match self.host_tensor(v, span)?.and_then(|t| t.get_f64(0)) {
                                Some(number) => numbers.push(number),
                                None => return Ok(None),
                            }
                        }
                        other => match super::operator::number(other) {
                            Some((number, _)) => numbers.push(number.as_f64()),
                            None => {
                                let kind = other.kind();
                                return Err(self.error(
                                    codes::TYPE_MISMATCH,
                                    span,
                                    format!("expected numbers, got {kind}"),
                                ));
                            }
                        },
                    }
                }
                Ok(Some(numbers))
            }
            other => {
                let kind = other.kind();
                Err(self.error(codes::TYPE_MISMATCH, span, format!("expected a list of numbers, got {kind}")))
            }
        }
    }

    /// `log("file.csv", step: i, loss: x)`; of a tensor or number, the logarithm.
    pub(super) fn log(&mut self, mut args: Args, span: Span) -> Eval {
        let is_record = matches!(args.positional.first(), Some((Value::Str(_), _)))
            || !args.named.is_empty() && args.named.iter().all(|(n, _, _)| &*n.name != "x");
        if !is_record {
            return match super::tensor::find("log") {
                Some(function) => self.call_tensor_function(function, args, span),
                None => Err(self.error(codes::INTERNAL, span, "there is no tensor function `log`")),
            };
        }
        self.only_in_script("log", span)?;
        if args.positional.len() != 1 {
            return Err(self.report(
                Diagnostic::error(codes::ARGUMENTS, span, "`log` takes a file and named metrics")
                    .help("`log(\"metrics.csv\", step: i, loss: loss)`"),
            ));
        }
        let (file, at) = args.positional.remove(0);
        let file = self.known_text(&file, "the file of `log`", at)?;
        let mut record = Vec::with_capacity(args.named.len());
        for (name, value, at) in args.named {
            let metric = match &value {
                Value::Int(number) => Some(script::log::Value::Int(*number)),
                Value::Float(number) => Some(script::log::Value::Float(*number)),
                Value::Bool(flag) => Some(script::log::Value::Bool(*flag)),
                Value::Str(text) => Some(script::log::Value::Str(text.to_string())),
                Value::Unknown(_) => None,
                v if v.is_tensor() && self.tensor_type(v).is_some_and(|t| t.elements() == 1) => {
                    let tensor = self.host_tensor(v, at)?;
                    tensor.and_then(|t| t.get_f64(0)).map(script::log::Value::Float)
                }
                other => {
                    let kind = other.kind();
                    return Err(self.error(
                        codes::TYPE_MISMATCH,
                        at,
                        format!("a metric is a number or a string, got {kind}"),
                    ));
                }
            };
            record.push((name, metric));
        }
        let Some(file) = file.filter(|_| self.acts() && self.leads()) else { return Ok(Value::Unit) };
        let path = self.path(&file);
        let record: Vec<(&str, script::log::Value)> =
            record.iter().filter_map(|(n, v)| Some((&*n.name, v.clone()?))).collect();
        let append = self.settings.resume;
        let result = match self.console.logs.entry(path.clone()) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut().write(&record),
            std::collections::hash_map::Entry::Vacant(entry) => {
                Log::open(&path, append).and_then(|log| entry.insert(log).write(&record))
            }
        };
        result.map_err(|error| self.script_error(codes::FILE, span, error))?;
        Ok(Value::Unit)
    }
}
