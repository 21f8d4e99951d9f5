//! What the tests of the scheduler share. None of it uses code of the scheduler.

pub mod brute;
pub mod case1;
pub mod check;
pub mod random;
