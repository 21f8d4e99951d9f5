//! Values as operands: how what a script holds gets into the graph that is being built.

use super::{
    Evaluator,
    errors::{Eval, Halt},
    frame::Frame,
    tensor::{Number, Operand},
    value::{GraphTensor, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{Origin, SlotKind, Type, ValueId},
    ops::{Op, OpError},
    source::Span,
};

impl Evaluator {
    pub(super) fn in_graph(&self) -> bool {
        !self.frames.is_empty()
    }

    /// The innermost graph. Called where one is known to be open.
    pub(super) fn frame(&mut self, span: Span) -> Eval<&mut Frame> {
        if self.frames.is_empty() {
            return Err(self.report(
                Diagnostic::error(codes::INTERNAL, span, "a tensor operation outside of every graph")
                    .note("this is a fault of `tg`: please report it with the program"),
            ));
        }
        self.frames.last_mut().ok_or(Halt::Reported)
    }

    /// The innermost graph, with new nodes stamped as coming from `span`.
    pub(super) fn frame_at(&mut self, span: Span) -> Eval<&mut Frame> {
        if self.cancelled() {
            return Err(Halt::Cancelled);
        }
        let limit = self.settings.limits.max_nodes;
        let frame = self.frame(span)?;
        if frame.graph.len() > limit {
            return Err(self.error(
                codes::LIMIT,
                span,
                format!("the graph has more than {limit} nodes (`max_nodes` of this engine)"),
            ));
        }
        let frame = self.frame(span)?;
        let origin = Origin { span, parent: frame.parent, iteration: frame.iteration.clone() };
        frame.graph.cursor.origin = frame.graph.origins.intern(origin);
        Ok(frame)
    }

    /// Runs `build` on the innermost graph; its error is reported at `span`.
    pub(super) fn build<T>(
        &mut self,
        span: Span,
        build: impl FnOnce(&mut Frame) -> Result<T, OpError>,
    ) -> Eval<T> {
        let result = build(self.frame_at(span)?);
        result.map_err(|error| self.op_error(span, error))
    }

    pub(super) fn graph_value(&self, value: ValueId, weak: bool) -> Value {
        let frame = self.frames.last().map_or(0, |f| f.id);
        Value::Tensor(GraphTensor { frame, value, weak })
    }

    pub(super) fn operand_value(&self, operand: Operand) -> Value {
        match operand {
            Operand::Tensor { value, weak } => self.graph_value(value, weak),
            Operand::Number(Number::Int(value)) => Value::Int(value),
            Operand::Number(Number::Float(value)) => Value::Float(value),
            Operand::Number(Number::Bool(value)) => Value::Bool(value),
        }
    }

    /// A value as an operand of a tensor operation; `None` where it is none.
    pub(super) fn operand(&mut self, value: &Value, span: Span) -> Eval<Option<Operand>> {
        Ok(Some(match value {
            Value::Int(value) => Operand::Number(Number::Int(*value)),
            Value::Float(value) => Operand::Number(Number::Float(*value)),
            Value::Bool(value) => Operand::Number(Number::Bool(*value)),
            // Only types matter in mode Check: the sample stands for a number that is not known.
            Value::Unknown(Unknown::Int(sample)) => Operand::Number(Number::Int(*sample)),
            Value::Unknown(Unknown::Float(sample)) => Operand::Number(Number::Float(*sample)),
            Value::Unknown(Unknown::Bool(sample)) => Operand::Number(Number::Bool(*sample)),
            Value::Unknown(Unknown::Any) => Operand::Number(Number::Float(0.5)),
            Value::Tensor(_) | Value::Stored(_) | Value::Param(_) => {
                let (value, weak) = self.tensor_value(value, span)?;
                Operand::Tensor { value, weak }
            }
            _ => return Ok(None),
        }))
    }

    /// A tensor as a value of the innermost graph, cast where `with compute` asks for it.
    pub(super) fn tensor_value(&mut self, value: &Value, span: Span) -> Eval<(ValueId, bool)> {
        let (id, weak) = match value {
            Value::Tensor(tensor) => {
                let own = self.frame(span)?.id == tensor.frame;
                if !own {
                    return Err(self.report(
                        Diagnostic::error(codes::NOT_IN_GRAPH, span, "a value of another graph is used here")
                            .help("pass it as an argument, or return it from the step that makes it"),
                    ));
                }
                self.check_released(tensor.value, span)?;
                (tensor.value, tensor.weak)
            }
            Value::Stored(stored) => (self.build(span, |f| f.stored_input(stored))?, false),
            Value::Param(cell) => (self.parameter_value(cell, span)?, false),
            other => {
                let kind = other.kind();
                return Err(self.error(codes::TYPE_MISMATCH, span, format!("expected a tensor, got {kind}")));
            }
        };
        let is_param = matches!(value, Value::Param(_));
        let frame = self.frame(span)?;
        let is_state = match (value, frame.graph.producer(id).0.op()) {
            (Value::Param(cell), _) => matches!(cell.kind, SlotKind::State),
            (_, Op::Read(read)) => {
                frame.graph.slots.get(read.slot.0 as usize).is_some_and(|s| matches!(s.kind, SlotKind::State))
            }
            _ => false,
        };
        let dtype = frame.graph.ty(id).dtype();
        match frame.compute {
            Some(compute)
                if dtype.is_float()
                    && dtype != compute.dtype
                    && !weak
                    && !is_state
                    && (is_param || id.0 < compute.since) =>
            {
                Ok((self.build(span, |f| f.graph.cast(id, compute.dtype))?, weak))
            }
            _ => Ok((id, weak)),
        }
    }

    /// The type of a tensor value, without adding anything to a graph.
    pub(super) fn tensor_type(&self, value: &Value) -> Option<Type> {
        match value {
            Value::Stored(stored) => Some(stored.ty.clone()),
            Value::Param(cell) => Some(cell.ty.clone()),
            Value::Tensor(tensor) => self
                .frames
                .iter()
                .rev()
                .find(|f| f.id == tensor.frame)
                .map(|f| f.graph.ty(tensor.value).clone()),
            _ => None,
        }
    }
}
