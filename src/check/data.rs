//! The modules `data` and `random`, and vocabularies.

use std::sync::Arc;

use super::{
    Evaluator, Mode,
    args::Args,
    errors::Eval,
    language::{Builtin, builtins},
    value::{Record, Stored, Stream, StreamKind, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{Tensor, TensorError},
    ir::{DType, Type},
    script::{self, batches, npy, safetensors, sample, text},
    source::Span,
};

/// The members of a native module.
pub(super) fn native(name: &str) -> Option<&'static [Builtin]> {
    match name {
        "data" => Some(DATA),
        "random" => Some(RANDOM),
        _ => None,
    }
}

pub(super) static DATA: &[Builtin] = builtins! {
    "load", "data.load(\"x.safetensors\")", "A tensor from `.npy`, a record of tensors from `.safetensors`: `d.images`, `d[\"net.w\"]`.", load;
    "text", "data.text(\"x.txt\")", "The content of a text file.", |ev, args, span| {
        let [file] = ev.take_args("data.text", ["file"], args, span)?;
        let Some(path) = ev.known_text(&file.0, "a file", file.1)? else { return Ok(Value::Unknown(Unknown::Str)) };
        let path = ev.path(&path);
        text::read(&path).map(Value::str).map_err(|e| ev.script_error(codes::FILE, file.1, e))
    };
    "chars", "data.chars(\"x.txt\")", "(numbers of the characters of a text, vocabulary)", chars;
    "batches", "data.batches(x, y, size: 32, shuffle: seed)", "Tuples of rows; a last partial batch is dropped unless `partial: keep`. With `part: rank, of: world`, each rank has rows of its own.", batches_of;
    "windows", "data.windows(ids, length: 64, size: 32, steps: 100, seed: 0)", "Random pieces of a sequence, and the same pieces one further on.", windows;
};

pub(super) static RANDOM: &[Builtin] = builtins! {
    "categorical", "random.categorical(logits, temperature: 1)", "A number drawn with probability softmax(logits), for each row.", categorical;
};

pub(super) static VOCABULARY: &[Builtin] = builtins! {
    "encode", "vocabulary.encode(text)", "The numbers of the characters: i32 [n].", |ev, args, span| {
        let [vocabulary, text] = ev.take_args("encode", ["vocabulary", "text"], args, span)?;
        let Value::Vocabulary(vocabulary) = vocabulary.0 else { return Err(super::Halt::Reported) };
        let Some(text) = ev.known_text(&text.0, "the text to encode", text.1)? else {
            return Ok(Value::Unknown(Unknown::Any));
        };
        let ids = vocabulary.encode(&text).map_err(|e| ev.script_error(codes::FILE_CONTENT, span, e))?;
        ev.stored_slice(&[ids.len()], &ids, span)
    };
    "decode", "vocabulary.decode(ids)", "The text of a list or tensor of numbers.", |ev, args, span| {
        let [vocabulary, ids] = ev.take_args("decode", ["vocabulary", "ids"], args, span)?;
        let Value::Vocabulary(vocabulary) = vocabulary.0 else { return Err(super::Halt::Reported) };
        let decoded = match &ids.0 {
            Value::List(items) => {
                let mut numbers = Vec::with_capacity(items.len());
                for item in items.iter() {
                    let number = match item {
                        v if v.is_tensor() => ev.host_tensor(v, ids.1)?.and_then(|t| t.get_f64(0)).map(|x| x as i64),
                        other => Some(ev.as_int(other, ids.1)?).filter(|(_, known)| *known).map(|(n, _)| n),
                    };
                    let Some(number) = number else { return Ok(Value::Unknown(Unknown::Str)) };
                    numbers.push(i32::try_from(number).unwrap_or(-1));
                }
                vocabulary.decode(&numbers)
            }
            v if v.is_tensor() => match ev.host_tensor(v, ids.1)? {
                Some(tensor) => vocabulary.decode_tensor(&tensor),
                None => return Ok(Value::Unknown(Unknown::Str)),
            },
            Value::Int(number) => vocabulary.decode(&[i32::try_from(*number).unwrap_or(-1)]),
            Value::Unknown(_) => return Ok(Value::Unknown(Unknown::Str)),
            other => {
                let kind = other.kind();
                return Err(ev.error(codes::TYPE_MISMATCH, ids.1, format!("`decode` takes numbers, got {kind}")));
            }
        };
        decoded.map(Value::str).map_err(|e| ev.script_error(codes::FILE_CONTENT, span, e))
    };
};

fn load(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [file] = ev.take_args("data.load", ["file"], args, span)?;
    ev.load_file(&file.0, file.1)
}

fn chars(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [file] = ev.take_args("data.chars", ["file"], args, span)?;
    let Some(path) = ev.known_text(&file.0, "a file", file.1)? else {
        return Ok(Value::Unknown(Unknown::Any));
    };
    let path = ev.path(&path);
    // The characters decide sizes of models, so the text is read in mode Check as well.
    let (vocabulary, ids) = text::read_chars(&path).map_err(|e| ev.script_error(codes::FILE, file.1, e))?;
    let data = (ev.mode == Mode::Run).then(|| ids.clone());
    let ids = Value::Stored(Stored::new(ids.ty().clone(), data));
    Ok(Value::tuple(vec![ids, Value::Vocabulary(Arc::new(vocabulary))]))
}

fn batches_of(ev: &mut Evaluator, mut args: Args, span: Span) -> Eval {
    let mut size = None;
    let mut shuffle = None;
    let mut keep_partial = false;
    let (mut part, mut of) = (None, None);
    for (name, value, at) in std::mem::take(&mut args.named) {
        match &*name.name {
            "size" => size = Some((ev.size(&value, at)?, at)),
            "part" => part = Some((ev.as_int(&value, at)?.0, at)),
            "of" => of = Some((ev.size(&value, at)?, at)),
            "shuffle" => {
                shuffle = match value {
                    Value::Bool(false) => None,
                    Value::Bool(true) | Value::Unknown(Unknown::Bool(_)) => {
                        return Err(ev.report(
                            Diagnostic::error(codes::BAD_OPTION, at, "`shuffle` is a seed")
                                .help("write `shuffle: epoch`"),
                        ));
                    }
                    other => Some(ev.as_int(&other, at)?.0 as u64),
                };
            }
            "partial" => match &value {
                Value::Str(text) if &**text == "keep" => keep_partial = true,
                Value::Str(text) if &**text == "drop" => keep_partial = false,
                Value::Bool(keep) => keep_partial = *keep,
                other => {
                    let kind = other.kind();
                    return Err(ev.error(
                        codes::BAD_OPTION,
                        at,
                        format!("`partial` is `keep` or `drop`, got {kind}"),
                    ));
                }
            },
            other => {
                let message = format!("`data.batches` has no parameter `{other}`");
                return Err(ev.report(
                    Diagnostic::error(codes::ARGUMENTS, name.span, message)
                        .help("it is called as `data.batches(x, y, size: 32, shuffle: seed)`"),
                ));
            }
        }
    }
    let Some((size, _)) = size else {
        return Err(ev.report(
            Diagnostic::error(codes::ARGUMENTS, span, "`data.batches` needs `size`")
                .help("`data.batches(x, y, size: 32)`"),
        ));
    };
    let mut tensors = Vec::with_capacity(args.positional.len());
    for (value, at) in &args.positional {
        match value {
            Value::Stored(stored) => tensors.push(Arc::clone(stored)),
            Value::Unknown(Unknown::Any) => return Ok(value.clone()),
            other => {
                let kind = other.kind();
                return Err(ev.error(
                    codes::TYPE_MISMATCH,
                    *at,
                    format!("`data.batches` takes tensors of the script, got {kind}"),
                ));
            }
        }
    }
    let (part, parts) = match (part, of) {
        (None, None) => (0, 1),
        (Some((part, at)), Some((of, _))) => match usize::try_from(part) {
            Ok(number) if number < of => (number, of),
            _ => {
                return Err(ev.error(
                    codes::BAD_OPTION,
                    at,
                    format!("`part: {part}` of {of}: parts are numbered from 0"),
                ));
            }
        },
        (Some((_, at)), None) | (None, Some((_, at))) => {
            return Err(ev.report(
                Diagnostic::error(codes::ARGUMENTS, at, "`part` and `of` of `data.batches` go together")
                    .help("`data.batches(x, y, size: 32, part: rank, of: world)`"),
            ));
        }
    };
    let config = batches::Config { size, shuffle, keep_partial, part, parts };
    let types: Vec<&Type> = tensors.iter().map(|t| &t.ty).collect();
    let (_, count) =
        batches::batch_types(&types, config).map_err(|e| ev.script_error(codes::ARGUMENTS, span, e))?;
    let kind = StreamKind::Batches { tensors, config };
    Ok(Value::Stream(Arc::new(Stream { kind, len: Some(count) })))
}

fn windows(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let names = ["ids", "length", "size", "steps", "seed"];
    let [ids, length, size, steps, seed] = ev.take_some("data.windows", names, 4, args, span)?;
    let (Some(ids), Some(length), Some(size), Some(steps)) = (ids, length, size, steps) else {
        return Err(super::Halt::Reported);
    };
    let Value::Stored(stored) = &ids.0 else {
        let kind = ids.0.kind();
        return Err(ev.error(
            codes::TYPE_MISMATCH,
            ids.1,
            format!("`data.windows` takes a tensor of the script, got {kind}"),
        ));
    };
    let (length, batch) = (ev.size(&length.0, length.1)?, ev.size(&size.0, size.1)?);
    let steps = ev.size(&steps.0, steps.1)?;
    let seed = match seed {
        Some((seed, at)) => ev.as_int(&seed, at)?.0 as u64,
        None => ev.settings.seed,
    };
    batches::window_types(&stored.ty, length, batch)
        .map_err(|e| ev.script_error(codes::ARGUMENTS, span, e))?;
    let kind = StreamKind::Windows { ids: Arc::clone(stored), length, batch, seed, start: 0 };
    Ok(Value::Stream(Arc::new(Stream { kind, len: Some(steps) })))
}

fn categorical(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let names = ["logits", "temperature"];
    let [logits, temperature] = ev.take_some("random.categorical", names, 1, args, span)?;
    let Some((logits, at)) = logits else { return Err(super::Halt::Reported) };
    if ev.in_graph() {
        return Err(ev.report(
            Diagnostic::error(codes::NOT_IN_GRAPH, span, "`random.categorical` in graph code")
                .help("return the logits and draw in the script"),
        ));
    }
    let temperature = match temperature {
        Some((value, at)) => match super::operator::number(&value) {
            Some((number, _)) => number.as_f64(),
            None => {
                let kind = value.kind();
                return Err(ev.error(
                    codes::TYPE_MISMATCH,
                    at,
                    format!("a temperature is a number, got {kind}"),
                ));
            }
        },
        None => 1.0,
    };
    let Some(ty) = ev.tensor_type(&logits) else {
        if matches!(logits, Value::Unknown(_)) {
            return Ok(Value::Unknown(Unknown::Int(0)));
        }
        let kind = logits.kind();
        return Err(ev.error(
            codes::TYPE_MISMATCH,
            at,
            format!("`random.categorical` takes a tensor, got {kind}"),
        ));
    };
    let rows = ty.shape().split_last().map(|(_, lead)| lead.to_vec());
    let Some(tensor) = ev.host_tensor(&logits, at)? else {
        return match rows {
            Some(lead) if lead.is_empty() => Ok(Value::Unknown(Unknown::Int(0))),
            Some(lead) => {
                let ty = ev.checked_type(DType::I32, &lead, span)?;
                Ok(Value::Stored(Stored::new(ty, None)))
            }
            None => Err(ev.error(
                codes::TENSOR_OP,
                at,
                "`random.categorical` of a scalar: it has no axis of categories",
            )),
        };
    };
    ev.random_calls += 1;
    let seed = super::frame::mix(ev.settings.seed ^ super::frame::mix(ev.random_calls));
    let drawn = sample::categorical(&tensor, sample::Weights::Logits, temperature, seed)
        .map_err(|e| ev.script_error(codes::RUN_FAILED, span, e))?;
    match drawn.as_slice::<i32>() {
        Some(&[id]) if drawn.shape().is_empty() => Ok(Value::Int(id.into())),
        _ => Ok(Value::Stored(Stored::new(drawn.ty().clone(), Some(drawn)))),
    }
}

impl Evaluator {
    /// A file of tensors; in mode Check only its header is read.
    pub(super) fn load_file(&mut self, file: &Value, at: Span) -> Eval {
        let Some(name) = self.known_text(file, "a file", at)? else {
            return Ok(Value::Unknown(Unknown::Any));
        };
        let path = self.path(&name);
        let fail = |ev: &mut Self, error: script::Error| ev.script_error(codes::FILE, at, error);
        let check = self.mode == Mode::Check;
        if check && self.written.contains(&path) && !path.exists() {
            return Ok(Value::Unknown(Unknown::Any));
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("npy") if check => match npy::read_type(&path) {
                Ok(ty) => Ok(Value::Stored(Stored::new(ty, None))),
                Err(error) => Err(fail(self, error)),
            },
            Some("npy") => match npy::read(&path) {
                Ok(tensor) => Ok(Value::Stored(Stored::new(tensor.ty().clone(), Some(tensor)))),
                Err(error) => Err(fail(self, error)),
            },
            Some("safetensors") => {
                let tensors: Result<Vec<(String, Type, Option<Tensor>)>, script::Error> = if check {
                    safetensors::Reader::open(&path)
                        .and_then(|r| r.types())
                        .map(|types| types.into_iter().map(|(n, ty)| (n, ty, None)).collect())
                } else {
                    safetensors::read(&path)
                        .map(|all| all.into_iter().map(|(n, t)| (n, t.ty().clone(), Some(t))).collect())
                };
                match tensors {
                    Ok(tensors) => {
                        let fields = tensors
                            .into_iter()
                            .map(|(name, ty, data)| (name.into(), Value::Stored(Stored::new(ty, data))))
                            .collect();
                        Ok(Value::Record(Arc::new(Record { what: "a file of tensors", fields })))
                    }
                    Err(error) => Err(fail(self, error)),
                }
            }
            _ => Err(self.report(
                Diagnostic::error(codes::FILE, at, format!("`{name}`: the kind of file is not known")).help(
                    "tensors are read from `.safetensors` and `.npy`, text with `data.chars` and `data.text`",
                ),
            )),
        }
    }

    pub(super) fn stored_slice<T: crate::exec::Element>(
        &mut self,
        shape: &[usize],
        values: &[T],
        span: Span,
    ) -> Eval {
        let ty = self.checked_type(T::DTYPE, shape, span)?;
        if self.mode != Mode::Run {
            return Ok(Value::Stored(Stored::new(ty, None)));
        }
        match Tensor::try_from_slice(shape, values) {
            Ok(data) => Ok(Value::Stored(Stored::new(ty, Some(data)))),
            Err(TensorError::Memory(error)) => Err(self.error(codes::LIMIT, span, error.to_string())),
            Err(error) => Err(self.error(codes::SHAPE_MISMATCH, span, error.to_string())),
        }
    }

    /// The batches of a stream, one after the other; in mode Check one that stands for all.
    pub(super) fn each_batch(
        &mut self,
        stream: &Stream,
        span: Span,
        once: bool,
        visit: &mut dyn FnMut(&mut Self, usize, Value) -> Eval<()>,
    ) -> Eval<()> {
        let stored = |ty: &Type| Value::Stored(Stored::new(ty.clone(), None));
        match &stream.kind {
            StreamKind::Batches { tensors, config } => {
                let data: Option<Vec<Tensor>> =
                    tensors.iter().map(|t| self.tensor_of(t, span)).collect::<Eval<_>>()?;
                let Some(data) = data.filter(|_| !once) else {
                    let types: Vec<&Type> = tensors.iter().map(|t| &t.ty).collect();
                    let (types, _) = batches::batch_types(&types, *config)
                        .map_err(|e| self.script_error(codes::ARGUMENTS, span, e))?;
                    return visit(self, 0, row_group(types.iter().map(stored).collect()));
                };
                let all = batches::Batches::new(data, *config)
                    .map_err(|e| self.script_error(codes::ARGUMENTS, span, e))?;
                for k in 0..all.count_all() {
                    self.pause(span)?;
                    let batch = all.batch(k).map_err(|e| self.script_error(codes::ARGUMENTS, span, e))?;
                    let Some(batch) = batch else { break };
                    let batch = batch
                        .into_iter()
                        .map(|t| Value::Stored(Stored::new(t.ty().clone(), Some(t))))
                        .collect();
                    visit(self, k, row_group(batch))?;
                }
                Ok(())
            }
            StreamKind::Windows { ids, length, batch, seed, start } => {
                let Some(data) = self.tensor_of(ids, span)?.filter(|_| !once) else {
                    let ty = batches::window_types(&ids.ty, *length, *batch)
                        .map_err(|e| self.script_error(codes::ARGUMENTS, span, e))?;
                    return visit(self, 0, Value::tuple(vec![stored(&ty), stored(&ty)]));
                };
                let windows = batches::Windows::new(data, *length, *batch, *seed)
                    .map_err(|e| self.script_error(codes::ARGUMENTS, span, e))?;
                for k in 0..stream.len.unwrap_or(0) {
                    self.pause(span)?;
                    let (x, y) = windows
                        .at(start.wrapping_add(k as u64))
                        .map_err(|e| self.script_error(codes::ARGUMENTS, span, e))?;
                    let pair = [x, y].map(|t| Value::Stored(Stored::new(t.ty().clone(), Some(t))));
                    visit(self, k, Value::tuple(pair.into()))?;
                }
                Ok(())
            }
            StreamKind::Progress { .. } => Ok(()),
            StreamKind::Microbatches { .. } => Err(self.report(
                Diagnostic::error(
                    codes::TYPE_MISMATCH,
                    span,
                    "`microbatches` stands directly in a `for` loop",
                )
                .help("`for part in microbatches(x, 4) { … }`"),
            )),
        }
    }
}

fn row_group(mut tensors: Vec<Value>) -> Value {
    if tensors.len() == 1 { tensors.remove(0) } else { Value::tuple(tensors) }
}
