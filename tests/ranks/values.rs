//! What collectives give, against closed forms: every dtype, 1 to 7 ranks, gradients.

use tg::{
    Tensor,
    exec::comm::{Link, threads},
    exec::cpu::{Arena, Executable, ScalarPage, eval_among},
    ir::{DType, Type},
    ops::Op,
    plan::BufferKind,
};

use super::support::{LIMIT, compile, messages, numbers, on_ranks, try_compile};

const WORLDS: [u32; 5] = [1, 2, 3, 4, 7];

/// Element `k` of rank `rank`: small enough that sums are exact in every dtype.
fn element(rank: usize, k: usize) -> f64 {
    ((rank * 5 + k * 3) % 11) as f64
}

fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    let wide = Tensor::try_from_slice(shape, values).expect("the values fit the shape");
    let bytes: Vec<u8> = numbers(&wide)
        .into_iter()
        .flat_map(|x| match dtype {
            DType::F32 => (x as f32).to_le_bytes().to_vec(),
            DType::F64 => x.to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
            DType::I32 => (x as i32).to_le_bytes().to_vec(),
            DType::I64 => (x as i64).to_le_bytes().to_vec(),
            DType::U8 => vec![x as u8],
            DType::Bool => vec![u8::from(x != 0.0)],
        })
        .collect();
    Tensor::from_bytes(Type::new(dtype, shape.to_vec()).expect("a small type"), &bytes)
        .expect("the bytes fit")
}

#[test]
fn every_dtype_on_every_number_of_ranks() {
    for world in WORLDS {
        let n = world as usize;
        let rows = 2 * n;
        for dtype in DType::ALL {
            let sums = dtype != DType::Bool;
            let reductions = if sums { ", all_reduce(x), reduce_scatter(x)" } else { "" };
            let text =
                format!("step f(x: {dtype}[{rows}, 3]) {{ return all_gather(x), broadcast(x){reductions} }}");
            let program = compile(world, &text);
            let input = |rank: usize| -> Vec<f64> {
                let to = |x: f64| if sums { x } else { f64::from(u8::from(x != 0.0)) };
                (0..rows * 3).map(|k| to(element(rank, k))).collect()
            };
            let results = on_ranks(&program, |session, rank| {
                let x = tensor(dtype, &[rows, 3], &input(rank as usize));
                session.call("f", &[x.into()]).unwrap_or_else(|error| panic!("{error}"))
            });
            let all: Vec<f64> = (0..n).flat_map(input).collect();
            let sum: Vec<f64> = (0..rows * 3).map(|k| (0..n).map(|rank| input(rank)[k]).sum()).collect();
            for (rank, result) in results.iter().enumerate() {
                let tensors = result.tensors();
                assert!(tensors.iter().all(|t| t.dtype() == dtype));
                assert_eq!(tensors[0].shape(), [rows * n, 3]);
                assert_eq!(numbers(tensors[0]), all, "all_gather of {dtype} on rank {rank} of {world}");
                assert_eq!(numbers(tensors[1]), input(0), "broadcast of {dtype} on rank {rank} of {world}");
                if sums {
                    assert_eq!(numbers(tensors[2]), sum, "all_reduce of {dtype} on rank {rank} of {world}");
                    assert_eq!(tensors[3].shape(), [2, 3]);
                    let part = &sum[rank * 6..rank * 6 + 6];
                    assert_eq!(
                        numbers(tensors[3]),
                        part,
                        "reduce_scatter of {dtype} on rank {rank} of {world}"
                    );
                }
            }
        }
    }
}

/// Larger than several messages, and no multiple of the number of ranks.
#[test]
fn large_tensors_are_summed_in_rank_order() {
    let n = 300_007;
    let program =
        compile(3, &format!("step f(x: f32[{n}]) {{ return all_reduce(x), all_reduce(x, mean: true) }}"));
    let value = |rank: u32, k: usize| [1e8f32, 1.25, -1e8][rank as usize] * (1 + k % 7) as f32;
    let results = on_ranks(&program, |session, rank| {
        let x: Vec<f32> = (0..n).map(|k| value(rank, k)).collect();
        let x = Tensor::try_from_slice(&[n], &x).expect("the values fit");
        session.call("f", &[x.into()]).unwrap_or_else(|error| panic!("{error}"))
    });
    let sum: Vec<f32> = (0..n).map(|k| (value(0, k) + value(1, k)) + value(2, k)).collect();
    let mean: Vec<f32> = sum.iter().map(|x| x / 3.0).collect();
    for result in results {
        let [a, b] = result.tensors()[..] else { panic!("two tensors") };
        assert!(a.as_slice::<f32>() == Some(&sum) && b.as_slice::<f32>() == Some(&mean));
    }
}

#[test]
fn empty_and_scalar_tensors() {
    let text = "step f(x: f32[0, 3], y: f64) { return all_gather(x), all_reduce(x), all_reduce(y), all_gather(reshape(y, [1])) }";
    let program = compile(3, text);
    let results = on_ranks(&program, |session, rank| {
        let x = Tensor::try_from_slice::<f32>(&[0, 3], &[]).expect("no elements");
        session.call("f", &[x.into(), f64::from(rank + 1).into()]).unwrap_or_else(|error| panic!("{error}"))
    });
    for result in results {
        let tensors = result.tensors();
        assert_eq!((tensors[0].shape(), tensors[1].shape()), (&[0, 3][..], &[0, 3][..]));
        assert_eq!((numbers(tensors[2]), numbers(tensors[3])), (vec![6.0], vec![1.0, 2.0, 3.0]));
    }
}

#[test]
fn gradients_are_the_transposes() {
    for world in WORLDS {
        let n = world as usize;
        let text = format!(
            "step f(x: f64[{0}], a: f64[{1}], b: f64[{0}], c: f64[2], d: f64[{0}]) {{
               let l = sum(a * all_gather(x))
               let m = sum(b * all_reduce(x, mean: true))
               let p = sum(c * reduce_scatter(x))
               let q = sum(d * broadcast(x))
               return grad(l, x), grad(m, x), grad(p, x), grad(q, x)
             }}",
            2 * n,
            2 * n * n
        );
        let program = compile(world, &text);
        let of = |salt: usize, rank: usize, len: usize| -> Vec<f64> {
            (0..len).map(|k| element(rank + salt, k + salt) - 4.0).collect()
        };
        let results = on_ranks(&program, |session, rank| {
            let make = |salt, len| tensor(DType::F64, &[len], &of(salt, rank as usize, len)).into();
            let args = [make(0, 2 * n), make(1, 2 * n * n), make(2, 2 * n), make(3, 2), make(4, 2 * n)];
            session.call("f", &args).unwrap_or_else(|error| panic!("{error}"))
        });
        let sum = |salt: usize, len: usize| -> Vec<f64> {
            (0..len).map(|k| (0..n).map(|rank| of(salt, rank, len)[k]).sum()).collect()
        };
        for (rank, result) in results.iter().enumerate() {
            let got: Vec<Vec<f64>> = result.tensors().into_iter().map(numbers).collect();
            let gathered = &sum(1, 2 * n * n)[rank * 2 * n..(rank + 1) * 2 * n];
            assert_eq!(got[0], gathered, "all_gather on rank {rank} of {world}");
            let mean: Vec<f64> = sum(2, 2 * n).iter().map(|x| x / n as f64).collect();
            let close = got[1].iter().zip(&mean).all(|(x, y)| (x - y).abs() <= 1e-12 * y.abs());
            assert!(close, "all_reduce on rank {rank} of {world}: {:?} {mean:?}", got[1]);
            let scattered: Vec<f64> = (0..n).flat_map(|rank| of(3, rank, 2)).collect();
            assert_eq!(got[2], scattered, "reduce_scatter on rank {rank} of {world}");
            let zeros = vec![0.0; 2 * n];
            let broadcast = if rank == 0 { sum(4, 2 * n) } else { zeros };
            assert_eq!(got[3], broadcast, "broadcast on rank {rank} of {world}");
        }
    }
}

/// Twice the gradient: that of `sum(all_reduce(x) ** 3)`, differentiated again.
#[test]
fn gradients_of_gradients() {
    let text = "step f(x: f64[2]) {
      let g = grad(sum(all_reduce(x) ** 3), x)
      return g, grad(sum(g), x)
    }";
    let program = compile(2, text);
    let results = on_ranks(&program, |session, rank| {
        let x = tensor(DType::F64, &[2], &[1.0 + f64::from(rank), 2.0]);
        session.call("f", &[x.into()]).unwrap_or_else(|error| panic!("{error}"))
    });
    // s = x0 + x1; the loss over both ranks is 2 s³, g = 6 s², and the sum of g over both 12 s².
    for result in results {
        let got: Vec<Vec<f64>> = result.tensors().into_iter().map(numbers).collect();
        assert_eq!(got, [vec![54.0, 96.0], vec![72.0, 96.0]]);
    }
}

/// The step of the plan tests: views, transposes and slices as operands, two collectives under way.
const MIXED: &str = "
step f(x: f32[6, 8], w: f32[8, 6]) {
  let h = tanh(x @ w)
  let t = all_gather(h.T)
  let s = reduce_scatter(h[:, 0..3] * rank)
  let u = all_reduce(w.T, mean: true)
  let y = sum(t @ u[:, 0..6]) + sum(s) + sum(broadcast(x))
  return y, grad(y, [x, w]), u
}";

#[test]
fn planned_runs_equal_the_reference_and_use_what_is_planned() {
    for world in [2, 3] {
        let program = compile(world, MIXED);
        let plan = program.plan("f").expect("it is planned");
        let graph = &program.checked().graphs[0].1;
        let comm: Vec<_> = plan.buffers.iter().filter(|b| b.kind == BufferKind::Comm).collect();
        assert!(comm.len() >= 4, "the results of collectives count as communication");
        let run = |planned: bool| -> Vec<(Vec<Tensor>, u64)> {
            std::thread::scope(|scope| {
                let start = |mut comm: Box<dyn tg::exec::comm::Comm>| {
                    scope.spawn(move || {
                        let rank = comm.rank();
                        let noise = |len: usize, salt: u32| -> Vec<f32> {
                            let x = |k: usize| (k as f32 * 0.7 + (rank * 3 + salt) as f32).sin();
                            (0..len).map(x).collect()
                        };
                        let inputs = [
                            Tensor::try_from_slice(&[6, 8], &noise(48, 0)).unwrap(),
                            Tensor::try_from_slice(&[8, 6], &noise(48, 1)).unwrap(),
                        ];
                        let page = ScalarPage { values: vec![f64::from(rank)], seed: 0, step: 0 };
                        let place = |_: &tg::ir::Graph, _| String::new();
                        let mut link = Link { comm: &mut *comm, place: &place };
                        if planned {
                            let mut executable = Executable::new(plan.clone()).unwrap();
                            executable.set_poison(true);
                            let mut arena = Arena::new(1 << 30);
                            let go = std::sync::atomic::AtomicBool::new(false);
                            let run =
                                executable.run_among(&mut arena, &mut [], &inputs, &page, &go, &mut link);
                            let run = run.unwrap();
                            (run.outputs, run.high_water_bytes)
                        } else {
                            let show = &mut |_: &str, _: &Tensor| {};
                            (eval_among(graph, &mut [], &inputs, &page, show, &mut link).unwrap(), 0)
                        }
                    })
                };
                let handles: Vec<_> = threads(world, LIMIT).into_iter().map(start).collect();
                handles.into_iter().map(|h| h.join().unwrap()).collect()
            })
        };
        let (planned, plain) = (run(true), run(false));
        for ((outputs, high_water), (expected, _)) in planned.iter().zip(&plain) {
            assert_eq!(outputs.len(), expected.len());
            let same = outputs.iter().zip(expected).all(|(a, b)| a.bytes() == b.bytes());
            assert!(same, "planned and reference differ on {world} ranks");
            assert_eq!(*high_water, plan.schedule.arena_bytes);
        }
        assert_eq!(planned[0].0[0].bytes().len(), 4);
    }
}

/// A collective in a checkpointed region runs once, and the gradients are those without the region.
#[test]
fn a_region_issues_a_collective_once() {
    let text = |body: &str| {
        format!(
            "fn f(x, w) = tanh(all_reduce(tanh(x @ w), mean: true))
             step s(x: f32[4, 4], w: f32[4, 4]) {{
               let y = {body}
               return grad(sum(y * y), w)
             }}"
        )
    };
    let starts = |program: &tg::Program| {
        let nodes = program.plan("s").expect("it is planned").graph.nodes();
        nodes.filter(|n| matches!(n.op(), Op::CollectiveStart(_))).count()
    };
    let (plain, region) = (compile(2, &text("f(x, w)")), compile(2, &text("checkpoint < f(x, w) >")));
    // One forward, one for the cotangent.
    assert_eq!((starts(&plain), starts(&region)), (2, 2));
    let run = |program| {
        on_ranks(program, |session, rank| {
            let x: Vec<f64> = (0..16).map(|k| element(rank as usize, k) / 10.0).collect();
            let w: Vec<f64> = (0..16).map(|k| element(3, k) / 20.0).collect();
            let args = [tensor(DType::F32, &[4, 4], &x).into(), tensor(DType::F32, &[4, 4], &w).into()];
            let g = session.call("s", &args).unwrap_or_else(|error| panic!("{error}"));
            numbers(g.as_tensor().expect("a gradient"))
        })
    };
    let (a, b) = (run(&plain), run(&region));
    assert!(a == b && a[0].iter().any(|g| *g != 0.0));
}

#[test]
fn one_rank_adds_nothing_to_the_graph() {
    let text = "step f(x: f32[6]) { return all_gather(x) + all_reduce(x, mean: true) + reduce_scatter(x) + broadcast(x) }";
    let program = compile(1, text);
    let graph = &program.plan("f").expect("it is planned").graph;
    assert!(!graph.nodes().any(|n| matches!(n.op(), Op::CollectiveStart(_) | Op::CollectiveDone(_))));
}

#[test]
fn what_cannot_be_is_refused_on_any_number_of_ranks() {
    for (world, body, message) in [
        (1, "all_gather(sum(x))", "`all_gather` works along axis 0, got a scalar f32"),
        (2, "all_gather(sum(x))", "`all_gather` works along axis 0, got a scalar f32"),
        (4, "reduce_scatter(x)", "`reduce_scatter` of f32[6]: axis 0 does not divide into 4 equal parts"),
        (1, "all_reduce(x > 0)", "`all_reduce` cannot sum bool[6]"),
        (
            3,
            "all_reduce(i32(x), mean: true)",
            "`all_reduce` with `mean: true` needs floating-point values, got i32[6]",
        ),
    ] {
        let text = format!("step f(x: f32[6]) {{ return {body} }}");
        let error = try_compile(world, &text).map(|_| ()).expect_err(body);
        assert_eq!(messages(&error), message);
    }
}
