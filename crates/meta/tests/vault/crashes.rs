//! Tests of a vault after every power cut: at each flush and commit of a scenario, every subset of unflushed writes.

use std::rc::Rc;

use sim::SimWorld;

use crate::scene::{self, SMALL, block_on, some};
use meta::vault::{Options, Vault};
use testkit::recorded::{Disk, Event, Fails, Moment, Trace};

/// Recording of a scenario: the bytes of the vault's disks before the scenario, and all events on the disks.
pub struct Played {
    pub before: Vec<Vec<u8>>,
    pub events: Vec<Event>,
}

/// Opens a vault of `copies` copies, runs `scenario` on it, and returns the recording.
fn play(copies: usize, scenario: impl AsyncFnOnce(&Vault, &Trace)) -> Played {
    play_on(copies, async |vault, trace, _| scenario(vault, trace).await)
}

/// Opens a vault of `copies` copies, runs a scenario that also changes the disks' faults, and returns the recording.
fn play_on(copies: usize, scenario: impl AsyncFnOnce(&Vault, &Trace, &[Rc<Disk>])) -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = scene::blank(copies, &trace);
    block_on(&world, scene::format(&env, &disks));
    trace.take();
    let before = disks.iter().map(|disk| disk.bytes.borrow().clone()).collect();
    block_on(&world, async {
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        scenario(&vault, &trace, &disks).await;
    });
    Played { before, events: trace.take() }
}

/// The number of crash states of which one is also tested with one more step and another opening.
const USED_FURTHER: usize = 16;

/// Opens a vault on the disks that a power cut has left. It must show a step from `least` to `most`. If `further`,
/// commits one more step, and checks the vault again after another opening.
fn look(images: Vec<Vec<u8>>, least: u64, most: u64, further: bool, what: &str) {
    let (world, trace) = (SimWorld::new(2), Trace::default());
    let env = world.env();
    let disks: Vec<_> =
        images.into_iter().enumerate().map(|(n, bytes)| Disk::new(n, bytes, &trace)).collect();
    block_on(&world, async {
        let vault = Vault::open(&env, some(&disks), &SMALL).await;
        let vault = vault.unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = scene::shown(&vault).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(
            (least..=most).contains(&shown),
            "{what}: step {shown} is shown; {least} was answered, {most} begun"
        );
        if !further {
            return;
        }
        let objects = scene::objects(&vault).await.unwrap();
        scene::step(&vault, &objects, shown + 1).await.unwrap();
        drop((vault, objects));
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), shown + 1, "{what}: then a step more");
    });
}

/// Calls `each` for the moments of a recording: before each flush, after each acknowledged step, and at the end. The
/// arguments are the event's number, the disks, and the numbers of the last acknowledged and the last begun step.
pub fn moments(played: &Played, mut each: impl FnMut(usize, &[Moment], u64, u64)) {
    let mut disks: Vec<Moment> = played.before.iter().cloned().map(Moment::new).collect();
    let (mut answered, mut begun) = (0, 0);
    for (number, event) in played.events.iter().enumerate() {
        match event {
            Event::Write { disk, .. } => disks[*disk].note(event),
            // A power cut during a flush is covered by one before it.
            Event::Flush { disk } => {
                each(number, &disks, answered, begun);
                disks[*disk].note(event);
            }
            Event::Begun(step) => begun = *step,
            Event::Answered(step) => {
                answered = *step;
                each(number, &disks, answered, begun);
            }
        }
    }
    each(played.events.len(), &disks, answered, begun);
}

/// Checks the vault on one disk after every power cut in the recording. Returns the number of crash states.
fn cut_one(played: &Played) -> usize {
    let mut states = 0;
    moments(played, |event, disks, answered, begun| {
        disks[0].cuts(|image| {
            states += 1;
            let further = states % USED_FURTHER == 0;
            look(vec![image], answered, begun, further, &format!("at event {event}"));
        });
    });
    states
}

#[test]
fn vault_commits_stay_atomic_after_power_cut_at_any_write() {
    let played = play(1, async |vault, trace| scene::run(vault, trace, 1, 4).await.unwrap());
    let states = cut_one(&played);
    assert!(states > 1000, "only {states} states");
}

#[test]
fn vault_keeps_every_commit_after_power_cut_during_checkpoint() {
    let played = play(1, async |vault, trace| {
        scene::run(vault, trace, 1, 2).await.unwrap();
        vault.flush().await.unwrap();
        scene::run(vault, trace, 3, 4).await.unwrap();
        vault.flush().await.unwrap();
        scene::run(vault, trace, 5, 5).await.unwrap();
        vault.flush().await.unwrap();
    });
    let states = cut_one(&played);
    assert!(states > 1000, "only {states} states");
}

#[test]
fn vault_keeps_every_commit_after_power_cut_during_log_wrap() {
    // A record takes one page, and the log has 16. Later laps are like the second one.
    let mut played = play(1, async |vault, trace| scene::run(vault, trace, 1, 20).await.unwrap());
    let lap = |event: &Event| matches!(event, Event::Begun(15));
    let at = played.events.iter().position(lap).expect("there are 20 steps");
    let before: Vec<Event> = played.events.drain(..at).collect();
    let mut disk = Moment::new(played.before.remove(0));
    before.iter().for_each(|event| disk.note(event));
    played.before = vec![disk.with(|_, _| true)];
    played.events.splice(0..0, [Event::Begun(14), Event::Answered(14)]);
    let states = cut_one(&played);
    assert!(states > 1500, "only {states} states");
}

#[test]
fn vault_keeps_every_commit_after_power_cut_during_recovery() {
    let played = play(1, async |vault, trace| {
        scene::run(vault, trace, 1, 3).await.unwrap();
        vault.flush().await.unwrap();
        scene::run(vault, trace, 4, 5).await.unwrap();
    });
    let mut after = Vec::new();
    moments(&played, |_, disks, answered, begun| {
        after.push((disks[0].with(|_, _| true), answered, begun));
        after.push((disks[0].with(|n, s| (n + s) % 2 == 0), answered, begun));
    });
    let mut states = 0;
    for (image, answered, begun) in after {
        let (world, trace) = (SimWorld::new(3), Trace::default());
        let disk = Disk::new(0, image.clone(), &trace);
        let disks = [disk];
        let env = world.env();
        block_on(&world, Vault::open(&env, some(&disks), &SMALL)).unwrap();
        let again = Played { before: vec![image], events: trace.take() };
        moments(&again, |event, disks, _, _| {
            disks[0].cuts(|image| {
                states += 1;
                let further = states % USED_FURTHER == 0;
                let what = format!("at event {event} of an opening");
                look(vec![image], answered, begun, further, &what);
            });
        });
    }
    assert!(states > 500, "only {states} states");
}

/// Returns the bytes of a disk in some of the crash states of a moment.
pub fn some_cuts(moment: &Moment) -> Vec<Vec<u8>> {
    vec![
        moment.with(|_, _| false),
        moment.with(|_, _| true),
        moment.with(|n, _| n % 2 == 0),
        moment.with(|n, _| n % 2 == 1),
        moment.with(|_, s| s % 8 == 0),
        moment.with(|_, s| s % 8 != 0),
    ]
}

#[test]
fn vault_copy_alone_keeps_every_commit_after_power_cut() {
    let played = play(2, async |vault, trace| {
        scene::run(vault, trace, 1, 2).await.unwrap();
        vault.flush().await.unwrap();
        scene::run(vault, trace, 3, 4).await.unwrap();
    });
    let mut states = 0;
    moments(&played, |event, disks, answered, begun| {
        let what = format!("at event {event}");
        for one in some_cuts(&disks[0]) {
            for two in some_cuts(&disks[1]) {
                states += 1;
                let further = states % USED_FURTHER == 0;
                look(vec![one.clone(), two], answered, begun, further, &what);
            }
            look_degraded(0, one, answered, begun, &what);
        }
        for two in some_cuts(&disks[1]) {
            look_degraded(1, two, answered, begun, &what);
        }
    });
    assert!(states > 500, "only {states} states");
}

/// Opens a vault of two copies with one copy alone, degraded. It must show a step from `least` to `most`.
fn look_degraded(copy: usize, image: Vec<u8>, least: u64, most: u64, what: &str) {
    let (world, trace) = (SimWorld::new(4), Trace::default());
    let env = world.env();
    let disk = Disk::new(copy, image, &trace);
    block_on(&world, async {
        let here = |here: usize| (here == copy).then(|| disk.lower());
        let lowers = || vec![here(0), here(1)];
        let refused = Vault::open(&env, lowers(), &SMALL).await.err().expect("one is missing");
        assert_eq!(refused.kind(), block::ErrorKind::Degraded, "{what}: {refused}");
        let alone = Options { may_degrade: true, ..SMALL };
        let vault = Vault::open(&env, lowers(), &alone).await;
        let vault = vault.unwrap_or_else(|error| panic!("{what}, copy {copy} alone: {error}"));
        let shown = scene::shown(&vault).await.unwrap();
        assert!((least..=most).contains(&shown), "{what}, copy {copy} alone: step {shown}");
        drop(vault);
        // From now on the vault opens without the other one.
        let vault = Vault::open(&env, lowers(), &SMALL).await.unwrap();
        assert_eq!(scene::shown(&vault).await.unwrap(), shown);
    });
}

#[test]
fn vault_keeps_every_commit_after_power_cut_during_resync() {
    let played = play_on(2, async |vault, trace, disks| {
        scene::run(vault, trace, 1, 2).await.unwrap();
        disks[1].fails.set(Fails { writes_left: Some(0), ..Fails::default() });
        scene::run(vault, trace, 3, 4).await.unwrap();
        disks[1].fails.set(Fails::default());
        vault.rejoin(1).await.unwrap();
        scene::run(vault, trace, 5, 6).await.unwrap();
    });
    let (mut states, mut joined) = (0, false);
    moments(&played, |event, disks, answered, begun| {
        let what = format!("at event {event}");
        for one in some_cuts(&disks[0]) {
            for two in some_cuts(&disks[1]) {
                states += 1;
                let further = states % USED_FURTHER == 0;
                look(vec![one.clone(), two], answered, begun, further, &what);
            }
        }
        // Once a step was acknowledged after the resync, the copy must be usable alone.
        joined |= answered >= 5;
        if joined {
            for two in some_cuts(&disks[1]) {
                look_degraded(1, two, answered, begun, &what);
            }
        }
    });
    assert!(joined && states > 500, "{states} states");
}
