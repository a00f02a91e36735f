//! The plan of a seed: disks and their faults, clients, and the sequence of rounds.

use std::time::Duration;

use sim::draw::Stream;
use sim::workload::Mix;
use sim::{CutPolicy, DiskConfig, Faults, Profile, Promise};

/// The plan of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// The guarantees about bytes that are checked.
    pub promise: Promise,
    /// Whether requests may fail, because there are more faults than the graph must survive.
    pub may_fail: bool,
    /// Whether redundancy masks all faults.
    pub within_budget: bool,
    /// Time that a mirror waits for its members: less than a late answer may take, or more.
    pub patience: Duration,
    /// Whether the member that may fail is taken out and brought back repeatedly, and its answers are often
    /// late.
    pub relapses: bool,
    /// The height of the graph.
    pub depth: u32,
    /// Whether tables are fused.
    pub fuse: bool,
    /// Time after which a disk is taken out of service.
    pub timeout: Duration,
    /// Number of NBD connections of the clients; 0: directly into the graph.
    pub connections: usize,
    /// Number of clients.
    pub clients: u64,
    /// Requests of each client in a round.
    pub requests: u64,
    /// Frequencies of their requests.
    pub mix: Mix,
    /// The policy of power cuts; drawn if not set.
    pub cut: Option<CutPolicy>,
    /// The end of each round.
    pub rounds: Vec<End>,
}

/// The end of a round of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All clients are done.
    Done,
    /// The power is cut after that time.
    PowerAfter(Duration),
    /// The power is cut when so many flushes have succeeded.
    PowerAtFlush(u64),
    /// The process is killed after that time.
    KillAfter(Duration),
}

/// Classes of faults beyond delays and power cuts: more than a graph without redundancy survives. Each disk
/// draws its faults from the class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Requests return errors, hang, or find the disk full; acknowledged requests are correct.
    Reported,
    /// Flushes fail or are ignored, and unflushed writes are lost.
    Lost,
    /// Writes are torn beyond what the contract allows.
    Torn,
    /// The disk corrupts bytes silently.
    Silent,
}

const CLASSES: [Class; 4] = [Class::Reported, Class::Lost, Class::Torn, Class::Silent];

impl Plan {
    /// Draws the plan of a seed.
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

    /// Draws the plan of a seed about disks behind a server. The only faults are power cuts of the server.
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

    /// Draws the plan of a seed about members of a mirror that take over from each other. The only faults are
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

/// Returns the faults of a member that relapses: many answers are late.
pub fn relapsing() -> Faults {
    Faults { stall: 400_000, ..Faults::default() }
}

/// Draws the faults of the member that may fail. `is_disk`: whether it is a single disk.
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

/// Draws the configuration of a disk. `hasty`: mirrors wait for it for less time than a late answer takes.
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
