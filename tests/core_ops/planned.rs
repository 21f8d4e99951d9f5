//! Plans against the reference interpreter, and what an executable promises.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use tg::{
    exec::{Tensor, cpu::ScalarPage},
    grad::gradients,
    ir::{DType, Graph, Input, Origins, Output, ScalarSource, Slot, SlotId, SlotKind, ValueId},
    ops::{self, *},
};

use super::harness::*;
use crate::device::{Arena, agrees, eval, reference};

/// A chain of many ops on operands of every kind of layout.
fn chain(graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
    let [x, row, column, turned] = args else { return Err(OpError::new("four operands")) };
    let shape = graph.ty(*x).shape().to_vec();
    let row = graph.broadcast(*row, &shape)?;
    let column = graph.broadcast(*column, &shape)?;
    let turned = graph.transpose_last(*turned)?;
    let a = graph.mul(*x, row)?;
    let b = graph.add(a, column)?;
    let c = graph.unary(Unary::Gelu, b)?;
    let d = graph.sub(c, turned)?;
    let e = graph.unary(Unary::Tanh, d)?;
    let f = graph.binary(Binary::Max, e, b)?;
    let g = graph.unary(Unary::Exp, f)?;
    let half = graph.splat_like(g, 0.5)?;
    let small = graph.binary(Binary::Lt, g, half)?;
    let h = graph.select(small, d, g)?;
    Ok(vec![h, graph.mul(h, e)?])
}

#[test]
fn fused_programs_have_the_bits_of_their_ops() {
    for dtype in FLOATS {
        for (rows, columns) in [(1, 1), (3, 5), (33, 47), (7, 512), (513, 3), (300, 700)] {
            let inputs = [
                tensor(dtype, &[rows, columns], &noise(rows * columns, 1)),
                tensor(dtype, &[columns], &noise(columns, 2)),
                tensor(dtype, &[rows, 1], &noise(rows, 3)),
                tensor(dtype, &[columns, rows], &noise(rows * columns, 4)),
            ];
            run_both(&inputs, &chain);
        }
    }
}

#[test]
fn fused_programs_do_not_depend_on_threads() {
    let (rows, columns) = (300, 700);
    let inputs = [
        tensor(DType::BF16, &[rows, columns], &noise(rows * columns, 1)),
        tensor(DType::BF16, &[columns], &noise(columns, 2)),
        tensor(DType::BF16, &[rows, 1], &noise(rows, 3)),
        tensor(DType::BF16, &[columns, rows], &noise(rows * columns, 4)),
    ];
    let graph = graph(&inputs, &chain);
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run_executable(&mut executable(&graph), &mut [], &inputs).outputs)
    };
    assert!(on(1) == on(2));
}

/// Two layers, a squared loss, an update of both weights with a run-time learning rate.
pub fn training() -> (Graph, Vec<Tensor>, Vec<Tensor>) {
    let mut graph = Graph::new();
    let slots = [("w1", [20, 30]), ("w2", [30, 5])];
    let mut tensors = Vec::new();
    for (k, (name, shape)) in slots.iter().enumerate() {
        let ty = ty(DType::F32, shape);
        graph.slots.push(Slot { name: (*name).into(), ty, kind: SlotKind::Param { trainable: true } });
        tensors.push(tensor(DType::F32, shape, &noise(shape[0] * shape[1], k as u64 + 5)));
    }
    graph.inputs.push(Input { name: "x".into(), ty: ty(DType::F32, &[16, 20]) });
    graph.scalars.push(ScalarSource::Step);
    let x = graph.value(ops::Input { index: 0 }, &[]).unwrap();
    let w: Vec<ValueId> = (0..2).map(|k| graph.value(Read { slot: SlotId(k) }, &[]).unwrap()).collect();
    let h = graph.matmul(x, w[0]).unwrap();
    let h = graph.unary(Unary::Relu, h).unwrap();
    let y = graph.matmul(h, w[1]).unwrap();
    let square = graph.mul(y, y).unwrap();
    let loss = graph.reduce(ReduceKind::Mean, square, &[0, 1]).unwrap();
    let one = graph.constant(DType::F32, 1.0).unwrap();
    let grads = gradients(&mut graph, &[(loss, one)], &w).unwrap();
    for (k, (w, grad)) in w.iter().zip(grads).enumerate() {
        let rate = graph.value(Scalar { index: 0, dtype: DType::F32 }, &[]).unwrap();
        let rate = graph.broadcast(rate, &slots[k].1).unwrap();
        let step = graph.mul(rate, grad.unwrap()).unwrap();
        let new = graph.sub(*w, step).unwrap();
        graph.value(Write { slot: SlotId(k as u32) }, &[new]).unwrap();
    }
    graph.outputs.push(Output { name: "loss".into(), value: loss, origin: Origins::NOWHERE });
    (graph, tensors, vec![tensor(DType::F32, &[16, 20], &noise(320, 3))])
}

pub fn rate(rate: f64) -> ScalarPage {
    ScalarPage { values: vec![rate], seed: 0, step: 0 }
}

#[test]
fn steps_update_their_slots_and_use_the_planned_bytes() {
    let (graph, start, inputs) = training();
    let (mut plain, mut planned) = (start.clone(), start.clone());
    let mut executable = executable(&graph);
    let mut arena = Arena::new(1 << 30);
    let mut losses = Vec::new();
    for _ in 0..5 {
        let expected = reference(&graph, &mut plain, &inputs, &rate(0.1)).unwrap();
        let run =
            executable.run(&mut arena, &mut planned, &inputs, &rate(0.1), &AtomicBool::new(false)).unwrap();
        assert!(agrees(&expected[0], &run.outputs[0]));
        assert!(plain.iter().zip(&planned).all(|(a, b)| agrees(a, b)));
        assert_eq!(run.high_water_bytes, executable.plan().schedule.arena_bytes);
        losses.push(run.outputs[0].get_f64(0).unwrap());
    }
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
    // The tensors that the run started from were shared, so it wrote copies.
    let (_, untouched, _) = training();
    assert!(start == untouched && planned != start);
    assert_eq!(arena.bytes(), executable.plan().schedule.arena_bytes);
}

#[test]
fn wrong_arguments_are_errors() {
    let (graph, slots, inputs) = training();
    let mut executable = executable(&graph);
    let mut arena = Arena::new(1 << 30);
    let go = AtomicBool::new(false);
    let mut fail = |slots: &[Tensor], inputs: &[Tensor], page: &ScalarPage, arena: &mut Arena| {
        let mut slots = slots.to_vec();
        executable.run(arena, &mut slots, inputs, page, &go).unwrap_err().error.message
    };
    let wrong = [tensor(DType::F32, &[20, 16], &[0.0; 320])];
    assert_eq!(fail(&slots, &wrong, &rate(0.1), &mut arena), "`x` must be f32[16, 20], got f32[20, 16]");
    assert!(fail(&slots[..1], &inputs, &rate(0.1), &mut arena).contains("persistent tensors"));
    assert!(fail(&slots, &[], &rate(0.1), &mut arena).contains("inputs"));
    assert!(fail(&slots, &inputs, &page(), &mut arena).contains("scalars"));
}

#[test]
fn a_cancelled_run_says_so() {
    let (graph, mut slots, inputs) = training();
    let mut executable = executable(&graph);
    let cancel = AtomicBool::new(true);
    let mut arena = Arena::new(1 << 30);
    let error = executable.run(&mut arena, &mut slots, &inputs, &rate(0.1), &cancel).unwrap_err();
    assert!(error.is_cancelled());
    cancel.store(false, Ordering::Relaxed);
    assert!(executable.run(&mut arena, &mut slots, &inputs, &rate(0.1), &cancel).is_ok());
}

#[test]
fn reads_after_a_write_see_the_new_value_and_reads_of_the_step_the_old() {
    let mut graph = Graph::new();
    let s = ty(DType::F64, &[3]);
    graph.slots.push(Slot { name: "mean".into(), ty: s, kind: SlotKind::State });
    let old = graph.value(Read { slot: SlotId(0) }, &[]).unwrap();
    let one = graph.splat_like(old, 1.0).unwrap();
    let sum = graph.add(old, one).unwrap();
    let new = graph.value(Write { slot: SlotId(0) }, &[sum]).unwrap();
    let double = graph.add(new, new).unwrap();
    let both = graph.add(double, old).unwrap();
    graph.outputs.push(Output { name: "y".into(), value: both, origin: Origins::NOWHERE });
    let start = vec![tensor(DType::F64, &[3], &[1.0, 2.0, 3.0])];
    let mut slots = start.clone();
    let run = run_executable(&mut executable(&graph), &mut slots, &[]);
    assert_eq!(values(&run.outputs[0]), [5.0, 8.0, 11.0]);
    assert_eq!(values(&slots[0]), [2.0, 3.0, 4.0]);
    let mut slots = start;
    assert_eq!(reference(&graph, &mut slots, &[], &page()).unwrap(), run.outputs);
    assert_eq!(values(&slots[0]), [2.0, 3.0, 4.0]);
}

#[test]
fn scalars_are_read_from_the_page() {
    let mut graph = Graph::new();
    graph.scalars.push(ScalarSource::Rank);
    graph.scalars.push(ScalarSource::Step);
    for dtype in DType::ALL {
        let value = graph.value(Scalar { index: 1, dtype }, &[]).unwrap();
        graph.outputs.push(Output { name: "y".into(), value, origin: Origins::NOWHERE });
    }
    let page = ScalarPage { values: vec![0.0, 2.5], seed: 0, step: 0 };
    let plain = reference(&graph, &mut [], &[], &page).unwrap();
    let go = AtomicBool::new(false);
    let planned = executable(&graph).run(&mut Arena::new(1 << 20), &mut [], &[], &page, &go).unwrap().outputs;
    assert!(plain == planned);
    let got: Vec<f64> = plain.iter().map(|t| t.get_f64(0).unwrap()).collect();
    assert_eq!(got, [2.5, 2.5, 2.5, 2.5, 2.0, 2.0, 1.0, 2.0]);
}

#[test]
fn collectives_of_one_rank_are_copies() {
    let x = tensor(DType::F32, &[4, 2], &noise(8, 1));
    for kind in [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
    ] {
        let y =
            run_both(std::slice::from_ref(&x), &|graph, args| Ok(vec![graph.collective(kind, 1, args[0])?]));
        assert_eq!(y[0], x);
    }
    let graph = graph(std::slice::from_ref(&x), &|graph, args| {
        Ok(vec![graph.collective(CollectiveKind::AllGather, 2, args[0])?])
    });
    assert_eq!(graph.ty(graph.outputs[0].value), &ty(DType::F32, &[8, 2]));
    let error = eval(&graph, &mut [], &[x], &page()).unwrap_err();
    assert_eq!(error.error.message, "the step is compiled for 2 ranks, and runs in a group of 1");
}

#[test]
fn empty_tensors_need_no_memory() {
    let inputs = [tensor(DType::F32, &[0, 3], &[]), tensor(DType::F32, &[0, 3], &[])];
    let graph = graph(&inputs, &|graph, args| {
        let sum = graph.add(args[0], args[1])?;
        let exp = graph.unary(Unary::Exp, sum)?;
        let t = graph.transpose_last(exp)?;
        Ok(vec![graph.value(Copy, &[t])?])
    });
    let run = run_executable(&mut executable(&graph), &mut [], &inputs);
    assert_eq!((run.outputs[0].shape(), run.high_water_bytes), (&[3, 0][..], 0));
}

#[test]
fn debug_values_go_to_the_printer() {
    let x = tensor(DType::F32, &[2], &[1.0, 2.0]);
    let graph = graph(std::slice::from_ref(&x), &|graph, args| {
        let double = graph.add(args[0], args[0])?;
        let shown = graph.value(Print { label: "double".into() }, &[double])?;
        Ok(vec![graph.add(shown, args[0])?])
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut executable = executable(&graph);
    let sink = Arc::clone(&seen);
    executable.set_printer(Some(Box::new(move |label, value| {
        sink.lock().unwrap().push((label.to_owned(), values(value)));
    })));
    let run = run_executable(&mut executable, &mut [], &[x]);
    assert_eq!(values(&run.outputs[0]), [3.0, 6.0]);
    assert_eq!(*seen.lock().unwrap(), [("double".to_owned(), vec![2.0, 4.0])]);
}
