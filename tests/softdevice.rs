//! The software CUDA device by itself, through the same calls of cudarc that the runtime makes: what it
//! runs, and what it refuses.

#[path = "support/softdevice.rs"]
mod softdevice;

use std::{ffi::CString, sync::Arc};

use cudarc::{
    driver::{
        CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result, sys,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    },
    nvrtc::Ptx,
};

/// A context and a stream; `None` where there is no compiler.
fn device() -> Option<(Arc<CudaContext>, Arc<CudaStream>)> {
    if !softdevice::load() {
        return None;
    }
    let context = CudaContext::new(0).expect("a context");
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    Some((context, stream))
}

fn image(source: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    use cudarc::nvrtc::{result, sys};
    let source = CString::new(source).unwrap();
    let program = result::create_program(&source, None).unwrap();
    let compiled = unsafe { result::compile_program(program, options) };
    let log: Vec<u8> =
        unsafe { result::get_program_log(program) }.unwrap().iter().map(|&byte| byte as u8).collect();
    if compiled.is_err() {
        return Err(String::from_utf8_lossy(&log).into_owned());
    }
    let mut bytes = 0;
    unsafe { sys::nvrtcGetCUBINSize(program, &mut bytes) }.result().unwrap();
    let mut image = vec![0u8; bytes];
    unsafe { sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) }.result().unwrap();
    unsafe { result::destroy_program(program) }.unwrap();
    Ok(image)
}

fn function(context: &Arc<CudaContext>, source: &str, name: &str) -> CudaFunction {
    let image = image(source, &["--gpu-architecture=sm_90", "--fmad=false"]).expect("a kernel that compiles");
    let module = context.load_module(Ptx::from_binary(image)).expect("a module");
    module.load_function(name).expect("a function")
}

fn config(grid: u32, block: u32, shared: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (block, 1, 1), shared_mem_bytes: shared }
}

const DOUBLE: &str = r#"
    extern "C" __global__ void twice(float* x, long long n) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * 2.0f;
    }"#;

#[test]
fn a_kernel_runs() {
    let Some((context, stream)) = device() else { return };
    let twice = function(&context, DOUBLE, "twice");
    let mut x = stream.clone_htod(&(0..1000).map(|k| k as f32).collect::<Vec<_>>()).unwrap();
    let n = 1000i64;
    unsafe { stream.launch_builder(&twice).arg(&mut x).arg(&n).launch(config(4, 256, 0)) }.unwrap();
    let out = stream.clone_dtoh(&x).unwrap();
    assert!(out.iter().enumerate().all(|(k, &value)| value == 2.0 * k as f32));
}

/// The sum of a block through static shared memory, warps and dynamic shared memory.
#[test]
fn threads_of_a_block_wait_for_each_other() {
    let Some((context, stream)) = device() else { return };
    let source = r#"
        #define KERNEL extern "C" __global__ void
        KERNEL sum(const float* x, float* out) {
            extern __shared__ __align__(16) float parts[];
            __shared__ float tree[256];
            int t = threadIdx.x;
            tree[t] = x[blockIdx.x * 256 + t];
            __syncthreads();
            for (int half = 128; half >= 32; half /= 2) {
                if (t < half) tree[t] += tree[t + half];
                __syncthreads();
            }
            if (t < 32) {
                float v = tree[t];
                for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(0xffffffffu, v, by);
                if (t == 0) parts[0] = v;
            }
            __syncthreads();
            if (t == 255) out[blockIdx.x] = parts[0];
        }"#;
    let sum = function(&context, source, "sum");
    let x = stream.clone_htod(&(0..512).map(|k| k as f32).collect::<Vec<_>>()).unwrap();
    let mut out = stream.alloc_zeros::<f32>(2).unwrap();
    unsafe { stream.launch_builder(&sum).arg(&x).arg(&mut out).launch(config(2, 256, 16)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [32640.0, 98176.0]);
}

/// Without a barrier threads read poison, not what their neighbour wrote.
#[test]
fn a_missing_barrier_shows() {
    let Some((context, stream)) = device() else { return };
    let source = r#"
        extern "C" __global__ void shift(float* out) {
            __shared__ float cells[64];
            cells[threadIdx.x] = 1.0f;
            out[threadIdx.x] = cells[(threadIdx.x + 1) % 64];
        }"#;
    let shift = function(&context, source, "shift");
    let mut out = stream.alloc_zeros::<f32>(64).unwrap();
    unsafe { stream.launch_builder(&shift).arg(&mut out).launch(config(1, 64, 0)) }.unwrap();
    assert!(stream.clone_dtoh(&out).unwrap().iter().any(|value| value.is_nan()));
}

#[test]
fn streams_are_deferred_and_events_order_them() {
    let Some((context, stream)) = device() else { return };
    let twice = function(&context, DOUBLE, "twice");
    let n = 4i64;
    for waits in [false, true] {
        let other = context.new_stream().unwrap();
        let mut x = stream.clone_htod(&[1f32, 2.0, 3.0, 4.0]).unwrap();
        stream.synchronize().unwrap();
        unsafe { stream.launch_builder(&twice).arg(&mut x).arg(&n).launch(config(1, 32, 0)) }.unwrap();
        if waits {
            other.wait(&stream.record_event(None).unwrap()).unwrap();
        }
        let seen = other.clone_dtoh(&x).unwrap();
        other.synchronize().unwrap();
        assert_eq!(seen[0], if waits { 2.0 } else { 1.0 });
        stream.synchronize().unwrap();
    }
}

#[test]
fn a_capture_is_replayed() {
    let Some((context, stream)) = device() else { return };
    let twice = function(&context, DOUBLE, "twice");
    let n = 2i64;
    let mut x = stream.clone_htod(&[1f32, 10.0]).unwrap();
    stream.synchronize().unwrap();
    let other = context.new_stream().unwrap();
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    unsafe { stream.launch_builder(&twice).arg(&mut x).arg(&n).launch(config(1, 32, 0)) }.unwrap();
    // A second stream joins by an event, and is joined again.
    other.wait(&stream.record_event(None).unwrap()).unwrap();
    unsafe { other.launch_builder(&twice).arg(&mut x).arg(&n).launch(config(1, 32, 0)) }.unwrap();
    stream.wait(&other.record_event(None).unwrap()).unwrap();
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [1.0, 10.0]);
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [16.0, 160.0]);
}

#[test]
fn what_a_capture_forbids() {
    let Some((context, stream)) = device() else { return };
    let twice = function(&context, DOUBLE, "twice");
    let n = 2i64;
    let mut x = stream.clone_htod(&[1f32, 10.0]).unwrap();
    stream.synchronize().unwrap();
    // Waiting for the device ends the capture.
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let error = stream.end_capture(sys::CUgraphInstantiate_flags(0)).err().expect("an error");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // So does a stream that was forked off and not joined.
    let other = context.new_stream().unwrap();
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    other.wait(&stream.record_event(None).unwrap()).unwrap();
    unsafe { other.launch_builder(&twice).arg(&mut x).arg(&n).launch(config(1, 32, 0)) }.unwrap();
    let error = stream.end_capture(sys::CUgraphInstantiate_flags(0)).err().expect("an error");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    stream.synchronize().unwrap();
}

#[test]
fn kernels_that_do_not_compile_say_why() {
    if device().is_none() {
        return;
    }
    let log =
        image("extern \"C\" __global__ void broken(float* x) { x[0] = y; }", &["--gpu-architecture=sm_90"])
            .unwrap_err();
    assert!(log.contains("kernel.cu:1") && log.contains("not declared"), "{log}");
    let log = image(DOUBLE, &["--no-such-option"]).unwrap_err();
    assert!(log.contains("--no-such-option"), "{log}");
}

#[test]
fn images_are_for_an_architecture() {
    let Some((context, _)) = device() else { return };
    let other = image(DOUBLE, &["--gpu-architecture=sm_75"]).unwrap();
    let error = context.load_module(Ptx::from_binary(other)).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let error = context.load_module(Ptx::from_src("no image")).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
    // Text in place of PTX is compiled when it is loaded.
    let ptx = cudarc::nvrtc::compile_ptx_with_opts(
        DOUBLE,
        cudarc::nvrtc::CompileOptions { arch: Some("compute_80"), ..Default::default() },
    )
    .unwrap();
    context.load_module(ptx).unwrap().load_function("twice").unwrap();
}

#[test]
fn fresh_memory_is_poisoned() {
    let Some((_, stream)) = device() else { return };
    let x = unsafe { stream.alloc::<f32>(8) }.unwrap();
    assert!(stream.clone_dtoh(&x).unwrap().iter().all(|value| value.is_nan()));
    let (free, total) = result::mem_get_info().unwrap();
    assert!(free < total);
    let error = unsafe { result::malloc_sync(total + 1) }.unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}

/// A product with both operands row-major, which are columns first for the library: c = a · b is c' = b' · a'.
#[test]
fn products_are_those_of_cublas_lt() {
    use cudarc::cublaslt::{
        result as lt,
        sys::{
            cublasComputeType_t::CUBLAS_COMPUTE_32F,
            cublasLtEpilogue_t::{CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS},
            cublasLtMatmulDescAttributes_t::{
                CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_TRANSB,
            },
            cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            cudaDataType_t::{CUDA_R_16F, CUDA_R_32F},
        },
    };
    use cudarc::driver::{DevicePtr, DevicePtrMut};

    let Some((_, stream)) = device() else { return };
    let (m, n, k) = (3usize, 4usize, 5usize);
    let a: Vec<f32> = (0..m * k).map(|i| i as f32 * 0.5 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| i as f32 * 0.25 - 2.0).collect();
    let bias: Vec<f32> = (0..n).map(|i| i as f32 * 10.0).collect();
    // The left operand lies transposed.
    let turned: Vec<f32> = (0..m * k).map(|i| a[(i % m) * k + i / m]).collect();
    let (on_a, on_b) = (stream.clone_htod(&turned).unwrap(), stream.clone_htod(&b).unwrap());
    let on_bias = stream.clone_htod(&bias).unwrap();
    let mut c = unsafe { stream.alloc::<f32>(m * n) }.unwrap();
    let workspace = unsafe { stream.alloc::<u8>(1024) }.unwrap();
    let transposed = 1i32;
    let limit = 1024u64;
    let epilogue = CUBLASLT_EPILOGUE_BIAS;
    let scale = [1f32, 0.0];
    let pointer = |slice: &dyn Fn() -> u64| slice() as *mut std::ffi::c_void;
    unsafe {
        let handle = lt::create_handle().unwrap();
        let desc = lt::create_matmul_desc(CUBLAS_COMPUTE_32F, CUDA_R_32F).unwrap();
        let at_bias = on_bias.device_ptr(&stream).0;
        for (attribute, value, bytes) in [
            (CUBLASLT_MATMUL_DESC_TRANSB, (&raw const transposed).cast(), 4),
            (CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), 4),
            (CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const at_bias).cast(), 8),
        ] {
            lt::set_matmul_desc_attribute(desc, attribute, value, bytes).unwrap();
        }
        let left = lt::create_matrix_layout(CUDA_R_32F, n as u64, k as u64, n as i64).unwrap();
        let right = lt::create_matrix_layout(CUDA_R_32F, m as u64, k as u64, m as i64).unwrap();
        let out = lt::create_matrix_layout(CUDA_R_32F, n as u64, m as u64, n as i64).unwrap();
        let preference = lt::create_matmul_pref().unwrap();
        let attribute = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        lt::set_matmul_pref_attribute(preference, attribute, (&raw const limit).cast(), 8).unwrap();
        let found = lt::get_matmul_algo_heuristic(handle, desc, left, right, out, out, preference).unwrap();
        assert!(found.workspaceSize <= 1024);
        let at_c = c.device_ptr_mut(&stream).0;
        let product = |at_a: u64| {
            lt::matmul(
                handle,
                desc,
                (&raw const scale[0]).cast(),
                (&raw const scale[1]).cast(),
                pointer(&|| on_b.device_ptr(&stream).0),
                left,
                at_a as *const std::ffi::c_void,
                right,
                at_c as *const std::ffi::c_void,
                out,
                at_c as *mut std::ffi::c_void,
                out,
                &raw const found.algo,
                pointer(&|| workspace.device_ptr(&stream).0),
                1024,
                stream.cu_stream().cast(),
            )
        };
        let at_a = on_a.device_ptr(&stream).0;
        // An operand that is less aligned than was promised, and one outside of what was allocated.
        product(at_a + 4).unwrap_err();
        product(at_a + 4096).unwrap_err();
        // A bias of another type, one that is less aligned than was promised, none, and another epilogue.
        let set = |attribute, value: *const std::ffi::c_void, bytes| {
            lt::set_matmul_desc_attribute(desc, attribute, value, bytes).unwrap();
        };
        let (half, same) = (CUDA_R_16F, -1i32);
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (&raw const half).cast(), 4);
        product(at_a).unwrap_err();
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (&raw const same).cast(), 4);
        for wrong in [at_bias + 16, at_bias + 4, 0] {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const wrong).cast(), 8);
            product(at_a).unwrap_err();
        }
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const at_bias).cast(), 8);
        let other = CUBLASLT_EPILOGUE_RELU_BIAS;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const other).cast(), 4);
        product(at_a).unwrap_err();
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), 4);
        product(at_a).unwrap();
    }
    let found = stream.clone_dtoh(&c).unwrap();
    for row in 0..m {
        for column in 0..n {
            let sum: f32 = (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum();
            assert!((found[row * n + column] - sum - bias[column]).abs() < 1e-4);
        }
    }
    // The library may write what it likes into its workspace; this one does.
    assert!(stream.clone_dtoh(&workspace).unwrap().iter().all(|&byte| byte == 0xff));
}

/// Which fault a child process of these tests commits.
const FAULT: &str = "SOFTDEVICE_TEST_FAULT";

/// A kernel that does something wrong, in a process of its own: errors stay.
#[test]
fn faults_of_kernels_are_found() {
    const KERNELS: &str = r#"
        extern "C" __global__ void write(float* x, long long at) { x[at] = 1.0f; }
        extern "C" __global__ void part(float* x) {
            if (threadIdx.x < 16) __syncthreads();
            x[0] = 1.0f;
        }"#;
    use sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED};
    // Just behind the allocation, just before it, far away; a barrier that half of the threads reach; a fault
    // on demand.
    let cases = [
        ("behind", "write", 8i64, CUDA_ERROR_ILLEGAL_ADDRESS),
        ("before", "write", -1, CUDA_ERROR_ILLEGAL_ADDRESS),
        ("away", "write", 1 << 40, CUDA_ERROR_ILLEGAL_ADDRESS),
        ("barrier", "part", 0, CUDA_ERROR_LAUNCH_FAILED),
        ("demand", "write", 0, CUDA_ERROR_LAUNCH_FAILED),
    ];
    let Ok(wanted) = std::env::var(FAULT) else {
        if softdevice::folder().is_none() {
            return;
        }
        for (case, ..) in cases {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "faults_of_kernels_are_found", "--nocapture"]).env(FAULT, case);
            if case == "demand" {
                child.env("SOFTDEVICE_FAULT", "launch:1");
            }
            let output = child.output().unwrap();
            assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("[software device] error"), "{case}: {said}");
        }
        return;
    };
    let (context, stream) = device().expect("a device");
    let (_, name, at, expected) = *cases.iter().find(|case| case.0 == wanted).expect("a case");
    let kernel = function(&context, KERNELS, name);
    let mut x = stream.alloc_zeros::<f32>(8).unwrap();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut x);
    if name == "write" {
        launch.arg(&at);
    }
    unsafe { launch.launch(config(1, 32, 0)) }.unwrap();
    // Found when the host waits, and it stays.
    assert_eq!(stream.synchronize().unwrap_err().0, expected);
    assert_eq!(stream.synchronize().unwrap_err().0, expected);
    assert_eq!(stream.clone_htod(&[1f32]).unwrap_err().0, expected);
}
