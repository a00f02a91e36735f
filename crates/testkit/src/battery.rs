//! The battery: the conformance tests that every kind of device must pass.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use block::{BUF_MAX_BYTES, COPIES_MAX};
use sim::draw::Stream;
use sim::workload::Mix;

use crate::bench::{Bench, End};
use crate::commands::commands;
use crate::copies::copies;
use crate::refusal::{Broken, Refusal};
use crate::strict::Inject;
use crate::subject::Subject;

/// Largest number of requests to a lower at which the battery injects an error. If a lower gets more requests, the
/// battery spreads the errors over them.
const POINTS: u64 = 40;

/// Longest virtual time in a first start after which the battery closes the device, in nanoseconds. It is longer than
/// several writes of a label take.
const FIRST_START_NS_MAX: u64 = 30_000_000;

/// Totals of the battery for a device that has passed all parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passed {
    /// Number of runs, each in a new simulated world.
    pub runs: u64,
    /// Number of clients' requests that succeeded.
    pub requests: u64,
    /// Number of errors that the battery injected into lowers.
    pub errors: u64,
}

/// Returns the number of seeds with which the battery tests a subject. The environment variable `CAIRN_BATTERY_SEEDS`
/// limits the number for a quick test.
fn seeds(subject: &Subject) -> u64 {
    let most = std::env::var("CAIRN_BATTERY_SEEDS").ok().and_then(|text| text.parse().ok());
    most.unwrap_or(u64::MAX).min(subject.seeds)
}

/// Runs all parts of the battery on a device.
///
/// # Errors
/// The first rule that the device breaks, with the part and the seed that show it.
pub fn conformance(subject: &Subject) -> Result<Passed, Refusal> {
    let mut passed = Passed::default();
    for fuse in [false, true] {
        let mut survives = true;
        passed.run(subject, "facts", 0, fuse, |bench| {
            survives = bench.facts().survives_process;
            facts(bench)
        })?;
        for seed in 0..seeds(subject) {
            passed.run(subject, "overlaps", seed, fuse, overlaps)?;
            passed.run(subject, "long requests", seed, fuse, long_requests)?;
            passed.run(subject, "commands", seed, fuse, commands)?;
            passed.run(subject, "copies", seed, fuse, copies)?;
            if !survives {
                continue;
            }
            passed.run(subject, "power cuts", seed, fuse, power_cuts)?;
            passed.run(subject, "kills", seed, fuse, kills)?;
            if subject.labelled {
                passed.run(subject, "restarts", seed, fuse, restarts)?;
                passed.run(subject, "changes", seed, fuse, changes)?;
                passed.run(subject, "first starts", seed, fuse, first_starts)?;
                passed.run(subject, "used disks", seed, fuse, used_disks)?;
                passed.run(subject, "another store", seed, fuse, another_store)?;
            }
            if subject.labelled && subject.redundancy > 0 {
                passed.run(subject, "relapses", seed, fuse, relapses)?;
            }
        }
        passed.errors(subject, fuse)?;
    }
    Ok(passed)
}

impl Passed {
    /// Runs one part of the battery, the function `scene`, in a new simulated world. A panic counts as a broken rule.
    /// Returns for each lower the number of requests that it got.
    fn run(
        &mut self,
        subject: &Subject,
        part: &str,
        seed: u64,
        fuse: bool,
        scene: impl FnOnce(&mut Bench) -> Result<(), Refusal>,
    ) -> Result<Vec<u64>, Refusal> {
        self.runs += 1;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut bench = Bench::new(subject, seed, fuse)?;
            scene(&mut bench)?;
            self.requests += bench.tally.done.get();
            self.errors += bench.members.iter().map(|m| m.watch.injected.get()).sum::<u64>();
            Ok(bench.members.iter().map(|member| member.watch.calls.get()).collect())
        }));
        let ran = ran.unwrap_or_else(|panic| Err(Refusal::new(Broken::Panic, words_of(&*panic))));
        ran.map_err(|refusal| {
            let fused = if fuse { "fused" } else { "not fused" };
            Refusal { place: format!("{}, {part}, seed {seed}, {fused}", subject.name), ..refusal }
        })
    }

    /// Runs the same requests again and again, each time with an injected error at another request of one lower: once
    /// for that request only, once for that request and all later requests.
    fn errors(&mut self, subject: &Subject, fuse: bool) -> Result<(), Refusal> {
        let calls = self.run(subject, "errors", 0, fuse, |bench| {
            bench.begin(3, 20, UNDISTURBED);
            bench.finish()
        })?;
        for (lower, calls) in calls.into_iter().enumerate() {
            for at in (0..calls).step_by(calls.div_ceil(POINTS).max(1) as usize) {
                for sticky in [false, true] {
                    let inject = Inject { at, sticky };
                    let part = format!("injected error {inject:?} on lower {lower}");
                    let seed = if sticky { at } else { 0 };
                    self.run(subject, &part, seed, fuse, |bench| errors(bench, lower, inject))?;
                }
            }
        }
        Ok(())
    }
}

/// Types of clients' requests as usual, but clients wait for every reply.
const UNDISTURBED: Mix = Mix { abandon: 0, ..Mix::ALL };

/// Types of clients' requests with few flushes and no FUA, so that a power cut may lose many writes.
const CARELESS: Mix = Mix { flush: 1, fua: 0, ..Mix::ALL };

/// Types of clients' requests with many flushes and FUA writes, so that the model notices durable writes that a power
/// cut has lost.
const CAREFUL: Mix = Mix { flush: 25, fua: 300_000, abandon: 0, ..Mix::ALL };

fn facts(bench: &mut Bench) -> Result<(), Refusal> {
    let info = bench.facts().clone();
    let block = u64::from(info.block_size);
    let honest = info.block_size.is_power_of_two()
        && (512..=65536).contains(&info.block_size)
        && info.size > 0
        && info.size.is_multiple_of(block)
        && info.max_transfer as usize <= BUF_MAX_BYTES
        && u64::from(info.max_transfer) >= block
        && u64::from(info.preferred_io).is_multiple_of(block)
        && (1..=COPIES_MAX).contains(&info.copies);
    if !honest {
        return Err(Refusal::new(Broken::Facts, format_args!("{info:?}")));
    }
    // All bytes can be read, from the first block to the last.
    bench.verify()?;
    bench.settle()
}

fn overlaps(bench: &mut Bench) -> Result<(), Refusal> {
    bench.begin(8, 40, Mix::ALL);
    bench.finish()?;
    bench.settle()?;
    bench.verify()?;
    bench.compare()?;
    bench.settle()
}

/// Part of the battery: clients send requests of up to the longest permitted length, several at the same time.
fn long_requests(bench: &mut Bench) -> Result<(), Refusal> {
    let longest = Some(bench.facts().max_transfer.into());
    bench.begin(6, 10, Mix { longest, ..Mix::ALL });
    bench.finish()?;
    bench.verify()?;
    bench.settle()
}

fn power_cuts(bench: &mut Bench) -> Result<(), Refusal> {
    for round in 0..4 {
        let mix = if round == 1 { CARELESS } else { CAREFUL };
        bench.begin(8, 30, mix);
        let draw = Stream::new(bench.world.seed(), "cut at", round);
        match draw.below(4) {
            0 => bench.finish()?,
            1 => bench.pass(Duration::from_nanos(draw.within(1_000, 8_000_000)))?,
            // At the very moment at which a client relies on a flush.
            _ => bench.flushes(draw.within(1, 20))?,
        }
        bench.judge()?;
        bench.power_cut()?;
        bench.verify()?;
    }
    bench.settle()
}

fn kills(bench: &mut Bench) -> Result<(), Refusal> {
    for round in 0..2 {
        bench.begin(6, 30, Mix::ALL);
        let draw = Stream::new(bench.world.seed(), "kill at", round);
        bench.pass(Duration::from_nanos(draw.within(1_000, 8_000_000)))?;
        bench.judge()?;
        bench.kill()?;
        bench.verify()?;
    }
    bench.settle()
}

/// Part of the battery: closes the device in order and starts it again, three times.
fn restarts(bench: &mut Bench) -> Result<(), Refusal> {
    for _ in 0..3 {
        bench.begin(4, 20, UNDISTURBED);
        bench.restart()?;
        bench.verify()?;
    }
    bench.settle()
}

/// Part of the battery: live changes of the graph. Each change closes the device and builds it again as uncommitted, so
/// that writes of its state are held back; then the battery commits or undoes the change.
fn changes(bench: &mut Bench) -> Result<(), Refusal> {
    let draw = Stream::new(bench.world.seed(), "change", 0);
    if draw.below(2) == 0 {
        bench.relabel()?;
    }
    for _ in 0..4 {
        bench.begin(4, 20, UNDISTURBED);
        let meanwhile = Duration::from_nanos(draw.below(30_000_000));
        bench.change(draw.below(2) == 0, meanwhile)?;
        bench.verify()?;
    }
    bench.settle()
}

/// Part of the battery: closes the device, kills it or cuts the power at different moments of a first start, before and
/// after the live change that makes the device is committed.
fn first_starts(bench: &mut Bench) -> Result<(), Refusal> {
    let draw = Stream::new(bench.world.seed(), "first start", 0);
    for _ in 0..3 {
        let meanwhile = Duration::from_nanos(draw.below(FIRST_START_NS_MAX));
        // A close is the most frequent end.
        let end = draw.pick(&[End::Close, End::Close, End::Kill, End::PowerCut]);
        match draw.below(2) {
            0 => bench.undone_first_start(meanwhile, end)?,
            _ => bench.ended_first_start(meanwhile, end)?,
        }
        bench.begin(2, 10, UNDISTURBED);
        bench.finish()?;
        bench.verify()?;
    }
    bench.restart()?;
    bench.verify()?;
    bench.settle()
}

/// Part of the battery, for kinds that keep persistent objects on their lowers: replaces the store of the device by the
/// store of another device of the same kind. The device must refuse it, and must not change it.
fn another_store(bench: &mut Bench) -> Result<(), Refusal> {
    if !bench.keeps_objects() {
        return Ok(());
    }
    bench.begin(4, 20, UNDISTURBED);
    let in_change = Stream::new(bench.world.seed(), "another store", 0).below(2) == 0;
    bench.refuses_other_store(in_change)
}

/// Part of the battery: removes the states from the labels of used disks. The device must not start, and must not
/// change the disks' bytes.
fn used_disks(bench: &mut Bench) -> Result<(), Refusal> {
    bench.begin(4, 20, UNDISTURBED);
    bench.refuses_used()
}

/// Part of the battery: makes a lower fail that works again after the next start. The device must not read the stale
/// bytes of the lower.
fn relapses(bench: &mut Bench) -> Result<(), Refusal> {
    for round in 0..4 {
        // All copies must be equal, and known to be, before a lower may fail.
        bench.verify()?;
        bench.settle()?;
        let draw = Stream::new(bench.world.seed(), "relapse", round);
        let lower = draw.below(bench.members.len() as u64) as usize;
        let watch = bench.members[lower].watch.clone();
        let at = watch.calls.get() + draw.below(20);
        watch.inject.set(Some(Inject { at, sticky: true }));
        bench.begin(6, 30, CAREFUL);
        bench.injected(lower)?;
        // The writes that it missed may have been acknowledged just now, or some time ago.
        let more = draw.pick(&[1_000_000, 4_000_000, 10_000_000]);
        bench.pass(Duration::from_nanos(draw.within(1_000, more)))?;
        bench.masked()?;
        watch.inject.set(None);
        if draw.below(2) == 0 {
            bench.power_cut()?
        } else {
            bench.kill()?
        }
        // Twice, so that each lower is read.
        bench.verify()?;
        bench.verify()?;
    }
    bench.settle()
}

fn errors(bench: &mut Bench, lower: usize, inject: Inject) -> Result<(), Refusal> {
    if bench.redundancy() > 0 {
        // All copies must be equal before a lower may fail.
        bench.settle()?;
    }
    let watch = bench.members[lower].watch.clone();
    watch.inject.set(Some(Inject { at: watch.calls.get() + inject.at, ..inject }));
    bench.begin(3, 20, UNDISTURBED);
    bench.finish()?;
    bench.settle()?;
    let (injected, failed) = (watch.injected.get(), bench.tally.failed.get());
    if injected > 0 && bench.redundancy() == 0 && failed == 0 && bench.is_well() {
        let words =
            format!("lowers returned {injected} injected errors, and the device reported no error");
        return Err(Refusal::new(Broken::Errors, words));
    }
    bench.masked()?;
    watch.inject.set(None);
    bench.verify()?;
    bench.settle()
}

fn words_of(panic: &dyn std::any::Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}
