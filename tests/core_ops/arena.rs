//! The memory that plans on the CPU share.

use std::sync::atomic::AtomicBool;

use crate::cases::{
    harness::*,
    planned::{rate, training},
};
use crate::device::Arena;

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
