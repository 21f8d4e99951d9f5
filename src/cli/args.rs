//! The arguments of the command, as clap reads them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    engine::{CompileOptions, Device},
    plan::Target,
    report::{ColorChoice, Format},
    schedule::OrderKind,
};

/// A language for neural-network training graphs: plans the memory of a step before it runs, and
/// proves how close to the least the plan is.
///
/// Without a command, opens an interactive session.
#[derive(Debug, Parser)]
#[command(name = "tg", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: Color,
    /// Draw with ASCII characters only.
    #[arg(long, global = true)]
    pub ascii: bool,
}

const AFTER_HELP: &str = "A FILE of `-` is standard input.
Exit codes: 0 success, 1 errors in the program or its files, 2 wrong usage, 130 stopped by Ctrl-C,
141 a run whose output nobody reads any more.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program.
    Run(Run),
    /// Report what is wrong with programs, without running them.
    Check(Check),
    /// Apply the changes that lower the memory of a program and keep its results.
    Fix(Fix),
    /// Show the memory of each step: the peak, its bound, what is alive and what keeps it.
    Plan(Plan),
    /// Print the intermediate representation of the steps.
    Ir(Ir),
    /// Give every block of a table an offset, so that none overlap while they are alive.
    Pack(Pack),
    /// Explain a diagnostic, or list all.
    Explain(Explain),
    /// Open an interactive session.
    Repl(Repl),
    /// List the devices that programs can run on.
    Devices,
}

/// What decides how a program is compiled.
#[derive(Debug, Args)]
pub struct Compile {
    /// Replace the value of a `const`, or the default of a size in a step's shapes. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub sets: Vec<(String, String)>,
    /// The seed of all random numbers.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How many ranks run the program.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub world: Option<u32>,
}

impl Compile {
    pub fn options(&self) -> CompileOptions {
        CompileOptions {
            sets: self.sets.clone(),
            seed: self.seed,
            world: self.world,
            ..CompileOptions::default()
        }
    }
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected `NAME=VALUE`, such as `BATCH=32`".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct Run {
    /// The program.
    pub file: PathBuf,
    #[command(flatten)]
    pub compile: Compile,
    /// Continue from what the program saved last.
    #[arg(long)]
    pub resume: bool,
    /// Where to run: `cpu`, `cuda` or `cuda:N` for one of several, `auto` for the first GPU where there
    /// is one. `tg devices` lists them.
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: Device,
    /// Let a GPU round the operands of f32 products to TF32: faster, with 10 bits of fraction.
    #[arg(long)]
    pub tf32: bool,
    /// When the run has ended, tell what each step gave the device to do.
    #[arg(long)]
    pub stats: bool,
    /// What connects the ranks.
    #[arg(long, value_enum, default_value_t)]
    pub engine: RankEngine,
    /// How many seconds a rank waits for another one.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds_above_0)]
    pub comm_timeout: f64,
    /// Which order of its steps to run: results are the same, the memory is not. With another than
    /// the best one, `ensure peak` is not checked.
    #[arg(long, value_enum, default_value_t)]
    pub order: Order,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The programs.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub compile: Compile,
    /// How diagnostics are written.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub message_format: MessageFormat,
    /// The same as `--message-format json`.
    #[arg(long, conflicts_with = "message_format")]
    pub json: bool,
    /// Leave out fixes that would have to be planned again.
    #[arg(long)]
    pub no_fixes: bool,
    /// Fail on these, too.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub deny: Option<Deny>,
    /// For which device to plan.
    #[arg(long, value_enum, default_value_t)]
    pub target: TargetName,
    /// Show everything that is found about memory, not only the worst.
    #[arg(long)]
    pub all: bool,
    /// Show the lines of the library on the way to a buffer, too.
    #[arg(long)]
    pub library_frames: bool,
}

#[derive(Debug, Args)]
pub struct Fix {
    /// The program. It and the files beside it that it uses are replaced as a whole, or not at all.
    pub file: PathBuf,
    #[command(flatten)]
    pub compile: Compile,
    /// Show the changes, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The program.
    pub file: PathBuf,
    #[command(flatten)]
    pub compile: Compile,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// With `--json`: the whole graph and the whole plan, for programs that check them.
    #[arg(long, requires = "json", conflicts_with = "why")]
    pub full: bool,
    /// With `--json`: leave out fixes that would have to be planned again.
    #[arg(long)]
    pub no_fixes: bool,
    /// Only this step.
    #[arg(long, value_name = "NAME")]
    pub step: Option<String>,
    /// Show the peaks that recomputing can reach, and the work that each of them takes.
    #[arg(long, conflicts_with_all = ["order", "why", "full", "trace", "html"])]
    pub budget_curve: bool,
    /// For which device to plan.
    #[arg(long, value_enum, default_value_t)]
    pub target: TargetName,
    /// Which order to plan.
    #[arg(long, value_enum, default_value_t)]
    pub order: Order,
    /// What this line makes instead: when each buffer is born, last used and freed, where it lies, and
    /// what keeps it.
    #[arg(long, value_name = "[FILE:]LINE", value_parser = line_of_file)]
    pub why: Option<LineOfFile>,
    /// Write the memory over the instructions as a trace that Perfetto and Chrome open.
    #[arg(long, value_name = "OUT.json")]
    pub trace: Option<PathBuf>,
    /// Write a page that draws the live ranges (time by address) and the memory over time, of the
    /// chosen and of the worst legal order.
    #[arg(long, value_name = "OUT.html")]
    pub html: Option<PathBuf>,
}

/// A line, of the program itself where no file is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineOfFile {
    pub file: Option<String>,
    pub line: usize,
}

fn line_of_file(text: &str) -> Result<LineOfFile, String> {
    let (file, line) = match text.rsplit_once(':') {
        Some((file, line)) if !file.is_empty() => (Some(file.to_owned()), line),
        Some(_) => return Err("expected a line, such as `12` or `layers.tg:12`".to_owned()),
        None => (None, text),
    };
    match line.parse() {
        Ok(line) if line > 0 => Ok(LineOfFile { file, line }),
        _ => Err("expected a line, such as `12` or `layers.tg:12`".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct Ir {
    /// The program.
    pub file: PathBuf,
    #[command(flatten)]
    pub compile: Compile,
    /// Only this step.
    #[arg(long, value_name = "NAME")]
    pub step: Option<String>,
    /// After which phase.
    #[arg(long, value_enum, default_value_t, value_name = "PHASE")]
    pub after: Phase,
}

#[derive(Debug, Args)]
pub struct Pack {
    /// A CSV table with the columns `id,lower,upper,size`; a block is alive from `lower` up to, not
    /// including, `upper`.
    pub file: PathBuf,
    /// How high the packing may be, in bytes. Without it, the lowest that is found is printed.
    #[arg(long, value_name = "N")]
    pub capacity: Option<u64>,
    /// Seconds that the search may take.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub time: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err("expected a number of seconds, such as `2.5`".to_owned()),
    }
}

fn seconds_above_0(text: &str) -> Result<f64, String> {
    // Durations beyond are of no use, and not all can be represented.
    seconds(text)?;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(seconds),
        _ => Err("expected a number of seconds above 0, such as `2.5`".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct Explain {
    /// A code such as TG0201.
    pub code: Option<String>,
}

#[derive(Debug, Args, Default)]
pub struct Repl {
    /// Run this program first.
    pub file: Option<PathBuf>,
    /// Where steps run: `cpu`, `cuda`, `cuda:N` or `auto`.
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: Device,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    Always,
    Never,
}

impl From<Color> for ColorChoice {
    fn from(color: Color) -> ColorChoice {
        match color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum MessageFormat {
    /// With source lines.
    #[default]
    Human,
    /// One line each.
    Short,
    /// One JSON object a line.
    Json,
}

impl From<MessageFormat> for Format {
    fn from(format: MessageFormat) -> Format {
        match format {
            MessageFormat::Human => Format::Human,
            MessageFormat::Short => Format::Short,
            MessageFormat::Json => Format::Json,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Deny {
    Warnings,
}

/// For which device a step is planned; the device need not be there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum TargetName {
    #[default]
    Cpu,
    Cuda,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Target {
        match name {
            TargetName::Cpu => Target::Cpu,
            TargetName::Cuda => Target::Cuda,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum RankEngine {
    /// Ranks are threads of this process: as many as `--world` says.
    #[default]
    Threads,
    /// This process is one rank, and `mpirun` has started the others: `mpirun -n 4 tg run --engine mpi`.
    Mpi,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// The best that any heuristic finds, improved.
    #[default]
    Best,
    /// As written.
    Source,
    /// Greedy by freed minus defined bytes.
    List,
    /// The linear-time priority variant of it.
    Lpmf,
    /// Depth first.
    Dfs,
    /// The worst legal order that is found.
    Witness,
}

impl From<Order> for OrderKind {
    fn from(order: Order) -> OrderKind {
        match order {
            Order::Best => OrderKind::Best,
            Order::Source => OrderKind::Source,
            Order::List => OrderKind::List,
            Order::Lpmf => OrderKind::Lpmf,
            Order::Dfs => OrderKind::Dfs,
            Order::Witness => OrderKind::Witness,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// As the program states it, with gradients.
    #[default]
    Elaborate,
    /// As it is planned: regions lowered, simplified, layouts decided.
    Lower,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn later_commands_are_not_offered() {
        for name in ["fmt", "lsp", "bench", "doc", "hlo"] {
            assert!(Cli::try_parse_from(["tg", name, "x"]).is_err());
        }
    }
}
