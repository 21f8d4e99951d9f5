//! From the tree to graphs: the evaluator and what it calls.

pub mod tensor;
