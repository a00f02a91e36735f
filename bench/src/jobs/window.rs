//! A time window with clients: the clients' figures, and those of a job beside them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::Client;
use bench::load::{self, Load, Outcome, Pattern, Verify};
use bench::places::Places;

use crate::graph::{Served, progress};

/// Requests in flight: enough to keep a disk busy, and few enough to wait for the disk and not for each other.
const DEPTH: u32 = 8;

/// Bytes of a request.
const BLOCK: u32 = 4096;

/// Delay of a job after the start of the clients.
const BEGIN: Duration = Duration::from_millis(100);

/// Time between the last look at the job and the end of the clients. Without clients the job is faster.
const MARGIN: Duration = Duration::from_millis(20);

/// Time after the last request until a job counts the clients as gone, and a little more.
const QUIET: Duration = Duration::from_millis(70);

/// A job without clients is measured for this time, or for this number of bytes.
const ALONE: Duration = Duration::from_millis(600);
const ALONE_BYTES: u64 = 192 << 20;

/// Limit of that measurement on a disk that other load keeps busy.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// The client, the directories and the rounds of a measurement.
pub struct Ground {
    /// The core of the client.
    pub core: runtime::Core,
    /// The directories of the graphs.
    pub places: Places,
    /// Number of rounds of each measurement.
    pub rounds: usize,
}

/// The storage of the disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Files in memory.
    Memory,
    /// Files on this machine's disk.
    Disk,
}

impl Medium {
    /// Both media.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Disk];

    /// Returns a short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    /// Returns the name for titles.
    pub fn words(self) -> &'static str {
        match self {
            Self::Memory => "files in memory",
            Self::Disk => "files on this machine's disk",
        }
    }

    /// Returns the directory for disks.
    pub fn place(self, ground: &Ground) -> PathBuf {
        match self {
            Self::Memory => ground.places.shm.clone(),
            Self::Disk => ground.places.dir.clone(),
        }
    }
}

/// The clients' figures for one window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Requests per second.
    pub iops: f64,
    /// Latency at the 99th percentile, in microseconds.
    pub p99_us: f64,
    /// The longest wait, in milliseconds.
    pub longest_ms: f64,
    /// Speed of the job beside the clients, in bytes per second; 0 without a job.
    pub job_bytes_per_s: f64,
}

/// Starts a job.
pub type Begin<'a> = &'a (dyn Fn(&Client) -> Result<(), String> + Sync);

/// The parameters of a window.
#[derive(Clone, Copy)]
pub struct Visit<'a> {
    /// The clients use this number of bytes, from the first on.
    pub span: u64,
    /// Time before requests are counted.
    pub warm_up: Duration,
    /// Time while requests are counted.
    pub time: Duration,
    /// The job beside the clients. It starts soon after them.
    pub job: Option<Begin<'a>>,
    /// Whether the job may end before the clients.
    pub may_end: bool,
}

impl Ground {
    /// Writes the pattern that clients expect.
    pub fn fill(&self, served: &Served<'_>, span: u64) -> Result<(), String> {
        let filled = self.core.block_on(load::fill(&self.core.env(), &served.uri(), Some(span)));
        filled.map_err(|error| error.to_string())
    }

    /// Runs clients for one window, and returns their figures.
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
    /// Returns the load: seven reads for three writes at random addresses, with every read compared.
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

/// Returns the 99th percentile. Without any answer in time, this is the longest wait.
fn p99(outcome: &Outcome) -> Duration {
    if outcome.ops == 0 { outcome.longest } else { outcome.latency.percentile(0.99) }
}

/// Starts a job if there is one, and returns its speed while clients are counted.
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

/// Returns the speed of a job without clients, in bytes per second.
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
