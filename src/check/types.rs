//! Annotations: what a parameter, a result or a `let` may hold, and dimension variables.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::{Eval, closest},
    scope::Scope,
    tensor::{Operand, promote},
    value::{Cx, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, Type, ValueId},
    source::Span,
    syntax::ast::{DimExpr, ExprKind, Name, TypeExpr},
};

/// What an annotation means.
pub(super) enum Meaning {
    Int,
    Float,
    Bool,
    Str,
    /// A list, a function, …: checked by its kind only.
    Kind(&'static str),
    Model(Arc<super::value::ModelDef>),
    Tensor(DType),
}

impl Evaluator {
    pub(super) fn meaning(&mut self, cx: &Cx, ty: &TypeExpr) -> Eval<Meaning> {
        let name = &*ty.base.name;
        if ty.dims.is_none() {
            let scalar = match name {
                "int" => Some(Meaning::Int),
                "float" => Some(Meaning::Float),
                "bool" => Some(Meaning::Bool),
                "str" => Some(Meaning::Str),
                "list" => Some(Meaning::Kind("list")),
                "tuple" => Some(Meaning::Kind("tuple")),
                "function" => Some(Meaning::Kind("function")),
                _ => None,
            };
            if let Some(scalar) = scalar {
                return Ok(scalar);
            }
        }
        if let Some(dtype) = DType::parse(name) {
            return Ok(Meaning::Tensor(dtype));
        }
        if let Some((_, binding)) = cx.scope.lookup(name)
            && let Value::ModelDef(def) = binding.value
            && ty.dims.is_none()
        {
            return Ok(Meaning::Model(def));
        }
        if self.is_lost(name) {
            return Err(super::Halt::Reported);
        }
        let known = ["f32", "f16", "bf16", "f64", "i32", "i64", "bool", "u8", "int", "float", "str", "list"];
        let mut diagnostic =
            Diagnostic::error(codes::UNKNOWN_NAME, ty.base.span, format!("unknown type `{name}`"));
        match super::foreign_word(name) {
            Some(tip) => diagnostic.help.push(tip.into()),
            None => match closest(name, known) {
                Some(close) => diagnostic.help.push(format!("did you mean `{close}`?")),
                None => diagnostic.notes.push(
                    "types are `f32[n, m]` and the other dtypes, `int`, `float`, `bool`, `str`, `list`, or a model".into(),
                ),
            },
        }
        Err(self.report(diagnostic))
    }

    /// Binds the dimension variables of an annotation that stand alone, where the value has the
    /// right number of axes. Mismatches are found by [`Evaluator::check_type`].
    pub(super) fn bind_dims(
        &mut self,
        scope: &Arc<Scope>,
        ast: &crate::syntax::ast::Ast,
        ty: &TypeExpr,
        value: &Value,
    ) {
        let (Some(dims), Some(actual)) = (&ty.dims, self.tensor_type(value)) else { return };
        let Some(pairs) = align(dims, actual.shape()) else { return };
        for (dim, size) in pairs {
            if let Some((name, span)) = variable(ast, dim)
                && !scope.contains(name)
            {
                // A constant of that name is meant where one is in scope.
                let constant = !matches!(dim, DimExpr::Default { .. })
                    && scope.lookup(name).is_some_and(|(_, b)| {
                        matches!(b.value, Value::Int(_) | Value::Unknown(Unknown::Int(_)))
                    });
                if !constant {
                    scope.declare(name, Value::Int(size as i64), span);
                }
            }
        }
    }

    /// The sizes of an annotation; `None` for `...`.
    pub(super) fn dims(&mut self, cx: &Cx, dims: &[DimExpr]) -> Eval<Vec<Option<usize>>> {
        dims.iter()
            .map(|dim| match dim {
                DimExpr::Rest(_) => Ok(None),
                DimExpr::Default { name, .. } => {
                    let id = cx.scope.get(&name.name).map(|b| b.value);
                    match id {
                        Some(value) => self.size(&value, name.span).map(Some),
                        None => Err(self.error(
                            codes::UNKNOWN_DIMENSION,
                            name.span,
                            format!("the size of `{}` is not known", name.name),
                        )),
                    }
                }
                DimExpr::Expr(expr) => {
                    let span = cx.ast.expr(*expr).span;
                    if let ExprKind::Name(name) = &cx.ast.expr(*expr).kind
                        && is_variable_name(name)
                        && cx.scope.lookup(name).is_none()
                    {
                        return Err(self.report(
                            Diagnostic::error(
                                codes::UNKNOWN_DIMENSION,
                                span,
                                format!("the size of the dimension `{name}` is not known here"),
                            )
                            .help(format!("give it a size, `{name} = 64`, or bind it: `const {name} = 64`")),
                        ));
                    }
                    let value = self.expr(cx, *expr)?;
                    self.size(&value, span).map(Some)
                }
            })
            .collect()
    }

    /// A size: a whole number that is not negative.
    pub(super) fn size(&mut self, value: &Value, span: Span) -> Eval<usize> {
        let (size, _) = self.as_int(value, span)?;
        match usize::try_from(size) {
            Ok(size) => Ok(size),
            Err(_) => {
                Err(self.error(codes::SHAPE_MISMATCH, span, format!("a size cannot be negative, got {size}")))
            }
        }
    }

    /// The type that an annotation declares, with every size known.
    pub(super) fn declared_type(&mut self, cx: &Cx, ty: &TypeExpr, dtype: DType) -> Eval<Type> {
        let sizes = self.dims(cx, ty.dims.as_deref().unwrap_or_default())?;
        let mut shape = Vec::with_capacity(sizes.len());
        for size in sizes {
            match size {
                Some(size) => shape.push(size),
                None => {
                    return Err(self.error(
                        codes::UNKNOWN_DIMENSION,
                        ty.span,
                        "`...` leaves the number of axes open, which is not possible here",
                    ));
                }
            }
        }
        self.checked_type(dtype, &shape, ty.span)
    }

    pub(super) fn checked_type(&mut self, dtype: DType, shape: &[usize], span: Span) -> Eval<Type> {
        let limit = self.settings.limits.max_bytes;
        match Type::new(dtype, shape) {
            Ok(ty) if ty.bytes() > limit => Err(self.error(
                codes::LIMIT,
                span,
                format!("{ty} takes {} bytes; the limit of this engine is {limit} (`max_bytes`)", ty.bytes()),
            )),
            Ok(ty) => Ok(ty),
            Err(error) => Err(self.error(codes::SHAPE_MISMATCH, span, error.to_string())),
        }
    }

    /// Checks a value against an annotation, after its variables are bound, and converts numbers.
    /// `what` names it: "`x` of `f`".
    pub(super) fn check_type(
        &mut self,
        cx: &Cx,
        ty: &TypeExpr,
        value: Value,
        what: &str,
        span: Span,
    ) -> Eval {
        let meaning = self.meaning(cx, ty)?;
        let fits = match (&meaning, &value) {
            (_, Value::Unknown(Unknown::Any)) => return Ok(value),
            (Meaning::Int, Value::Int(_) | Value::Unknown(Unknown::Int(_))) => true,
            (Meaning::Float, Value::Float(_) | Value::Unknown(Unknown::Float(_))) => true,
            (Meaning::Float, Value::Int(number)) => return Ok(Value::Float(*number as f64)),
            (Meaning::Float, Value::Unknown(Unknown::Int(sample))) => {
                return Ok(Value::Unknown(Unknown::Float(*sample as f64)));
            }
            (Meaning::Bool, Value::Bool(_) | Value::Unknown(Unknown::Bool(_))) => true,
            (Meaning::Str, Value::Str(_) | Value::Unknown(Unknown::Str)) => true,
            (Meaning::Kind("list"), Value::List(_)) => true,
            (Meaning::Kind("tuple"), Value::Tuple(_)) => true,
            (Meaning::Kind("function"), v) => {
                matches!(
                    v,
                    Value::Function(_)
                        | Value::Builtin(_)
                        | Value::TensorFunction(_)
                        | Value::HostFunction(_)
                        | Value::HostOp(_)
                        | Value::Model(_)
                )
            }
            (Meaning::Model(def), Value::Model(model)) => model.def.id == def.id,
            (Meaning::Tensor(dtype), v) => {
                return self.check_tensor_type(cx, ty, *dtype, v.clone(), what, span);
            }
            _ => false,
        };
        if fits {
            return Ok(value);
        }
        let kind = value.kind();
        let mut diagnostic = Diagnostic::error(
            codes::TYPE_MISMATCH,
            span,
            format!("{what} is `{}`, got {kind}", self.sources.text(ty.span)),
        )
        .secondary(ty.span, "declared here");
        if value.is_tensor() && matches!(meaning, Meaning::Int | Meaning::Float | Meaning::Bool) {
            let dtype = if matches!(meaning, Meaning::Int) { "i32" } else { "f32" };
            diagnostic.help.push(format!(
                "`{}` is known when the graph is built; declare the parameter `{dtype}` for a run-time scalar",
                ty.base.name
            ));
        }
        Err(self.report(diagnostic))
    }

    fn check_tensor_type(
        &mut self,
        cx: &Cx,
        ty: &TypeExpr,
        dtype: DType,
        value: Value,
        what: &str,
        span: Span,
    ) -> Eval {
        let no_dims = Vec::new();
        let dims = ty.dims.as_ref().unwrap_or(&no_dims);
        let (actual, value) = match self.tensor_type(&value) {
            Some(actual) => {
                let weak = matches!(value, Value::Tensor(t) if t.weak);
                if weak && actual.dtype() != dtype {
                    let (id, _) = self.tensor_value(&value, span)?;
                    let cast = self.build(span, |f| f.graph.cast(id, dtype))?;
                    (Type::scalar(dtype), self.graph_value(cast, false))
                } else {
                    (actual, value)
                }
            }
            None => match self.operand(&value, span)? {
                // A number is a scalar of any dtype that holds it.
                Some(Operand::Number(number)) => {
                    if !self.in_graph() {
                        return self.scripted(span, |ev| {
                            let id =
                                ev.build_any(span, |g| super::tensor::constant(g, "let", number, dtype))?;
                            Ok(ev.graph_value(id, false))
                        });
                    }
                    let id =
                        self.build_any(span, |g| super::tensor::constant(g, "argument", number, dtype))?;
                    (Type::scalar(dtype), self.graph_value(id, false))
                }
                _ => {
                    let kind = value.kind();
                    let text = self.sources.text(ty.span).to_string();
                    return Err(self.report(
                        Diagnostic::error(
                            codes::TYPE_MISMATCH,
                            span,
                            format!("{what} is `{text}`, got {kind}"),
                        )
                        .secondary(ty.span, "declared here"),
                    ));
                }
            },
        };
        if align(dims, actual.shape()).is_none() {
            return Err(self.rank_differs(ty, dims, &actual, what, span));
        }
        let sizes = self.dims(cx, dims)?;
        let pairs = align(&sizes, actual.shape());
        let clash = match &pairs {
            Some(pairs) => pairs.iter().position(|(size, actual)| size.is_some_and(|s| s != *actual)),
            None => None,
        };
        if actual.dtype() == dtype && pairs.is_some() && clash.is_none() {
            return Ok(value);
        }
        let declared = self.sources.text(ty.span).to_string();
        let mut diagnostic =
            Diagnostic::error(codes::SHAPE_MISMATCH, span, format!("{what} is `{declared}`, got {actual}"))
                .secondary(ty.span, "declared here");
        if actual.dtype() != dtype {
            diagnostic.help.push(format!("convert it with `{dtype}(x)`"));
        } else if let Some(axis) = clash {
            let sizes: Vec<Option<usize>> = pairs.iter().flatten().map(|(s, _)| **s).collect();
            let (want, got) = (sizes.get(axis).copied().flatten(), actual.shape().get(axis));
            if let (Some(want), Some(got)) = (want, got) {
                diagnostic.primary.text = format!("axis {axis} is {got}, not {want}");
                if let Some(DimExpr::Expr(expr)) = dims.get(axis)
                    && let ExprKind::Name(name) = &cx.ast.expr(*expr).kind
                    && let Some((_, binding)) = cx.scope.lookup(name)
                    && binding.span != cx.ast.expr(*expr).span
                {
                    diagnostic = diagnostic.secondary(binding.span, format!("`{name}` is {want} from here"));
                }
            }
        }
        Err(self.report(diagnostic))
    }

    /// A tensor with another number of axes than declared: no dimension is known from it.
    fn rank_differs(
        &mut self,
        ty: &TypeExpr,
        dims: &[DimExpr],
        actual: &Type,
        what: &str,
        span: Span,
    ) -> super::Halt {
        let declared = self.sources.text(ty.span).to_string();
        let named = dims.iter().filter(|d| !d.is_rest()).count();
        let at_least = if named < dims.len() { "at least " } else { "" };
        let axes = |n: usize| if n == 1 { "1 axis".to_string() } else { format!("{n} axes") };
        self.report(
            Diagnostic::error(codes::SHAPE_MISMATCH, span, format!("{what} is `{declared}`, got {actual}"))
                .label(format!("it has {}, not {at_least}{named}", axes(actual.rank())))
                .secondary(ty.span, "declared here"),
        )
    }

    /// `let a: f32[2] = …`
    pub(super) fn check_annotation(&mut self, cx: &Cx, ty: &TypeExpr, value: Value, span: Span) -> Eval {
        self.bind_dims(&cx.scope, &cx.ast, ty, &value);
        self.check_type(cx, ty, value, "the value", span)
    }

    /// An operand as a value of exactly this type: numbers and scalars are broadcast.
    pub(super) fn fit(
        &mut self,
        operand: Operand,
        ty: &Type,
        what: &str,
        span: Span,
        declared: Span,
    ) -> Eval<ValueId> {
        let dtype = ty.dtype();
        let value = match operand {
            Operand::Number(number) => {
                self.build_any(span, |g| super::tensor::constant(g, "=", number, dtype))?
            }
            Operand::Tensor { value, weak: true } => self.build(span, |f| f.graph.cast(value, dtype))?,
            Operand::Tensor { .. } => self
                .build_any(span, |g| promote(g, "=", &[operand]))?
                .0
                .first()
                .copied()
                .unwrap_or(ValueId(0)),
        };
        let actual = self.frame(span)?.graph.ty(value).clone();
        let lead = ty.rank().checked_sub(actual.rank());
        let fits = lead.is_some_and(|lead| {
            actual.shape().iter().zip(ty.shape().iter().skip(lead)).all(|(a, b)| a == b || *a == 1)
        });
        if actual.dtype() != dtype || !fits {
            let mut diagnostic = Diagnostic::error(
                codes::SHAPE_MISMATCH,
                span,
                format!("{what}: expected {ty}, got {actual}"),
            )
            .secondary(declared, format!("declared {ty} here"));
            if actual.dtype() != dtype {
                diagnostic.help.push(format!("convert it with `{dtype}(x)`"));
            }
            return Err(self.report(diagnostic));
        }
        self.build(span, |f| f.graph.broadcast(value, ty.shape()))
    }
}

fn is_variable_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_uppercase())
}

/// The dimension variable that a dimension may bind.
pub(super) fn variable<'a>(ast: &'a crate::syntax::ast::Ast, dim: &'a DimExpr) -> Option<(&'a Name, Span)> {
    match dim {
        DimExpr::Default { name, .. } => Some((&name.name, name.span)),
        DimExpr::Expr(id) => match &ast.expr(*id).kind {
            ExprKind::Name(name) if is_variable_name(name) => Some((name, ast.expr(*id).span)),
            _ => None,
        },
        DimExpr::Rest(_) => None,
    }
}

/// What may stand for any number of axes.
pub(super) trait Open {
    fn is_rest(&self) -> bool;
}

impl Open for DimExpr {
    fn is_rest(&self) -> bool {
        matches!(self, DimExpr::Rest(_))
    }
}

impl Open for Option<usize> {
    fn is_rest(&self) -> bool {
        self.is_none()
    }
}

/// Pairs the dimensions of an annotation with those of a shape; `None` where the numbers differ.
fn align<'a, T: Open>(dims: &'a [T], shape: &[usize]) -> Option<Vec<(&'a T, usize)>> {
    let rest = dims.iter().position(Open::is_rest);
    match rest {
        None if dims.len() == shape.len() => Some(dims.iter().zip(shape.iter().copied()).collect()),
        None => None,
        Some(at) => {
            let (before, after) = dims.split_at_checked(at)?;
            let after = after.get(1..)?;
            let tail = shape.len().checked_sub(after.len())?;
            if tail < before.len() {
                return None;
            }
            let heads = before.iter().zip(shape.iter().copied());
            Some(heads.chain(after.iter().zip(shape.get(tail..)?.iter().copied())).collect())
        }
    }
}
