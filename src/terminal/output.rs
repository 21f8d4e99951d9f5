//! Standard output and standard error: styles, and pipes that close early.

use std::io::{self, IsTerminal, Write};

use crate::report::{ColorChoice, Style, style::locale_is_utf8};

/// Where a command writes to.
#[derive(Debug)]
pub struct Output {
    pub out_style: Style,
    pub err_style: Style,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    /// The reader is gone (`tg plan f.tg | head -1`): nothing more is written, nothing is wrong.
    Closed,
    /// Something else, a full disk for example.
    Failed(io::Error),
}

impl Output {
    /// With `ascii`, draws with ASCII characters only, whatever the locale says.
    pub fn new(color: ColorChoice, ascii: bool) -> Output {
        let variable = |name| std::env::var(name).ok();
        let [all, ctype, lang] = ["LC_ALL", "LC_CTYPE", "LANG"].map(variable);
        let unicode = !ascii && locale_is_utf8([all.as_deref(), ctype.as_deref(), lang.as_deref()]);
        let no_color = variable("NO_COLOR");
        // A `dumb` terminal (an editor's) shows escape codes as text.
        let dumb = variable("TERM").is_some_and(|t| t == "dumb");
        let style = |is_terminal: bool| Style {
            color: color.enabled(is_terminal && !dumb, no_color.as_deref()),
            unicode,
        };
        Output {
            out_style: style(io::stdout().is_terminal()),
            err_style: style(io::stderr().is_terminal()),
            state: State::Open,
        }
    }

    /// Writes to standard output, at once. False once nobody reads it any more.
    pub fn out(&mut self, text: &str) -> bool {
        if matches!(self.state, State::Open) {
            let mut stdout = io::stdout().lock();
            if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
                self.state = match error.kind() {
                    io::ErrorKind::BrokenPipe => State::Closed,
                    _ => State::Failed(error),
                };
            }
        }
        matches!(self.state, State::Open)
    }

    /// Writes to standard error. There is no place left to report a failure of that.
    pub fn err(&mut self, text: &str) {
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Whether output was lost because of something other than a closed pipe; says so.
    pub fn failed(&mut self) -> bool {
        let State::Failed(error) = &self.state else { return false };
        let text = format!("error: cannot write the output: {error}\n");
        self.err(&text);
        true
    }

    pub fn is_closed(&self) -> bool {
        !matches!(self.state, State::Open)
    }
}
