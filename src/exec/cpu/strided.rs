//! Index arithmetic that the kernels share: merging axes, walking over them.

/// Axes of several operands walked together, outermost first: sizes, and one stride per operand in
/// elements. Axes of size 1 are gone, and neighbours that every operand walks without a gap are
/// one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walk<const N: usize> {
    pub axes: Vec<Axis<N>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Axis<const N: usize> {
    pub size: usize,
    pub strides: [usize; N],
}

impl<const N: usize> Walk<N> {
    pub fn new(axes: impl IntoIterator<Item = Axis<N>>) -> Self {
        let mut merged: Vec<Axis<N>> = Vec::new();
        for axis in axes.into_iter().filter(|axis| axis.size != 1) {
            match merged.last_mut() {
                Some(outer)
                    if outer
                        .strides
                        .iter()
                        .zip(&axis.strides)
                        .all(|(&o, &i)| i.checked_mul(axis.size) == Some(o)) =>
                {
                    outer.size *= axis.size;
                    outer.strides = axis.strides;
                }
                _ => merged.push(axis),
            }
        }
        Walk { axes: merged }
    }

    /// The number of index tuples.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Where the index tuple with this row-major number lies in each operand.
    pub fn offsets(&self, mut index: usize) -> [usize; N] {
        let mut offsets = [0; N];
        for axis in self.axes.iter().rev() {
            let at = index % axis.size;
            index /= axis.size;
            for (offset, stride) in offsets.iter_mut().zip(&axis.strides) {
                *offset += at * stride;
            }
        }
        offsets
    }
}

/// Sizes and strides of one operand as a walk's axes.
pub(crate) fn axes<'a>(shape: &'a [usize], strides: &'a [usize]) -> impl Iterator<Item = Axis<1>> + 'a {
    shape.iter().zip(strides).map(|(&size, &stride)| Axis { size, strides: [stride] })
}
