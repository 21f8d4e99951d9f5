//! Programs that several ranks run: `rank`, `world`, what only rank 0 does, what all do together.

use rustc_hash::FxHashSet;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    frame::{FrameKind, ScalarBinding, mix},
    scope::Binding,
    value::{Cx, Unknown, Value},
    walk,
};
use crate::{
    codes,
    diagnostic::{Code, Diagnostic},
    exec::comm::Request,
    ir::{DType, Graph, NodeId, ScalarSource, Type, ValueId},
    ops::{CollectiveKind, Op},
    source::{SourceMap, Span},
    syntax::{
        ast::{Block, ExprId, ExprKind, Name, StmtKind},
        children::Child,
    },
};

/// The key of the rank among the scalars of a frame: no object has this number.
const RANK_KEY: (u64, usize) = (u64::MAX, 0);

impl Evaluator {
    /// Whether this rank does what only one does: print, plot, log, write files.
    pub(super) fn leads(&self) -> bool {
        self.comm.rank() == 0
    }

    /// The name `rank`: a number of the script, in graph code a run-time scalar, as all ranks run one
    /// graph.
    pub(super) fn rank_value(&mut self, span: Span) -> Eval {
        match self.frames.last().map(|f| &f.kind) {
            None if self.is_check() && self.settings.world > 1 => Ok(Value::Unknown(Unknown::Int(0))),
            None => Ok(Value::Int(i64::from(self.comm.rank()))),
            Some(FrameKind::Init) => Err(self.report(
                Diagnostic::error(
                    codes::DEPENDS_ON_RANK,
                    span,
                    "`rank` in the first value of a parameter or state",
                )
                .help("parameters start the same on every rank"),
            )),
            Some(_) => {
                let id = self.build(span, |f| {
                    f.scalar(RANK_KEY, ScalarSource::Rank, ScalarBinding::Rank, DType::F64)
                })?;
                Ok(self.graph_value(id, true))
            }
        }
    }

    /// Whether the value of an expression of the script follows from `rank`. What a call gives is left
    /// out, but for conversions of numbers: steps may make values equal again.
    pub(super) fn follows_rank(&self, cx: &Cx, value: ExprId) -> bool {
        const NUMBERS: [&str; 7] = ["int", "float", "str", "abs", "min", "max", "range"];
        if self.in_graph() {
            return false;
        }
        let mut todo = vec![value];
        while let Some(id) = todo.pop() {
            match &cx.ast.expr(id).kind {
                ExprKind::Name(name) if is_of_rank(cx, name) => return true,
                ExprKind::Call { callee, args } => {
                    let is_number =
                        matches!(&cx.ast.expr(*callee).kind, ExprKind::Name(n) if NUMBERS.contains(&&**n));
                    if is_number {
                        todo.extend(args.iter().map(|a| a.value));
                    }
                }
                kind => kind.for_each_child(&mut |child| {
                    if let Child::Expr(id) = child {
                        todo.push(id);
                    }
                }),
            }
        }
        false
    }

    /// The names that an assignment makes follow from `rank`: by its value, as only some ranks come
    /// to it, or as it `changes` or leaves a part of what follows from it already.
    pub(super) fn targets_of_rank(
        &self,
        cx: &Cx,
        targets: &[ExprId],
        changes: bool,
        value: ExprId,
    ) -> Vec<Name> {
        if self.in_graph() {
            return Vec::new();
        }
        let all = self.rank_branches > 0 || self.follows_rank(cx, value);
        let mut todo = targets.to_vec();
        let mut names = Vec::new();
        while let Some(target) = todo.pop() {
            let kind = &cx.ast.expr(target).kind;
            if let ExprKind::Tuple(items) | ExprKind::List(items) = kind {
                todo.extend(items);
            } else if let Some(name) = walk::root_name(&cx.ast, target) {
                let keeps = changes || !matches!(kind, ExprKind::Name(_));
                if all || keeps && is_of_rank(cx, name) {
                    names.push(Name::clone(name));
                }
            }
        }
        names
    }

    /// Runs the branches of an `if`. Where its condition follows from `rank`, so does what they assign
    /// to, also in a branch that this rank does not take.
    pub(super) fn on_some_ranks(
        &mut self,
        cx: &Cx,
        condition: ExprId,
        (then, otherwise): (&Block, Option<ExprId>),
        branches: impl FnOnce(&mut Self) -> Eval,
    ) -> Eval {
        if !self.follows_rank(cx, condition) {
            return branches(self);
        }
        self.rank_branches += 1;
        let result = branches(self);
        self.rank_branches = self.rank_branches.saturating_sub(1);
        mark_of_rank(cx, &assigned_outside(cx, then, otherwise));
        result
    }

    /// An error where a step uses a number of the script that differs between ranks.
    pub(super) fn check_same_on_ranks(&mut self, name: &Name, binding: &Binding, span: Span) -> Eval<()> {
        if !binding.of_rank || !is_built_in(&binding.value) {
            return Ok(());
        }
        Err(self.report(
            Diagnostic::error(
                codes::DEPENDS_ON_RANK,
                span,
                format!("`{name}` differs between ranks, and is part of a graph that they share"),
            )
            .secondary(binding.span, "worked out from `rank` in the script")
            .note("all ranks run one graph, so that their collectives meet")
            .help(format!("in graph code `rank` itself is a number that is known when the step runs; or declare an argument, `{name}: f32`")),
        ))
    }

    /// A condition of graph code that is a tensor: what to do instead depends on what it is made of.
    pub(super) fn tensor_condition(&mut self, value: &Value, span: Span) -> Halt {
        let of_rank = match (value, self.frames.last()) {
            (Value::Tensor(tensor), Some(frame)) => {
                frame.id == tensor.frame && depends_on_rank(&frame.graph, tensor.value)
            }
            _ => false,
        };
        if of_rank {
            return self.report(
                Diagnostic::error(codes::DEPENDS_ON_RANK, span, "a condition on `rank` in graph code")
                    .note("all ranks run one graph, so that their collectives meet")
                    .help("`where(rank == 0, a, b)` chooses a value on each rank; in the script, `if rank == 0 { … }`"),
            );
        }
        self.report(
            Diagnostic::error(
                codes::NOT_CONSTANT,
                span,
                "a condition must be known when the graph is built, got a tensor",
            )
            .help("`where(condition, a, b)` chooses element by element while the step runs"),
        )
    }

    /// The seed of random numbers in steps: each rank has its own, rank 0 that of the session.
    pub(super) fn step_seed(&self) -> u64 {
        match self.comm.rank() {
            0 => self.settings.seed,
            rank => self.settings.seed ^ mix(u64::from(rank)),
        }
    }

    /// The scalar page of a graph of the script.
    pub(super) fn script_scalars(&self, bindings: &[ScalarBinding]) -> Vec<f64> {
        let rank = f64::from(self.comm.rank());
        bindings.iter().map(|b| if matches!(b, ScalarBinding::Rank) { rank } else { f64::NAN }).collect()
    }

    /// `over 4` must be the number of ranks that there are. `statement` is what stands before the number.
    pub(super) fn check_ranks(&mut self, cx: &Cx, over: ExprId, code: Code, statement: &str) -> Eval<()> {
        let at = cx.ast.expr(over).span;
        // A number that only the run knows is judged there.
        let (ranks, known) = self.int_expr(cx, over)?;
        let world = self.settings.world;
        if !known || ranks == i64::from(world) {
            return Ok(());
        }
        if ranks < 1 {
            return Err(self.report(
                Diagnostic::error(code, at, format!("`{statement} {ranks}`: there is at least one rank"))
                    .help("`over world` means all ranks"),
            ));
        }
        let s = if world == 1 { "" } else { "s" };
        let message = format!("`{statement} {ranks}` in a program of {world} rank{s}");
        Err(self.report(
            Diagnostic::error(code, at, message).help(format!(
                "start it with `--world {ranks}`, or write `over world` for any number of ranks"
            )),
        ))
    }

    /// Waits until all ranks are here.
    pub(super) fn meet(&mut self, name: &'static str, span: Span) -> Eval<()> {
        let Ok(ty) = Type::new(DType::U8, [0]) else { return Ok(()) };
        if self.comm.world() == 1 {
            return Ok(());
        }
        let place = line_of(&self.sources, span);
        let request = Request { kind: CollectiveKind::AllReduce, name, ty, node: 0, place };
        let result = self.comm.start(request).and_then(|ticket| self.comm.wait(ticket, &[], &mut []));
        result.map_err(|failure| self.op_error(span, failure.into()))
    }
}

/// Notes that what these names are bound to was worked out from `rank`.
pub(super) fn mark_of_rank(cx: &Cx, names: &[Name]) {
    for name in names {
        if let Some((scope, _)) = cx.scope.lookup(name) {
            scope.mark_of_rank(name);
        }
    }
}

/// Whether a name stands for `rank`, or for what the script has worked out from it.
fn is_of_rank(cx: &Cx, name: &str) -> bool {
    cx.scope.lookup(name).map_or(name == "rank", |(_, binding)| binding.of_rank)
}

/// The names outside of the branches of an `if` that these assign to.
fn assigned_outside(cx: &Cx, then: &Block, otherwise: Option<ExprId>) -> Vec<Name> {
    let otherwise = Block { stmts: Vec::new(), tail: otherwise, span: then.span };
    let mut outside = Vec::new();
    for block in [then, &otherwise] {
        let mut own: Vec<&Name> = Vec::new();
        walk::walk_block(&cx.ast, block, &mut |item| {
            if let walk::Item::Stmt(id) = item
                && let StmtKind::Let { names, .. } | StmtKind::For { names, .. } = &cx.ast.stmt(id).kind
            {
                own.extend(names.iter().map(|n| &n.name));
            }
        });
        let assigned = walk::assigned_names(&cx.ast, block);
        outside.extend(assigned.into_iter().filter(|name| !own.contains(&name)));
    }
    outside
}

/// Whether a value goes into a graph as it is: what differs there makes another graph.
fn is_built_in(value: &Value) -> bool {
    match value {
        Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::Str(_) | Value::Range(_) => true,
        Value::Unknown(unknown) => *unknown != Unknown::Any,
        Value::List(items) | Value::Tuple(items) => items.iter().any(is_built_in),
        _ => false,
    }
}

/// `train.tg:12`, without the folder: ranks may run on machines with other folders.
pub(super) fn line_of(sources: &SourceMap, span: Span) -> String {
    let Some(file) = sources.get(span.file) else { return String::new() };
    let name = file.name.rsplit(['/', '\\']).next().unwrap_or_default();
    format!("{name}:{}", sources.start(span).line)
}

/// The line of the program that a node comes from.
pub(super) fn place_of(sources: &SourceMap, graph: &Graph, node: NodeId) -> String {
    let origin = graph.node(node).origin();
    let own = graph.origins.user_span(origin, sources);
    let place =
        own.or_else(|| graph.origins.chain(origin).map(|o| o.span).find(|&span| span != Span::default()));
    place.map_or_else(String::new, |span| line_of(sources, span))
}

/// Whether a value is computed from the number of the rank alone and constants.
fn depends_on_rank(graph: &Graph, value: ValueId) -> bool {
    let mut todo = vec![value];
    let mut seen = FxHashSet::default();
    while let Some(value) = todo.pop() {
        if !seen.insert(value) {
            continue;
        }
        let node = graph.producer(value).0;
        if let Op::Scalar(scalar) = node.op()
            && graph.scalars.get(scalar.index as usize) == Some(&ScalarSource::Rank)
        {
            return true;
        }
        todo.extend(node.args().iter().copied());
    }
    false
}
