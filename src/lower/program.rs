//! Programs of fused groups.

use rustc_hash::FxHashMap;

use super::{
    fuse::{GroupId, is_elementwise},
    layout::Laid,
};
use crate::{
    ir::{DType, Graph, NodeId, ValueId},
    ops::{Op, OpError},
    plan::{Access, Elementwise, Instr, Reg},
};

/// The program of a group that stores the values in `stored`.
pub(super) fn program(
    laid: &Laid,
    groups: &[Option<GroupId>],
    members: &[NodeId],
    stored: &[ValueId],
    access: &mut dyn FnMut(ValueId) -> Result<Access, OpError>,
) -> Result<Elementwise, OpError> {
    let graph = &laid.graph;
    let first = members.first().ok_or_else(|| OpError::new("internal: an empty fused group"))?;
    let mut build = Build {
        laid,
        group: groups.get(first.0 as usize).copied().flatten(),
        groups,
        program: Elementwise {
            shape: graph.ty(graph.node(*first).result(0)).shape().into(),
            instrs: Vec::new(),
            dtypes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        },
        registers: FxHashMap::default(),
        access,
    };
    for &member in members {
        build.node(member)?;
    }
    for &value in stored {
        let reg = build.registers.get(&value).copied();
        let reg = reg.ok_or_else(|| OpError::new("internal: a fused group does not make what it stores"))?;
        let target = (build.access)(value)?;
        build.program.outputs.push((reg, target));
    }
    Ok(build.program)
}

/// The program that stores a constant or a scalar.
pub(super) fn store(graph: &Graph, value: ValueId, target: Access) -> Result<Elementwise, OpError> {
    let (producer, _) = graph.producer(value);
    let instr = immediate(producer.op()).ok_or_else(|| OpError::new("internal: not a constant"))?;
    let ty = graph.ty(value);
    Ok(Elementwise {
        shape: ty.shape().into(),
        instrs: vec![instr],
        dtypes: vec![ty.dtype()],
        inputs: Vec::new(),
        outputs: vec![(0, target)],
    })
}

struct Build<'a> {
    laid: &'a Laid,
    group: Option<GroupId>,
    groups: &'a [Option<GroupId>],
    program: Elementwise,
    registers: FxHashMap<ValueId, Reg>,
    access: &'a mut dyn FnMut(ValueId) -> Result<Access, OpError>,
}

impl Build<'_> {
    fn node(&mut self, id: NodeId) -> Result<(), OpError> {
        let node = self.laid.graph.node(id);
        let args = node.args().iter().map(|&a| self.operand(a)).collect::<Result<Vec<Reg>, _>>()?;
        let result = node.result(0);
        let ty = self.laid.graph.ty(result);
        let instr = match (node.op(), args.as_slice()) {
            (Op::Unary(op), &[x]) => Instr::Unary(*op, x),
            (Op::Binary(op), &[a, b]) => Instr::Binary(*op, a, b),
            (Op::Select(_), &[c, a, b]) => Instr::Select(c, a, b),
            (Op::Cast(_), &[x]) => Instr::Cast(x),
            (Op::Copy(_), &[x]) => {
                self.registers.insert(result, x);
                return Ok(());
            }
            (Op::Iota(iota), &[]) => Instr::Iota { axis: iota.axis as u32, start: 0, step: 1 },
            (Op::Random(random), &[]) => Instr::Random {
                distribution: random.distribution,
                key: random.key,
                per_step: random.per_step,
            },
            (op, _) => return Err(OpError::new(format!("internal: `{}` is not element-wise", op.name()))),
        };
        let reg = self.push(instr, ty.dtype());
        self.registers.insert(result, reg);
        Ok(())
    }

    /// The register that holds an operand.
    fn operand(&mut self, value: ValueId) -> Result<Reg, OpError> {
        if let Some(&reg) = self.registers.get(&value) {
            return Ok(reg);
        }
        let graph = &self.laid.graph;
        let place = self.laid.places.get(value.0 as usize);
        let base = place.map_or(value, |p| p.base);
        let (producer, _) = graph.producer(base);
        let dtype = graph.ty(value).dtype();
        let instr = match immediate(producer.op()) {
            Some(instr) => instr,
            None => {
                debug_assert!(
                    base != value
                        || !is_elementwise(producer.op())
                        || self.groups.get(producer.id.0 as usize).copied().flatten() != self.group
                );
                self.program.inputs.push((self.access)(value)?);
                Instr::Load(self.program.inputs.len() as u32 - 1)
            }
        };
        let reg = self.push(instr, dtype);
        self.registers.insert(value, reg);
        Ok(reg)
    }

    fn push(&mut self, instr: Instr, dtype: DType) -> Reg {
        self.program.instrs.push(instr);
        self.program.dtypes.push(dtype);
        self.program.instrs.len() as Reg - 1
    }
}

/// What a program reads without memory.
fn immediate(op: &Op) -> Option<Instr> {
    match op {
        Op::Const(constant) => Some(Instr::Const(constant.value)),
        Op::Scalar(scalar) => Some(Instr::Scalar(scalar.index)),
        _ => None,
    }
}
