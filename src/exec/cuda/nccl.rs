//! Collectives between GPUs through NCCL, on a stream of their own: each starts when its operand is
//! there, and whoever needs its result waits for an event.
//!
//! What ranks are about to do is compared on the host before a step starts (`Comm::agree`). A rank that
//! is lost in the middle of a step leaves kernels of the others running, so they are never waited for
//! without a limit: [`Group::wait`] looks in turns at the stream, at the library and at the other ranks.

use std::{
    collections::VecDeque,
    ffi::{CStr, c_void},
    mem, ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cudarc::{
    driver::{
        result,
        sys::{self as driver, CUresult, CUstream},
    },
    nccl::sys::{self, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId},
};

use super::{
    context::{Context, lock},
    error::While,
    library,
    memory::{Event, Stream},
};
use crate::{
    exec::comm::{Comm, Failure, FailureKind, Request, Watch, named, seconds},
    ir::{DType, Type},
    ops::{CollectiveKind, OpError},
};

/// Pauses between two looks: at first short, as most waits are.
const FIRST_PAUSE: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_micros(200);

/// Of the time limit: when ranks are asked how far they have come, and how often after that.
const FIRST_QUESTION: u32 = 2;
const QUESTIONS: u32 = 8;

/// How long ranks have to answer once it is known that one is lost, at most.
const ROLL_CALL: Duration = Duration::from_secs(1);

/// How long a rank that ends waits for the others.
const FAREWELL: Duration = Duration::from_secs(1);

/// How the collectives of several ranks go from one GPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Path {
    /// There are none, or none has run yet.
    #[default]
    Unknown,
    /// NCCL, beside the work of the step.
    Nccl,
    /// Through the memory of the host: not every rank has NCCL, and is to use it.
    NoLibrary,
    /// The same: NCCL wants a GPU for each rank, and some share one.
    SharedDevice,
}

/// A rank's end of the group of all ranks, each with a GPU of its own.
pub(super) struct Group {
    context: Arc<Context>,
    stream: Stream,
    raw: Mutex<Raw>,
    /// Collectives on their way, in the order in which they run.
    running: Mutex<VecDeque<Running>>,
    /// Of the collective that was started last. Connecting was number 1.
    number: AtomicU64,
    rank: u32,
    limit: Duration,
    watch: Option<Arc<dyn Watch>>,
}

enum Raw {
    Open(ncclComm_t),
    /// Given up, and why.
    Failed(Failure),
}

// SAFETY: NCCL's handle may be used from any thread, by one at a time, which the lock holds.
unsafe impl Send for Raw {}

struct Running {
    number: u64,
    ready: Arc<Event>,
    done: Arc<Event>,
    what: Arc<str>,
    /// From when on its operand was seen to be there.
    patience: Option<Patience>,
}

/// A wait for other ranks, which are asked how far they have come before it is over.
struct Patience {
    since: Instant,
    next: Instant,
    has_asked: bool,
}

impl Patience {
    fn new(limit: Duration) -> Patience {
        let since = Instant::now();
        Patience { since, next: since + limit / FIRST_QUESTION, has_asked: false }
    }

    /// Once the limit is over, the ranks that have not come to `count`.
    fn over(&mut self, group: &Group, count: u64) -> Option<Vec<u32>> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        let behind = group.behind(count);
        let is_over = self.has_asked && now.duration_since(self.since) >= group.limit;
        self.has_asked = true;
        self.next = now + group.limit / QUESTIONS;
        is_over.then_some(behind)
    }
}

/// A collective with addresses.
#[derive(Debug, Clone)]
pub(super) struct Collective {
    pub kind: CollectiveKind,
    pub dtype: DType,
    /// Elements of operand and result.
    pub elements: (usize, usize),
    pub from: u64,
    pub to: u64,
    /// For messages: `all_reduce` of f32[8] (train.tg:12).
    pub what: Arc<str>,
}

/// The start of NCCL's configuration, which all versions read as far as it goes.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    /// The library chooses, as everything behind it.
    cluster_size: i32,
}

/// What each rank tells the others before they connect.
const CARD_BYTES: usize = 1 + 16 + mem::size_of::<ncclUniqueId>();

/// Connects all ranks, where each has NCCL and a GPU of its own. All ranks come to the same result.
pub(super) fn connect(
    context: &Arc<Context>,
    comm: &mut dyn Comm,
    is_wanted: bool,
) -> Result<(Path, Option<Arc<Group>>), OpError> {
    let card = card(context, comm.rank(), is_wanted);
    let cards = exchange(comm, &card)?;
    let (cards, _) = cards.as_chunks::<CARD_BYTES>();
    if cards.iter().any(|card| card.first() != Some(&1)) {
        return Ok((Path::NoLibrary, None));
    }
    let device = |card: &[u8; CARD_BYTES]| card.get(1..17).map(<[u8]>::to_vec);
    let is_shared = |k: usize, card: &[u8; CARD_BYTES]| {
        cards.iter().skip(k + 1).any(|other| device(other) == device(card))
    };
    if cards.iter().enumerate().any(|(k, card)| is_shared(k, card)) {
        return Ok((Path::SharedDevice, None));
    }
    let mut id = ncclUniqueId { internal: [0; 128] };
    let first = cards.first().and_then(|card| card.get(17..)).unwrap_or_default();
    for (to, from) in id.internal.iter_mut().zip(first) {
        *to = from.cast_signed();
    }
    let group = Group::join(context, comm, id)?;
    Ok((Path::Nccl, Some(Arc::new(group))))
}

/// Whether this rank can take part, its device, and the id of the group, which rank 0 makes.
fn card(context: &Context, rank: u32, is_wanted: bool) -> [u8; CARD_BYTES] {
    let mut card = [0; CARD_BYTES];
    let mut id = ncclUniqueId { internal: [0; 128] };
    if !is_wanted || library::collectives().is_err() || context.enter().is_err() {
        return card;
    }
    // SAFETY: the library was found with this function, which fills the id.
    if rank == 0 && unsafe { sys::ncclGetUniqueId(&raw mut id) } != ncclResult_t::ncclSuccess {
        return card;
    }
    let Ok(device) = context.uuid() else { return card };
    let bytes = [1].into_iter().chain(device).chain(id.internal.iter().map(|byte| byte.cast_unsigned()));
    for (to, from) in card.iter_mut().zip(bytes) {
        *to = from;
    }
    card
}

/// The cards of all ranks, in their order.
fn exchange(comm: &mut dyn Comm, card: &[u8]) -> Result<Vec<u8>, OpError> {
    let ty = Type::new(DType::U8, [card.len()])?;
    let request =
        Request { kind: CollectiveKind::AllGather, name: "all_gather", ty, node: 0, place: String::new() };
    let mut all = vec![0; card.len().saturating_mul(comm.world() as usize)];
    let ticket = comm.start(request)?;
    comm.wait(ticket, card, &mut all)?;
    Ok(all)
}

impl Group {
    fn join(context: &Arc<Context>, comm: &mut dyn Comm, id: ncclUniqueId) -> Result<Group, OpError> {
        let stream = Stream::new(context)?;
        // The library does not wait, so that nobody hangs where a rank is lost.
        let mut config = Config {
            size: mem::size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
            cluster_size: i32::MIN,
        };
        let mut raw: ncclComm_t = ptr::null_mut();
        let (world, rank) = (comm.world(), comm.rank());
        // SAFETY: the library was found with this function; the configuration says how long it is.
        let status = unsafe {
            let config = (&raw mut config).cast::<ncclConfig_t>();
            sys::ncclCommInitRankConfig(&raw mut raw, world.cast_signed(), id, rank.cast_signed(), config)
        };
        if raw.is_null() {
            let message = format!("NCCL cannot connect the ranks: {}", text(status));
            let error = OpError::from(Failure::engine(rank, message));
            return Err(error.help("`TG_CUDA_NCCL=0` on every rank takes the way through the host"));
        }
        let group = Group {
            context: Arc::clone(context),
            stream,
            raw: Mutex::new(Raw::Open(raw)),
            running: Mutex::default(),
            number: AtomicU64::new(1),
            rank,
            limit: comm.limit(),
            watch: comm.watch(),
        };
        group.came(1);
        group.settle(status, "connecting the ranks", 1)?;
        Ok(group)
    }

    /// Waits until the library has done what it was told last; `status` is what it said then. Other ranks
    /// have come to `count` where it can be done.
    fn settle(&self, mut status: ncclResult_t, doing: &str, count: u64) -> Result<(), OpError> {
        let mut patience = Patience::new(self.limit);
        let mut pause = FIRST_PAUSE;
        while status == ncclResult_t::ncclInProgress {
            if let Some(failure) = self.watched() {
                return Err(self.close(failure));
            }
            if let Some(behind) = patience.over(self, count) {
                return Err(self.late(doing, &behind));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            status = self.status()?;
        }
        if status == ncclResult_t::ncclSuccess {
            return Ok(());
        }
        Err(self.failed(status, &format!(" while {doing}")))
    }

    /// What the library says that has failed.
    fn failed(&self, status: ncclResult_t, doing: &str) -> OpError {
        let silent = if status == ncclResult_t::ncclRemoteError { self.call_the_roll() } else { Vec::new() };
        let message = format!("NCCL failed on rank {}{doing}: {}", self.rank, text(status));
        self.give_up(match silent.first() {
            Some(&rank) => {
                let message = format!(
                    "{} {} not answer any more: {message}",
                    named(&silent),
                    if silent.len() == 1 { "does" } else { "do" }
                );
                Failure { kind: FailureKind::Engine, rank, message }
            }
            None => Failure::engine(self.rank, message),
        })
    }

    /// The ranks that do not answer, where it is known that one is lost.
    fn call_the_roll(&self) -> Vec<u32> {
        let begin = Instant::now();
        self.behind(0);
        while begin.elapsed() < ROLL_CALL.min(self.limit / FIRST_QUESTION) && self.watched().is_none() {
            thread::sleep(LONGEST_PAUSE);
        }
        self.behind(0)
    }

    fn late(&self, doing: &str, behind: &[u32]) -> OpError {
        let limit = seconds(self.limit);
        self.give_up(match behind.first() {
            Some(&rank) => {
                let message = format!("{} did not come to {doing} within {limit}", named(behind));
                Failure { kind: FailureKind::Late, rank, message }
            }
            None => {
                let message = format!(
                    "NCCL is not done with {doing} after {limit}, and all ranks have come to it: rank {} waited",
                    self.rank
                );
                Failure::engine(self.rank, message)
            }
        })
    }

    fn came(&self, count: u64) {
        if let Some(watch) = &self.watch {
            watch.came(count);
        }
    }

    fn behind(&self, count: u64) -> Vec<u32> {
        self.watch.as_ref().map_or_else(Vec::new, |watch| watch.behind(count))
    }

    /// What the library says of the group.
    fn status(&self) -> Result<ncclResult_t, OpError> {
        match &*lock(&self.raw) {
            Raw::Failed(failure) => Err(failure.clone().into()),
            Raw::Open(raw) => {
                let mut status = ncclResult_t::ncclSuccess;
                // SAFETY: the handle is open.
                let asked = unsafe { sys::ncclCommGetAsyncError(*raw, &raw mut status) };
                Ok(if asked == ncclResult_t::ncclSuccess { status } else { asked })
            }
        }
    }

    fn watched(&self) -> Option<Failure> {
        self.watch.as_ref().and_then(|watch| watch.failure())
    }

    /// Ends all collectives that are on their way, and tells the other ranks. The first failure is the one
    /// to report.
    fn give_up(&self, failure: Failure) -> OpError {
        let failure = match &self.watch {
            Some(watch) => watch.fail(failure),
            None => failure,
        };
        self.close(failure)
    }

    /// Ends all collectives that are on their way.
    fn close(&self, failure: Failure) -> OpError {
        let mut raw = lock(&self.raw);
        if let Raw::Failed(first) = &*raw {
            return first.clone().into();
        }
        if let Raw::Open(open) = mem::replace(&mut *raw, Raw::Failed(failure.clone())) {
            let _ = self.context.enter();
            // SAFETY: the handle was open, and nobody uses it any more.
            let _ = unsafe { sys::ncclCommAbort(open) };
        }
        lock(&self.running).clear();
        failure.into()
    }

    /// Adds a collective, behind all that is in the stream `after` by now. `done` marks its end.
    pub fn enqueue(
        &self,
        collective: &Collective,
        after: CUstream,
        ready: &Arc<Event>,
        done: &Arc<Event>,
    ) -> Result<(), OpError> {
        self.forget_ended(&mut lock(&self.running));
        ready.mark(after)?;
        ready.hold(self.stream.raw())?;
        let status = self.call(collective)?;
        // No device needs to have come so far, but each rank is to answer.
        self.settle(status, &format!("starting {}", collective.what), 0)?;
        done.mark(self.stream.raw())?;
        let (ready, done) = (Arc::clone(ready), Arc::clone(done));
        let what = Arc::clone(&collective.what);
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.running).push_back(Running { number, ready, done, what, patience: None });
        Ok(())
    }

    fn call(&self, collective: &Collective) -> Result<ncclResult_t, OpError> {
        let Collective { kind, dtype, elements: (given, made), from, to, .. } = *collective;
        if given == 0 || made == 0 {
            return Ok(ncclResult_t::ncclSuccess);
        }
        let (input, output) = (from as usize as *const c_void, to as usize as *mut c_void);
        let ty = match dtype {
            DType::F32 => ncclDataType_t::ncclFloat32,
            DType::F64 => ncclDataType_t::ncclFloat64,
            DType::F16 => ncclDataType_t::ncclFloat16,
            DType::BF16 => ncclDataType_t::ncclBfloat16,
            DType::I32 => ncclDataType_t::ncclInt32,
            DType::I64 => ncclDataType_t::ncclInt64,
            DType::U8 | DType::Bool => ncclDataType_t::ncclUint8,
        };
        let sum = ncclRedOp_t::ncclSum;
        let stream = self.stream.raw();
        if kind == CollectiveKind::Reduce && self.rank > 0 {
            // The sum is on rank 0; the result of the others is zero.
            // SAFETY: the address is that of the result in the plan's memory.
            unsafe { result::memset_d8_async(to, 0, made * dtype.size(), stream) }
                .during("filling a result")?;
        }
        let raw = lock(&self.raw);
        let comm = match &*raw {
            Raw::Open(comm) => *comm,
            Raw::Failed(failure) => return Err(failure.clone().into()),
        };
        let stream = stream.cast();
        // SAFETY: the handle is open; the addresses are those of the operand and the result of the plan,
        // whose sizes the counts are, and both belong to the collective until `done`.
        Ok(unsafe {
            match kind {
                CollectiveKind::AllReduce => sys::ncclAllReduce(input, output, given, ty, sum, comm, stream),
                CollectiveKind::AllGather => sys::ncclAllGather(input, output, given, ty, comm, stream),
                CollectiveKind::ReduceScatter => {
                    sys::ncclReduceScatter(input, output, made, ty, sum, comm, stream)
                }
                CollectiveKind::Broadcast => sys::ncclBroadcast(input, output, given, ty, 0, comm, stream),
                CollectiveKind::Reduce => sys::ncclReduce(input, output, given, ty, sum, 0, comm, stream),
            }
        })
    }

    /// Waits until all work of a stream is done, or until a collective cannot end any more.
    pub fn wait(&self, stream: CUstream, doing: &str) -> Result<(), OpError> {
        let mut pause = FIRST_PAUSE;
        loop {
            // SAFETY: the stream is alive.
            match unsafe { driver::cuStreamQuery(stream) } {
                CUresult::CUDA_ERROR_NOT_READY => {}
                other => {
                    self.forget_ended(&mut lock(&self.running));
                    return other.result().during(doing);
                }
            }
            if let Err(error) = self.look() {
                // What was given up ends soon, and nothing uses the memory of the step then.
                // SAFETY: both streams are alive.
                let _ = unsafe { result::stream::synchronize(self.stream.raw()) };
                let _ = unsafe { result::stream::synchronize(stream) };
                return Err(error);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits for all collectives that were started.
    pub fn wait_for_all(&self) -> Result<(), OpError> {
        self.context.enter()?;
        self.wait(self.stream.raw(), "running a collective")
    }

    /// An error where a collective that is on its way cannot end any more.
    fn look(&self) -> Result<(), OpError> {
        let late = {
            let mut running = lock(&self.running);
            self.forget_ended(&mut running);
            let Some(first) = running.front_mut() else { return Ok(()) };
            // The time counts from when this rank has come: its own work may take as long as it likes.
            if first.patience.is_none() && first.ready.is_over() {
                first.patience = Some(Patience::new(self.limit));
                self.came(first.number);
            }
            let number = first.number;
            let behind = first.patience.as_mut().and_then(|patience| patience.over(self, number));
            behind.map(|behind| (Arc::clone(&first.what), behind))
        };
        let status = self.status()?;
        if let Some(failure) = self.watched() {
            return Err(self.close(failure));
        }
        if !matches!(status, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) {
            return Err(self.failed(status, ""));
        }
        match late {
            Some((what, behind)) => Err(self.late(&what, &behind)),
            None => Ok(()),
        }
    }

    /// Collectives end in their order.
    fn forget_ended(&self, running: &mut VecDeque<Running>) {
        while let Some(first) = running.front()
            && first.done.is_over()
        {
            self.came(first.number);
            running.pop_front();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let ended = || Failure::engine(self.rank, "the group of GPUs has ended".into());
        // The streams were waited for. Another rank may still read what this one has sent.
        let open = match &*lock(&self.raw) {
            Raw::Open(open) => *open,
            Raw::Failed(_) => return,
        };
        let begin = Instant::now();
        let _ = self.context.enter();
        // SAFETY: the handle is open.
        let mut status = unsafe { sys::ncclCommFinalize(open) };
        while status == ncclResult_t::ncclInProgress && begin.elapsed() < FAREWELL && self.watched().is_none()
        {
            thread::sleep(LONGEST_PAUSE);
            status = self.status().unwrap_or(ncclResult_t::ncclInternalError);
        }
        if status == ncclResult_t::ncclSuccess {
            *lock(&self.raw) = Raw::Failed(ended());
            // SAFETY: the handle was open, and nobody uses it any more.
            let _ = unsafe { sys::ncclCommDestroy(open) };
        } else {
            self.close(ended());
        }
    }
}

/// What the library calls a result.
fn text(status: ncclResult_t) -> String {
    // SAFETY: the library was found with this function; it gives a text that stays.
    let text = unsafe { sys::ncclGetErrorString(status) };
    if text.is_null() {
        return format!("{status:?}");
    }
    // SAFETY: a text of C.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
