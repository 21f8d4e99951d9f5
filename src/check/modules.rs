//! `use nn`: modules of the library and files beside the script.

use std::{path::Path, sync::Arc};

use super::{
    Evaluator, data,
    errors::{Eval, Halt, closest},
    scope::{Scope, ScopeKind},
    value::{Cx, Module, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::Span,
    syntax::{
        self,
        ast::{Ident, Name},
    },
};

/// The modules that come with `tg`, written in the language.
pub const LIBRARY: &[(&str, &str)] = &[
    ("core", include_str!("../../stdlib/core.tg")),
    ("hooks", include_str!("../../stdlib/hooks.tg")),
    ("init", include_str!("../../stdlib/init.tg")),
    ("loss", include_str!("../../stdlib/loss.tg")),
    ("metrics", include_str!("../../stdlib/metrics.tg")),
    ("nn", include_str!("../../stdlib/nn.tg")),
    ("optim", include_str!("../../stdlib/optim.tg")),
];

/// What is known of a module whose name was used.
pub(super) enum ModuleState {
    /// Its own `use` statements are being followed.
    Loading,
    Ready(Arc<Module>),
    /// Already reported.
    Failed,
}

pub(super) fn is_library_module(name: &str) -> bool {
    LIBRARY.iter().any(|(n, _)| *n == name)
}

/// Letters from which on a word that is nearly a name of the library is taken for it.
const LONG_WORD: usize = 5;

/// A name of the library that a word without its module stands for, and the module: `fp16_compress` of
/// `hooks`.
pub(super) fn near_member(word: &str) -> Option<(&'static str, &'static str)> {
    let all = || LIBRARY.iter().flat_map(|&(module, text)| declared(text).map(move |name| (module, name)));
    let is_long = word.chars().count() >= LONG_WORD;
    let exact = all().find(|(_, name)| *name == word);
    exact.or_else(|| {
        let close = is_long.then(|| closest(word, all().map(|(_, name)| name))).flatten()?;
        all().find(|(_, name)| *name == close)
    })
}

/// The names that the text of a library module declares for others.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (word, rest) = line.split_once(' ')?;
        let is_declaration = matches!(word, "fn" | "model" | "optimizer" | "hook");
        is_declaration.then(|| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next())?
    })
}

impl Evaluator {
    pub(super) fn use_module(&mut self, cx: &Cx, path: &[Ident], alias: Option<&Ident>, span: Span) -> Eval {
        let (Some(first), Some(last)) = (path.first(), path.last()) else { return Err(Halt::Reported) };
        let mut value = Value::Module(self.module(first, span)?);
        for member in path.iter().skip(1) {
            value = self.field(&value, member, member.span)?;
        }
        let name = alias.unwrap_or(last);
        cx.scope.declare(&name.name, value, name.span);
        Ok(Value::Unit)
    }

    /// `data` and `random` are there without `use`.
    pub(super) fn native_module(&mut self, name: &str) -> Option<Value> {
        let builtins = data::native(name)?;
        if let Some(ModuleState::Ready(module)) = self.modules.get(name) {
            return Some(Value::Module(Arc::clone(module)));
        }
        let module =
            Arc::new(Module { name: name.into(), scope: Scope::new(ScopeKind::Module, None), builtins });
        self.modules.insert(name.into(), ModuleState::Ready(Arc::clone(&module)));
        Some(Value::Module(module))
    }

    fn module(&mut self, name: &Ident, span: Span) -> Eval<Arc<Module>> {
        match self.modules.get(&name.name) {
            Some(ModuleState::Ready(module)) => return Ok(Arc::clone(module)),
            Some(ModuleState::Failed) => return Err(Halt::Reported),
            Some(ModuleState::Loading) => {
                return Err(self.report(
                    Diagnostic::error(codes::USE_CYCLE, span, format!("`{}` uses itself", name.name))
                        .help("move what both modules need into a third one"),
                ));
            }
            None => {}
        }
        if let Some(text) = LIBRARY.iter().find(|(n, _)| *n == &*name.name).map(|(_, text)| *text) {
            let file = self.sources.add_library(format!("std/{}.tg", name.name), text);
            return self.load_module(&name.name, file, text);
        }
        if let Some(Value::Module(module)) = self.native_module(&name.name) {
            return Ok(module);
        }
        let path = self.settings.directory.join(format!("{}.tg", name.name));
        let path = path.strip_prefix(".").map(Path::to_path_buf).unwrap_or(path);
        let text = match self.settings.modules.get(&*name.name) {
            Some(text) => Ok(text.to_string()),
            None => std::fs::read_to_string(&path),
        };
        match text {
            Ok(text) => {
                let file = self.sources.add(path.display().to_string(), text.as_str());
                self.load_module(&name.name, file, &text)
            }
            Err(error) => {
                let message = match error.kind() {
                    std::io::ErrorKind::NotFound => format!("unknown module `{}`", name.name),
                    _ => format!("the module `{}` cannot be read: {error}", name.name),
                };
                let mut diagnostic = Diagnostic::error(codes::UNKNOWN_MODULE, name.span, message).note(
                    format!("there is no `{}`, and the library has no module of that name", path.display()),
                );
                if let Some(tip) = syntax::module_tip(&name.name) {
                    diagnostic.help.push(tip.into());
                } else if let Some(close) = closest(&name.name, LIBRARY.iter().map(|(n, _)| *n)) {
                    diagnostic.help.push(format!("did you mean `{close}`?"));
                } else {
                    let names: Vec<&str> = LIBRARY.iter().map(|(n, _)| *n).collect();
                    diagnostic
                        .notes
                        .push(format!("modules of the library: {}", super::index::listed(&names)));
                }
                self.modules.insert(Name::clone(&name.name), ModuleState::Failed);
                Err(self.report(diagnostic))
            }
        }
    }

    fn load_module(&mut self, name: &Name, file: crate::source::FileId, text: &str) -> Eval<Arc<Module>> {
        let errors = self.error_count();
        let (ast, diagnostics) = syntax::parse(file, text);
        for diagnostic in diagnostics {
            self.report(diagnostic);
        }
        self.modules.insert(Name::clone(name), ModuleState::Loading);
        let scope = Scope::new(ScopeKind::Module, None);
        self.remember_scope(&scope);
        let ast = Arc::new(ast);
        let cx = Cx { ast: Arc::clone(&ast), scope: Arc::clone(&scope) };
        // The calls that led to `use` have nothing to do with what is wrong in the module.
        let calls = std::mem::take(&mut self.calls);
        let frames = std::mem::take(&mut self.frames);
        self.lost.extend(ast.lost.iter().cloned());
        self.judge_declarations(&ast);
        let result = self.statements(&cx, &ast.body);
        self.calls = calls;
        self.frames = frames;
        if self.error_count() > errors || result.is_err() {
            self.modules.insert(Name::clone(name), ModuleState::Failed);
            return Err(match result {
                Err(Halt::Cancelled) => Halt::Cancelled,
                _ => Halt::Reported,
            });
        }
        let builtins = data::native(name).unwrap_or_default();
        let module = Arc::new(Module { name: Name::clone(name), scope, builtins });
        self.modules.insert(Name::clone(name), ModuleState::Ready(Arc::clone(&module)));
        Ok(module)
    }
}
