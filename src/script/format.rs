//! The format of a value in a string: `{loss:.3f}`, `{n:,}`, `{bytes:MiB}`.
//!
//! `[align][sign][0][width][,][.precision][kind]`, every part optional:
//! align is `<`, `>` or `^`; sign is `+`; `0` fills a number with zeros up to its width; `,` groups
//! thousands; kind is `f` (fixed), `e` (scientific), `g` (the shorter of both), `%` (times 100),
//! `d` (whole), `x` (hexadecimal), a size (`KiB MiB GiB TiB KB MB GB TB`) that divides a number of
//! bytes, or `bytes`, which picks the size.

use super::{Error, byte_size};

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Format {
    align: Option<Align>,
    plus: bool,
    zeros: bool,
    width: usize,
    thousands: bool,
    precision: Option<usize>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
    Centre,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    #[default]
    Shortest,
    Fixed,
    Scientific,
    General,
    Percent,
    Whole,
    Hex,
    Unit(&'static str, u64),
    Bytes,
}

/// Sizes by name, in bytes.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Wider results are refused: a slip of the keyboard must not fill the memory.
const MAX_WIDTH: usize = 1000;
const MAX_PRECISION: usize = 100;

impl Format {
    /// Parses a format; the error lists what there is.
    pub fn parse(text: &str) -> Result<Format, Error> {
        let unknown = || {
            Error::new(format!("unknown format `{}`", text.escape_debug())).help(
                "formats are `.3f`, `.2e`, `.4g`, `.1%`, `d`, `x`, `,`, `MiB`, `bytes`, with a width: `>8.3f`, `06d`",
            )
        };
        let mut format = Format::default();
        let mut rest = text;
        for (sign, align) in [('<', Align::Left), ('>', Align::Right), ('^', Align::Centre)] {
            if let Some(after) = rest.strip_prefix(sign) {
                format.align = Some(align);
                rest = after;
                break;
            }
        }
        if let Some(after) = rest.strip_prefix('+') {
            format.plus = true;
            rest = after;
        }
        if let Some(after) = rest.strip_prefix('0') {
            format.zeros = true;
            rest = after;
        }
        if let Some((width, after)) = digits(rest) {
            format.width = width
                .filter(|&w| w <= MAX_WIDTH)
                .ok_or_else(|| Error::new(format!("format `{text}`: the width is more than {MAX_WIDTH}")))?;
            rest = after;
        }
        if let Some(after) = rest.strip_prefix(',') {
            format.thousands = true;
            rest = after;
        }
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = digits(after).ok_or_else(unknown)?;
            format.precision = Some(precision.filter(|&p| p <= MAX_PRECISION).ok_or_else(|| {
                Error::new(format!("format `{text}`: the precision is more than {MAX_PRECISION}"))
            })?);
            rest = after;
        }
        format.kind = match rest {
            "" if format.precision.is_some() => Kind::General,
            "" => Kind::Shortest,
            "f" => Kind::Fixed,
            "e" => Kind::Scientific,
            "g" => Kind::General,
            "%" => Kind::Percent,
            "d" => Kind::Whole,
            "x" => Kind::Hex,
            "bytes" => Kind::Bytes,
            unit => UNITS
                .into_iter()
                .find(|(name, _)| *name == unit)
                .map(|(name, bytes)| Kind::Unit(name, bytes))
                .ok_or_else(unknown)?,
        };
        Ok(format)
    }

    /// A whole number.
    pub fn int(&self, value: i64) -> Result<String, Error> {
        let digits = match self.kind {
            Kind::Shortest | Kind::Whole if self.precision.is_some() => {
                return Err(Error::new("whole numbers have no precision: use `f`"));
            }
            Kind::Shortest | Kind::Whole => value.to_string(),
            Kind::Hex if value < 0 => format!("-{:x}", value.unsigned_abs()),
            Kind::Hex => format!("{value:x}"),
            _ => return self.float(value as f64),
        };
        Ok(self.pad(self.group(digits), Align::Right))
    }

    /// A floating-point number.
    pub fn float(&self, value: f64) -> Result<String, Error> {
        if !value.is_finite() {
            return Ok(self.pad(float(value), Align::Right));
        }
        let precision = self.precision.unwrap_or(6);
        let digits = match self.kind {
            Kind::Shortest => float(value),
            Kind::Fixed => format!("{value:.precision$}"),
            Kind::Scientific => scientific(value, precision),
            Kind::General => general(value, precision),
            Kind::Percent => {
                let precision = self.precision.unwrap_or(0);
                format!("{:.precision$}%", value * 100.0)
            }
            Kind::Unit(name, bytes) => {
                let precision = self.precision.unwrap_or(1);
                format!("{:.precision$} {name}", value / bytes as f64)
            }
            Kind::Bytes => byte_size(value),
            Kind::Whole | Kind::Hex if value.fract() == 0.0 && value.abs() < 2f64.powi(63) => {
                return self.int(value as i64);
            }
            Kind::Whole | Kind::Hex => {
                return Err(Error::new(format!("{} is not a whole number", float(value)))
                    .help("round it, `int(x)`, or use `f`"));
            }
        };
        Ok(self.pad(self.group(digits), Align::Right))
    }

    /// A string: only width and alignment apply.
    pub fn text(&self, text: &str) -> Result<String, Error> {
        let plain = Format { align: self.align, width: self.width, ..Format::default() };
        if *self == plain {
            Ok(self.pad(text.to_owned(), Align::Left))
        } else {
            Err(Error::new("a string has no number format").help("a width fits: `{name:<12}`"))
        }
    }

    /// Puts in the sign and the commas.
    fn group(&self, digits: String) -> String {
        let (sign, digits) = match digits.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => (if self.plus { "+" } else { "" }, digits.as_str()),
        };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (whole, tail) = digits.split_at(end);
        if !self.thousands {
            return format!("{sign}{whole}{tail}");
        }
        let mut grouped = String::from(sign);
        for (i, digit) in whole.chars().enumerate() {
            if i > 0 && (whole.len() - i).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        grouped + tail
    }

    fn pad(&self, text: String, usual: Align) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if missing == 0 {
            return text;
        }
        if self.zeros && self.align.is_none() {
            let sign = text.len() - text.trim_start_matches(['-', '+']).len();
            let (sign, digits) = text.split_at(sign);
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        let left = match self.align.unwrap_or(usual) {
            Align::Left => 0,
            Align::Right => missing,
            Align::Centre => missing / 2,
        };
        format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left))
    }
}

/// A number as scripts print it without a format: the shortest text that reads back as the same
/// number, in scientific form where that is far from 1.
pub fn float(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "nan".into(),
        f64::INFINITY => if value > 0.0 { "inf" } else { "-inf" }.into(),
        size if size != 0.0 && !(1e-5..1e16).contains(&size) => with_signed_exponent(format!("{value:e}")),
        _ => format!("{value:?}"),
    }
}

/// As [`float`], for a number that was f32: `0.1` and not `0.10000000149011612`.
pub fn float32(value: f32) -> String {
    match value.abs() {
        size if value.is_finite() && size != 0.0 && !(1e-5..1e16).contains(&size) => {
            with_signed_exponent(format!("{value:e}"))
        }
        _ if value.is_finite() => format!("{value:?}"),
        _ => float(value.into()),
    }
}

/// Digits at the front of a text (`None` for a number that is too large), and the rest.
fn digits(text: &str) -> Option<(Option<usize>, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (end > 0).then(|| (digits.parse().ok(), rest))
}

/// `1.50e-03`: at least two digits and a sign in the exponent, as C and Python write it.
pub(super) fn scientific(value: f64, precision: usize) -> String {
    with_signed_exponent(format!("{value:.precision$e}"))
}

fn with_signed_exponent(text: String) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// C's `%g`: `precision` significant digits, without zeros at the end.
fn general(value: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i64 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    if exponent < -4 || exponent >= precision as i64 {
        let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
        return with_signed_exponent(format!("{}e{exponent}", without_zeros(mantissa)));
    }
    let decimals = usize::try_from(precision as i64 - 1 - exponent).unwrap_or(0);
    without_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}
