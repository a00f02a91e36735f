//! Measures clients while a job (migration, resync, scrub) runs, and the job while clients send requests: neither may
//! slow the other down too much.

use std::time::Duration;

use api::{Client, DiskChange, DiskRequest, ScrubRequest, routes};
use bench::stats::{median, ratio};
use serde_json::json;

use crate::window::{Visit, Window, alone, window};
use bench::ground::{Ground, Medium};
use bench::rows::Row;
use bench::served::{Bed, said};

/// Time with requests before clients count them. The job has begun by the end of this time.
const WARM_UP: Duration = Duration::from_millis(600);

/// Time in which clients count requests, both with a job and without.
const TIME: Duration = Duration::from_millis(1500);

/// Promise: with a job, the clients' latency at the 99th percentile is at most this many times the latency without,
const TIMES: f64 = 1.5;

/// or at most this many microseconds, whichever is more.
const OR_US: f64 = 2000.0;

/// Promise: with clients, the job has at least this share of its speed without clients.
const SHARE: f64 = 0.1;

/// A job that is measured together with clients.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    /// Encrypt a volume in place by a migration.
    Encrypt,
    /// Move a volume to another disk by a migration.
    Move,
    /// Replace a member of a mirror, and resync the new member.
    Rebuild,
    /// Scrub a mirror: compare its members.
    Scrub,
}

impl Job {
    /// All jobs that are measured.
    pub const ALL: [Self; 4] = [Self::Encrypt, Self::Move, Self::Rebuild, Self::Scrub];

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Encrypt => ("encrypt", "encrypting in place"),
            Self::Move => ("move", "moving to another disk"),
            Self::Rebuild => ("rebuild", "copying to a new member of a mirror"),
            Self::Scrub => ("scrub", "scrubbing a mirror"),
        }
    }

    /// Returns the name of the job for the names of rows.
    pub fn word(self) -> &'static str {
        self.words().0
    }

    /// Returns the spec before the job and the spec to which a live change then starts the job; `None` instead of the
    /// second if a command starts the job. `size`: bytes of each disk.
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

    /// Returns the name of the new disk's file, to which the job copies; `None` without a new disk. The file is
    /// allocated before the measurement.
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
                let request = ScrubRequest {
                    of: "pair".to_owned(),
                    stop: false,
                    repair: false,
                    trust: None,
                    dry_run: false,
                };
                control.ask(&routes::SCRUB, &request).map(drop).map_err(said)
            }
        }
    }
}

/// Returns the line of a spec for a labelled disk of `size` bytes in the file `name.img`.
pub fn disk(name: &str, size: u64) -> String {
    format!(
        "{name} = {{ file = \"{name}.img\", size = \"{size}\", create = true, label = true }}\n"
    )
}

/// Returns the line of a spec for the `crypt` device `safe` on the disk `a`. `memory` and `passes` set the cost of
/// deriving its key.
pub fn crypt(memory: &str, passes: u32) -> String {
    format!(
        "safe = {{ kind = \"crypt\", on = \"a\", key = \"file:key\", kdf_memory = \"{memory}\", \
         kdf_passes = {passes} }}"
    )
}

/// Returns a spec with these disks and devices, and the export `vol` on the device `on`.
pub fn spec(disks: &str, devices: &str, on: &str) -> String {
    format!("[disk]\n{disks}[device]\n{devices}\n[export]\nvol = {{ on = \"{on}\" }}\n")
}

/// Returns the size of the disks in bytes: so large that the job does not end within a round.
fn size(medium: Medium) -> u64 {
    match medium {
        Medium::Memory => 2 << 30,
        Medium::Disk => 512 << 20,
    }
}

/// The figures of one round: clients without the job, clients with the job, and the job without clients.
struct Round {
    without: Window,
    with: Window,
    alone_bytes_per_s: f64,
}

/// Measures a job on a medium in all rounds. Returns one row for the clients and one row for the job.
pub fn measure(ground: &Ground, job: Job, medium: Medium) -> Result<Vec<Row>, String> {
    let rounds = (0..ground.rounds).map(|_| round(ground, job, medium));
    let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
    Ok(rows(job, medium, &rounds))
}

/// Runs one round with a new graph, so that the job begins while clients send requests.
fn round(ground: &Ground, job: Job, medium: Medium) -> Result<Round, String> {
    let size = size(medium);
    // Labels take a small part of the disk.
    let span = size - (4 << 20);
    let bed = Bed::new(&medium.place(ground), "beside")?;
    bed.write("key", "correct horse battery staple")?;
    let served = bed.serve(&job.specs(size).0)?;
    ground.fill(&served.uri(), span)?;
    if let Some(file) = job.new_disk() {
        ground.places.allocate(&bed.path(file).display().to_string(), size)?;
    }
    let visit = Visit { span, warm_up: WARM_UP, time: TIME, job: None, may_end: false };
    let without = window(ground, &served, &visit)?;
    let begin = |control: &Client| job.begin(control, &bed, size);
    let with = window(ground, &served, &Visit { job: Some(&begin), ..visit })?;
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
    let mib = |values: &[f64]| median(values).value / f64::from(1 << 20);
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
                "{:.0} of {:.0} MiB/s: {:.1} % ({:.1} to {:.1})",
                mib(&beside),
                mib(&alone),
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

/// Returns the figures of one measurement of clients as JSON.
pub fn window_json(window: &Window) -> serde_json::Value {
    json!({
        "iops": window.iops, "p99_us": window.p99_us, "longest_ms": window.longest_ms,
        "job_bytes_per_s": window.job_bytes_per_s,
    })
}
