//! Memory figures of whole steps, built through the IR.

use tg::{
    grad::gradients,
    ir::{
        Bind, DType, Graph, Input, OriginId, Origins, Policy, Region, RegionId, Role, Slot, SlotId, SlotKind,
        Type, ValueId,
    },
    lower::{PlanOptions, plan},
    ops::{self, OpError, ReduceKind, Unary},
    plan::Plan,
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

#[test]
fn linears_32() {
    for tie in [false, true] {
        let p = linears(32, tie).unwrap();
        println!(
            "tie {tie}: ops {} peak {:.3} live {:.3} bound {:.3} by {}",
            p.schedule_graph.op_count(),
            p.peak_bytes() as f64 / MIB,
            p.schedule.live_peak_bytes as f64 / MIB,
            p.schedule.lower_bound_bytes as f64 / MIB,
            p.schedule.found_by
        );
    }
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

#[test]
fn blocks_64() {
    for bind in [None, Some(Bind::None), Some(Bind::Output), Some(Bind::Grad), Some(Bind::All)] {
        for kind in [tg::schedule::OrderKind::Best] {
            let t = std::time::Instant::now();
            let p = blocks(64, bind).unwrap();
            println!(
                "{bind:?} {kind:?}: ops {} peak {:.3} bound {:.3} by {} recompute {} {:?}",
                p.schedule_graph.op_count(),
                p.peak_bytes() as f64 / MIB,
                p.lower_bound_bytes() as f64 / MIB,
                p.schedule.found_by,
                p.recomputed_flops / (p.flops - p.recomputed_flops),
                t.elapsed()
            );
        }
    }
}

#[test]
fn dump() {
    let p = blocks(3, Some(Bind::All)).unwrap();
    for op in p.executed() {
        let n = p.graph.node(p.op_nodes[op.0 as usize]);
        let kernel = match &p.kernels[op.0 as usize] {
            tg::plan::Kernel::Node { .. } => "node",
            tg::plan::Kernel::Elementwise(_) => "elem",
            tg::plan::Kernel::Copy { .. } => "copy",
            _ => "barrier",
        };
        println!(
            "op{} {} {} reads {:?} makes {:?} after {:?} ow {:?}",
            op.0,
            kernel,
            n.op().name(),
            p.schedule_graph.reads(op),
            p.schedule_graph.makes(op),
            p.schedule_graph.after(op),
            p.schedule_graph.may_overwrite(op)
        );
    }
}
