//! Views that may be copied out of what they view.
//!
//! A slice keeps all of its base alive. Here every slice that is smaller than its base is noted with
//! the layout that a copy of it would have, and every value behind it with its layout in that copy.
//! Whether it is copied is decided with the order of the step.

use rustc_hash::FxHashMap;

use super::{fuse::is_elementwise, layout::Placed};
use crate::{
    ir::{Graph, Node, NodeId, Type, ValueId},
    ops::{Alias, Layout, Op, OpError},
    plan::{ALIGNMENT, Access, Elementwise, Instr, Kernel},
    schedule::BufferId,
};

/// A slice that may be copied.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// The slice, or the first of several equal ones.
    pub value: ValueId,
    pub base: ValueId,
    /// The last barrier between the two.
    pub gate: Option<NodeId>,
    pub ty: Type,
    /// In the base.
    pub layout: Layout,
    /// Every reader can do with a copy, to the bit.
    pub is_copyable: bool,
}

/// The slice that a value lies in, and its layout in a copy of that.
#[derive(Debug, Clone)]
pub(super) struct InView {
    pub view: u32,
    pub layout: Layout,
}

/// Equal slices of one base, behind the same barrier, are one view.
type Key = (ValueId, Option<NodeId>, Layout, Box<[usize]>);

#[derive(Default)]
pub(super) struct Views {
    pub list: Vec<View>,
    known: FxHashMap<Key, u32>,
}

impl Views {
    /// The view in which the result of a view op lies. `layout` is its layout in the base.
    pub fn of(&mut self, graph: &Graph, node: &Node<'_>, from: &Placed, layout: &Layout) -> Option<InView> {
        let operand = node.arg_types().next()?;
        let ty = graph.ty(node.result(0));
        if matches!(node.op(), Op::Slice(_))
            && ty.elements() < operand.elements()
            && saves(graph, from.base, ty)
            && let Some(compact) = compact(ty.shape(), &layout.strides)
        {
            let key = (from.base, from.gate, layout.clone(), ty.shape().into());
            let next = self.list.len() as u32;
            let view = *self.known.entry(key).or_insert(next);
            if view == next {
                self.list.push(View {
                    value: node.result(0),
                    base: from.base,
                    gate: from.gate,
                    ty: ty.clone(),
                    layout: layout.clone(),
                    is_copyable: true,
                });
            }
            return Some(InView { view, layout: compact });
        }
        let around = from.view.as_ref()?;
        let layout = node.op().view(&around.layout, operand, ty);
        if layout.is_none() {
            self.keep(around.view);
        }
        layout.map(|layout| InView { view: around.view, layout })
    }

    /// Notes that a node reads an operand. The bits of some ops depend on the strides of their
    /// operands: on which are 1, where two axes change places, and which are 0.
    pub fn read(&mut self, op: &Op, operand: &Placed) {
        let Some(within) = &operand.view else { return };
        let class = |layout: &Layout| layout.strides.iter().map(|&s| s.min(2)).collect::<Vec<_>>();
        if depends_on_strides(op) && class(&operand.layout) != class(&within.layout) {
            self.keep(within.view);
        }
    }

    /// The view stays a view.
    fn keep(&mut self, view: u32) {
        if let Some(view) = self.list.get_mut(view as usize) {
            view.is_copyable = false;
        }
    }
}

/// Whether a copy of type `ty` is smaller than the arena's buffer of `base`. Persistent tensors take
/// no room there, and constants are stored only for those who ask.
fn saves(graph: &Graph, base: ValueId, ty: &Type) -> bool {
    let is_elsewhere = matches!(graph.producer(base).0.op(), Op::Read(_) | Op::Const(_) | Op::Scalar(_));
    let room = |ty: &Type| ty.bytes().next_multiple_of(ALIGNMENT);
    !is_elsewhere && room(ty) < room(graph.ty(base))
}

fn depends_on_strides(op: &Op) -> bool {
    let is_free = matches!(op, Op::Reduce(_) | Op::ArgReduce(_) | Op::Concat(_) | Op::Pad(_) | Op::Insert(_));
    !is_free && !is_elementwise(op) && op.memory().alias == Alias::Fresh
}

/// The layout of a copy without gaps, with the axes in the same order in memory. `None` where
/// elements repeat.
fn compact(shape: &[usize], strides: &[usize]) -> Option<Layout> {
    let mut compact: Box<[usize]> = strides.into();
    let mut next = 1usize;
    for axis in axes(shape, strides).into_iter().rev() {
        if strides.get(axis) == Some(&0) {
            return None;
        }
        *compact.get_mut(axis)? = next;
        next = next.checked_mul(*shape.get(axis)?)?;
    }
    (!shape.contains(&0)).then_some(Layout { offset: 0, strides: compact })
}

/// The axes with more than one element, outermost in memory first.
fn axes(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..shape.len()).filter(|&k| shape[k] > 1).collect();
    axes.sort_by_key(|&k| std::cmp::Reverse(strides[k]));
    axes
}

/// The kernel that copies a view out of `base` into `copy`.
pub(super) fn copy_kernel(view: &View, base: BufferId, copy: BufferId) -> Result<Kernel, OpError> {
    let axes = axes(view.ty.shape(), &view.layout.strides);
    let shape: Box<[usize]> = axes.iter().map(|&k| view.ty.shape()[k]).collect();
    let ty = view.ty.with_shape(shape.clone())?;
    let strides = axes.iter().map(|&k| view.layout.strides[k]).collect();
    let from =
        Access { buffer: base, ty: ty.clone(), layout: Layout { offset: view.layout.offset, strides } };
    let to = Access { buffer: copy, layout: Layout::dense(&shape), ty };
    Ok(Kernel::Elementwise(Elementwise {
        shape,
        instrs: vec![Instr::Load(0)],
        dtypes: vec![view.ty.dtype()],
        inputs: vec![from],
        outputs: vec![(0, to)],
    }))
}
