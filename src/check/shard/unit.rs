//! The units of a model: which parameter belongs to which.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    check::value::{Cell, ModelDef, Value, fresh_id},
    ir::SlotKind,
    syntax::ast::Name,
};

/// A unit with the parameters that belong to it and to no unit inside of it.
pub(super) struct Units {
    pub id: u64,
    pub title: Arc<str>,
    /// The scope of its functions, by address.
    pub scope: Option<usize>,
    pub cells: Vec<Arc<Cell>>,
    /// The unit around it.
    parent: usize,
}

/// What a walk through a model finds.
pub(super) struct Found {
    /// The first one has the parameters outside of all units.
    pub units: Vec<Units>,
    /// A parameter that two units have of which neither is inside of the other, and their names.
    pub shared: Option<(Arc<Cell>, Arc<str>, Arc<str>)>,
    /// The names of the models that were met.
    pub models: Vec<Name>,
    /// Their declarations.
    met: FxHashSet<u64>,
    owners: FxHashMap<u64, usize>,
    of_model: FxHashMap<u64, usize>,
    seen: FxHashSet<(u64, usize)>,
}

impl Found {
    pub fn new(target: &Value, definitions: &[u64], title: &str) -> Found {
        let scope = match target {
            Value::Model(model) => Some(Arc::as_ptr(&model.scope) as usize),
            _ => None,
        };
        let title = match target {
            Value::Model(model) => model.title(),
            _ => title.into(),
        };
        let root = Units { id: fresh_id(), title, scope, cells: Vec::new(), parent: 0 };
        let mut found = Found {
            units: vec![root],
            shared: None,
            models: Vec::new(),
            met: FxHashSet::default(),
            owners: FxHashMap::default(),
            of_model: FxHashMap::default(),
            seen: FxHashSet::default(),
        };
        found.visit(target, definitions, 0);
        found
    }

    /// Whether the walk met an instance of a model.
    pub fn is_there(&self, model: &ModelDef) -> bool {
        self.met.contains(&model.id)
    }

    fn visit(&mut self, value: &Value, definitions: &[u64], unit: usize) {
        match value {
            Value::Param(cell) => self.own(cell, unit),
            Value::List(items) | Value::Tuple(items) => {
                items.iter().for_each(|item| self.visit(item, definitions, unit));
            }
            Value::Model(model) => {
                let name = &model.def.decl.name.name;
                if !self.models.contains(name) {
                    self.models.push(Arc::clone(name));
                }
                self.met.insert(model.def.id);
                let unit = if definitions.contains(&model.def.id) {
                    let next = self.units.len();
                    let own = *self.of_model.entry(model.id).or_insert(next);
                    if own == next {
                        self.units.push(Units {
                            id: fresh_id(),
                            title: model.title(),
                            scope: Some(Arc::as_ptr(&model.scope) as usize),
                            cells: Vec::new(),
                            parent: unit,
                        });
                    }
                    own
                } else {
                    unit
                };
                if self.seen.insert((model.id, unit)) {
                    for (_, field) in model.fields() {
                        self.visit(&field, definitions, unit);
                    }
                }
            }
            _ => {}
        }
    }

    fn own(&mut self, cell: &Arc<Cell>, unit: usize) {
        // State belongs to each rank, and what has no elements has no parts.
        if !matches!(cell.kind, SlotKind::Param { .. }) || cell.ty.elements() == 0 {
            return;
        }
        match self.owners.get(&cell.id) {
            None => {
                self.owners.insert(cell.id, unit);
                if let Some(unit) = self.units.get_mut(unit) {
                    unit.cells.push(Arc::clone(cell));
                }
            }
            Some(&owner) if owner != unit && !self.is_inside(owner, unit) && !self.is_inside(unit, owner) => {
                let title = |k: usize| self.units.get(k).map_or_else(|| "".into(), |u| Arc::clone(&u.title));
                let names = (title(owner), title(unit));
                self.shared.get_or_insert_with(|| (Arc::clone(cell), names.0, names.1));
            }
            Some(_) => {}
        }
    }

    /// Whether a unit is inside of another one; the first one is around all.
    fn is_inside(&self, inner: usize, outer: usize) -> bool {
        let mut unit = inner;
        while unit != outer && unit != 0 {
            unit = self.units.get(unit).map_or(0, |u| u.parent);
        }
        unit == outer
    }
}
