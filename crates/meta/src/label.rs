//! The content of a label.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::Uuid;

/// Maximum length in bytes of the name of a disk, graph, device or machine.
pub const NAME_BYTES_MAX: usize = 64;

/// The content of a label: its disk, and the graph that the disk is part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// Number of this update of the label: each update of one disk's label has a higher one.
    pub sequence: u64,
    /// Epoch of the graph. It rises when the spec changes or a copy is left behind; the label with the highest epoch
    /// counts.
    pub epoch: u64,
    /// Number of the last broadcast that reached the disk. A broadcast is a message of the graph to all of its disks:
    /// opened, changed or closed.
    pub broadcast: u64,
    /// Number of the highest broadcast known to have reached every disk. A disk with a lower `broadcast` is stale.
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
    /// Block size of the disk in bytes, at the time of its first label.
    pub block_size: u32,
    /// Time of the last write of the label, in seconds since 1970, by the clock of the machine that wrote it.
    pub written_unix_s: u64,
    /// Machine that has the disk open, or that had it open and did not close it in order; `None` for a closed disk.
    pub holder: Option<Machine>,
    /// Whether the disk is being provisioned: no request has been served from the disk yet.
    pub provisioning: bool,
    /// Spec of the graph, without settings of a single machine.
    pub spec: String,
    /// Cells with the states of devices, by device name.
    pub cells: BTreeMap<String, Cell>,
    /// Earlier specs of the graph, the newest first. They are for the user: no decision depends on them.
    pub past: Rc<[Past]>,
    /// Bits of features that this version of Cairn does not know. This version may read the label, but must not write
    /// it.
    pub unknown_read_only: u64,
}

/// An earlier spec of a graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    /// Last epoch in which the graph had this spec.
    pub epoch: u64,
    /// Time at which another spec replaced this one, in seconds since 1970, by the clock of the machine that changed
    /// the graph.
    pub until_unix_s: u64,
    /// The earlier spec, without settings of a single machine.
    pub spec: String,
}

/// The state of one device in a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Number of the device's write that stored this state: later writes of the device have higher ones.
    pub sequence: u64,
    /// The state, in the encoding of the device.
    pub bytes: Vec<u8>,
}

/// The identity of a machine, as labels record it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Host name of the machine, for the user.
    pub host: String,
    /// Id of the machine, which stays the same over restarts.
    pub id: [u8; 16],
}

impl Machine {
    /// Returns the machine with this host name and id. Truncates a host name that is too long for a label; an empty one
    /// becomes `unnamed`.
    pub fn new(host: &str, id: [u8; 16]) -> Self {
        let end = host.floor_char_boundary(NAME_BYTES_MAX);
        let host = if end == 0 { "unnamed" } else { &host[..end] };
        Self { host: host.replace('\0', "?"), id }
    }
}

/// The machine that has a disk open according to the label of the disk; for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Machine that opened the disk.
    pub machine: Machine,
    /// Time of the last update of the label by that machine, in seconds since 1970.
    pub written_unix_s: u64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.host)
    }
}
