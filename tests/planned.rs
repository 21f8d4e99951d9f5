//! Planned runs against the reference interpreter, bit for bit: random programs with nested
//! checkpoint regions, every binding, several steps with state.

#[path = "support/programs.rs"]
mod programs;

use std::sync::{Arc, atomic::AtomicBool};

use programs::{STEPS, page, program, start};
use tg::{
    budget::{Curve, quick},
    exec::{
        Tensor,
        cpu::{Arena, Executable, eval},
    },
    ir::{Bind, Graph},
    lower::{PlanOptions, plan},
    plan::Target,
};

/// Outputs of every step, and the slots at the end, of the reference interpreter.
fn reference(graph: &Graph) -> (Vec<Vec<Tensor>>, Vec<Tensor>) {
    let (mut slots, inputs) = start(graph);
    let outputs = (0..STEPS).map(|s| eval(graph, &mut slots, &inputs, &page(s)).expect("it runs")).collect();
    (outputs, slots)
}

/// The same of a planned run, which must use exactly the arena that the plan states.
fn planned(graph: &Graph) -> (Vec<Vec<Tensor>>, Vec<Tensor>) {
    let plan = Arc::new(plan(graph, "train", &PlanOptions::default()).expect("it can be planned"));
    let (mut slots, inputs) = start(&plan.graph);
    let mut executable = Executable::new(Arc::clone(&plan)).expect("it can be prepared");
    executable.set_poison(true);
    let mut arena = Arena::new(u64::MAX);
    let cancel = AtomicBool::new(false);
    let mut outputs = Vec::new();
    for step in 0..STEPS {
        let run = executable.run(&mut arena, &mut slots, &inputs, &page(step), &cancel).expect("it runs");
        assert_eq!(run.high_water_bytes, plan.schedule.arena_bytes);
        outputs.push(run.outputs);
    }
    (outputs, slots)
}

fn same_bits(a: &(Vec<Vec<Tensor>>, Vec<Tensor>), b: &(Vec<Vec<Tensor>>, Vec<Tensor>), what: &str) {
    for (step, (a, b)) in a.0.iter().zip(&b.0).enumerate() {
        for (k, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(
                a == b,
                "{what}: output {k} of step {step} differs: {:?} {:?}",
                a.get_f64(0),
                b.get_f64(0)
            );
        }
    }
    for (k, (a, b)) in a.1.iter().zip(&b.1).enumerate() {
        assert!(a == b, "{what}: slot {k} differs");
    }
}

#[test]
fn planned_equals_reference_and_checkpointed_equals_plain() {
    let (mut compared, mut recomputed, mut copied) = (0, 0, 0);
    for seed in 0..150 {
        let plain = program(seed, false, Bind::All).expect("it builds");
        let expected = reference(&plain);
        // A few of the programs overflow, and which NaN comes out is not promised.
        let is_finite = |t: &Tensor| (0..t.ty().elements()).all(|k| t.get_f64(k).is_some_and(f64::is_finite));
        if !expected.0.iter().flatten().chain(&expected.1).all(is_finite) {
            continue;
        }
        compared += 1;
        same_bits(&expected, &planned(&plain), &format!("seed {seed}, plain"));
        for bind in [Bind::All, Bind::Grad, Bind::Output, Bind::None] {
            let graph = program(seed, true, bind).expect("it builds");
            let what = format!("seed {seed}, {bind:?}");
            same_bits(&expected, &reference(&graph), &format!("{what}, reference"));
            same_bits(&expected, &planned(&graph), &what);
            if bind == Bind::All {
                let plan = plan(&graph, "train", &PlanOptions::default()).expect("it can be planned");
                recomputed += usize::from(plan.recomputed_flops > 0.0);
                copied += plan.views.iter().filter(|view| view.copy.is_some()).count();
                let before = plan.arena_bytes_without_copies.unwrap_or(plan.schedule.arena_bytes);
                assert!(plan.schedule.arena_bytes <= before, "{what}");
            }
        }
    }
    // The programs are not all too small to recompute anything.
    println!("{compared} programs, {recomputed} recompute, {copied} copies of slices");
    assert!(compared > 100 && recomputed > 50 && copied > 20, "{compared} {recomputed} {copied}");
}

/// Every graph that a budget may choose, from plain programs and from ones with regions of their own.
#[test]
fn budgets_do_not_change_bits() {
    let (mut compared, mut lowered) = (0, 0);
    for seed in 0..60 {
        let plain = program(seed, false, Bind::All).expect("it builds");
        let expected = reference(&plain);
        let is_finite = |t: &Tensor| (0..t.ty().elements()).all(|k| t.get_f64(k).is_some_and(f64::is_finite));
        if !expected.0.iter().flatten().chain(&expected.1).all(is_finite) {
            continue;
        }
        for regions in [false, true] {
            let graph = program(seed, regions, Bind::All).expect("it builds");
            let mut curve = Curve::new(&graph, Target::Cpu);
            let points = curve.points(None).expect("they can be planned");
            lowered += points.len() - 1;
            for point in points {
                let what = format!("seed {seed}, regions {regions}, {point:?}");
                let chosen = curve.graph_of(&point).expect("a graph");
                assert_eq!(tg::ir::verify(&chosen), Ok(()), "{what}");
                same_bits(&expected, &reference(&chosen), &format!("{what}, reference"));
                same_bits(&expected, &planned(&chosen), &what);
                let plan = plan(&chosen, "train", &quick(Target::Cpu)).expect("it can be planned");
                assert_eq!((plan.peak_bytes(), plan.flops), (point.peak_bytes, point.flops), "{what}");
                compared += 1;
            }
        }
    }
    assert!(compared > 100 && lowered > 40, "{compared} {lowered}");
}
