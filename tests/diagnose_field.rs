//! What goes wrong in the field, as programs in `tests/field/`: public reports by people who train networks, each
//! with the buffer, its keeper and the saving that `tg` must name, or with the silence that is right. Sizes are
//! those of the reports where plans are all that is needed.
//!
//! `tests/ranks/` has what several ranks must agree on while they run: hooks and buckets in `sync.rs`, flat groups
//! in `shard.rs` and `shard_memory.rs`.

#[path = "field/kept.rs"]
mod kept;
#[path = "field/order.rs"]
mod order;
#[path = "field/place.rs"]
mod place;
#[path = "field/random.rs"]
mod random;
#[path = "field/ranks.rs"]
mod ranks;
#[path = "field/regions.rs"]
mod regions;
#[path = "field/state.rs"]
mod state;
#[path = "field/support.rs"]
mod support;
