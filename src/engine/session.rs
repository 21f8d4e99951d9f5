//! A running program: its variables, parameters and steps.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashSet;

use super::{
    CancelToken, Device, DeviceStats, Source, Value,
    allow::{self, Allowed},
    internal_fault,
    stack::{on_big_stack, on_this_stack},
    together,
};
use crate::{
    check::{self, Eval, Evaluator, Halt},
    codes,
    diagnostic::{Code, Diagnostic, Error},
    exec::comm::Failure,
    guard,
    plan::Plan,
    source::{FileId, SourceMap, Span},
    syntax::{
        self,
        ast::{Ast, Name, StmtId, StmtKind},
    },
};

/// What an input of [`Session::eval`] gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evaluated {
    /// The value of a last expression, as text; `None` where there is nothing to show.
    pub value: Option<String>,
    /// Its type: `f32[3]`, `int`, `a model Linear`.
    pub kind: String,
    /// What was found beside: warnings and notes.
    pub diagnostics: Vec<Diagnostic>,
}

/// A variable of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// As in the script.
    pub name: Arc<str>,
    /// Its type, as [`Evaluated::kind`] gives it.
    pub kind: String,
    /// Bytes of the tensors that it holds.
    pub bytes: u64,
    /// Where it was bound.
    pub span: Span,
}

/// Where work of a session happens.
#[derive(Debug, Clone, Copy)]
enum Stack {
    /// On a thread of its own: it may recurse as deep as the program does.
    Big,
    /// On the caller's thread.
    Own,
}

/// The state of a running program.
pub struct Session {
    pub(super) evaluator: Evaluator,
    program: Option<Arc<Ast>>,
    /// The definitions of the program are evaluated.
    is_defined: bool,
    inputs: usize,
    told: Told,
}

/// What need not be told of a run: what was told when the program was compiled, or later, and what
/// the program allows.
#[derive(Default)]
pub(super) struct Told {
    allowed: Allowed,
    seen: FxHashSet<(Code, Span, String)>,
}

impl Told {
    /// Of a program, all of whose diagnostics were told.
    pub fn of(ast: &Ast, diagnostics: &[Diagnostic]) -> Told {
        let mut told = Told { allowed: allow::allowed(ast), ..Told::default() };
        for diagnostic in diagnostics {
            told.is_new(diagnostic);
        }
        told
    }

    /// Whether a diagnostic is news, which it is once.
    pub fn is_new(&mut self, d: &Diagnostic) -> bool {
        !self.allowed.covers(d) && self.seen.insert((d.code, d.primary.span, d.message.clone()))
    }
}

impl Session {
    pub(super) fn new(evaluator: Evaluator, program: Option<Arc<Ast>>, told: Told) -> Session {
        Session { evaluator, program, is_defined: false, inputs: 0, told }
    }

    /// Runs the whole script, from its first statement.
    pub fn run(&mut self) -> Result<(), Error> {
        self.forget_cancel();
        let Some(program) = self.program.clone() else { return Ok(()) };
        // Calls after a run that failed see what it has made so far.
        self.is_defined = true;
        self.guarded(move |ev| {
            ev.effects = true;
            ev.evaluate(program).map(|_| ())
        })
    }

    /// Evaluates what the script defines (`use const let fn model step optimizer`), and leaves out
    /// what it does. Happens by itself before the first call.
    pub fn define(&mut self) -> Result<(), Error> {
        self.forget_cancel();
        let Some(program) = self.program.clone().filter(|_| !self.is_defined) else { return Ok(()) };
        let result = self.guarded(move |ev| {
            ev.effects = false;
            let result = ev.evaluate(program).map(|_| ());
            ev.effects = true;
            result
        });
        self.is_defined = result.is_ok();
        if !self.is_defined {
            self.evaluator.forget_definitions();
        }
        result
    }

    /// Calls a step, function or model of the script; gives its result.
    ///
    /// Arguments are bound in order. Tensors and numbers for parameters that are declared with a
    /// dtype change from call to call for nothing; other numbers, strings, bools and lists are
    /// known when the step is compiled, so that a new value compiles it again.
    pub fn call(&mut self, name: &str, arguments: &[Value]) -> Result<Value, Error> {
        self.define()?;
        // A thread with a large stack takes longer to start than a small step to run, and what is
        // compiled does not recurse.
        let stack = if self.evaluator.is_ready(name, arguments) { Stack::Own } else { Stack::Big };
        self.guarded_on(stack, move |ev| ev.call_by_name(name, arguments))
    }

    /// Evaluates a text as if it stood at the end of the script. Definitions can be replaced.
    pub fn eval(&mut self, text: &str) -> Result<Evaluated, Error> {
        self.inputs += 1;
        let name = format!("<repl:{}>", self.inputs);
        self.eval_named(&name, text)
    }

    /// Runs another program in this session: its names join those that are there, and paths start
    /// from its folder until it has ended.
    pub fn include(&mut self, source: &Source) -> Result<Evaluated, Error> {
        let directory = std::mem::replace(&mut self.evaluator.settings.directory, source.directory.clone());
        let result = self.eval_named(&source.name, &source.text);
        self.evaluator.settings.directory = directory;
        result
    }

    fn eval_named(&mut self, name: &str, text: &str) -> Result<Evaluated, Error> {
        self.define()?;
        let file = self.evaluator.sources.add(name, text);
        let (ast, mut diagnostics) = syntax::parse(file, text);
        let bound = bound_by(&ast);
        if diagnostics.iter().any(Diagnostic::is_error) {
            self.not_made(bound);
            together::join(&mut diagnostics, &self.evaluator.sources);
            return Err(Error::new(diagnostics, Arc::new(self.evaluator.sources.clone())));
        }
        let ast = Arc::new(ast);
        let text = Arc::clone(&ast);
        let evaluated = self.guarded(move |ev| {
            ev.effects = true;
            let value = ev.evaluate(text)?;
            let shown = match &value {
                check::value::Value::Unit => None,
                value => {
                    ev.script.declare(&"ans".into(), value.clone(), Span::new(file, 0..0));
                    Some(ev.show(value)?)
                }
            };
            Ok(Evaluated { value: shown, kind: ev.describe(&value), diagnostics: Vec::new() })
        });
        let mut evaluated = evaluated.inspect_err(|_| self.not_made(bound))?;
        evaluated.diagnostics = diagnostics;
        evaluated.diagnostics.append(&mut self.evaluator.diagnostics);
        allow::filter(&ast, &mut evaluated.diagnostics);
        together::join(&mut evaluated.diagnostics, &self.evaluator.sources);
        Ok(evaluated)
    }

    /// Of the names that an input which failed would have bound, those that have no value are known as
    /// such: what needs them later has the same fault.
    fn not_made(&mut self, bound: Vec<(Name, Span)>) {
        let evaluator = &mut self.evaluator;
        for (name, span) in bound {
            if evaluator.script.get(&name).is_none() {
                evaluator.unmade.insert(name, span);
            }
        }
    }

    /// This session's rank, from 0.
    pub fn rank(&self) -> u32 {
        self.evaluator.comm.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.evaluator.comm.world()
    }

    /// What has gone wrong between the ranks, as far as this one knows. Every later collective fails
    /// with it.
    pub fn rank_failure(&self) -> Option<Failure> {
        self.evaluator.comm.failure()
    }

    /// Tells the other ranks that this one takes part in nothing any more; dropping a session does
    /// so, too. Under MPI it waits until all have ended.
    pub fn end(&mut self) {
        self.evaluator.comm.end();
    }

    /// What receives printed lines. They are dropped where nothing is set, and on all ranks but the
    /// first.
    pub fn on_print(&mut self, output: impl FnMut(&str) + Send + 'static) {
        if self.rank() > 0 {
            return;
        }
        self.evaluator.output = Arc::new(Mutex::new(Box::new(output)));
    }

    /// What receives lines about the run itself, such as where it was resumed. They are dropped
    /// where nothing is set, and on all ranks but the first.
    pub fn on_notice(&mut self, notice: impl FnMut(&str) + Send + 'static) {
        if self.rank() > 0 {
            return;
        }
        self.evaluator.notice = Box::new(notice);
    }

    /// Stops what this session does, from another thread: between two operations, and in a step
    /// before it has changed anything. The call ends with an error of code `TG0405`, and the session
    /// goes on. A wish that comes while nothing runs is forgotten when the next call begins.
    pub fn cancel_token(&self) -> CancelToken {
        self.evaluator.guard.cancel.clone()
    }

    /// A wish to stop that came after the last run had ended is not meant for the next one.
    fn forget_cancel(&self) {
        self.evaluator.guard.cancel.reset();
    }

    /// Bytes of tensors, arena and files that this session has taken and not given back, tensors
    /// that the host got from it included. At most `max_host_bytes` of [`Limits`](super::Limits).
    pub fn host_bytes(&self) -> u64 {
        self.evaluator.guard.ledger.used()
    }

    /// The most of them at once so far.
    pub fn most_host_bytes(&self) -> u64 {
        self.evaluator.guard.ledger.most()
    }

    /// The plans of the steps that have run.
    pub fn plans(&self) -> &[Arc<Plan>] {
        &self.evaluator.plans
    }

    /// The variables of the script, by name.
    pub fn variables(&self) -> Vec<Variable> {
        self.evaluator.variables()
    }

    /// The texts that spans point into; inputs of [`Session::eval`] join them.
    pub fn sources(&self) -> &SourceMap {
        &self.evaluator.sources
    }

    /// Bytes of the arena that all steps share.
    pub fn arena_bytes(&self) -> u64 {
        self.evaluator.arena_bytes()
    }

    /// Steps run on another device from here on. They are planned for it when they are called next;
    /// parameters and states keep their values.
    pub fn set_device(&mut self, device: Device) -> Result<(), Error> {
        let device = device.resolved();
        self.guarded(move |ev| ev.set_device(device))
    }

    /// What the steps that have run give a device to do, with their names and plans; empty on the CPU.
    pub fn device_stats(&self) -> Vec<(Arc<str>, Arc<Plan>, DeviceStats)> {
        self.evaluator.stats()
    }

    /// Warnings and notes since they were taken last.
    pub fn take_diagnostics(&mut self) -> Vec<Diagnostic> {
        let mut found = std::mem::take(&mut self.evaluator.diagnostics);
        found.retain(|d| self.told.is_new(d));
        together::join(&mut found, &self.evaluator.sources);
        found
    }

    /// Runs `work` on a large stack; everything that it reports becomes the error.
    pub(super) fn guarded<T: Send>(
        &mut self,
        work: impl FnOnce(&mut Evaluator) -> Eval<T> + Send,
    ) -> Result<T, Error> {
        self.guarded_on(Stack::Big, work)
    }

    fn guarded_on<T: Send>(
        &mut self,
        stack: Stack,
        work: impl FnOnce(&mut Evaluator) -> Eval<T> + Send,
    ) -> Result<T, Error> {
        let evaluator = &mut self.evaluator;
        let before = std::mem::take(&mut evaluator.diagnostics);
        evaluator.passes = 0;
        let guard = evaluator.guard.clone();
        // What a device still has to do belongs to this call, and so does what goes wrong there.
        let work = || {
            guard::within(&guard, || -> Eval<T> {
                let value = work(evaluator)?;
                evaluator.land()?;
                Ok(value)
            })
        };
        let result = match stack {
            Stack::Big => on_big_stack(work),
            Stack::Own => on_this_stack(work),
        };
        let evaluator = &mut self.evaluator;
        let mut found = std::mem::replace(&mut evaluator.diagnostics, before);
        let error = match result {
            Ok(Ok(value)) if !found.iter().any(Diagnostic::is_error) => {
                evaluator.diagnostics.append(&mut found);
                return Ok(value);
            }
            Ok(Err(Halt::Cancelled)) => {
                evaluator.guard.cancel.reset();
                Some(Diagnostic::error(codes::CANCELLED, Span::default(), "the run was stopped"))
            }
            Ok(_) => None,
            Err(fault) => Some(internal_fault(FileId(0), &fault)),
        };
        evaluator.reset();
        found.extend(error);
        if !found.iter().any(Diagnostic::is_error) {
            found.push(internal_fault(FileId(0), "the program ended early without a reason"));
        }
        if evaluator.comm.world() > 1 {
            self.tell_ranks(&mut found);
        }
        let evaluator = &self.evaluator;
        together::join(&mut found, &evaluator.sources);
        Err(Error::new(found, Arc::new(evaluator.sources.clone())))
    }

    /// An error ends the group: nobody is to wait for this rank. The messages name it.
    fn tell_ranks(&mut self, found: &mut [Diagnostic]) {
        let comm = &mut self.evaluator.comm;
        let rank = comm.rank();
        let mut errors = found.iter_mut().filter(|d| d.is_error());
        let mut first = None;
        for error in &mut errors {
            first.get_or_insert((error.code, error.message.clone()));
            error.notes.push(format!("on rank {rank}"));
        }
        match first {
            Some((codes::CANCELLED, _)) => comm.fail(Failure::stopped(rank)),
            Some((_, message)) => comm.fail(Failure::failed(rank, &message)),
            None => {}
        }
    }
}

/// The names that the statements of a text bind at its top level, and where. What could not be parsed would
/// have bound some, too.
fn bound_by(ast: &Ast) -> Vec<(Name, Span)> {
    let names = |stmt: &StmtId| match &ast.stmt(*stmt).kind {
        StmtKind::Let { names, .. } | StmtKind::Error(names) => names.clone(),
        StmtKind::Const { name, .. } => vec![name.clone()],
        StmtKind::Fn(decl) | StmtKind::Step(decl) => vec![decl.name.clone()],
        StmtKind::Model(decl) => vec![decl.name.clone()],
        StmtKind::Optimizer(decl) | StmtKind::Hook(decl) => vec![decl.name.clone()],
        _ => Vec::new(),
    };
    ast.body.iter().flat_map(names).map(|ident| (ident.name, ident.span)).collect()
}
