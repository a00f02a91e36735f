//! Measures clients of a volume for some time, together with a job (resync, scrub, migration) that runs in the same
//! server.

use std::time::{Duration, Instant};

use api::Client;
use bench::ground::Ground;
use bench::load::{Load, Outcome, Pattern, Verify};
use bench::served::{Served, progress};

/// Number of requests in flight: enough to keep a disk busy, and so few that they wait for the disk and not for each
/// other.
const DEPTH: u32 = 8;

/// Length of a client's request in bytes.
const BLOCK: u32 = 4096;

/// Time from the start of the clients to the start of the job.
const BEGIN: Duration = Duration::from_millis(100);

/// Time before the end of the clients at which the benchmark last reads the job's progress, because the job is faster
/// without clients.
const MARGIN: Duration = Duration::from_millis(20);

/// Time without requests after which a job runs at full speed, and a little more.
const QUIET: Duration = Duration::from_millis(70);

/// Time for which a job is measured without clients; the measurement ends earlier when the job has done `ALONE_BYTES`
/// bytes.
const ALONE: Duration = Duration::from_millis(600);
const ALONE_BYTES: u64 = 192 << 20;

/// Longest time for that measurement if the job has not done a single byte, because other load keeps the disk busy.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// The measured figures of the clients, and of the job beside them.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Clients' requests per second.
    pub iops: f64,
    /// Latency of the clients' requests at the 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Longest latency of a client's request, in milliseconds.
    pub longest_ms: f64,
    /// Speed of the job while the clients were measured, in bytes per second; 0 without a job.
    pub job_bytes_per_s: f64,
}

/// A function that starts a job in the server, through the control socket.
pub type Begin<'a> = &'a (dyn Fn(&Client) -> Result<(), String> + Sync);

/// Parameters of a measurement of clients with or without a job.
#[derive(Clone, Copy)]
pub struct Visit<'a> {
    /// Number of bytes that the clients use, from the begin of the volume.
    pub span: u64,
    /// Time with requests before the clients begin to count them.
    pub warm_up: Duration,
    /// Time in which the clients count and measure requests.
    pub time: Duration,
    /// Starts the job, shortly after the clients; `None` for a measurement without a job.
    pub job: Option<Begin<'a>>,
    /// Whether the job may end before the clients.
    pub may_end: bool,
}

/// Runs clients on the volume, with or without a job, and returns the measured figures.
pub fn window(ground: &Ground, served: &Served<'_>, visit: &Visit<'_>) -> Result<Window, String> {
    let (uri, control) = (served.uri(), &served.control);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || watch(control, visit));
        let outcome = ground.load(&uri, &visit.load());
        let job_bytes_per_s = watcher.join().map_err(|_| "the watcher panicked")??;
        let outcome = outcome?;
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

impl Visit<'_> {
    /// Returns the load of the clients: seven reads for three writes at random addresses, with every read compared.
    fn load(&self) -> Load {
        Load {
            pattern: Pattern::Mixed,
            connections: 1,
            depth: DEPTH,
            block: BLOCK,
            shift: 0,
            warm_up: self.warm_up,
            time: self.time,
            span: Some(self.span),
            verify: Verify::Everything,
            flush_every: None,
            structured: false,
        }
    }
}

/// Returns the latency at the 99th percentile; the longest latency if no request was answered in the measured time.
fn p99(outcome: &Outcome) -> Duration {
    if outcome.ops == 0 { outcome.longest } else { outcome.latency.percentile(0.99) }
}

/// Starts the job, if `visit` has one. Returns the job's speed in bytes per second while the clients are measured.
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

/// Returns the speed of the running job without clients, in bytes per second.
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
