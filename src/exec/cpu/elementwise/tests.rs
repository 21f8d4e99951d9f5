//! Outputs that lie over inputs.

use super::*;
use crate::{
    exec::{Element, Tensor},
    ir::Type,
    ops::{Layout, Unary},
    plan::{Access, Elementwise, Instr},
    schedule::BufferId,
};

/// Stores registers over the two inputs: `stored[k]` over input k.
fn run_over_inputs<T: Element>(inputs: &mut [Tensor; 2], instrs: &[Instr], stored: [u32; 2]) {
    let ty: Type = inputs[0].ty().clone();
    let layout = Layout::dense(ty.shape());
    let access = || Access { buffer: BufferId(0), ty: ty.clone(), layout: layout.clone() };
    let source = Elementwise {
        shape: ty.shape().into(),
        instrs: instrs.into(),
        dtypes: instrs.iter().map(|_| T::DTYPE).collect(),
        inputs: vec![access(), access()],
        outputs: stored.iter().map(|&reg| (reg, access())).collect(),
    };
    let program = Program::new(&source).unwrap();
    let places: Vec<Shared<u8>> = inputs
        .iter_mut()
        .map(|tensor| Shared::new(tensor.bytes_mut().expect("memory").as_mut_ptr()))
        .collect();
    let page = ScalarPage { values: Vec::new(), seed: 0, step: 0 };
    // SAFETY: both tensors have the type of the program, and each output lies exactly over an input.
    unsafe { program.run_at(&places, &places, &page) }.unwrap();
}

fn check<T: Element>(count: usize, value: impl Fn(usize) -> T) {
    let tensor = |from: usize| {
        let values: Vec<T> = (0..count).map(|i| value(from + i)).collect();
        Tensor::from_slice(&[count], &values).unwrap()
    };
    let (a, b) = (tensor(0), tensor(1));
    let loads = [Instr::Load(0), Instr::Load(1)];

    let mut swapped = [a.clone(), b.clone()];
    run_over_inputs::<T>(&mut swapped, &loads, [1, 0]);
    assert!(swapped == [b.clone(), a.clone()], "{} of {count} were not swapped", T::DTYPE);

    // The first is changed, and the second becomes what the first was.
    let mut moved = [a.clone(), b];
    let instrs = [loads[0], loads[1], Instr::Unary(Unary::Abs, 1)];
    run_over_inputs::<T>(&mut moved, &instrs, [2, 0]);
    assert!(moved[1] == a, "{} of {count}: the old value was lost", T::DTYPE);
}

#[test]
fn an_output_may_be_the_old_value_of_an_input_that_another_overwrites() {
    for count in [1, 5, BLOCK, 3 * BLOCK + 7, 300_000] {
        check(count, |i| i as f32);
        check(count, |i| i as f64);
        check(count, |i| i as i32);
        check(count, |i| i as u8);
        check(count, |i| half::bf16::from_f32((i % 200) as f32));
    }
}
