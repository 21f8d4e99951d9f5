//! Short forms for the tests: graphs with inputs, runs, comparisons.

use std::sync::atomic::AtomicBool;

use half::{bf16, f16};
use tg::{
    exec::{
        Tensor,
        cpu::{Run, ScalarPage},
    },
    ir::{DType, Graph, Input, Origins, Output, Type, ValueId},
    ops::{self, OpError},
};

pub use crate::device::executable;
use crate::device::{Arena, Executable, agrees, eval, reference};

pub type Build<'a> = &'a dyn Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, OpError>;

/// A tensor of any dtype from `f64` values.
pub fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    fn make<T: tg::exec::Element>(shape: &[usize], values: &[f64], f: impl Fn(f64) -> T) -> Tensor {
        Tensor::from_slice(shape, &values.iter().map(|&x| f(x)).collect::<Vec<T>>()).expect("as many values")
    }
    match dtype {
        DType::F32 => make(shape, values, |x| x as f32),
        DType::F16 => make(shape, values, f16::from_f64),
        DType::BF16 => make(shape, values, bf16::from_f64),
        DType::F64 => make(shape, values, |x| x),
        DType::I32 => make(shape, values, |x| x as i32),
        DType::I64 => make(shape, values, |x| x as i64),
        DType::U8 => make(shape, values, |x| x as u8),
        DType::Bool => make(shape, values, |x| x != 0.0),
    }
}

pub fn values(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.ty().elements()).map(|i| tensor.get_f64(i).expect("in range")).collect()
}

/// Numbers that look random and are the same every time, in [−1, 1).
pub fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

pub fn page() -> ScalarPage {
    ScalarPage { values: Vec::new(), seed: 7, step: 3 }
}

/// A graph with one input per tensor and the outputs that `build` makes.
pub fn graph(inputs: &[Tensor], build: Build<'_>) -> Graph {
    let mut graph = Graph::new();
    let mut args = Vec::new();
    for (index, tensor) in inputs.iter().enumerate() {
        graph.inputs.push(Input { name: format!("x{index}").into(), ty: tensor.ty().clone() });
        args.push(graph.value(ops::Input { index: index as u32 }, &[]).expect("an input"));
    }
    let outputs = build(&mut graph, &args).expect("the graph can be built");
    for (k, value) in outputs.into_iter().enumerate() {
        graph.outputs.push(Output { name: format!("y{k}").into(), value, origin: Origins::NOWHERE });
    }
    graph
}

/// Runs node by node.
pub fn run(inputs: &[Tensor], build: Build<'_>) -> Vec<Tensor> {
    eval(&graph(inputs, build), &mut [], inputs, &page()).expect("the graph runs")
}

pub type Function<'a> = &'a dyn Fn(&mut Graph, &[ValueId]) -> Result<ValueId, OpError>;

pub fn run1(inputs: &[Tensor], build: Function<'_>) -> Tensor {
    run(inputs, &|graph, args| Ok(vec![build(graph, args)?])).remove(0)
}

pub fn run_executable(executable: &mut Executable, slots: &mut [Tensor], inputs: &[Tensor]) -> Run {
    let mut arena = Arena::new(1 << 32);
    executable.run(&mut arena, slots, inputs, &page(), &AtomicBool::new(false)).expect("the plan runs")
}

/// Runs planned, and wants what the reference interpreter gives.
pub fn run_both(inputs: &[Tensor], build: Build<'_>) -> Vec<Tensor> {
    let graph = graph(inputs, build);
    let plain = reference(&graph, &mut [], inputs, &page()).expect("the graph runs");
    let planned = run_executable(&mut executable(&graph), &mut [], inputs).outputs;
    for (k, (a, b)) in plain.iter().zip(&planned).enumerate() {
        assert!(agrees(a, b), "output {k}: {a:?} {:?} {:?}", values(a), values(b));
    }
    plain
}

/// Runs on pools of 1, 2 and 3 threads, and wants the same bits.
pub fn same_on_all_threads(inputs: &[Tensor], build: Build<'_>) {
    let graph = graph(inputs, build);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| eval(&graph, &mut [], inputs, &page()).expect("the graph runs"))
    };
    let one = on(1);
    for threads in [2, 3] {
        for (a, b) in one.iter().zip(on(threads)) {
            assert!(*a == b, "{threads} threads give other bits than one: {a:?}");
        }
    }
}

pub fn ty(dtype: DType, shape: &[usize]) -> Type {
    Type::new(dtype, shape).expect("a small type")
}

/// Half the distance of two neighbours of 1 in this dtype: the relative error of rounding.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON / 2.0,
        DType::F32 => f64::from(f32::EPSILON) / 2.0,
        DType::F16 => f16::EPSILON.to_f64() / 2.0,
        DType::BF16 => bf16::EPSILON.to_f64() / 2.0,
        _ => 0.0,
    }
}

/// The nearest value of this dtype.
pub fn round_to(dtype: DType, x: f64) -> f64 {
    tensor(dtype, &[1], &[x]).get_f64(0).expect("one element")
}

pub const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];
