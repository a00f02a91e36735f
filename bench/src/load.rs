//! The load generator: it sends requests to an NBD export for some time, and measures the replies.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::{Buf, Env, Error, ErrorKind, Mono, Result, TaskTracker};
use net::nbd::{Client, Target};
use wire::nbd::{ClientConfig, Command, CommandFlags};

use crate::histogram::Histogram;
use crate::pattern;

/// Length in bytes of a write that fills an export before a measurement.
const FILL_BYTES: u64 = 1 << 20;

/// Number of writes in flight that fill an export before a measurement.
const FILL_DEPTH: u64 = 8;

/// Type and order of the requests of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Reads at random addresses.
    RandomRead,
    /// Writes at random addresses.
    RandomWrite,
    /// Seven reads for three writes, both at random addresses.
    Mixed,
    /// Sequential reads. Each connection starts at its own address.
    SequentialRead,
    /// Sequential writes. Each connection starts at its own address.
    SequentialWrite,
}

impl Pattern {
    /// Every pattern, with its name on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("randread", Self::RandomRead),
        ("randwrite", Self::RandomWrite),
        ("randrw", Self::Mixed),
        ("read", Self::SequentialRead),
        ("write", Self::SequentialWrite),
    ];

    fn is_sequential(self) -> bool {
        matches!(self, Self::SequentialRead | Self::SequentialWrite)
    }
}

/// Which reads of a load the client compares with the bytes of [`pattern::fill`]. The export must have been filled with
/// these bytes before; the writes of the load write them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// The client compares no read.
    Nothing,
    /// The client compares only reads before the measured time, so that the comparison does not slow the client down.
    WarmUp,
    /// The client compares every read.
    Everything,
}

/// Parameters of a load on an NBD export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// Type and order of the requests.
    pub pattern: Pattern,
    /// Number of NBD connections.
    pub connections: u32,
    /// Number of requests in flight on each connection.
    pub depth: u32,
    /// Length of each request in bytes, a multiple of 512.
    pub block: u32,
    /// Distance in bytes from a multiple of `block` to the begin of each request, a multiple of 512.
    pub shift: u32,
    /// Time with requests before the client begins to count and measure them.
    pub warm_up: Duration,
    /// Time in which the client counts and measures requests.
    pub time: Duration,
    /// Limits the load to this number of bytes from the begin of the export; `None` for the whole export.
    pub span: Option<u64>,
    /// Which reads the client compares with the expected bytes.
    pub verify: Verify,
    /// Number of requests of a connection after which it sends a flush; `None` for no flushes.
    pub flush_every: Option<u32>,
    /// Whether the client negotiates structured replies with the server. Simple replies are the same for every server.
    pub structured: bool,
}

/// The results that the client has measured during a load.
#[derive(Clone, Default)]
pub struct Outcome {
    /// Length of the measured time in seconds.
    pub seconds: f64,
    /// Number of requests that the server answered in the measured time.
    pub ops: u64,
    /// Number of reads with wrong bytes.
    pub wrong: u64,
    /// Number of workers (each has one request in flight) that ended with an error.
    pub errors: u64,
    /// The error of the first worker that ended with one.
    pub first_error: Option<Error>,
    /// Latencies in the measured time, from the submission of a request to its reply.
    pub latency: Histogram,
    /// The longest latency of a request that was answered after the warm-up, even after the end of the measured time.
    pub longest: Duration,
}

impl Outcome {
    /// Returns the number of requests per second in the measured time.
    pub fn iops(&self) -> f64 {
        self.ops as f64 / self.seconds
    }
}

struct Run {
    env: Env,
    load: Load,
    /// Number of bytes of the export in which requests lie.
    size: u64,
    begin: Mono,
    end: Mono,
    outcome: RefCell<Outcome>,
}

/// The state that the workers of a connection share.
struct Stream {
    /// Address of the next request of a sequential stream.
    at: std::cell::Cell<u64>,
    /// Number of requests since the last flush.
    unflushed: std::cell::Cell<u32>,
}

impl Stream {
    /// Counts a request. Returns whether a flush is due.
    fn count(&self, flush_every: Option<u32>) -> bool {
        let Some(limit) = flush_every else { return false };
        let unflushed = self.unflushed.get() + 1;
        self.unflushed.set(unflushed % limit);
        unflushed >= limit
    }
}

/// Opens an NBD connection to the export at `uri`. `structured`: with structured replies.
///
/// # Errors
/// The errors of connecting.
pub async fn connect(env: &Env, uri: &str, structured: bool) -> Result<Client> {
    let target = Target::of(uri)?;
    let config = ClientConfig {
        structured,
        extended: false,
        contexts: Vec::new(),
        ..ClientConfig::connect(target.export.clone())
    };
    target.connect(env, config).await
}

/// Runs `load` on the export at `uri`, and returns what the client has measured.
///
/// # Errors
/// The errors of connecting; `Invalid` if the load does not fit the export.
pub async fn run(env: &Env, uri: &str, load: &Load) -> Result<Outcome> {
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        clients.push(connect(env, uri, load.structured).await?);
    }
    let facts = &clients.first().ok_or_else(|| too_few("connections"))?.session().facts;
    let size = facts.size_bytes.min(load.span.unwrap_or(u64::MAX));
    let min = facts.blocks.min();
    let size = size.saturating_sub(load.shift.into());
    if size < u64::from(load.block) || !load.block.is_multiple_of(min.max(512)) || load.depth == 0 {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "requests of {} bytes, {} in flight, on {size} bytes in blocks of {min}; at least \
                 one, of whole blocks, must fit",
                load.block, load.depth
            ),
        ));
    }
    let begin = env.now().after(load.warm_up);
    let end = begin.after(load.time);
    let (env, load) = (env.clone(), load.clone());
    let run = Rc::new(Run { env, load, size, begin, end, outcome: RefCell::default() });
    let mut workers = Vec::new();
    for (n, client) in clients.iter().enumerate() {
        // All workers of a connection share a position, so that a sequential stream is one stream.
        let at = std::cell::Cell::new(size / clients.len() as u64 * n as u64);
        let place = Rc::new(Stream { at, unflushed: std::cell::Cell::new(0) });
        for _ in 0..run.load.depth {
            workers.push(start(&run, client.clone(), place.clone()));
        }
    }
    for worker in workers {
        worker.await;
    }
    clients.iter().for_each(Client::close);
    let mut outcome = run.outcome.take();
    outcome.seconds = run.load.time.as_secs_f64();
    Ok(outcome)
}

fn too_few(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("0 {what}; at least 1 is needed"))
}

/// Starts a worker, which has one request of the load in flight. The returned future ends when the worker ends.
fn start(run: &Rc<Run>, client: Client, place: Rc<Stream>) -> impl Future<Output = ()> + use<> {
    let (tracker, run) = (TaskTracker::default(), run.clone());
    let worker = tracker.begin();
    let env = run.env.clone();
    env.spawn("a worker of the load", async move {
        if let Err(error) = work(&run, &client, &place).await {
            let mut outcome = run.outcome.borrow_mut();
            outcome.errors += 1;
            outcome.first_error.get_or_insert(error);
        }
        drop(worker);
    });
    async move { tracker.ended().await }
}

async fn work(run: &Run, client: &Client, place: &Stream) -> Result<()> {
    let load = &run.load;
    let block = u64::from(load.block);
    let blocks = run.size / block;
    let mut buf = run.env.buf(load.block as usize)?;
    pattern::fill(&mut buf.write(), 0);
    let mut state = run.env.random("load");
    loop {
        let began = run.env.now();
        if began >= run.end {
            return Ok(());
        }
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = state >> 16;
        let offset = if load.pattern.is_sequential() {
            let at = place.at.get();
            place.at.set(if at + 2 * block > run.size { 0 } else { at + block });
            at - at % block
        } else {
            draw % blocks * block
        };
        let offset = offset + u64::from(load.shift);
        let command = match load.pattern {
            Pattern::RandomRead | Pattern::SequentialRead => Command::Read,
            Pattern::RandomWrite | Pattern::SequentialWrite => Command::Write,
            Pattern::Mixed if (draw >> 40) % 10 < 7 => Command::Read,
            Pattern::Mixed => Command::Write,
        };
        // If no read is compared, any bytes will do, and the client has more time for its sockets.
        if command == Command::Write && load.verify != Verify::Nothing {
            pattern::fill(&mut buf.write(), offset);
        }
        let ticket = client.start(command, CommandFlags::NONE, offset, block, Some(buf));
        let outcome = ticket.await;
        buf = match outcome.buf {
            Some(buf) => buf,
            None => run.env.buf(load.block as usize)?,
        };
        count(run, command, offset, &buf, began, outcome.result)?;
        if place.count(load.flush_every) {
            client.start(Command::Flush, CommandFlags::NONE, 0, 0, None).await.result?;
        }
    }
}

fn count(
    run: &Run,
    command: Command,
    offset: u64,
    buf: &Buf,
    began: Mono,
    result: Result<usize>,
) -> Result<()> {
    result?;
    let mut outcome = run.outcome.borrow_mut();
    let compares = match run.load.verify {
        Verify::Nothing => false,
        Verify::WarmUp => began < run.begin,
        Verify::Everything => true,
    };
    if compares && command == Command::Read && !pattern::is_right(&buf.read(), offset) {
        outcome.wrong += 1;
    }
    let now = run.env.now();
    if now >= run.begin {
        outcome.longest = outcome.longest.max(now.since(began));
    }
    if now >= run.begin && now < run.end {
        outcome.ops += 1;
        outcome.latency.add(now.since(began));
    }
    Ok(())
}

/// Writes the pattern that [`Load::verify`] expects over the first `span` bytes of the export at `uri`, and flushes.
///
/// # Errors
/// The errors of connecting or of a write.
pub async fn fill(env: &Env, uri: &str, span: Option<u64>) -> Result<()> {
    let client = connect(env, uri, false).await?;
    let facts = &client.session().facts;
    let size = facts.size_bytes.min(span.unwrap_or(u64::MAX));
    let block = u64::from(facts.blocks.max_payload()).min(FILL_BYTES);
    let mut window = std::collections::VecDeque::new();
    let mut at = 0;
    while at < size || !window.is_empty() {
        if at < size && (window.len() as u64) < FILL_DEPTH {
            let len = block.min(size - at);
            let buf = env.pool().wait_for(len as usize).await?;
            pattern::fill(&mut buf.write(), at);
            let (command, flags) = (Command::Write, CommandFlags::NONE);
            window.push_back(client.start(command, flags, at, len, Some(buf)));
            at += len;
        } else if let Some(oldest) = window.pop_front() {
            oldest.await.result?;
        }
    }
    client.start(Command::Flush, CommandFlags::NONE, 0, 0, None).await.result?;
    client.close();
    Ok(())
}

/// Reads `len` bytes at the address `at` of an export.
///
/// # Errors
/// Those of the read.
pub async fn read(env: &Env, client: &Client, at: u64, len: u64) -> Result<Buf> {
    let buf = env.buf(len as usize)?;
    let outcome = client.start(Command::Read, CommandFlags::NONE, at, len, Some(buf)).await;
    outcome.result?;
    outcome.buf.ok_or_else(|| Error::new(ErrorKind::Invalid, "a read without its bytes"))
}
