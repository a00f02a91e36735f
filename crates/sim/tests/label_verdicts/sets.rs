//! Sets of up to three disks: each disk in one of the states in which labels can be found.
//!
//! All labels belong to one graph at epoch 5 and broadcast 10, except for the difference that names the state.
//! `a` and `b` are the members of a mirror; the bytes of `c` are on no other disk.

use std::collections::BTreeMap;

use block::{Error, ErrorKind};
use graph::labels::{DiskContent, DiskFacts, LostLabel};
use kinds::mirror::record::{Generation, Known, MemberState, Record};
use kinds::mirror::regions::{Bitmap, Regions};
use meta::{Area, Cell, CopyFound, ForeignContent, Inspection, Label, Machine, Uuid, Wrong};

/// Bytes of data of each disk.
pub const DATA_BYTES: u64 = 1 << 20;

/// This machine.
pub const HERE: [u8; 16] = [1; 16];

const GRAPH: Uuid = Uuid([9; 16]);
const EPOCH: u64 = 5;
const BROADCAST: u64 = 10;

/// The disks by their names.
pub const DISKS: [&str; 3] = ["a", "b", "c"];

/// A state of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The disk is not there.
    Missing,
    /// The start would make its file.
    ToBeMade,
    /// Both ends are blank.
    Blank,
    /// It is read-only, and has no label.
    BlankReadOnly,
    /// It holds a file system.
    Holds,
    /// No copy of its label is intact.
    Damaged,
    /// A later version wrote its label.
    Newer,
    /// A later version wrote its label, which this version may read but not write.
    NewerToWrite,
    /// Its label is in order.
    Sound,
    /// An image from an earlier epoch.
    Epoch4,
    /// It missed the last broadcast, although that is known to have reached all disks.
    Broadcast9,
    /// It has a broadcast that is not known to have reached all disks.
    Broadcast11,
    /// It was in use since; a further broadcast has reached all disks present.
    Acked11,
    /// It was in use since, in a later epoch.
    Epoch6,
    /// It is at the same epoch with another spec.
    OtherSpec,
    /// It is at a later epoch with another spec.
    Epoch6OtherSpec,
    /// It is at a later epoch that does not have the disk `b`.
    Epoch6Without,
    /// It is being made.
    Provisioning,
    /// It is being made, and no other disk names it.
    ProvisioningUnnamed,
    /// This machine has it open.
    HeldHere,
    /// Another machine has it open.
    HeldElsewhere,
    /// It belongs to a graph of another name.
    OtherName,
    /// It belongs to another graph of this name.
    OtherGraph,
    /// It was removed from the graph.
    Removed,
    /// It is a copy of `a`.
    Twin,
    /// It has fewer bytes than its label records.
    Truncated,
    /// The label at its end is gone.
    LostEnd,
    /// The label at its front is gone.
    LostFront,
    /// Its label has no state of the mirror.
    Stateless,
    /// Its label records that the other member missed writes.
    Alone,
}

use State::*;

/// All states, each with its name in the recording.
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

/// The states of a member in the sets of three.
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

/// The states of `c` in the sets of three.
pub const BESIDE: [State; 8] =
    [Missing, Blank, Damaged, Sound, Broadcast9, Acked11, OtherSpec, HeldElsewhere];

/// Returns the name of a state in the recording.
pub fn name(state: State) -> &'static str {
    STATES.iter().find(|(one, _)| *one == state).expect("all states have a name").1
}

/// Returns the uuid of the disk with that number.
pub fn uuid(n: usize) -> Uuid {
    Uuid([n as u8 + 1; 16])
}

/// Returns the spec of `count` disks, as labels keep it, without the disk `without`.
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

/// Returns the spec of `count` disks, as a user writes it.
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

/// Returns the state of the mirror: both members are in sync, or `alone` is.
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
        Known { name: DISKS[n].to_owned(), state, known, sent: known, missing, refilled: false }
    };
    let record = Record {
        generation: at,
        regions,
        scrubbed: Default::default(),
        active: Bitmap::none(regions.count()),
        flush_failed: false,
        members: vec![member(0), member(1)],
    };
    Cell { sequence: events, bytes: record.encode() }
}

/// Returns the label of disk `n` of `count` in that state; `None` if it has none that can be read.
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

/// Returns the facts about disk `n` of `count` in that state.
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

/// Returns all copies of the label of disk `n` of `count` in that state; `None` if the disk has no label and never had one.
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
