//! From a fused group to steps over registers.

use super::BLOCK;
use crate::{
    ir::DType,
    ops::{Binary, Distribution, Number, OpError, Unary},
    plan::{Elementwise, Instr},
};

/// How the elements of a register are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// f32; f16 and bf16 too, rounded after every instruction.
    F32,
    F64,
    I32,
    I64,
    /// u8 and bool (0 or 1).
    U8,
}

impl Class {
    pub fn of(dtype: DType) -> Class {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Class::F32,
            DType::F64 => Class::F64,
            DType::I32 => Class::I32,
            DType::I64 => Class::I64,
            DType::U8 | DType::Bool => Class::U8,
        }
    }

    fn size(self) -> usize {
        match self {
            Class::F64 | Class::I64 => 8,
            Class::F32 | Class::I32 => 4,
            Class::U8 => 1,
        }
    }
}

/// Where the elements of a register are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// At this byte of the scratch memory.
    Scratch(usize),
    /// In input k, which is dense and of the register's own form: never copied.
    Input(usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum StepOp {
    /// Input k, walked with strides or converted.
    Load(usize),
    /// Input k, whose element is the same everywhere.
    Splat(usize),
    Const(Number),
    Scalar(usize),
    /// The index of an axis: (element / inner) mod size.
    Iota {
        inner: usize,
        size: usize,
        start: u64,
        step: u64,
    },
    Random {
        distribution: Distribution,
        key: u64,
        per_step: bool,
    },
    Unary(Unary, Class),
    Binary(Binary, Class),
    Select,
    Cast(DType),
}

/// One instruction with its registers. `dest` is none of `args`.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub op: StepOp,
    pub dtype: DType,
    pub dest: usize,
    pub args: [Place; 3],
    /// Whether the result may need rounding to f16 or bf16.
    pub rounds: bool,
}

#[derive(Debug, Clone)]
pub(super) struct InputPlan {
    pub dtype: DType,
    /// The common axes of all inputs, with this one's strides.
    pub strides: Vec<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct OutputPlan {
    pub dtype: DType,
    pub place: Place,
}

/// A compiled program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(super) elements: usize,
    /// Sizes of the merged axes, outermost first.
    pub(super) sizes: Vec<usize>,
    pub(super) inputs: Vec<InputPlan>,
    /// Run once per thread and range: registers that are the same in every block.
    pub(super) setup: Vec<Step>,
    pub(super) steps: Vec<Step>,
    pub(super) outputs: Vec<OutputPlan>,
    pub(super) scratch_bytes: usize,
    /// The scalar page must have as many entries.
    pub(super) scalars: usize,
}

fn fault(what: &str) -> OpError {
    OpError::new(format!("internal: a fused program {what}"))
}

impl Program {
    pub(crate) fn new(source: &Elementwise) -> Result<Program, OpError> {
        let elements = source
            .shape
            .iter()
            .try_fold(1usize, |n, &dim| n.checked_mul(dim))
            .ok_or_else(|| fault("is too large"))?;
        if source.instrs.len() != source.dtypes.len() {
            return Err(fault("has registers without dtypes"));
        }
        for access in source.inputs.iter().chain(source.outputs.iter().map(|(_, access)| access)) {
            if access.ty.shape() != &*source.shape || access.layout.strides.len() != source.shape.len() {
                return Err(fault("has an operand of another shape"));
            }
        }
        let (sizes, inputs) = merge_axes(source);
        let mut program = Program {
            elements,
            sizes,
            inputs,
            setup: Vec::new(),
            steps: Vec::new(),
            outputs: Vec::new(),
            scratch_bytes: 0,
            scalars: 0,
        };
        Allocation::new(source)?.run(source, &mut program)?;
        Ok(program)
    }
}

/// Merges axes that every input walks without a gap. (Outputs are dense and never in the way.)
fn merge_axes(source: &Elementwise) -> (Vec<usize>, Vec<InputPlan>) {
    let mut sizes: Vec<usize> = Vec::new();
    let mut inputs: Vec<InputPlan> = source
        .inputs
        .iter()
        .map(|access| InputPlan { dtype: access.ty.dtype(), strides: Vec::new() })
        .collect();
    for (axis, &size) in source.shape.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let stride =
            |k: usize| source.inputs.get(k).and_then(|a| a.layout.strides.get(axis)).copied().unwrap_or(0);
        let merges = !sizes.is_empty()
            && inputs
                .iter()
                .enumerate()
                .all(|(k, input)| stride(k).checked_mul(size) == input.strides.last().copied());
        if merges {
            if let Some(outer) = sizes.last_mut() {
                *outer *= size;
            }
        } else {
            sizes.push(size);
        }
        for (k, input) in inputs.iter_mut().enumerate() {
            if merges {
                input.strides.pop();
            }
            input.strides.push(stride(k));
        }
    }
    (sizes, inputs)
}

impl InputPlan {
    pub(super) fn is_splat(&self) -> bool {
        self.strides.iter().all(|&stride| stride == 0)
    }

    pub(super) fn is_dense(&self) -> bool {
        matches!(*self.strides, [1])
    }
}

/// Gives registers places in the scratch memory, and places back after their last use.
struct Allocation {
    /// Of each register: the last instruction that reads it.
    last_use: Vec<usize>,
    places: Vec<Option<Place>>,
    /// Registers that are set once, so that their place is never given to another.
    permanent: Vec<bool>,
    /// Registers that must not stay in their input: outputs are stored one after another, and an
    /// earlier one may lie over the input that a later one still is.
    moved: Vec<bool>,
    /// Free places by element size: 1, 4, 8 bytes.
    free: [Vec<usize>; 3],
    end: usize,
}

fn operands(instr: &Instr) -> ([u32; 3], usize) {
    match *instr {
        Instr::Load(_) | Instr::Const(_) | Instr::Scalar(_) | Instr::Iota { .. } | Instr::Random { .. } => {
            ([0; 3], 0)
        }
        Instr::Unary(_, x) | Instr::Cast(x) => ([x, 0, 0], 1),
        Instr::Binary(_, a, b) => ([a, b, 0], 2),
        Instr::Select(c, a, b) => ([c, a, b], 3),
    }
}

impl Allocation {
    fn new(source: &Elementwise) -> Result<Self, OpError> {
        let count = source.instrs.len();
        let mut last_use = vec![0; count];
        for (i, instr) in source.instrs.iter().enumerate() {
            let (args, used) = operands(instr);
            for &reg in args.iter().take(used) {
                let reg = reg as usize;
                if reg >= i {
                    return Err(fault("reads a register before it is set"));
                }
                if let Some(last) = last_use.get_mut(reg) {
                    *last = i;
                }
            }
        }
        let mut moved = vec![false; count];
        for (reg, _) in &source.outputs {
            *last_use.get_mut(*reg as usize).ok_or_else(|| fault("stores a missing register"))? = usize::MAX;
            if let Some(moved) = moved.get_mut(*reg as usize) {
                *moved = source.outputs.len() > 1;
            }
        }
        Ok(Allocation {
            last_use,
            places: vec![None; count],
            permanent: vec![false; count],
            moved,
            free: Default::default(),
            end: 0,
        })
    }

    fn class_index(class: Class) -> usize {
        match class.size() {
            1 => 0,
            4 => 1,
            _ => 2,
        }
    }

    fn take(&mut self, class: Class) -> usize {
        let place = self.free.get_mut(Self::class_index(class)).and_then(Vec::pop);
        place.unwrap_or_else(|| {
            let place = self.end;
            self.end += BLOCK * class.size();
            place
        })
    }

    fn run(mut self, source: &Elementwise, program: &mut Program) -> Result<(), OpError> {
        for (i, (instr, &dtype)) in source.instrs.iter().zip(&source.dtypes).enumerate() {
            let class = Class::of(dtype);
            let (regs, used) = operands(instr);
            let mut args = [Place::Scratch(0); 3];
            for (arg, &reg) in args.iter_mut().zip(&regs).take(used) {
                *arg = self
                    .places
                    .get(reg as usize)
                    .copied()
                    .flatten()
                    .ok_or_else(|| fault("lost a register"))?;
            }
            let arg_dtype = |k: usize| {
                regs.get(k).and_then(|&reg| source.dtypes.get(reg as usize)).copied().unwrap_or(dtype)
            };
            let mut once = false;
            let op = match *instr {
                Instr::Load(k) => {
                    let k = k as usize;
                    let input = program.inputs.get(k).ok_or_else(|| fault("loads a missing input"))?;
                    if input.dtype != dtype {
                        return Err(fault("loads an input of another dtype"));
                    }
                    if input.is_splat() {
                        once = true;
                        StepOp::Splat(k)
                    } else if input.is_dense()
                        && !matches!(dtype, DType::F16 | DType::BF16)
                        && self.moved.get(i) == Some(&false)
                    {
                        if let Some(place) = self.places.get_mut(i) {
                            *place = Some(Place::Input(k));
                        }
                        continue;
                    } else {
                        StepOp::Load(k)
                    }
                }
                Instr::Const(value) => {
                    once = true;
                    StepOp::Const(value)
                }
                Instr::Scalar(k) => {
                    once = true;
                    program.scalars = program.scalars.max(k as usize + 1);
                    StepOp::Scalar(k as usize)
                }
                Instr::Iota { axis, start, step } => {
                    let axis = axis as usize;
                    let size = *source.shape.get(axis).ok_or_else(|| fault("counts along a missing axis"))?;
                    let inner = source.shape.iter().skip(axis + 1).product();
                    StepOp::Iota { inner, size, start, step }
                }
                Instr::Random { distribution, key, per_step } => {
                    StepOp::Random { distribution, key, per_step }
                }
                Instr::Unary(op, _) => {
                    let expected = match op {
                        Unary::Not | Unary::IsNan => DType::Bool,
                        _ => arg_dtype(0),
                    };
                    if dtype != expected {
                        return Err(fault("has a register of a wrong dtype"));
                    }
                    StepOp::Unary(op, Class::of(arg_dtype(0)))
                }
                Instr::Binary(op, ..) => {
                    let expected = match op {
                        Binary::Eq
                        | Binary::Ne
                        | Binary::Lt
                        | Binary::Le
                        | Binary::Gt
                        | Binary::Ge
                        | Binary::And
                        | Binary::Or => DType::Bool,
                        _ => arg_dtype(0),
                    };
                    if arg_dtype(0) != arg_dtype(1) || dtype != expected {
                        return Err(fault("has a register of a wrong dtype"));
                    }
                    StepOp::Binary(op, Class::of(arg_dtype(0)))
                }
                Instr::Select(..) => {
                    if arg_dtype(0) != DType::Bool || arg_dtype(1) != dtype || arg_dtype(2) != dtype {
                        return Err(fault("has a register of a wrong dtype"));
                    }
                    StepOp::Select
                }
                Instr::Cast(_) => StepOp::Cast(arg_dtype(0)),
            };
            let half = matches!(dtype, DType::F16 | DType::BF16);
            let rounds = half && !matches!(op, StepOp::Load(_) | StepOp::Splat(_) | StepOp::Select);
            // Taken before the operands' places are given back: a loop that reads what it writes
            // would not vectorise. What is set once is never given back.
            let dest = if once {
                let place = self.end;
                self.end += BLOCK * class.size();
                place
            } else {
                self.take(class)
            };
            if let Some(place) = self.places.get_mut(i) {
                *place = Some(Place::Scratch(dest));
            }
            let step = Step { op, dtype, dest, args, rounds };
            if once {
                program.setup.push(step)
            } else {
                program.steps.push(step)
            }
            if let (true, Some(permanent)) = (once, self.permanent.get_mut(i)) {
                *permanent = true;
            }
            self.give_back(&source.dtypes, i, regs.get(..used).unwrap_or_default());
            self.give_back(&source.dtypes, i, &[i as u32]);
        }
        for (reg, access) in &source.outputs {
            let dtype = access.ty.dtype();
            if source.dtypes.get(*reg as usize) != Some(&dtype) || !access.layout.is_dense(&source.shape) {
                return Err(fault("stores a register in an output of another form"));
            }
            let place =
                self.places.get(*reg as usize).copied().flatten().ok_or_else(|| fault("lost a register"))?;
            program.outputs.push(OutputPlan { dtype, place });
        }
        program.scratch_bytes = self.end;
        Ok(())
    }

    /// Frees the places of the operands that `at` was the last to read, and its own where nothing
    /// reads it.
    fn give_back(&mut self, dtypes: &[DType], at: usize, regs: &[u32]) {
        for (k, &reg) in regs.iter().enumerate() {
            let reg = reg as usize;
            let is_last = self.last_use.get(reg).is_some_and(|&last| last <= at);
            let is_permanent = self.permanent.get(reg).copied().unwrap_or(true);
            let seen = regs.iter().take(k).any(|&other| other as usize == reg);
            if !is_last || is_permanent || seen {
                continue;
            }
            if let (Some(Some(Place::Scratch(place))), Some(&dtype)) = (self.places.get(reg), dtypes.get(reg))
                && let Some(free) = self.free.get_mut(Self::class_index(Class::of(dtype)))
            {
                free.push(*place);
            }
        }
    }
}
