//! Posts with data after two crashes: one with records in flight, and one in the opening after it or soon behind.
//!
//! The first crash leaves missing and torn records, and missing data. Until the opening has ended, the second one may leave
//! each state that the first one may leave. Behind that, the opening's state stays, and only the posts after it may be lost.

use std::collections::BTreeSet;

use sim::SimWorld;
use testkit::recorded::{Event, Moment, Trace};

use crate::crashes::{Played, moments, some_cuts};
use crate::data::{Disks, FEW, POSTS, first_posts, play_posts, post, steps_of};
use crate::scene::{SMALL, block_on};

/// Steps that are posted after the first crash. Their data go to places that no earlier step has used, and the first one
/// takes the number of a record that the opening may have dropped.
const LATER: [u64; 2] = [POSTS + 1, POSTS + 2];

/// The state of the map: the step that each of its entries shows.
type State = Vec<Option<u64>>;

/// A crash: the bytes of the disks, and the numbers of the last durable and the last begun step.
type Crash = (Vec<Vec<u8>>, u64, u64);

/// Returns the crashes of a recording, each once.
fn crashes(played: &Played) -> Vec<Crash> {
    let mut all = BTreeSet::new();
    moments(played, |_, disks, durable, begun| {
        all.extend(states(disks).into_iter().map(|images| (images, durable, begun)));
    });
    all.into_iter().collect()
}

/// Returns the bytes of the disks after a kill, or after each power cut, at one moment.
fn states(disks: &[Moment]) -> Vec<Vec<Vec<u8>>> {
    let few = |moment: &Moment| some_cuts(moment).into_iter().take(FEW).collect::<Vec<_>>();
    let mut all = Vec::new();
    match disks {
        [one] => one.cuts(|image| all.push(vec![image])),
        [vault, data] => {
            for other in few(data) {
                vault.cuts(|image| all.push(vec![image, other.clone()]));
            }
            for other in few(vault) {
                data.cuts(|image| all.push(vec![other.clone(), image]));
            }
        }
        _ => unreachable!("there are no more"),
    }
    all
}

/// Returns the bytes of the disks after some power cuts at one moment. With two disks, the choice depends on `number`.
fn some_states(disks: &[Moment], number: usize) -> Vec<Vec<Vec<u8>>> {
    match disks {
        [one] => some_cuts(one).into_iter().map(|image| vec![image]).collect(),
        [vault, data] => {
            let data = some_cuts(data);
            let other = |n: usize| data[(n * 5 + number) % data.len()].clone();
            let both = |(n, image)| vec![image, other(n)];
            some_cuts(vault).into_iter().enumerate().map(both).collect()
        }
        _ => unreachable!("there are no more"),
    }
}

/// Returns the states after each number of the later steps, beginning with `first`.
fn with_later(first: &State) -> Vec<State> {
    let mut all = vec![first.clone()];
    for step in LATER {
        let mut next = all.last().expect("there is a first one").clone();
        let entry = (step % next.len() as u64) as usize;
        next[entry] = Some(step);
        all.push(next);
    }
    all
}

/// Opens the vault after a first crash, and posts the later steps. Returns the recording, with the end of the opening as an
/// answered step, and the state that the opening has shown.
fn play_second(images: &[Vec<u8>]) -> (Played, State) {
    let (world, trace) = (SimWorld::new(2), Trace::default());
    let env = world.env();
    let disks = Disks::of(images.to_vec(), &trace);
    let shown = block_on(&world, async {
        let vault = disks.open(&env, &SMALL).await.unwrap();
        let shown = steps_of(&vault).await;
        trace.note(Event::Answered(LATER[0] - 1));
        for step in LATER {
            trace.note(Event::Begun(step));
            post(&env, &disks, &vault, step).await;
        }
        vault.sync().await.unwrap();
        trace.note(Event::Answered(LATER[1]));
        shown
    });
    (Played { before: images.to_vec(), events: trace.take() }, shown)
}

/// Opens the vault after both crashes, and returns the state that it shows, after a check of the data.
fn open(images: Vec<Vec<u8>>, may_change: bool, what: &str) -> State {
    let (world, trace) = (SimWorld::new(3), Trace::default());
    let env = world.env();
    let disks = Disks::of(images, &trace);
    block_on(&world, async {
        let vault = disks.open(&env, &SMALL).await;
        let vault = vault.unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = steps_of(&vault).await;
        disks.check_data(&shown, may_change, what);
        shown
    })
}

/// Checks the vault after each second crash behind one first crash. Returns the number of states.
fn crash_again((images, durable, begun): &Crash, what: &str) -> usize {
    let (played, shown) = play_second(images);
    let possible = first_posts(*durable, *begun);
    assert!(possible.contains(&shown), "{what}: the opening shows {shown:?}");
    let later = with_later(&shown);
    let may_change = *begun == POSTS;
    let mut count = 0;
    moments(&played, |event, disks, answered, posted| {
        let kill = disks.iter().map(|disk| disk.with(|_, _| true)).collect();
        for images in some_states(disks, event).into_iter().chain([kill]) {
            count += 1;
            let what = format!("{what}, then at event {event} of the opening");
            let seen = open(images, may_change, &what);
            let is_possible = match answered {
                0 => possible.contains(&seen),
                _ => {
                    let behind = |step: u64| (step.max(POSTS) - POSTS) as usize;
                    later[behind(answered)..=behind(posted)].contains(&seen)
                }
            };
            assert!(is_possible, "{what}: {seen:?} after the opening has shown {shown:?}");
        }
    });
    count
}

#[test]
fn vault_keeps_first_posts_after_second_crash_in_opening() {
    for apart in [false, true] {
        let (mut states, first) = (0, crashes(&play_posts(apart)));
        // Two disks have too many crash states to try all.
        let every = if apart { 2 } else { 1 };
        for (number, crash) in first.iter().enumerate().step_by(every) {
            states += crash_again(crash, &format!("apart {apart}, state {number}"));
        }
        println!("{} first crashes, {states} second ones", first.len());
        assert!(states > 3000, "only {states} states");
    }
}
