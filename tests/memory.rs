//! Memory figures of whole steps, built through the IR.

use tg::{
    grad::gradients,
    ir::{
        Bind, DType, Graph, Input, Origins, Policy, Region, RegionId, Role, Slot, SlotId, SlotKind, Type,
        ValueId,
    },
    lower::{PlanOptions, plan},
    ops::{self, OpError, ReduceKind, Unary},
    plan::Plan,
    schedule::WorstOptions,
};

const MIB: f64 = (1 << 20) as f64;

fn param(graph: &mut Graph, name: String, shape: &[usize]) -> Result<(SlotId, ValueId), OpError> {
    let slot = SlotId(graph.slots.len() as u32);
    let ty = Type::new(DType::F32, shape)?;
    graph.slots.push(Slot { name: name.into(), ty, kind: SlotKind::Param { trainable: true } });
    Ok((slot, graph.value(ops::Read { slot }, &[])?))
}

fn input(graph: &mut Graph, shape: &[usize]) -> Result<ValueId, OpError> {
    let index = graph.inputs.len() as u32;
    graph.inputs.push(Input { name: "x".into(), ty: Type::new(DType::F32, shape)? });
    graph.value(ops::Input { index }, &[])
}

/// `p -= 0 * g` for every parameter.
fn sgd(graph: &mut Graph, params: &[(SlotId, ValueId)], grads: &[Option<ValueId>]) -> Result<(), OpError> {
    for (&(slot, value), grad) in params.iter().zip(grads) {
        let Some(grad) = *grad else { continue };
        graph.cursor.role = Role::Update { slot };
        let rate = graph.splat_like(grad, 0.0)?;
        let step = graph.mul(rate, grad)?;
        let new = graph.sub(value, step)?;
        graph.value(ops::Write { slot }, &[new])?;
    }
    graph.cursor.role = Role::Forward;
    Ok(())
}

fn linears(depth: usize, tie: bool) -> Result<Plan, OpError> {
    let mut graph = Graph::new();
    let x = input(&mut graph, &[4096, 1024])?;
    let params: Vec<_> =
        (0..depth).map(|i| param(&mut graph, format!("w{i}"), &[1024, 1024])).collect::<Result<_, _>>()?;
    let mut h = x;
    for &(_, w) in &params {
        h = graph.matmul(h, w)?;
    }
    let loss = graph.reduce(ReduceKind::Sum, h, &[0, 1])?;
    let mut seed = graph.constant(DType::F32, 1.0)?;
    if tie {
        let barrier = graph.push_after(
            ops::Barrier { kind: ops::BarrierKind::User },
            &[seed],
            &[graph.producer(loss).0.id],
        )?;
        seed = graph.node(barrier).result(0);
    }
    let wrt: Vec<ValueId> = params.iter().map(|p| p.1).collect();
    let grads = gradients(&mut graph, &[(loss, seed)], &wrt).map_err(|e| e.error)?;
    sgd(&mut graph, &params, &grads)?;
    graph.outputs.push(tg::ir::Output { name: "loss".into(), value: loss, origin: Origins::NOWHERE });
    plan(&graph, "train", &PlanOptions::default())
}

/// Case 1 with matrix products in place of 1x1 convolutions.
fn blocks(depth: usize, bind: Option<Bind>) -> Result<Plan, OpError> {
    let mut graph = Graph::new();
    let x = input(&mut graph, &[12544, 1024])?;
    let mut params = Vec::new();
    let mut h = x;
    for k in 0..depth {
        let region = bind.filter(|_| k > 0).map(|bind| {
            graph.regions.push(Region {
                parent: None,
                bind,
                policy: Policy::Nothing,
                keep: Vec::new(),
                outputs: Vec::new(),
                origin: Origins::NOWHERE,
                nodes: 0..0,
            });
            RegionId(graph.regions.len() as u32 - 1)
        });
        let layer = [0, 1].map(|j| -> Result<_, OpError> {
            Ok((
                param(&mut graph, format!("{k}.{j}.w"), &[1024, 1024])?,
                param(&mut graph, format!("{k}.{j}.b"), &[1024])?,
            ))
        });
        graph.cursor.region = region;
        let start = graph.len() as u32;
        for l in layer {
            let (w, b) = l?;
            params.extend([w, b]);
            let y = graph.matmul(h, w.1)?;
            let b = graph.broadcast(b.1, &[12544, 1024])?;
            let y = graph.add(y, b)?;
            h = graph.unary(Unary::Relu, y)?;
        }
        graph.cursor.region = None;
        if let Some(r) = region {
            let end = graph.len() as u32;
            let r = &mut graph.regions[r.0 as usize];
            r.nodes = start..end;
            r.outputs = vec![h];
        }
    }
    let loss = graph.reduce(ReduceKind::Sum, h, &[0, 1])?;
    let seed = graph.constant(DType::F32, 1.0)?;
    let wrt: Vec<ValueId> = params.iter().map(|p| p.1).collect();
    let grads = gradients(&mut graph, &[(loss, seed)], &wrt).map_err(|e| e.error)?;
    assert!(grads.iter().all(Option::is_some));
    sgd(&mut graph, &params, &grads)?;
    graph.outputs.push(tg::ir::Output { name: "loss".into(), value: loss, origin: Origins::NOWHERE });
    plan(&graph, "train", &PlanOptions::default())
}

fn assert_mib(bytes: u64, mib: f64, what: &str) {
    let found = bytes as f64 / MIB;
    assert!((found - mib).abs() < 0.01, "{what}: {found:.3} MiB, expected {mib:.3}");
}

/// Without a tie to the loss, a linear network's gradients do not depend on the forward pass at all.
#[test]
fn linear_layers() -> Result<(), OpError> {
    for (tie, peak) in [(false, 644.0), (true, 656.0)] {
        let plan = linears(32, tie)?;
        assert_mib(plan.peak_bytes(), peak, &format!("tie {tie}"));
    }
    let tied = linears(32, true)?;
    assert_eq!(tied.peak_bytes(), tied.lower_bound_bytes());
    Ok(())
}

#[test]
fn case_one_in_every_binding() -> Result<(), OpError> {
    for (bind, peak) in [
        (None, 6886.5),
        // Without a barrier the recompute merges with the forward pass.
        (Some(Bind::None), 6886.5),
        (Some(Bind::Output), 3848.5),
        (Some(Bind::Grad), 3848.5),
        (Some(Bind::All), 3848.5),
    ] {
        let plan = blocks(64, bind)?;
        let what = format!("{bind:?}");
        assert_mib(plan.peak_bytes(), peak, &what);
        assert_mib(plan.lower_bound_bytes(), peak, &what);
        assert_eq!(plan.persistent_bytes, 128 * ((4 << 20) + 4096));
        let recomputes: std::collections::BTreeSet<u32> = plan.graph.nodes().map(|n| n.instance()).collect();
        let expected = if matches!(bind, None | Some(Bind::None)) { 1 } else { 64 };
        assert_eq!(recomputes.len(), expected, "{what}: originals and 63 recomputes");
        // One commit for each of the 256 parameters, in place.
        let commits = plan.graph.nodes().filter(|n| matches!(n.op(), ops::Op::Write(_))).count();
        assert_eq!(commits, 256, "{what}");
        assert!(!plan.kernels.iter().any(|k| matches!(k, tg::plan::Kernel::Copy { .. })), "{what}");
    }
    Ok(())
}

/// The result that the next region saves anyway serves for the mask of its last activation, so only
/// the last region computes both of its products again: 63 + 1 of 128 · 3 products of a plain step.
#[test]
fn kept_results_are_not_recomputed() -> Result<(), OpError> {
    let (plain, checkpointed) = (blocks(64, None)?, blocks(64, Some(Bind::All))?);
    let extra = checkpointed.recomputed_flops / plain.flops;
    assert!((extra - 64.0 / 384.0).abs() < 0.002, "{extra}");
    Ok(())
}

/// With the default binding no legal order is worse than the best one; with the barrier on saved
/// input and gradient alone, parameter gradients may wait until the end.
#[test]
fn worst_legal_orders_of_case_one() -> Result<(), OpError> {
    let worst = |bind| -> Result<(f64, f64), OpError> {
        let plan = blocks(64, Some(bind))?;
        let worst = tg::schedule::worst_order(&plan.schedule_graph, &WorstOptions::default());
        let total = |bytes: u64| (plan.persistent_bytes + bytes) as f64 / MIB;
        Ok((total(worst.witness_bytes), total(worst.bytes)))
    };
    let (witness, bound) = worst(Bind::All)?;
    assert!(witness == bound && bound <= 3850.0, "{witness} to {bound}");
    for bind in [Bind::Grad, Bind::Output] {
        let (witness, bound) = worst(bind)?;
        assert!(witness > 12000.0 && bound < 13700.0, "{bind:?}: {witness} to {bound}");
    }
    Ok(())
}
