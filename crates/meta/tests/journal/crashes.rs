//! Tests of a journal after every power cut: at each flush and step of a scenario, every subset of unflushed writes.

use std::rc::Rc;

use sim::SimWorld;
use testkit::recorded::{Disk, Event, Moment, Trace};

use crate::scene::{BLOCK, Scene, Way, block_on, blocks_of, expected, formatted, note_durable};

/// Byte that a recorded disk leaves in place of a torn write.
const GARBAGE: u8 = 0xda;

/// A step of a scenario.
#[derive(Clone, Copy)]
enum Step {
    /// Appends a change.
    Append,
    /// Zeroes a block beside the ring.
    Beside,
    /// Makes everything durable so far.
    Sync,
    /// Writes everything in place.
    Settle,
    /// Kills the process, and opens the journal again.
    Kill,
}

use Step::{Append, Beside, Kill, Settle, Sync};

/// Recording of a scenario: the bytes of the disk before it, all events, and the way of each step.
struct Played {
    before: Vec<u8>,
    events: Vec<Event>,
    ways: Vec<Way>,
}

/// Runs a scenario on a new journal, and returns the recording.
fn play(steps: &[Step]) -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disk = formatted(&world, &trace);
    trace.take();
    let before = disk.bytes.borrow().clone();
    let mut ways = Vec::new();
    block_on(&world, async {
        let mut scene = Scene::open(&env, &disk).await.unwrap();
        for step in steps {
            let number = ways.len() as u64 + 1;
            match step {
                Append => {
                    trace.note(Event::Begun(number));
                    scene.step(number).await.unwrap();
                    ways.push(Way::Ring);
                }
                Beside => {
                    trace.note(Event::Begun(number));
                    scene.beside(number).await.unwrap();
                    ways.push(Way::Beside);
                }
                Sync => {
                    scene.journal.sync().await.unwrap();
                    // A journal flushes nothing if all records are flushed. The owner flushes the block beside the ring.
                    if ways.last() == Some(&Way::Beside) {
                        scene.lower.flush().await.unwrap();
                    }
                    note_durable(&trace, number - 1);
                }
                Kill => {
                    drop(scene);
                    scene = Scene::open(&env, &disk).await.unwrap();
                    note_durable(&trace, number - 1);
                }
                Settle => {
                    scene.journal.settle().await.unwrap();
                    note_durable(&trace, number - 1);
                }
            }
        }
    });
    Played { before, events: trace.take(), ways }
}

/// One in so many crash states is also tested with one more step and another opening.
const USED_FURTHER: usize = 16;

/// Opens a journal on a disk that a power cut has left. Its blocks must be those after a step from `least` to `most`. Returns
/// the events of the opening.
fn look(image: Vec<u8>, (least, most): (u64, u64), ways: &[Way], further: bool, what: &str) {
    let (world, trace) = (SimWorld::new(2), Trace::default());
    let env = world.env();
    let disk = Disk::new(0, image, &trace);
    block_on(&world, async {
        let scene = Scene::open(&env, &disk).await.unwrap_or_else(|why| panic!("{what}: {why}"));
        let all = scene.read_all().await.unwrap_or_else(|why| panic!("{what}: {why}"));
        if is_torn(&all, (least, most), ways) {
            return;
        }
        let shown = shown(&all, (least, most), ways, what);
        if !further {
            return;
        }
        // The next step has the number of a later one, so its content differs from all that was lost.
        let mut ways = ways[..shown as usize].to_vec();
        ways.push(Way::Ring);
        scene.step(shown + 1).await.unwrap();
        drop(scene);
        let scene = Scene::open(&env, &disk).await.unwrap();
        let all = scene.read_all().await.unwrap();
        assert!(all == expected(&ways, shown + 1), "{what}: then a step more");
    });
}

/// Whether the last step was torn: nothing protects a write beside the ring.
fn is_torn(all: &[u8], (least, most): (u64, u64), ways: &[Way]) -> bool {
    let is_beside = most > least && ways[most as usize - 1] == Way::Beside;
    is_beside && {
        let mut before = expected(ways, most - 1);
        let block = (blocks_of(most)[0] * BLOCK) as usize;
        before[block..][..BLOCK as usize].fill(GARBAGE);
        before == all
    }
}

/// Returns the step after which the blocks have these bytes.
fn shown(all: &[u8], (least, most): (u64, u64), ways: &[Way], what: &str) -> u64 {
    let steps = (least..=most).rev().find(|steps| expected(ways, *steps) == all);
    steps.unwrap_or_else(|| {
        let other = (0..=ways.len() as u64).find(|steps| expected(ways, *steps) == all);
        panic!("{what}: step {other:?} is shown; {least} is durable, {most} begun")
    })
}

/// Calls `each` for the moments of a recording: before each flush, after each durable step, and at the end. The arguments
/// are the event's number, the disk, and the numbers of the last durable and the last begun step.
fn moments(played: &Played, mut each: impl FnMut(usize, &Moment, (u64, u64))) {
    let mut disk = Moment::new(played.before.clone());
    let (mut durable, mut begun) = (0, 0);
    for (number, event) in played.events.iter().enumerate() {
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
    each(played.events.len(), &disk, (durable, begun));
}

/// Checks the journal after every power cut in a recording. Returns the number of crash states.
fn cut_all(played: &Played) -> usize {
    let mut states = 0;
    moments(played, |event, disk, range| {
        disk.cuts(|image| {
            states += 1;
            let further = states % USED_FURTHER == 0;
            look(image, range, &played.ways, further, &format!("at event {event}"));
        });
    });
    states
}

#[test]
fn journal_changes_stay_atomic_after_power_cut_at_any_write() {
    let states = cut_all(&play(&[Append, Append, Sync, Append, Append, Append, Settle, Append]));
    assert!(states > 500, "only {states} states");
}

#[test]
fn journal_keeps_synced_changes_after_power_cut_while_space_is_reused() {
    // A change takes three of 16 sectors, so the pass runs after every third one, and the third lap begins.
    let mut steps = vec![Append, Sync];
    for _ in 0..4 {
        steps.extend([Append, Append, Append, Sync]);
    }
    let states = cut_all(&play(&steps));
    assert!(states > 1000, "only {states} states");
}

#[test]
fn journal_replay_undoes_no_change_beside_ring_after_power_cut() {
    // Step 6 changes the block of step 1, as does each fifth step.
    let steps = [Append, Append, Append, Append, Append, Beside, Sync, Append, Sync, Beside, Sync];
    let states = cut_all(&play(&steps));
    assert!(states > 500, "only {states} states");
}

#[test]
fn journal_keeps_synced_changes_after_power_cut_during_replay() {
    let played = play(&[Append, Append, Sync, Append, Settle, Append, Sync, Append, Append]);
    let mut after = Vec::new();
    moments(&played, |_, disk, range| {
        after.push((disk.with(|_, _| true), range));
        after.push((disk.with(|n, s| (n + s) % 2 == 0), range));
        after.push((disk.with(|n, _| n % 2 == 0), range));
    });
    let mut states = 0;
    for (image, range) in after {
        let (world, trace) = (SimWorld::new(3), Trace::default());
        let disk = Disk::new(0, image.clone(), &trace);
        let env = world.env();
        let first = block_on(&world, async {
            let scene = Scene::open(&env, &disk).await.unwrap();
            shown(&scene.read_all().await.unwrap(), range, &played.ways, "first opening")
        });
        let again = Played { before: image, events: trace.take(), ways: Vec::new() };
        moments(&again, |event, disk, _| {
            disk.cuts(|image| {
                states += 1;
                // Nothing was acknowledged meanwhile. But a replay does not change its mind.
                let what = format!("at event {event} of an opening");
                let further = states % USED_FURTHER == 0;
                look(image, (first, first), &played.ways, further, &what);
            });
        });
    }
    assert!(states > 500, "only {states} states");
}

#[test]
fn journal_changes_stay_atomic_after_power_cut_during_replay_after_death_of_process() {
    // The writes of the first process are still in the cache of the disk when the second one begins.
    let states = cut_all(&play(&[Append, Append, Sync, Append, Append, Kill, Append, Kill]));
    assert!(states > 500, "only {states} states");
}

#[test]
fn journal_keeps_acknowledged_changes_after_death_of_process() {
    let played = play(&[Append, Append, Sync, Append, Append, Append, Append, Beside, Append]);
    let mut disk = Moment::new(played.before.clone());
    let mut begun = 0;
    for event in &played.events {
        if let Event::Begun(step) = event {
            // All that was written before is there: the steps before this one are acknowledged.
            let image = disk.with(|_, _| true);
            look(image, (begun, begun), &played.ways, false, &format!("before step {step}"));
            begun = *step;
        }
        disk.note(event);
    }
    assert_eq!(begun, 8);
}

#[test]
fn journal_on_other_disk_keeps_synced_changes_after_power_cut() {
    // The ring and the blocks are on two disks here, so no flush of one covers the other.
    let played = two::play(12);
    let states = two::cut_all(&played, 12);
    assert!(states > 500, "only {states} states");
}

/// A journal beside the disk with the blocks.
mod two {
    use meta::journal::{Journal, Options};

    use super::*;
    use crate::scene::{BLOCK, BLOCKS, DATA_START, RING_BYTES, Target, UUID, read_through};

    pub struct Played {
        before: Vec<Vec<u8>>,
        events: Vec<Event>,
    }

    async fn open(env: &block::Env, disks: &[Rc<Disk>]) -> Scene {
        let target = Target::new(env, &disks[1].lower(), 0);
        let lower = disks[0].lower();
        let opened = Journal::open(env, &lower, 0, &Options::default(), target.clone()).await;
        let (journal, opened) = opened.unwrap();
        Scene { env: env.clone(), lower: disks[1].lower(), journal, target, opened }
    }

    pub fn play(steps: u64) -> Played {
        let (world, trace) = (SimWorld::new(1), Trace::default());
        let env = world.env();
        let blank = [DATA_START, BLOCKS * BLOCK];
        let disks: Vec<_> =
            (0..2).map(|n| Disk::new(n, vec![0; blank[n] as usize], &trace)).collect();
        block_on(&world, async {
            let lower = disks[0].lower();
            Journal::format(&env, &lower, 0, UUID, RING_BYTES, 1).await.unwrap();
            trace.take();
            let before = disks.iter().map(|disk| disk.bytes.borrow().clone()).collect();
            let scene = open(&env, &disks).await;
            for step in 1..=steps {
                trace.note(Event::Begun(step));
                scene.step(step).await.unwrap();
                if step % 3 == 0 {
                    scene.journal.sync().await.unwrap();
                    note_durable(&trace, step);
                }
            }
            Played { before, events: trace.take() }
        })
    }

    pub fn cut_all(played: &Played, steps: u64) -> usize {
        let ways = vec![Way::Ring; steps as usize];
        let mut disks: Vec<_> = played.before.iter().cloned().map(Moment::new).collect();
        let (mut durable, mut begun, mut states) = (0, 0, 0);
        for event in &played.events {
            match event {
                Event::Begun(step) => begun = *step,
                Event::Answered(step) => durable = *step,
                Event::Write { disk, .. } => disks[*disk].note(event),
                Event::Flush { disk } => {
                    states += cut(&disks, (durable, begun), &ways);
                    disks[*disk].note(event);
                }
            }
        }
        states
    }

    fn cut(disks: &[Moment], range: (u64, u64), ways: &[Way]) -> usize {
        let mut states = 0;
        let mut ring = Vec::new();
        disks[0].cuts(|image| ring.push(image));
        for blocks in [disks[1].with(|_, _| false), disks[1].with(|_, _| true), {
            disks[1].with(|n, _| n % 2 == 0)
        }] {
            for image in &ring {
                states += 1;
                look([image.clone(), blocks.clone()], range, ways);
            }
        }
        states
    }

    fn look(images: [Vec<u8>; 2], range: (u64, u64), ways: &[Way]) {
        let (world, trace) = (SimWorld::new(2), Trace::default());
        let env = world.env();
        let disks: Vec<_> =
            images.into_iter().enumerate().map(|(n, it)| Disk::new(n, it, &trace)).collect();
        block_on(&world, async {
            let scene = open(&env, &disks).await;
            let whole = block::ByteRange::new(0, BLOCKS * BLOCK).unwrap();
            let all = read_through(&env, &scene.journal, &scene.lower, 0, whole).await.unwrap();
            let found = (range.0..=range.1).any(|steps| expected(ways, steps) == all);
            assert!(found, "{range:?}");
        });
    }
}
