//! Every kernel through the real NVRTC, for every architecture: none is rejected, none spills registers.
//!
//! `TG_TEST_NVRTC` names the folder that `libnvrtc` lies in (somewhere below it will do; `.ci/run` installs it);
//! without it the tests print a line and pass. A driver or a device is not needed.

use std::{
    collections::BTreeMap,
    ffi::CString,
    path::{Path, PathBuf},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use cudarc::nvrtc::{result, sys};
use tg::{
    engine::{CompileOptions, Engine, Source},
    exec::cuda::{COMPILE_OPTIONS, sources},
    ir::{DType, Graph, Input, Origins, Output, ScalarSource, Type, ValueId},
    lower::PlanOptions,
    ops::{self, *},
    plan::Target,
};

/// From the oldest that kernels are written for to the newest.
const ARCHITECTURES: [u32; 4] = [75, 80, 90, 100];

/// The library, found below the folder and loaded. It does not find its builtins beside itself.
fn nvrtc() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    *LOADED.get_or_init(|| {
        let Some(folder) = std::env::var_os("TG_TEST_NVRTC").filter(|f| !f.is_empty()) else {
            println!("skipped: `TG_TEST_NVRTC` does not name the folder of libnvrtc");
            return false;
        };
        for stem in ["libnvrtc-builtins.so", "libnvrtc.so"] {
            let file = find(Path::new(&folder), stem).unwrap_or_else(|| panic!("no `{stem}` in {folder:?}"));
            // SAFETY: NVIDIA's own library.
            let library = unsafe { libloading::Library::new(&file) };
            std::mem::forget(library.unwrap_or_else(|error| panic!("{}: {error}", file.display())));
        }
        true
    })
}

fn find(folder: &Path, stem: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let fits = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem));
    files.into_iter().find(fits).or_else(|| folders.iter().find_map(|folder| find(folder, stem)))
}

/// What the compiler said; `Err` where it refused.
fn compile(text: &str, architecture: u32) -> Result<String, String> {
    let text = CString::new(text).expect("a text");
    let program = result::create_program(&text, None).expect("a program");
    let mut options = vec![format!("--gpu-architecture=sm_{architecture}"), "--ptxas-options=-v".to_owned()];
    options.extend(COMPILE_OPTIONS.map(str::to_owned));
    // SAFETY: the program is alive until it is destroyed below.
    let (compiled, log) = unsafe {
        let compiled = result::compile_program(program, &options);
        let log = result::get_program_log(program).expect("a log");
        let mut bytes = 0;
        if compiled.is_ok() {
            sys::nvrtcGetCUBINSize(program, &raw mut bytes).result().expect("a size");
            assert!(bytes > 0, "no machine code");
        }
        result::destroy_program(program).expect("a program of this function");
        (compiled, log)
    };
    let log: String = log.iter().map(|&c| c as u8 as char).filter(|&c| c != '\0').collect();
    compiled.map(|()| log.clone()).map_err(|error| format!("{error:?}\n{log}"))
}

/// Bytes of registers that a kernel keeps in memory, by what the assembler says.
fn spilled(log: &str) -> u64 {
    let before = |words: &str| {
        let at = log.match_indices(words).map(|(at, _)| &log[..at]);
        at.filter_map(|text| text.split_whitespace().next_back()?.parse::<u64>().ok()).sum::<u64>()
    };
    before(" bytes spill stores") + before(" bytes spill loads")
}

/// Behind the name of a kernel that runs for several sets of arguments at once.
const MERGED: &str = "_merged";

/// Texts by themselves, with a function of each.
type Texts = BTreeMap<String, String>;

fn compile_all(texts: Texts, what: &str) {
    let work: Vec<(String, String, u32)> = texts
        .into_iter()
        .flat_map(|(text, function)| {
            // What is added to each text is the same for all.
            let some = if function.ends_with(MERGED) { &ARCHITECTURES[1..2] } else { &ARCHITECTURES };
            some.iter().map(move |&arch| (text.clone(), function.clone(), arch)).collect::<Vec<_>>()
        })
        .collect();
    assert!(!work.is_empty(), "{what}: no kernels");
    let (next, bad) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((text, function, arch)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match compile(text, *arch) {
                        Err(log) => bad.lock().unwrap().push(format!("`{function}` for sm_{arch}: {log}")),
                        Ok(log) if spilled(&log) > 0 => {
                            bad.lock().unwrap().push(format!("`{function}` for sm_{arch} spills: {log}"));
                        }
                        Ok(_) => {}
                    }
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap();
    println!("{what}: {} compilations for {ARCHITECTURES:?}, {} bad", work.len(), bad.len());
    assert!(bad.is_empty(), "{what}: {} are bad, such as\n{}", bad.len(), bad[..bad.len().min(5)].join("\n"));
}

fn add(texts: &mut Texts, plan: &tg::plan::Plan) {
    for source in sources(plan).expect("the kernels of a plan") {
        texts.insert(source.text, source.function.to_string());
        if !source.function.ends_with(MERGED) {
            texts.insert(source.merged, format!("{}{MERGED}", source.function));
        }
    }
}

/// The kernels of one op on operands of these types.
fn op(texts: &mut Texts, op: impl Into<Op>, types: &[(DType, &[usize])]) {
    let op = op.into();
    graph(texts, types, |graph, args| {
        let node = graph.push(op, args)?;
        Ok(graph.node(node).results().collect())
    });
}

fn graph(
    texts: &mut Texts,
    types: &[(DType, &[usize])],
    build: impl FnOnce(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, OpError>,
) {
    let mut graph = Graph::new();
    let mut args = Vec::new();
    for (index, &(dtype, shape)) in types.iter().enumerate() {
        let ty = Type::new(dtype, shape).expect("a small type");
        graph.inputs.push(Input { name: format!("x{index}").into(), ty });
        args.push(graph.value(ops::Input { index: index as u32 }, &[]).expect("an input"));
    }
    for value in build(&mut graph, &args).expect("the graph can be built") {
        graph.outputs.push(Output { name: "y".into(), value, origin: Origins::NOWHERE });
    }
    let options = PlanOptions { target: Target::Cuda, ..PlanOptions::default() };
    add(texts, &tg::lower::plan(&graph, "test", &options).expect("it can be planned"));
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

fn element_wise() -> Texts {
    let mut texts = Texts::new();
    let small: &[usize] = &[6, 35];
    for dtype in FLOATS {
        // All functions of one dtype are one kernel.
        graph(&mut texts, &[(dtype, small), (dtype, small)], |graph, args| {
            let mut sum = args[0];
            for unary in Unary::ALL.into_iter().filter(|&unary| unary != Unary::Not) {
                let y = graph.unary(unary, args[1])?;
                let y =
                    if graph.ty(y).dtype() == dtype { y } else { graph.value(Cast { to: dtype }, &[y])? };
                sum = graph.add(sum, y)?;
            }
            for binary in Binary::ALL {
                let Ok(y) = graph.binary(binary, args[0], args[1]) else { continue };
                let y =
                    if graph.ty(y).dtype() == dtype { y } else { graph.value(Cast { to: dtype }, &[y])? };
                sum = graph.add(sum, y)?;
            }
            Ok(vec![sum])
        });
    }
    for dtype in [DType::I32, DType::I64, DType::U8, DType::Bool] {
        let is_bool = dtype == DType::Bool;
        graph(&mut texts, &[(dtype, small), (dtype, small)], |graph, args| {
            let mut all = Vec::new();
            for binary in Binary::ALL {
                let takes = match binary {
                    Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => true,
                    Binary::And | Binary::Or => is_bool,
                    Binary::Div => false,
                    _ => !is_bool,
                };
                if takes {
                    all.push(graph.binary(binary, args[0], args[1])?);
                }
            }
            for unary in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Relu, Unary::Not] {
                if (unary == Unary::Not) == is_bool {
                    all.push(graph.unary(unary, args[0])?);
                }
            }
            Ok(all)
        });
    }
    for dtype in DType::ALL {
        op(&mut texts, Select, &[(DType::Bool, small), (dtype, small), (dtype, small)]);
        if dtype != DType::Bool {
            let ty = Type::new(dtype, small).expect("a small type");
            op(&mut texts, Iota { ty, axis: 1 }, &[]);
            graph(&mut texts, &[(dtype, small)], |graph, args| {
                graph.scalars.push(ScalarSource::Step);
                let scalar = graph.value(Scalar { index: 0, dtype }, &[])?;
                let scalar = graph.broadcast(scalar, small)?;
                Ok(vec![graph.add(args[0], scalar)?])
            });
        }
    }
    for from in DType::ALL {
        graph(&mut texts, &[(from, small)], |graph, args| {
            DType::ALL.iter().map(|&to| graph.value(Cast { to }, args)).collect()
        });
    }
    for (dtype, distribution) in [
        (DType::F32, Distribution::Uniform),
        (DType::F64, Distribution::Uniform),
        (DType::F32, Distribution::Normal),
        (DType::F64, Distribution::Normal),
        (DType::BF16, Distribution::Normal),
        (DType::I64, Distribution::Bits),
    ] {
        let ty = Type::new(dtype, [100]).expect("a small type");
        op(&mut texts, Random { ty, distribution, key: 3, per_step: true }, &[]);
    }
    texts
}

fn reductions_and_movement() -> Texts {
    let mut texts = Texts::new();
    let small: &[usize] = &[6, 35];
    for dtype in DType::ALL {
        for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
            let fits = match kind {
                ReduceKind::Mean => dtype.is_float(),
                ReduceKind::Sum | ReduceKind::Prod => dtype != DType::Bool,
                _ => true,
            };
            if !fits {
                continue;
            }
            op(&mut texts, Reduce { kind, axes: [1].into() }, &[(dtype, small)]);
            // The text is the same for all kinds but for what is folded; the layouts differ.
            if matches!(kind, ReduceKind::Sum | ReduceKind::Max) {
                op(&mut texts, Reduce { kind, axes: [0].into() }, &[(dtype, &[300, 500])]);
                op(&mut texts, Reduce { kind, axes: [0, 1].into() }, &[(dtype, &[300, 500])]);
            }
        }
        op(&mut texts, ArgReduce { largest: true, axis: 1 }, &[(dtype, small)]);
        op(&mut texts, ArgReduce { largest: false, axis: 0 }, &[(dtype, small)]);
        op(&mut texts, Concat { axis: 1 }, &[(dtype, small), (dtype, small)]);
        op(&mut texts, Gather, &[(dtype, &[9, 4]), (DType::I32, &[5])]);
        op(&mut texts, Gather, &[(dtype, &[9, 4]), (DType::I64, &[5])]);
        if dtype.is_float() {
            op(&mut texts, ScatterAdd { rows: 9 }, &[(DType::I32, &[5]), (dtype, &[5, 4])]);
        }
        // A copy through a transposition.
        graph(&mut texts, &[(dtype, &[64, 96])], |graph, args| {
            let turned = graph.transpose_last(args[0])?;
            Ok(vec![graph.value(Copy, &[turned])?])
        });
        graph(&mut texts, &[(dtype, &[2, 30, 40]), (dtype, &[2, 40, 50])], |graph, args| {
            match graph.matmul(args[0], args[1]) {
                Err(_) if dtype == DType::Bool => Ok(Vec::new()),
                product => Ok(vec![product?]),
            }
        });
        graph(
            &mut texts,
            &[(dtype, &[30, 40]), (dtype, &[50, 40]), (dtype, &[50])],
            |graph, args| match graph.linear(args[0], args[1], args[2]) {
                Err(_) if dtype == DType::Bool => Ok(Vec::new()),
                product => Ok(vec![product?]),
            },
        );
        let part: [SliceRange; 2] =
            [SliceRange { start: 1, step: 2, size: 6 }, SliceRange { start: 3, step: 1, size: 35 }];
        op(&mut texts, Pad { shape: [13, 40].into(), ranges: part.into() }, &[(dtype, small)]);
        op(&mut texts, Insert { ranges: part.into() }, &[(dtype, &[13, 40]), (dtype, small)]);
    }
    texts
}

fn networks() -> Texts {
    let mut texts = Texts::new();
    let eps = Number::float(1e-5);
    let (rows, vector): (&[usize], &[usize]) = (&[6, 35], &[35]);
    let conv = ConvShape { stride: (1, 2), padding: (1, 0), dilation: (1, 1), groups: 2 };
    let pool = PoolShape { kernel: (3, 2), stride: (2, 2), padding: (1, 1) };
    for dtype in FLOATS {
        let wide = dtype.accumulator();
        // `t` is of the dtype at hand, `a` of its accumulator.
        fn of(dtype: DType) -> impl Fn(&[usize]) -> (DType, &[usize]) {
            move |shape| (dtype, shape)
        }
        let (t, a) = (of(dtype), of(wide));
        op(&mut texts, Softmax, &[t(rows)]);
        op(&mut texts, LogSoftmax, &[t(rows)]);
        op(&mut texts, SoftmaxGrad, &[t(rows), t(rows)]);
        for labels in [DType::I32, DType::I64] {
            op(&mut texts, CrossEntropy, &[t(rows), (labels, &[6])]);
            op(&mut texts, CrossEntropyGrad, &[t(rows), (labels, &[6]), a(&[6]), t(&[6])]);
        }
        op(&mut texts, LayerNorm { eps }, &[t(rows), t(vector), t(vector)]);
        op(&mut texts, LayerNormGrad, &[t(rows), t(vector), a(&[6]), a(&[6]), t(rows)]);
        op(&mut texts, RmsNorm { eps }, &[t(rows), t(vector)]);
        op(&mut texts, RmsNormGrad, &[t(rows), t(vector), a(&[6]), t(rows)]);
        op(&mut texts, BatchNorm { eps }, &[t(rows), t(vector), t(vector)]);
        op(&mut texts, BatchNormGrad { eps }, &[t(rows), t(vector), a(vector), a(vector), t(rows)]);
        let (image, weight): (&[usize], &[usize]) = (&[2, 4, 9, 10], &[6, 2, 3, 3]);
        op(&mut texts, Conv2d { shape: conv }, &[t(image), t(weight)]);
        op(&mut texts, Conv2d { shape: conv }, &[t(image), t(weight), t(&[6])]);
        let out: &[usize] = &[2, 6, 9, 4];
        op(&mut texts, Conv2dGradInput { shape: conv, input: (9, 10) }, &[t(weight), t(out)]);
        op(&mut texts, Conv2dGradWeight { shape: conv, kernel: (3, 3) }, &[t(image), t(out)]);
        let pooled: &[usize] = &[2, 4, 5, 6];
        op(&mut texts, MaxPool2d { shape: pool }, &[t(image)]);
        op(&mut texts, MaxPool2dGrad { shape: pool }, &[t(image), t(pooled)]);
        op(&mut texts, MaxPool2dGather { shape: pool }, &[t(image), t(image)]);
        op(&mut texts, AvgPool2d { shape: pool }, &[t(image)]);
        op(&mut texts, AvgPool2dGrad { shape: pool, input: (9, 10) }, &[t(pooled)]);
        // Each takes the compiler seconds. Masks change a comparison, depths the length of loops.
        let (width, causal) = if dtype.size() == 2 { (128, true) } else { (64, false) };
        let scale = Number::float(0.25);
        let heads = [2, 3, 70, width];
        op(&mut texts, Attention { causal, scale }, &[t(&heads), t(&heads), t(&heads)]);
        let lse: &[usize] = &[2, 3, 70];
        op(
            &mut texts,
            AttentionGrad { causal, scale },
            &[t(&heads), t(&heads), t(&heads), t(&heads), a(lse), t(&heads)],
        );
    }
    texts
}

/// Convolutions of half types in every size of tile, with terms by tap and in the order of the weights.
fn convolutions() -> Texts {
    let mut texts = Texts::new();
    // (images, channels, height, outputs, kernel, stride, padding, groups)
    let cases = [
        (32, 64, 56, 256, 3, 1, 1, 1),
        (8, 48, 33, 40, 3, 2, 1, 1),
        (32, 128, 56, 128, 3, 2, 1, 1),
        (16, 3, 224, 24, 7, 2, 3, 1),
        (1, 36, 9, 20, 2, 1, 0, 2),
        (4, 64, 14, 64, 1, 1, 0, 1),
    ];
    for dtype in [DType::F16, DType::BF16] {
        for (n, c, h, o, k, stride, padding, groups) in cases {
            let pair = |size| (size, size);
            let shape = ConvShape { stride: pair(stride), padding: pair(padding), dilation: (1, 1), groups };
            let (x, w) = ([n, c, h, h], [o, c / groups, k, k]);
            let side = (h + 2 * padding - k) / stride + 1;
            let y = [n, o, side, side];
            op(&mut texts, Conv2d { shape }, &[(dtype, &x), (dtype, &w), (dtype, &[o])]);
            op(&mut texts, Conv2dGradInput { shape, input: pair(h) }, &[(dtype, &w), (dtype, &y)]);
            op(&mut texts, Conv2dGradWeight { shape, kernel: pair(k) }, &[(dtype, &x), (dtype, &y)]);
        }
    }
    texts
}

/// The kernels of all steps of a program, at the sizes that it is written for.
fn example(texts: &mut Texts, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
    let options = CompileOptions { target: Target::Cuda, ..CompileOptions::default() };
    let source = Source::file(path).expect("it can be read");
    // What the programs say of their peaks is meant for the CPU, whose kernels need less beside.
    let plans = Engine::new().check(source, &options).plans;
    assert!(!plans.is_empty(), "{file} has no plans");
    for plan in plans {
        add(texts, &plan);
    }
}

#[test]
fn element_wise_kernels() {
    if nvrtc() {
        compile_all(element_wise(), "element-wise");
    }
}

#[test]
fn kernels_of_reductions_and_movement() {
    if nvrtc() {
        compile_all(reductions_and_movement(), "reductions and movement");
    }
}

#[test]
fn kernels_of_networks() {
    if nvrtc() {
        compile_all(networks(), "networks");
    }
}

#[test]
fn kernels_of_convolutions() {
    if nvrtc() {
        compile_all(convolutions(), "convolutions");
    }
}

#[test]
fn kernels_of_the_examples() {
    if nvrtc() {
        let mut texts = Texts::new();
        for file in ["gpt.tg", "blocks.tg", "convnet.tg", "digits.tg", "budget.tg"] {
            example(&mut texts, file);
        }
        compile_all(texts, "examples");
    }
}

/// A kernel that keeps an array in registers, of more than there are.
const GREEDY: &str = r#"
    extern "C" __global__ void __launch_bounds__(1024) greedy(float* x, int n) {
        float kept[96];
        #pragma unroll
        for (int k = 0; k < 96; k++) kept[k] = x[k * n + threadIdx.x];
        for (int round = 0; round < n; round++) {
            #pragma unroll
            for (int k = 0; k < 96; k++) kept[k] = kept[k] * kept[(k + 1) % 96] + x[round];
        }
        #pragma unroll
        for (int k = 0; k < 96; k++) x[k * n + threadIdx.x] = kept[k];
    }"#;

#[test]
fn spills_and_faults_are_seen() {
    if nvrtc() {
        let log = compile(GREEDY, 80).expect("it compiles");
        assert!(spilled(&log) > 0, "{log}");
        let log = compile("extern \"C\" __global__ void f(float* x) { *x = y; }", 80).unwrap_err();
        assert!(log.contains("\"y\" is undefined"), "{log}");
    }
}
