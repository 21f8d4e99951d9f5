//! Arguments of steps: what a compiled step depends on, and what it takes at each call.

use std::sync::Arc;

use super::{
    Evaluator,
    args::{Args, ParamName},
    errors::{Eval, Halt},
    frame::{InputSource, ScalarBinding},
    value::{Cx, Record, Step, Stored, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, ScalarSource, Type},
    source::Span,
    syntax::ast::{Name, TypeExpr},
};

/// What of an argument a compiled step depends on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum KeyPart {
    Tensor(Type),
    /// A run-time scalar.
    Scalar(DType),
    Int(i64),
    /// The bits.
    Float(u64),
    Bool(bool),
    Str(Arc<str>),
    DType(DType),
    Unit,
    Open(usize),
    /// A model, a function, …: by identity.
    Object(u64),
}

/// Arguments in the form in which a compiled step takes them.
#[derive(Default)]
pub(super) struct Flat {
    pub key: Vec<KeyPart>,
    pub tensors: Vec<Arc<Stored>>,
    /// Numbers of run-time scalars.
    pub scalars: Vec<f64>,
}

impl Flat {
    /// Adds what the key holds of an argument that is no list and no object; false for others.
    pub fn push_simple(&mut self, scalar: Option<DType>, value: &Value) -> bool {
        self.key.push(match (scalar, value) {
            (Some(dtype), Value::Int(_) | Value::Float(_) | Value::Bool(_)) => KeyPart::Scalar(dtype),
            (Some(dtype), Value::Stored(stored)) if stored.ty.elements() == 1 => KeyPart::Scalar(dtype),
            (Some(_), _) => return false,
            (None, Value::Stored(stored)) => KeyPart::Tensor(stored.ty.clone()),
            (None, Value::Int(value)) => KeyPart::Int(*value),
            (None, Value::Float(value)) => KeyPart::Float(value.to_bits()),
            (None, Value::Bool(value)) => KeyPart::Bool(*value),
            (None, Value::Str(text)) => KeyPart::Str(Arc::clone(text)),
            (None, Value::DType(dtype)) => KeyPart::DType(*dtype),
            (None, _) => return false,
        });
        true
    }
}

impl Evaluator {
    /// Arguments by parameter, defaults included.
    pub(super) fn step_args(&mut self, step: &Arc<Step>, args: Args, span: Span) -> Eval<Vec<(Value, Span)>> {
        let params = &step.decl.params;
        let names: Vec<ParamName<'_>> = params
            .iter()
            .map(|p| ParamName { name: &p.name.name, required: p.default.is_none(), span: Some(p.name.span) })
            .collect();
        let bound = self.bind_args(step.name(), &names, args, span)?;
        let mut values = Vec::with_capacity(bound.len());
        for (param, bound) in params.iter().zip(bound) {
            values.push(match (bound, param.default) {
                (Some(bound), _) => bound,
                (None, Some(default)) => (self.expr(&step.cx, default)?, step.cx.ast.expr(default).span),
                (None, None) => (Value::Unit, span),
            });
        }
        Ok(values)
    }

    /// Whether a parameter is a run-time scalar: declared with a dtype and no shape.
    pub(super) fn scalar_dtype(ty: Option<&TypeExpr>) -> Option<DType> {
        let ty = ty?;
        if ty.dims.as_ref().is_some_and(|d| !d.is_empty()) {
            return None;
        }
        // `bool` without a shape is the compile-time type.
        DType::parse(&ty.base.name).filter(|&d| d != DType::Bool || ty.dims.is_some())
    }

    pub(super) fn flatten(&mut self, step: &Arc<Step>, values: &[(Value, Span)], span: Span) -> Eval<Flat> {
        let mut flat = Flat::default();
        for (param, (value, at)) in step.decl.params.iter().zip(values) {
            match Self::scalar_dtype(param.ty.as_ref()) {
                Some(dtype) => match self.scalar_argument(value, span)? {
                    Some(number) => {
                        flat.key.push(KeyPart::Scalar(dtype));
                        flat.scalars.push(number);
                    }
                    None => {
                        let kind = value.kind();
                        let name = &param.name.name;
                        return Err(self.report(
                            Diagnostic::error(
                                codes::TYPE_MISMATCH,
                                *at,
                                format!("`{name}` of `{}` is a number ({dtype}), got {kind}", step.name()),
                            )
                            .secondary(param.name.span, "declared here"),
                        ));
                    }
                },
                None => self.flatten_value(value, &mut flat, *at, span)?,
            }
        }
        Ok(flat)
    }

    fn scalar_argument(&mut self, value: &Value, span: Span) -> Eval<Option<f64>> {
        Ok(match value {
            Value::Stored(stored) if stored.ty.elements() == 1 => {
                Some(self.tensor_of(stored, span)?.and_then(|t| t.get_f64(0)).unwrap_or(0.5))
            }
            Value::Param(cell) if cell.ty.elements() == 1 && cell.part().is_none() => {
                Some(self.cell_data(cell, span)?.and_then(|t| t.get_f64(0)).unwrap_or(0.5))
            }
            Value::Unknown(Unknown::Any) => Some(0.5),
            other => super::operator::number(other).map(|(n, _)| n.as_f64()),
        })
    }

    fn flatten_value(&mut self, value: &Value, flat: &mut Flat, at: Span, span: Span) -> Eval<()> {
        let part = match value {
            Value::Stored(stored) => {
                flat.tensors.push(Arc::clone(stored));
                KeyPart::Tensor(stored.ty.clone())
            }
            Value::Param(cell) => {
                let data = self.whole_data(cell, span)?;
                flat.tensors.push(Stored::new(cell.ty.clone(), data));
                KeyPart::Tensor(cell.ty.clone())
            }
            Value::Int(value) | Value::Unknown(Unknown::Int(value)) => KeyPart::Int(*value),
            Value::Float(value) | Value::Unknown(Unknown::Float(value)) => KeyPart::Float(value.to_bits()),
            Value::Bool(value) | Value::Unknown(Unknown::Bool(value)) => KeyPart::Bool(*value),
            Value::Unknown(_) => KeyPart::Unit,
            Value::Str(text) => KeyPart::Str(Arc::clone(text)),
            Value::DType(dtype) => KeyPart::DType(*dtype),
            Value::Unit => KeyPart::Unit,
            Value::Range(range) => {
                flat.key.extend([range.low, range.high].map(KeyPart::Int));
                KeyPart::Int(range.step)
            }
            Value::List(items) | Value::Tuple(items) => {
                flat.key.push(KeyPart::Open(items.len()));
                for item in items.iter() {
                    self.flatten_value(item, flat, at, span)?;
                }
                return Ok(());
            }
            Value::Record(record) => {
                flat.key.push(KeyPart::Open(record.fields.len()));
                for (name, item) in &record.fields {
                    flat.key.push(KeyPart::Str(Arc::clone(name)));
                    self.flatten_value(item, flat, at, span)?;
                }
                return Ok(());
            }
            Value::Tree(tree) => {
                flat.key.push(KeyPart::Open(tree.entries.len()));
                for (cell, item) in &tree.entries {
                    flat.key.push(KeyPart::Object(cell.id));
                    self.flatten_value(item.as_ref().unwrap_or(&Value::Unit), flat, at, span)?;
                }
                return Ok(());
            }
            Value::Model(model) => KeyPart::Object(model.id),
            Value::Function(function) => KeyPart::Object(function.id),
            Value::ModelDef(def) => KeyPart::Object(def.id),
            Value::OptimizerDef(def) => KeyPart::Object(def.id),
            Value::Optimizer(optimizer) => KeyPart::Object(optimizer.id),
            Value::Hook(hook) => KeyPart::Object(hook.id),
            Value::TensorFunction(function) => KeyPart::Str(function.name.into()),
            Value::Builtin(builtin) => KeyPart::Str(builtin.name.into()),
            Value::HostFunction(function) => KeyPart::Str(function.name().into()),
            Value::HostOp(op) => KeyPart::Str(op.name().into()),
            Value::Poison => return Err(Halt::Reported),
            other => {
                let kind = other.kind();
                return Err(self.error(
                    codes::TYPE_MISMATCH,
                    at,
                    format!("{kind} cannot be passed to a step"),
                ));
            }
        };
        flat.key.push(part);
        Ok(())
    }

    /// Binds the parameters of a step to inputs and scalars of its graph.
    pub(super) fn bind_step_params(
        &mut self,
        step: &Arc<Step>,
        cx: &Cx,
        values: &[(Value, Span)],
    ) -> Eval<()> {
        let (mut tensors, mut scalars) = (0, 0);
        let mut inputs = Vec::with_capacity(values.len());
        for (param, (value, at)) in step.decl.params.iter().zip(values) {
            let name = &param.name.name;
            let value = match Self::scalar_dtype(param.ty.as_ref()) {
                Some(dtype) => {
                    let k = scalars;
                    scalars += 1;
                    let id = self.build(param.name.span, |f| {
                        let source = ScalarSource::Argument(k as u32);
                        f.scalar((0, k), source, ScalarBinding::Argument(k), dtype)
                    })?;
                    self.graph_value(id, false)
                }
                None => self.input_value(name, value, &mut tensors, param.name.span)?,
            };
            self.label(&value, name, param.name.span);
            inputs.push((value, *at));
        }
        for (param, (value, _)) in step.decl.params.iter().zip(&inputs) {
            if let Some(ty) = &param.ty {
                self.bind_dims(&cx.scope, &cx.ast, ty, value);
            }
        }
        for (param, (value, at)) in step.decl.params.iter().zip(inputs) {
            let value = match &param.ty {
                Some(ty) if Self::scalar_dtype(Some(ty)).is_none() => {
                    let what = format!("`{}` of `{}`", param.name.name, step.name());
                    self.check_type(cx, ty, value, &what, at)?
                }
                _ => value,
            };
            cx.scope.declare(&param.name.name, value, param.name.span);
        }
        Ok(())
    }

    /// An argument with every tensor in it made an input of the graph.
    fn input_value(&mut self, name: &Name, value: &Value, tensors: &mut usize, span: Span) -> Eval {
        Ok(match value {
            Value::Stored(_) | Value::Param(_) => {
                let Some(ty) = self.tensor_type(value) else { return Err(Halt::Reported) };
                let source = InputSource::Argument(*tensors);
                *tensors += 1;
                let id = self.build(span, |f| f.add_input(Arc::clone(name), &ty, source))?;
                self.graph_value(id, false)
            }
            Value::List(items) | Value::Tuple(items) => {
                let mut inputs = Vec::with_capacity(items.len());
                for (k, item) in items.iter().enumerate() {
                    let name = format!("{name}.{k}").into();
                    inputs.push(self.input_value(&name, item, tensors, span)?);
                }
                if matches!(value, Value::List(_)) { Value::list(inputs) } else { Value::tuple(inputs) }
            }
            Value::Record(record) => {
                let mut fields = Vec::with_capacity(record.fields.len());
                for (field, item) in &record.fields {
                    let name = format!("{name}.{field}").into();
                    fields.push((Arc::clone(field), self.input_value(&name, item, tensors, span)?));
                }
                Value::Record(Arc::new(Record { what: record.what, fields }))
            }
            Value::Tree(tree) => {
                let mut entries = Vec::with_capacity(tree.entries.len());
                for (cell, item) in &tree.entries {
                    let item = match item {
                        Some(item) => {
                            let name = format!("{name}.{}", cell.name()).into();
                            Some(self.input_value(&name, item, tensors, span)?)
                        }
                        None => None,
                    };
                    entries.push((Arc::clone(cell), item));
                }
                tree.with(entries)
            }
            other => other.clone(),
        })
    }
}
