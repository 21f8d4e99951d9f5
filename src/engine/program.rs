//! A compiled program.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{CompileOptions, Engine, Session, session::Told};
use crate::{
    check::{Evaluator, Mode, PlanCache, Written, closest},
    codes,
    diagnostic::{Diagnostic, Error},
    exec::{
        Device, Runner,
        comm::{Alone, Comm, Failure, MAX_THREADS, threads},
    },
    guard::CancelToken,
    ir::Graph,
    ops::OpError,
    plan::Plan,
    source::{FileId, SourceFile, SourceMap, Span},
    syntax::{self, ast::Ast},
};

/// What is known of a program after it was judged, whether it is right or not.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Errors, warnings and notes, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
    /// The texts that spans point into, the library's included.
    pub sources: Arc<SourceMap>,
    /// One for each step and set of shapes, in the order of the text.
    pub plans: Vec<Arc<Plan>>,
    /// The graph of each of them before lowering, with the name of its step.
    pub graphs: Vec<(Arc<str>, Arc<Graph>)>,
    /// The same graphs without what a `budget` added.
    pub written: Vec<Written>,
    /// The tree of the program itself.
    pub ast: Arc<Ast>,
    /// Findings about memory that are not among the diagnostics, because worse ones are.
    pub hidden: usize,
    /// The texts before modules were loaded.
    pub(super) base: SourceMap,
    pub(super) directory: PathBuf,
    /// Texts of modules that the program came with.
    pub(super) modules: Arc<BTreeMap<String, Arc<str>>>,
    /// The plans, for sessions.
    pub(super) cache: Arc<PlanCache>,
}

impl Checked {
    /// Whether nothing is wrong with the program.
    pub fn is_sound(&self) -> bool {
        !self.diagnostics.iter().any(Diagnostic::is_error)
    }

    /// The files beside the program that it uses: not those of the library, nor the program itself
    /// where a module uses it.
    pub fn own_modules(&self) -> impl Iterator<Item = (FileId, &SourceFile)> {
        let own_name = |file: &SourceFile| Path::new(&file.name).file_name().map(|n| n.to_os_string());
        let program = self.sources.get(self.ast.file).and_then(own_name);
        let others = self.sources.files().filter(|(id, file)| *id != self.ast.file && !file.is_library);
        others.filter(move |(_, file)| own_name(file) != program)
    }

    /// One tree of the program and of the modules beside it; ids of [`Checked::ast`] hold in it.
    pub fn whole_ast(&self) -> Arc<Ast> {
        let mut modules = self.own_modules().map(|(id, file)| (id, &*file.text)).peekable();
        match modules.peek() {
            None => Arc::clone(&self.ast),
            Some(_) => Arc::new(syntax::with_files(&self.ast, modules)),
        }
    }
}

/// A program without errors. It can be asked for its plans, and run in any number of sessions.
#[derive(Debug, Clone)]
pub struct Program {
    pub(super) checked: Checked,
    pub(super) engine: Engine,
    pub(super) options: CompileOptions,
}

impl Program {
    /// Warnings and notes.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.checked.diagnostics
    }

    /// The texts that spans point into.
    pub fn sources(&self) -> &Arc<SourceMap> {
        &self.checked.sources
    }

    /// One for each step and set of shapes, in the order of the text.
    pub fn plans(&self) -> &[Arc<Plan>] {
        &self.checked.plans
    }

    /// The plan of a step: that of its signature, or of the first call seen. The error names the
    /// steps that there are.
    pub fn plan(&self, step: &str) -> Result<&Arc<Plan>, Error> {
        self.checked.plans.iter().find(|p| &*p.name == step).ok_or_else(|| {
            let message = format!("no step `{step}` is planned");
            let mut diagnostic = Diagnostic::error(codes::UNKNOWN_NAME, Span::default(), message);
            let names: Vec<&str> = self.checked.plans.iter().map(|p| &*p.name).collect();
            match closest(step, names.iter().copied()) {
                Some(close) => diagnostic.help.push(format!("did you mean `{close}`?")),
                None => diagnostic.notes.push(format!("planned steps: {}", names.join(", "))),
            }
            Error::new(vec![diagnostic], Arc::clone(&self.checked.sources))
        })
    }

    /// How many plans were made for this program so far, in compiling it and in its sessions. Each
    /// step is planned once for each set of shapes; the sessions share what the compilation has made.
    pub fn plans_made(&self) -> usize {
        self.checked.cache.made()
    }

    /// All that is known from compiling it.
    pub fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Starts a session. Nothing runs until [`Session::run`], [`Session::call`] or
    /// [`Session::eval`] is called. An error for a program of several ranks.
    pub fn session(&self) -> Result<Session, Error> {
        self.session_in(Box::new(Alone))
    }

    /// Starts a session for each rank, in their order. They belong to one group, so each runs on a
    /// thread of its own: a rank that calls a collective waits for all others. An error in one of
    /// them ends the group.
    pub fn sessions(&self) -> Result<Vec<Session>, Error> {
        let world = self.world();
        if world == 1 {
            return Ok(vec![self.session()?]);
        }
        if world > MAX_THREADS {
            let message = format!("{world} ranks, and one process starts at most {MAX_THREADS}");
            return Err(self.about_ranks(message, "`--engine mpi` runs ranks as processes"));
        }
        threads(world, self.engine.rank_limit).into_iter().map(|comm| self.session_in(comm)).collect()
    }

    /// Starts the session of one rank, whose engine the host brings.
    pub fn session_in(&self, mut comm: Box<dyn Comm>) -> Result<Session, Error> {
        let world = self.world();
        if comm.world() != world {
            let message = format!("the program is compiled for {world} ranks, and runs on {}", comm.world());
            return Err(self.about_ranks(message, "`Program::sessions` starts one session for each rank"));
        }
        let mut settings = self.engine.settings(&self.checked.directory, &self.options);
        settings.plans = Arc::clone(&self.checked.cache);
        settings.modules = Arc::clone(&self.checked.modules);
        settings.cancel = CancelToken::new();
        // What runs is planned for what it runs on.
        settings.target = settings.device.target().unwrap_or_default();
        // A device that cannot be used is an error before the script does anything.
        let runner = match settings.device {
            Device::Cpu => None,
            device => Some(
                Runner::open(device, comm.rank(), settings.limits.max_host_bytes)
                    .map(|runner| runner.with_tf32(settings.tf32))
                    .map_err(|error| self.without_device(&mut *comm, error))?,
            ),
        };
        let mut evaluator = Evaluator::new(Mode::Run, settings, self.checked.base.clone());
        evaluator.comm = comm;
        evaluator.runner = runner;
        let told = Told::of(&self.checked.whole_ast(), &self.checked.diagnostics);
        Ok(Session::new(evaluator, Some(Arc::clone(&self.checked.ast)), told))
    }

    /// How many ranks the program is compiled for.
    pub fn world(&self) -> u32 {
        self.engine.world_of(&self.options)
    }

    /// The error of a rank that has no device. The others are told, so that none waits for it.
    fn without_device(&self, comm: &mut dyn Comm, error: OpError) -> Error {
        let mut diagnostic = Diagnostic::error(codes::DEVICE, Span::default(), error.message);
        diagnostic.help.extend(error.help);
        if comm.world() > 1 {
            comm.fail(Failure::failed(comm.rank(), &diagnostic.message));
            diagnostic.notes.push(format!("on rank {}", comm.rank()));
        }
        Error::new(vec![diagnostic], Arc::clone(&self.checked.sources))
    }

    fn about_ranks(&self, message: String, help: &str) -> Error {
        let diagnostic = Diagnostic::error(codes::BAD_OPTION, Span::default(), message).help(help);
        Error::new(vec![diagnostic], Arc::clone(&self.checked.sources))
    }
}
