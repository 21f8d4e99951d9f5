//! Programs that several ranks run: `rank`, `world`, what only rank 0 does, what all do together.

use super::{
    Evaluator,
    errors::{Eval, Halt},
    frame::{FrameKind, ScalarBinding, mix},
    value::{Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::comm::Request,
    ir::{DType, Graph, NodeId, ScalarSource, Type, ValueId},
    ops::{CollectiveKind, Op},
    source::{SourceMap, Span},
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

/// `train.tg:12`, without the folder: ranks may run on machines with other folders.
pub(super) fn line_of(sources: &SourceMap, span: Span) -> String {
    let Some(file) = sources.get(span.file) else { return String::new() };
    let name = file.name.rsplit(['/', '\\']).next().unwrap_or_default();
    format!("{name}:{}", sources.start(span).line)
}

/// The line of the program that a node comes from.
pub(super) fn place_of(sources: &SourceMap, graph: &Graph, node: NodeId) -> String {
    let origins = graph.origins.chain(graph.node(node).origin());
    let is_own = |span: Span| sources.get(span.file).is_some_and(|f| !f.is_library && !f.text.is_empty());
    let spans = origins.map(|origin| origin.span).filter(|&span| span != Span::default());
    let spans: Vec<Span> = spans.collect();
    let own = spans.iter().find(|&&span| is_own(span)).or(spans.first());
    own.map_or_else(String::new, |&span| line_of(sources, span))
}

/// Whether a value is computed from the number of the rank alone and constants.
fn depends_on_rank(graph: &Graph, value: ValueId) -> bool {
    let mut todo = vec![value];
    let mut seen = rustc_hash::FxHashSet::default();
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
