//! The content of a label.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::Uuid;

/// Most bytes in the name of a disk, a graph, a device or a machine.
pub const NAME_BYTES_MAX: usize = 64;

/// The content of a label: its disk, and the graph that the disk is part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// Number of this update of the label; each update has a higher one.
    pub sequence: u64,
    /// Epoch of the graph; it rises when the spec changes or a copy is left behind, and the highest one counts.
    pub epoch: u64,
    /// Last broadcast that reached the disk. A broadcast is a message of the graph to all of its disks: that it is
    /// opened, changed or closed.
    pub broadcast: u64,
    /// Highest broadcast that is known to have reached every disk. A disk whose `broadcast` is lower is stale.
    pub acked_broadcast: u64,
    /// UUID of the disk.
    pub disk: Uuid,
    /// Name of the disk in the spec.
    pub disk_name: String,
    /// UUID of the graph.
    pub graph: Uuid,
    /// Name of the graph.
    pub graph_name: String,
    /// Number of data bytes of the disk, without the label areas.
    pub data_bytes: u64,
    /// Block size of the disk at the time when it was labelled.
    pub block_size: u32,
    /// Time of the last write of the label, in seconds since 1970, by the writer's wall clock.
    pub written_unix_s: u64,
    /// Machine that has the disk open, or had it open and did not close it.
    pub holder: Option<Machine>,
    /// Whether the disk is being provisioned: nothing has been served from it yet.
    pub provisioning: bool,
    /// Spec of the graph, without settings of one machine.
    pub spec: String,
    /// Cells with the states of devices, by device name.
    pub cells: BTreeMap<String, Cell>,
    /// Earlier specs of the graph, the newest first. They are for people only: no decision depends on them.
    pub past: Rc<[Past]>,
    /// Bits of features that this version of Cairn does not know. This version may read the label, but must not write
    /// it.
    pub unknown_read_only: u64,
}

/// An earlier spec of a graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    /// Last epoch of the graph with this spec.
    pub epoch: u64,
    /// Time when another spec replaced this one, in seconds since 1970, by the wall clock of the machine that replaced
    /// it.
    pub until_unix_s: u64,
    /// The spec, without settings of one machine.
    pub spec: String,
}

/// The state of one device in a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Number of the write by the device that this state comes from.
    pub sequence: u64,
    /// The state, as the device encoded it.
    pub bytes: Vec<u8>,
}

/// A machine, as labels record it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Host name of the machine, for people.
    pub host: String,
    /// Id of the machine, which stays the same over restarts.
    pub id: [u8; 16],
}

impl Machine {
    /// Returns the machine with this name and id. A name that is too long for a label is truncated; an empty one
    /// becomes `unnamed`.
    pub fn new(host: &str, id: [u8; 16]) -> Self {
        let end = host.floor_char_boundary(NAME_BYTES_MAX);
        let host = if end == 0 { "unnamed" } else { &host[..end] };
        Self { host: host.replace('\0', "?"), id }
    }
}

/// The machine that, according to a label, had the disk open; for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Machine that had the disk open.
    pub machine: Machine,
    /// Time at which that machine opened the disk or last wrote the label, in seconds since 1970.
    pub written_unix_s: u64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.host)
    }
}
