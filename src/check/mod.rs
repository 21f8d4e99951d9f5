//! The evaluator: script code runs (or is followed abstractly), graph code is elaborated into
//! [`crate::ir::Graph`]s.
//!
//! One evaluator serves both modes. In mode Run the script's statements happen. In mode Check
//! numbers, strings, lists and the structure of models are concrete, tensors have a dtype and a
//! shape only, loop bodies over data are visited once, and nothing is printed or written. A
//! statement that fails poisons the names it binds, so that one pass reports all it can find.

mod args;
mod assign;
mod attribute;
mod budget;
mod call;
mod contract;
mod data;
mod declarations;
mod device;
mod errors;
mod expr;
mod file_names;
mod files;
mod frame;
mod function;
mod gradient;
mod held;
mod hook;
mod hook_files;
mod host;
mod host_call;
mod index;
mod iterate;
mod language;
mod loops;
mod missing;
mod model;
mod modules;
mod operand;
mod operator;
mod optimizer;
mod persistent;
mod plans;
mod rank;
mod region;
mod release;
mod resolve;
mod resume;
mod run;
mod scope;
mod script;
mod shard;
mod step;
mod step_args;
mod step_plan;
mod stmt;
mod strings;
mod sync;
pub mod tensor;
mod tree;
mod types;
mod update;
pub mod value;
mod walk;
mod witness;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, Weak},
};

use rustc_hash::{FxHashMap, FxHashSet};

pub use budget::Written;
pub use errors::{Eval, Halt, closest, foreign_word};
pub use frame::Ensure;
pub use plans::PlanCache;
pub use scope::{Binding, Scope, ScopeKind};
pub use step::Compiled;

use crate::{
    codes,
    diagnostic::Diagnostic,
    engine::HostTable,
    exec::{
        Device, Runner, Tensor,
        comm::{Alone, Comm},
    },
    guard::{CancelToken, Guard, Ledger},
    ir::{DType, OriginId, Type},
    plan::{Plan, Target},
    schedule::OrderKind,
    source::{SourceMap, Span},
    syntax::ast::{Ast, Name},
};
use frame::Frame;
use modules::ModuleState;
use value::{Cx, Step, Value};

/// Whether a name is there without a declaration.
pub(crate) fn is_builtin(name: &str) -> bool {
    matches!(name, "training" | "inf" | "nan" | "pi" | "world" | "rank")
        || DType::parse(name).is_some()
        || language::find(name).is_some()
        || tensor::find(name).is_some()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Follow the program abstractly.
    Check,
    /// Run it.
    Run,
}

/// What one engine allows. Sizes are checked before memory is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Nodes of one graph.
    pub max_nodes: usize,
    /// Bytes of one step, or of one tensor of the script.
    pub max_bytes: u64,
    /// Bytes that a run may take at once: the machine's memory where nothing else is said.
    pub max_host_bytes: u64,
    /// Nested calls and expressions.
    pub max_depth: usize,
    /// Items of a list, and passes of a loop in graph code.
    pub max_items: usize,
    /// Passes of all loops of one run, call or compilation together.
    pub max_iterations: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_nodes: 4_000_000,
            max_bytes: 1 << 46,
            max_host_bytes: host_memory(),
            max_depth: 4_000,
            max_items: 1 << 24,
            max_iterations: u64::MAX,
        }
    }
}

/// The machine's memory in bytes; a guess where the system does not tell.
fn host_memory() -> u64 {
    const GUESS: u64 = 16 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kilobytes.map_or(GUESS, |k| k.saturating_mul(1024))
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub limits: Limits,
    /// `--set NAME=VALUE`: constants and default dimensions.
    pub sets: Vec<(String, String)>,
    /// Where relative paths of the script start, and where modules are looked up.
    pub directory: PathBuf,
    /// Texts that stand for files of modules there, by the name of the module.
    pub modules: Arc<BTreeMap<String, Arc<str>>>,
    /// Continue from the last file that the script saves.
    pub resume: bool,
    pub planning: Planning,
    /// Stops what this evaluator does.
    pub cancel: CancelToken,
    /// What the host brings.
    pub host: Arc<HostTable>,
    /// Plans that others have made of the same program.
    pub plans: Arc<PlanCache>,
    /// Which order to plan. Contracts are judged for the best one only.
    pub order: OrderKind,
    /// How many ranks run the program.
    pub world: u32,
    /// What runs steps.
    pub device: Device,
    /// Whether f32 products of a CUDA device may use TF32.
    pub tf32: bool,
    /// For which device steps are planned.
    pub target: Target,
}

/// How far steps are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Planning {
    /// Types only: steps get no plan, and `ensure` is not checked.
    Nothing,
    /// The plan that runs, with a bound that may be below what can be proved.
    Quick,
    /// The same plan, with the best bounds: on its peak, and on every legal order.
    #[default]
    Proved,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 0,
            limits: Limits::default(),
            sets: Vec::new(),
            directory: PathBuf::from("."),
            modules: Arc::default(),
            resume: false,
            planning: Planning::default(),
            cancel: CancelToken::new(),
            host: Arc::default(),
            plans: Arc::default(),
            order: OrderKind::default(),
            world: 1,
            device: Device::default(),
            tf32: false,
            target: Target::default(),
        }
    }
}

/// A call on its way: for messages, and for the limit on depth.
struct CallSite {
    span: Span,
    title: Name,
    /// The pass of the loop around it.
    iteration: Option<Arc<str>>,
    /// What the frame stamps on nodes again when the call is over.
    parent: Option<OriginId>,
}

/// What receives printed text, a line at a time.
pub type Output = Box<dyn FnMut(&str) + Send>;

/// So many scopes are remembered before those that are gone are looked for.
const SCOPES_KEPT: usize = 1024;

pub struct Evaluator {
    pub mode: Mode,
    pub settings: Settings,
    pub sources: SourceMap,
    pub diagnostics: Vec<Diagnostic>,
    /// The top level of the script.
    pub script: Arc<Scope>,
    /// Plans of steps, in the order in which they were made.
    pub plans: Vec<Arc<Plan>>,
    pub guard: Guard,
    /// Shared with a step that runs, which shows values while it does.
    pub output: Arc<Mutex<Output>>,
    /// What receives lines about the run itself.
    pub notice: Output,
    /// Statements with effects (loops, printing, files) happen. Off for sessions that only define.
    pub effects: bool,
    frames: Vec<Frame>,
    calls: Vec<CallSite>,
    /// Models whose bodies are being evaluated, the innermost last.
    building: Vec<model::Building>,
    depth: usize,
    /// The limit on depth is reached: all calls on their way end before anything else is evaluated. A
    /// function that calls itself twice would otherwise try both at every level.
    too_deep: bool,
    /// Names that text which did not parse may have bound.
    lost: FxHashSet<Name>,
    /// Such a text declared something whose name is lost too.
    lost_any: bool,
    /// Names that inputs of a session would have bound, had they not failed, and where. Why is said already.
    pub(crate) unmade: FxHashMap<Name, Span>,
    /// How many statements failed so far.
    failures: usize,
    /// Branches around the code that is followed whose conditions are not known, in mode Check.
    doubtful: usize,
    /// In mode Check: a whole number was taken from a tensor, and a sample stands for it.
    guessed: bool,
    modules: FxHashMap<Name, ModuleState>,
    /// Scopes that functions hold: their cycles are broken at the end.
    scopes: Vec<Weak<Scope>>,
    /// How many there may be before those that are gone are dropped.
    scopes_limit: usize,
    steps: Vec<Arc<Step>>,
    /// The dtype of `… in bf16` around a model that is being made.
    param_dtype: Option<DType>,
    /// The declared type of the parameter whose initial value is computed.
    declared: Option<Type>,
    /// Initialisers that were checked, by (place, type).
    checked_inits: FxHashSet<(Span, Type)>,
    /// Types of optimizer states, by (place of the expression, type of the parameter).
    state_types: FxHashMap<(Span, Type), Type>,
    /// How many branches are running that only some ranks take.
    rank_branches: usize,
    /// Passes of loops since the host's call began.
    pub passes: u64,
    /// How many script expressions with random numbers there were.
    random_calls: u64,
    used_sets: FxHashSet<String>,
    /// Metric logs.
    console: script::Console,
    /// Loops of the script that are running, the innermost last.
    loops: Vec<resume::RunningLoop>,
    /// The loop of the top level that ended last.
    finished: Option<resume::Finished>,
    resume_at: resume::Resume,
    resumed: bool,
    /// The script itself.
    program: Option<Arc<Ast>>,
    /// Its statements are being executed, loops included.
    runs_program: bool,
    loop_heads: Vec<resume::LoopHead>,
    /// Loaded states of optimizers whose steps are not compiled yet, by name.
    pending: FxHashMap<String, Tensor>,
    /// How many updates they had made.
    pending_counts: FxHashMap<String, u64>,
    /// Files that the script saves, in mode Check: they may be missing when it loads them.
    written: FxHashSet<PathBuf>,
    /// What runs steps, with the memory that all of them share; started by the first one.
    pub(crate) runner: Option<Runner>,
    /// A step that a device runs by itself.
    flight: Option<device::Flight>,
    /// Gradient functions of host ops, elaborated.
    templates: host_call::Templates,
    /// A gradient function of a host op is being elaborated.
    in_template: bool,
    /// The group of ranks that this one belongs to.
    pub comm: Box<dyn Comm>,
    shards: shard::Shards,
    /// Of this evaluator: objects that hosts hold belong to one.
    pub id: u64,
}

impl Evaluator {
    pub fn new(mode: Mode, settings: Settings, sources: SourceMap) -> Evaluator {
        let script = Scope::new(ScopeKind::Script, None);
        let ledger = Arc::new(Ledger::new(settings.limits.max_host_bytes));
        let guard = Guard { cancel: settings.cancel.clone(), ledger };
        Evaluator {
            mode,
            settings,
            sources,
            diagnostics: Vec::new(),
            scopes: vec![Arc::downgrade(&script)],
            scopes_limit: SCOPES_KEPT,
            script,
            plans: Vec::new(),
            guard,
            output: Arc::new(Mutex::new(Box::new(|_| {}))),
            notice: Box::new(|_| {}),
            effects: true,
            frames: Vec::new(),
            calls: Vec::new(),
            building: Vec::new(),
            depth: 0,
            too_deep: false,
            lost: FxHashSet::default(),
            lost_any: false,
            unmade: FxHashMap::default(),
            failures: 0,
            doubtful: 0,
            guessed: false,
            modules: FxHashMap::default(),
            steps: Vec::new(),
            param_dtype: None,
            declared: None,
            checked_inits: FxHashSet::default(),
            state_types: FxHashMap::default(),
            rank_branches: 0,
            passes: 0,
            random_calls: 0,
            used_sets: FxHashSet::default(),
            console: script::Console::default(),
            loops: Vec::new(),
            finished: None,
            resume_at: resume::Resume::default(),
            resumed: false,
            program: None,
            runs_program: false,
            loop_heads: Vec::new(),
            pending: FxHashMap::default(),
            pending_counts: FxHashMap::default(),
            written: FxHashSet::default(),
            runner: None,
            flight: None,
            templates: Default::default(),
            in_template: false,
            comm: Box::new(Alone),
            shards: shard::Shards::default(),
            id: value::fresh_id(),
        }
    }

    /// Evaluates the statements of a file in the scope of the script, and gives the value of the
    /// last one where it is an expression.
    pub fn evaluate(&mut self, ast: Arc<Ast>) -> Eval<Value> {
        let cx = Cx { ast: Arc::clone(&ast), scope: Arc::clone(&self.script) };
        self.lost.extend(ast.lost.iter().cloned());
        self.lost_any |= ast.lost_any;
        // What two declarations of one name would do is not to happen.
        if !self.judge_declarations(&ast) && self.mode == Mode::Run {
            return Err(Halt::Reported);
        }
        self.set_program(&ast);
        self.runs_program = self.effects && self.program.as_ref().is_some_and(|p| Arc::ptr_eq(p, &ast));
        let mut result = self.statements(&cx, &ast.body);
        self.runs_program = false;
        if result.is_ok() {
            result = self.all_resumed().and(result);
        }
        if self.mode == Mode::Check && !matches!(result, Err(Halt::Cancelled)) {
            self.resolve_declarations(&cx);
        }
        self.frames.clear();
        self.calls.clear();
        self.building.clear();
        self.depth = 0;
        self.too_deep = false;
        self.doubtful = 0;
        self.rank_branches = 0;
        result
    }

    /// After a script was followed in mode Check: plans what no call has planned, and reports what
    /// `--set` did not find.
    pub fn finish_check(&mut self) {
        self.plan_signatures();
        let unused: Vec<String> = self
            .settings
            .sets
            .iter()
            .map(|(name, _)| name.clone())
            .filter(|name| !self.used_sets.contains(name) && !self.lost.contains(name.as_str()))
            .collect();
        for name in unused {
            self.report(
                Diagnostic::error(
                    codes::BAD_SET,
                    Span::default(),
                    format!("`--set {name}=…` fits no `const {name}` and no dimension `{name} = …`"),
                )
                .help("only constants and dimensions with a default can be set"),
            );
        }
    }

    /// The steps declared so far.
    pub fn steps(&self) -> &[Arc<Step>] {
        &self.steps
    }

    fn cancelled(&self) -> bool {
        self.guard.cancel.is_cancelled()
    }

    /// Whether the next error ends the evaluation: in mode Run nothing after it may happen.
    fn stops_at_errors(&self) -> bool {
        self.mode == Mode::Run && !self.in_graph()
    }

    fn remember_scope(&mut self, scope: &Arc<Scope>) {
        // Only where half of them may be gone, so that each is looked at a few times in all.
        if self.scopes.len() >= self.scopes_limit {
            self.scopes.retain(|s| s.strong_count() > 0);
            self.scopes_limit = (2 * self.scopes.len()).max(SCOPES_KEPT);
        }
        self.scopes.push(Arc::downgrade(scope));
    }

    /// One level deeper; an error where the limit is reached.
    fn deeper<T>(&mut self, span: Span, run: impl FnOnce(&mut Self) -> Eval<T>) -> Eval<T> {
        if self.too_deep {
            return Err(Halt::Reported);
        }
        if self.depth >= self.settings.limits.max_depth {
            self.too_deep = !self.calls.is_empty();
            let limit = self.settings.limits.max_depth;
            // Every level of the recursion ends here: one message at the call that started it.
            let outermost = self.calls.first().map_or(span, |c| c.span);
            return Err(self.report(
                Diagnostic::error(
                    codes::TOO_DEEP,
                    outermost,
                    format!(
                        "calls and expressions are nested more than {limit} deep (`max_depth` of this engine)"
                    ),
                )
                .help(
                    "a function that calls itself must reach an end, on values known when the graph is built",
                ),
            ));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }
}

impl Drop for Evaluator {
    fn drop(&mut self) {
        for scope in std::mem::take(&mut self.scopes) {
            if let Some(scope) = scope.upgrade() {
                scope.clear();
            }
        }
    }
}
