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
