//! The data of parameters that are spread over the ranks: their first values, and whole tensors for the
//! script and for files.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::{
    check::{
        Evaluator, Mode,
        errors::Eval,
        files::Contents,
        persistent::{Group, Member},
        rank::line_of,
        value::Cell,
    },
    exec::{Tensor, comm::Request},
    guard::OutOfMemory,
    ir::Type,
    ops::CollectiveKind,
    source::Span,
};

impl Group {
    /// The elements of a parameter that one rank's part has: where they begin in the part, where in
    /// the parameter, and how many there are.
    fn overlap(&self, member: &Member, rank: usize) -> (usize, usize, usize) {
        let low = rank.saturating_mul(self.part());
        let start = low.max(member.start);
        let end = low.saturating_add(self.part()).min(member.start.saturating_add(member.cell.ty.elements()));
        (start.saturating_sub(low), start.saturating_sub(member.start), end.saturating_sub(start))
    }

    /// Writes what a parameter, or a state of its shape, has for one rank's part.
    pub fn put(
        &self,
        part: &mut Tensor,
        member: &Member,
        whole: &Tensor,
        rank: u32,
    ) -> Result<(), OutOfMemory> {
        let (to, from, count) = self.overlap(member, rank as usize);
        let size = whole.dtype().size();
        let from = whole.bytes().get(from * size..(from + count) * size).unwrap_or_default();
        if let Some(to) = part.bytes_mut()?.get_mut(to * size..to * size + from.len()) {
            to.copy_from_slice(from);
        }
        Ok(())
    }
}

impl Evaluator {
    /// Gives a rank's part its first value. Every rank makes the first values of all parameters, one
    /// at a time, as they depend on the names of the parameters alone.
    pub(in crate::check) fn prepare_part(&mut self, part: &Arc<Cell>, group: &Group, span: Span) -> Eval<()> {
        let rank = self.comm.rank();
        let mut tensor = match Tensor::try_zeros(part.ty.clone()) {
            Ok(tensor) => tensor,
            Err(error) => return Err(self.out_of_memory(part, error, span)),
        };
        for member in &group.members {
            self.prepare_cell(&member.cell, span)?;
            let whole = member.cell.take_tensor().map_err(|error| self.op_error(span, error))?;
            let Some(whole) = whole else { continue };
            if let Err(error) = group.put(&mut tensor, member, &whole, rank) {
                return Err(self.out_of_memory(part, error, span));
            }
        }
        part.set_data(tensor);
        Ok(())
    }

    /// The first value of an optimizer's state for a part, from a file that was loaded before the
    /// state was there. Tensors in it have the names of the parameters.
    pub(in crate::check) fn pending_part(&mut self, state: &Cell, group: &Group, span: Span) -> Eval<bool> {
        let names: Vec<String> = group.members.iter().map(|m| state_name(state, group, m)).collect();
        if names.iter().any(|name| !self.pending.contains_key(name)) {
            return Ok(false);
        }
        let mut tensor: Option<Tensor> = None;
        for (member, name) in group.members.iter().zip(&names) {
            let Some(whole) = self.pending.remove(name) else { continue };
            tensor = Some(self.with_member(state, group, member, tensor, &whole, span)?);
        }
        if let Some(tensor) = tensor {
            state.set_data(tensor);
        }
        Ok(true)
    }

    /// A part with the data of one more parameter.
    fn with_member(
        &mut self,
        cell: &Cell,
        group: &Group,
        member: &Member,
        tensor: Option<Tensor>,
        whole: &Tensor,
        span: Span,
    ) -> Eval<Tensor> {
        // A state that is the same for all elements is there once.
        if !group.is_by_element(cell) {
            return Ok(whole.clone());
        }
        let mut tensor = match tensor.map_or_else(|| Tensor::try_zeros(cell.ty.clone()), Ok) {
            Ok(tensor) => tensor,
            Err(error) => return Err(self.out_of_memory(cell, error, span)),
        };
        match group.put(&mut tensor, member, whole, self.comm.rank()) {
            Ok(()) => Ok(tensor),
            Err(error) => Err(self.out_of_memory(cell, error, span)),
        }
    }

    /// Sets a parameter to a tensor of its type, on this rank.
    pub(in crate::check) fn set_whole(&mut self, cell: &Arc<Cell>, whole: Tensor, span: Span) -> Eval<()> {
        let Some((part, group)) = cell.part() else {
            cell.set_data(whole);
            return Ok(());
        };
        self.prepare_cell(&part, span)?;
        if let Some(member) = group.member(cell) {
            let tensor = part.take_tensor().map_err(|error| self.op_error(span, error))?;
            let tensor = self.with_member(&part, &group, member, tensor, &whole, span)?;
            part.set_data(tensor);
        }
        Ok(())
    }

    /// Sets a state of an optimizer, or what it has for one parameter, from a file. False where the
    /// tensor there is of another type.
    pub(in crate::check) fn set_state(
        &mut self,
        (state, member): &(Arc<Cell>, Option<usize>),
        whole: &Tensor,
        span: Span,
    ) -> Eval<bool> {
        let Some(member) = *member else {
            let fits = state.ty == *whole.ty();
            if fits {
                state.set_data(whole.clone());
            }
            return Ok(fits);
        };
        let Some(group) = state.group() else { return Ok(false) };
        let Some(member) = group.members.get(member) else { return Ok(false) };
        let shape = if group.is_by_element(state) { member.cell.ty.shape() } else { state.ty.shape() };
        if whole.dtype() != state.ty.dtype() || whole.shape() != shape {
            return Ok(false);
        }
        self.prepare_cell(state, span)?;
        let tensor = state.take_tensor().map_err(|error| self.op_error(span, error))?;
        let tensor = self.with_member(state, &group, member, tensor, whole, span)?;
        state.set_data(tensor);
        Ok(true)
    }

    /// Gives first values to parts of which only some parameters are about to be loaded.
    pub(in crate::check) fn prepare_partly_loaded(&mut self, contents: &Contents, span: Span) -> Eval<()> {
        let cells = contents.cells();
        let is_whole = |group: &Group| group.members.iter().all(|m| cells.iter().any(|c| c.id == m.cell.id));
        let partly = cells.iter().filter_map(|c| c.part()).filter(|(_, group)| !is_whole(group));
        for (part, _) in partly.collect::<Vec<_>>() {
            self.prepare_cell(&part, span)?;
        }
        Ok(())
    }

    /// A parameter or state of a model as it is on all ranks together. Every rank has to ask for it.
    pub(in crate::check) fn whole_data(&mut self, cell: &Arc<Cell>, span: Span) -> Eval<Option<Tensor>> {
        let Some((part, group)) = cell.part() else {
            self.prepare_cell(cell, span)?;
            return self.cell_data(cell, span);
        };
        if self.mode == Mode::Check {
            return Ok(None);
        }
        let vector = self.gather_data(&part, &group, span)?;
        let Some(member) = group.member(cell) else { return Ok(None) };
        self.member_data(&vector, member, span).map(Some)
    }

    /// The tensors of a part, or of a state of an optimizer, by the names that files have for them.
    pub(in crate::check) fn named_data(
        &mut self,
        cell: &Arc<Cell>,
        span: Span,
    ) -> Eval<Vec<(String, Tensor)>> {
        let Some(group) = cell.group() else {
            self.prepare_cell(cell, span)?;
            let data = self.cell_data(cell, span)?;
            return Ok(data.into_iter().map(|data| (cell.name().to_string(), data)).collect());
        };
        let is_state = cell.kind == crate::ir::SlotKind::OptimizerState;
        let name = |member: &Member| {
            if is_state { state_name(cell, &group, member) } else { member.cell.name().to_string() }
        };
        if !group.is_by_element(cell) {
            self.prepare_cell(cell, span)?;
            let data = self.cell_data(cell, span)?;
            return Ok(group.members.iter().filter_map(|m| Some((name(m), data.clone()?))).collect());
        }
        let vector = self.gather_data(cell, &group, span)?;
        let mut tensors = Vec::with_capacity(group.members.len());
        for member in &group.members {
            tensors.push((name(member), self.member_data(&vector, member, span)?));
        }
        Ok(tensors)
    }

    /// The vector of which this rank has a part.
    fn gather_data(&mut self, part: &Arc<Cell>, group: &Group, span: Span) -> Eval<Tensor> {
        self.prepare_cell(part, span)?;
        let ty = self.checked_type(part.ty.dtype(), &[group.padded], span)?;
        let mut vector = match Tensor::try_zeros(ty) {
            Ok(vector) => vector,
            Err(error) => return Err(self.out_of_memory(part, error, span)),
        };
        let Some(data) = self.cell_data(part, span)? else { return Ok(vector) };
        let request = Request {
            kind: CollectiveKind::AllGather,
            name: "all_gather",
            ty: part.ty.clone(),
            node: 0,
            place: line_of(&self.sources, span),
        };
        let ticket = self.comm.start(request).map_err(|failure| self.op_error(span, failure.into()))?;
        let output = match vector.bytes_mut() {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.out_of_memory(part, error, span)),
        };
        let result = self.comm.wait(ticket, data.bytes(), output);
        result.map_err(|failure| self.op_error(span, failure.into()))?;
        Ok(vector)
    }

    /// The elements of one parameter in a vector.
    fn member_data(&mut self, vector: &Tensor, member: &Member, span: Span) -> Eval<Tensor> {
        let ty: Type = self.checked_type(vector.dtype(), member.cell.ty.shape(), span)?;
        let size = vector.dtype().size();
        let (low, count) = (member.start * size, member.cell.ty.elements() * size);
        let bytes = vector.bytes().get(low..low + count).unwrap_or_default();
        Tensor::from_bytes(ty, bytes)
            .map_err(|error| self.error(crate::codes::LIMIT, span, error.to_string()))
    }
}

impl Group {
    /// Whether a tensor has an element for each element of a rank's part.
    fn is_by_element(&self, cell: &Cell) -> bool {
        cell.ty.shape() == [self.part()]
    }
}

/// The tensors of states by what files call them: a state by its own name, and what a state of a part has
/// for each parameter, with the place of the parameter in its group.
type StatesByName = FxHashMap<String, Vec<(Arc<Cell>, Option<usize>)>>;

pub(in crate::check) fn states_by_name(states: &[Arc<Cell>]) -> StatesByName {
    let mut names = StatesByName::default();
    for state in states {
        names.entry(state.name().to_string()).or_default().push((Arc::clone(state), None));
        let Some(group) = state.group() else { continue };
        for (place, member) in group.members.iter().enumerate() {
            let name = state_name(state, &group, member);
            names.entry(name).or_default().push((Arc::clone(state), Some(place)));
        }
    }
    names
}

/// `opt.m.net.layers.0.w` for the state `opt.m.net.layers.0.flat`.
fn state_name(state: &Cell, group: &Group, member: &Member) -> String {
    let name = state.name();
    let part = member.cell.part().map(|(part, _)| part.name()).unwrap_or_else(|| group.title.clone());
    let prefix = name.strip_suffix(&*part).unwrap_or(&name);
    format!("{prefix}{}", member.cell.name())
}
