//! Names and what they are bound to.
//!
//! Scopes form a chain. Functions, steps and models keep the scope they were declared in, so a
//! script name is looked up at each call, by reference.

use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::FxHashMap;

use super::value::Value;
use crate::{source::Span, syntax::ast::Name};

#[derive(Debug, Clone)]
pub struct Binding {
    pub value: Value,
    /// Where the name was bound last.
    pub span: Span,
    /// Whether the script has worked it out from `rank`, so that it differs between ranks.
    pub of_rank: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeKind {
    /// The top level of the script or of the REPL.
    Script,
    /// The top level of a module.
    Module,
    /// The body of a function, step, model, optimizer or region: assignments stop here.
    Body,
    /// The body of an `if`, a `for` or a block: assignments pass through.
    Block,
}

#[derive(Debug)]
pub struct Scope {
    pub kind: ScopeKind,
    pub parent: Option<Arc<Scope>>,
    names: Mutex<FxHashMap<Name, Binding>>,
}

/// What an assignment to a name would do.
pub enum AssignTarget {
    /// Rebind it in this scope.
    Here(Arc<Scope>),
    /// The name belongs to a scope outside of the body; this is where it was bound.
    Outside(Span),
    Unknown,
}

impl Scope {
    pub fn new(kind: ScopeKind, parent: Option<Arc<Scope>>) -> Arc<Scope> {
        Arc::new(Scope { kind, parent, names: Mutex::default() })
    }

    pub fn child(self: &Arc<Self>, kind: ScopeKind) -> Arc<Scope> {
        Scope::new(kind, Some(Arc::clone(self)))
    }

    fn names(&self) -> MutexGuard<'_, FxHashMap<Name, Binding>> {
        // A panic while the lock was held cannot leave a half-written map entry behind.
        self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn declare(&self, name: &Name, value: Value, span: Span) {
        self.names().insert(Arc::clone(name), Binding { value, span, of_rank: false });
    }

    /// Gives a name of this scope another value that is no less of `rank` than the one before.
    pub fn set_value(&self, name: &Name, value: Value, span: Span) {
        let mut names = self.names();
        let of_rank = names.get(name).is_some_and(|binding| binding.of_rank);
        names.insert(Arc::clone(name), Binding { value, span, of_rank });
    }

    /// Notes that the value of a name of this scope was worked out from `rank`.
    pub fn mark_of_rank(&self, name: &str) {
        if let Some(binding) = self.names().get_mut(name) {
            binding.of_rank = true;
        }
    }

    /// The binding in this scope itself.
    pub fn get(&self, name: &str) -> Option<Binding> {
        self.names().get(name).cloned()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.names().contains_key(name)
    }

    pub fn remove(&self, name: &str) -> Option<Binding> {
        self.names().remove(name)
    }

    /// The nearest binding along the chain, with the scope that holds it.
    pub fn lookup<'a>(self: &'a Arc<Self>, name: &str) -> Option<(&'a Arc<Scope>, Binding)> {
        let mut scope = self;
        loop {
            if let Some(binding) = scope.get(name) {
                return Some((scope, binding));
            }
            scope = scope.parent.as_ref()?;
        }
    }

    pub fn assign_target(self: &Arc<Self>, name: &str) -> AssignTarget {
        let mut scope = self;
        let mut outside = false;
        loop {
            if let Some(binding) = scope.get(name) {
                if outside {
                    return AssignTarget::Outside(binding.span);
                }
                return AssignTarget::Here(Arc::clone(scope));
            }
            outside |= scope.kind != ScopeKind::Block;
            match &scope.parent {
                Some(parent) => scope = parent,
                None => return AssignTarget::Unknown,
            }
        }
    }

    /// All names along the chain, for suggestions.
    pub fn visible_names(self: &Arc<Self>) -> Vec<Name> {
        let mut names = Vec::new();
        let mut scope = Some(self);
        while let Some(current) = scope {
            names.extend(current.names().keys().cloned());
            scope = current.parent.as_ref();
        }
        names
    }

    /// The bindings of this scope, by name.
    pub fn bindings(&self) -> Vec<(Name, Binding)> {
        let mut all: Vec<_> = self.names().iter().map(|(n, b)| (Arc::clone(n), b.clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Forgets every name. Functions hold their scope and scopes hold functions; the owner of a
    /// top level breaks these cycles with this when it goes away.
    pub fn clear(&self) {
        let names = std::mem::take(&mut *self.names());
        drop(names);
    }
}
