//! Sources and launches.

use std::{fmt::Write, sync::Arc};

use super::{Arg, Launch, OpError, Work, internal};
use crate::{
    exec::cpu::strided::{Axis, Walk},
    ir::DType,
};

/// Threads of a block, where nothing asks for another number.
pub(super) const THREADS: u32 = 256;

/// A kernel that is to be launched: its text and how many blocks of threads.
pub(super) struct Kernel {
    source: Arc<str>,
    function: &'static str,
    args: Vec<Arg>,
}

impl Kernel {
    pub fn new(source: impl Into<Arc<str>>, function: &'static str) -> Kernel {
        Kernel { source: source.into(), function, args: Vec::new() }
    }

    pub fn arg(mut self, arg: impl Into<Arg>) -> Kernel {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<Arg>>(mut self, args: impl IntoIterator<Item = A>) -> Kernel {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A size or number: `i64` in the kernel.
    pub fn size(self, size: usize) -> Kernel {
        self.arg(Arg::I64(size as i64))
    }

    pub fn sizes(self, sizes: impl IntoIterator<Item = usize>) -> Kernel {
        self.args(sizes.into_iter().map(|size| Arg::I64(size as i64)))
    }

    /// As many blocks of `threads` threads as have one for each of `count` pieces of work.
    pub fn for_each(self, count: usize, threads: u32) -> Result<Work, OpError> {
        self.blocks(count.div_ceil(threads as usize), 1, 1, threads)
    }

    /// The launch. The second and third dimension of a grid end at 65,535 blocks.
    pub fn blocks(self, x: usize, y: usize, z: usize, threads: u32) -> Result<Work, OpError> {
        let limit = |count: usize, limit: usize| {
            u32::try_from(count)
                .ok()
                .filter(|_| count <= limit)
                .ok_or_else(|| internal("a launch of too many blocks"))
        };
        Ok(Work::Launch(Launch {
            source: self.source,
            function: self.function.into(),
            grid: [limit(x, i32::MAX as usize)?, limit(y, 65_535)?, limit(z, 65_535)?],
            block: [threads, 1, 1],
            args: self.args,
        }))
    }
}

/// The name of an element type in kernels.
pub(super) fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I32 => "int",
        DType::I64 => "i64",
        DType::U8 => "u8",
        DType::Bool => "boolean",
    }
}

/// The unsigned type with elements of this size: for kernels that only move them.
pub(super) fn bits(size: usize) -> &'static str {
    match size {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// The type of indices for this many elements: 32 bits where they suffice, as they divide faster.
pub(super) fn index_type(elements: usize) -> &'static str {
    // Room for the rounding up to whole blocks.
    if elements < 1 << 31 { "u32" } else { "u64" }
}

/// A text with definitions before it.
pub(super) fn with_types(definitions: &[(&str, &str)], text: &str) -> String {
    let mut source = String::with_capacity(text.len() + 64);
    for (name, ty) in definitions {
        // Writing to a string cannot fail.
        let _ = writeln!(source, "typedef {ty} {name};");
    }
    source + text
}

/// A function `name(I index)` that gives where the element with this row-major number lies, from the
/// address of the first, for these axes.
pub(super) fn locate(name: &str, sizes: &[usize], strides: &[usize]) -> String {
    let axes = sizes.iter().zip(strides).map(|(&size, &stride)| Axis { size, strides: [stride] });
    let walk = Walk::new(axes);
    let mut body = String::new();
    match walk.axes.as_slice() {
        [] => body.push_str("(void)index; return 0;"),
        [Axis { strides: [1], .. }] => body.push_str("return index;"),
        [Axis { strides: [stride], .. }] => {
            let _ = write!(body, "return index * (I){stride};");
        }
        axes => {
            body.push_str("I at = 0;");
            for (k, axis) in axes.iter().enumerate().rev() {
                let [stride] = axis.strides;
                let _ = if k == 0 {
                    write!(body, " at += index * (I){stride};")
                } else {
                    write!(
                        body,
                        " at += index % (I){size} * (I){stride}; index /= (I){size};",
                        size = axis.size
                    )
                };
            }
            body.push_str(" return at;");
        }
    }
    format!("__device__ inline I {name}(I index) {{ {body} }}\n")
}
