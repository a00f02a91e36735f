//! Every state in which a power cut can leave the disks of a change, or of a first start, within bounds: after
//! each thing that happens, every subset of the writes that are not durable. Afterwards the graph from before
//! or the one after it comes up, without a word of anybody, and has what was flushed.

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

/// Up to so many writes that are not durable, every subset of them is looked at.
const WRITES_MAX: usize = 8;

const FLUSHED: u8 = 0x5a;

/// The states in which a power cut at one moment can leave these disks.
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
        // And torn: of every write some sectors only.
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
    // Too many: every prefix and suffix, and all but one, and one.
    let count = writes.len();
    let prefixes = (0..=count).flat_map(|at| [cut(&|n| n < at), cut(&|n| n >= at)]);
    let singles = (0..count).flat_map(|at| [cut(&|n| n == at), cut(&|n| n != at)]);
    prefixes.chain(singles).collect()
}

/// The same, each state once in all.
#[derive(Default)]
struct Seen(BTreeSet<Vec<u64>>);

impl Seen {
    fn new_of(&mut self, images: &[Image]) -> Vec<Vec<Image>> {
        let mut states = states(images);
        states.retain(|state| self.0.insert(state.iter().map(Image::digest).collect()));
        states
    }
}

/// Which of the graphs come up, each by itself, without a word of anybody; one does at least, and has what was
/// flushed.
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

/// Until what moves bytes is done, if anything does.
async fn moved(live: &RunningGraph) {
    let now = live.now();
    if let Some(moving) = now.graph.member("move") {
        let done = now.graph.ask::<Wait>(moving, Nothing {}).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Cuts the power at every moment of a change. Where a member leaves, the other graph would lose track of a disk:
/// one of them comes up, and never the other as well.
fn every_crash_of_a_change(from: &[usize], to: &[usize], safe: bool) {
    let both = every_crash_between([from, to].map(|members| text(members, safe)));
    let leaves = from.iter().any(|n| !to.contains(n));
    assert!(both == 0 || !leaves, "in {both} states both graphs come up");
}

fn every_crash_between(texts: [String; 2]) -> usize {
    every_crash_over(Rig::new(3), texts)
}

/// Answers in how many states both graphs come up.
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

/// Makes the graph another one.
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

/// Cuts the power at every moment of a change that fails at the disk `ill` and is undone. `updates`: how often labels
/// were written before. Answers in how many states both graphs come up, meanwhile and when it is undone.
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

    // Nothing of the failed change keeps the same one from being done.
    rig.disks[ill].set_faults(Faults::default());
    rig.pass(LIMIT);
    let again = change(rig.clone(), live, texts[1].clone(), None);
    let again = rig.world.block_on(again).unwrap();
    again.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    [meanwhile, after]
}

#[test]
fn undone_change_that_removes_a_member_leaves_one_graph() {
    assert_eq!(every_crash_of_an_undone_change(&[0, 1, 2], &[0, 1], 1, 1), [0, 0]);
}

#[test]
fn undone_change_that_replaces_a_member_leaves_one_graph() {
    for ill in 1..4 {
        assert_eq!(every_crash_of_an_undone_change(&[0, 1, 2], &[1, 2, 3], ill, 1), [0, 0]);
    }
}

/// No disk that both graphs have can be told.
#[test]
fn undone_change_at_its_only_shared_disk_leaves_one_graph_in_the_end() {
    for updates in 1..4 {
        let [_, after] = every_crash_of_an_undone_change(&[0, 1], &[0, 2], 0, updates);
        assert_eq!(after, 0);
    }
}

#[test]
fn undone_change_that_adds_a_member_leaves_one_graph_at_least() {
    for ill in 0..3 {
        every_crash_of_an_undone_change(&[0, 1], &[0, 1, 2], ill, 1);
    }
}

#[test]
fn a_member_is_added() {
    every_crash_of_a_change(&[0, 1], &[0, 1, 2], false);
}

#[test]
fn a_member_is_added_below_an_encryption() {
    every_crash_of_a_change(&[0, 1], &[0, 1, 2], true);
}

/// What a copy tells region by region is held back, too, until the labels tell of the change; and one disk is so quick
/// that it has such a state before the others do.
#[test]
fn a_member_is_added_that_is_copied_region_by_region() {
    let rig = Rig::of_speeds(&[NS_MAX / 50, NS_MAX, NS_MAX]);
    let texts = [&[0, 1][..], &[0, 1, 2]].map(|members| text(members, false));
    let mirror = "kind = \"mirror\"";
    let regions = format!("{mirror}, region = \"4KiB\", settle = \"1ms\"");
    every_crash_over(rig, texts.map(|text| text.replace(mirror, &regions)));
}

#[test]
fn a_member_is_replaced() {
    every_crash_of_a_change(&[0, 1], &[0, 2], false);
}

#[test]
fn a_member_is_removed() {
    every_crash_of_a_change(&[0, 1, 2], &[0, 2], true);
}

/// Nothing was served yet, so nothing stands against beginning anew, or going on.
#[test]
fn the_first_start_is_made_again() {
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

/// A volume is encrypted where it is: until its last window has moved, each state shows it as it was.
#[test]
fn a_volume_is_encrypted_in_place() {
    let disk = "[disk]\nd0 = { path = \"/disk0\", label = true }\n";
    let devices = "[device]\nsafe = { kind = \"crypt\", on = \"d0\", key = \"credential:safe\", \
                   kdf_memory = \"64KiB\", kdf_passes = 1 }\n\
                   move = { kind = \"migrate\", on = [\"d0\", \"safe\"] }\n";
    let spec = |devices: &str, on: &str| {
        format!("name = \"g\"\n{disk}{devices}[export]\nvol = {{ on = \"{on}\" }}\n")
    };
    every_crash_between([spec("", "d0"), spec(devices, "move")]);
}

/// Their labels say nothing of how disks are opened: what is there is told to them through disks that were opened
/// otherwise, beside those that served until then.
#[test]
fn members_are_opened_otherwise() {
    let before = text(&[0, 1], true);
    let after =
        before.replace("label = true", "label = true, cache = \"buffered\", timeout = \"9s\"");
    assert_ne!(before, after);
    every_crash_between([before, after]);
}

/// So much more that the old areas at the end of the disks are data, and the new ones do not touch them.
const GROWN_BYTES: u64 = DATA_BYTES + (2 << 20);

/// What comes up has what was flushed, and is as large as before, or as it is to be.
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
fn members_grow() {
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
