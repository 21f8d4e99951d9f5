//! The memory that plans on the CPU share.

use std::sync::atomic::AtomicBool;

use tg::{exec::Tensor, ir::DType};

use crate::cases::{
    harness::*,
    planned::{rate, training},
};
use crate::device::{Arena, eval};

#[test]
fn an_arena_has_a_limit() {
    let (graph, mut slots, inputs) = training();
    let mut small = Arena::new(100);
    let go = AtomicBool::new(false);
    let error = executable(&graph).run(&mut small, &mut slots, &inputs, &rate(0.1), &go).unwrap_err();
    assert!(error.error.message.contains("the limit is 100 bytes"), "{error}");
    assert_eq!(small.bytes(), 0);
}

#[test]
fn memory_that_cannot_be_had_is_an_error() {
    let mut arena = Arena::new(u64::MAX);
    assert!(arena.reserve(1 << 62).is_err());
    assert!(arena.reserve(u64::MAX).is_err());
    arena.reserve(1000).unwrap();
    assert_eq!(arena.bytes(), 1000);
    arena.reserve(10).unwrap();
    assert_eq!(arena.bytes(), 1000);
}

#[test]
fn memory_that_a_tensor_cannot_have_is_an_error() {
    let huge = ty(DType::F32, &[1 << 58]);
    assert!(Tensor::try_zeros(huge).is_err());
    let small = Tensor::try_zeros(ty(DType::F32, &[3, 5])).unwrap();
    assert_eq!(values(&small), [0.0; 15]);
    assert!(Tensor::try_zeros(ty(DType::F32, &[0, 5])).unwrap().bytes().is_empty());
    let one = tensor(DType::F32, &[1], &[1.0]);
    let graph = graph(std::slice::from_ref(&one), &|graph, args| {
        let wide = graph.broadcast(args[0], &[1 << 58])?;
        Ok(vec![graph.add(wide, wide)?])
    });
    let error = eval(&graph, &mut [], &[one], &page()).unwrap_err();
    assert!(
        error.error.message.ends_with("needs 1152921504606846976 bytes, and the system does not have them"),
        "{error}"
    );
}
