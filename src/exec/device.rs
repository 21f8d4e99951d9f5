//! Which device runs a program, as users name it.

use std::{fmt, str::FromStr};

use crate::plan::Target;

/// What runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// All cores of this machine; always there.
    #[default]
    Cpu,
    /// The CUDA device of this number. Of several ranks of one program, each takes the next one.
    Cuda(u32),
    /// The first CUDA device where one can be used, else the CPU.
    Auto,
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownDevice;

impl Device {
    /// The device that is meant on this machine: [`Device::Auto`] decides here.
    pub fn resolved(self) -> Device {
        match self {
            Device::Auto if super::cuda::usable(0).is_ok() => Device::Cuda(0),
            Device::Auto => Device::Cpu,
            device => device,
        }
    }

    /// For which device the steps of a session there are planned.
    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Device::Cuda(_) => Some(Target::Cuda),
            Device::Cpu | Device::Auto => None,
        }
    }

    /// Whether programs can run on it here, and what to do about it where not.
    pub fn check(self) -> Result<(), Missing> {
        match self {
            Device::Cuda(index) => super::cuda::usable(index).map_err(|why| Missing { device: self, why }),
            Device::Cpu | Device::Auto => Ok(()),
        }
    }
}

/// A device that programs cannot run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The device.
    pub device: Device,
    /// What is missing, and what to do about it.
    pub why: super::cuda::Unavailable,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { device, why } = self;
        write!(f, "programs cannot run on `{device}`: {}\nhelp: {}", why.reason, why.help)
    }
}

impl std::error::Error for Missing {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Device {
    type Err = UnknownDevice;

    /// `auto`, `cpu`, `cuda` or `cuda:1`.
    fn from_str(text: &str) -> Result<Device, UnknownDevice> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => {
                let digits = text.strip_prefix("cuda:").ok_or(UnknownDevice)?;
                let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                let index = digits.parse().ok().filter(|_| is_number);
                index.map(Device::Cuda).ok_or(UnknownDevice)
            }
        }
    }
}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected `auto`, `cpu`, `cuda` or `cuda:N`, such as `cuda:1`")
    }
}

impl std::error::Error for UnknownDevice {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for device in [Device::Cpu, Device::Auto, Device::Cuda(0), Device::Cuda(11)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:+1", "cuda:99999999999", "CPU"] {
            assert_eq!(text.parse::<Device>(), Err(UnknownDevice), "{text}");
        }
    }
}
