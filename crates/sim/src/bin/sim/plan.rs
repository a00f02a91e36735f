//! The random plan of a seed: the simulated disks with their faults, the clients, and the rounds of the trial.

use std::time::Duration;

use sim::draw::Stream;
use sim::workload::Mix;
use sim::{CutPolicy, DiskConfig, Faults, Profile, Promise};

/// The random plan of a trial: disks, clients and rounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Configurations of the simulated disks, by disk number.
    pub disks: Vec<DiskConfig>,
    /// The guarantees about the volume's bytes that the model checks in this trial.
    pub promise: Promise,
    /// Whether a client's request may fail, because the disks have more faults than the graph must survive.
    pub may_fail: bool,
    /// Whether the disks have only faults that the mirrors of the graph must hide from clients.
    pub within_budget: bool,
    /// Option `timeout` of the lowest mirrors: how long a mirror waits for a member. Shorter or longer than a late
    /// reply of a disk.
    pub patience: Duration,
    /// Whether commands repeatedly take the faulty member of each mirror out and resync it, while many of its disks'
    /// replies are late.
    pub relapses: bool,
    /// Largest number of devices on a path from the export down to a disk.
    pub depth: u32,
    /// Whether the engine fuses tables.
    pub fuse: bool,
    /// Option `timeout` of the disks: the time without a reply after which a disk is taken out of service.
    pub timeout: Duration,
    /// Number of the clients' NBD connections to the server; 0 if clients send requests directly into the engine.
    pub connections: usize,
    /// Number of clients that the simulator starts in each round.
    pub clients: u64,
    /// Number of requests that each client sends in a round.
    pub requests: u64,
    /// Relative frequencies of the request types that clients send.
    pub mix: Mix,
    /// Fate of unflushed writes at each power cut of the trial; `None` if the simulator draws a policy for each cut.
    pub cut: Option<CutPolicy>,
    /// How each round of the trial ends, in order.
    pub rounds: Vec<End>,
}

/// How a round of the trial ends, in which clients send requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All clients have received all replies.
    Done,
    /// The simulator cuts the power of all disks this long after the begin of the round.
    PowerAfter(Duration),
    /// The simulator cuts the power of all disks when this number of the round's flushes have succeeded.
    PowerAtFlush(u64),
    /// The simulator kills the server process this long after the begin of the round.
    KillAfter(Duration),
}

/// A class of disk faults besides late replies and power cuts, which a graph without redundancy need not survive. Each
/// disk gets random faults of the class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A disk fails requests with an error, leaves some without a reply, or has no free space. Replies without an error
    /// are correct.
    Reported,
    /// A disk fails flushes, or acknowledges flushes without effect, so that a power cut loses writes.
    Lost,
    /// At a power cut a disk tears writes in ways that the contract of disks does not permit.
    Torn,
    /// A disk corrupts, loses or misdirects bytes without an error.
    Silent,
}

const CLASSES: [Class; 4] = [Class::Reported, Class::Lost, Class::Torn, Class::Silent];

impl Plan {
    /// Draws the plan of a trial with a random graph (`trial.rs`).
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

    /// Draws the plan of a trial with NBD disks (`far.rs`). The trial's only faults are power cuts of the disks'
    /// server.
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

    /// Draws the plan of a trial whose mirror members replace each other (`handover.rs`). The trial's only faults are
    /// late flushes and power cuts.
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

/// Returns the faults of a mirror's member that commands repeatedly take out: 40 % of its replies are late.
pub fn relapsing() -> Faults {
    Faults { stall: 400_000, ..Faults::default() }
}

/// Draws the faults of the mirror's member that may fail. `is_disk`: the member is a single disk.
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

/// Draws the configuration of a simulated disk, with faults of `class`. `hasty`: mirrors wait for a member for less
/// time than a late reply takes.
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
