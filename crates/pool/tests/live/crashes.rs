//! Power cuts and kills at every flush of a short program: the pool then has a prefix of the changes, with all that a
//! flush has covered.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Env, Result};
use pool::live::Pool;
use sim::SimWorld;
use sim::draw::Stream;
use testkit::recorded::{Disk, Event, Moment, Trace};

use crate::scene::{
    assert_whole, blank, block_on, bytes, find, make, name, names, open, stamps, version,
};

/// Blocks of the vdisks of these tests.
const BLOCKS: u64 = 12;

/// Number of steps of the program.
const STEPS: u64 = 26;

/// Random subsets of the unflushed writes that are tried at each moment, besides the first ones of each number.
const SUBSETS: u64 = 6;

/// The content of each version by name.
type State = BTreeMap<String, Vec<u64>>;

async fn state(env: &Env, pool: &Pool) -> Result<State> {
    let mut state = State::new();
    for name in names(pool).await? {
        let found = find(pool, &name).await;
        state.insert(name, stamps(env, pool, &found, BLOCKS).await?);
    }
    Ok(state)
}

/// Carries out one step of the program. Returns whether it ends with a flush.
async fn step(env: &Env, pool: &Pool, step: u64) -> bool {
    match step {
        0 => drop(pool.create(&name("web"), BLOCKS * 4096).await.unwrap()),
        5 | 9 | 14 | 17 | 22 => drop(pool.snapshot(&[name("web")], None).await.unwrap()),
        11 => drop(pool.clone_of(&version("web@1"), &name("job")).await.unwrap()),
        13 | 21 => pool.checkpoint().await.unwrap(),
        16 => drop(pool.remove(&version("web@2")).await.unwrap()),
        18 => drop(pool.roll_back(&version("web@1")).await.unwrap()),
        23 => drop(pool.roll_back(&version("web@4")).await.unwrap()),
        19 => drop(pool.remove(&version("job")).await.unwrap()),
        24 => drop(pool.remove(&version("web@1")).await.unwrap()),
        _ => {
            let vdisk = if step == 12 || step == 15 { "job" } else { "web" };
            let head = find(pool, vdisk).await;
            let block = step * 5 % (BLOCKS - 3);
            pool.write(&head, block, bytes(env, step * 10, 3)).await.unwrap();
        }
    }
    let flushes = step % 3 == 2;
    if flushes {
        pool.flush().await.unwrap();
    }
    flushes || step == 13 || step == 21
}

/// The recorded program: the disk before it, its events, and the state after each step.
struct Played {
    before: Vec<u8>,
    events: Vec<Event>,
    states: Vec<State>,
}

fn play() -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let (env, disk) = (world.env(), blank(&trace));
    block_on(&world, async {
        make(&env, &disk).await;
        let before = disk.bytes.borrow().clone();
        trace.take();
        let pool = open(&env, &disk).await.unwrap();
        let mut states = vec![State::new()];
        for number in 0..STEPS {
            trace.note(Event::Begun(number + 1));
            let is_durable = step(&env, &pool, number).await;
            states.push(state(&env, &pool).await.unwrap());
            if is_durable {
                trace.note(Event::Answered(number + 1));
            }
        }
        Played { before, events: trace.take(), states }
    })
}

/// Opens the pool on the bytes that a crash has left. Its state must be that after a step from `least` to `most`.
fn look(bytes_left: Vec<u8>, played: &Played, (least, most): (u64, u64), what: &str) {
    let world = SimWorld::new(2);
    let env = world.env();
    let disk: Rc<Disk> = Disk::new(0, bytes_left, &Trace::default());
    block_on(&world, async {
        let pool = open(&env, &disk).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let is = state(&env, &pool).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let possible = &played.states[least as usize..=most as usize];
        assert!(
            possible.contains(&is),
            "{what}: none of the states {least} to {most}: {is:?}, wanted {possible:?}"
        );
        let checked = pool.check().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_whole(&checked, what);
        if !is.contains_key("web") {
            return;
        }
        // The pool goes on.
        let web = find(&pool, "web").await;
        pool.write(&web, 0, bytes(&env, 999, 2)).await.unwrap();
        pool.flush().await.unwrap();
        drop((web, pool));
        let pool = open(&env, &disk).await.unwrap();
        let web = find(&pool, "web").await;
        assert_eq!(stamps(&env, &pool, &web, 2).await.unwrap(), [999, 1000], "{what}: then");
    });
}

#[test]
fn pool_has_prefix_with_all_flushed_changes_after_each_crash() {
    let played = play();
    let draw = Stream::new(1, "subsets", 0);
    let mut disk = Moment::new(played.before.clone());
    let (mut answered, mut begun, mut states, mut pending) = (0, 0, 0, 0);
    for (number, event) in played.events.iter().enumerate() {
        match event {
            Event::Write { .. } => {
                disk.note(event);
                pending += 1;
            }
            Event::Flush { .. } => {
                let what = |how: &str| format!("event {number}, {how}");
                let range = (answered, begun);
                for first in 0..=pending {
                    let bytes = disk.with(|n, _| n < first);
                    look(bytes, &played, range, &what(&format!("the first {first} writes")));
                }
                for _ in 0..SUBSETS {
                    let kept = draw.below(u64::MAX);
                    let bytes = disk.with(|n, _| kept >> (n % 64) & 1 == 1);
                    look(bytes, &played, range, &what(&format!("writes {kept:#x}")));
                }
                states += 1 + pending as u64 + SUBSETS;
                disk.note(event);
                pending = 0;
            }
            Event::Begun(step) => begun = *step,
            Event::Answered(step) => answered = *step,
        }
    }
    assert!(states > 150, "{states} crash states");
}
