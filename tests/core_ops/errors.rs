//! Messages name the op and every shape; sizes that do not fit are errors, not overflows.

use tg::{
    ir::{DType, Graph, Input, Slot, SlotId, SlotKind, Type},
    ops::*,
};

use crate::cases::harness::ty;

/// The message of an op applied to inputs of these types.
fn message(op: impl Into<Op>, types: &[Type]) -> String {
    let mut graph = Graph::new();
    let mut args = Vec::new();
    for (index, ty) in types.iter().enumerate() {
        graph.inputs.push(Input { name: "x".into(), ty: ty.clone() });
        args.push(graph.value(ops::input(index), &[]).expect("an input"));
    }
    match graph.push(op, &args) {
        Ok(_) => panic!("the op was accepted"),
        Err(error) => error.message,
    }
}

mod ops {
    pub fn input(index: usize) -> tg::ops::Input {
        tg::ops::Input { index: index as u32 }
    }
}

#[test]
fn messages_name_op_and_shapes() {
    let f = |shape: &[usize]| ty(DType::F32, shape);
    assert_eq!(
        message(MatMul, &[f(&[2, 3]), f(&[4, 5])]),
        "`matmul` of f32[2, 3] and f32[4, 5]: the last axis of the first has 3 elements, the second to last of the second 4"
    );
    assert_eq!(
        message(MatMul, &[f(&[2, 2, 3]), f(&[3, 3, 5])]),
        "`matmul` of f32[2, 2, 3] and f32[3, 3, 5]: the leading axes differ"
    );
    assert_eq!(message(Binary::Add, &[f(&[2]), f(&[3])]), "`add` of f32[2] and f32[3]: the types differ");
    assert_eq!(
        message(Reduce { kind: ReduceKind::Sum, axes: [2].into() }, &[f(&[2, 3])]),
        "`sum` of f32[2, 3] over the axes [2]: each must be below 2 and named once"
    );
    assert_eq!(
        message(Reshape { shape: [7].into() }, &[f(&[2, 3])]),
        "`reshape` of f32[2, 3] to [7]: 6 elements do not fit 7"
    );
    assert_eq!(
        message(Broadcast { shape: [3].into() }, &[f(&[0])]),
        "`broadcast` of f32[0] to [3]: the shapes do not fit"
    );
    assert_eq!(
        message(Concat { axis: 0 }, &[f(&[2, 3]), f(&[2, 4])]),
        "`concat` of f32[2, 3] and f32[2, 4] along axis 0: only this axis may differ"
    );
    assert_eq!(message(Unary::Exp, &[ty(DType::I32, &[2])]), "`exp` needs floating-point values, got i32[2]");
    assert_eq!(
        message(Binary::Div, &[ty(DType::I32, &[2]), ty(DType::I32, &[2])]),
        "`div` needs floating-point values, got i32[2]"
    );
    assert_eq!(
        message(Transpose { axes: [0, 0].into() }, &[f(&[2, 3])]),
        "`transpose` of f32[2, 3] by [0, 0]: the axes must be 0 to 1, each once"
    );
    let range = SliceRange { start: 1, step: 1, size: 2 };
    assert_eq!(
        message(Slice { ranges: [range].into() }, &[f(&[2])]),
        "`slice` of f32[2] by (start, step, size) [(1, 1, 2)] goes out of bounds"
    );
    assert_eq!(
        message(ArgReduce { largest: true, axis: 0 }, &[f(&[0, 2])]),
        "`argmax` of f32[0, 2] along axis 0: the axis has no elements"
    );
    assert_eq!(
        message(CollectiveStart { kind: CollectiveKind::ReduceScatter, world: 4 }, &[f(&[6, 2])]),
        "`reduce_scatter` of f32[6, 2]: axis 0 does not divide into 4 equal parts"
    );
}

#[test]
fn a_slot_takes_its_own_type_only() {
    let mut graph = Graph::new();
    let ty_ = ty(DType::F32, &[2]);
    graph.slots.push(Slot { name: "net.w".into(), ty: ty_, kind: SlotKind::State });
    let x = graph.constant(DType::F32, 1.0).unwrap();
    let error = graph.push(Write { slot: SlotId(0) }, &[x]).unwrap_err();
    assert_eq!(error.message, "`net.w` holds f32[2], so f32 cannot be written to it");
    assert!(graph.push(Read { slot: SlotId(1) }, &[]).is_err());
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    assert!(Type::new(DType::F32, [1usize << 32, 1 << 32]).is_err());
    assert!(Type::new(DType::U8, [0, (1usize << 63) - 1, 2]).is_err());
    assert!(Type::new(DType::F64, vec![2; 200]).is_err());
    let mut graph = Graph::new();
    let one = graph.constant(DType::F32, 1.0).unwrap();
    assert!(graph.broadcast(one, &[1 << 32, 1 << 32]).is_err());
    let large = graph.broadcast(one, &[1 << 40]).unwrap();
    assert!(graph.value(Concat { axis: 0 }, &vec![large; 1 << 20]).is_err());
    let column = graph.reshape(large, &[1 << 40, 1]).unwrap();
    let row = graph.reshape(large, &[1, 1 << 40]).unwrap();
    assert!(graph.matmul(column, row).is_err());
    assert!(
        graph.value(CollectiveStart { kind: CollectiveKind::AllGather, world: u32::MAX }, &[large]).is_err()
    );
    let range = SliceRange { start: usize::MAX, step: usize::MAX, size: usize::MAX };
    assert!(graph.value(Slice { ranges: [range].into() }, &[large]).is_err());
    assert!(
        graph
            .value(
                Pad {
                    shape: [1 << 62].into(),
                    ranges: [SliceRange { start: 0, step: 1 << 40, size: 1 << 40 }].into()
                },
                &[large]
            )
            .is_err()
    );
    assert!(graph.value(Iota { ty: ty(DType::U8, &[300]), axis: 0 }, &[]).is_err());
}

#[test]
fn attributes_tell_ops_apart() {
    let slices = [SliceRange { start: 1, step: 2, size: 3 }];
    let texts = [
        Op::from(Const { dtype: DType::F32, value: Number::float(1.0) }).attributes(),
        Op::from(Const { dtype: DType::F32, value: Number::float(f64::NEG_INFINITY) }).attributes(),
        Op::from(Slice { ranges: slices.into() }).attributes(),
        Op::from(Random {
            ty: ty(DType::F32, &[2]),
            distribution: Distribution::Normal,
            key: 255,
            per_step: false,
        })
        .attributes(),
        Op::from(Literal { ty: ty(DType::U8, &[2]), data: [1, 255].into() }).attributes(),
    ];
    assert_eq!(
        texts,
        [
            "dtype=f32, value=1.0",
            "dtype=f32, value=-inf",
            "ranges=[(1, 2, 3)]",
            "type=f32[2], distribution=normal, key=0x00000000000000ff, per_step=false",
            "type=u8[2], data=0x01ff",
        ]
    );
}
