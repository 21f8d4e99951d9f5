//! `x.name`: fields of models, members of modules, attributes of tensors.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::{Eval, closest, foreign_field},
    language,
    value::{Method, Unknown, Value, lock},
};
use crate::{codes, diagnostic::Diagnostic, source::Span, syntax::ast::Ident};

impl Evaluator {
    pub(super) fn field(&mut self, base: &Value, field: &Ident, span: Span) -> Eval {
        let name = &*field.name;
        if base.is_tensor()
            && let Some(value) = self.tensor_attribute(base, name, span)?
        {
            return Ok(value);
        }
        let found = match base {
            Value::Unknown(Unknown::Any) => Some(Value::Unknown(Unknown::Any)),
            Value::Model(model) => match model.scope.get(name) {
                Some(binding) if matches!(binding.value, Value::Poison) => {
                    return Err(super::Halt::Reported);
                }
                binding => binding.map(|b| b.value),
            },
            Value::Module(module) => match module.scope.get(name) {
                Some(binding) if matches!(binding.value, Value::Poison) => {
                    return Err(super::Halt::Reported);
                }
                Some(binding) => Some(binding.value),
                None => module.builtins.iter().find(|b| b.name == name).map(Value::Builtin),
            },
            Value::Record(record) => record.get(name).cloned(),
            Value::Tree(tree) => {
                let tree = Arc::clone(tree);
                return self.tree_field(&tree, field, span);
            }
            Value::Optimizer(optimizer) => {
                let position = optimizer.def.decl.params.iter().position(|p| *p.name.name == *name);
                position.and_then(|p| lock(&optimizer.hyper).get(p).cloned())
            }
            Value::DType(dtype) => match name {
                "size" => Some(Value::Int(dtype.size() as i64)),
                "name" => Some(Value::str(dtype.name())),
                _ => None,
            },
            Value::Vocabulary(vocabulary) if name == "size" => Some(Value::Int(vocabulary.len() as i64)),
            Value::Vocabulary(_) | Value::Stream(_) | Value::Str(_) => language::method(base, name)
                .map(|builtin| Value::Method(Arc::new(Method { receiver: base.clone(), builtin }))),
            _ => None,
        };
        match found {
            Some(value) => Ok(value),
            None if self.is_lost(name) => Err(super::Halt::Reported),
            None => {
                let known = self.field_names(base);
                let kind = base.kind();
                let message = match base {
                    Value::Module(module) => format!("the module `{}` has no `{name}`", module.name),
                    _ => format!("{kind} has no field `{name}`"),
                };
                let mut diagnostic = Diagnostic::error(codes::UNKNOWN_FIELD, field.span, message);
                // The fields of records and trees are names of the program, which no habit explains.
                let is_own = matches!(base, Value::Record(_) | Value::Tree(_));
                let dotted =
                    known.iter().find(|k| is_own && k.strip_prefix(name).is_some_and(|r| r.starts_with('.')));
                if let Some(dotted) = dotted {
                    diagnostic.help.push(format!("a name with a dot is an index: `[\"{dotted}\"]`"));
                } else if base.is_tensor() && name == "item" && self.in_graph() {
                    diagnostic.help.push("return it: in the script a tensor has a value, `float(x)`".into());
                } else if let (Value::Model(_), Some(tip)) = (base, foreign_method_of_model(name)) {
                    diagnostic.help.push(tip.into());
                } else if let Some(tip) = foreign_field(name).filter(|_| !is_own) {
                    diagnostic.help.push(tip.into());
                } else if base.is_tensor() && super::tensor::find(name).is_some() {
                    diagnostic.help.push(format!("`{name}` is a function: write `{name}(x, …)`"));
                } else if let Some(function) = in_place(base, name) {
                    diagnostic.help.push(format!("tensors are values: write `x = {function}(x)`"));
                } else if let Some(close) = closest(name, known.iter().map(String::as_str)) {
                    diagnostic.help.push(format!("did you mean `{close}`?"));
                } else if !known.is_empty() && known.len() <= 12 {
                    let names: Vec<&str> = known.iter().map(String::as_str).collect();
                    diagnostic.notes.push(format!("it has {}", super::index::listed(&names)));
                }
                Err(self.report(diagnostic))
            }
        }
    }

    fn tensor_attribute(&mut self, base: &Value, name: &str, span: Span) -> Eval<Option<Value>> {
        let Some(ty) = self.tensor_type(base) else { return Ok(None) };
        if matches!(name, "shape" | "rank" | "size" | "T")
            && let Some(group) = self.part_group(base)
        {
            return Err(self.report(
                Diagnostic::error(
                    codes::SHARD,
                    span,
                    format!("`.{name}` of a parameter of `{}`, which is spread over the ranks", group.title),
                )
                .secondary(group.span, "by this statement")
                .note("an optimizer sees this rank's part of a vector, not the parameter's own shape")
                .help(
                    "`zeros_like(p)` makes a state; what depends on the shape needs an optimizer of its own",
                ),
            ));
        }
        Ok(Some(match name {
            "shape" => Value::list(ty.shape().iter().map(|&d| Value::Int(d as i64)).collect()),
            "dtype" => Value::DType(ty.dtype()),
            "rank" => Value::Int(ty.rank() as i64),
            "size" => Value::Int(ty.elements() as i64),
            "T" => {
                if ty.rank() < 2 {
                    return Err(self.report(
                        Diagnostic::error(
                            codes::TENSOR_OP,
                            span,
                            format!("`.T` swaps the last two axes, which {ty} does not have"),
                        )
                        .help("`x[new, ..]` and `x[.., new]` make a row or a column of a vector"),
                    ));
                }
                self.scripted(span, |ev| {
                    let (id, weak) = ev.tensor_value(base, span)?;
                    let value = ev.build(span, |f| f.graph.transpose_last(id))?;
                    Ok(ev.graph_value(value, weak))
                })?
            }
            _ => return Ok(None),
        }))
    }

    /// The names that a value answers to, for suggestions and completion.
    pub(super) fn field_names(&self, base: &Value) -> Vec<String> {
        match base {
            Value::Model(model) => model.scope.bindings().into_iter().map(|(n, _)| n.to_string()).collect(),
            Value::Module(module) => module
                .scope
                .bindings()
                .into_iter()
                .map(|(n, _)| n.to_string())
                .chain(module.builtins.iter().map(|b| b.name.to_string()))
                .collect(),
            Value::Record(record) => record.fields.iter().map(|(n, _)| n.to_string()).collect(),
            Value::Tree(tree) => self.field_names(&tree.root),
            Value::Optimizer(optimizer) => {
                optimizer.def.decl.params.iter().map(|p| p.name.name.to_string()).collect()
            }
            Value::Tensor(_) | Value::Stored(_) | Value::Param(_) => {
                ["shape", "dtype", "rank", "size", "T"].map(String::from).to_vec()
            }
            Value::Vocabulary(_) => ["size", "encode", "decode"].map(String::from).to_vec(),
            _ => Vec::new(),
        }
    }
}

/// What models of other libraries do by themselves, and what is written instead.
fn foreign_method_of_model(name: &str) -> Option<&'static str> {
    Some(match name {
        "to" | "half" | "float" | "double" | "bfloat16" | "astype" | "type" => {
            "a model's dtype is chosen where it is made, `let net = Net() in bf16`; the device with `--device`"
        }
        "zero_grad" => "gradients are values and never accumulate by themselves: nothing to reset",
        "apply" | "init" => "initial values stand in the declaration: `param w: f32[n, m] = init.kaiming()`",
        "named_parameters" | "modules" | "children" => {
            "the fields of a model have names: `net.layers[0].w`; a list of all is in `tg plan`"
        }
        _ => return None,
    })
}

/// The function behind a method that would change a tensor in its place: `relu_`.
fn in_place<'n>(base: &Value, name: &'n str) -> Option<&'n str> {
    name.strip_suffix('_').filter(|f| base.is_tensor() && super::tensor::find(f).is_some())
}
