//! `shard flat net by Layer over world`: the parameters of a model, spread over the ranks.
//!
//! The parameters of a unit with one dtype, trained or not, are one vector (without `flat` each
//! parameter is one). Every rank holds an equal part of it: a tensor of its own, which the optimizer
//! updates. Graph code that reads a parameter gathers the vector and takes a view of it ([`gather`]).
//! With one rank the parameters stay as they are: each is its own part.

mod data;
mod gather;
mod target;
mod unit;

pub(super) use gather::Gathers;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    persistent::{Group, Home, Member},
    value::{Cell, Cx, Init, ModelDef, Value, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, Shard, SlotKind, Type},
    report::bytes::Bytes,
    source::Span,
    syntax::ast::{Arg, ExprId, ExprKind, ShardDecl},
};
pub(super) use data::states_by_name;
use unit::{Found, Units};

/// What owns the parts of the models that are spread over the ranks.
#[derive(Default)]
pub(super) struct Shards {
    groups: Vec<Arc<Group>>,
    parts: Vec<Arc<Cell>>,
    /// The unit of each scope of a model: calls of its functions are calls of the unit.
    units: FxHashMap<usize, u64>,
}

struct Options {
    prefetch: u32,
    mean: bool,
}

impl Evaluator {
    pub(super) fn shard_stmt(&mut self, cx: &Cx, decl: &ShardDecl, span: Span) -> Eval {
        if self.in_graph() {
            return Err(self.report(
                Diagnostic::error(codes::NOT_IN_GRAPH, span, "`shard` in graph code")
                    .help("write it in the script, after the model is made and before a step uses it"),
            ));
        }
        let target = self.expr(cx, decl.target)?;
        let models = self.unit_models(cx, decl.unit)?;
        if let Some(over) = decl.over {
            self.check_ranks(cx, over, codes::SHARD, "over")?;
        }
        let options = self.shard_options(cx, &decl.options)?;
        let target_span = cx.ast.expr(decl.target).span;
        let title = self.sources.text(target_span).to_string();
        let definitions: Vec<u64> = models.iter().map(|(def, _)| def.id).collect();
        let mut found = Found::new(&target, &definitions, &title);
        if let Some((cell, one, other)) = found.shared.take() {
            return Err(self.report(
                Diagnostic::error(
                    codes::SHARD,
                    span,
                    format!("`{}` belongs to two units, `{one}` and `{other}`", cell.name()),
                )
                .secondary(cell.span, "declared here")
                .help("choose a unit that holds both, or leave the shared parameter outside of the units"),
            ));
        }
        self.check_found(&target, &found, &models, span, target_span)?;
        for unit in &found.units {
            if let Some(scope) = unit.scope {
                self.shards.units.insert(scope, unit.id);
            }
        }
        self.make_groups(&found.units, decl.flat, &options, span)
    }

    /// The models whose instances are units, each with the place that names it.
    fn unit_models(&mut self, cx: &Cx, unit: ExprId) -> Eval<Vec<(Arc<ModelDef>, Span)>> {
        let span = cx.ast.expr(unit).span;
        let items = match self.expr(cx, unit)? {
            Value::List(items) | Value::Tuple(items) if !items.is_empty() => items.as_ref().clone(),
            other => vec![other],
        };
        let places: Vec<Span> = match &cx.ast.expr(unit).kind {
            ExprKind::List(ids) | ExprKind::Tuple(ids) => {
                ids.iter().map(|&id| cx.ast.expr(id).span).collect()
            }
            _ => Vec::new(),
        };
        let mut models = Vec::with_capacity(items.len());
        for (k, item) in items.into_iter().enumerate() {
            let place = places.get(k).copied().unwrap_or(span);
            match item {
                Value::ModelDef(def) => models.push((def, place)),
                Value::Poison => return Err(Halt::Reported),
                other => {
                    let kind = other.kind();
                    return Err(self.report(
                        Diagnostic::error(
                            codes::SHARD,
                            place,
                            format!("a unit is a model that is declared, got {kind}"),
                        )
                        .help("name the model whose parameters are gathered together: `shard flat net by Block`"),
                    ));
                }
            }
        }
        Ok(models)
    }

    fn shard_options(&mut self, cx: &Cx, args: &[Arg]) -> Eval<Options> {
        let mut options = Options { prefetch: 0, mean: true };
        for arg in args {
            let expr = cx.ast.expr(arg.value);
            match arg.name.as_ref().map(|n| &*n.name) {
                Some("prefetch") => {
                    let (units, _) = self.int_expr(cx, arg.value)?;
                    options.prefetch = match u32::try_from(units) {
                        Ok(units) => units,
                        Err(_) => {
                            return Err(self.error(
                                codes::BAD_OPTION,
                                expr.span,
                                format!("`prefetch` is a number of units, 0 or more, got {units}"),
                            ));
                        }
                    };
                }
                Some("reduce") => {
                    let word = match &expr.kind {
                        ExprKind::Name(name) => Some(&**name),
                        _ => None,
                    };
                    options.mean = match word {
                        Some("mean") => true,
                        Some("sum") => false,
                        _ => {
                            return Err(self.error(
                                codes::BAD_OPTION,
                                expr.span,
                                "`reduce` is `mean` or `sum`",
                            ));
                        }
                    };
                }
                name => {
                    let message = format!("`shard` has no option `{}`", name.unwrap_or_default());
                    let at = arg.name.as_ref().map_or(expr.span, |n| n.span);
                    return Err(self.report(
                        Diagnostic::error(codes::BAD_OPTION, at, message)
                            .help("options are `prefetch: 1` and `reduce: sum`"),
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Errors of what a `shard` statement names.
    fn check_found(
        &mut self,
        target: &Value,
        found: &Found,
        models: &[(Arc<ModelDef>, Span)],
        span: Span,
        target_span: Span,
    ) -> Eval<()> {
        // Each of them: a unit that is not there is a slip, and its parameters would be in another.
        if let Some(&(_, unit_span)) = models.iter().find(|(def, _)| !found.is_there(def)) {
            let unit = self.sources.text(unit_span).to_string();
            let kind = target.kind();
            let mut diagnostic = Diagnostic::error(
                codes::SHARD,
                unit_span,
                format!("there is no `{unit}` in {kind} `{}`", self.sources.text(target_span)),
            );
            if !found.models.is_empty() {
                let names: Vec<&str> = found.models.iter().map(|name| &**name).collect();
                diagnostic = diagnostic.note(format!("it has {}", super::index::listed(&names)));
            }
            return Err(self.report(diagnostic));
        }
        let cells = || found.units.iter().flat_map(|u| &u.cells);
        if cells().next().is_none() {
            let kind = target.kind();
            return Err(self.error(codes::SHARD, target_span, format!("{kind} has no parameters to spread")));
        }
        if let Some((cell, home)) = cells().find_map(|c| Some((Arc::clone(c), c.home()?))) {
            let mut diagnostic = Diagnostic::error(
                codes::SHARD,
                span,
                format!("`{}` is spread over the ranks already", cell.name()),
            );
            if let Some(group) = home.group.upgrade() {
                diagnostic = diagnostic.secondary(group.span, "by this statement");
            }
            return Err(self.report(diagnostic));
        }
        for step in self.steps.clone() {
            let compiled = lock(&step.compiled).clone();
            let is_used = |cell: &&Arc<Cell>| compiled.iter().any(|c| c.uses(cell));
            if let Some(cell) = cells().find(is_used) {
                return Err(self.report(
                    Diagnostic::error(
                        codes::SHARD,
                        span,
                        format!("`{}` is used by the step `{}` already", cell.name(), step.name()),
                    )
                    .secondary(step.decl.name.span, "declared here, and called before")
                    .help("write `shard` behind the line that makes the model, before the first call"),
                ));
            }
        }
        Ok(())
    }

    /// Warnings about what the groups of a statement cost.
    fn judge_groups(&mut self, first: usize, span: Span) {
        let groups: Vec<Arc<Group>> = self.shards.groups.get(first..).unwrap_or_default().to_vec();
        let bytes = |group: &Group, elements: usize| {
            let size = group.members.first().map_or(0, |m| m.cell.ty.dtype().size());
            elements.saturating_mul(size) as u64
        };
        let is_padding = |g: &&Arc<Group>| g.padded - g.shard.elements > g.shard.elements;
        let padded: Vec<&Arc<Group>> = groups.iter().filter(is_padding).collect();
        if let Some(worst) = padded.iter().min_by_key(|g| std::cmp::Reverse(g.padded - g.shard.elements)) {
            let (used, all) = (bytes(worst, worst.shard.elements), bytes(worst, worst.padded));
            let named = worst.members.iter().map(|m| m.cell.name()).collect::<Vec<_>>();
            let named: Vec<&str> = named.iter().map(|n| &**n).collect();
            let world = worst.shard.world;
            let ty = worst.members.first().map_or_else(String::new, |m| format!(" of {}", m.cell.ty.dtype()));
            let mut diagnostic = Diagnostic::warning(
                codes::PADDING,
                span,
                format!(
                    "a group{ty} has {}, and {} with its padding for {world} ranks",
                    match worst.shard.elements {
                        1 => "one element".to_owned(),
                        n => format!("{n} elements"),
                    },
                    worst.padded
                ),
            )
            .label("the groups are made here")
            .note(format!(
                "{} of {} are padding: {}",
                Bytes(all - used),
                Bytes(all),
                super::index::listed(&named)
            ));
            if padded.len() > 1 {
                diagnostic = diagnostic.note(format!("{} groups are mostly padding", padded.len()));
            }
            self.report(diagnostic.help("choose larger units, or leave the small parameters out of them"));
        }
        // The first unit whose trained parameters differ, and how many are like it.
        let odd = |g: &&Arc<Group>| {
            let others = groups.iter().filter(|o| o.unit == g.unit && o.is_flat);
            let dtype = |g: &Group| g.members.first().map(|m| m.cell.ty.dtype());
            let most = others.clone().max_by_key(|o| bytes(o, o.shard.elements));
            g.is_flat && most.is_some_and(|most| dtype(most) != dtype(g))
        };
        let odd: Vec<&Arc<Group>> = groups.iter().filter(odd).collect();
        let Some(first) = odd.first() else { return };
        let most = groups.iter().filter(|o| o.unit == first.unit).max_by_key(|o| bytes(o, o.shard.elements));
        let Some(most) = most.and_then(|g| g.members.first()) else { return };
        let names: Vec<Arc<str>> = first.members.iter().map(|m| m.cell.name()).collect();
        let names: Vec<&str> = names.iter().map(|n| &**n).collect();
        let Some(member) = first.members.first() else { return };
        let mut diagnostic = Diagnostic::warning(
            codes::MIXED_DTYPES,
            span,
            format!(
                "`{}` has parameters of {} beside those of {}: they are a vector of their own",
                first.title,
                member.cell.ty.dtype(),
                most.cell.ty.dtype()
            ),
        )
        .label("the groups are made here")
        .secondary(member.cell.span, format!("{} is declared here", member.cell.ty))
        .note(format!(
            "{}: {}",
            Bytes(bytes(first, first.shard.elements)),
            super::index::listed(&names)
        ));
        if odd.len() > 1 {
            diagnostic = diagnostic.note(format!("{} groups are odd in this way", odd.len()));
        }
        self.report(diagnostic.help(format!(
            "each group is gathered and reduced by itself; declare them {} where that is precise enough",
            most.cell.ty.dtype()
        )));
    }

    fn make_groups(&mut self, units: &[Units], flat: bool, options: &Options, span: Span) -> Eval {
        let world = self.settings.world;
        let first = self.shards.groups.len();
        for unit in units {
            let mut kinds: Vec<(DType, SlotKind, Vec<Arc<Cell>>)> = Vec::new();
            for cell in &unit.cells {
                let key = (cell.ty.dtype(), cell.kind);
                match kinds.iter_mut().find(|(dtype, kind, _)| flat && (*dtype, *kind) == key) {
                    Some((_, _, cells)) => cells.push(Arc::clone(cell)),
                    None => kinds.push((key.0, key.1, vec![Arc::clone(cell)])),
                }
            }
            let several = kinds.iter().any(|(dtype, _, _)| kinds.first().is_some_and(|k| k.0 != *dtype));
            for (dtype, kind, cells) in kinds {
                let mut members = Vec::with_capacity(cells.len());
                let mut elements = 0usize;
                for cell in cells {
                    members.push(Member { cell: Arc::clone(&cell), start: elements });
                    elements = elements.saturating_add(cell.ty.elements());
                }
                let padded = elements.div_ceil(world as usize).saturating_mul(world as usize);
                // The gathered vector is a tensor, too.
                self.checked_type(dtype, &[padded], span)?;
                let shard = Shard { world, elements, prefetch: options.prefetch, mean: options.mean };
                let title = Arc::clone(&unit.title);
                let group = Group { unit: unit.id, title, is_flat: flat, shard, padded, members, span };
                let name = match (flat, group.members.first()) {
                    (false, Some(member)) => format!("{}.shard", member.cell.name()),
                    _ => {
                        let dtype = if several { format!(".{dtype}") } else { String::new() };
                        let is_frozen = kind == SlotKind::Param { trainable: false };
                        format!("{}.flat{dtype}{}", unit.title, if is_frozen { ".frozen" } else { "" })
                    }
                };
                self.add_group(Arc::new(group), dtype, kind, &name)?;
            }
        }
        if world > 1 {
            self.judge_groups(first, span);
        }
        Ok(Value::Unit)
    }

    fn add_group(&mut self, group: Arc<Group>, dtype: DType, kind: SlotKind, name: &str) -> Eval<()> {
        let part = match group.shard.world {
            1 => None,
            _ => {
                let ty = match Type::new(dtype, [group.part()]) {
                    Ok(ty) => ty,
                    Err(error) => return Err(self.error(codes::LIMIT, group.span, error.to_string())),
                };
                let init = Init::Shard(Arc::clone(&group));
                let part = Cell::new(name.into(), ty, kind, group.span, init);
                part.name_once(name);
                Some(part)
            }
        };
        for member in &group.members {
            let part = part.as_ref().map(Arc::downgrade);
            member.cell.set_home(Home { group: Arc::downgrade(&group), part });
        }
        self.shards.groups.push(group);
        self.shards.parts.extend(part);
        Ok(())
    }
}
