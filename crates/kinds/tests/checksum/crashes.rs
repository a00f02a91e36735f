//! Tests of a device after every power cut: at each flush and step of a scenario, every subset of unflushed writes.

use std::ops::Range;

use kinds::checksum::{BLOCK_BYTES, Redundancy};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Moment, SECTOR, Trace};

use crate::scene::{BLOCKS, Crash, DATA_START, Scene, block_on, content, formatted};

/// Byte that a recorded disk leaves in place of a torn write.
const GARBAGE: u8 = 0xda;

/// A step of a scenario.
#[derive(Clone)]
enum Step {
    /// Writes new content to blocks.
    Write(Range<u64>),
    /// Zeroes blocks.
    Zero(Range<u64>),
    /// Makes everything durable so far.
    Flush,
    /// Waits for clears and writes in place.
    Quiet,
    /// Kills the process, and opens the device again.
    Kill,
}

use Step::{Flush, Kill, Quiet, Write, Zero};

/// A change: the blocks, and the version that they have afterwards.
type Change = (Range<u64>, u64);

/// Recording of a scenario: the bytes of the disk before it, all events, and the change of each number.
struct Played {
    before: Vec<u8>,
    events: Vec<Event>,
    changes: Vec<Change>,
    crash: Crash,
}

async fn change(scene: &Scene, blocks: &Range<u64>, version: u64) {
    if version == 0 {
        return scene.zero(blocks.start, blocks.end - blocks.start).await.unwrap();
    }
    let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(block, version)).collect();
    scene.write(blocks.start, &bytes).await.unwrap();
}

/// Runs a scenario on a new device, and returns the recording.
fn play(crash: Crash, steps: &[Step]) -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disk = block_on(&world, formatted(&env, &trace, true));
    trace.take();
    let before = disk.bytes.borrow().clone();
    let mut changes: Vec<Change> = Vec::new();
    block_on(&world, async {
        let mut scene = Scene::open(&env, &disk, crash, Redundancy::None).await.unwrap();
        for step in steps {
            let number = changes.len() as u64 + 1;
            let (blocks, version) = match step {
                Write(blocks) => (blocks, number),
                Zero(blocks) => (blocks, 0),
                Flush => {
                    scene.flush().await.unwrap();
                    trace.note(Event::Answered(number - 1));
                    continue;
                }
                Quiet => {
                    scene.quiet().await;
                    continue;
                }
                Kill => {
                    scene = scene.reopen().await;
                    // The opening has flushed the disk.
                    trace.note(Event::Answered(number - 1));
                    continue;
                }
            };
            trace.note(Event::Begun(number));
            changes.push((blocks.clone(), version));
            change(&scene, blocks, version).await;
        }
    });
    Played { before, events: trace.take(), changes, crash }
}

impl Played {
    /// Returns the versions that a block may have after a power cut.
    fn versions(&self, block: u64, (durable, begun): (u64, u64)) -> Vec<u64> {
        let of_block = |range: Range<usize>| {
            let own = self.changes[range].iter().filter(move |(blocks, _)| blocks.contains(&block));
            own.map(|(_, version)| *version)
        };
        let mut all = vec![of_block(0..durable as usize).next_back().unwrap_or(0)];
        all.extend(of_block(durable as usize..begun as usize));
        all
    }

    /// Checks the bytes of a block after a power cut.
    fn check(&self, block: u64, bytes: &[u8], range: (u64, u64), what: &str) {
        let versions = self.versions(block, range);
        let whole = versions.iter().any(|version| content(block, *version) == bytes);
        if whole {
            return;
        }
        assert!(
            versions.len() > 1 && self.crash == Crash::Regions,
            "{what}: block {block} is wrong"
        );
        for (n, sector) in bytes.chunks(SECTOR).enumerate() {
            let fits = |version: &u64| content(block, *version)[n * SECTOR..][..SECTOR] == *sector;
            let is_torn = sector.iter().all(|byte| *byte == GARBAGE);
            assert!(is_torn || versions.iter().any(fits), "{what}: sector {n} of block {block}");
        }
    }

    /// Calls `each` for the moments of a recording: before each flush, after each durable step, and at the end. The
    /// arguments are the event's number, the disk, and the numbers of the last durable and the last begun change.
    fn moments(&self, mut each: impl FnMut(usize, &Moment, (u64, u64))) {
        let mut disk = Moment::new(self.before.clone());
        let (mut durable, mut begun) = (0, 0);
        for (number, event) in self.events.iter().enumerate() {
            match event {
                Event::Write { .. } => disk.note(event),
                Event::Flush { .. } => {
                    each(number, &disk, (durable, begun));
                    disk.note(event);
                }
                Event::Begun(step) => begun = *step,
                Event::Answered(step) => {
                    durable = *step;
                    each(number, &disk, (durable, begun));
                }
            }
        }
        each(self.events.len(), &disk, (durable, begun));
    }
}

/// One in so many crash states is also judged after the scan, rot, further writes, and another power cut.
const USED_FURTHER: usize = 24;

/// Opens a device on a disk that a power cut has left, and judges its blocks. Returns them, and the events of the opening.
fn look(
    played: &Played,
    image: Vec<u8>,
    range: (u64, u64),
    further: bool,
    what: &str,
) -> (Vec<u8>, Vec<Event>) {
    let (world, trace) = (SimWorld::new(2), Trace::default());
    let env = world.env();
    let disk = Disk::new(0, image, &trace);
    block_on(&world, async {
        let scene = Scene::open(&env, &disk, played.crash, Redundancy::None).await;
        let scene = scene.unwrap_or_else(|why| panic!("{what}: {why}"));
        let most = u64::from(scene.core.info().max_transfer) / BLOCK_BYTES;
        let mut all = Vec::new();
        for first in (0..BLOCKS).step_by(most as usize) {
            let bytes = scene.read(first, most.min(BLOCKS - first)).await;
            all.extend(bytes.unwrap_or_else(|why| panic!("{what}: {why}")));
        }
        for (block, bytes) in (0..).zip(all.chunks(BLOCK_BYTES as usize)) {
            played.check(block, bytes, range, what);
        }
        if further {
            use_further(scene, &all, what).await;
        }
        (all, trace.take())
    })
}

/// Judges the scan of an open device, writes to it, and lets a block rot.
async fn use_further(scene: Scene, all: &[u8], what: &str) {
    let numbers = scene.core.numbers();
    scene.quiet().await;
    if scene.crash == Crash::Regions {
        assert_eq!(scene.core.numbers().unverified_bytes, 0, "{what}");
        assert_eq!(scene.core.numbers().accepted, numbers.accepted, "{what}: twice");
        assert_eq!(scene.core.numbers().marked_bytes, 0, "{what}");
    } else {
        assert_eq!(numbers.accepted, 0, "{what}");
    }
    assert_eq!(numbers.damaged, 0, "{what}");
    scene.write(5, &content(5, 99)).await.unwrap();
    let scene = scene.reopen().await;
    assert_eq!(scene.read(5, 1).await.unwrap(), content(5, 99), "{what}");
    assert_eq!(scene.read(0, 2).await.unwrap(), all[..2 * BLOCK_BYTES as usize], "{what}");
    scene.quiet().await;
    scene.rot(1);
    assert!(scene.read(1, 1).await.is_err(), "{what}: rot");
}

/// Checks the device after every power cut in a recording. Returns the number of crash states.
fn cut_all(played: &Played) -> usize {
    let mut states = 0;
    played.moments(|event, disk, range| {
        disk.cuts(|image| {
            states += 1;
            let further = states % USED_FURTHER == 0;
            look(played, image, range, further, &format!("at event {event}"));
        });
    });
    states
}

fn mixed() -> Vec<Step> {
    vec![
        Write(0..2),
        Write(3..4),
        Flush,
        Write(0..1),
        Write(2..4),
        Zero(3..4),
        Flush,
        Quiet,
        Write(1..2),
        Zero(0..1),
        Write(2..3),
    ]
}

#[test]
fn regions_keep_flushed_blocks_after_power_cut_at_any_write() {
    let states = cut_all(&play(Crash::Regions, &mixed()));
    assert!(states > 400, "only {states} states");
}

#[test]
fn journal_keeps_whole_blocks_after_power_cut_at_any_write() {
    let states = cut_all(&play(Crash::Journal, &mixed()));
    assert!(states > 400, "only {states} states");
}

#[test]
fn device_keeps_flushed_blocks_after_kill_and_power_cut() {
    for crash in [Crash::Regions, Crash::Journal] {
        let steps = [Write(0..2), Write(2..3), Kill, Write(1..3), Zero(4..6), Kill, Write(4..5)];
        let states = cut_all(&play(crash, &steps));
        assert!(states > 200, "only {states} states");
    }
}

#[test]
fn device_shows_same_blocks_after_power_cut_during_opening() {
    for crash in [Crash::Regions, Crash::Journal] {
        let played = play(crash, &mixed());
        let mut after = Vec::new();
        played.moments(|_, disk, range| {
            after.push((disk.with(|_, _| true), range));
            after.push((disk.with(|n, s| (n + s) % 2 == 0), range));
            after.push((disk.with(|n, _| n % 2 == 0), range));
        });
        let mut states = 0;
        for (image, range) in after {
            let (first, events) = look(&played, image.clone(), range, false, "first opening");
            let again = Played { before: image, events, changes: Vec::new(), crash };
            again.moments(|event, disk, _| {
                disk.cuts(|image| {
                    states += 1;
                    let what = format!("at event {event} of an opening");
                    let (shown, _) = look(&played, image, range, false, &what);
                    assert!(shown == first, "{what}: other blocks are shown");
                });
            });
        }
        assert!(states > 200, "only {states} states");
    }
}

#[test]
fn device_keeps_acknowledged_blocks_after_death_of_process() {
    for crash in [Crash::Regions, Crash::Journal] {
        let played = play(crash, &mixed());
        let mut disk = Moment::new(played.before.clone());
        let mut begun = 0;
        for event in &played.events {
            if let Event::Begun(step) = event {
                // All that was written before is there: the changes before this one are acknowledged.
                let image = disk.with(|_, _| true);
                let what = format!("before change {step}");
                look(&played, image, (begun, begun), false, &what);
                begun = *step;
            }
            disk.note(event);
        }
        assert_eq!(begun, 8);
    }
}

#[test]
fn rot_is_found_after_power_cut_outside_of_marked_regions() {
    let played = play(Crash::Regions, &[Write(0..6), Flush, Quiet, Write(0..1)]);
    let mut found = 0;
    played.moments(|_, disk, range| {
        let mut image = disk.with(|_, _| true);
        if range.0 == 0 || image[DATA_START as usize] == 0 {
            return;
        }
        image[DATA_START as usize + 5 * BLOCK_BYTES as usize] ^= 1;
        let (world, trace) = (SimWorld::new(2), Trace::default());
        let env = world.env();
        let disk = Disk::new(0, image, &trace);
        block_on(&world, async {
            let scene = Scene::open(&env, &disk, Crash::Regions, Redundancy::None).await.unwrap();
            let is_marked = scene.core.numbers().marked_bytes > 2 * BLOCK_BYTES;
            assert_eq!(scene.read(5, 1).await.is_ok(), is_marked);
            found += u32::from(!is_marked);
        });
    });
    assert!(found > 0);
}
