//! Load on an NBD export, and its results.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::{Buf, Env, Error, ErrorKind, Mono, Result, TaskTracker};
use net::nbd::{Client, Target};
use wire::nbd::{ClientConfig, Command, CommandFlags};

use crate::histogram::Histogram;
use crate::pattern;

/// Bytes of a request while an export is filled.
const FILL_BYTES: u64 = 1 << 20;

/// Requests in flight while an export is filled.
const FILL_DEPTH: u64 = 8;

/// The kind and order of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Reads at random addresses.
    RandomRead,
    /// Writes at random addresses.
    RandomWrite,
    /// Seven reads for three writes, at random addresses.
    Mixed,
    /// Sequential reads. Each connection starts at an address of its own.
    SequentialRead,
    /// Sequential writes, likewise.
    SequentialWrite,
}

impl Pattern {
    /// Every pattern, with the word that the command line uses.
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

/// The reads that are compared with the pattern of [`pattern::fill`], which must have been written before. Writes of
/// the load write the same bytes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// No reads.
    Nothing,
    /// Reads of the warm-up, for a comparison with a client that does not look at the bytes either.
    WarmUp,
    /// All reads.
    Everything,
}

/// A load for an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// The kind and order of the requests.
    pub pattern: Pattern,
    /// Number of connections.
    pub connections: u32,
    /// Requests in flight on each connection.
    pub depth: u32,
    /// Bytes of each request, a multiple of 512.
    pub block: u32,
    /// Time before requests are counted.
    pub warm_up: Duration,
    /// Time while requests are counted.
    pub time: Duration,
    /// Limits the load to the first bytes of the export.
    pub span: Option<u64>,
    /// The reads that are compared.
    pub verify: Verify,
    /// Whether structured replies are requested. Simple ones are the same for every server.
    pub structured: bool,
}

/// The results of a load.
#[derive(Clone, Default)]
pub struct Outcome {
    /// Time while requests were counted.
    pub seconds: f64,
    /// Number of requests that were answered in that time.
    pub ops: u64,
    /// Number of reads with wrong bytes.
    pub wrong: u64,
    /// Number of failed requests.
    pub errors: u64,
    /// The first of these errors.
    pub first_error: Option<Error>,
    /// Latencies, from the call to the answer.
    pub latency: Histogram,
    /// The longest wait that ended after the warm-up. Requests that were answered after the end count too.
    pub longest: Duration,
}

impl Outcome {
    /// Returns the requests per second.
    pub fn iops(&self) -> f64 {
        self.ops as f64 / self.seconds
    }
}

struct Run {
    env: Env,
    load: Load,
    size: u64,
    begin: Mono,
    end: Mono,
    outcome: RefCell<Outcome>,
}

/// Connects to an export.
///
/// # Errors
/// Errors of connecting.
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

/// Puts `load` on the export of `uri`.
///
/// # Errors
/// Errors of connecting, or `Invalid` if the load does not fit the export.
pub async fn run(env: &Env, uri: &str, load: &Load) -> Result<Outcome> {
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        clients.push(connect(env, uri, load.structured).await?);
    }
    let facts = &clients.first().ok_or_else(|| too_few("connections"))?.session().facts;
    let size = facts.size_bytes.min(load.span.unwrap_or(u64::MAX));
    let min = facts.blocks.min();
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
        let place = Rc::new(std::cell::Cell::new(size / clients.len() as u64 * n as u64));
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

/// Starts a worker. The returned future is done when the worker is.
fn start(
    run: &Rc<Run>,
    client: Client,
    place: Rc<std::cell::Cell<u64>>,
) -> impl Future<Output = ()> + use<> {
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

async fn work(run: &Run, client: &Client, place: &std::cell::Cell<u64>) -> Result<()> {
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
            let at = place.get();
            place.set(if at + 2 * block > run.size { 0 } else { at + block });
            at - at % block
        } else {
            draw % blocks * block
        };
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

/// Writes the pattern that [`Load::verify`] expects over the first `span` bytes of the export, and flushes.
///
/// # Errors
/// Errors of connecting or of a write.
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
