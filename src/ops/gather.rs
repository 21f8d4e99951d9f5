//! Rows of a table by index, and its transpose.

/// Operands (table: [v, …], ids: int […i]) → […i, …]: rows of the table. An index outside
/// 0 ≤ i < v is an error at run time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gather;

/// Operands (ids: int […i], rows: […i, …]) → [v, …]: sums the rows by index, repeated ones in
/// order, accumulated in f32 for f16 and bf16; rows that no index names are 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// v
    pub rows: usize,
}

crate::ops::scaffold!(Gather, ScatterAdd);
