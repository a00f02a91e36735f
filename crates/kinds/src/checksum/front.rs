//! The device of the kind: its home, with the report and the commands.

use std::rc::Rc;

use block::control::copies::{Changed, Pending};
use block::control::job::{Steer, Wait};
use block::control::{Command, Nothing, Reply, Resolved, VerbInfo};
use block::env::LocalFuture;
use block::units::write_size;
use block::{ByteRange, Device, Health, Info, Report, Request, Result};
use kind::home::Home;

use super::device::{Core, Mode, Numbers, Redundancy};
use super::opening::{Front, Opened};

/// A checksum device.
pub struct Checksum {
    /// Name of the device in the spec.
    pub name: String,
    pub info: Info,
    pub home: Home<Rc<Opened>>,
}

impl Checksum {
    async fn front(&self) -> Result<&Front> {
        self.home.get().await?.front()
    }
}

impl Device for Checksum {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.front().await?.submit(&mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, "verified"))
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        super::VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        if command.is::<Steer>() || command.is::<Wait>() {
            return Box::pin(async move {
                let answer = self.front().await?.core().control_job(&command);
                answer.await
            });
        }
        if command.is::<Changed>() {
            return Box::pin(async move {
                self.front().await?.core().more_unverified().await;
                Ok(Reply::of::<Changed>(Nothing {}))
            });
        }
        let range = command.range.or(ByteRange::new(0, self.info.size));
        let Some(range) = range.filter(|_| command.is::<Pending>()) else {
            return command.done(Err(command.unknown_to(&self.name)));
        };
        Box::pin(async move {
            let pending = self.front().await?.core().unverified(range);
            Ok(Reply::of::<Pending>(pending))
        })
    }

    fn report(&self) -> Report {
        let Some(opened) = self.home.now() else { return Report::default() };
        let mut report = opened.front.as_ref().map_or_else(Report::default, |it| report(it.core()));
        report.counters.push(("replayed", opened.replayed));
        if let Some(words) = opened.loss_words() {
            report.health = report.health.max(Health::Degraded);
            report.summary = words;
        }
        report
    }
}

/// Returns the report of an open device.
fn report(core: &Core) -> Report {
    let numbers = core.numbers();
    let Numbers { accepted, damaged, repaired, .. } = numbers;
    let counters = vec![("accepted", accepted), ("damaged", damaged), ("repaired", repaired)];
    let (rows, jobs) = (rows(core, &numbers), core.job().into_iter().collect());
    let mut report = Report { counters, rows, jobs, ..Report::default() };
    if let Some(error) = core.scan_failure() {
        report.health = Health::Degraded;
        report.summary = format!("the scan has left a range: {error}");
        report.next = Some("stop and start the graph when its disks work again".to_owned());
    }
    if damaged > 0 {
        report.health = Health::Degraded;
        report.summary = format!("reads found {damaged} blocks without a copy that fits");
        report.next = Some("write them again, or restore them from a backup".to_owned());
    }
    if let Some(error) = core.failure() {
        report.health = Health::Failed;
        report.summary = error.to_string();
        report.next = Some("stop and start the graph when its disks work again".to_owned());
    }
    report
}

/// Returns the rows with the bytes that are not verified, or that a crash could leave so.
fn rows(core: &Core, numbers: &Numbers) -> Vec<(String, String)> {
    let crash = match core.mode() {
        Mode::Journal(_) => "journal",
        Mode::Regions(_) => "regions",
    };
    let mut rows = vec![("crash".to_owned(), crash.to_owned())];
    let mut bytes = |name: &str, bytes: u64| {
        if bytes > 0 {
            rows.push((name.to_owned(), write_size(bytes)));
        }
    };
    bytes("without checksums yet", numbers.unsummed_bytes);
    bytes("unverified since an unclean stop", numbers.unverified_bytes);
    if core.redundancy() == Redundancy::None {
        bytes("where a crash now would hide rot", numbers.marked_bytes);
    }
    rows
}
