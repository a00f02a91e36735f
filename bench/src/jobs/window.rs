//! Clients for a while: what they see, and what a job gets beside them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::Client;
use bench::load::{self, Load, Outcome, Pattern, Verify};
use bench::places::Places;

use crate::graph::{Served, progress};

/// Clients' requests on their way. Enough to keep a disk busy, and few enough to wait for it and not for each
/// other.
const DEPTH: u32 = 8;

/// Bytes of each.
const BLOCK: u32 = 4096;

/// A job begins so long after the clients.
const BEGIN: Duration = Duration::from_millis(100);

/// How far a job is, is looked at so long before the clients go: without them it is faster.
const MARGIN: Duration = Duration::from_millis(20);

/// Clients count as gone after so long, and a little more.
const QUIET: Duration = Duration::from_millis(70);

/// A job without clients is looked at for so long, or so many bytes.
const ALONE: Duration = Duration::from_millis(600);
const ALONE_BYTES: u64 = 192 << 20;

/// A disk that others keep busy may show nothing for long.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// What measures, and where.
pub struct Ground {
    /// Our own client's.
    pub core: runtime::Core,
    /// Where graphs are.
    pub places: Places,
    /// How often everything is measured.
    pub rounds: usize,
}

/// Where disks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Files in memory.
    Memory,
    /// Files on this machine's disk.
    Disk,
}

impl Medium {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Disk];

    /// A word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Memory => "files in memory",
            Self::Disk => "files on this machine's disk",
        }
    }

    /// The directory.
    pub fn place(self, ground: &Ground) -> PathBuf {
        match self {
            Self::Memory => ground.places.shm.clone(),
            Self::Disk => ground.places.dir.clone(),
        }
    }
}

/// What clients saw.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Their requests per second.
    pub iops: f64,
    /// Their latency at the 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Their longest wait, in milliseconds.
    pub longest_ms: f64,
    /// What a job got beside them, in bytes a second; 0 without one.
    pub job_bytes_per_s: f64,
}

/// What begins a job.
pub type Begin<'a> = &'a (dyn Fn(&Client) -> Result<(), String> + Sync);

/// Clients for a while.
#[derive(Clone, Copy)]
pub struct Visit<'a> {
    /// They use so many bytes, from the first on.
    pub span: u64,
    /// They are there for so long before anything is counted.
    pub warm_up: Duration,
    /// They are counted for so long.
    pub time: Duration,
    /// The job beside them. It begins soon after they have come.
    pub job: Option<Begin<'a>>,
    /// Whether it may be over before they go.
    pub may_end: bool,
}

impl Ground {
    /// Writes what clients expect.
    pub fn fill(&self, served: &Served<'_>, span: u64) -> Result<(), String> {
        let filled = self.core.block_on(load::fill(&self.core.env(), &served.uri(), Some(span)));
        filled.map_err(|error| error.to_string())
    }

    /// What clients see for a while.
    pub fn window(&self, served: &Served<'_>, visit: &Visit<'_>) -> Result<Window, String> {
        let (uri, control) = (served.uri(), &served.control);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(move || watch(control, visit));
            let outcome = self.core.block_on(load::run(&self.core.env(), &uri, &visit.load()));
            let job_bytes_per_s = watcher.join().map_err(|_| "the watcher panicked")??;
            let outcome = outcome.map_err(|error| error.to_string())?;
            if let Some(error) = outcome.first_error {
                return Err(format!("{} errors; the first: {error}", outcome.errors));
            }
            if outcome.wrong > 0 {
                return Err(format!("{} reads had wrong bytes", outcome.wrong));
            }
            Ok(Window {
                iops: outcome.iops(),
                p99_us: p99(&outcome).as_secs_f64() * 1e6,
                longest_ms: outcome.longest.as_secs_f64() * 1e3,
                job_bytes_per_s,
            })
        })
    }
}

impl Visit<'_> {
    /// Seven reads for three writes, anywhere, and every read compared.
    fn load(&self) -> Load {
        Load {
            pattern: Pattern::Mixed,
            connections: 1,
            depth: DEPTH,
            block: BLOCK,
            warm_up: self.warm_up,
            time: self.time,
            span: Some(self.span),
            verify: Verify::Everything,
            structured: false,
        }
    }
}

/// If nobody was answered in time, all have waited for the longest.
fn p99(outcome: &Outcome) -> Duration {
    if outcome.ops == 0 { outcome.longest } else { outcome.latency.percentile(0.99) }
}

/// Begins a job if that is wanted, and answers what it gets while clients are counted.
fn watch(control: &Client, visit: &Visit<'_>) -> Result<f64, String> {
    let Some(begin) = visit.job else { return Ok(0.0) };
    let begun = Instant::now();
    let wait_until = |at: Duration| std::thread::sleep(at.saturating_sub(begun.elapsed()));
    wait_until(BEGIN);
    begin(control)?;
    wait_until(visit.warm_up);
    let first = progress(control)?;
    wait_until(visit.warm_up + visit.time - MARGIN);
    let last = progress(control)?;
    match (first, last) {
        ((from, Some(first)), (until, Some(last))) => {
            Ok((last.done_bytes - first.done_bytes) as f64 / (until - from).as_secs_f64())
        }
        _ if visit.may_end => Ok(0.0),
        _ => Err("the job was over before it was measured; its disks are too small".to_owned()),
    }
}

/// What a job gets when nobody else wants anything, in bytes a second.
pub fn alone(control: &Client) -> Result<f64, String> {
    std::thread::sleep(QUIET);
    let over =
        || "the job was over before it was measured alone; its disks are too small".to_owned();
    let (from, first) = progress(control)?;
    let first = first.ok_or_else(over)?;
    let (mut until, mut last) = (from, first);
    let enough = |moved: u64| match moved {
        0 => from.elapsed() >= ALONE_MAX,
        moved => from.elapsed() >= ALONE || moved >= ALONE_BYTES,
    };
    while !enough(last.done_bytes - first.done_bytes) {
        std::thread::sleep(Duration::from_millis(2));
        match progress(control)? {
            (at, Some(now)) if now.done_bytes > last.done_bytes => (until, last) = (at, now),
            (_, Some(_)) => {}
            (_, None) => break,
        }
    }
    match last.done_bytes - first.done_bytes {
        0 => Err(format!("the job alone did nothing within {ALONE_MAX:?}")),
        moved => Ok(moved as f64 / (until - from).as_secs_f64()),
    }
}
