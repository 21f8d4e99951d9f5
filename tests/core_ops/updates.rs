//! Updates of persistent tensors: values that move between slots, and runs that are cancelled.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tg::{
    exec::Tensor,
    ir::{DType, Graph, Input, Origins, Output, Slot, SlotId, SlotKind, ValueId},
    ops::{self, *},
};

use super::harness::*;
use crate::device::{Arena, agrees, eval, reference};

fn slots(graph: &mut Graph, count: u32, dtype: DType, shape: &[usize]) -> (Vec<ValueId>, Vec<Tensor>) {
    let elements: usize = shape.iter().product();
    let mut values = Vec::new();
    let mut tensors = Vec::new();
    for k in 0..count {
        graph.slots.push(Slot {
            name: format!("s{k}").into(),
            ty: ty(dtype, shape),
            kind: SlotKind::Param { trainable: true },
        });
        values.push(graph.value(Read { slot: SlotId(k) }, &[]).unwrap());
        // Large enough that whole numbers differ too.
        let numbers: Vec<f64> = noise(elements, u64::from(k) + 1).iter().map(|x| x * 1000.0).collect();
        tensors.push(tensor(dtype, shape, &numbers));
    }
    (values, tensors)
}

fn write(graph: &mut Graph, slot: u32, value: ValueId) -> ValueId {
    graph.value(Write { slot: SlotId(slot) }, &[value]).unwrap()
}

/// Four steps, planned and node by node.
fn compare(graph: &Graph, start: &[Tensor], inputs: &[Tensor], what: &str) {
    let (mut plain, mut planned) = (start.to_vec(), start.to_vec());
    let mut executable = executable(graph);
    for step in 0..4 {
        let expected = reference(graph, &mut plain, inputs, &page()).unwrap();
        let run = run_executable(&mut executable, &mut planned, inputs);
        for (k, (a, b)) in expected.iter().zip(&run.outputs).enumerate() {
            assert!(agrees(a, b), "{what}: output {k} of step {step}");
        }
        for (k, (a, b)) in plain.iter().zip(&planned).enumerate() {
            assert!(agrees(a, b), "{what}: slot {k} after step {step}");
        }
    }
    assert!(plain != start, "{what}: nothing was updated");
}

const SHAPES: [&[usize]; 5] = [&[], &[3], &[7, 300], &[1, 512], &[700, 300]];
const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::I32];

#[test]
fn slots_change_places() {
    for dtype in DTYPES {
        for shape in SHAPES {
            let mut graph = Graph::new();
            let (read, start) = slots(&mut graph, 3, dtype, shape);
            // let a = s0; s0 := s1; s1 := s2; s2 := a
            write(&mut graph, 0, read[1]);
            write(&mut graph, 1, read[2]);
            write(&mut graph, 2, read[0]);
            compare(&graph, &start, &[], &format!("{dtype} {shape:?}"));
        }
    }
}

#[test]
fn a_slot_keeps_the_old_value_of_another() {
    for dtype in DTYPES {
        for shape in SHAPES {
            for old_first in [false, true] {
                let mut graph = Graph::new();
                let (read, start) = slots(&mut graph, 2, dtype, shape);
                graph.inputs.push(Input { name: "g".into(), ty: ty(dtype, shape) });
                let grad = graph.value(ops::Input { index: 0 }, &[]).unwrap();
                let rate = graph.splat_like(grad, 2.0).unwrap();
                let step = graph.mul(rate, grad).unwrap();
                let new = graph.sub(read[0], step).unwrap();
                // let old = s0; s0 := s0 - 2 * g; s1 := old
                if old_first {
                    write(&mut graph, 1, read[0]);
                    write(&mut graph, 0, new);
                } else {
                    write(&mut graph, 0, new);
                    write(&mut graph, 1, read[0]);
                }
                graph.outputs.push(Output { name: "p".into(), value: read[0], origin: Origins::NOWHERE });
                let count: usize = shape.iter().product();
                let grad =
                    tensor(dtype, shape, &noise(count, 9).iter().map(|x| x * 4.0 + 5.0).collect::<Vec<_>>());
                compare(&graph, &start, &[grad], &format!("{dtype} {shape:?} {old_first}"));
            }
        }
    }
}

#[test]
fn a_cancelled_run_has_updated_all_or_nothing() {
    const SLOTS: u32 = 4;
    let mut graph = Graph::new();
    let (read, start) = slots(&mut graph, SLOTS, DType::F32, &[40, 30]);
    let print = |graph: &mut Graph, value| graph.value(Print { label: "here".into() }, &[value]).unwrap();
    // One value is shown before anything is written, and one between each two writes.
    let mut shown = print(&mut graph, read[0]);
    for k in 0..SLOTS {
        let new = graph.add(read[k as usize], shown).unwrap();
        let new = write(&mut graph, k, new);
        shown = print(&mut graph, new);
    }
    graph.outputs.push(Output { name: "y".into(), value: shown, origin: Origins::NOWHERE });
    let mut updated = start.clone();
    let expected = eval(&graph, &mut updated, &[], &page()).unwrap();

    let mut executable = executable(&graph);
    let (mut cancelled, mut finished) = (0, 0);
    for at in 0..=SLOTS as usize {
        let cancel = Arc::new(AtomicBool::new(false));
        let (flag, calls) = (Arc::clone(&cancel), AtomicUsize::new(0));
        executable.set_printer(Some(Box::new(move |_, _| {
            if calls.fetch_add(1, Ordering::Relaxed) == at {
                flag.store(true, Ordering::Relaxed);
            }
        })));
        let mut slots = start.clone();
        let mut arena = Arena::new(1 << 30);
        let result = executable.run(&mut arena, &mut slots, &[], &page(), &cancel);
        assert!(cancel.load(Ordering::Relaxed), "the value {at} was not shown");
        match result {
            Ok(run) => {
                finished += 1;
                assert!(run.outputs == expected && slots == updated, "cancelled at {at}");
            }
            Err(error) => {
                cancelled += 1;
                assert!(error.is_cancelled() && slots == start, "cancelled at {at}");
            }
        }
    }
    assert!(cancelled > 0 && finished > 0, "{cancelled} {finished}");
}
