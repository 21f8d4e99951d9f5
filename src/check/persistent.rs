//! What outlives a step: parameters, states, the models and optimizers that hold them.

use std::sync::{Arc, Mutex, Weak, atomic::AtomicU64};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    scope::Scope,
    value::{Cx, ModelDef, OptimizerDef, Value, fresh_id, lock},
};
use crate::{
    exec::{Persistent, Tensor},
    ir::{DType, Shard, SlotKind, Type},
    ops::OpError,
    source::Span,
    syntax::ast::{ExprId, Name},
};

/// How a persistent tensor gets its first value.
pub enum Init {
    /// The expression after `=`, in the scope of the model; its result is broadcast to the type.
    Expr {
        cx: Cx,
        expr: ExprId,
    },
    Zeros,
    /// The state of an optimizer: the expression sees the parameter as `p`.
    OptimizerState {
        cx: Cx,
        expr: ExprId,
        param: Arc<Cell>,
    },
    /// The state of a hook: the expression sees zeros of this type under the bucket's name.
    HookState {
        cx: Cx,
        expr: ExprId,
        bucket: Name,
        ty: Type,
    },
    /// An optimizer's copy of a parameter in another float type.
    Master {
        param: Arc<Cell>,
    },
    /// This rank's part of the parameters of a unit.
    Shard(Arc<Group>),
}

/// A persistent tensor: a parameter, the state of a model, the state of an optimizer.
pub struct Cell {
    pub id: u64,
    pub ty: Type,
    pub kind: SlotKind,
    /// Where it was declared.
    pub span: Span,
    pub init: Init,
    name: Mutex<Option<Arc<str>>>,
    /// What it is called where no variable holds its model: the declared name.
    pub short_name: Name,
    data: Mutex<Option<Persistent>>,
    /// Where the parameter is, if it is spread over the ranks.
    home: Mutex<Option<Home>>,
}

/// The group of a parameter that is spread over the ranks.
#[derive(Clone)]
pub struct Home {
    pub group: Weak<Group>,
    /// The tensor that holds this rank's part of the group. None where there is one rank: then the
    /// parameter is its own part.
    pub part: Option<Weak<Cell>>,
}

/// Parameters that are one vector, of which each rank holds a part.
pub struct Group {
    /// The unit that they belong to, and its name.
    pub unit: u64,
    pub title: Arc<str>,
    /// All of one dtype and kind of the unit, not a single one.
    pub is_flat: bool,
    pub shard: Shard,
    /// Elements of the vector with the padding behind them.
    pub padded: usize,
    pub members: Vec<Member>,
    /// The `shard` statement.
    pub span: Span,
}

/// A parameter in a group.
pub struct Member {
    pub cell: Arc<Cell>,
    /// Of its first element in the vector.
    pub start: usize,
}

impl Group {
    pub fn member(&self, cell: &Cell) -> Option<&Member> {
        self.members.iter().find(|m| m.cell.id == cell.id)
    }

    /// Elements of one rank's part.
    pub fn part(&self) -> usize {
        self.padded / self.shard.world.max(1) as usize
    }
}

impl Cell {
    pub fn new(short_name: Name, ty: Type, kind: SlotKind, span: Span, init: Init) -> Arc<Cell> {
        Arc::new(Cell {
            id: fresh_id(),
            ty,
            kind,
            span,
            init,
            name: Mutex::new(None),
            short_name,
            data: Mutex::new(None),
            home: Mutex::new(None),
        })
    }

    /// Where a parameter is that is spread over the ranks.
    pub fn home(&self) -> Option<Home> {
        lock(&self.home).clone()
    }

    pub fn set_home(&self, home: Home) {
        *lock(&self.home) = Some(home);
    }

    /// The tensor with this rank's part of the parameter, and the group that it is of. None where
    /// the parameter is whole on every rank.
    pub fn part(&self) -> Option<(Arc<Cell>, Arc<Group>)> {
        let home = self.home()?;
        Some((home.part?.upgrade()?, home.group.upgrade()?))
    }

    /// The group that this is a rank's part of: its parameters, or a state of an optimizer for each of
    /// their elements.
    pub fn group(&self) -> Option<Arc<Group>> {
        match &self.init {
            Init::Shard(group) => Some(Arc::clone(group)),
            Init::OptimizerState { param, .. } | Init::Master { param } => param.group(),
            Init::Expr { .. } | Init::Zeros | Init::HookState { .. } => None,
        }
    }

    /// The group of a parameter that is spread over the ranks, of a part of it, or of an optimizer's
    /// tensor for either: the same whatever the number of ranks.
    pub fn spread(&self) -> Option<Arc<Group>> {
        match &self.init {
            Init::Shard(group) => Some(Arc::clone(group)),
            Init::OptimizerState { param, .. } | Init::Master { param } => param.spread(),
            Init::Expr { .. } | Init::Zeros | Init::HookState { .. } => self.home()?.group.upgrade(),
        }
    }

    /// The dotted name.
    pub fn name(&self) -> Arc<str> {
        lock(&self.name).clone().unwrap_or_else(|| Arc::clone(&self.short_name))
    }

    /// Gives the cell its name, unless it has one.
    pub fn name_once(&self, name: &str) {
        lock(&self.name).get_or_insert_with(|| name.into());
    }

    pub fn is_named(&self) -> bool {
        lock(&self.name).is_some()
    }

    /// Its value, if it has one; an error where a device that has it does not give it back.
    pub fn data(&self) -> Result<Option<Tensor>, OpError> {
        lock(&self.data).as_mut().map(Persistent::host).transpose()
    }

    pub fn has_data(&self) -> bool {
        lock(&self.data).is_some()
    }

    pub fn set_data(&self, tensor: Tensor) {
        let mut data = lock(&self.data);
        match data.as_mut() {
            Some(persistent) => persistent.set(tensor),
            None => *data = Some(tensor.into()),
        }
    }

    /// Takes the tensor out, wherever it is, so that a step can change it without a copy.
    pub fn take_data(&self) -> Option<Persistent> {
        lock(&self.data).take()
    }

    /// Takes its value out, from a device where that has it.
    pub fn take_tensor(&self) -> Result<Option<Tensor>, OpError> {
        self.take_data().map(|mut data| data.host()).transpose()
    }

    /// Puts back what [`Cell::take_data`] gave.
    pub fn put_data(&self, data: Persistent) {
        *lock(&self.data) = Some(data);
    }

    pub fn is_trainable(&self) -> bool {
        self.kind == SlotKind::Param { trainable: true }
    }
}

/// Cells in the order in which they came, each once.
#[derive(Default)]
pub struct CellSet {
    ids: FxHashSet<u64>,
    list: Vec<Arc<Cell>>,
}

impl CellSet {
    pub fn insert(&mut self, cell: &Arc<Cell>) {
        if self.ids.insert(cell.id) {
            self.list.push(Arc::clone(cell));
        }
    }
}

impl std::ops::Deref for CellSet {
    type Target = [Arc<Cell>];

    fn deref(&self) -> &[Arc<Cell>] {
        &self.list
    }
}

/// An instance of a model. Two instances never share parameters; calling one twice does.
pub struct Model {
    pub id: u64,
    pub def: Arc<ModelDef>,
    /// Hyper-parameters, parameters, state, sub-models and methods.
    pub scope: Arc<Scope>,
    /// The names of fields in the order of their declaration.
    pub order: Mutex<Vec<Name>>,
    name: Mutex<Option<Arc<str>>>,
}

impl Model {
    pub fn new(def: Arc<ModelDef>, scope: Arc<Scope>) -> Arc<Model> {
        Arc::new(Model { id: fresh_id(), def, scope, order: Mutex::default(), name: Mutex::default() })
    }

    pub fn name(&self) -> Option<Arc<str>> {
        lock(&self.name).clone()
    }

    /// The variable it is bound to, or what it is.
    pub fn title(&self) -> Arc<str> {
        self.name().unwrap_or_else(|| Arc::clone(&self.def.decl.name.name))
    }

    /// Names the instance and everything in it, unless it has a name.
    pub fn name_once(&self, name: &str) {
        {
            let mut own = lock(&self.name);
            if own.is_some() {
                return;
            }
            *own = Some(name.into());
        }
        for (field, value) in self.fields() {
            name_value(&value, &format!("{name}.{field}"));
        }
    }

    /// Parameters, state and sub-models, in the order of their declaration.
    pub fn fields(&self) -> Vec<(Name, Value)> {
        let order = lock(&self.order).clone();
        order
            .into_iter()
            .filter_map(|name| {
                let value = self.scope.get(&name)?.value;
                Some((name, value))
            })
            .collect()
    }
}

/// Names the models and parameters in a value after the variable that holds it.
pub fn name_value(value: &Value, name: &str) {
    match value {
        Value::Model(model) => model.name_once(name),
        Value::Param(cell) => cell.name_once(name),
        Value::Optimizer(optimizer) => optimizer.name_once(name),
        Value::List(items) | Value::Tuple(items) => {
            for (i, item) in items.iter().enumerate() {
                if matches!(
                    item,
                    Value::Model(_)
                        | Value::Param(_)
                        | Value::List(_)
                        | Value::Tuple(_)
                        | Value::Optimizer(_)
                ) {
                    name_value(item, &format!("{name}.{i}"));
                }
            }
        }
        _ => {}
    }
}

/// The parameters and states in a value, in the order of their declaration, each once.
pub fn cells_of(value: &Value) -> Vec<Arc<Cell>> {
    fn visit(value: &Value, seen: &mut FxHashSet<u64>, into: &mut Vec<Arc<Cell>>) {
        match value {
            Value::Param(cell) if seen.insert(cell.id) => into.push(Arc::clone(cell)),
            Value::Model(model) if seen.insert(model.id) => {
                for (_, field) in model.fields() {
                    visit(&field, seen, into);
                }
            }
            Value::List(items) | Value::Tuple(items) => items.iter().for_each(|v| visit(v, seen, into)),
            _ => {}
        }
    }
    let mut cells = Vec::new();
    visit(value, &mut Default::default(), &mut cells);
    cells
}

/// What the first argument of an optimizer said: `optim.adamw(net, lr: 1e-3)`.
pub struct MadeFor {
    pub cells: FxHashSet<u64>,
    /// As messages call it: `the model \`net\``.
    pub what: String,
    pub span: Span,
}

/// An optimizer with its hyper-parameters and the state that it keeps for each parameter.
pub struct Optimizer {
    pub id: u64,
    pub def: Arc<OptimizerDef>,
    /// One per declared parameter, in order. A run-time scalar is a number or a function of `t`.
    pub hyper: Mutex<Vec<Value>>,
    /// Parameters of other float types are kept and updated in this one too (`master: f32`).
    pub master: Mutex<Option<DType>>,
    name: Mutex<Option<Arc<str>>>,
    /// By (parameter, name of the state).
    pub states: Mutex<FxHashMap<(u64, Name), Arc<Cell>>>,
    /// The states in the order they were made, for saving.
    pub state_order: Mutex<CellSet>,
    /// The parameters of the model that it was made for, with the place where that was said.
    pub made_for: Mutex<Option<MadeFor>>,
    /// The parameters that it updates.
    pub targets: Mutex<CellSet>,
    /// How many updates it has made.
    pub count: AtomicU64,
}

impl Optimizer {
    pub fn new(def: Arc<OptimizerDef>, hyper: Vec<Value>, master: Option<DType>) -> Arc<Optimizer> {
        Arc::new(Optimizer {
            id: fresh_id(),
            def,
            hyper: Mutex::new(hyper),
            master: Mutex::new(master),
            name: Mutex::default(),
            states: Mutex::default(),
            state_order: Mutex::default(),
            made_for: Mutex::default(),
            targets: Mutex::default(),
            count: AtomicU64::new(0),
        })
    }

    pub fn name(&self) -> Arc<str> {
        lock(&self.name).clone().unwrap_or_else(|| Arc::clone(&self.def.decl.name.name))
    }

    pub fn name_once(&self, name: &str) {
        lock(&self.name).get_or_insert_with(|| name.into());
    }
}
