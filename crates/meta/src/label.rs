//! What a label says.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::Uuid;

/// Bytes in the name of a disk, a graph, a device or a machine.
pub const NAME_BYTES_MAX: usize = 64;

/// What a label says of its disk and of the graph that the disk is part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// Which generation of this label it is.
    pub sequence: u64,
    /// Which state of the graph's spec and disks it is: the highest one counts.
    pub epoch: u64,
    /// The last round that the disk was told of. A round is what the graph tells all of its disks: that it is
    /// opened, changed or closed.
    pub broadcast: u64,
    /// The last round of which the disk knows that all others were told of it: who knows of less is older.
    pub acked_broadcast: u64,
    /// The disk.
    pub disk: Uuid,
    /// Its name in the spec.
    pub disk_name: String,
    /// The graph.
    pub graph: Uuid,
    /// Its name.
    pub graph_name: String,
    /// Bytes of data.
    pub data_bytes: u64,
    /// The block size when it was labelled.
    pub block_size: u32,
    /// Seconds since 1970, by the wall clock of who wrote it.
    pub written_unix_s: u64,
    /// Who has it open, or had it open and did not close it.
    pub holder: Option<Machine>,
    /// Whether the graph is still being made: nothing was served yet.
    pub provisioning: bool,
    /// The graph, without anything local.
    pub spec: String,
    /// What devices keep, by their names.
    pub cells: BTreeMap<String, Cell>,
    /// The specs before this one, the newest first. For people: nothing depends on it.
    pub past: Rc<[Past]>,
    /// Feature bits that this version does not know and need not know to read.
    pub unknown_read_only: u64,
}

/// A spec that a graph had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    /// The last epoch in which it was so.
    pub epoch: u64,
    /// When it was changed, in seconds since 1970, by the wall clock of who did it.
    pub until_unix_s: u64,
    /// The spec, without anything local.
    pub spec: String,
}

/// What one device keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Which write of the device it was.
    pub sequence: u64,
    /// Its state.
    pub bytes: Vec<u8>,
}

/// A machine, as labels name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Its name, for people.
    pub host: String,
    /// Its id, which it keeps over restarts.
    pub id: [u8; 16],
}

impl Machine {
    /// The machine of this name and id. What is too long for a label is cut, what is empty is named.
    pub fn new(host: &str, id: [u8; 16]) -> Self {
        let mut end = host.len().min(NAME_BYTES_MAX);
        while !host.is_char_boundary(end) {
            end -= 1;
        }
        let host = if end == 0 { "unnamed" } else { &host[..end] };
        Self { host: host.replace('\0', "?"), id }
    }
}

/// Who had a disk open, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The machine.
    pub machine: Machine,
    /// Since when, or when it last wrote the label, in seconds since 1970.
    pub written_unix_s: u64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.host)
    }
}
