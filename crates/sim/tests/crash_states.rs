//! Tries all crash states of a live change or of a first start: after each simulated event, every subset of the writes
//! that are not durable. In each state the old or the new graph must start without options, with all flushed bytes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use block::control::Nothing;
use block::control::job::Wait;
use block::{ByteRange, Op};
use common::{DATA_BYTES, LIMIT, NS_MAX, PIECE, Rig, disk, moments, opening, text};
use graph::labels::Opening;
use graph::live::{RunningGraph, Unchanged};
use sim::crash::{Crash, CrashStates, Script, Setup, every_crash};
use sim::{Faults, Image, Reached, WriteLog};

const FLUSHED: u8 = 0x5a;

/// Returns the crash states after a power cut at the moment of `images` that `seen` does not have yet.
fn cut(seen: &mut CrashStates, images: &[Image]) -> Vec<Vec<Image>> {
    seen.after(Crash::PowerCut, images, &WriteLog::default())
}

/// Starts each of the two graphs on disks in the crash state `state`, and returns whether each graph starts. At least
/// one graph must start, with all flushed bytes.
fn who_comes_up(state: &[Image], texts: &[String; 2]) -> [bool; 2] {
    let mut said = Vec::new();
    let come = texts.each_ref().map(|text| {
        let rig = Rig::of(state);
        match rig.try_open(text) {
            Ok(live) => {
                let client = rig.client(&live);
                assert!(rig.holds(&client, FLUSHED), "what was flushed is there: {text}");
                if live.now().graph.member("move").is_some() {
                    rig.pass(LIMIT);
                    assert!(rig.holds(&client, FLUSHED), "it has moved: {text}");
                }
                return true;
            }
            Err(Unchanged::Refused(why)) => said.extend(why.iter().map(ToString::to_string)),
            Err(unchanged) => said.push(format!("{unchanged:?}")),
        }
        false
    });
    assert!(come.contains(&true), "one of two graphs comes up: {said:?}");
    come
}

/// Waits for the end of the graph's migration, if the graph has one.
async fn moved(live: &RunningGraph) {
    let now = live.now();
    if let Some(moving) = now.graph.member("move") {
        let done = now.graph.ask::<Wait>(moving, Nothing {}).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Tries all crash states of a live change of a mirror from the disks `from` to the disks `to`. If the change removes a
/// member, exactly one of the two graphs may start in each state.
fn every_crash_of_a_change(from: &[usize], to: &[usize], safe: bool) {
    let both = every_crash_between([from, to].map(|members| text(members, safe)));
    let leaves = from.iter().any(|n| !to.contains(n));
    assert!(both == 0 || !leaves, "in {both} states both graphs come up");
}

fn every_crash_between(texts: [String; 2]) -> usize {
    every_crash_over(Rig::new(3), texts)
}

/// Tries all crash states of a live change from the first to the second spec. Returns the number of states in which
/// both graphs can start.
fn every_crash_over(rig: Rig, texts: [String; 2]) -> usize {
    let rig = Rc::new(rig);
    let live = Rc::new(rig.open(&texts[0]));
    rig.pass(LIMIT);
    rig.fill(&rig.client(&live), FLUSHED);
    let (own, its, wanted) = (rig.clone(), live.clone(), texts[1].clone());
    let change = async move {
        let (turn, now) = (its.turn().await, its.now());
        let looked = own.look(&wanted, opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        its.change(&turn, planned, Some(probe), LIMIT).await?;
        moved(&its).await;
        Ok::<_, Unchanged>(())
    };
    let (mut seen, mut came, mut both) = (CrashStates::default(), [0; 2], 0);
    let done = moments(&rig, change, |images| {
        for state in cut(&mut seen, &images) {
            let up = who_comes_up(&state, &texts);
            came.iter_mut().zip(up).for_each(|(times, up)| *times += usize::from(up));
            both += usize::from(up == [true; 2]);
        }
    });
    done.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    let states = seen.count();
    println!("{states} states; before and after come up in {came:?}");
    assert!(states > 30 && !came.contains(&0), "both sides of the change are seen");
    both
}

/// Makes a live change to the spec `to`. If `ill` is a disk number, all writes of that disk fail from the planning on.
async fn change(
    rig: Rc<Rig>,
    live: Rc<RunningGraph>,
    to: String,
    ill: Option<usize>,
) -> Result<(), Unchanged> {
    let (turn, now) = (live.turn().await, live.now());
    let (planned, probe) = rig.look(&to, opening(true), now.labels.as_ref()).await?;
    if let Some(ill) = ill {
        rig.disks[ill].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    }
    live.change(&turn, planned, Some(probe), LIMIT).await.map(drop)
}

/// Tries all crash states of a live change that fails because writes of the disk `ill` fail, and is undone. `updates`:
/// the number of label updates before the change. Returns the numbers of states in which both graphs can start: during
/// the change, and after the undo.
fn every_crash_of_an_undone_change(
    from: &[usize],
    to: &[usize],
    ill: usize,
    updates: usize,
) -> [usize; 2] {
    let texts = [from, to].map(|members| text(members, false));
    let rig = Rc::new(Rig::new(4));
    let live = Rc::new(rig.open(&texts[0]));
    for _ in 0..updates {
        rig.pass(LIMIT);
        rig.fill(&rig.client(&live), FLUSHED);
    }
    let both = |states: Vec<Vec<Image>>| {
        states.iter().filter(|state| who_comes_up(state, &texts) == [true; 2]).count()
    };
    let (mut seen, mut meanwhile) = (CrashStates::default(), 0);
    let fails = change(rig.clone(), live.clone(), texts[1].clone(), Some(ill));
    let done = moments(&rig, fails, |images| meanwhile += both(cut(&mut seen, &images)));
    assert!(done.is_err(), "it fails");
    let images: Vec<_> = rig.disks.iter().map(|disk| disk.image_in_flight()).collect();
    let after = both(cut(&mut CrashStates::default(), &images));

    // The failed change must not prevent a second attempt.
    rig.disks[ill].set_faults(Faults::default());
    rig.pass(LIMIT);
    let again = change(rig.clone(), live, texts[1].clone(), None);
    let again = rig.world.block_on(again).unwrap();
    again.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    [meanwhile, after]
}

#[test]
fn one_graph_starts_after_undone_removal_of_member() {
    assert_eq!(every_crash_of_an_undone_change(&[0, 1, 2], &[0, 1], 1, 1), [0, 0]);
}

#[test]
fn one_graph_starts_after_undone_replacement_of_member() {
    for ill in 1..4 {
        assert_eq!(every_crash_of_an_undone_change(&[0, 1, 2], &[1, 2, 3], ill, 1), [0, 0]);
    }
}

/// The writes fail on the only disk that both graphs have, so the undo cannot be recorded in its label.
#[test]
fn one_graph_starts_after_undone_change_fails_on_shared_disk() {
    for updates in 1..4 {
        let [_, after] = every_crash_of_an_undone_change(&[0, 1], &[0, 2], 0, updates);
        assert_eq!(after, 0);
    }
}

#[test]
fn one_graph_starts_after_undone_addition_of_member() {
    for ill in 0..3 {
        every_crash_of_an_undone_change(&[0, 1], &[0, 1, 2], ill, 1);
    }
}

#[test]
fn live_change_that_adds_member_survives_power_cuts() {
    every_crash_of_a_change(&[0, 1], &[0, 1, 2], false);
}

#[test]
fn live_change_that_adds_member_below_crypt_survives_power_cuts() {
    every_crash_of_a_change(&[0, 1], &[0, 1, 2], true);
}

/// The mirror's record of the resync progress must be held back until the labels record the live change. One disk is so
/// fast that its label would otherwise get the record before the other labels.
#[test]
fn live_change_that_resyncs_added_member_survives_power_cuts() {
    let rig = Rig::of_speeds(&[NS_MAX / 50, NS_MAX, NS_MAX]);
    let texts = [&[0, 1][..], &[0, 1, 2]].map(|members| text(members, false));
    let mirror = "kind = \"mirror\"";
    let regions = format!("{mirror}, region = \"4KiB\", clear_delay = \"1ms\"");
    every_crash_over(rig, texts.map(|text| text.replace(mirror, &regions)));
}

#[test]
fn live_change_that_replaces_member_survives_power_cuts() {
    every_crash_of_a_change(&[0, 1], &[0, 2], false);
}

#[test]
fn live_change_that_removes_member_survives_power_cuts() {
    every_crash_of_a_change(&[0, 1, 2], &[0, 2], true);
}

/// The process is killed or the power is cut during the first start of a graph, or later. The second start needs no option.
#[test]
fn graph_first_start_can_be_repeated_after_power_cut() {
    let specs = vec![text(&[0, 1], true)];
    let setup = Setup {
        registry: kinds::REGISTRY,
        disks: vec![disk(DATA_BYTES, NS_MAX); 2],
        specs,
        again: 0,
        running: Duration::ZERO,
    };
    let script = async |script: Script| {
        script.write(0, PIECE as u64, FLUSHED).await;
        script.flush().await;
    };
    let crashes = every_crash(&setup, script, |running, log| {
        let bytes = running.read(0, PIECE as u64).map_err(|error| error.to_string())?;
        let is_there = bytes.iter().all(|byte| *byte == FLUSHED);
        let promised = log.writes(Reached::Acknowledged) > 0;
        if is_there || !promised { Ok(()) } else { Err("the write is lost".to_owned()) }
    });
    let crashes = crashes.unwrap_or_else(|words| panic!("{words}"));
    println!("{crashes:?}");
    assert!(crashes.states > 100, "the start writes");
}

/// A migration encrypts a volume in place. In each crash state the volume must have its old content.
#[test]
fn migration_in_place_survives_power_cuts() {
    let disk = "[disk]\nd0 = { path = \"/disk0\", label = true }\n";
    let devices = "[device]\nsafe = { kind = \"crypt\", on = \"d0\", key = \"credential:safe\", \
                   kdf_memory = \"64KiB\", kdf_passes = 1 }\n\
                   move = { kind = \"migrate\", on = [\"d0\", \"safe\"] }\n";
    let spec = |devices: &str, on: &str| {
        format!("name = \"g\"\n{disk}{devices}[export]\nvol = {{ on = \"{on}\" }}\n")
    };
    every_crash_between([spec("", "d0"), spec(devices, "move")]);
}

/// A live change reopens the disks with other options, which labels do not record. It writes the labels through the
/// reopened disks while the old handles still serve clients.
#[test]
fn live_change_that_reopens_members_survives_power_cuts() {
    let before = text(&[0, 1], true);
    let after =
        before.replace("label = true", "label = true, cache = \"buffered\", timeout = \"9s\"");
    assert_ne!(before, after);
    every_crash_between([before, after]);
}

/// Data bytes of a grown disk. The disk grows so much that its new label area does not overlap the old label area.
const GROWN_BYTES: u64 = DATA_BYTES + (2 << 20);

/// Starts the graph on disks in a crash state of a growth. Checks that it has all flushed bytes, and the old or the new
/// size. Returns the size in bytes.
fn comes_up_whole(state: &[Image], text: &str) -> u64 {
    let rig = Rig::of_larger(state, GROWN_BYTES);
    let live = rig.open(text);
    let client = rig.client(&live);
    assert!(rig.holds(&client, FLUSHED), "what was flushed is there");
    let size = client.info().size;
    assert!([DATA_BYTES, GROWN_BYTES].contains(&size), "{size}");
    size
}

#[test]
fn live_change_that_grows_members_survives_power_cuts() {
    let text = text(&[0, 1], false);
    let small: Vec<Image> = {
        let rig = Rig::new(2);
        let live = rig.open(&text);
        rig.pass(LIMIT);
        rig.fill(&rig.client(&live), FLUSHED);
        rig.disks.iter().map(|disk| disk.image_in_flight()).collect()
    };
    let rig = Rc::new(Rig::of_larger(&small, GROWN_BYTES));
    let live = Rc::new(rig.open(&text));
    assert_eq!(rig.client(&live).info().size, DATA_BYTES, "nobody has said that it is to grow");
    rig.pass(LIMIT);
    let (own, its, wanted) = (rig.clone(), live.clone(), text.clone());
    let change = async move {
        let (turn, now) = (its.turn().await, its.now());
        let grow = BTreeMap::from(["d0", "d1"].map(|disk| (disk.to_owned(), 0)));
        let opening = Opening { grow, ..opening(true) };
        let (planned, probe) = own.look(&wanted, opening, now.labels.as_ref()).await?;
        its.change(&turn, planned, Some(probe), LIMIT).await
    };
    let (mut seen, mut sizes) = (CrashStates::default(), BTreeSet::new());
    let done = moments(&rig, change, |images| {
        for state in cut(&mut seen, &images) {
            sizes.insert(comes_up_whole(&state, &text));
        }
    });
    done.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    println!("{} states", seen.count());
    assert_eq!(sizes, BTreeSet::from([DATA_BYTES, GROWN_BYTES]), "both sides are seen");
    let client = rig.client(&live);
    assert_eq!(client.info().size, GROWN_BYTES);
    for at in (DATA_BYTES..GROWN_BYTES).step_by(PIECE) {
        let into = rig.world.env().buf(PIECE).unwrap();
        let range = ByteRange::new(at, PIECE as u64).unwrap();
        let Op::Read { into, .. } = rig.call(&client, Op::read(range, into)) else {
            panic!("a read is answered as one")
        };
        assert!(into.read().iter().all(|byte| *byte == 0), "what is new is zeros: {at}");
    }
}
