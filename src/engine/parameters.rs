//! What a session holds between its calls: parameters, states, variables, and files of them.

use std::{path::Path, sync::Arc};

use super::{Session, Value};
use crate::{
    diagnostic::Error,
    ir::{SlotKind, Type},
    source::Span,
};

/// A persistent tensor of the script: a parameter or state of a model, the state of an optimizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Dotted, from the variable that holds it: `net.blocks.0.w`.
    pub name: Arc<str>,
    /// Its dtype and shape.
    pub ty: Type,
    /// Whether it is trained, and whose state it is.
    pub kind: SlotKind,
    /// Where it was declared.
    pub span: Span,
}

impl Session {
    /// The parameters and states of a model, list of models or optimizer, in the order of their
    /// declaration; with an empty name, those of the whole script. The states of an optimizer are
    /// there once a step that uses it was compiled.
    pub fn parameters(&mut self, name: &str) -> Result<Vec<Parameter>, Error> {
        self.define()?;
        self.guarded(|ev| ev.parameters(name))
    }

    /// The value of a variable, or of a parameter or state by its dotted name. A parameter that no
    /// step has used yet gets its first value now.
    pub fn get(&mut self, name: &str) -> Result<Value, Error> {
        self.define()?;
        self.guarded(|ev| ev.get_named(name))
    }

    /// Changes a parameter or state, which keeps its dtype and shape, or a variable of the script.
    /// Steps see the new value at their next call; those that depend on a variable's value, and not
    /// only on its shape, are compiled again.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> Result<(), Error> {
        self.define()?;
        let value = value.into();
        self.guarded(|ev| ev.set_named(name, &value))
    }

    /// Writes all parameters, states, optimizers and counters of steps into a safetensors file,
    /// whole or not at all, as `save` does in a script. A relative path starts from the folder of
    /// the process.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.save_parts(path, &[])
    }

    /// The same, for the variables of these names only.
    pub fn save_parts(&mut self, path: impl AsRef<Path>, names: &[&str]) -> Result<(), Error> {
        self.define()?;
        let path = path.as_ref();
        self.guarded(|ev| ev.save_or_load(true, path, names))
    }

    /// Reads what [`Session::save`] wrote. Names, dtypes and shapes are checked first, so that
    /// nothing is half loaded.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.load_parts(path, &[])
    }

    /// The same, for the variables of these names only.
    pub fn load_parts(&mut self, path: impl AsRef<Path>, names: &[&str]) -> Result<(), Error> {
        self.define()?;
        let path = path.as_ref();
        self.guarded(|ev| ev.save_or_load(false, path, names))
    }
}
