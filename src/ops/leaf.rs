//! Ops without operands: inputs, constants, state, random numbers.

use std::sync::Arc;

use super::{GradNode, Gradient, HostKernel, HostOp, Memory, Number, OpError, Operation, expect_args, host};
use crate::{
    exec::cpu::{Call, movement},
    ir::{DType, Graph, SlotId, Type},
};

/// The step's tensor argument `index` (see [`crate::ir::Graph::inputs`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Input {
    pub index: u32,
}

/// A scalar constant. Larger constants are broadcasts of one, or a [`Literal`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Const {
    pub dtype: DType,
    pub value: Number,
}

/// A small tensor written out in the source, as little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    pub ty: Type,
    pub data: Arc<[u8]>,
}

/// 0, 1, 2, … along `axis`, the same along the others. Fuses with element-wise ops.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Iota {
    pub ty: Type,
    pub axis: usize,
}

/// The entry `index` of the scalar page, as a 0-d value of this type (see
/// [`crate::ir::Graph::scalars`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scalar {
    pub index: u32,
    pub dtype: DType,
}

/// The value that a persistent tensor has at the start of the step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Read {
    pub slot: SlotId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// In [0, 1), 24 random bits (53 for f64).
    Uniform,
    /// Mean 0, standard deviation 1 (Box–Muller).
    Normal,
    /// Random whole numbers, all values of the type alike.
    Bits,
}

/// Random numbers from a counter-based generator (Philox 4×32-10: Salmon et al., SC 2011), keyed by
/// the session's seed, `key` (a hash of the path of calls, with ordinals and iterations), the
/// number of the step and the element's index. A recompute has its original's key, so it gets the
/// same bits. Fuses with element-wise ops.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Random {
    pub ty: Type,
    pub distribution: Distribution,
    pub key: u64,
    /// False for values that must not change from step to step (initialisation).
    pub per_step: bool,
}

/// An op that is no op of the language: a host's own, with its kernel, or one of a graph from
/// elsewhere, known by its memory only, which can be planned and not run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opaque {
    pub name: Arc<str>,
    pub results: Vec<Type>,
    /// Pairs (result, operand) that may share memory.
    pub overwrites: Vec<(usize, usize)>,
    pub workspace: u64,
    /// What the host registered for it. The text form does not hold it.
    pub host: Option<HostKernel>,
}

impl Opaque {
    /// An op of the host, applied to operands of these types.
    pub(crate) fn host(
        op: &Arc<HostOp>,
        gradient: Option<Arc<Graph>>,
        args: &[Type],
    ) -> Result<Opaque, OpError> {
        Ok(Opaque {
            name: op.name().into(),
            results: op.infer(args)?,
            overwrites: Vec::new(),
            workspace: 0,
            host: Some(HostKernel { op: Arc::clone(op), gradient }),
        })
    }
}

/// The parts that are the same for every op without operands: no gradient, no arithmetic.
macro_rules! leaf {
    () => {
        fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
            Ok(Gradient::Zero)
        }

        fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
            0.0
        }
    };
}

impl Operation for Input {
    fn name(&self) -> &'static str {
        "input"
    }

    fn infer(&self, graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        match graph.inputs.get(self.index as usize) {
            Some(input) => Ok(vec![input.ty.clone()]),
            None => Err(OpError::new(format!("internal: `input` {} does not exist", self.index))),
        }
    }

    fn attributes(&self) -> String {
        format!("index={}", self.index)
    }

    leaf!();
}

impl Operation for Const {
    fn name(&self) -> &'static str {
        "const"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        Ok(vec![Type::scalar(self.dtype)])
    }

    fn attributes(&self) -> String {
        format!("dtype={}, value={}", self.dtype, self.value)
    }

    leaf!();
}

impl Operation for Literal {
    fn name(&self) -> &'static str {
        "literal"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        if self.ty.bytes() != self.data.len() as u64 {
            return Err(OpError::new(format!(
                "internal: `literal` of {} needs {} bytes, got {}",
                self.ty,
                self.ty.bytes(),
                self.data.len()
            )));
        }
        Ok(vec![self.ty.clone()])
    }

    fn attributes(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("type={}, data=0x", self.ty);
        for byte in self.data.iter() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        movement::fill_bytes(call, &self.data)
    }

    leaf!();
}

impl Operation for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        let Some(&size) = self.ty.shape().get(self.axis) else {
            return Err(OpError::new(format!(
                "`iota` along axis {} of {}: no such axis",
                self.axis, self.ty
            )));
        };
        let largest = match self.ty.dtype() {
            DType::Bool => 1,
            DType::U8 => u8::MAX as u64,
            DType::I32 => i32::MAX as u64,
            _ => i64::MAX as u64,
        };
        if size > 0 && (size - 1) as u64 > largest {
            return Err(OpError::new(format!(
                "`iota` of {} counts beyond the largest {}",
                self.ty,
                self.ty.dtype()
            )));
        }
        Ok(vec![self.ty.clone()])
    }

    fn attributes(&self) -> String {
        format!("type={}, axis={}", self.ty, self.axis)
    }

    leaf!();
}

impl Operation for Scalar {
    fn name(&self) -> &'static str {
        "scalar"
    }

    fn infer(&self, graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        if self.index as usize >= graph.scalars.len() {
            return Err(OpError::new(format!("internal: `scalar` {} does not exist", self.index)));
        }
        Ok(vec![Type::scalar(self.dtype)])
    }

    fn attributes(&self) -> String {
        format!("index={}, dtype={}", self.index, self.dtype)
    }

    leaf!();
}

impl Operation for Read {
    fn name(&self) -> &'static str {
        "read"
    }

    fn infer(&self, graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        match graph.slots.get(self.slot.0 as usize) {
            Some(slot) => Ok(vec![slot.ty.clone()]),
            None => {
                Err(OpError::new(format!("internal: `read` of slot {} that does not exist", self.slot.0)))
            }
        }
    }

    fn attributes(&self) -> String {
        format!("slot={}", self.slot.0)
    }

    leaf!();
}

impl Distribution {
    /// As in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Normal => "normal",
            Distribution::Bits => "bits",
        }
    }
}

impl Operation for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [] = expect_args(self.name(), args)?;
        let bits = self.distribution == Distribution::Bits;
        if self.ty.dtype().is_float() == bits {
            return Err(OpError::new(format!(
                "`random` makes {} values as {}, got {}",
                self.distribution.name(),
                if bits { "whole numbers" } else { "floating-point numbers" },
                self.ty
            )));
        }
        Ok(vec![self.ty.clone()])
    }

    fn attributes(&self) -> String {
        format!(
            "type={}, distribution={}, key=0x{:016x}, per_step={}",
            self.ty,
            self.distribution.name(),
            self.key,
            self.per_step
        )
    }

    leaf!();
}

impl Operation for Opaque {
    fn name(&self) -> &'static str {
        "opaque"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        for &(result, operand) in &self.overwrites {
            if result >= self.results.len() || operand >= args.len() {
                return Err(OpError::new(format!(
                    "`opaque` {:?} has {} operands and {} results, so result {result} cannot overwrite operand {operand}",
                    self.name,
                    args.len(),
                    self.results.len()
                )));
            }
        }
        Ok(self.results.clone())
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        host::grad(self, graph, at)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        host::run(self, call)
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: self.overwrites.clone(), ..Memory::FRESH }
    }

    fn workspace(&self, _args: &[&Type], _results: &[&Type]) -> u64 {
        self.workspace
    }

    fn attributes(&self) -> String {
        let results: Vec<String> = self.results.iter().map(Type::to_string).collect();
        format!(
            "name={:?}, results=[{}], overwrites={:?}, workspace={}",
            self.name,
            results.join(", "),
            self.overwrites,
            self.workspace
        )
    }
}
