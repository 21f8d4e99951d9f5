//! The text form of a graph, `.tgir`: written by [`print`], read back by [`parse`].
//!
//! One line each, `#` starts a comment:
//!
//! ```text
//! tgir 1
//! slot 0 "net.w" param f32[4, 3]
//! input 0 "x" f32[64, 3]
//! scalar 0 hyper("lr", 0.1)
//! grad_calls 1
//! region 0 bind=all policy=nothing keep=[] outputs=[%3]
//! n0: %0 = read() {slot=0} : f32[4, 3]
//! n1: %1, %2 = barrier(%0, %0) {kind=user} : f32[4, 3], f32[4, 3] after n0 @region(0)
//! output "w" %1
//! ```
//!
//! A slot is `param`, `frozen`, `state` or `optimizer`; a scalar is `step`, `rank`,
//! `update_count("opt")`, `hyper("lr", 0.1)` or `argument(0)`; a region is `in` its parent. A node
//! has its label, its results, its op with operands and attributes, the types of its results, the
//! nodes it waits for, and marks: `@region(0)`, `@backward(n3, 0)` with the forward node and the
//! gradient call, `@update(0)` with the slot, `@instance(1)` for a recompute, `@name(0, "h")` and
//! `@mark(0, "attn")` for result 0. Labels, types and marks may be left out by hand.
//!
//! Sources are not part of it: a parsed graph points into the text it was parsed from.

mod attributes;
mod cursor;
mod ops;
mod parse;
mod print;

pub use parse::{parse, parse_file};
pub use print::print;
