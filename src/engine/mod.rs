//! The public face: compile a program, ask for its plans, run it, call its steps.
//!
//! ```
//! use tg::{engine::{Engine, Source}, exec::Tensor};
//!
//! let source = Source::text("double.tg", "step double(x: f32[3]) { return x * 2.0 }");
//! let program = Engine::new().compile(source)?;
//! assert!(program.plan("double")?.peak_bytes() > 0);
//!
//! let mut session = program.session()?;
//! let x = Tensor::from_slice(&[3], &[1.0f32, 2.0, 3.0]).expect("three elements");
//! let doubled = session.call("double", &[x.into()])?;
//! let doubled = doubled.as_tensor().and_then(|t| t.as_slice::<f32>());
//! assert_eq!(doubled, Some(&[2.0, 4.0, 6.0][..]));
//! # Ok::<(), tg::Error>(())
//! ```

mod allow;
mod host;
mod inspect;
mod parameters;
mod program;
mod session;
mod stack;
mod together;
mod value;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use crate::check::{Limits, Planning};
pub use crate::exec::{
    Device,
    cpu::{TensorMut, TensorRef},
    cuda::Stats as DeviceStats,
};
pub use crate::guard::CancelToken;
pub use crate::ops::HostOp;
pub use crate::schedule::OrderKind;
use crate::{
    check::{self, Evaluator, Mode, Settings},
    codes, diagnose,
    diagnostic::{Diagnostic, Error, Severity},
    exec::comm,
    guard,
    plan::Target,
    source::{FileId, SourceFile, SourceMap, Span},
    syntax::{self, ast::Ast},
};

pub use host::HostFunction;
#[doc(hidden)]
pub use host::HostTable;
pub use inspect::Documentation;
pub(crate) use inspect::head;
pub use parameters::Parameter;
pub use program::{Checked, Program};
pub use session::{Evaluated, Session, Variable};
pub use value::{Object, Value, WrongKind};

/// A program's text, its name for reports, and the folder that its paths start from.
#[derive(Debug, Clone)]
pub struct Source {
    /// As in reports.
    pub name: String,
    /// The program.
    pub text: Arc<str>,
    /// Where relative paths of the script start, and where its modules are.
    pub directory: PathBuf,
    /// Texts that stand for modules of that folder, by name: `layers` for `layers.tg`. Other modules
    /// are read from their files.
    pub modules: BTreeMap<String, Arc<str>>,
}

impl Source {
    /// Reads a file. Paths in the program start from the file's folder.
    pub fn file(path: impl AsRef<Path>) -> Result<Source, Error> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::NotFound => "there is no such file".to_string(),
                std::io::ErrorKind::IsADirectory => "it is a folder".to_string(),
                _ => error.to_string(),
            };
            unreadable(path, &why)
        })?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable(path, "it is not UTF-8 text"))?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let source = Source::text(path.display().to_string(), text);
        Ok(source.in_directory(directory))
    }

    /// A text with a name; paths in it start from the current folder.
    pub fn text(name: impl Into<String>, text: impl Into<Arc<str>>) -> Source {
        Source {
            name: name.into(),
            text: text.into(),
            directory: PathBuf::from("."),
            modules: BTreeMap::new(),
        }
    }

    /// The same text, with paths that start from another folder.
    pub fn in_directory(mut self, directory: impl Into<PathBuf>) -> Source {
        self.directory = directory.into();
        self
    }

    /// Gives the text of a module instead of its file: what an editor has not saved yet, say.
    pub fn with_module(mut self, name: impl Into<String>, text: impl Into<Arc<str>>) -> Source {
        self.modules.insert(name.into(), text.into());
        self
    }
}

fn unreadable(path: &Path, why: &str) -> Error {
    let mut sources = SourceMap::new();
    let file = sources.add(path.display().to_string(), "");
    let message = format!("cannot read `{}`: {why}", path.display());
    Error::new(vec![Diagnostic::error(codes::FILE, Span::new(file, 0..0), message)], Arc::new(sources))
}

/// What one compilation may set.
#[derive(Debug, Clone, Default)]
pub struct CompileOptions {
    /// Values for constants and default dimensions, by name.
    pub sets: Vec<(String, String)>,
    /// Instead of the engine's.
    pub seed: Option<u64>,
    /// Sessions go on from the last file that the script saved.
    pub resume: bool,
    /// How far steps are planned.
    pub planning: Planning,
    /// Stops the compilation. Sessions have a token of their own.
    pub cancel: CancelToken,
    /// Which order of its steps to plan and run. Results are the same bits; `ensure peak` is judged
    /// for the best one only.
    pub order: OrderKind,
    /// Instead of the engine's: how many ranks run the program.
    pub world: Option<u32>,
    /// For which device steps are planned.
    pub target: Target,
    /// Look for memory that is kept too long. `None` does not: a program that is only to run needs
    /// no advice.
    pub memory: Option<diagnose::Options>,
}

/// Settings for compiling and running programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    device: Device,
    tf32: bool,
    limits: Limits,
    seed: u64,
    host: Arc<HostTable>,
    world: u32,
    rank_limit: Duration,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            device: Device::default(),
            tf32: false,
            limits: Limits::default(),
            seed: 0,
            host: Arc::default(),
            world: 1,
            rank_limit: comm::DEFAULT_LIMIT,
        }
    }
}

impl Engine {
    /// An engine with the default limits, on the CPU, with seed 0.
    pub fn new() -> Engine {
        Engine::default()
    }

    /// What runs the programs.
    pub fn with_device(mut self, device: Device) -> Engine {
        self.device = device;
        self
    }

    /// Whether a CUDA device may round the operands of f32 products to TF32, which has 10 bits of fraction:
    /// faster on its tensor cores. Not where nothing is said.
    pub fn with_tf32(mut self, on: bool) -> Engine {
        self.tf32 = on;
        self
    }

    /// What one program may take. See [`Limits`].
    pub fn with_limits(mut self, limits: Limits) -> Engine {
        self.limits = limits;
        self
    }

    /// How many ranks run a program together, each in a session of its own: see
    /// [`Program::sessions`]. 1 where nothing is said; 0 counts as 1.
    pub fn with_world(mut self, world: u32) -> Engine {
        self.world = world.max(1);
        self
    }

    /// How long a rank waits for another one before that is an error; 60 seconds where nothing is
    /// said.
    pub fn with_rank_limit(mut self, limit: Duration) -> Engine {
        self.rank_limit = limit;
        self
    }

    /// The seed of all random numbers; 0 where none is given.
    pub fn with_seed(mut self, seed: u64) -> Engine {
        self.seed = seed;
        self
    }

    /// Lets scripts call a function of the host by its name. See [`HostFunction`].
    pub fn with_function(
        self,
        name: impl Into<Arc<str>>,
        run: impl Fn(&[Value]) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Engine {
        self.with_host_function(HostFunction::new(name, run))
    }

    /// The same, for a function that says what it returns.
    pub fn with_host_function(mut self, function: HostFunction) -> Engine {
        Arc::make_mut(&mut self.host).add_function(function);
        self
    }

    /// Lets graph code use an op of the host by its name. See [`HostOp`].
    pub fn with_op(mut self, op: HostOp) -> Engine {
        Arc::make_mut(&mut self.host).add_op(op);
        self
    }

    /// What runs the programs of this engine.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Compiles a program: types, shapes, plans, contracts. Errors carry all that was found.
    pub fn compile(&self, source: Source) -> Result<Program, Error> {
        self.compile_with(source, &CompileOptions::default())
    }

    /// The same, with values for constants, a seed, a way to stop it.
    pub fn compile_with(&self, source: Source, options: &CompileOptions) -> Result<Program, Error> {
        let checked = self.check(source, options);
        if checked.diagnostics.iter().any(Diagnostic::is_error) {
            return Err(Error::new(checked.diagnostics, checked.sources));
        }
        Ok(Program { checked, engine: self.clone(), options: options.clone() })
    }

    /// Judges a program. Unlike [`Engine::compile`] it never fails: whatever was found is there.
    pub fn check(&self, source: Source, options: &CompileOptions) -> Checked {
        let mut checked = self.judge(source.clone(), options);
        if let Some(memory) = &options.memory {
            self.look_at_memory(&mut checked, &source, options, memory);
        }
        allow::filter(&checked.whole_ast(), &mut checked.diagnostics);
        checked.diagnostics.sort_by_key(|d| (d.primary.span.file, d.primary.span.start, d.severity));
        together::join(&mut checked.diagnostics, &checked.sources);
        checked
    }

    /// Adds what the memory of the steps has to be told about.
    fn look_at_memory(
        &self,
        checked: &mut Checked,
        source: &Source,
        options: &CompileOptions,
        memory: &diagnose::Options,
    ) {
        let is_planned = checked.diagnostics.iter().all(|d| !d.is_error() || diagnose::is_contract(d.code));
        if !is_planned || checked.plans.is_empty() {
            return;
        }
        let again = CompileOptions { planning: Planning::Quick, memory: None, ..options.clone() };
        // What files hold may change meanwhile: all trials are about the texts that were read.
        let mut read = source.clone();
        for (_, file) in checked.own_modules() {
            read.modules.insert(module_name(file), Arc::clone(&file.text));
        }
        let (program, sources) = (checked.ast.file, Arc::clone(&checked.sources));
        let recompile = |texts: &diagnose::Texts| {
            let mut changed = read.clone();
            for (id, text) in texts {
                let text: Arc<str> = text.as_str().into();
                match sources.get(*id) {
                    Some(file) if *id != program => drop(changed.modules.insert(module_name(file), text)),
                    _ => changed.text = text,
                }
            }
            self.judge(changed, &again)
        };
        diagnose::note_on_low_peak(checked);
        let ast = checked.whole_ast();
        let found = diagnose::diagnose(checked, &ast, memory, &recompile, &options.cancel);
        checked.diagnostics.extend(found.diagnostics);
        checked.hidden = found.hidden;
    }

    /// Types, plans and contracts of a program.
    fn judge(&self, source: Source, options: &CompileOptions) -> Checked {
        let mut settings = self.settings(&source.directory, options);
        let modules = Arc::new(source.modules.clone());
        settings.modules = Arc::clone(&modules);
        let (base, file, ast, mut diagnostics) = parse(&source);
        diagnostics.extend(self.host_names(file));
        let ast = Arc::new(ast);
        let mut checked = Checked {
            diagnostics: Vec::new(),
            sources: Arc::new(base.clone()),
            plans: Vec::new(),
            graphs: Vec::new(),
            written: Vec::new(),
            ast: Arc::clone(&ast),
            hidden: 0,
            base: base.clone(),
            directory: source.directory,
            modules,
            cache: Arc::clone(&settings.plans),
        };
        // What did not parse is known as lost, so the rest is judged all the same.
        let result = stack::on_big_stack(|| {
            let mut evaluator = Evaluator::new(Mode::Check, settings, base);
            let guard = evaluator.guard.clone();
            guard::within(&guard, || {
                // Everything wrong is among the diagnostics by then.
                let _ = evaluator.evaluate(Arc::clone(&ast));
                evaluator.finish_check();
                evaluator
            })
        });
        match result {
            Ok(mut evaluator) => {
                diagnostics.append(&mut evaluator.diagnostics);
                checked.plans = std::mem::take(&mut evaluator.plans);
                checked.graphs = evaluator.graphs();
                checked.written = evaluator.written_graphs();
                checked.sources = Arc::new(std::mem::take(&mut evaluator.sources));
            }
            Err(fault) => diagnostics.push(internal_fault(file, &fault)),
        }
        if options.cancel.is_cancelled() {
            // What was found so far may be due to the stop.
            let message = "the compilation was stopped";
            diagnostics = vec![Diagnostic::error(codes::CANCELLED, Span::new(file, 0..0), message)];
        }
        checked.diagnostics = diagnostics;
        checked
    }

    /// A session without a program, for interactive use.
    pub fn session(&self) -> Session {
        let settings = self.settings(Path::new("."), &CompileOptions::default());
        let mut sources = SourceMap::new();
        let mut session_diagnostics = Vec::new();
        if self.host.names().any(check::is_builtin) {
            let file = sources.add("<session>", "");
            session_diagnostics = self.host_names(file);
        }
        let mut evaluator = Evaluator::new(Mode::Run, settings, sources);
        evaluator.diagnostics = session_diagnostics;
        Session::new(evaluator, None, session::Told::default())
    }

    /// How many ranks run what is compiled with these options.
    fn world_of(&self, options: &CompileOptions) -> u32 {
        options.world.unwrap_or(self.world).max(1)
    }

    fn settings(&self, directory: &Path, options: &CompileOptions) -> Settings {
        let device = self.device.resolved();
        Settings {
            seed: options.seed.unwrap_or(self.seed),
            limits: self.limits,
            sets: options.sets.clone(),
            directory: directory.to_path_buf(),
            modules: Arc::default(),
            resume: options.resume,
            planning: options.planning,
            cancel: options.cancel.clone(),
            host: Arc::clone(&self.host),
            plans: Arc::default(),
            order: options.order,
            world: self.world_of(options),
            target: device.target().unwrap_or(options.target),
            device,
            tf32: self.tf32,
        }
    }

    /// Errors for names of the host that the language has itself: scripts could not reach them, and
    /// the library would not mean what it says.
    fn host_names(&self, file: FileId) -> Vec<Diagnostic> {
        let taken = self.host.names().filter(|name| check::is_builtin(name));
        taken
            .map(|name| {
                let message = format!("the host registers `{name}`, which is a name of the language");
                Diagnostic::error(codes::DUPLICATE_NAME, Span::new(file, 0..0), message)
            })
            .collect()
    }
}

/// The name by which a program uses a file beside it.
#[must_use]
pub(crate) fn module_name(file: &SourceFile) -> String {
    let stem = Path::new(&file.name).file_stem();
    stem.map_or_else(String::new, |s| s.to_string_lossy().into_owned())
}

fn parse(source: &Source) -> (SourceMap, FileId, Ast, Vec<Diagnostic>) {
    let mut sources = SourceMap::new();
    let file = sources.add(source.name.as_str(), Arc::clone(&source.text));
    let (ast, diagnostics) = syntax::parse(file, &source.text);
    (sources, file, ast, diagnostics)
}

fn internal_fault(file: FileId, what: &str) -> Diagnostic {
    Diagnostic::new(
        Severity::Error,
        codes::INTERNAL,
        Span::new(file, 0..0),
        format!("internal fault: {what}"),
    )
    .note("this is a fault of `tg`: please report it with the program")
}
