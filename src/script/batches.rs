//! Batches: rows of tensors in order or shuffled, and windows of a long sequence.

use super::{Error, random::Random};
use crate::{
    exec::Tensor,
    guard::OutOfMemory,
    ir::{ShapeText, Type},
};

/// How rows become batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Rows of a batch.
    pub size: usize,
    /// The seed of the order; `None` leaves the rows in theirs.
    pub shuffle: Option<u64>,
    /// Keep the last batch where it has fewer rows; it is dropped otherwise.
    pub keep_partial: bool,
    /// Which of `parts` this is, from 0: what one rank of several takes. `parts` batches that follow
    /// one another are one for each part, so that together they are a batch of `parts · size` rows.
    pub part: usize,
    pub parts: usize,
}

/// Batches over tensors of equal first axis: an iterator of one tensor for each, with the rows
/// gathered.
#[derive(Debug, Clone)]
pub struct Batches {
    tensors: Vec<Tensor>,
    config: Config,
    rows: usize,
    order: Option<Vec<usize>>,
    next: usize,
}

impl Batches {
    /// Errors where there are no tensors, where their first axes differ, and for batches of 0 rows.
    pub fn new(tensors: Vec<Tensor>, config: Config) -> Result<Batches, Error> {
        let types: Vec<&Type> = tensors.iter().map(Tensor::ty).collect();
        let rows = rows(&types, config)?;
        let order = config.shuffle.map(|seed| Random::new(seed, 0).permutation(rows));
        Ok(Batches { tensors, config, rows, order, next: 0 })
    }

    /// How many rows there are in all.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many batches there are in all, those already taken included.
    pub fn count_all(&self) -> usize {
        count(self.rows, self.config)
    }

    /// The batch of this number, whatever has been taken before; `None` behind the last one. An
    /// error where memory is short.
    pub fn batch(&self, number: usize) -> Result<Option<Vec<Tensor>>, Error> {
        if number >= self.count_all() {
            return Ok(None);
        }
        let number = number.saturating_mul(self.config.parts).saturating_add(self.config.part);
        let start = number.saturating_mul(self.config.size).min(self.rows);
        let end = start.saturating_add(self.config.size).min(self.rows);
        let batch: Result<Option<Vec<Tensor>>, OutOfMemory> = self
            .tensors
            .iter()
            .map(|tensor| match &self.order {
                Some(order) => {
                    let rows = order.get(start..end).unwrap_or_default();
                    gather(tensor, rows.iter().copied(), end - start)
                }
                None => gather(tensor, start..end, end - start),
            })
            .collect();
        Ok(batch?)
    }
}

/// Ends early where memory is short; [`Batches::batch`] says so.
impl Iterator for Batches {
    type Item = Vec<Tensor>;

    fn next(&mut self) -> Option<Vec<Tensor>> {
        let batch = self.batch(self.next).ok().flatten()?;
        self.next += 1;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count_all() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Batches {}

/// The types of a full batch and the number of batches, from the types of the data alone: for
/// `check`, which reads only headers.
pub fn batch_types(types: &[&Type], config: Config) -> Result<(Vec<Type>, usize), Error> {
    let rows = rows(types, config)?;
    let size = if config.keep_partial { config.size.min(rows) } else { config.size };
    let batch = types
        .iter()
        .map(|ty| {
            let shape: Vec<usize> = std::iter::once(size).chain(ty.shape().iter().skip(1).copied()).collect();
            ty.with_shape(shape).map_err(|e| Error::new(e.to_string()))
        })
        .collect::<Result<_, _>>()?;
    Ok((batch, count(rows, config)))
}

/// The common first axis.
fn rows(types: &[&Type], config: Config) -> Result<usize, Error> {
    if config.size == 0 {
        return Err(Error::new("batches of 0 rows"));
    }
    if config.keep_partial && config.parts > 1 {
        return Err(Error::new(
            "`partial: keep` in several parts: the last batches would differ in their rows",
        )
        .help("ranks run one plan, so their batches have one shape: leave `partial` out"));
    }
    let mut rows = None;
    for ty in types {
        let Some(&first) = ty.shape().first() else {
            return Err(Error::new(format!("batches are made of rows, but {ty} has no axes")));
        };
        match rows {
            None => rows = Some((first, *ty)),
            Some((other, before)) if other != first => {
                return Err(Error::new(format!(
                    "the tensors differ in their number of rows: {before} has {other}, {ty} has {first}"
                )));
            }
            Some(_) => {}
        }
    }
    let Some((rows, _)) = rows else {
        return Err(Error::new("batches of no tensors"));
    };
    let needed = config.size.saturating_mul(config.parts);
    if rows > 0 && rows < needed && !config.keep_partial {
        let size = config.size;
        let each =
            if config.parts > 1 { format!(" for each of {} parts", config.parts) } else { String::new() };
        let help = match config.parts {
            0 | 1 => "`partial: keep` keeps the last batch where it has fewer rows".to_owned(),
            parts => format!("make `size` smaller: {parts} parts together take {needed} rows at a time"),
        };
        return Err(
            Error::new(format!("batches of {size} rows{each} from {rows} rows: there is not one")).help(help)
        );
    }
    Ok(rows)
}

fn count(rows: usize, config: Config) -> usize {
    let size = config.size.max(1).saturating_mul(config.parts.max(1));
    if config.keep_partial { rows.div_ceil(size) } else { rows / size }
}

/// Rows of a tensor, by number. `None` for a row that it does not have.
fn gather(
    tensor: &Tensor,
    rows: impl Iterator<Item = usize>,
    count: usize,
) -> Result<Option<Tensor>, OutOfMemory> {
    let Some((_, inner)) = tensor.shape().split_first() else { return Ok(None) };
    let shape: Vec<usize> = std::iter::once(count).chain(inner.iter().copied()).collect();
    let Ok(ty) = tensor.ty().with_shape(shape) else { return Ok(None) };
    let mut result = Tensor::try_zeros(ty)?;
    let width = inner.iter().product::<usize>() * tensor.dtype().size();
    if width == 0 {
        return Ok(Some(result));
    }
    let source = tensor.bytes();
    let row_of = |row: usize| {
        let start = row.checked_mul(width)?;
        source.get(start..start.checked_add(width)?)
    };
    for (target, row) in result.bytes_mut()?.chunks_exact_mut(width).zip(rows) {
        let Some(row) = row_of(row) else { return Ok(None) };
        target.copy_from_slice(row);
    }
    Ok(Some(result))
}

/// Random windows of a long sequence for training on what comes next: pairs (x, y) of `[batch,
/// length]`, where y is x moved on by one.
#[derive(Debug, Clone)]
pub struct Windows {
    sequence: Tensor,
    length: usize,
    batch: usize,
    seed: u64,
}

impl Windows {
    /// `sequence` is 1-d, with more elements than `length`.
    pub fn new(sequence: Tensor, length: usize, batch: usize, seed: u64) -> Result<Windows, Error> {
        window_types(sequence.ty(), length, batch)?;
        Ok(Windows { sequence, length, batch, seed })
    }

    /// The windows of this step: a function of the seed and the step alone, so that a run that
    /// resumes goes on with the same data. An error where memory is short.
    pub fn at(&self, step: u64) -> Result<(Tensor, Tensor), Error> {
        let ty = window_types(self.sequence.ty(), self.length, self.batch)?;
        let from = self.sequence.ty().elements().saturating_sub(self.length) as u64;
        let mut random = Random::new(self.seed, step.wrapping_add(1));
        let starts: Vec<usize> = (0..self.batch).map(|_| random.below(from) as usize).collect();
        let size = ty.dtype().size();
        // `window_types` holds that the sequence is longer, and its bytes are counted in 64 bits.
        let width = self.length * size;
        let (mut x, mut y) = (Tensor::try_zeros(ty.clone())?, Tensor::try_zeros(ty)?);
        if width == 0 {
            return Ok((x, y));
        }
        let source = self.sequence.bytes();
        for (tensor, shift) in [(&mut x, 0), (&mut y, size)] {
            for (target, start) in tensor.bytes_mut()?.chunks_exact_mut(width).zip(&starts) {
                let start = start * size + shift;
                if let Some(window) = source.get(start..start + width) {
                    target.copy_from_slice(window);
                }
            }
        }
        Ok((x, y))
    }
}

/// The type of x and of y, from the type of the sequence alone.
pub fn window_types(sequence: &Type, length: usize, batch: usize) -> Result<Type, Error> {
    let &[n] = sequence.shape() else {
        return Err(Error::new(format!(
            "windows are cut from a sequence [n], got {}",
            ShapeText(sequence.shape())
        )));
    };
    if length >= n {
        return Err(Error::new(format!(
            "windows of {length} and the next one do not fit in a sequence of {n}"
        )));
    }
    sequence.with_shape([batch, length]).map_err(|e| Error::new(e.to_string()))
}
