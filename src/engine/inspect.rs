//! Questions about a session that change nothing in it.

use std::sync::Arc;

use super::Session;
use crate::{
    check::{Mode, value::Value},
    codes,
    diagnostic::{Diagnostic, Error},
    ir::Graph,
    source::{SourceMap, Span},
    syntax::{
        self,
        ast::{Name, StmtKind},
    },
};

/// How something is declared or called, and its documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documentation {
    /// The head of its declaration.
    pub signature: String,
    /// Markdown; empty where nothing is written.
    pub text: String,
}

impl Session {
    /// The type of an expression, as [`Evaluated::kind`](super::Evaluated) gives it. The expression
    /// is followed abstractly: no step runs, nothing is printed, no variable changes.
    pub fn type_of(&mut self, expression: &str) -> Result<String, Error> {
        let value = self.follow(expression)?;
        Ok(self.evaluator.describe(&value))
    }

    /// What is written about a function, model, step, optimizer or module: `nn.Linear`, `relu`.
    pub fn documentation(&mut self, path: &str) -> Result<Documentation, Error> {
        let value = self.follow(path)?;
        let sources = &self.evaluator.sources;
        let docs = |docs: &Option<Arc<str>>| docs.as_deref().unwrap_or_default().trim_end().to_owned();
        Ok(match &value {
            Value::Function(f) => Documentation {
                signature: head(sources, f.decl.span, f.decl.body.span),
                text: docs(&f.decl.docs),
            },
            Value::Step(s) => Documentation {
                signature: head(sources, s.decl.span, s.decl.body.span),
                text: docs(&s.decl.docs),
            },
            Value::ModelDef(m) => {
                Documentation { signature: first_line(sources, m.decl.span), text: docs(&m.decl.docs) }
            }
            Value::OptimizerDef(o) => Documentation {
                signature: head(sources, o.decl.span, o.decl.body.span),
                text: docs(&o.decl.docs),
            },
            Value::Hook(hook) => Documentation {
                signature: head(sources, hook.def.decl.span, hook.def.decl.body.span),
                text: docs(&hook.def.decl.docs),
            },
            Value::Builtin(b) => Documentation { signature: b.signature.to_owned(), text: b.docs.to_owned() },
            Value::TensorFunction(f) => {
                let params: Vec<&str> = f.params.iter().map(|p| p.name).collect();
                Documentation {
                    signature: format!("{}({})", f.name, params.join(", ")),
                    text: f.docs.to_owned(),
                }
            }
            Value::Module(m) => {
                let mut names: Vec<String> =
                    m.scope.bindings().into_iter().map(|(n, _)| n.to_string()).collect();
                names.extend(m.builtins.iter().map(|b| b.name.to_owned()));
                names.sort();
                names.dedup();
                Documentation { signature: format!("module {}", m.name), text: names.join(", ") }
            }
            other => Documentation { signature: self.evaluator.describe(other), text: String::new() },
        })
    }

    /// The graphs of the steps that were compiled in this session, before lowering, with the names
    /// of the steps.
    pub fn graphs(&self) -> Vec<(Name, Arc<Graph>)> {
        self.evaluator.graphs()
    }

    /// Evaluates one expression in mode Check.
    fn follow(&mut self, expression: &str) -> Result<Value, Error> {
        self.define()?;
        let file = self.evaluator.sources.add("<expression>", expression);
        let (ast, mut found) = syntax::parse(file, expression);
        let is_expression =
            matches!(ast.body.as_slice(), [one] if matches!(ast.stmt(*one).kind, StmtKind::Expr(_)));
        if !is_expression && found.is_empty() {
            let span = Span::new(file, 0..expression.len());
            found.push(Diagnostic::error(codes::TYPE_MISMATCH, span, "expected one expression"));
        }
        if found.iter().any(Diagnostic::is_error) {
            return Err(Error::new(found, Arc::new(self.evaluator.sources.clone())));
        }
        let before = std::mem::take(&mut self.evaluator.diagnostics);
        let mode = std::mem::replace(&mut self.evaluator.mode, Mode::Check);
        let result = self.guarded(move |ev| ev.evaluate(Arc::new(ast)));
        // Also after a fault, which `guarded` turns into an error.
        self.evaluator.mode = mode;
        self.evaluator.diagnostics = before;
        result
    }
}

/// A declaration up to its body.
pub(crate) fn head(sources: &SourceMap, whole: Span, body: Span) -> String {
    let text = sources.text(Span { end: body.start, ..whole });
    text.trim_end_matches(['{', '=', ' ', '\n', '\r', '\t']).to_owned()
}

fn first_line(sources: &SourceMap, whole: Span) -> String {
    let line = sources.text(whole).lines().next().unwrap_or_default();
    line.trim_end_matches(['{', ' ']).to_owned()
}
