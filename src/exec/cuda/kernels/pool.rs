//! Pooling: a thread for each element of the result.

use std::fmt::Write;

use super::{
    Kernel, OpError, Tensor, Work,
    call::Call,
    launch::{THREADS, element, index_type, with_types},
};
use crate::ops::PoolShape;

const TEXT: &str = include_str!("pool.cu");

/// Launches `function`. `input` and `output` are the larger and the smaller planes.
pub(super) fn works(
    call: &Call,
    function: &'static str,
    shape: PoolShape,
    input: &Tensor,
    output: &Tensor,
) -> Result<Vec<Work>, OpError> {
    let result = call.result(0)?;
    let count = result.elements();
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut text = String::new();
    let pairs = [
        ("KERNEL", shape.kernel),
        ("STRIDE", shape.stride),
        ("PADDING", shape.padding),
        ("INPUT", (input.dim(2), input.dim(3))),
        ("OUTPUT", (output.dim(2), output.dim(3))),
    ];
    for (name, (height, width)) in pairs {
        // Writing to a string cannot fail.
        let _ = write!(text, "#define {name}_H ((I){height}ull)\n#define {name}_W ((I){width}ull)\n");
    }
    // Positions in the padded axes are indices, too.
    let padded = |size: usize, padding: usize, kernel: usize, stride: usize| {
        size.saturating_add(padding).saturating_add(padding).saturating_add(kernel).saturating_add(stride)
    };
    let reach = padded(input.dim(2), shape.padding.0, shape.kernel.0, shape.stride.0)
        .max(padded(input.dim(3), shape.padding.1, shape.kernel.1, shape.stride.1))
        .max(input.elements())
        .max(output.elements());
    text.push_str(TEXT);
    let types = [("T", element(result.dtype())), ("I", index_type(reach))];
    let kernel = Kernel::new(with_types(&types, &text), function).args(&call.args).arg(result).size(count);
    Ok(vec![kernel.for_each(count, THREADS)?])
}
