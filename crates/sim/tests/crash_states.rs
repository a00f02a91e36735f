//! All crash states of a change or of a first start, within bounds: after each event, every subset of the
//! writes that are not durable. In each state the graph before or after the change must come up, without any
//! decision of an operator, with all flushed bytes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::control::Nothing;
use block::control::job::Wait;
use block::{ByteRange, Op};
use common::{DATA_BYTES, LIMIT, NS_MAX, PIECE, Rig, moments, opening, text};
use graph::labels::Opening;
use graph::live::{RunningGraph, Unchanged};
use sim::{Faults, Image};

/// Up to so many writes that are not durable, every subset of them is tried.
const WRITES_MAX: usize = 8;

const FLUSHED: u8 = 0x5a;

/// Returns the states in which a power cut at one moment can leave these disks.
fn states(images: &[Image]) -> Vec<Vec<Image>> {
    let open: Vec<Vec<u64>> = images.iter().map(Image::open_writes).collect();
    let writes: Vec<(usize, u64)> = open
        .iter()
        .enumerate()
        .flat_map(|(disk, writes)| writes.iter().map(move |write| (disk, *write)))
        .collect();
    let cut = |keeps: &dyn Fn(usize) -> bool| {
        let kept: BTreeSet<(usize, u64)> =
            (0..writes.len()).filter(|n| keeps(*n)).map(|n| writes[n]).collect();
        let of =
            |(disk, image): (usize, &Image)| image.cut(|write, _| kept.contains(&(disk, write)));
        images.iter().enumerate().map(of).collect::<Vec<_>>()
    };
    if writes.len() <= WRITES_MAX {
        let whole = (0..1_u64 << writes.len()).map(|set| cut(&|n| set >> n & 1 == 1));
        // Torn writes: of every write some sectors only.
        let torn = |keeps: fn(u64) -> bool| {
            images.iter().map(|image| image.cut(|_, sector| keeps(sector))).collect()
        };
        let some: [fn(u64) -> bool; 4] = [
            |sector| sector % 2 == 0,
            |sector| sector % 2 == 1,
            |sector| sector % 7 == 3,
            |sector| sector % 7 != 3,
        ];
        return whole.chain(some.map(torn)).collect();
    }
    // Too many writes for all subsets: every prefix and suffix, all but one, and one.
    let count = writes.len();
    let prefixes = (0..=count).flat_map(|at| [cut(&|n| n < at), cut(&|n| n >= at)]);
    let singles = (0..count).flat_map(|at| [cut(&|n| n == at), cut(&|n| n != at)]);
    prefixes.chain(singles).collect()
}

/// The states so far, so that each one is tried only once.
#[derive(Default)]
struct Seen(BTreeSet<Vec<u64>>);

impl Seen {
    fn new_of(&mut self, images: &[Image]) -> Vec<Vec<Image>> {
        let mut states = states(images);
        states.retain(|state| self.0.insert(state.iter().map(Image::digest).collect()));
        states
    }
}

/// Returns which of the graphs come up, each separately and without any decision of an operator. Checks that at
/// least one does, with all flushed bytes.
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

/// Waits for the end of the migration, if there is one.
async fn moved(live: &RunningGraph) {
    let now = live.now();
    if let Some(moving) = now.graph.member("move") {
        let done = now.graph.ask::<Wait>(moving, Nothing {}).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Cuts the power at every moment of a change. If a member is removed, the other graph would lose track of a
/// disk: exactly one of the two may come up.
fn every_crash_of_a_change(from: &[usize], to: &[usize], safe: bool) {
    let both = every_crash_between([from, to].map(|members| text(members, safe)));
    let leaves = from.iter().any(|n| !to.contains(n));
    assert!(both == 0 || !leaves, "in {both} states both graphs come up");
}

fn every_crash_between(texts: [String; 2]) -> usize {
    every_crash_over(Rig::new(3), texts)
}

/// Cuts the power at every moment of a change. Returns the number of states in which both graphs come up.
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
    let (mut seen, mut came, mut both) = (Seen::default(), [0; 2], 0);
    let done = moments(&rig, change, |images| {
        for state in seen.new_of(&images) {
            let up = who_comes_up(&state, &texts);
            came.iter_mut().zip(up).for_each(|(times, up)| *times += usize::from(up));
            both += usize::from(up == [true; 2]);
        }
    });
    done.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    let states = seen.0.len();
    println!("{states} states; before and after come up in {came:?}");
    assert!(states > 30 && !came.contains(&0), "both sides of the change are seen");
    both
}

/// Changes the graph; the disk `ill` fails all writes from the planning on.
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

/// Cuts the power at every moment of a change that fails at the disk `ill` and is undone. `updates`: the number
/// of label updates before. Returns the number of states in which both graphs come up, during the change and
/// after it was undone.
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
    let (mut seen, mut meanwhile) = (Seen::default(), 0);
    let fails = change(rig.clone(), live.clone(), texts[1].clone(), Some(ill));
    let done = moments(&rig, fails, |images| meanwhile += both(seen.new_of(&images)));
    assert!(done.is_err(), "it fails");
    let images: Vec<_> = rig.disks.iter().map(|disk| disk.image_in_flight()).collect();
    let after = both(states(&images));

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

/// The only disk of both graphs cannot be informed of the undoing.
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

/// The progress of a copy, recorded by region, is held back, too, until the labels record the change. One disk
/// is so fast that it would get this state before the others.
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

/// Nothing was served yet, so a second start may begin anew or go on.
#[test]
fn graph_first_start_can_be_repeated_after_power_cut() {
    let rig = Rc::new(Rig::new(2));
    let (own, wanted) = (rig.clone(), text(&[0, 1], true));
    let again = wanted.clone();
    let start = async move {
        let (planned, probe) = own.look(&wanted, opening(false), None).await?;
        RunningGraph::open(&own.world.env(), &own.engine, planned, Some(probe)).await
    };
    let mut seen = Seen::default();
    let live = moments(&rig, start, |images| {
        for state in seen.new_of(&images) {
            let rig = Rig::of(&state);
            let client = rig.client(&rig.open(&again));
            rig.fill(&client, FLUSHED);
            assert!(rig.holds(&client, FLUSHED));
        }
    });
    live.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    println!("{} states of a first start", seen.0.len());
    assert!(seen.0.len() > 100, "the start writes");
}

/// Encrypts a volume in place. Until its last window has moved, each state must show the old content.
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

/// Labels do not record the options with which disks are opened. The new states are written through the
/// reopened disks, while the old handles still serve.
#[test]
fn live_change_that_reopens_members_survives_power_cuts() {
    let before = text(&[0, 1], true);
    let after =
        before.replace("label = true", "label = true, cache = \"buffered\", timeout = \"9s\"");
    assert_ne!(before, after);
    every_crash_between([before, after]);
}

/// Larger by enough that the old label areas at the end of the disks become data, and the new ones do not
/// overlap them.
const GROWN_BYTES: u64 = DATA_BYTES + (2 << 20);

/// Checks that the graph comes up with all flushed bytes, in its old or its new size. Returns the size.
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
    let (mut seen, mut sizes) = (Seen::default(), BTreeSet::new());
    let done = moments(&rig, change, |images| {
        for state in seen.new_of(&images) {
            sizes.insert(comes_up_whole(&state, &text));
        }
    });
    done.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    println!("{} states", seen.0.len());
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
