//! What each collective sends to whom: the same for every engine.
//!
//! A collective begins with a round of headers. Then data goes in rounds of chunks, so that what is
//! on its way is at most two chunks for each pair of ranks, whatever the size of the tensors. In a
//! sum, each rank adds up one part, in rank order; an all-reduce hands the sums round afterwards.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use super::{
    Comm, Failure, FailureKind, Request, Ticket, Watch, sum,
    transport::{Lost, Transport},
};
use crate::ops::CollectiveKind;

/// Bytes of one message: a multiple of every element size, small enough for a cache.
const CHUNK: usize = 256 << 10;

/// A rank's end of a group, over any engine.
pub(super) struct Exchange<T: Transport> {
    transport: T,
    limit: Duration,
    sequence: u64,
    started: VecDeque<(u64, Request)>,
}

impl<T: Transport> Exchange<T> {
    pub fn new(transport: T, limit: Duration) -> Exchange<T> {
        Exchange { transport, limit, sequence: 0, started: VecDeque::new() }
    }

    fn me(&self) -> u32 {
        self.transport.rank()
    }

    /// The other ranks, the next one first, so that not all send to rank 0 at once.
    fn others(&self) -> impl Iterator<Item = u32> + use<T> {
        let (me, world) = (self.transport.rank(), self.transport.world());
        (1..world).map(move |k| (me + k) % world)
    }

    fn fault(&mut self, message: impl Into<String>) -> Failure {
        let failure = Failure::engine(self.me(), message.into());
        self.transport.fail(failure)
    }

    /// The failure of a group in which no message came from `from`.
    fn lost(&mut self, from: u32, lost: Lost, header: &Header) -> Failure {
        let what = header.describe();
        let (kind, rank, message) = match lost {
            Lost::Failed(failure) => return failure,
            Lost::Late => (
                FailureKind::Late,
                from,
                format!("rank {from} did not come to {what} within {}", seconds(self.limit)),
            ),
            Lost::Ended => {
                let me = self.me();
                (
                    FailureKind::Ended,
                    from,
                    format!("rank {from} has ended, and rank {me} waits for it in {what}"),
                )
            }
            Lost::Stopped => return self.transport.fail(Failure::stopped(self.me())),
            Lost::Engine(text) => {
                (FailureKind::Engine, from, format!("{what} lost the connection to rank {from}: {text}"))
            }
        };
        self.transport.fail(Failure { kind, rank, message })
    }

    fn send(&mut self, to: u32, message: Vec<u8>, header: &Header) -> Result<(), Failure> {
        self.transport.send(to, message).map_err(|lost| self.lost(to, lost, header))
    }

    fn receive(&mut self, from: u32, header: &Header) -> Result<Vec<u8>, Failure> {
        self.transport.receive(from, self.limit).map_err(|lost| self.lost(from, lost, header))
    }

    /// A chunk of data, of a length that is known.
    fn receive_data(&mut self, from: u32, len: usize, header: &Header) -> Result<Vec<u8>, Failure> {
        let data = self.receive(from, header)?;
        if data.len() == len {
            return Ok(data);
        }
        let message = format!("rank {from} sent {} bytes where {len} were expected", data.len());
        Err(self.fault(message))
    }

    /// Compares what all ranks are about to do. Every rank compares the same, so all say the same.
    fn compare(&mut self, list: &[Header]) -> Result<(), Failure> {
        let Some(header) = list.first() else { return Ok(()) };
        let mine = list.iter().map(Header::encode).collect::<Vec<_>>().join("\n").into_bytes();
        for to in self.others() {
            self.send(to, mine.clone(), header)?;
        }
        let mut headers = vec![Vec::new(); self.transport.world() as usize];
        for from in self.others() {
            let theirs = self.receive(from, header)?;
            if let Some(place) = headers.get_mut(from as usize) {
                *place = theirs;
            }
        }
        if let Some(place) = headers.get_mut(self.me() as usize) {
            *place = mine;
        }
        let Some((first, rest)) = headers.split_first() else { return Ok(()) };
        let Some(other) = rest.iter().position(|h| h != first) else { return Ok(()) };
        let rank = other as u32 + 1;
        let what = match disagreement(first, rest.get(other).map_or(&[], Vec::as_slice)) {
            Some((Some(a), Some(b))) if a.describe() == b.describe() => format!(
                "rank 0 calls {} as op {} of its graph, rank {rank} as op {}",
                a.describe(),
                a.node,
                b.node
            ),
            Some((a, b)) => {
                let calls = |one: Option<Decoded>| {
                    one.map_or("no further collective in its step".to_owned(), |one| one.describe())
                };
                format!("rank 0 calls {}, rank {rank} calls {}", calls(a), calls(b))
            }
            None => return Err(self.fault("a message that is no header")),
        };
        let message = format!("ranks 0 and {rank} disagree: {what}");
        Err(self.transport.fail(Failure { kind: FailureKind::Disagrees, rank, message }))
    }

    /// This rank's `mine` goes to all others, and theirs come to `places` of `output`.
    fn gather(
        &mut self,
        output: &mut [u8],
        places: &dyn Fn(u32) -> Range<usize>,
        header: &Header,
    ) -> Result<(), Failure> {
        let world = self.transport.world();
        let longest = (0..world).map(|r| places(r).len()).max().unwrap_or(0);
        for start in (0..longest).step_by(CHUNK) {
            let chunk = |rank: u32| chunk_of(places(rank), start);
            let mine = chunk(self.me());
            if !mine.is_empty() {
                let message = self.bytes(output, mine)?.to_vec();
                for to in self.others() {
                    self.send(to, message.clone(), header)?;
                }
            }
            for from in self.others() {
                let theirs = chunk(from);
                if theirs.is_empty() {
                    continue;
                }
                let data = self.receive_data(from, theirs.len(), header)?;
                match output.get_mut(theirs) {
                    Some(place) => place.copy_from_slice(&data),
                    None => return Err(self.fault("a part beyond the result")),
                }
            }
        }
        Ok(())
    }

    /// The sum over ranks of `places(rank)` of `input`, on each rank its own part, into `target`.
    fn scatter_sums(
        &mut self,
        input: &[u8],
        places: &dyn Fn(u32) -> Range<usize>,
        target: &mut [u8],
        header: &Header,
    ) -> Result<(), Failure> {
        let world = self.transport.world();
        let longest = (0..world).map(|r| places(r).len()).max().unwrap_or(0);
        for start in (0..longest).step_by(CHUNK) {
            let chunk = |rank: u32| chunk_of(places(rank), start);
            for to in self.others() {
                let theirs = chunk(to);
                if !theirs.is_empty() {
                    let message = self.bytes(input, theirs)?.to_vec();
                    self.send(to, message, header)?;
                }
            }
            let mine = chunk(self.me());
            if mine.is_empty() {
                continue;
            }
            let mut received: Vec<Vec<u8>> = vec![Vec::new(); world as usize];
            for from in self.others() {
                let data = self.receive_data(from, mine.len(), header)?;
                if let Some(place) = received.get_mut(from as usize) {
                    *place = data;
                }
            }
            let own = self.bytes(input, mine.clone())?;
            let me = self.me() as usize;
            let parts: Vec<&[u8]> = received
                .iter()
                .enumerate()
                .map(|(r, part)| if r == me { own } else { part.as_slice() })
                .collect();
            match target.get_mut(start..start + mine.len()) {
                Some(place) => sum::in_rank_order(header.request.ty.dtype(), &parts, place),
                None => return Err(self.fault("a part beyond the result")),
            }
        }
        Ok(())
    }

    fn bytes<'b>(&mut self, from: &'b [u8], range: Range<usize>) -> Result<&'b [u8], Failure> {
        from.get(range).ok_or_else(|| self.fault("a part beyond the operand"))
    }

    fn run(&mut self, header: &Header, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
        let world = self.transport.world() as usize;
        let me = self.me();
        let wrong = |this: &mut Self| this.fault("a collective whose buffers have other sizes");
        match header.request.kind {
            CollectiveKind::AllGather => {
                let part = input.len();
                if part.checked_mul(world) != Some(output.len()) {
                    return Err(wrong(self));
                }
                let places = |rank: u32| rank as usize * part..(rank as usize + 1) * part;
                if let Some(own) = output.get_mut(places(me)) {
                    own.copy_from_slice(input);
                }
                self.gather(output, &places, header)
            }
            CollectiveKind::ReduceScatter => {
                let part = output.len();
                if part.checked_mul(world) != Some(input.len()) {
                    return Err(wrong(self));
                }
                let places = |rank: u32| rank as usize * part..(rank as usize + 1) * part;
                self.scatter_sums(input, &places, output, header)
            }
            _ if input.len() != output.len() => Err(wrong(self)),
            CollectiveKind::AllReduce => {
                let size = header.request.ty.dtype().size();
                let part = (input.len() / size).div_ceil(world) * size;
                let len = input.len();
                let places = |rank: u32| {
                    let start = (rank as usize * part).min(len);
                    start..(start + part).min(len)
                };
                match output.get_mut(places(me)) {
                    Some(own) => self.scatter_sums(input, &places, own, header)?,
                    None => return Err(wrong(self)),
                }
                self.gather(output, &places, header)
            }
            CollectiveKind::Broadcast => {
                let len = input.len();
                if me == 0 {
                    output.copy_from_slice(input);
                }
                self.gather(output, &|rank| if rank == 0 { 0..len } else { 0..0 }, header)
            }
            CollectiveKind::Reduce => {
                let len = input.len();
                let places = |rank: u32| if rank == 0 { 0..len } else { 0..0 };
                if me == 0 {
                    return self.scatter_sums(input, &places, output, header);
                }
                // All bits zero is the number 0 in every dtype.
                output.fill(0);
                self.scatter_sums(input, &places, &mut [], header)
            }
        }
    }
}

impl<T: Transport> Comm for Exchange<T> {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn world(&self) -> u32 {
        self.transport.world()
    }

    fn start(&mut self, request: Request) -> Result<Ticket, Failure> {
        if let Some(failure) = self.transport.failure() {
            return Err(failure);
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.started.push_back((sequence, request));
        Ok(Ticket(sequence))
    }

    fn wait(&mut self, ticket: Ticket, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
        if let Some(failure) = self.transport.failure() {
            return Err(failure);
        }
        let place = self.started.iter().position(|(sequence, _)| *sequence == ticket.0);
        let Some((sequence, request)) = place.and_then(|k| self.started.remove(k)) else {
            return Err(self.fault("a wait for a collective that has not started"));
        };
        let header = Header { sequence, request };
        self.compare(std::slice::from_ref(&header))?;
        self.run(&header, input, output)
    }

    fn agree(&mut self, requests: &[Request]) -> Result<(), Failure> {
        if let Some(failure) = self.transport.failure() {
            return Err(failure);
        }
        let first = self.sequence;
        self.sequence += requests.len() as u64;
        let headers =
            (first..).zip(requests).map(|(sequence, request)| Header { sequence, request: request.clone() });
        self.compare(&headers.collect::<Vec<_>>())
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    fn watch(&self) -> Option<Arc<dyn Watch>> {
        Some(self.transport.watch())
    }

    fn failure(&self) -> Option<Failure> {
        self.transport.failure()
    }

    fn fail(&mut self, failure: Failure) {
        self.transport.fail(failure);
    }

    fn end(&mut self) {
        self.transport.end();
    }
}

/// What is compared. Its text form is what travels, and equal texts are equal headers.
struct Header {
    sequence: u64,
    request: Request,
}

/// A header as it came.
struct Decoded {
    name: String,
    ty: String,
    node: String,
    place: String,
}

impl Header {
    fn encode(&self) -> String {
        let Request { name, ty, node, place, .. } = &self.request;
        let sequence = self.sequence;
        format!("{sequence}\t{name}\t{ty}\t{node}\t{place}")
    }

    fn decode(text: &str) -> Option<Decoded> {
        let mut fields = text.splitn(5, '\t').skip(1).map(String::from);
        let (name, ty, node, place) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(Decoded { name, ty, node, place })
    }

    fn describe(&self) -> String {
        let Request { name, ty, place, .. } = &self.request;
        describe(name, &ty.to_string(), place)
    }
}

/// The first headers in which two messages differ; of a message that has ended, none.
fn disagreement(a: &[u8], b: &[u8]) -> Option<(Option<Decoded>, Option<Decoded>)> {
    let (a, b) = (std::str::from_utf8(a).ok()?, std::str::from_utf8(b).ok()?);
    let (mut a, mut b) = (a.split('\n'), b.split('\n'));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            // What is no header is no agreement either.
            (a, b) => {
                let decode = |text: Option<&str>| match text {
                    Some(text) => Header::decode(text).map(Some),
                    None => Some(None),
                };
                return Some((decode(a)?, decode(b)?));
            }
        }
    }
}

impl Decoded {
    fn describe(&self) -> String {
        describe(&self.name, &self.ty, &self.place)
    }
}

fn describe(name: &str, ty: &str, place: &str) -> String {
    // Synchronising without data, as `load` does.
    let operand = if name == "load" { String::new() } else { format!(" of {ty}") };
    if place.is_empty() { format!("`{name}`{operand}") } else { format!("`{name}`{operand} ({place})") }
}

/// The part of `range` from `start` on that fits in one message.
fn chunk_of(range: Range<usize>, start: usize) -> Range<usize> {
    let from = range.start.saturating_add(start).min(range.end);
    from..from.saturating_add(CHUNK).min(range.end)
}

pub(in crate::exec) fn seconds(limit: Duration) -> String {
    let seconds = limit.as_secs_f64();
    if seconds.fract() == 0.0 { format!("{seconds:.0} s") } else { format!("{seconds} s") }
}
