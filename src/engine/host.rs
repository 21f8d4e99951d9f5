//! What a host adds to the language: functions that scripts call.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::Value;
use crate::{
    check,
    ir::Type,
    ops::{HostOp, panic_text},
};

type Callback = dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync;

/// A function of the host that script code calls by its name. Graph code cannot: what happens in a
/// step is planned, so it is brought as a [`HostOp`].
#[derive(Clone)]
pub struct HostFunction {
    name: Arc<str>,
    run: Arc<Callback>,
    result: Option<Type>,
}

impl HostFunction {
    /// A function of values. An error text becomes an error of the script, at the call, and so does
    /// a panic. It is not called while a program is only checked.
    pub fn new(
        name: impl Into<Arc<str>>,
        run: impl Fn(&[Value]) -> Result<Value, String> + Send + Sync + 'static,
    ) -> HostFunction {
        HostFunction { name: name.into(), run: Arc::new(run), result: None }
    }

    /// States that it gives a tensor of this type, so that programs are checked and planned with it.
    /// Without, a result is known only when the program runs.
    pub fn returning(self, ty: Type) -> HostFunction {
        HostFunction { result: Some(ty), ..self }
    }

    /// As scripts call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type that every result has.
    pub(crate) fn result(&self) -> Option<&Type> {
        self.result.as_ref()
    }

    pub(crate) fn call(&self, args: &[Value]) -> Result<Value, String> {
        match catch_unwind(AssertUnwindSafe(|| (self.run)(args))) {
            Ok(result) => result,
            Err(panic) => Err(format!("it panicked: {}", panic_text(&*panic))),
        }
    }
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostFunction").field(&self.name).finish()
    }
}

/// Everything that a host has registered with an engine.
#[derive(Debug, Clone, Default)]
pub struct HostTable {
    functions: Vec<Arc<HostFunction>>,
    ops: Vec<Arc<HostOp>>,
}

impl HostTable {
    pub(super) fn add_function(&mut self, function: HostFunction) {
        self.functions.retain(|f| f.name() != function.name());
        self.functions.push(Arc::new(function));
    }

    pub(super) fn add_op(&mut self, op: HostOp) {
        self.ops.retain(|o| o.name() != op.name());
        self.ops.push(Arc::new(op));
    }

    /// What a name stands for; ops come before functions.
    pub(crate) fn value(&self, name: &str) -> Option<check::value::Value> {
        if let Some(op) = self.ops.iter().find(|op| op.name() == name) {
            return Some(check::value::Value::HostOp(Arc::clone(op)));
        }
        let function = self.functions.iter().find(|function| function.name() == name)?;
        Some(check::value::Value::HostFunction(Arc::clone(function)))
    }

    /// All names that it brings.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.ops.iter().map(|op| op.name()).chain(self.functions.iter().map(|f| f.name()))
    }
}
