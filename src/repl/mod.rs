//! The interactive session: a loop over [`Session`], which does the work.

mod command;
mod input;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    codes,
    diagnostic::Error,
    engine::{Device, Engine, Evaluated, Session, Source},
    ir,
    report::{self, Bytes, explain, visible},
    syntax,
    terminal::{
        Exit, interrupt,
        output::Output,
        source,
        tell::{Printer, fail, is_cancelled, show},
    },
};
use command::Command;
use input::{Input, Line};

/// Runs until the input ends. With a file, runs that first.
///
/// From a pipe it behaves like a script: no prompts, and the exit code says whether an input
/// failed.
pub fn run(file: Option<&Path>, device: Device, output: &mut Output) -> Exit {
    if let Err(missing) = device.check() {
        return complain(output, &format!("{missing}"));
    }
    let mut input = Input::standard();
    let is_piped = !input.is_terminal();
    let mut repl = Repl::new(device, is_piped);
    let mut exit = Exit::Success;
    if input.is_terminal() {
        output.out(&format!("tg {}; `:help` lists commands\n", env!("CARGO_PKG_VERSION")));
    }
    if let Some(file) = file {
        exit = repl.load(file, output);
    }
    let mut text = String::new();
    loop {
        if let Some(exit) = repl.printer.failed(output) {
            return exit;
        }
        if output.is_closed() {
            return Exit::Closed;
        }
        match input.read(if text.is_empty() { "tg> " } else { "... " }) {
            Ok(Line::Text(line)) => {
                if text.is_empty() && line.trim().is_empty() {
                    continue;
                }
                text.push_str(&line);
                text.push('\n');
                if !text.trim_start().starts_with(':') && !syntax::is_complete(&text) {
                    continue;
                }
                input.remember(&text);
                match repl.answer(&std::mem::take(&mut text), output) {
                    Next::Leave => break,
                    Next::GoOn(Exit::Success) => {}
                    Next::GoOn(failed) if is_piped => exit = failed,
                    Next::GoOn(_) => {}
                }
            }
            Ok(Line::Interrupted) => text.clear(),
            Ok(Line::End) => {
                // What is incomplete at the end of a pipe is wrong; evaluating it says why.
                if is_piped
                    && !text.is_empty()
                    && let Next::GoOn(failed) = repl.answer(&text, output)
                {
                    exit = failed;
                }
                break;
            }
            Err(error) => {
                output.err(&format!("error: cannot read the input: {error}\n"));
                return Exit::Errors;
            }
        }
    }
    exit
}

/// What comes after an input.
enum Next {
    Leave,
    GoOn(Exit),
}

/// Whether an error says nothing but that earlier ones left names without values.
fn is_follow_up(error: &Error) -> bool {
    error.diagnostics().iter().filter(|d| d.is_error()).all(|d| d.code == codes::NOT_MADE)
}

struct Repl {
    /// Inputs come from a pipe.
    is_piped: bool,
    session: Session,
    printer: Printer,
    is_timed: bool,
    device: Device,
}

impl Repl {
    fn new(device: Device, is_piped: bool) -> Repl {
        let mut session = Engine::new().with_device(device).session();
        let printer = Printer::attach(&mut session);
        Repl { is_piped, session, printer, is_timed: false, device }
    }

    fn answer(&mut self, text: &str, output: &mut Output) -> Next {
        if let Some(word) = command::without_colon(text)
            && self.session.type_of(word).is_err()
        {
            output.err(&format!("error: commands start with a colon\nhelp: write `:{word}`\n"));
            return Next::GoOn(Exit::Errors);
        }
        if !text.trim_start().starts_with(':') {
            return Next::GoOn(self.eval(text, output));
        }
        match command::parse(text) {
            Ok(Command::Quit) => Next::Leave,
            Ok(command) => Next::GoOn(self.obey(command, output)),
            Err(message) => {
                output.err(&format!("error: {message}\n"));
                Next::GoOn(Exit::Errors)
            }
        }
    }

    fn eval(&mut self, text: &str, output: &mut Output) -> Exit {
        let is_quiet = text.trim_end().ends_with(';');
        self.work(output, is_quiet, |session| session.eval(text))
    }

    fn load(&mut self, path: &Path, output: &mut Output) -> Exit {
        match source::read(path) {
            Ok(source) => self.load_source(&source, output),
            Err(error) => fail(&error, output),
        }
    }

    fn load_source(&mut self, source: &Source, output: &mut Output) -> Exit {
        self.work(output, true, |session| session.include(source))
    }

    /// Runs something that Ctrl-C may stop, and shows what it gave.
    fn work(
        &mut self,
        output: &mut Output,
        is_quiet: bool,
        run: impl FnOnce(&mut Session) -> Result<Evaluated, Error>,
    ) -> Exit {
        let cancel = self.session.cancel_token();
        let handle = cancel.clone();
        let started = Instant::now();
        let (result, interrupted) = interrupt::on(move || cancel.cancel(), || run(&mut self.session));
        let elapsed = started.elapsed();
        // A Ctrl-C that came too late must not stop the next input.
        handle.reset();
        let exit = match result {
            Ok(evaluated) => {
                show(&evaluated.diagnostics, self.session.sources(), output);
                if let Some(value) = evaluated.value.filter(|_| !is_quiet) {
                    output.out(&format!("{value}\n"));
                }
                Exit::Success
            }
            Err(error) if interrupted && is_cancelled(&error) => {
                output.err("stopped\n");
                Exit::Interrupted
            }
            // Why the names have no value was the message before: in a pipe nobody asks again.
            Err(error) if self.is_piped && is_follow_up(&error) => Exit::Errors,
            Err(error) => fail(&error, output),
        };
        if self.is_timed {
            output.err(&format!("{}\n", duration(elapsed)));
        }
        exit
    }

    fn obey(&mut self, command: Command, output: &mut Output) -> Exit {
        match command {
            Command::Help(None) => answer(output, &command::help()),
            Command::Help(Some(name)) => match self.session.documentation(&name) {
                Ok(docs) => {
                    let text = visible_lines(&docs.text);
                    answer(output, &format!("{}\n{text}", visible_lines(&docs.signature)))
                }
                Err(error) => fail(&error, output),
            },
            Command::Type(expression) => match self.session.type_of(&expression) {
                Ok(kind) => answer(output, &format!("{kind}\n")),
                Err(error) => fail(&error, output),
            },
            Command::Plan(step) => self.plan(step.as_deref(), output),
            Command::Ir(step) => self.ir(step.as_deref(), output),
            Command::Memory => answer(output, &self.memory()),
            Command::Variables => answer(output, &self.variables()),
            Command::Load(path) => self.load(Path::new(&path), output),
            Command::Explain(code) => match explain::page(&code) {
                Some(page) => answer(output, page),
                None => complain(output, &format!("there is no diagnostic `{}`", visible::line(&code, 80))),
            },
            Command::Time => {
                self.is_timed = !self.is_timed;
                answer(output, if self.is_timed { "times are shown\n" } else { "times are not shown\n" })
            }
            Command::Reset => {
                *self = Repl { is_timed: self.is_timed, ..Repl::new(self.device, self.is_piped) };
                Exit::Success
            }
            Command::Device(None) => answer(output, &format!("{}\n", self.device.resolved())),
            Command::Device(Some(name)) => self.change_device(&name, output),
            // `answer` leaves before it comes here.
            Command::Quit => Exit::Success,
        }
    }

    /// Steps that run from here on run there; what is held moves with them.
    fn change_device(&mut self, name: &str, output: &mut Output) -> Exit {
        let device = match name.parse::<Device>() {
            Ok(device) => device,
            Err(error) => return complain(output, &error.to_string()),
        };
        if let Err(missing) = device.check() {
            return complain(output, &missing.to_string());
        }
        match self.session.set_device(device) {
            Ok(()) => {
                self.device = device;
                answer(output, &format!("{}\n", device.resolved()))
            }
            Err(error) => fail(&error, output),
        }
    }

    fn plan(&self, step: Option<&str>, output: &mut Output) -> Exit {
        let is_wanted = |name: &str| step.is_none_or(|wanted| wanted == name);
        let sources = self.session.sources();
        let style = output.out_style;
        let texts: Vec<String> = self
            .session
            .plans()
            .iter()
            .filter(|plan| is_wanted(&plan.name))
            .map(|plan| {
                let report = report::plan::report(plan, sources);
                let main = report.peak_at.place.map(|p| p.file);
                report::plan::render(&report, main, sources, style)
            })
            .collect();
        if texts.is_empty() {
            return complain(output, &not_run(step));
        }
        answer(output, &texts.join("\n"))
    }

    fn ir(&self, step: Option<&str>, output: &mut Output) -> Exit {
        let is_wanted = |name: &str| step.is_none_or(|wanted| wanted == name);
        let texts: Vec<String> = self
            .session
            .graphs()
            .into_iter()
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, graph)| {
                format!("# step {name}\n{}", ir::text::print(&graph, Some(self.session.sources())))
            })
            .collect();
        if texts.is_empty() {
            return complain(output, &not_run(step));
        }
        answer(output, &texts.join("\n"))
    }

    /// Names with what they are.
    fn variables(&self) -> String {
        let variables = self.session.variables();
        if variables.is_empty() {
            return "nothing is bound\n".to_owned();
        }
        let width = variables.iter().map(|v| v.name.chars().count()).max().unwrap_or(0);
        variables.iter().map(|v| format!("{:width$}  {}\n", v.name, visible::line(&v.kind, 200))).collect()
    }

    /// What takes memory between steps, largest first.
    fn memory(&self) -> String {
        let mut holders = self.session.variables();
        holders.retain(|v| v.bytes > 0);
        holders.sort_by_key(|v| std::cmp::Reverse(v.bytes));
        let width = holders.iter().map(|v| v.name.chars().count()).max().unwrap_or(0).max(5);
        let mut text = String::new();
        for v in &holders {
            let at = self.session.sources().start(v.span);
            let file = self.session.sources().get(v.span.file).map_or("", |f| f.name.as_str());
            text.push_str(&format!(
                "{:width$}  {:>12}  {}, bound at {}:{}\n",
                v.name,
                Bytes(v.bytes).to_string(),
                visible::line(&v.kind, 200),
                visible::line(file, 80),
                at.line
            ));
        }
        let arena = Bytes(self.session.arena_bytes());
        text.push_str(&format!("{:width$}  {:>12}  shared by all steps\n", "arena", arena.to_string()));
        text
    }
}

fn not_run(step: Option<&str>) -> String {
    match step {
        Some(name) => format!("no step `{}` has run yet", visible::line(name, 80)),
        None => "no step has run yet".to_owned(),
    }
}

fn answer(output: &mut Output, text: &str) -> Exit {
    output.out(text);
    Exit::Success
}

fn complain(output: &mut Output, message: &str) -> Exit {
    output.err(&format!("error: {message}\n"));
    Exit::Errors
}

/// Text of a program's documentation: lines stay, what could move the cursor does not.
fn visible_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", visible::line(line, 1000))).collect()
}

fn duration(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration(Duration::from_micros(12)), "12.0 µs");
        assert_eq!(duration(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(duration(Duration::from_millis(2340)), "2.34 s");
    }
}
