//! The libraries of CUDA, found at run time. `cudarc` panics where a library or a function of one is
//! missing, so all of them are looked for here before anything else is called.

use std::{
    env,
    ffi::{CStr, c_char, c_int},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use cudarc::{
    cublaslt,
    driver::{self, sys::CUresult},
    nvrtc,
};
use libloading::Library;

use crate::ops::OpError;

/// Folders, separated as in `PATH`, whose libraries are taken before those of the system.
const LIBRARIES_VARIABLE: &str = "TG_CUDA_LIBRARIES";

/// Why CUDA, or a part of it, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// What is missing.
    pub reason: String,
    /// What to do about it.
    pub help: String,
}

impl Unavailable {
    pub(super) fn new(reason: impl Into<String>, help: impl Into<String>) -> Unavailable {
        Unavailable { reason: reason.into(), help: help.into() }
    }
}

impl From<Unavailable> for OpError {
    fn from(missing: Unavailable) -> OpError {
        OpError::new(format!("CUDA cannot be used: {}", missing.reason)).help(missing.help)
    }
}

/// The functions of the driver that the runtime calls. `cuda-13000` of `cudarc` names some that only
/// newer drivers have; those are not called.
const DRIVER_FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
];

const NVRTC_FUNCTIONS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
];

const CUBLASLT_FUNCTIONS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
];

/// The driver, initialised.
#[derive(Debug)]
pub(super) struct Driver {
    /// The version of CUDA that it supports: 13000 for 13.0.
    pub version: i32,
    /// How many devices there are; at least one.
    pub devices: u32,
}

/// The compiler of kernels.
#[derive(Debug)]
pub(super) struct Compiler {
    /// Major and minor.
    pub version: (i32, i32),
    /// The architectures that it makes code for, ascending: 90 for `sm_90`.
    pub architectures: Vec<i32>,
}

/// The driver, looked for once in a process.
pub(super) fn driver() -> Result<&'static Driver, Unavailable> {
    static FOUND: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    FOUND.get_or_init(find_driver).as_ref().map_err(Unavailable::clone)
}

/// NVRTC, looked for once in a process.
pub(super) fn compiler() -> Result<&'static Compiler, Unavailable> {
    static FOUND: OnceLock<Result<Compiler, Unavailable>> = OnceLock::new();
    FOUND.get_or_init(find_compiler).as_ref().map_err(Unavailable::clone)
}

/// cublasLt, looked for once in a process.
pub(super) fn products() -> Result<(), Unavailable> {
    static FOUND: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    FOUND.get_or_init(find_products).clone()
}

fn find_driver() -> Result<Driver, Unavailable> {
    preload_chosen();
    // SAFETY (here and below): loading the vendor's libraries runs their initialisers, as any program
    // that uses CUDA does.
    if !unsafe { driver::sys::is_culib_present() } {
        return Err(Unavailable::new(
            "no driver: `libcuda` was not found",
            "install the NVIDIA driver of this machine's GPU; programs run on the CPU without it",
        ));
    }
    // SAFETY: found just now, so this does not panic.
    let library = unsafe { driver::sys::culib() };
    if let Some(missing) = missing(library, DRIVER_FUNCTIONS) {
        return Err(Unavailable::new(
            format!("the driver is too old: it has no `{missing}`"),
            "update the NVIDIA driver to one for CUDA 12 or newer",
        ));
    }
    driver::result::init().map_err(|error| {
        let (reason, help) = match error.0 {
            CUresult::CUDA_ERROR_NO_DEVICE => (
                "there is a driver, but no device that it can use".to_owned(),
                "check `nvidia-smi`, `CUDA_VISIBLE_DEVICES` and, in a container, that it was given the GPU",
            ),
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => (
                "`libcuda` and the driver in the kernel have different versions".to_owned(),
                "restart the machine after an update of the driver",
            ),
            _ => (
                format!("the driver does not start: {}", super::error::text(error)),
                "check that `nvidia-smi` works",
            ),
        };
        Unavailable::new(reason, help)
    })?;
    let mut version = 0;
    // SAFETY: the function is there, and writes one number.
    if unsafe { driver::sys::cuDriverGetVersion(&raw mut version) } != CUresult::CUDA_SUCCESS {
        return Err(Unavailable::new("the driver does not tell its version", "reinstall the NVIDIA driver"));
    }
    let devices = driver::result::device::get_count().ok().and_then(|count| u32::try_from(count).ok());
    match devices {
        Some(devices) if devices > 0 => Ok(Driver { version, devices }),
        _ => Err(Unavailable::new(
            "there is a driver, but no device",
            "check `nvidia-smi` and `CUDA_VISIBLE_DEVICES`",
        )),
    }
}

fn find_compiler() -> Result<Compiler, Unavailable> {
    const INSTALL: &str = "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and name the folder of its `libnvrtc` in `TG_CUDA_LIBRARIES`";
    let driver = driver()?;
    let is_there = || unsafe { nvrtc::sys::is_culib_present() };
    if !is_there() {
        toolkit_folders().iter().for_each(|folder| preload(folder, &["nvrtc-builtins", "nvrtc"]));
    }
    if !is_there() {
        return Err(Unavailable::new("the compiler of kernels, NVRTC, was not found (`libnvrtc`)", INSTALL));
    }
    // SAFETY: found just now, so this does not panic.
    let library = unsafe { nvrtc::sys::culib() };
    if let Some(missing) = missing(library, NVRTC_FUNCTIONS) {
        return Err(Unavailable::new(format!("NVRTC is too old: it has no `{missing}`"), INSTALL));
    }
    let mut version: (c_int, c_int) = (0, 0);
    let mut count: c_int = 0;
    // SAFETY: the functions are there; they write two numbers and one.
    let asked = unsafe {
        nvrtc::sys::nvrtcVersion(&raw mut version.0, &raw mut version.1)
            .result()
            .and_then(|()| nvrtc::sys::nvrtcGetNumSupportedArchs(&raw mut count).result())
    };
    let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the list has the length that was asked for.
    let asked = asked
        .and_then(|()| unsafe { nvrtc::sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()).result() });
    if asked.is_err() || architectures.is_empty() {
        return Err(Unavailable::new("NVRTC does not tell its version", INSTALL));
    }
    architectures.sort_unstable();
    // What one major version compiles, drivers of the same or a later one run.
    if version.0 > driver.version / 1000 {
        return Err(Unavailable::new(
            format!(
                "the driver supports CUDA {}.{}, and NVRTC is {}.{}",
                driver.version / 1000,
                driver.version % 1000 / 10,
                version.0,
                version.1
            ),
            format!(
                "update the NVIDIA driver, or install NVRTC {}: `pip install nvidia-cuda-nvrtc-cu12`, with its folder in `{LIBRARIES_VARIABLE}`",
                driver.version / 1000
            ),
        ));
    }
    Ok(Compiler { version, architectures })
}

fn find_products() -> Result<(), Unavailable> {
    const INSTALL: &str = "install the CUDA toolkit, or `pip install nvidia-cublas` and name the folder of its `libcublasLt` in `TG_CUDA_LIBRARIES`";
    driver()?;
    let is_there = || unsafe { cublaslt::sys::is_culib_present() };
    if !is_there() {
        toolkit_folders().iter().for_each(|folder| preload(folder, &["cublasLt"]));
    }
    if !is_there() {
        return Err(Unavailable::new(
            "matrix products need cublasLt, which was not found (`libcublasLt`)",
            INSTALL,
        ));
    }
    // SAFETY: found just now, so this does not panic.
    let library = unsafe { cublaslt::sys::culib() };
    match missing(library, CUBLASLT_FUNCTIONS) {
        Some(missing) => {
            Err(Unavailable::new(format!("cublasLt is too old: it has no `{missing}`"), INSTALL))
        }
        None => Ok(()),
    }
}

/// The first of these functions that a library does not have.
fn missing(library: &Library, functions: &[&'static str]) -> Option<&'static str> {
    // SAFETY: the addresses are not used.
    functions.iter().copied().find(|name| unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err())
}

/// Where toolkits are installed, for systems whose loader does not look there.
fn toolkit_folders() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let usual = ["/usr/local/cuda", "/opt/cuda"].into_iter().map(PathBuf::from);
    let places = named.chain(usual).flat_map(|root| [root.join("lib64"), root.join("lib")]);
    places.filter(|folder| folder.is_dir()).collect()
}

/// Loads what the folders of [`LIBRARIES_VARIABLE`] hold. A library that is loaded is found again by
/// its own name, so `cudarc` takes these.
fn preload_chosen() {
    let Some(folders) = env::var_os(LIBRARIES_VARIABLE) else { return };
    for folder in env::split_paths(&folders) {
        // NVRTC does not find its builtins beside itself.
        preload(&folder, &["cuda", "nvrtc-builtins", "nvrtc", "cublasLt"]);
    }
}

fn preload(folder: &Path, stems: &[&str]) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for stem in stems {
        let start = format!("lib{stem}.so");
        let fits = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.strip_prefix(&start))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        for file in files.iter().filter(fits) {
            // SAFETY: as for any library of CUDA.
            if let Ok(library) = unsafe { Library::new(file) } {
                // Stays loaded for as long as the process runs.
                std::mem::forget(library);
                break;
            }
        }
    }
}

/// A text of C, as far as it is text.
pub(super) fn c_text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&c| c.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map_or(&*bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).trim().to_owned()
}
