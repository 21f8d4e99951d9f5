//! From an elaborated step to a plan: regions, simplification, updates, layout, fusion, the schedule
//! graph, its order.

mod build;
mod fuse;
mod kinds;
mod layout;
mod program;
mod regions;
mod simplify;
mod updates;
