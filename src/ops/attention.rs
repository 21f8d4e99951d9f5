//! Scaled dot-product attention; the score matrix is never stored.

use super::{
    Binary, GradNode, Gradient, Iota, Memory, Number, OpError, Operation, Softmax, SoftmaxGrad, expect_args,
    network::{expect_type, fault, same_float, wanted},
};
use crate::{
    exec::cpu::{
        Call,
        nn::{self, attention::Heads},
    },
    ir::{DType, Graph, Type, ValueId},
};

/// Operands (q: [b, h, t, d], k: [b, h, s, d], v: [b, h, s, e]) → (o: [b, h, t, e], lse: f32 or f64
/// [b, h, t]). With `causal`, query i sees keys j ≤ i + (s − t). A query that sees nothing gives
/// 0s.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attention {
    pub causal: bool,
    pub scale: Number,
}

/// Operands (q, k, v, o, lse, g) → (dq, dk, dv).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionGrad {
    pub causal: bool,
    pub scale: Number,
}

/// The types of o and lse.
fn result_types(name: &str, [q, k, v]: [&Type; 3], args: &[&Type]) -> Result<(Type, Type), OpError> {
    same_float(name, &[q, k, v], args)?;
    let (&[b, h, t, d], &[k_b, k_h, s, k_d], &[v_b, v_h, v_s, e]) = (q.shape(), k.shape(), v.shape()) else {
        return Err(fault(
            name,
            args,
            "queries, keys and values must have four axes, [batch, heads, time, depth]",
        ));
    };
    if [b, h] != [k_b, k_h] || [b, h] != [v_b, v_h] {
        return Err(fault(name, args, "batch and heads differ"));
    }
    if d != k_d {
        return Err(fault(name, args, format!("queries have depth {d}, keys {k_d}")));
    }
    if s != v_s {
        return Err(fault(name, args, format!("there are {s} keys, but {v_s} values")));
    }
    let o = q.with_shape([b, h, t, e])?;
    let lse = q.with_shape([b, h, t])?.with_dtype(q.dtype().accumulator())?;
    Ok((o, lse))
}

/// Composed, in the accumulator's type: scale · q kᵀ, −∞ where a query does not see a key.
fn scores(
    graph: &mut Graph,
    q: ValueId,
    k: ValueId,
    causal: bool,
    scale: Number,
) -> Result<ValueId, OpError> {
    let k = graph.transpose_last(k)?;
    let products = graph.matmul(q, k)?;
    let scores = graph.scaled(products, scale.as_f64())?;
    if !causal {
        return Ok(scores);
    }
    let ty = graph.ty(scores).with_dtype(DType::I64)?;
    let [.., t, s] = *ty.shape() else { return Ok(scores) };
    let query = graph.value(Iota { ty: ty.clone(), axis: 2 }, &[])?;
    let key = graph.value(Iota { ty, axis: 3 }, &[])?;
    // Without differences, which could be negative: j + t ≤ i + s.
    let (t, s) = (graph.splat_like(key, t as f64)?, graph.splat_like(query, s as f64)?);
    let (key, query) = (graph.add(key, t)?, graph.add(query, s)?);
    let hidden = graph.binary(Binary::Gt, key, query)?;
    graph.replace(hidden, f64::NEG_INFINITY, scores)
}

fn attributes(causal: bool, scale: Number) -> String {
    format!("causal={causal}, scale={scale}")
}

impl Attention {
    fn heads(&self, args: &[&Type]) -> Option<Heads> {
        let &[q, k, v] = args else { return None };
        Some(Heads::new(q, k, v, self.causal, self.scale.as_f64()))
    }
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let (o, lse) = result_types(self.name(), expect_args(self.name(), args)?, args)?;
        Ok(vec![o, lse])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(g), None) = (at.cotangent(0), at.cotangent(1)) else {
            return Ok(Gradient::Decompose);
        };
        let args = [at.arg(0)?, at.arg(1)?, at.arg(2)?, at.result(0)?, at.result(1)?, g];
        let node = graph.push(AttentionGrad { causal: self.causal, scale: self.scale }, &args)?;
        let cotangents: Vec<_> = graph.node(node).results().map(Some).collect();
        Ok(Gradient::Args(wanted(at, &cotangents)))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[q, k, v] = args else { return Err(OpError::new("internal: `attention` takes 3 operands")) };
        let dtype = graph.ty(q).dtype();
        let (q, k, v) = (graph.widen(q)?, graph.widen(k)?, graph.widen(v)?);
        let scores = scores(graph, q, k, self.causal, self.scale)?;
        let p = graph.value(Softmax, &[scores])?;
        let o = graph.matmul(p, v)?;
        let lse = graph.log_sum_exp(scores)?;
        Ok(vec![graph.cast(o, dtype)?, lse])
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        self.heads(args).map_or(0.0, |h| h.pairs() * (2.0 * h.depth as f64 + 2.0 * h.values as f64 + 5.0))
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        let (Some(heads), Some(q)) = (self.heads(args), args.first()) else { return 0 };
        (heads.workspace() as u64).saturating_mul(q.dtype().accumulator().size() as u64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let (q, k, v) = (call.arg_operand(0)?, call.arg_operand(1)?, call.arg_operand(2)?);
        nn::attention::attention(call, Heads::new(q.ty, k.ty, v.ty, self.causal, self.scale.as_f64()))
    }

    fn attributes(&self) -> String {
        attributes(self.causal, self.scale)
    }
}

impl AttentionGrad {
    fn heads(&self, args: &[&Type]) -> Option<Heads> {
        let &[q, k, v, ..] = args else { return None };
        Some(Heads::new(q, k, v, self.causal, self.scale.as_f64()))
    }
}

impl Operation for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [q, k, v, o, lse, g] = expect_args(self.name(), args)?;
        let (o_type, lse_type) = result_types(self.name(), [q, k, v], args)?;
        expect_type(self.name(), args, o, &o_type)?;
        expect_type(self.name(), args, lse, &lse_type)?;
        expect_type(self.name(), args, g, &o_type)?;
        Ok(vec![q.clone(), k.clone(), v.clone()])
    }

    fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Decompose)
    }

    /// From q, k, v and g alone: o and lse are functions of them, so this way they need no gradient.
    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[q, k, v, _, _, g] = args else {
            return Err(OpError::new("internal: `attention_grad` takes 6 operands"));
        };
        let dtype = graph.ty(q).dtype();
        let (q, k, v, g) = (graph.widen(q)?, graph.widen(k)?, graph.widen(v)?, graph.widen(g)?);
        let scores = scores(graph, q, k, self.causal, self.scale)?;
        let p = graph.value(Softmax, &[scores])?;
        let p_t = graph.transpose_last(p)?;
        let dv = graph.matmul(p_t, g)?;
        let v_t = graph.transpose_last(v)?;
        let dp = graph.matmul(g, v_t)?;
        let ds = graph.value(SoftmaxGrad, &[p, dp])?;
        let ds = graph.scaled(ds, self.scale.as_f64())?;
        let dq = graph.matmul(ds, k)?;
        let ds_t = graph.transpose_last(ds)?;
        let dk = graph.matmul(ds_t, q)?;
        Ok(vec![graph.cast(dq, dtype)?, graph.cast(dk, dtype)?, graph.cast(dv, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        self.heads(args).map_or(0.0, |h| h.pairs() * (6.0 * h.depth as f64 + 4.0 * h.values as f64 + 6.0))
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        let (Some(heads), Some(q)) = (self.heads(args), args.first()) else { return 0 };
        let wide = q.dtype().accumulator();
        (heads.grad_workspace(wide == q.dtype()) as u64).saturating_mul(wide.size() as u64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let (q, k, v) = (call.arg_operand(0)?, call.arg_operand(1)?, call.arg_operand(2)?);
        nn::attention_grad::attention_grad(
            call,
            Heads::new(q.ty, k.ty, v.ty, self.causal, self.scale.as_f64()),
        )
    }

    fn attributes(&self) -> String {
        attributes(self.causal, self.scale)
    }
}
