//! What a seed is about: disks, what goes wrong with them, clients, and how it goes on.

use std::time::Duration;

use sim::draw::Stream;
use sim::workload::Mix;
use sim::{DiskConfig, Faults, Profile, Promise};

/// What a seed is about.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// What is demanded about bytes.
    pub promise: Promise,
    /// Whether requests may fail: more goes wrong than the graph must survive.
    pub may_fail: bool,
    /// The height of the graph.
    pub depth: u32,
    /// Whether tables fuse.
    pub fuse: bool,
    /// After how long a disk is out of service.
    pub timeout: Duration,
    /// Clients.
    pub clients: u64,
    /// Requests of each in a round.
    pub requests: u64,
    /// What they send.
    pub mix: Mix,
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

/// What goes wrong beyond delays and power: more than a graph without redundancy survives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Errors,
    Hangs,
    LostFlushes,
    Liars,
    Tears,
    Thin,
    Silent,
}

const CLASSES: [Class; 7] = [
    Class::Errors,
    Class::Hangs,
    Class::LostFlushes,
    Class::Liars,
    Class::Tears,
    Class::Thin,
    Class::Silent,
];

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let draw = Stream::new(seed, "plan", 0);
        // Four of five seeds stay within what the graph must survive.
        let class = if draw.below(5) == 0 { Some(*draw.pick(&CLASSES)) } else { None };
        let disks = (0..draw.within(2, 7)).map(|_| disk(&draw, class)).collect();
        let promise = match class {
            Some(Class::LostFlushes | Class::Liars) => Promise::Lossy,
            Some(Class::Tears) => Promise::Damage,
            Some(Class::Silent) => Promise::Nothing,
            Some(Class::Errors | Class::Hangs | Class::Thin) | None => Promise::Full,
        };
        Self {
            disks,
            promise,
            may_fail: matches!(
                class,
                Some(Class::Errors | Class::Hangs | Class::LostFlushes | Class::Thin)
            ),
            depth: draw.below(4) as u32,
            fuse: draw.below(2) == 0,
            timeout: Duration::from_secs(draw.within(10, 30)),
            clients: draw.within(1, 10),
            requests: draw.within(5, 40),
            mix: mix(&draw),
            rounds: (0..draw.within(1, 3)).map(|_| end(&draw)).collect(),
        }
    }
}

fn disk(draw: &Stream, class: Option<Class>) -> DiskConfig {
    let size = 4096 * draw.within(2, 24);
    let honest = [Profile::Native4k, Profile::Native512, Profile::Native512, Profile::Protected];
    let profile = match class {
        Some(Class::Liars) => Profile::Liar,
        Some(Class::Tears) => *draw.pick(&[Profile::Emulated512, Profile::NotAtomic]),
        Some(Class::Thin) => Profile::Thin(size / 2 / 4096 * 4096),
        _ => *draw.pick(&honest),
    };
    let rate = draw.within(1_000, 60_000) as u32;
    let mut faults = Faults::default();
    if draw.below(3) == 0 {
        faults.stall = rate;
    }
    match class {
        Some(Class::Errors) => (faults.read_error, faults.write_error) = (rate, rate),
        Some(Class::Hangs) => faults.hang = rate / 4,
        Some(Class::LostFlushes) => faults.flush_error = rate * 4,
        Some(Class::Silent) => {
            (faults.rot, faults.lost_write, faults.misdirected) = (rate, rate, rate);
        }
        Some(Class::Liars | Class::Tears | Class::Thin) | None => {}
    }
    DiskConfig {
        faults,
        zeroes: draw.below(4) > 0,
        discard: draw.below(4) > 0,
        discard_zeroes: draw.below(2) == 0,
        most_ns: draw.within(10_000, 2_000_000),
        destage: *draw.pick(&[0, 100_000, 500_000, 1_000_000]),
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
        fua: *draw.pick(&[0, 100_000, 500_000]),
        abandon: *draw.pick(&[0, 0, 30_000]),
        pause: *draw.pick(&[0, 100_000, 500_000]),
    }
}

fn end(draw: &Stream) -> End {
    let soon = Duration::from_nanos(draw.within(1_000, 12_000_000));
    match draw.below(6) {
        0 => End::Done,
        1 | 2 => End::PowerAfter(soon),
        3 => End::PowerAtFlush(draw.within(1, 20)),
        _ => End::KillAfter(soon),
    }
}
