//! A progress bar on standard error: only where that is a terminal, and out of the way of what the
//! script prints.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Between two drawings.
const REDRAW: Duration = Duration::from_millis(100);

/// The line that the terminal shows now. There is one terminal, so this is one for the process.
static SHOWN: Mutex<Option<String>> = Mutex::new(None);

/// The bar of one loop. Dropping it takes it off the screen.
#[derive(Debug)]
pub struct Progress {
    label: String,
    total: Option<u64>,
    done: u64,
    started: Instant,
    drawn: Option<Instant>,
    visible: bool,
    /// What was shown before: the bar of the loop around this one.
    outer: Option<String>,
}

impl Progress {
    /// A bar for a loop of `total` rounds, if that is known.
    pub fn new(label: impl Into<String>, total: Option<u64>) -> Progress {
        let visible = io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        let outer = if visible { shown().clone() } else { None };
        Progress { label: label.into(), total, done: 0, started: Instant::now(), drawn: None, visible, outer }
    }

    /// Text after the bar's label: the latest loss, for example.
    pub fn set_label(&mut self, label: impl Into<String>) {
        self.label = label.into();
    }

    /// One more round is done.
    pub fn advance(&mut self) {
        self.done = self.done.saturating_add(1);
        let now = Instant::now();
        let due = self.drawn.is_none_or(|drawn| now.duration_since(drawn) >= REDRAW);
        if !self.visible || !due {
            return;
        }
        self.drawn = Some(now);
        let line = render(&self.label, self.done, self.total, now.duration_since(self.started), columns());
        let mut shown = shown();
        // A terminal that is gone is no reason to stop the training.
        let _ = write!(io::stderr(), "\r\x1b[2K{line}").and_then(|()| io::stderr().flush());
        *shown = Some(line);
    }

    /// Rounds done so far.
    pub fn done(&self) -> u64 {
        self.done
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.visible {
            let mut shown = shown();
            let outer = self.outer.take();
            let _ = write!(io::stderr(), "\r\x1b[2K{}", outer.as_deref().unwrap_or_default())
                .and_then(|()| io::stderr().flush());
            *shown = outer;
        }
    }
}

/// Writes to `out` (standard output, mostly) what a script prints; a bar that is on the screen goes
/// away before and comes back after. Errors are those of `out`, such as a closed pipe.
pub fn print_line(out: &mut dyn Write, line: &str) -> io::Result<()> {
    let shown = shown();
    if shown.is_some() {
        let _ = write!(io::stderr(), "\r\x1b[2K").and_then(|()| io::stderr().flush());
    }
    let result = writeln!(out, "{line}").and_then(|()| out.flush());
    if let Some(bar) = &*shown {
        let _ = write!(io::stderr(), "{bar}").and_then(|()| io::stderr().flush());
    }
    result
}

/// The lock also keeps lines of several threads apart. What it guards is only text, so a thread
/// that panicked with it leaves nothing wrong behind.
fn shown() -> MutexGuard<'static, Option<String>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Columns of the terminal as the shell tells them; 80 otherwise.
fn columns() -> usize {
    std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).unwrap_or(80)
}

/// The line of a bar, narrower than `columns`: label, bar, count, rate, time left.
pub fn render(label: &str, done: u64, total: Option<u64>, elapsed: Duration, columns: usize) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
    let speed = match rate {
        0.0 => String::new(),
        rate if rate >= 1.0 => format!("  {}/s", short(rate)),
        rate => format!("  {} s each", short(1.0 / rate)),
    };
    let label = if label.is_empty() { String::new() } else { format!("{label}  ") };
    let line = match total {
        Some(total) => {
            let fraction = if total == 0 { 1.0 } else { (done as f64 / total as f64).min(1.0) };
            let left = total.saturating_sub(done) as f64;
            let remaining =
                if rate > 0.0 { format!("  {} left", duration(left / rate)) } else { String::new() };
            let tail = format!(" {done}/{total}{speed}{remaining}");
            let room = columns.saturating_sub(label.chars().count() + tail.chars().count() + 3);
            let bar = room.min(30);
            if bar < 5 {
                format!("{label}{:.0}%{tail}", fraction * 100.0)
            } else {
                let full = (fraction * bar as f64).round() as usize;
                format!("{label}[{}{}]{tail}", "=".repeat(full), " ".repeat(bar - full))
            }
        }
        None => format!("{label}{done}{speed}  {}", duration(seconds)),
    };
    // A line as wide as the terminal would wrap, and could not be taken back.
    line.chars().filter(|c| !c.is_control()).take(columns.saturating_sub(1)).collect()
}

/// Three digits are enough for a rate.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// `42s`, `3m05s`, `2h07m`.
fn duration(seconds: f64) -> String {
    // Beyond u64 seconds the cast stays at its maximum, which is long enough.
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(done: u64, total: Option<u64>, seconds: u64, columns: usize) -> String {
        render("train", done, total, Duration::from_secs(seconds), columns)
    }

    #[test]
    fn shows_rate_and_time_left() {
        assert_eq!(
            line(50, Some(200), 10, 80),
            "train  [========                      ] 50/200  5.00/s  30s left"
        );
        assert_eq!(line(2, Some(10), 20, 60), "train  [====                ] 2/10  10.0 s each  1m20s left");
        assert_eq!(line(7, None, 7000, 80), "train  7  1000 s each  1h56m");
        assert_eq!(line(0, Some(0), 0, 80), "train  [==============================] 0/0");
    }

    #[test]
    fn never_fills_the_line() {
        for columns in 0..120 {
            for total in [None, Some(0), Some(7), Some(u64::MAX)] {
                let text = line(5, total, 3, columns);
                assert!(text.chars().count() < columns.max(1), "{columns}: {text}");
            }
        }
    }
}
