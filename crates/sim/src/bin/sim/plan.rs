//! What a seed is about: disks, what goes wrong with them, clients, and how it goes on.

use std::time::Duration;

use sim::draw::Stream;
use sim::workload::Mix;
use sim::{CutPolicy, DiskConfig, Faults, Profile, Promise};

/// What a seed is about.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// What is demanded about bytes.
    pub promise: Promise,
    /// Whether requests may fail: more goes wrong than the graph must survive.
    pub may_fail: bool,
    /// Whether nothing goes wrong but what redundancy makes good.
    pub within_budget: bool,
    /// How long a mirror waits for its members: less than a late answer may take, or more.
    pub patience: Duration,
    /// Whether the member that may fail is taken out and brought back again and again, and is late often.
    pub relapses: bool,
    /// The height of the graph.
    pub depth: u32,
    /// Whether tables fuse.
    pub fuse: bool,
    /// After how long a disk is out of service.
    pub timeout: Duration,
    /// Over how many NBD connections clients come; straight into the graph if none.
    pub connections: usize,
    /// Clients.
    pub clients: u64,
    /// Requests of each in a round.
    pub requests: u64,
    /// What they send.
    pub mix: Mix,
    /// How a power cut chooses; any if not set.
    pub cut: Option<CutPolicy>,
    /// How each round ends.
    pub rounds: Vec<End>,
}

/// How a round of work ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Everybody is done.
    Done,
    /// The power goes, after that time.
    PowerAfter(Duration),
    /// The power goes when so many flushes have succeeded.
    PowerAtFlush(u64),
    /// The process dies, after that time.
    KillAfter(Duration),
}

/// What goes wrong beyond delays and power: more than a graph without redundancy survives. Each
/// disk draws what of its class it has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Errors are told, answers stay out, space runs out; what was answered is right.
    Told,
    /// Flushes fail or are ignored, and what they should have kept is lost.
    Lost,
    /// Writes are torn beyond what the contract allows.
    Torn,
    /// The disk lies about bytes.
    Silent,
}

const CLASSES: [Class; 4] = [Class::Told, Class::Lost, Class::Torn, Class::Silent];

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let draw = Stream::new(seed, "plan", 0);
        // Four of five seeds stay within what the graph must survive.
        let class = if draw.below(5) == 0 { Some(draw.pick(&CLASSES)) } else { None };
        let hasty = draw.below(3) == 0;
        let disks = (0..draw.within(2, 7)).map(|_| disk(&draw, class, hasty)).collect();
        let promise = match class {
            Some(Class::Lost) => Promise::Lossy,
            Some(Class::Torn) => Promise::Damage,
            Some(Class::Silent) => Promise::Nothing,
            Some(Class::Told) | None => Promise::Full,
        };
        Self {
            disks,
            promise,
            may_fail: matches!(class, Some(Class::Told | Class::Lost)),
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

    /// The plan of a seed about disks behind a server: the server loses its power, and nothing else goes wrong.
    pub fn far(seed: u64) -> Self {
        let draw = Stream::new(seed, "far plan", 0);
        // An export of a disk without discards does not offer them; graphs of specs emulate them, an `Assembly` does not.
        let disk = || DiskConfig { discard: true, ..disk(&draw, None, true) };
        Self {
            disks: (0..draw.within(1, 5)).map(|_| disk()).collect(),
            promise: Promise::Full,
            may_fail: false,
            within_budget: true,
            // Longer than a server is away, and the rests before it is found again.
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

    /// The plan of a seed about members of a mirror that take over from each other: nothing goes wrong but flushes that
    /// are late, and power.
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

/// The faults of a member that relapses: many answers are late.
pub fn relapsing() -> Faults {
    Faults { stall: 400_000, ..Faults::default() }
}

/// What goes wrong with the member that a mirror must do without; `is_disk`: it is one disk.
pub fn trouble(draw: &Stream, is_disk: bool) -> Faults {
    let rate = |least, most| draw.within(least, most) as u32;
    let none = Faults::default();
    match draw.below(6) {
        0 => none,
        1 => Faults { read_error: rate(100_000, 900_000), ..none },
        2 => Faults { hang: rate(10_000, 60_000), ..none },
        3 => Faults { stall: rate(20_000, 200_000), ..none },
        // Of several disks, one that answers late would keep the error of another from being told,
        // and what that one has dropped be read.
        4 if is_disk => Faults { flush_error: rate(100_000, 500_000), ..none },
        _ => Faults { write_error: rate(20_000, 200_000), ..none },
    }
}

/// `hasty`: somebody waits for it less long than a late answer takes.
fn disk(draw: &Stream, class: Option<Class>, hasty: bool) -> DiskConfig {
    let size = 4096 * draw.within(2, 24);
    let honest = [Profile::Native4k, Profile::Native512, Profile::Native512, Profile::Protected];
    let has = |one: Class| class == Some(one) && draw.below(3) > 0;
    let profile = match class {
        Some(Class::Lost) if !has(Class::Lost) => Profile::Liar,
        Some(Class::Torn) => draw.pick(&[Profile::Emulated512, Profile::NotAtomic]),
        Some(Class::Told) if draw.below(2) == 0 => Profile::Thin(size / 4 / 4096 * 4096),
        _ => draw.pick(&honest),
    };
    let rate = |on: bool| if on { draw.within(10_000, 120_000) as u32 } else { 0 };
    let faults = Faults {
        stall: rate(draw.below(3) == 0 && !hasty),
        read_error: rate(has(Class::Told)),
        write_error: rate(class == Some(Class::Told)),
        hang: rate(has(Class::Told)) / 2,
        // Once is enough for a disk, and it has to come before the power goes.
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
