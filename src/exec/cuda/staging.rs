//! What goes to the device before a run and comes back after it: the scalar page, inputs, outputs and
//! the words for faults.

use std::sync::Arc;

use cudarc::driver::{result, sys::CUdeviceptr};
use rustc_hash::FxHashMap;

use super::{
    context::Context,
    error::While,
    memory::{Block, Event, Pinned, Stream},
    session::Cuda,
};
use crate::{
    exec::{
        Tensor,
        cpu::{ScalarPage, gathered},
        place::{Place, Root, reach},
    },
    ops::{Layout, OpError},
    plan::{Home, Plan},
    schedule::BufferId,
};

/// Places in pinned memory are multiples of this.
const ALIGNMENT: u64 = 256;

/// What a kernel says of data that it cannot go on with; all 0 where nothing is wrong.
pub(super) type Fault = [u64; 4];

const FAULT_BYTES: usize = size_of::<Fault>();

/// An input of the plan.
struct InputPlace {
    index: usize,
    buffer: BufferId,
    root: Root,
    /// In the pinned memory.
    at: usize,
    bytes: usize,
}

/// A part of a buffer that the host gets: an output, an operand of a host op.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub root: Root,
    /// First byte from the start of the root.
    pub start: u64,
    pub bytes: usize,
    /// From `start` on.
    layout: Layout,
    ty: crate::ir::Type,
}

impl Part {
    /// All that a tensor reaches, from a multiple of 16 bytes on.
    pub fn new(place: &Place) -> Result<Part, OpError> {
        let size = place.ty.dtype().size();
        let too_large = || OpError::new("internal: a layout of the plan is too large");
        let end = reach(&place.ty, &place.layout).ok_or_else(too_large)?;
        let start = (place.layout.offset as u64).saturating_mul(size as u64) / 16 * 16;
        let bytes = usize::try_from(end.saturating_sub(start)).map_err(|_| too_large())?;
        let offset = place.layout.offset.saturating_sub(start as usize / size);
        let layout = Layout { offset, ..place.layout.clone() };
        Ok(Part { root: place.root, start, bytes, layout, ty: place.ty.clone() })
    }

    /// The tensor, from the bytes of the part.
    pub fn tensor(&self, bytes: &[u8], page: &ScalarPage) -> Result<Tensor, OpError> {
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            if let Some(start) = word.get_mut(..chunk.len()) {
                start.copy_from_slice(chunk);
            }
            u128::from_ne_bytes(word)
        });
        if self.layout.is_dense(self.ty.shape()) && self.layout.offset == 0 {
            return Tensor::from_bytes(self.ty.clone(), bytes)
                .map_err(|e| OpError::new(format!("internal: {e}")));
        }
        gathered(&words.collect::<Vec<u128>>(), &self.ty, &self.layout, page)
    }
}

/// Constants of a plan, in memory that a recorded step may copy from.
pub(super) struct Constants {
    pinned: Pinned,
    /// Where each of them begins, by its address.
    places: FxHashMap<usize, usize>,
}

impl Constants {
    pub fn new(context: &Arc<Context>, all: &[&Arc<[u8]>]) -> Result<Constants, OpError> {
        let mut places = FxHashMap::default();
        let mut next = 0u64;
        for bytes in all {
            places.entry(bytes.as_ptr().addr()).or_insert_with(|| {
                let start = next as usize;
                next = next.saturating_add(bytes.len() as u64).next_multiple_of(ALIGNMENT);
                start
            });
        }
        let mut pinned = Pinned::new(context, next)?;
        for bytes in all {
            let start = places.get(&bytes.as_ptr().addr()).copied().unwrap_or(0);
            if let Some(target) = pinned.bytes().get_mut(start..start + bytes.len()) {
                target.copy_from_slice(bytes);
            }
        }
        Ok(Constants { pinned, places })
    }

    /// The pinned bytes of a constant.
    pub fn get(&self, bytes: &Arc<[u8]>) -> Result<*const u8, OpError> {
        let start = self.places.get(&bytes.as_ptr().addr());
        let missing = || OpError::new("internal: a constant that is not pinned");
        self.pinned.at(*start.ok_or_else(missing)?, bytes.len()).ok_or_else(missing)
    }
}

/// Addresses on the device that every kernel may ask for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    /// The scalar page: seed, step, values.
    pub page: CUdeviceptr,
    /// The four words for faults of data.
    pub faults: CUdeviceptr,
}

/// Memory for the exchange with one executable.
pub(super) struct Staging {
    compute: Arc<Stream>,
    copies: Arc<Stream>,
    /// Faults, then the scalar page: what kernels read.
    block: Block,
    /// The same and the inputs, as they come from the host: the step before may still run then.
    slot: Block,
    /// `slot` is filled.
    uploaded: Event,
    /// Nobody has waited for that.
    is_uploading: bool,
    /// What was in `slot` is where the step reads it.
    taken: Event,
    up: Pinned,
    down: Pinned,
    inputs: Vec<InputPlace>,
    outputs: Vec<(Part, usize)>,
    page_bytes: usize,
}

/// What is uploaded for a run: the words for faults and the scalar page, then the inputs.
struct Slot {
    page_bytes: usize,
    inputs: Vec<InputPlace>,
    bytes: u64,
}

impl Slot {
    fn of(plan: &Plan) -> Slot {
        let page_bytes = FAULT_BYTES + 16 + 8 * plan.graph.scalars.len();
        let mut next = (page_bytes as u64).next_multiple_of(ALIGNMENT);
        let mut inputs = Vec::new();
        for (k, buffer) in plan.buffers.iter().enumerate() {
            let offset = plan.schedule.offsets.get(k).copied().flatten();
            if let (Home::Input(index), Some(offset)) = (buffer.home, offset)
                && let Some(input) = plan.graph.inputs.get(index as usize)
            {
                inputs.push(InputPlace {
                    index: index as usize,
                    buffer: BufferId(k as u32),
                    root: Root::Arena(offset as usize),
                    at: next as usize,
                    bytes: input.ty.bytes() as usize,
                });
                next = next.saturating_add(input.ty.bytes()).next_multiple_of(ALIGNMENT);
            }
        }
        Slot { page_bytes, inputs, bytes: next }
    }
}

/// Bytes on a device that a step takes beside its plan: the scalars, and a place for the scalars and the
/// inputs of the next run.
pub(crate) fn beside_bytes(plan: &Plan) -> u64 {
    let Slot { page_bytes, bytes, .. } = Slot::of(plan);
    (page_bytes as u64).saturating_add(bytes)
}

impl Staging {
    pub fn new(cuda: &Cuda, plan: &Plan) -> Result<Staging, OpError> {
        let context = &cuda.context;
        let Slot { page_bytes, inputs, bytes } = Slot::of(plan);
        let up = Pinned::new(context, bytes)?;
        let slot = Block::new(&cuda.compute, bytes, "the next inputs of a step")?;
        let mut next = ALIGNMENT;
        let mut outputs = Vec::new();
        for access in &plan.outputs {
            let part = Part::new(&Place::new(plan, access)?)?;
            let at = next as usize;
            next = next.saturating_add(part.bytes as u64).next_multiple_of(ALIGNMENT);
            outputs.push((part, at));
        }
        let down = Pinned::new(context, next)?;
        let block = Block::new(&cuda.compute, page_bytes as u64, "the scalars of a step")?;
        Ok(Staging {
            compute: Arc::clone(&cuda.compute),
            copies: Arc::clone(&cuda.copies),
            block,
            slot,
            uploaded: Event::new(context)?,
            is_uploading: false,
            taken: Event::new(context)?,
            up,
            down,
            inputs,
            outputs,
            page_bytes,
        })
    }

    /// Where kernels find the scalars and tell faults.
    pub fn words(&self) -> Words {
        Words { page: self.block.address() + FAULT_BYTES as u64, faults: self.block.address() }
    }

    /// Bytes on the device that are not part of the plan.
    pub fn device_bytes(&self) -> u64 {
        self.block.bytes() + self.slot.bytes()
    }

    /// The buffers of inputs.
    pub fn input_buffers(&self) -> impl Iterator<Item = BufferId> {
        self.inputs.iter().map(|input| input.buffer)
    }

    /// Starts the upload of the page and the inputs of the next step, which may overlap with the work of
    /// the one before.
    pub fn upload(&mut self, page: &ScalarPage, inputs: &[Tensor]) -> Result<(), OpError> {
        // Until the copy before is done, the pinned memory is not free.
        if std::mem::take(&mut self.is_uploading) {
            self.uploaded.wait()?;
        }
        let up = self.up.bytes();
        let missing = || OpError::new("internal: pinned memory is too small");
        let words = [page.seed, page.step].into_iter().chain(page.values.iter().map(|value| value.to_bits()));
        let target = up.get_mut(..self.page_bytes).ok_or_else(missing)?;
        target.fill(0);
        let page_words = target.get_mut(FAULT_BYTES..).ok_or_else(missing)?;
        if page_words.len() != 8 * (page.values.len() + 2) {
            return Err(OpError::new(format!(
                "the step reads {} scalars, got {}",
                (page_words.len() / 8).saturating_sub(2),
                page.values.len()
            )));
        }
        for (to, word) in page_words.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        for input in &self.inputs {
            let tensor = inputs.get(input.index).filter(|tensor| tensor.bytes().len() == input.bytes);
            let target = up.get_mut(input.at..input.at + input.bytes);
            let (tensor, target) = tensor.zip(target).ok_or_else(missing)?;
            target.copy_from_slice(tensor.bytes());
        }
        self.copies.wait_for(&self.taken)?;
        // SAFETY: both have this size, and live until all work of both streams was waited for (`drop`).
        unsafe { result::memcpy_htod_async(self.slot.address(), up, self.copies.raw()) }
            .during("uploading the inputs")?;
        self.is_uploading = true;
        self.copies.record(&mut self.uploaded)
    }

    /// Puts what was uploaded where the step reads it; `address` is that of an input's buffer.
    pub fn take(
        &mut self,
        address: &dyn Fn(BufferId, Root) -> Result<CUdeviceptr, OpError>,
    ) -> Result<(), OpError> {
        self.compute.wait_for(&self.uploaded)?;
        let mut copies = vec![(0, self.block.address(), self.page_bytes)];
        for input in self.inputs.iter().filter(|input| input.bytes > 0) {
            copies.push((input.at as u64, address(input.buffer, input.root)?, input.bytes));
        }
        for (at, to, bytes) in copies {
            // SAFETY: the place has the size of the input (`place::check`), and the stream is in order.
            unsafe { result::memcpy_dtod_async(to, self.slot.address() + at, bytes, self.compute.raw()) }
                .during("uploading the inputs")?;
        }
        self.compute.record(&mut self.taken)
    }

    /// Starts the copies of faults and outputs to the host; `address` is that of an output.
    pub fn download(
        &mut self,
        address: &dyn Fn(usize, Root) -> Result<CUdeviceptr, OpError>,
    ) -> Result<(), OpError> {
        let faults = (self.block.address(), 0, FAULT_BYTES);
        let mut copies = vec![faults];
        for (k, (part, at)) in self.outputs.iter().enumerate() {
            if part.bytes > 0 {
                copies.push((address(k, part.root)? + part.start, *at, part.bytes));
            }
        }
        let down = self.down.bytes();
        for (from, at, bytes) in copies {
            let to = down.get_mut(at..at + bytes);
            let to = to.ok_or_else(|| OpError::new("internal: pinned memory is too small"))?;
            // SAFETY: as in `upload`.
            unsafe { result::memcpy_dtoh_async(to, from, self.compute.raw()) }
                .during("downloading the results")?;
        }
        Ok(())
    }

    /// What is wrong with the data, as far as kernels have told by now. The stream was waited for.
    pub fn fault_by_now(&mut self) -> Result<Fault, OpError> {
        let mut bytes = [0; FAULT_BYTES];
        self.block.download(&mut bytes)?;
        Ok(words(&bytes))
    }

    /// What is wrong with the data, after the downloads. The step was waited for, and so was its upload,
    /// unless another one `is_ahead`.
    pub fn fault(&mut self, is_ahead: bool) -> Result<Fault, OpError> {
        self.is_uploading &= is_ahead;
        let bytes = self.down.bytes().first_chunk::<FAULT_BYTES>();
        bytes.map(words).ok_or_else(|| OpError::new("internal: pinned memory is too small"))
    }

    /// The outputs, after the downloads.
    pub fn outputs(&mut self, page: &ScalarPage) -> Result<Vec<Tensor>, OpError> {
        let down = self.down.bytes();
        let missing = || OpError::new("internal: pinned memory is too small");
        self.outputs
            .iter()
            .map(|(part, at)| part.tensor(down.get(*at..*at + part.bytes).ok_or_else(missing)?, page))
            .collect()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Copies may be on their way, also of an upload whose step never started. A device that is lost
        // makes none.
        for stream in [&self.copies, &self.compute] {
            let _ = stream.wait("ending a step");
        }
    }
}

fn words(bytes: &[u8; FAULT_BYTES]) -> Fault {
    let mut words = Fault::default();
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        if let Some(bytes) = bytes.first_chunk() {
            *word = u64::from_ne_bytes(*bytes);
        }
    }
    words
}
