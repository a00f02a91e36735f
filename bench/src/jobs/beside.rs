//! Clients beside a job, and the job beside clients: neither may starve the other.

use std::time::Duration;

use api::{Client, DiskChange, DiskRequest, ScrubRequest, routes};
use bench::stats::{median, ratio};
use serde_json::json;

use crate::graph::{Bed, said};
use crate::report::Row;
use crate::window::{Ground, Medium, Visit, Window, alone};

/// Time of the clients before requests are counted. The job has begun by then.
const WARM_UP: Duration = Duration::from_millis(600);

/// Time while requests are counted, with a job and without.
const TIME: Duration = Duration::from_millis(1500);

/// With a job, the clients' 99th percentile may be this many times as long as without,
const TIMES: f64 = 1.5;

/// or this many microseconds, whichever is more.
const OR_US: f64 = 2000.0;

/// Share of its speed without clients that the job must reach.
const SHARE: f64 = 0.1;

/// A job beside clients.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    /// Encrypt a volume in place.
    Encrypt,
    /// Move it to another disk.
    Move,
    /// Replace a member of a mirror, and copy to the new one.
    Rebuild,
    /// Compare the copies of a mirror.
    Scrub,
}

impl Job {
    /// All jobs.
    pub const ALL: [Self; 4] = [Self::Encrypt, Self::Move, Self::Rebuild, Self::Scrub];

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Encrypt => ("encrypt", "encrypting in place"),
            Self::Move => ("move", "moving to another disk"),
            Self::Rebuild => ("rebuild", "copying to a new member of a mirror"),
            Self::Scrub => ("scrub", "scrubbing a mirror"),
        }
    }

    /// Returns a short name.
    pub fn word(self) -> &'static str {
        self.words().0
    }

    /// Returns the spec before the job and, for a job that changes the graph by a spec, the spec after it.
    fn specs(self, size: u64) -> (String, Option<String>) {
        let plain = spec(&disk("a", size), "", "a");
        let pair = "pair = { kind = \"mirror\", on = [\"a\", \"b\"] }";
        match self {
            Self::Encrypt => (plain, Some(spec(&disk("a", size), &crypt("1MiB", 1), "safe"))),
            Self::Move => (plain, Some(spec(&disk("b", size), "", "b"))),
            Self::Rebuild | Self::Scrub => {
                (spec(&(disk("a", size) + &disk("b", size)), pair, "pair"), None)
            }
        }
    }

    /// Returns the file to which the job writes, if any. It is allocated before, because the time for allocation is not
    /// measured.
    fn new_disk(self) -> Option<&'static str> {
        match self {
            Self::Move => Some("b.img"),
            Self::Rebuild => Some("c.img"),
            Self::Encrypt | Self::Scrub => None,
        }
    }

    fn begin(self, control: &Client, bed: &Bed, size: u64) -> Result<(), String> {
        match self {
            Self::Encrypt | Self::Move => {
                let after = self.specs(size).1.unwrap_or_default();
                let wipe = self.new_disk().map(|_| "b".to_owned()).into_iter().collect();
                let mut request = bed.change_to(&after);
                request.way.wipe = wipe;
                control.ask(&routes::APPLY, &request).map(drop).map_err(said)
            }
            Self::Rebuild => {
                let request = DiskRequest {
                    of: "pair".to_owned(),
                    member: "b".to_owned(),
                    change: DiskChange::Replace(bed.path("c.img")),
                    directory: bed.path(""),
                    wipe: true,
                    dry_run: false,
                };
                control.ask(&routes::DISK, &request).map(drop).map_err(said)
            }
            Self::Scrub => {
                let request = ScrubRequest { of: "pair".to_owned(), stop: false, dry_run: false };
                control.ask(&routes::SCRUB, &request).map(drop).map_err(said)
            }
        }
    }
}

/// Returns the spec of a labelled disk.
pub fn disk(name: &str, size: u64) -> String {
    format!(
        "{name} = {{ file = \"{name}.img\", size = \"{size}\", create = true, label = true }}\n"
    )
}

/// Returns the spec of `safe` on `a`, with the cost of deriving its key.
pub fn crypt(memory: &str, passes: u32) -> String {
    format!(
        "safe = {{ kind = \"crypt\", on = \"a\", key = \"file:key\", kdf_memory = \"{memory}\", \
         kdf_passes = {passes} }}"
    )
}

/// Returns a spec with one export.
pub fn spec(disks: &str, devices: &str, on: &str) -> String {
    format!("[disk]\n{disks}[device]\n{devices}\n[export]\nvol = {{ on = \"{on}\" }}\n")
}

/// Returns the size of the disks: so large that a round does not reach their end.
fn size(medium: Medium) -> u64 {
    match medium {
        Medium::Memory => 2 << 30,
        Medium::Disk => 512 << 20,
    }
}

/// One round: clients alone, both, the job alone.
struct Round {
    without: Window,
    with: Window,
    alone_bytes_per_s: f64,
}

/// Measures both promises for a job on a medium.
pub fn measure(ground: &Ground, job: Job, medium: Medium) -> Result<Vec<Row>, String> {
    let rounds = (0..ground.rounds).map(|_| round(ground, job, medium));
    let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
    Ok(rows(job, medium, &rounds))
}

/// Runs one round. Everything is new in each, so that each job begins while clients are busy.
fn round(ground: &Ground, job: Job, medium: Medium) -> Result<Round, String> {
    let size = size(medium);
    // Labels take a small part of the disk.
    let span = size - (4 << 20);
    let bed = Bed::new(&medium.place(ground), "beside")?;
    bed.write("key", "correct horse battery staple")?;
    let served = bed.serve(&job.specs(size).0)?;
    ground.fill(&served, span)?;
    if let Some(file) = job.new_disk() {
        ground.places.allocate(&bed.path(file).display().to_string(), size)?;
    }
    let visit = Visit { span, warm_up: WARM_UP, time: TIME, job: None, may_end: false };
    let without = ground.window(&served, &visit)?;
    let begin = |control: &Client| job.begin(control, &bed, size);
    let with = ground.window(&served, &Visit { job: Some(&begin), ..visit })?;
    let alone_bytes_per_s = alone(&served.control)?;
    Ok(Round { without, with, alone_bytes_per_s })
}

fn rows(job: Job, medium: Medium, rounds: &[Round]) -> Vec<Row> {
    let each = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
    let (without, with) = (each(&|r| r.without.p99_us), each(&|r| r.with.p99_us));
    let (beside, alone) = (each(&|r| r.with.job_bytes_per_s), each(&|r| r.alone_bytes_per_s));
    let (times, with_us) = (ratio(&with, &without), median(&with).value);
    let share = ratio(&beside, &alone);
    let all: Vec<_> = rounds.iter().map(round_json).collect();
    let (word, words) = job.words();
    let mb = |values: &[f64]| median(values).value / 1e6;
    let slower = ratio(&each(&|r| r.with.iops), &each(&|r| r.without.iops)).value;
    vec![
        Row {
            id: format!("{word}-{}-p99", medium.name()),
            title: format!("{words}, {}: clients", medium.words()),
            aim: format!("p99 at most {TIMES} times that without it, or 2 ms"),
            figure: format!(
                "{:.2} ms, without it {:.2} ms: {:.2} times ({:.2} to {:.2}); {:.2} of the requests",
                with_us / 1e3,
                median(&without).value / 1e3,
                times.value,
                times.low,
                times.high,
                slower
            ),
            holds: Some(times.value <= TIMES || with_us <= OR_US),
            rounds: json!(all),
        },
        Row {
            id: format!("{word}-{}-share", medium.name()),
            title: format!("{words}, {}: the job", medium.words()),
            aim: "at least 10 % of what it gets alone".to_owned(),
            figure: format!(
                "{:.0} of {:.0} MB/s: {:.1} % ({:.1} to {:.1})",
                mb(&beside),
                mb(&alone),
                share.value * 1e2,
                share.low * 1e2,
                share.high * 1e2
            ),
            holds: Some(share.value >= SHARE),
            rounds: json!([]),
        },
    ]
}

fn round_json(round: &Round) -> serde_json::Value {
    let Round { without, with, alone_bytes_per_s } = round;
    json!({
        "without": window_json(without), "with": window_json(with),
        "alone_bytes_per_s": alone_bytes_per_s,
    })
}

/// Returns the figures of a window as JSON.
pub fn window_json(window: &Window) -> serde_json::Value {
    json!({
        "iops": window.iops, "p99_us": window.p99_us, "longest_ms": window.longest_ms,
        "job_bytes_per_s": window.job_bytes_per_s,
    })
}
