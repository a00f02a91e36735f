//! The plan of a seed: disks and their faults, clients, and the rounds of the trial.

use std::time::Duration;

use sim::draw::Stream;
use sim::workload::Mix;
use sim::{CutPolicy, DiskConfig, Faults, Profile, Promise};

/// The plan of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Configurations of the disks.
    pub disks: Vec<DiskConfig>,
    /// The guarantees about bytes that the model checks.
    pub promise: Promise,
    /// Whether requests may fail, because there are more faults than the graph must survive.
    pub may_fail: bool,
    /// Whether redundancy masks all faults.
    pub within_budget: bool,
    /// Time that a mirror waits for its members: less or more than a late reply takes.
    pub patience: Duration,
    /// Whether the member that may fail is repeatedly taken out and resynced, with replies that are often late.
    pub relapses: bool,
    /// Most devices between an export and a disk.
    pub depth: u32,
    /// Whether tables are fused.
    pub fuse: bool,
    /// Time after which a disk is taken out of service.
    pub timeout: Duration,
    /// Number of NBD connections of the clients; 0 if they have direct access to the graph.
    pub connections: usize,
    /// Number of clients.
    pub clients: u64,
    /// Number of requests of each client in a round.
    pub requests: u64,
    /// Frequencies of the clients' requests.
    pub mix: Mix,
    /// Policy of all power cuts; `None` for a random policy at each.
    pub cut: Option<CutPolicy>,
    /// The end of each round.
    pub rounds: Vec<End>,
}

/// The end of a round in which clients send requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The round ends when all clients have finished.
    Done,
    /// The power is cut after this time.
    PowerAfter(Duration),
    /// The power is cut when this number of flushes have succeeded.
    PowerAtFlush(u64),
    /// The process is killed after this time.
    KillAfter(Duration),
}

/// A class of faults besides delays and power cuts: more than a graph without redundancy survives. Each disk gets
/// random faults of the class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Requests return errors, hang, or find the disk full; replies without an error are correct.
    Reported,
    /// Flushes fail or are ignored, so that unflushed writes are lost.
    Lost,
    /// Writes are torn in ways that the contract does not permit.
    Torn,
    /// The disk corrupts bytes silently.
    Silent,
}

const CLASSES: [Class; 4] = [Class::Reported, Class::Lost, Class::Torn, Class::Silent];

impl Plan {
    /// Returns the random plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let draw = Stream::new(seed, "plan", 0);
        // Four of five seeds have only faults that the graph must survive.
        let class = if draw.below(5) == 0 { Some(draw.pick(&CLASSES)) } else { None };
        let hasty = draw.below(3) == 0;
        let disks = (0..draw.within(2, 7)).map(|_| disk(&draw, class, hasty)).collect();
        let promise = match class {
            Some(Class::Lost) => Promise::Lossy,
            Some(Class::Torn) => Promise::Damage,
            Some(Class::Silent) => Promise::Nothing,
            Some(Class::Reported) | None => Promise::Full,
        };
        Self {
            disks,
            promise,
            may_fail: matches!(class, Some(Class::Reported | Class::Lost)),
            within_budget: class.is_none(),
            patience: Duration::from_secs(if hasty { 2 } else { 8 }),
            relapses: hasty && class.is_none() && Stream::new(seed, "relapses", 0).below(2) == 0,
            depth: draw.below(4) as u32,
            fuse: draw.below(2) == 0,
            timeout: Duration::from_secs(draw.within(10, 30)),
            connections: if draw.below(10) < 3 { draw.within(1, 4) as usize } else { 0 },
            clients: draw.within(1, 10),
            requests: draw.within(5, 40),
            mix: mix(&draw),
            cut: (class == Some(Class::Torn)).then_some(CutPolicy::Torn),
            rounds: (0..draw.within(1, 3)).map(|_| end(&draw, class)).collect(),
        }
    }

    /// Returns the random plan of a seed with disks behind a server. Its only faults are power cuts of the server.
    pub fn far(seed: u64) -> Self {
        let draw = Stream::new(seed, "far plan", 0);
        // An export of a disk without discards does not offer them. Graphs from specs emulate them, an
        // `Assembly` does not.
        let disk = || DiskConfig { discard: true, ..disk(&draw, None, true) };
        Self {
            disks: (0..draw.within(1, 5)).map(|_| disk()).collect(),
            promise: Promise::Full,
            may_fail: false,
            within_budget: true,
            // Longer than a server is away plus the pauses before the next connection attempt.
            patience: Duration::from_secs(8),
            relapses: false,
            depth: draw.below(4) as u32,
            fuse: draw.below(2) == 0,
            timeout: Duration::from_secs(30),
            connections: if draw.below(4) == 0 { draw.within(1, 3) as usize } else { 0 },
            clients: draw.within(1, 10),
            requests: draw.within(5, 60),
            mix: mix(&draw),
            cut: None,
            rounds: vec![End::Done; draw.within(1, 3) as usize],
        }
    }

    /// Returns the random plan of a seed with members of mirrors that replace each other. Its only faults are late
    /// flushes and power cuts.
    pub fn handover(seed: u64) -> Self {
        let draw = Stream::new(seed, "handover plan", 0);
        let size = 4096 * draw.within(2, 24);
        let disk = || DiskConfig { size, ..disk(&draw, None, true) };
        Self {
            disks: (0..draw.within(2, 4)).map(|_| disk()).collect(),
            clients: draw.within(0, 4),
            requests: draw.within(5, 60),
            rounds: vec![End::Done; draw.within(1, 3) as usize],
            ..Self::far(seed)
        }
    }
}

/// Returns the faults of a member that is repeatedly taken out: many of its replies are late.
pub fn relapsing() -> Faults {
    Faults { stall: 400_000, ..Faults::default() }
}

/// Returns random faults for the member that may fail. `is_disk` is whether the member is a single disk.
pub fn trouble(draw: &Stream, is_disk: bool) -> Faults {
    let rate = |least, most| draw.within(least, most) as u32;
    let none = Faults::default();
    match draw.below(6) {
        0 => none,
        1 => Faults { read_error: rate(100_000, 900_000), ..none },
        2 => Faults { hang: rate(10_000, 60_000), ..none },
        3 => Faults { stall: rate(20_000, 200_000), ..none },
        // Only for a single disk: with several, a late flush of one disk delays the report of another's flush
        // error, and until then the mirror reads bytes that the other has dropped.
        4 if is_disk => Faults { flush_error: rate(100_000, 500_000), ..none },
        _ => Faults { write_error: rate(20_000, 200_000), ..none },
    }
}

/// Returns a random configuration of a disk. `hasty` is whether mirrors wait less for the disk than a late reply
/// takes.
fn disk(draw: &Stream, class: Option<Class>, hasty: bool) -> DiskConfig {
    let size = 4096 * draw.within(2, 24);
    let honest = [Profile::Native4k, Profile::Native512, Profile::Native512, Profile::Protected];
    let has = |one: Class| class == Some(one) && draw.below(3) > 0;
    let profile = match class {
        Some(Class::Lost) if !has(Class::Lost) => Profile::Liar,
        Some(Class::Torn) => draw.pick(&[Profile::Emulated512, Profile::NotAtomic]),
        Some(Class::Reported) if draw.below(2) == 0 => Profile::Thin(size / 4 / 4096 * 4096),
        _ => draw.pick(&honest),
    };
    let rate = |on: bool| if on { draw.within(10_000, 120_000) as u32 } else { 0 };
    let faults = Faults {
        stall: rate(draw.below(3) == 0 && !hasty),
        read_error: rate(has(Class::Reported)),
        write_error: rate(class == Some(Class::Reported)),
        hang: rate(has(Class::Reported)) / 2,
        // One failed flush per disk is enough, but it must come before the power cut.
        flush_error: 3 * rate(class == Some(Class::Lost)),
        rot: rate(has(Class::Silent)),
        lost_write: rate(has(Class::Silent)),
        late_flush: 0,
        misdirected: rate(has(Class::Silent)),
    };
    DiskConfig {
        faults,
        zeroes: draw.below(4) > 0,
        discard: draw.below(4) > 0,
        discard_zeroes: draw.below(2) == 0,
        most_ns: draw.within(10_000, 2_000_000),
        destage: draw.pick(&[0, 100_000, 500_000, 1_000_000]),
        ..DiskConfig::new(size, profile)
    }
}

fn mix(draw: &Stream) -> Mix {
    Mix {
        read: draw.within(5, 40),
        write: draw.within(10, 50),
        zero: draw.below(15),
        discard: draw.below(15),
        flush: draw.within(1, 25),
        status: draw.below(15),
        fua: draw.pick(&[0, 100_000, 500_000]),
        abandon: draw.pick(&[0, 0, 30_000]),
        pause: draw.pick(&[0, 100_000, 500_000]),
        longest: None,
        hot: None,
    }
}

fn end(draw: &Stream, class: Option<Class>) -> End {
    let soon = Duration::from_nanos(draw.within(1_000, 12_000_000));
    match draw.below(6) {
        _ if class == Some(Class::Torn) => End::PowerAfter(soon),
        0 => End::Done,
        1 | 2 => End::PowerAfter(soon),
        3 => End::PowerAtFlush(draw.within(1, 20)),
        _ => End::KillAfter(soon),
    }
}
