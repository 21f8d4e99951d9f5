//! Work with addresses put in, ready to be added to a stream.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::{
    result,
    sys::{CUdeviceptr, CUstream},
};

use super::{
    context::Context,
    error::While,
    kernels::merged::TABLE_WORDS,
    memory::Event,
    module::Function,
    nccl::{Collective, Group},
    product::{Operands, Prepared},
    staging::Words,
    work::{Address, Arg, Work},
};
use crate::{ops::OpError, schedule::OpId};

/// Where the parts of a step's memory are.
pub(super) trait Memory {
    /// The address of bytes as `op` sees them.
    fn address(&self, op: OpId, at: Address) -> Result<CUdeviceptr, OpError>;
    /// The scalar page and the words for faults.
    fn words(&self) -> Words;
    /// A constant of the plan, in pinned memory.
    fn constant(&self, bytes: &Arc<[u8]>) -> Result<*const u8, OpError>;
}

/// Work that can be added to a stream any number of times.
pub(super) enum Bound {
    Launch {
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        params: Params,
    },
    Product(Box<Prepared>),
    Copy {
        from: CUdeviceptr,
        to: CUdeviceptr,
        bytes: usize,
    },
    Zero {
        at: CUdeviceptr,
        bytes: usize,
    },
    Upload {
        /// In pinned memory.
        from: *const u8,
        bytes: usize,
        to: CUdeviceptr,
    },
    /// A collective starts, beside what comes next; `collectives` binds it.
    Start {
        group: Arc<Group>,
        collective: Collective,
        /// Its operand is there.
        ready: Arc<Event>,
        done: Arc<Event>,
    },
    /// What comes next needs a collective to be over.
    Join(Arc<Event>),
}

/// The arguments of a kernel.
pub(super) struct Params {
    words: Vec<u64>,
    /// Where each argument begins: it is the first bytes of what follows.
    starts: Vec<usize>,
}

impl Params {
    fn new(op: OpId, args: &[Arg], memory: &dyn Memory) -> Result<Params, OpError> {
        let mut params = Params { words: Vec::new(), starts: Vec::new() };
        for arg in args {
            params.starts.push(params.words.len());
            let Arg::Table(entries) = arg else {
                params.words.push(word(op, arg, memory)?);
                continue;
            };
            let end = params.words.len() + TABLE_WORDS;
            for entry in &**entries {
                params.words.push(word(op, entry, memory)?);
            }
            if params.words.len() > end {
                return Err(OpError::new("internal: too many arguments for one kernel"));
            }
            params.words.resize(end, 0);
        }
        Ok(params)
    }

    /// As the driver takes them.
    fn pointers(&self) -> Vec<*mut c_void> {
        let starts = self.starts.iter().filter_map(|&start| self.words.get(start));
        starts.map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect()
    }
}

// SAFETY: addresses, events, and descriptors that one thread uses at a time.
unsafe impl Send for Bound {}

/// The launches of works, as the modules want them: source and name.
pub(super) fn launches<'a>(
    works: impl Iterator<Item = &'a Work>,
) -> impl Iterator<Item = (&'a Arc<str>, &'a str)> {
    works.filter_map(|work| match work {
        Work::Launch(launch) => Some((&launch.source, &*launch.function)),
        _ => None,
    })
}

/// Puts addresses into work; `function` is that of a launch. `None` for work on no bytes.
pub(super) fn bind(
    context: &Context,
    op: OpId,
    work: &Work,
    function: Option<Function>,
    memory: &dyn Memory,
) -> Result<Option<Bound>, OpError> {
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| OpError::new("internal: too many bytes"));
    Ok(Some(match work {
        Work::Launch(launch) => {
            if launch.grid.contains(&0) || launch.block.contains(&0) {
                return Ok(None);
            }
            let params = Params::new(op, &launch.args, memory)?;
            Bound::Launch {
                function: function.ok_or_else(|| OpError::new("internal: a launch of no kernel"))?,
                grid: launch.grid,
                block: launch.block,
                params,
            }
        }
        Work::Product(product) => {
            if product.rows == 0 || product.columns == 0 || product.batch == 0 {
                return Ok(None);
            }
            let at = |address| memory.address(op, address);
            let operands = Operands {
                a: at(product.a.at)?,
                b: at(product.b.at)?,
                c: at(product.c.at)?,
                plus: product.plus.map(at).transpose()?,
                bias: product.bias.as_ref().map(|bias| at(bias.at)).transpose()?,
                workspace: if product.workspace_bytes == 0 { 0 } else { at(product.workspace)? },
            };
            Bound::Product(Box::new(context.products.prepare(product, operands)?))
        }
        Work::Copy { bytes: 0, .. } | Work::Zero { bytes: 0, .. } => return Ok(None),
        Work::Copy { from, to, bytes } => {
            let (from, to) = (memory.address(op, *from)?, memory.address(op, *to)?);
            // A value that was planned into its place is there already.
            if from == to {
                return Ok(None);
            }
            Bound::Copy { from, to, bytes: size(*bytes)? }
        }
        Work::Zero { at, bytes } => Bound::Zero { at: memory.address(op, *at)?, bytes: size(*bytes)? },
        Work::Upload { bytes, .. } if bytes.is_empty() => return Ok(None),
        Work::Upload { bytes, to } => {
            let from = memory.constant(bytes)?;
            Bound::Upload { from, bytes: bytes.len(), to: memory.address(op, *to)? }
        }
        Work::Host => return Err(OpError::new("internal: work of the host on the device")),
    }))
}

fn word(op: OpId, arg: &Arg, memory: &dyn Memory) -> Result<u64, OpError> {
    Ok(match *arg {
        Arg::Address(at) => memory.address(op, at)?,
        Arg::Page => memory.words().page,
        Arg::Fault => memory.words().faults,
        Arg::I64(value) => u64::from_ne_bytes(value.to_ne_bytes()),
        Arg::F64(value) => u64::from_ne_bytes(value.to_ne_bytes()),
        Arg::Table(_) => return Err(OpError::new("internal: a table in a table")),
    })
}

impl Bound {
    /// Adds the work to a stream, whose context is current.
    pub fn enqueue(&self, context: &Context, stream: CUstream) -> Result<(), OpError> {
        // SAFETY (all below): the addresses are those of a plan whose places were checked, in memory that
        // is alive until the stream was waited for; modules are never unloaded.
        match self {
            Bound::Launch { function, grid, block, params } => {
                let mut pointers = params.pointers();
                let ([x, y, z], [bx, by, bz]) = (*grid, *block);
                // No kernel asks for shared memory beyond what it declares.
                unsafe {
                    result::launch_kernel(function.0, (x, y, z), (bx, by, bz), 0, stream, &mut pointers)
                }
                .during("starting a kernel")
            }
            Bound::Product(product) => context.products.enqueue(product, stream),
            Bound::Copy { from, to, bytes } => {
                unsafe { result::memcpy_dtod_async(*to, *from, *bytes, stream) }.during("copying a tensor")
            }
            Bound::Zero { at, bytes } => {
                unsafe { result::memset_d8_async(*at, 0, *bytes, stream) }.during("clearing a tensor")
            }
            Bound::Upload { from, bytes, to } => {
                let bytes = unsafe { std::slice::from_raw_parts(*from, *bytes) };
                unsafe { result::memcpy_htod_async(*to, bytes, stream) }.during("uploading a constant")
            }
            Bound::Start { group, collective, ready, done } => group.enqueue(collective, stream, ready, done),
            Bound::Join(done) => done.hold(stream),
        }
    }
}
