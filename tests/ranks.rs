//! Several ranks in one process: what collectives compute, what goes wrong between ranks and how it is
//! said, and training that gives on any number of ranks what it gives on one.

mod ranks {
    pub mod failures;
    #[path = "../support/folder.rs"]
    mod folder;
    pub mod hook_files;
    pub mod script;
    pub mod shard;
    pub mod shard_files;
    pub mod shard_memory;
    pub mod support;
    pub mod sync;
    pub mod training;
    pub mod values;
}
