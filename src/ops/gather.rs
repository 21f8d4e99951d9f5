//! Rows of a table by index, and its transpose.

use super::{
    Binary, GradNode, Gradient, Iota, OpError, Operation, expect_args, expect_float,
    network::{expect_index, fault},
};
use crate::{
    exec::cpu::{Call, nn},
    ir::{DType, Graph, Type, ValueId},
};

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

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [table, ids] = expect_args(self.name(), args)?;
        expect_index(self.name(), "indices", ids, args)?;
        let [_, row @ ..] = table.shape() else {
            return Err(fault(self.name(), args, "the table needs at least one axis"));
        };
        Ok(vec![table.with_shape([ids.shape(), row].concat())?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(g), true) = (at.cotangent(0), at.wants(0)) else {
            return Ok(Gradient::Args(vec![None, None]));
        };
        let rows = graph.ty(at.arg(0)?).shape().first().copied().unwrap_or(0);
        Ok(Gradient::Args(vec![Some(graph.value(ScatterAdd { rows }, &[at.arg(1)?, g])?), None]))
    }

    /// A product with one-hot rows: for finite tables.
    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[table, ids] = args else { return Err(OpError::new("internal: `gather` takes 2 operands")) };
        let ty = graph.ty(table).clone();
        let (rows, width) = rows_and_width(ty.shape());
        let shape = [graph.ty(ids).shape(), ty.shape().get(1..).unwrap_or_default()].concat();
        let one_hot = one_hot(graph, ids, rows, ty.dtype())?;
        let table = graph.reshape(table, &[rows, width])?;
        let picked = graph.matmul(one_hot, table)?;
        Ok(vec![graph.reshape(picked, &shape)?])
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::gather::gather(call)
    }
}

fn rows_and_width(shape: &[usize]) -> (usize, usize) {
    (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product())
}

/// `ids`, flattened, as rows that are 1 at the index and 0 elsewhere.
fn one_hot(graph: &mut Graph, ids: ValueId, rows: usize, dtype: DType) -> Result<ValueId, OpError> {
    let count = graph.ty(ids).elements();
    let classes = graph.value(Iota { ty: Type::new(DType::I64, [count, rows])?, axis: 1 }, &[])?;
    let ids = graph.cast(ids, DType::I64)?;
    let ids = graph.reshape(ids, &[count])?;
    let ids = graph.along_last(ids, classes)?;
    let hit = graph.binary(Binary::Eq, classes, ids)?;
    graph.cast(hit, dtype)
}

impl Operation for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [ids, rows] = expect_args(self.name(), args)?;
        expect_index(self.name(), "indices", ids, args)?;
        expect_float(self.name(), rows)?;
        let Some(row) = rows.shape().strip_prefix(ids.shape()) else {
            return Err(fault(self.name(), args, "the first axes of the rows must be those of the indices"));
        };
        Ok(vec![rows.with_shape([&[self.rows], row].concat())?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(g), true) = (at.cotangent(0), at.wants(1)) else {
            return Ok(Gradient::Args(vec![None, None]));
        };
        Ok(Gradient::Args(vec![None, Some(graph.value(Gather, &[g, at.arg(0)?])?)]))
    }

    /// A product with one-hot columns: for finite rows.
    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[ids, rows] = args else {
            return Err(OpError::new("internal: `scatter_add` takes 2 operands"));
        };
        let ty = graph.ty(rows).clone();
        let lead = graph.ty(ids).rank();
        let row = ty.shape().get(lead..).unwrap_or_default().to_vec();
        let (count, width) = (graph.ty(ids).elements(), row.iter().product());
        let one_hot = one_hot(graph, ids, self.rows, ty.dtype())?;
        let one_hot = graph.transpose_last(one_hot)?;
        let rows = graph.reshape(rows, &[count, width])?;
        let sums = graph.matmul(one_hot, rows)?;
        Ok(vec![graph.reshape(sums, &[&[self.rows], row.as_slice()].concat())?])
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.get(1).map_or(0.0, |rows| rows.elements() as f64)
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        let ids = args.first().map_or(0, |ids| ids.elements());
        (nn::gather::scatter_workspace(self.rows, ids) as u64).saturating_mul(8)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::gather::scatter_add(call)
    }

    fn attributes(&self) -> String {
        format!("rows={}", self.rows)
    }
}
