//! What the driver says went wrong, as messages.

use std::ffi::CStr;

use cudarc::driver::{DriverError, sys::CUresult};

use crate::ops::{Cause, OpError};

/// An error of the driver: its name and what it means.
pub(super) fn text(error: DriverError) -> String {
    let owned = |text: Result<&CStr, DriverError>| text.ok().map(|t| t.to_string_lossy().into_owned());
    match (owned(error.error_name()), owned(error.error_string())) {
        (Some(name), Some(meaning)) => format!("{meaning} ({name})"),
        (Some(name), None) => name,
        _ => format!("error {}", error.0 as u32),
    }
}

/// What failed while the device was `doing` something.
pub(super) fn failed(doing: &str, error: DriverError) -> OpError {
    if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        let message = format!("the device ran out of memory while {doing}");
        return OpError { cause: Cause::Limit, ..OpError::new(message) };
    }
    let message = format!("the device failed while {doing}: {}", text(error));
    match error.0 {
        // What a kernel did earlier shows here, and the driver runs nothing for this process any more.
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_ASSERT => OpError::new(message)
            .help("start again with `TG_CUDA_CHECK=1`, which runs op by op and names the one that fails"),
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE => OpError::new(message)
            .help("check the device with `nvidia-smi`; the last saved file is whole, and `--resume` goes on from it"),
        _ => OpError::new(message),
    }
}

/// Whose memory is taken.
#[derive(Debug, Clone, Copy)]
pub(super) enum Room {
    Device,
    /// Pinned, so that the device reaches it.
    Host,
}

/// What failed while memory was taken for something.
fn not_taken(room: Room, what: &str, error: DriverError) -> OpError {
    let (owner, memory) = match room {
        Room::Device => ("the device", "memory"),
        Room::Host => ("the host", "pinned memory"),
    };
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => OpError {
            cause: Cause::Limit,
            ..OpError::new(format!("{owner} has no {memory} left for {what}"))
        },
        _ => failed(&format!("taking memory for {what}"), error),
    }
}

/// For results of the driver: what was being done.
pub(super) trait While<T> {
    fn during(self, doing: &str) -> Result<T, OpError>;

    /// The same where memory was taken: for what.
    fn taking(self, room: Room, what: &str) -> Result<T, OpError>;
}

impl<T> While<T> for Result<T, DriverError> {
    fn during(self, doing: &str) -> Result<T, OpError> {
        self.map_err(|error| failed(doing, error))
    }

    fn taking(self, room: Room, what: &str) -> Result<T, OpError> {
        self.map_err(|error| not_taken(room, what, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_short_is_named() {
        let none = Err::<(), _>(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let told = |room, what| none.taking(room, what).map_err(|e| (e.cause, e.message));
        let device = "the device has no memory left for a persistent tensor".to_owned();
        assert_eq!(told(Room::Device, "a persistent tensor"), Err((Cause::Limit, device)));
        let host = "the host has no pinned memory left for the results".to_owned();
        assert_eq!(told(Room::Host, "the results"), Err((Cause::Limit, host)));
        let message = none.during("loading a kernel").map_err(|e| e.message);
        assert_eq!(message, Err("the device ran out of memory while loading a kernel".into()));
    }
}
