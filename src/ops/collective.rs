//! Collectives between ranks, as pairs of start and done: what they read and make is alive in
//! between.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Sum over ranks.
    AllReduce,
    /// Concatenates along axis 0.
    AllGather,
    /// Sum over ranks; rank r keeps part r of axis 0.
    ReduceScatter,
    /// The value of rank 0.
    Broadcast,
}

/// Starts a collective over `world` ranks; the result has the type of the finished collective.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollectiveStart {
    pub kind: CollectiveKind,
    pub world: u32,
}

/// Waits for it: operands are the start's result and its operand (kept alive until here).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollectiveDone {
    pub kind: CollectiveKind,
    pub world: u32,
}

crate::ops::scaffold!(CollectiveStart, CollectiveDone);
