//! Builds graphs of one op, runs them, and compares: with other tensors, with finite differences.

use half::{bf16, f16};
use tg::{
    exec::{Tensor, cpu::ScalarPage},
    grad::gradients,
    ir::{DType, Graph, Input, Origins, Output, Type, ValueId},
    ops::{self, Op, OpError},
};

use crate::device::eval;

pub const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// Repeatable numbers in −1..1, with no two alike.
pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    (0..count)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

pub fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    match dtype {
        DType::F64 => Tensor::from_slice(shape, values),
        DType::F32 => Tensor::from_slice(shape, &convert(values, |v| v as f32)),
        DType::F16 => Tensor::from_slice(shape, &convert(values, f16::from_f64)),
        DType::BF16 => Tensor::from_slice(shape, &convert(values, bf16::from_f64)),
        DType::I32 => Tensor::from_slice(shape, &convert(values, |v| v as i32)),
        DType::I64 => Tensor::from_slice(shape, &convert(values, |v| v as i64)),
        DType::U8 => Tensor::from_slice(shape, &convert(values, |v| v as u8)),
        DType::Bool => Tensor::from_slice(shape, &convert(values, |v| v != 0.0)),
    }
    .expect("as many values as the shape has elements")
}

fn convert<T>(values: &[f64], to: impl Fn(f64) -> T) -> Vec<T> {
    values.iter().map(|&v| to(v)).collect()
}

pub fn random(seed: u64, shape: &[usize]) -> Tensor {
    tensor(DType::F64, shape, &numbers(seed, shape.iter().product()))
}

pub fn ints(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::from_slice(shape, values).expect("as many values as the shape has elements")
}

pub fn values(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.ty().elements()).map(|i| tensor.get_f64(i).expect("an element")).collect()
}

/// The same numbers in another type.
pub fn cast(x: &Tensor, dtype: DType) -> Tensor {
    tensor(dtype, x.shape(), &values(x))
}

/// A graph whose inputs have the types of `args`, and their values.
pub fn inputs(graph: &mut Graph, args: &[Tensor]) -> Vec<ValueId> {
    args.iter()
        .map(|arg| {
            let index = graph.inputs.len() as u32;
            graph.inputs.push(Input { name: format!("x{index}").into(), ty: arg.ty().clone() });
            graph.value(ops::Input { index }, &[]).expect("an input")
        })
        .collect()
}

pub fn output(graph: &mut Graph, value: ValueId) {
    let name = format!("y{}", graph.outputs.len()).into();
    graph.outputs.push(Output { name, value, origin: Origins::NOWHERE });
}

pub fn page() -> ScalarPage {
    ScalarPage::default()
}

/// Builds a graph from inputs and runs it.
pub fn run_graph(
    args: &[Tensor],
    build: impl Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, OpError>,
) -> Result<Vec<Tensor>, String> {
    let mut graph = Graph::new();
    let values = inputs(&mut graph, args);
    for value in build(&mut graph, &values).map_err(|e| e.to_string())? {
        output(&mut graph, value);
    }
    eval(&graph, &mut [], args, &page()).map_err(|e| e.to_string())
}

/// All results of one op.
pub fn apply(op: impl Into<Op>) -> impl Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, OpError> {
    let op = op.into();
    move |graph, args| {
        let node = graph.push(op.clone(), args)?;
        Ok(graph.node(node).results().collect())
    }
}

pub fn try_run(op: impl Into<Op>, args: &[Tensor]) -> Result<Vec<Tensor>, String> {
    run_graph(args, apply(op))
}

pub fn run(op: impl Into<Op>, args: &[Tensor]) -> Vec<Tensor> {
    try_run(op, args).expect("the op runs")
}

/// The first result.
pub fn run1(op: impl Into<Op>, args: &[Tensor]) -> Tensor {
    run(op, args).swap_remove(0)
}

/// How far results of a type may be from the exact ones, relative to the largest.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    }
}

pub fn assert_close(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    let scale = expected.iter().filter(|v| v.is_finite()).fold(1e-3, |a: f64, &b| a.max(b.abs()));
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let same = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * scale;
        assert!(same, "{what}: element {i} is {g:e}, expected {e:e} (scale {scale:e})");
    }
}

/// Floating-point operands in `dtype` (statistics, the positions in `wide`, in its accumulator).
pub fn in_dtype(args: &[Tensor], dtype: DType, wide: &[usize]) -> Vec<Tensor> {
    args.iter()
        .enumerate()
        .map(|(k, arg)| {
            let to = if wide.contains(&k) { dtype.accumulator() } else { dtype };
            if arg.dtype().is_float() { cast(arg, to) } else { arg.clone() }
        })
        .collect()
}

/// In every type: the results are those of `reference` for the rounded operands.
pub fn check_values(
    op: impl Into<Op>,
    args: &[Tensor],
    wide: &[usize],
    reference: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>>,
) {
    let op = op.into();
    for dtype in FLOATS {
        let args = in_dtype(args, dtype, wide);
        let exact = reference(&args.iter().map(values).collect::<Vec<_>>());
        let results = run(op.clone(), &args);
        assert_eq!(results.len(), exact.len(), "`{}`: number of results", op.name());
        for (k, (result, exact)) in results.iter().zip(&exact).enumerate() {
            let what = format!("`{}` in {dtype}, result {k}", op.name());
            assert_close(
                &values(result),
                exact,
                tolerance(result.dtype()).max(tolerance(dtype) / 8.0),
                &what,
            );
        }
    }
}

/// In every type: the composed form gives the same, and both what they give in f64.
pub fn check_composed(op: impl Into<Op>, args: &[Tensor], wide: &[usize]) {
    let op = op.into();
    for dtype in FLOATS {
        let args = in_dtype(args, dtype, wide);
        let kernel = run(op.clone(), &args);
        let composed =
            run_graph(&args, |graph, values| op.decompose(graph, values)).expect("the composed form runs");
        let exact = run(op.clone(), &in_dtype(&args, DType::F64, &[]));
        assert_eq!(kernel.len(), composed.len(), "`{}`: number of results", op.name());
        for (k, ((kernel, composed), exact)) in kernel.iter().zip(&composed).zip(&exact).enumerate() {
            let what = format!("`{}` in {dtype}, result {k}", op.name());
            assert_eq!(kernel.ty(), composed.ty(), "{what}");
            let tolerance = tolerance(kernel.dtype()).max(tolerance(dtype) / 8.0);
            assert_close(&values(composed), &values(kernel), 2.0 * tolerance, &format!("{what}, composed"));
            assert_close(&values(kernel), &values(exact), tolerance, &what);
        }
    }
}

type Build<'a> = &'a dyn Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, OpError>;

/// The graph of the gradients of Σ cotangent·result, over operands followed by cotangents.
fn backward(
    graph: &mut Graph,
    build: Build<'_>,
    operands: usize,
    wrt: &[usize],
    given: &[ValueId],
) -> Result<Vec<ValueId>, OpError> {
    let (args, cotangents) = given.split_at(operands);
    let results: Vec<ValueId> =
        build(graph, args)?.into_iter().filter(|&v| graph.ty(v).dtype().is_float()).collect();
    let pairs: Vec<(ValueId, ValueId)> = results.into_iter().zip(cotangents.iter().copied()).collect();
    let of: Vec<ValueId> = wrt.iter().map(|&k| args[k]).collect();
    let found = gradients(graph, &pairs, &of).map_err(|e| e.error)?;
    found
        .into_iter()
        .zip(of)
        .map(|(gradient, of)| match gradient {
            Some(gradient) => Ok(gradient),
            None => graph.splat_like(of, 0.0),
        })
        .collect()
}

fn result_types(build: Build<'_>, args: &[Tensor]) -> Vec<Type> {
    let mut graph = Graph::new();
    let values = inputs(&mut graph, args);
    let results = build(&mut graph, &values).expect("the graph is built");
    results.into_iter().map(|v| graph.ty(v).clone()).filter(|t| t.dtype().is_float()).collect()
}

/// The operands, then a cotangent for each result. The first `results` ones are random, others 0.
fn with_cotangents(build: Build<'_>, args: &[Tensor], results: usize, seed: u64) -> Vec<Tensor> {
    let mut all = args.to_vec();
    for (k, ty) in result_types(build, args).iter().enumerate() {
        let cotangent = random(seed + k as u64, ty.shape());
        all.push(if k < results { cotangent } else { Tensor::zeros(ty.clone()) });
    }
    all
}

/// First-order gradients, f64, against central differences.
fn check_first(build: Build<'_>, args: &[Tensor], wrt: &[usize], results: usize, what: &str) {
    let all = with_cotangents(build, args, results, 900);
    let operands = args.len();
    let analytic =
        run_graph(&all, |graph, given| backward(graph, build, operands, wrt, &given[..operands + results]))
            .expect("the gradient runs");
    let mut graph = Graph::new();
    let given = inputs(&mut graph, args);
    let built = build(&mut graph, &given).expect("the graph is built");
    for value in built.into_iter().filter(|&v| graph.ty(v).dtype().is_float()).collect::<Vec<_>>() {
        output(&mut graph, value);
    }
    let objective = |args: &[Tensor]| -> f64 {
        let results_of = eval(&graph, &mut [], args, &page()).expect("the graph runs");
        let weighted = results_of.iter().zip(&all[operands..]).take(results);
        weighted.map(|(r, c)| values(r).iter().zip(values(c)).map(|(a, b)| a * b).sum::<f64>()).sum()
    };
    for (gradient, &k) in analytic.iter().zip(wrt) {
        let (x, gradient) = (values(&args[k]), values(gradient));
        assert_eq!(gradient.len(), x.len(), "{what}: gradient of operand {k}");
        let scale = gradient.iter().fold(1.0, |a: f64, &b| a.max(b.abs()));
        // Every element of small operands, some of large ones.
        let step = x.len().div_ceil(40).max(1);
        for i in (0..x.len()).step_by(step) {
            let h = 1e-5;
            let at = |delta: f64| {
                let mut moved = x.clone();
                moved[i] += delta;
                let mut args = args.to_vec();
                args[k] = tensor(DType::F64, args[k].shape(), &moved);
                objective(&args)
            };
            // Fourth order: the error of the difference is far below the tolerance.
            let numeric = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
            assert!(
                (gradient[i] - numeric).abs() <= 1e-6 * scale,
                "{what}: gradient of operand {k} at {i} is {}, differences give {numeric}",
                gradient[i]
            );
        }
    }
}

/// First and second gradients of an op with respect to the operands `wrt`. `results` says through
/// how many of the results.
pub fn check_gradients(op: impl Into<Op>, args: &[Tensor], wrt: &[usize], results: usize) {
    let op = op.into();
    let name = op.name().to_owned();
    check_graph_gradients(&apply(op), args, wrt, results, &name);
}

pub fn check_graph_gradients(build: Build<'_>, args: &[Tensor], wrt: &[usize], results: usize, name: &str) {
    let args = in_dtype(args, DType::F64, &[]);
    check_first(build, &args, wrt, results, &format!("`{name}`"));
    let operands = args.len();
    let all = with_cotangents(build, &args, results, 300);
    let all = &all[..operands + results];
    let again = |graph: &mut Graph, given: &[ValueId]| backward(graph, build, operands, wrt, given);
    let both: Vec<usize> = wrt.iter().copied().chain(operands..operands + results).collect();
    check_first(&again, all, &both, wrt.len(), &format!("second gradient of `{name}`"));
}
