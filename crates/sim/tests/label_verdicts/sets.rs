//! Sets of up to three disks for the tests: each disk is in one of the states in which a label can be.
//!
//! All labels belong to one graph at epoch 5 and broadcast 10, except for the difference that gives a state its name.
//! `a` and `b` are the members of a mirror; the bytes of `c` are on no other disk.

use std::collections::BTreeMap;

use block::{Error, ErrorKind};
use graph::labels::{DiskContent, DiskFacts, LostLabel};
use kinds::mirror::record::{Content, Generation, Known, MemberState, Record};
use kinds::mirror::regions::{Bitmap, Regions};
use meta::{Area, Cell, CopyFound, ForeignContent, Inspection, Label, Machine, Uuid, Wrong};

/// Bytes of data of each disk.
pub const DATA_BYTES: u64 = 1 << 20;

/// The machine id of this machine in labels.
pub const HERE: [u8; 16] = [1; 16];

const GRAPH: Uuid = Uuid([9; 16]);
const EPOCH: u64 = 5;
const BROADCAST: u64 = 10;

/// The names of the disks in the sets.
pub const DISKS: [&str; 3] = ["a", "b", "c"];

/// A state of a disk and its label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The file of the disk does not exist.
    Missing,
    /// The file of the disk does not exist, and the start would create it.
    ToBeMade,
    /// The disk has no label and no other content at both ends.
    Blank,
    /// The disk is read-only, and has no label.
    BlankReadOnly,
    /// The disk has a file system, and no label.
    Holds,
    /// No copy of the disk's label is intact.
    Damaged,
    /// A later version of Cairn wrote the disk's label, which this version cannot read.
    Newer,
    /// A later version of Cairn wrote the disk's label, which this version may read but not write.
    NewerToWrite,
    /// The disk's label is intact and current.
    Sound,
    /// The disk has an older image, from epoch 4.
    Epoch4,
    /// The label missed broadcast 10, although broadcast 10 is known to have reached all disks.
    Broadcast9,
    /// The label has broadcast 11, which is not known to have reached all disks.
    Broadcast11,
    /// The disk was used without the others: its label has broadcast 11, which has reached all disks that were present.
    Acked11,
    /// The disk was used without the others, in epoch 6.
    Epoch6,
    /// The label has another spec at the same epoch.
    OtherSpec,
    /// The label has another spec at epoch 6.
    Epoch6OtherSpec,
    /// The label has a spec without the disk `b` at epoch 6.
    Epoch6Without,
    /// The label marks the disk as provisioning.
    Provisioning,
    /// The label marks the disk as provisioning, and no other label names the disk.
    ProvisioningUnnamed,
    /// The label records that this machine has the disk open.
    HeldHere,
    /// The label records that another machine has the disk open.
    HeldElsewhere,
    /// The disk belongs to a graph of another name.
    OtherName,
    /// The disk belongs to another graph of the same name.
    OtherGraph,
    /// The disk was removed from the graph.
    Removed,
    /// The disk is a copy of disk `a`, with the same label.
    Twin,
    /// The disk has fewer bytes than its label records.
    Truncated,
    /// The label at the end of the disk is lost.
    LostEnd,
    /// The label at the front of the disk is lost.
    LostFront,
    /// The disk's label has no state of the mirror.
    Stateless,
    /// The disk's label records that the other member of the mirror missed writes.
    Alone,
}

use State::*;

/// All disk states, each with its name in the recorded files.
pub const STATES: [(State, &str); 30] = [
    (Missing, "missing"),
    (ToBeMade, "to be made"),
    (Blank, "blank"),
    (BlankReadOnly, "blank, ro"),
    (Holds, "holds"),
    (Damaged, "damaged"),
    (Newer, "newer"),
    (NewerToWrite, "newer, write"),
    (Sound, "sound"),
    (Epoch4, "epoch 4"),
    (Broadcast9, "broadcast 9"),
    (Broadcast11, "broadcast 11"),
    (Acked11, "acked 11"),
    (Epoch6, "epoch 6"),
    (OtherSpec, "other spec"),
    (Epoch6OtherSpec, "epoch 6, other"),
    (Epoch6Without, "epoch 6, no b"),
    (Provisioning, "provisioning"),
    (ProvisioningUnnamed, "prov., unnamed"),
    (HeldHere, "held here"),
    (HeldElsewhere, "held elsewhere"),
    (OtherName, "other name"),
    (OtherGraph, "other graph"),
    (Removed, "removed"),
    (Twin, "twin of a"),
    (Truncated, "truncated"),
    (LostEnd, "lost end"),
    (LostFront, "lost front"),
    (Stateless, "no state"),
    (Alone, "alone"),
];

/// The states of disks `a` and `b` in the sets of three disks.
pub const FEW: [State; 12] = [
    Missing,
    Blank,
    Damaged,
    Sound,
    Broadcast9,
    Acked11,
    Epoch6,
    OtherSpec,
    HeldElsewhere,
    Twin,
    LostEnd,
    Alone,
];

/// The states of disk `c` in the sets of three disks.
pub const BESIDE: [State; 8] =
    [Missing, Blank, Damaged, Sound, Broadcast9, Acked11, OtherSpec, HeldElsewhere];

/// Returns the name of a disk state in the recorded files.
pub fn name(state: State) -> &'static str {
    STATES.iter().find(|(one, _)| *one == state).expect("all states have a name").1
}

/// Returns the uuid of disk number `n` in labels.
pub fn uuid(n: usize) -> Uuid {
    Uuid([n as u8 + 1; 16])
}

/// Returns the spec of a graph of `count` disks as labels store it, without the disk number `without`.
fn spec_in_label(count: usize, without: Option<usize>, view: &str) -> String {
    let disks = (0..count).filter(|n| Some(*n) != without);
    let disk = |n: usize| {
        let (name, uuid) = (DISKS[n], uuid(n));
        format!("\"{name}\" = {{ uuid = \"{uuid}\", size = {DATA_BYTES}, block = 512 }}\n")
    };
    let disks: String = disks.map(disk).collect();
    let members = match (count, without) {
        (1, _) => String::new(),
        (_, Some(1)) => "\"m\" = { kind = \"mirror\", on = [\"a\"] }\n".to_owned(),
        _ => "\"m\" = { kind = \"mirror\", on = [\"a\", \"b\"] }\n".to_owned(),
    };
    let top = if count == 1 { "a" } else { "m" };
    let other = if count == 3 { "\"other\" = { on = \"c\" }\n" } else { "" };
    format!(
        "name = \"g\"\n\n[disk]\n{disks}\n[device]\n{members}\n[export]\n{other}\"{view}\" = {{ on = \"{top}\" }}\n"
    )
}

/// Returns the spec of a graph of `count` disks as a user writes it.
pub fn spec(count: usize) -> String {
    let disk = |n: &usize| format!("{0} = {{ file = \"/{0}\", label = true }}\n", DISKS[*n]);
    let disks: String = (0..count).collect::<Vec<_>>().iter().map(disk).collect();
    let (mirror, top) = match count {
        1 => ("", "a"),
        _ => ("m = { kind = \"mirror\", on = [\"a\", \"b\"] }\n", "m"),
    };
    let other = if count == 3 { "other = { on = \"c\" }\n" } else { "" };
    format!(
        "name = \"g\"\n[disk]\n{disks}[device]\n{mirror}[export]\nvol = {{ on = \"{top}\" }}\n{other}"
    )
}

/// Returns the mirror's state for a label: both members are in sync, or only the member number `alone` is.
fn mirror_state(alone: Option<usize>) -> Cell {
    let regions = Regions::usual(DATA_BYTES, 2);
    let events = if alone.is_some() { 4 } else { 3 };
    let at = Generation { incarnation: 7, events };
    let member = |n: usize| {
        let is_in = alone.is_none_or(|alone| alone == n);
        let (state, known, missing) = match is_in {
            true => (MemberState::InSync, at, Bitmap::none(regions.count())),
            false => (
                MemberState::Failed,
                Generation { incarnation: 7, events: 3 },
                Bitmap::all(regions.count()),
            ),
        };
        let (name, content) = (DISKS[n].to_owned(), Content::Stale);
        Known { name, state, known, sent: known, missing, refilled: false, content }
    };
    let record = Record {
        generation: at,
        regions,
        scrubbed: Default::default(),
        active: Bitmap::none(regions.count()),
        flush_failed: false,
        members: vec![member(0), member(1)],
        room: None,
    };
    Cell { sequence: events, bytes: record.encode() }
}

/// Returns the label of disk `n` of `count` disks in this state; `None` if no label can be read.
pub fn label(n: usize, count: usize, state: State) -> Option<Label> {
    if matches!(state, Missing | ToBeMade | Blank | BlankReadOnly | Holds | Damaged | Newer) {
        return None;
    }
    let of = if state == Twin { 0 } else { n };
    let alone = (state == Alone && of < 2).then_some(of);
    let is_member = of < 2 && count > 1 && state != Stateless;
    let cells = is_member.then(|| ("m".to_owned(), mirror_state(alone)));
    let mut label = Label {
        sequence: 20 + of as u64,
        epoch: EPOCH,
        broadcast: BROADCAST,
        acked_broadcast: BROADCAST,
        disk: uuid(of),
        disk_name: DISKS[of].to_owned(),
        graph: GRAPH,
        graph_name: "g".to_owned(),
        data_bytes: DATA_BYTES,
        block_size: 512,
        written_unix_s: 0,
        holder: None,
        provisioning: false,
        spec: spec_in_label(count, None, "vol"),
        cells: cells.into_iter().collect::<BTreeMap<_, _>>(),
        past: Default::default(),
        unknown_read_only: 0,
    };
    match state {
        Epoch4 => (label.epoch, label.broadcast, label.acked_broadcast) = (4, 8, 8),
        Broadcast9 => (label.broadcast, label.acked_broadcast) = (9, 9),
        Broadcast11 => label.broadcast = 11,
        Acked11 => (label.broadcast, label.acked_broadcast) = (11, 11),
        Epoch6 => (label.epoch, label.broadcast, label.acked_broadcast) = (6, 11, 11),
        OtherSpec => label.spec = spec_in_label(count, None, "other-vol"),
        Epoch6OtherSpec => {
            (label.epoch, label.broadcast, label.acked_broadcast) = (6, 11, 11);
            label.spec = spec_in_label(count, None, "other-vol");
        }
        Epoch6Without => {
            (label.epoch, label.broadcast, label.acked_broadcast) = (6, 11, 11);
            label.spec = spec_in_label(count, Some(1), "vol");
        }
        Provisioning => label.provisioning = true,
        ProvisioningUnnamed => {
            (label.provisioning, label.disk) = (true, Uuid([0x77; 16]));
        }
        HeldHere => label.holder = Some(Machine::new("here", HERE)),
        HeldElsewhere => label.holder = Some(Machine::new("there", [2; 16])),
        OtherName => {
            (label.graph_name, label.graph) = ("other".to_owned(), Uuid([8; 16]));
        }
        OtherGraph => label.graph = Uuid([8; 16]),
        Removed => label.disk = Uuid([0x66; 16]),
        NewerToWrite => label.unknown_read_only = 4,
        _ => {}
    }
    Some(label)
}

/// Returns the facts that a probe would find about disk `n` of `count` disks in this state.
pub fn facts(n: usize, count: usize, state: State) -> DiskFacts {
    let size = Area::Back(DATA_BYTES).range().end();
    let content = match (label(n, count, state), state) {
        (Some(label), _) => DiskContent::Label(Box::new(label), 0),
        (None, Missing) => DiskContent::Missing(Error::new(ErrorKind::NotFound, "no such file")),
        (None, ToBeMade) => DiskContent::ToBeMade,
        (None, Holds) => DiskContent::Holds("ext4".to_owned()),
        (None, Damaged) => DiskContent::Wrong(Wrong::Damaged("its checksum is wrong".to_owned())),
        (None, Newer) => DiskContent::Wrong(Wrong::Version(2)),
        (None, _) => DiskContent::Blank,
    };
    DiskFacts {
        name: DISKS[n].to_owned(),
        place: format!("/{}", DISKS[n]),
        content,
        size: if state == Truncated { size - (64 << 10) } else { size },
        block_size: 512,
        read_only: state == BlankReadOnly,
        lost: match state {
            LostEnd => Some(LostLabel::AtEnd),
            LostFront => Some(LostLabel::AtFront),
            _ => None,
        },
    }
}

/// Returns the inspection of all label copies of disk `n` of `count` disks in this state; `None` if the disk never had
/// a label.
pub fn inspection(n: usize, count: usize, state: State) -> Option<Inspection> {
    let DiskFacts { content, size, lost, .. } = facts(n, count, state);
    let found = match content {
        DiskContent::Label(label, _) => Ok(*label),
        DiskContent::Wrong(wrong) => Err(wrong),
        _ => return None,
    };
    let copy = |area: Area, number: usize| {
        let is_lost = match area {
            Area::Front => lost == Some(LostLabel::AtFront),
            _ => lost == Some(LostLabel::AtEnd),
        };
        let found = if is_lost { Err(Wrong::NoMagic) } else { found.clone() };
        CopyFound { area, number, found }
    };
    let areas = [Area::Front, Area::Back(DATA_BYTES)];
    let copies = areas.into_iter().flat_map(|area| [copy(area, 0), copy(area, 1)]).collect();
    let label = found.clone().map(|label| Some((label, 0)));
    Some(Inspection { size, copies, label, other: ForeignContent::Unknown })
}
