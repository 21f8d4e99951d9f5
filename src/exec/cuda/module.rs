//! Kernels: compiled by NVRTC for the device at hand, kept on disk by their content, loaded once.

use std::{
    ffi::{CString, c_void},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
};

use cudarc::{
    driver::{
        result::module,
        sys::{CUfunction, CUmodule},
    },
    nvrtc,
};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::{
    cache,
    context::lock,
    error::While,
    kernels::PRELUDE,
    library::{self, c_text},
    sources::COMPILE_OPTIONS,
};
use crate::ops::OpError;

/// A kernel that is loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function(pub CUfunction);

// SAFETY: functions of a loaded module may be launched from any thread where its context is current.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

struct Module(CUmodule);

// SAFETY: as for functions.
unsafe impl Send for Module {}

/// All kernels that are loaded on a device. They stay for as long as the process runs.
pub(super) struct Modules {
    /// `sm_90`, or `compute_90` where the compiler does not know the device.
    architecture: String,
    options: Vec<String>,
    loaded: Mutex<FxHashMap<Arc<str>, Module>>,
}

impl Modules {
    pub fn new(capability: (i32, i32)) -> Result<Modules, OpError> {
        let compiler = library::compiler()?;
        let wanted = capability.0 * 10 + capability.1;
        let known = compiler.architectures.iter().copied().filter(|&known| known <= wanted).max();
        let architecture = match known {
            Some(known) if known == wanted => format!("sm_{known}"),
            // The driver translates it for what the compiler does not know yet.
            Some(known) => format!("compute_{known}"),
            None => {
                return Err(OpError::new(format!(
                    "NVRTC {}.{} makes no code for compute capability {}.{}",
                    compiler.version.0, compiler.version.1, capability.0, capability.1
                ))
                .help("install an NVRTC for this device: one of CUDA 12 knows all from 5.0 to 9.0"));
            }
        };
        let mut options = vec![format!("--gpu-architecture={architecture}")];
        options.extend(COMPILE_OPTIONS.map(str::to_owned));
        Ok(Modules { architecture, options, loaded: Mutex::default() })
    }

    /// The functions of these sources, in their order. What is not loaded yet is compiled, on all
    /// cores. The context is current.
    pub fn functions(&self, wanted: &[(&Arc<str>, &str)]) -> Result<Vec<Function>, OpError> {
        let mut loaded = lock(&self.loaded);
        let mut missing: Vec<&Arc<str>> = Vec::new();
        for (source, _) in wanted {
            if !loaded.contains_key(*source) && !missing.contains(source) {
                missing.push(source);
            }
        }
        let images: Vec<Result<Vec<u8>, OpError>> =
            missing.par_iter().map(|source| self.image(source, true)).collect();
        for (source, image) in missing.into_iter().zip(images) {
            let module = match load(&image?) {
                Ok(module) => module,
                // A file of the cache may be damaged.
                Err(_) => load(&self.image(source, false)?)?,
            };
            loaded.insert(Arc::clone(source), module);
        }
        wanted
            .iter()
            .map(|(source, name)| {
                let module =
                    loaded.get(*source).ok_or_else(|| OpError::new("internal: a kernel is not loaded"))?;
                let c_name =
                    CString::new(*name).map_err(|_| OpError::new("internal: the name of a kernel"))?;
                // SAFETY: modules are never unloaded.
                let raw = unsafe { module::get_function(module.0, c_name) };
                let raw = raw.during(&format!("looking for the kernel `{name}`"))?;
                Ok(Function(raw))
            })
            .collect()
    }

    /// The machine code of a source: from the disk where it is there, unless that is not wanted.
    fn image(&self, source: &str, from_disk: bool) -> Result<Vec<u8>, OpError> {
        let (major, minor) = library::compiler()?.version;
        let key = format!("NVRTC {major}.{minor} {}\n{PRELUDE}\n{source}", self.options.join(" "));
        let mut hashes = [0u64; 2];
        for (k, hash) in hashes.iter_mut().enumerate() {
            let mut hasher = DefaultHasher::new();
            (k, &key).hash(&mut hasher);
            *hash = hasher.finish();
        }
        let name = format!("{:016x}{:016x}", hashes[0], hashes[1]);
        if let Some(image) = from_disk.then(|| cache::read(&name, &key)).flatten() {
            return Ok(image);
        }
        let image = compile(&format!("{PRELUDE}\n{source}"), &self.options, self.is_text())?;
        cache::write(&name, &key, &image);
        Ok(image)
    }

    /// Whether the compiler gives PTX, which the driver translates.
    fn is_text(&self) -> bool {
        self.architecture.starts_with("compute_")
    }
}

fn load(image: &[u8]) -> Result<Module, OpError> {
    // SAFETY: an image as the compiler made it; texts end with a zero byte.
    let module = unsafe { module::load_data(image.as_ptr().cast::<c_void>()) };
    Ok(Module(module.during("loading a kernel")?))
}

/// A program of NVRTC, given back when it is dropped.
struct Program(nvrtc::sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `compile`.
        let _ = unsafe { nvrtc::result::destroy_program(self.0) };
    }
}

fn compile(source: &str, options: &[String], is_text: bool) -> Result<Vec<u8>, OpError> {
    let failed = |what: &str, error: nvrtc::result::NvrtcError| {
        OpError::new(format!("internal: NVRTC cannot {what}: {:?}", error.0))
    };
    let text = CString::new(source).map_err(|_| OpError::new("internal: a kernel with a zero byte"))?;
    let program = Program(nvrtc::result::create_program(&text, None).map_err(|e| failed("start", e))?);
    // SAFETY: the program is alive to the end of this function, and so is its text.
    unsafe {
        if let Err(error) = nvrtc::result::compile_program(program.0, options) {
            let log = nvrtc::result::get_program_log(program.0).map(|log| c_text(&log)).unwrap_or_default();
            return Err(failed(&format!("compile a kernel: {log}"), error));
        }
        let mut bytes = 0usize;
        if is_text {
            let text = nvrtc::result::get_ptx(program.0).map_err(|e| failed("give its code", e))?;
            return Ok(text.iter().map(|&c| c.to_ne_bytes()[0]).chain([0]).collect());
        }
        nvrtc::sys::nvrtcGetCUBINSize(program.0, &raw mut bytes)
            .result()
            .map_err(|e| failed("give its code", e))?;
        let mut image = vec![0u8; bytes];
        nvrtc::sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast())
            .result()
            .map_err(|e| failed("give its code", e))?;
        Ok(image)
    }
}
