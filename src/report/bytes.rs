//! Sizes for people: `512 B`, `4.0 KiB`, `3848.5 MiB`.

use std::fmt;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;
const TIB: f64 = 1024.0 * GIB;
const PIB: f64 = 1024.0 * TIB;
const EIB: f64 = 1024.0 * PIB;

/// A number of bytes, written with its unit. MiB is the unit of memory reports, so that figures
/// of one report compare at a glance; GiB starts where five digits would not be enough. Sizes that no machine
/// has are easier to read in units as large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        // The next unit starts where rounding to one decimal would reach it: never `1024.0 KiB`.
        let text = if self.0 < 1024 {
            format!("{} B", self.0)
        } else if bytes < MIB - 0.05 * KIB {
            format!("{:.1} KiB", bytes / KIB)
        } else if bytes < 100.0 * GIB {
            format!("{:.1} MiB", bytes / MIB)
        } else if bytes < 100.0 * TIB {
            format!("{:.1} GiB", bytes / GIB)
        } else if bytes < PIB {
            format!("{:.1} TiB", bytes / TIB)
        } else if bytes < EIB {
            format!("{:.1} PiB", bytes / PIB)
        } else {
            format!("{:.1} EiB", bytes / EIB)
        };
        // `pad` so that columns can be aligned with `{:>12}`.
        f.pad(&text)
    }
}

/// The unit of a table or an axis, so that its numbers need none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    B,
    KiB,
    MiB,
}

impl Unit {
    /// In which the largest figure has at least two digits before the point.
    pub fn of(largest: u64) -> Unit {
        match largest {
            0..10_240 => Unit::B,
            10_240..10_485_760 => Unit::KiB,
            _ => Unit::MiB,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Unit::B => "B",
            Unit::KiB => "KiB",
            Unit::MiB => "MiB",
        }
    }

    /// With one decimal, but whole bytes.
    pub fn write(self, bytes: u64) -> String {
        match self {
            Unit::B => bytes.to_string(),
            Unit::KiB => format!("{:.1}", bytes as f64 / KIB),
            Unit::MiB => format!("{:.1}", bytes as f64 / MIB),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_and_the_steps_between_them() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4096, "4.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1 << 20, "1.0 MiB"),
            (4035444736, "3848.5 MiB"),
            (16 << 30, "16384.0 MiB"),
            (100 << 30, "100.0 GiB"),
            (1 << 47, "128.0 TiB"),
            (3 << 50, "3.0 PiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}|", Bytes(4096)), "   4.0 KiB|");
    }

    #[test]
    fn one_unit_for_a_table() {
        let cases = [(900, "B", "900"), (1 << 20, "KiB", "1024.0"), (50 << 20, "MiB", "50.0")];
        for (bytes, name, text) in cases {
            let unit = Unit::of(bytes);
            assert_eq!((unit.name(), unit.write(bytes).as_str()), (name, text));
        }
    }
}
