//! A device that is in use: its context, its facts, and what all sessions on it share.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::{
    result::{self, device, primary_ctx},
    sys::{CUcontext, CUdevice, CUdevice_attribute},
};

use super::{
    error::{self, While},
    library::{self, Unavailable},
    module::Modules,
    product::Products,
};
use crate::ops::OpError;

/// What is known of a device before it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, as in `cuda:0`.
    pub index: u32,
    pub name: String,
    /// Major and minor: 9.0 for `sm_90`.
    pub capability: (i32, i32),
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// Why programs cannot run on it.
    pub problem: Option<Unavailable>,
}

/// The least compute capability that kernels are written for.
const LEAST_CAPABILITY: (i32, i32) = (7, 5);

/// One device with the primary context of this process. It stays for as long as the process runs.
pub(super) struct Context {
    pub info: DeviceInfo,
    raw: CUcontext,
    pub modules: Modules,
    pub products: Products,
}

// SAFETY: a context of the driver may be made current on any thread, on several at once.
unsafe impl Send for Context {}
// SAFETY: as above; what changes in it is behind locks.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(cuda:{})", self.info.index)
    }
}

/// The devices of this machine, with what keeps programs from running on them; an error where there
/// is no driver or no device.
pub fn devices() -> Result<Vec<DeviceInfo>, Unavailable> {
    let driver = library::driver()?;
    (0..driver.devices).map(|index| Ok(facts(index)?.1)).collect()
}

/// Whether programs can run on this device.
pub fn usable(index: u32) -> Result<(), Unavailable> {
    match facts(index)?.1.problem {
        Some(problem) => Err(problem),
        None => Ok(()),
    }
}

/// How many devices there are.
pub(super) fn count() -> Result<u32, Unavailable> {
    Ok(library::driver()?.devices)
}

fn facts(index: u32) -> Result<(CUdevice, DeviceInfo), Unavailable> {
    let driver = library::driver()?;
    let silent = |error| {
        Unavailable::new(
            format!("`cuda:{index}` does not answer: {}", error::text(error)),
            "check the device with `nvidia-smi`",
        )
    };
    if index >= driver.devices {
        let devices = driver.devices;
        let (are, s) = if devices == 1 { ("is", "") } else { ("are", "s") };
        return Err(Unavailable::new(
            format!("there is no `cuda:{index}`: there {are} {devices} device{s}, counted from 0"),
            "`tg devices` lists them",
        ));
    }
    let raw = device::get(index as i32).map_err(silent)?;
    // SAFETY: a device that the driver gave.
    let attribute = |which| unsafe { device::get_attribute(raw, which) }.map_err(silent);
    let capability = (
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let name = device::get_name(raw).map_err(silent)?;
    // SAFETY: as above.
    let memory_bytes = unsafe { device::total_mem(raw) }.map_err(silent)? as u64;
    let problem = if capability < LEAST_CAPABILITY {
        Some(Unavailable::new(
            format!("{name} has compute capability {}.{}, and kernels need 7.5", capability.0, capability.1),
            "a GPU of the Turing generation or newer can run programs; the CPU always can",
        ))
    } else {
        library::compiler().map(|_| ()).and_then(|()| library::products()).err()
    };
    Ok((raw, DeviceInfo { index, name, capability, memory_bytes, problem }))
}

impl Context {
    /// The context of a device, made when it is asked for first.
    pub fn get(index: u32) -> Result<Arc<Context>, OpError> {
        static OPEN: Mutex<BTreeMap<u32, Arc<Context>>> = Mutex::new(BTreeMap::new());
        let mut open = lock(&OPEN);
        if let Some(context) = open.get(&index) {
            context.enter()?;
            return Ok(Arc::clone(context));
        }
        let (device, info) = facts(index)?;
        if let Some(problem) = info.problem {
            return Err(problem.into());
        }
        // SAFETY: a device that the driver gave. The context is never released.
        let raw = unsafe { primary_ctx::retain(device) }.during("starting")?;
        // SAFETY: retained just now.
        unsafe { result::ctx::set_current(raw) }.during("starting")?;
        let context = Arc::new(Context {
            modules: Modules::new(info.capability)?,
            products: Products::new()?,
            info,
            raw,
        });
        open.insert(index, Arc::clone(&context));
        Ok(context)
    }

    /// Makes it the context of this thread, for the calls that follow.
    pub fn enter(&self) -> Result<(), OpError> {
        // SAFETY: retained for as long as the process runs.
        unsafe { result::ctx::set_current(self.raw) }.during("starting")
    }

    /// Free bytes and all bytes of the device.
    pub fn memory(&self) -> Result<(u64, u64), OpError> {
        self.enter()?;
        let (free, total) = result::mem_get_info().during("asking for its memory")?;
        Ok((free as u64, total as u64))
    }

    /// As users name it.
    pub fn title(&self) -> String {
        format!("cuda:{}", self.info.index)
    }
}

/// What a lock holds; a thread that panicked with it has left nothing half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
