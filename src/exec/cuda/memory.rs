//! Memory of the device and pinned memory of the host, streams, events and graphs: each is given back
//! when it is dropped.

use std::{fmt, ptr, sync::Arc};

use cudarc::driver::{
    result::{self, event, graph, stream},
    sys::{
        CUdeviceptr, CUevent, CUevent_flags_enum, CUgraphExec, CUgraphInstantiate_flags, CUstream,
        CUstreamCaptureMode,
    },
};

use super::{
    context::Context,
    error::{Room, While},
};
use crate::ops::OpError;

/// Bytes of the device, used by the work of one stream: that is waited for before the host reads, writes
/// or frees them.
pub struct Block {
    stream: Arc<Stream>,
    address: CUdeviceptr,
    bytes: u64,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.bytes)
    }
}

impl Block {
    /// Takes bytes from the device; their content is left over. None are taken for 0.
    pub(super) fn new(stream: &Arc<Stream>, bytes: u64, what: &str) -> Result<Block, OpError> {
        stream.context.enter()?;
        let address = match usize::try_from(bytes) {
            Ok(0) => 0,
            // SAFETY: the context is current.
            Ok(bytes) => unsafe { result::malloc_sync(bytes) }.taking(Room::Device, what)?,
            Err(_) => {
                return Err(OpError::new(format!("{bytes} bytes for {what} are more than a device has")));
            }
        };
        Ok(Block { stream: Arc::clone(stream), address, bytes })
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_on(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.stream.context, context)
    }

    /// Copies bytes here, and waits until that is done.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<(), OpError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() as u64 > self.bytes {
            return Err(OpError::new("internal: an upload beyond its block"));
        }
        self.stream.wait("running a step")?;
        // SAFETY: the block holds that many bytes, and no work that uses them is on its way.
        unsafe { upload(self.address, bytes) }
    }

    /// Copies the first bytes of the block into `bytes`, and waits until that is done.
    pub(crate) fn download(&self, bytes: &mut [u8]) -> Result<(), OpError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() as u64 > self.bytes {
            return Err(OpError::new("internal: a download beyond its block"));
        }
        self.stream.wait("running a step")?;
        // SAFETY: as in `upload`.
        unsafe { result::memcpy_dtoh_sync(bytes, self.address) }.during("downloading a tensor")
    }
}

/// Copies bytes to the device, and waits until they are there.
///
/// # Safety
/// The address is that of as many bytes of the current context, which no work on its way uses.
pub(super) unsafe fn upload(to: CUdeviceptr, bytes: &[u8]) -> Result<(), OpError> {
    const WHAT: &str = "uploading a tensor";
    // SAFETY: as for this function.
    unsafe { result::memcpy_htod_sync(to, bytes) }.during(WHAT)?;
    // The copy returns when the bytes are read, and other streams do not wait for this one.
    // SAFETY: the stream of the context itself is always there.
    unsafe { stream::synchronize(stream::null()) }.during(WHAT)
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.address != 0 {
            // A device that is lost has nothing to give back, and waits for nothing.
            let _ = self.stream.wait("running a step");
            // SAFETY: allocated in `new`; its context is current.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Memory of the host that the device copies from and to without the host's help.
pub(super) struct Pinned {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to it alone.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeroed.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<Pinned, OpError> {
        context.enter()?;
        let bytes = usize::try_from(bytes).map_err(|_| OpError::new("a step's inputs are too large"))?;
        let start = match bytes {
            0 => ptr::null_mut(),
            // Not write-combined: results are read from it.
            // SAFETY: the context is current.
            _ => unsafe { result::malloc_host(bytes, 0) }
                .taking(Room::Host, "what goes between it and the device")?
                .cast::<u8>(),
        };
        if bytes > 0 {
            // SAFETY: allocated just now.
            unsafe { start.write_bytes(0, bytes) };
        }
        Ok(Pinned { context: Arc::clone(context), start, bytes })
    }

    /// The address of bytes in it.
    pub fn at(&self, start: usize, bytes: usize) -> Option<*const u8> {
        let end = start.checked_add(bytes)?;
        (end <= self.bytes).then(|| self.start.wrapping_add(start).cast_const())
    }

    /// The bytes. No copy from or to them may be on its way.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self.bytes {
            0 => &mut [],
            // SAFETY: allocated in `new` and zeroed.
            bytes => unsafe { std::slice::from_raw_parts_mut(self.start, bytes) },
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.start.is_null() && self.context.enter().is_ok() {
            // SAFETY: allocated in `new`.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

/// A queue of work on the device.
pub(super) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: a stream may be used from any thread where its context is current, from several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, OpError> {
        context.enter()?;
        let raw = stream::create(stream::StreamKind::NonBlocking).during("starting")?;
        Ok(Stream { context: Arc::clone(context), raw })
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until all work of the stream is done.
    pub fn wait(&self, doing: &str) -> Result<(), OpError> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { stream::synchronize(self.raw) }.during(doing)
    }

    /// Marks the end of all that is in the stream by now.
    pub fn record(&self, event: &mut Event) -> Result<(), OpError> {
        // SAFETY: the event and the stream are alive.
        unsafe { event::record(event.raw, self.raw) }.during("ordering its work")?;
        event.is_recorded = true;
        Ok(())
    }

    /// What is added after this runs after an event, if that was recorded.
    pub fn wait_for(&self, event: &Event) -> Result<(), OpError> {
        if !event.is_recorded {
            return Ok(());
        }
        let flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event and the stream are alive.
        unsafe { stream::wait_event(self.raw, event.raw, flags) }.during("ordering its work")
    }

    /// The work that `enqueue` adds to the stream, as a graph. Nothing of it runs.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<(), OpError>) -> Result<Captured, OpError> {
        const WHAT: &str = "recording a step";
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { stream::begin_capture(self.raw, mode) }.during(WHAT)?;
        let enqueued = enqueue();
        // The capture ends, whatever became of the work.
        // SAFETY: begun above.
        let captured = unsafe { stream::end_capture(self.raw) }.during(WHAT);
        enqueued?;
        let captured = captured?;
        // SAFETY: a graph that was captured just now.
        let exec = unsafe { graph::instantiate(captured, CUgraphInstantiate_flags(0)) }.during(WHAT);
        // SAFETY: what is instantiated does not need it any more.
        let _ = unsafe { graph::destroy(captured) };
        Ok(Captured { context: Arc::clone(&self.context), raw: exec? })
    }

    /// Runs a graph after all that is in the stream.
    pub fn replay(&self, captured: &Captured) -> Result<(), OpError> {
        // SAFETY: both are alive.
        unsafe { graph::launch(captured.raw, self.raw) }.during("starting a recorded step")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created in `new`.
            let _ = unsafe { stream::destroy(self.raw) };
        }
    }
}

/// A point in a stream.
pub(super) struct Event {
    context: Arc<Context>,
    raw: CUevent,
    is_recorded: bool,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event, OpError> {
        context.enter()?;
        let raw = event::create(CUevent_flags_enum::CU_EVENT_DISABLE_TIMING).during("starting")?;
        Ok(Event { context: Arc::clone(context), raw, is_recorded: false })
    }

    /// Lets the host wait for it, if it was recorded.
    pub fn wait(&self) -> Result<(), OpError> {
        if !self.is_recorded {
            return Ok(());
        }
        // SAFETY: the event is alive.
        unsafe { event::synchronize(self.raw) }.during("uploading the inputs")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created in `new`.
            let _ = unsafe { event::destroy(self.raw) };
        }
    }
}

/// Work that was recorded, to be run any number of times.
pub(super) struct Captured {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: as for streams.
unsafe impl Send for Captured {}

impl Drop for Captured {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: instantiated in `capture`.
            let _ = unsafe { graph::exec_destroy(self.raw) };
        }
    }
}
