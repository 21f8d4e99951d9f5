//! Sizes for people: `512 B`, `4.0 KiB`, `3848.5 MiB`.

use std::fmt;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;
const TIB: f64 = 1024.0 * GIB;

/// A number of bytes, written with its unit. MiB is the unit of memory reports, so that figures
/// of one report compare at a glance; GiB starts where five digits would not be enough.
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
        } else {
            format!("{:.1} TiB", bytes / TIB)
        };
        // `pad` so that columns can be aligned with `{:>12}`.
        f.pad(&text)
    }
}

/// MiB with one decimal and no unit, for table columns that name the unit once.
pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MIB)
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
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}|", Bytes(4096)), "   4.0 KiB|");
        assert_eq!(mib(50 << 20), "50.0");
    }
}
