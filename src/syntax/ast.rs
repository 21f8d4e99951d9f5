//! The syntax tree: an arena of expressions and statements with `u32` ids.
//!
//! Children are ids, so dropping or cloning a tree never recurses, however deep it is.
//! The parser refuses trees deeper than [`MAX_DEPTH`], so walking one may recurse.

use std::sync::Arc;

use crate::source::{FileId, Span};

/// The deepest tree of expressions and blocks that the parser builds. Left-leaning chains
/// (`a + b + c + …`) count too, since visitors recurse into them.
pub const MAX_DEPTH: u32 = 1000;

pub type Name = Arc<str>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StmtId(pub u32);

/// A name where it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ident {
    pub name: Name,
    pub span: Span,
}

/// One parsed file.
#[derive(Debug, Clone, Default)]
pub struct Ast {
    pub file: FileId,
    pub exprs: Vec<Expr>,
    pub stmts: Vec<Stmt>,
    /// The statements of the top level, in order.
    pub body: Vec<StmtId>,
    /// Names that text which could not be parsed may have bound: nothing is known of them.
    pub lost: Vec<Name>,
    /// A declaration was lost with its name: any name may be that one.
    pub lost_any: bool,
}

impl Ast {
    /// The expression of an id that this tree gave out.
    pub fn expr(&self, id: ExprId) -> &Expr {
        static MISSING: Expr =
            Expr { kind: ExprKind::Error, span: Span { file: FileId(0), start: 0, end: 0 } };
        self.exprs.get(id.0 as usize).unwrap_or(&MISSING)
    }

    /// The statement of an id that this tree gave out.
    pub fn stmt(&self, id: StmtId) -> &Stmt {
        static MISSING: Stmt = Stmt {
            kind: StmtKind::Error(Vec::new()),
            span: Span { file: FileId(0), start: 0, end: 0 },
            docs: None,
        };
        self.stmts.get(id.0 as usize).unwrap_or(&MISSING)
    }
}

#[derive(Debug, Clone)]
pub struct Expr {
    pub kind: ExprKind,
    pub span: Span,
}

#[derive(Debug, Clone)]
pub enum ExprKind {
    /// Could not be parsed; already reported.
    Error,
    Int(i64),
    Float(f64),
    /// `4 GiB`, `1.5 GB`, in bytes.
    Size(u64),
    Bool(bool),
    /// `"text {expr:format}"`; a string without holes is one `Text`.
    Str(Vec<StrPart>),
    Name(Name),
    List(Vec<ExprId>),
    /// `[expr for name in iter]`, with the optional condition `if cond`.
    ListFor {
        body: ExprId,
        names: Vec<Ident>,
        iter: ExprId,
        condition: Option<ExprId>,
    },
    /// `(a, b)`; `()` is the empty tuple.
    Tuple(Vec<ExprId>),
    Unary(UnaryOp, ExprId),
    Binary {
        op: BinaryOp,
        op_span: Span,
        left: ExprId,
        right: ExprId,
    },
    /// `lo..hi`, `lo..`, `..hi`, `..`.
    Range {
        low: Option<ExprId>,
        high: Option<ExprId>,
    },
    Call {
        callee: ExprId,
        args: Vec<Arg>,
    },
    /// `x.name`; `.T` is a field too.
    Field(ExprId, Ident),
    /// `x[i, 0..5, ..]`.
    Index(ExprId, Vec<IndexItem>),
    /// `{ … }`: its value is that of its last expression.
    Block(Block),
    If {
        condition: ExprId,
        then: Block,
        otherwise: Option<ExprId>,
    },
    /// `checkpoint(options) < body >`; a single expression is a block with only a tail.
    Checkpoint {
        options: Vec<Arg>,
        body: Block,
    },
    /// `barrier(a, b)`.
    Barrier(Vec<ExprId>),
    /// `expr in bf16`.
    In {
        value: ExprId,
        dtype: Ident,
    },
}

#[derive(Debug, Clone)]
pub enum StrPart {
    /// Escapes already resolved.
    Text(Arc<str>),
    Hole {
        expr: ExprId,
        format: Option<Ident>,
    },
}

/// `value` or `name: value`.
#[derive(Debug, Clone)]
pub struct Arg {
    pub name: Option<Ident>,
    pub value: ExprId,
}

#[derive(Debug, Clone)]
pub enum IndexItem {
    /// An index (drops the axis) or a tensor of indices.
    At(ExprId),
    /// `low..high..step`, every part optional.
    Slice { low: Option<ExprId>, high: Option<ExprId>, step: Option<ExprId>, span: Span },
    /// `...`: as many full axes as fit.
    Ellipsis(Span),
    /// `new`: a new axis of size 1.
    NewAxis(Span),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    Neg,
    Not,
}

/// From the loosest to the tightest: `or`, `and`, (`not`), comparisons, (`..`), `+ -`,
/// `* / // % @`, (unary `-`), `**`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    Or,
    And,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    MatMul,
    Pow,
}

impl BinaryOp {
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Or => "or",
            BinaryOp::And => "and",
            BinaryOp::Eq => "==",
            BinaryOp::Ne => "!=",
            BinaryOp::Lt => "<",
            BinaryOp::Le => "<=",
            BinaryOp::Gt => ">",
            BinaryOp::Ge => ">=",
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::FloorDiv => "//",
            BinaryOp::Rem => "%",
            BinaryOp::MatMul => "@",
            BinaryOp::Pow => "**",
        }
    }
}

/// Statements and, as the block's value, a last expression.
#[derive(Debug, Clone)]
pub struct Block {
    pub stmts: Vec<StmtId>,
    pub tail: Option<ExprId>,
    pub span: Span,
}

#[derive(Debug, Clone)]
pub struct Stmt {
    pub kind: StmtKind,
    pub span: Span,
    /// The `##` lines above it.
    pub docs: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
pub enum StmtKind {
    /// Could not be parsed; already reported. The names are those that it would have bound.
    Error(Vec<Ident>),
    /// `use nn`, `use nn.layers as l`.
    Use {
        path: Vec<Ident>,
        alias: Option<Ident>,
    },
    /// `const N = 4`: can be overridden by `--set N=…`.
    Const {
        name: Ident,
        value: ExprId,
    },
    /// `let a: T = e`, `let a, b = e`, `let (a, b) = e`.
    Let {
        names: Vec<Ident>,
        ty: Option<TypeExpr>,
        value: ExprId,
    },
    /// `a = e`, `a, b = e`, `a += e`, `m.x[i] = e`.
    Assign {
        targets: Vec<ExprId>,
        op: Option<BinaryOp>,
        value: ExprId,
    },
    /// `mean := e`.
    StateWrite {
        target: ExprId,
        value: ExprId,
    },
    Expr(ExprId),
    For {
        names: Vec<Ident>,
        iter: ExprId,
        body: Block,
    },
    /// `return`, `return a, b` (a tuple when there are several).
    Return(Vec<ExprId>),
    Fn(Arc<FnDecl>),
    Model(Arc<ModelDecl>),
    Step(Arc<FnDecl>),
    Optimizer(Arc<OptimizerDecl>),
    /// `hook compress(bucket, k: int = 4) { state e = zeros_like(bucket) … }`: the form of an optimizer.
    Hook(Arc<OptimizerDecl>),
    /// `param w: f32[n, m] = init.kaiming()`, only in the body of a model.
    Param(Arc<FieldDecl>),
    /// `state mean: f32[c] = zeros()`, only in the body of a model.
    State(Arc<FieldDecl>),
    /// `minimize loss over net, head with opt`.
    Minimize {
        loss: ExprId,
        over: Vec<ExprId>,
        with: ExprId,
    },
    /// `update net with opt, grads`.
    Update {
        target: ExprId,
        with: ExprId,
        grads: ExprId,
    },
    /// `sync g over world with hook, bucket: 25 MiB`.
    Sync {
        target: ExprId,
        over: ExprId,
        with: Option<ExprId>,
        options: Vec<Arg>,
    },
    /// `ensure peak <= 4 GiB in every schedule`.
    Ensure {
        limit: ExprId,
        every_schedule: bool,
    },
    /// `budget 4 GiB`.
    Budget(ExprId),
    /// `release a, b`.
    Release(Vec<ExprId>),
    /// `shard flat net by Layer over world, prefetch: 1`.
    Shard(Box<ShardDecl>),
    /// `with training: false { … }`, `with compute: bf16 { … }`.
    With {
        settings: Vec<Arg>,
        body: Block,
    },
    /// `allow(TG0305)`: on the next statement, or on the file where it stands first.
    Allow(Vec<Ident>),
}

/// A `shard` statement: the parameters of a model, spread over the ranks unit by unit.
#[derive(Debug, Clone)]
pub struct ShardDecl {
    /// The parameters of a unit are one vector.
    pub flat: bool,
    pub target: ExprId,
    pub unit: ExprId,
    /// The number of ranks; `world` where nothing is said.
    pub over: Option<ExprId>,
    pub options: Vec<Arg>,
}

/// `f32[B, T, 4 * d]`, `int`, `float`, `bool`, `str`, or a model's name.
#[derive(Debug, Clone)]
pub struct TypeExpr {
    pub base: Ident,
    /// `None`: a scalar, or a type that is not a tensor's.
    pub dims: Option<Vec<DimExpr>>,
    pub span: Span,
}

#[derive(Debug, Clone)]
pub enum DimExpr {
    /// `B`, `64`, `4 * d`.
    Expr(ExprId),
    /// `B = 64`: a variable with the size that `plan` uses.
    Default { name: Ident, value: ExprId },
    /// `...`: any number of axes.
    Rest(Span),
}

/// A parameter of a function, model, step or optimizer.
#[derive(Debug, Clone)]
pub struct ParamDecl {
    pub name: Ident,
    pub ty: Option<TypeExpr>,
    pub default: Option<ExprId>,
    /// The `##` lines above it.
    pub docs: Option<Arc<str>>,
}

/// `fn f(x) = e`, `fn f(x) { … }`; steps have the same form.
#[derive(Debug, Clone)]
pub struct FnDecl {
    pub name: Ident,
    pub params: Vec<ParamDecl>,
    pub result: Option<TypeExpr>,
    pub body: Block,
    pub docs: Option<Arc<str>>,
    pub span: Span,
}

/// `model M(hyper) { param …; state …; let …; fn … }`.
///
/// The body runs when an instance is made. Parameters and state are statements, so that they may
/// stand inside a compile-time `if` or `for`.
#[derive(Debug, Clone)]
pub struct ModelDecl {
    pub name: Ident,
    pub params: Vec<ParamDecl>,
    pub body: Vec<StmtId>,
    pub docs: Option<Arc<str>>,
    pub span: Span,
}

/// A tensor that a model owns: `param w: f32[n, m] = init.kaiming()`, `state mean: f32[c] = zeros()`.
#[derive(Debug, Clone)]
pub struct FieldDecl {
    pub name: Ident,
    /// Always there in a model that parsed without an error.
    pub ty: Option<TypeExpr>,
    pub init: Option<ExprId>,
    /// False for `param frozen w: …`, and for every `state`.
    pub trainable: bool,
    pub docs: Option<Arc<str>>,
}

/// `optimizer adamw(lr, beta1: float = 0.9) { state m = zeros_like(p) … }`.
///
/// The body sees `p` (the parameter), `g` (its gradient) and `t` (the number of this update,
/// from 1). It assigns with `m := …` and `p := …`. A hook has the same form: its first parameter is
/// the bucket, and its body gives what becomes of it.
#[derive(Debug, Clone)]
pub struct OptimizerDecl {
    pub name: Ident,
    pub params: Vec<ParamDecl>,
    /// `state m = zeros_like(p)`.
    pub states: Vec<(Ident, ExprId)>,
    pub body: Block,
    pub docs: Option<Arc<str>>,
    pub span: Span,
}
