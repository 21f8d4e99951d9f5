//! Names in files: those of the variables, or those of the arguments: `load("x.safetensors", net: other)`
//! fills `other` with what was saved as `net`.

use std::sync::Arc;

use super::value::{Cell, Optimizer, Value};
use crate::script::{Error, safetensors::Reader};

/// A variable, and what its tensors are called in the file.
struct Root {
    own: String,
    in_file: String,
}

#[derive(Default)]
pub(super) struct Names {
    models: Vec<Root>,
    optimizers: Vec<Root>,
}

impl Names {
    /// Takes an argument in, under a name of its own or that of the variable.
    pub fn add(&mut self, value: &Value, name: Option<&str>) {
        let own = match value {
            Value::Model(model) => model.title().to_string(),
            Value::Param(cell) => cell.name().to_string(),
            Value::List(items) => {
                for (k, item) in items.iter().enumerate() {
                    self.add(item, name.map(|name| format!("{name}.{k}")).as_deref());
                }
                return;
            }
            _ => return,
        };
        self.models.push(Root { in_file: name.map_or_else(|| own.clone(), String::from), own });
    }

    pub fn add_optimizer(&mut self, optimizer: &Optimizer, name: Option<&str>) {
        let own = optimizer.name().to_string();
        self.optimizers.push(Root { in_file: name.map_or_else(|| own.clone(), String::from), own });
    }

    /// What the file calls the tensor, model or optimizer with this name.
    pub fn in_file(&self, own: &str) -> String {
        for root in &self.optimizers {
            let Some(rest) = within(own, &root.own) else { continue };
            return match rest.split_once('.') {
                // `opt.m.net.w`: of a parameter.
                Some((state, parameter)) => format!("{}.{state}.{}", root.in_file, self.in_file(parameter)),
                None => joined(&root.in_file, rest),
            };
        }
        renamed(own, self.models.iter().map(|root| (&*root.own, &*root.in_file)))
    }

    /// The name here of a parameter with this name in the file.
    pub fn own(&self, in_file: &str) -> String {
        renamed(in_file, self.models.iter().map(|root| (&*root.in_file, &*root.own)))
    }

    /// Says under which name the file has a model of this form, if it has no tensor for a parameter.
    pub fn suggest(&self, reader: &Reader, cells: &[Arc<Cell>], missing: &Cell, error: Error) -> Error {
        let name = missing.name();
        let of_cell = self.models.iter().filter_map(|root| Some((root, within(&name, &root.own)?)));
        let Some((root, rest)) = of_cell.max_by_key(|(root, _)| root.own.len()) else { return error };
        // Names of arguments have no dots, and neither have those of variables with models in them.
        let is_plain = |name: &str| !name.is_empty() && !name.contains('.');
        let all: Vec<String> =
            cells.iter().filter_map(|cell| within(&cell.name(), &root.own).map(String::from)).collect();
        let fits = |other: &&str| all.iter().all(|rest| reader.contains(&joined(other, rest)));
        let other = reader
            .names()
            .filter_map(|found| {
                found.strip_suffix(rest)?.strip_suffix(if rest.is_empty() { "" } else { "." })
            })
            .filter(|other| is_plain(other) && is_plain(&root.own))
            .find(fits);
        match other {
            Some(other) => error.help(format!(
                "`{other}` in the file has the form of `{}`: `load(…, {other}: {})` reads it",
                root.own, root.own
            )),
            None => error,
        }
    }
}

fn joined(root: &str, rest: &str) -> String {
    if rest.is_empty() { root.to_string() } else { format!("{root}.{rest}") }
}

/// What follows `root` in a name: nothing for the root itself.
pub(super) fn within<'a>(name: &'a str, root: &str) -> Option<&'a str> {
    match name.strip_prefix(root)? {
        "" => Some(""),
        rest => rest.strip_prefix('.'),
    }
}

/// The name with the longest of the first names that it begins with replaced by the second.
fn renamed<'a>(name: &str, roots: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let found = roots.filter_map(|(from, to)| Some((from, to, within(name, from)?)));
    match found.max_by_key(|(from, ..)| from.len()) {
        Some((_, to, rest)) => joined(to, rest),
        None => name.to_string(),
    }
}
