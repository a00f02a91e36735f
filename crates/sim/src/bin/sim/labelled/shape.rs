//! The graph in the trial of labelled disks: a mirror over labelled disks, with optional devices below and above the
//! mirror.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use block::{Error, ErrorKind};
use sim::draw::Stream;

/// Kinds of the devices above disks that graphs of this trial may have.
pub const KINDS: [&str; 7] = ["mirror", "remap", "versioned", "pass", "crypt", "delay", "limit"];

/// Kinds of devices that change no bytes. Live changes add and remove such devices above all others.
pub const CLEAR: [&str; 3] = ["pass", "delay", "limit"];

/// Options of a `crypt` device whose key slots need little computing time.
const CRYPT: &str = "key = \"credential:safe\", kdf_memory = \"64KiB\", kdf_passes = 1";

/// Bytes that a disk has in addition if a `remap` is above: for its map, and for more physical blocks than logical
/// blocks.
const MAP_BYTES: u64 = 192 << 10;

/// Bytes that a disk has in addition if a `versioned` is above: the least for a pool.
const POOL_BYTES: u64 = 16 << 20;

/// Bytes of a member that is large enough for a store, beside those for its data.
const ROOM_BYTES: u64 = 2 << 20;

/// Name in the spec of the labelled disk that is no member of the mirror.
const BESIDE: &str = "beside";

/// The device above the mirror that chooses the places of blocks, and writes on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placing {
    /// A `remap`, which moves blocks.
    Remap,
    /// A `versioned`, which never writes a block in its old place.
    Versioned,
}

impl Placing {
    fn kind(self) -> &'static str {
        match self {
            Self::Remap => "remap",
            Self::Versioned => "versioned",
        }
    }

    /// Whether the device may answer with `error` over a disk that breaks the contract.
    pub fn may(self, error: &Error) -> bool {
        let is_read_only = self == Self::Versioned && error.kind() == ErrorKind::ReadOnly;
        error.kind() == ErrorKind::Corrupt || is_read_only
    }
}

/// The graph of a trial of labelled disks, from which its spec is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Disk numbers of the mirror's members.
    pub members: Vec<usize>,
    /// Option `timeout` of the mirror for a member, in seconds; `None` for the default.
    pub timeout_s: Option<u64>,
    /// Option `timeout` of the labelled disks, in seconds; `None` for the default. With an even number the disks are
    /// opened through the page cache.
    pub disk_timeout_s: Option<u64>,
    /// Whether the mirror's bitmap has many small regions, which the mirror marks as clean after a short time.
    pub regions: bool,
    /// Whether the mirror keeps one member as a spare, if it has at least three members.
    pub spare: bool,
    /// Whether the disks are large enough for the mirror's store. The mirror is cut to the size of the volume.
    pub large: bool,
    /// Whether a `pass` device is between each disk and the mirror.
    pub below: bool,
    /// The device directly above the mirror, if it has one that chooses the places of blocks.
    pub placing: Option<Placing>,
    /// Whether the graph has a `crypt` above the mirror and the device that chooses places.
    pub crypt: bool,
    /// Whether the graph has a table above mirror, `placing` and `crypt` that leaves out the first 4 KiB.
    pub shifted: bool,
    /// Kinds of the topmost devices, which change no bytes, from the lowest to the highest.
    pub clear: Vec<&'static str>,
    /// Whether the graph has a second, read-only export of the same volume.
    pub second: bool,
    /// Whether the graph has a labelled disk that is no member of the mirror, with an export of its own.
    pub beside: bool,
    /// Option `timeout`, in seconds, of an additional mirror over disks without labels; `None` if the graph has no such
    /// mirror.
    pub raw_timeout_s: Option<u64>,
}

impl Shape {
    /// Draws the graph of a seed. Its mirror is over the disks with numbers below `disks`.
    pub fn draw(draw: &Stream, disks: usize) -> Self {
        // Not a `crypt`: it needs its disk to open, so a mirror could not come up without it.
        let below = draw.below(3) == 0;
        let (crypt, clear) = draw.pick(&[(false, 0), (false, 0), (false, 1), (true, 0), (true, 0)]);
        Self {
            members: (0..disks).collect(),
            timeout_s: None,
            disk_timeout_s: None,
            regions: draw.below(4) > 0,
            spare: draw.below(3) == 0,
            large: draw.below(2) == 0,
            below,
            crypt,
            shifted: false,
            clear: CLEAR[..clear].to_vec(),
            second: false,
            beside: false,
            raw_timeout_s: (draw.below(4) == 0).then_some(20),
            placing: match draw.below(4) {
                0 => Some(draw.pick(&[Placing::Remap, Placing::Versioned])),
                _ => None,
            },
        }
    }

    /// Returns the number of data bytes of a labelled disk, without the areas of its label.
    pub fn data_bytes(&self) -> u64 {
        let more = match self.placing {
            None => 0,
            Some(Placing::Remap) => MAP_BYTES,
            Some(Placing::Versioned) => POOL_BYTES,
        };
        // A pool is so large that its members have room in any case.
        let has_room = self.large || self.placing == Some(Placing::Versioned);
        super::VOLUME_BYTES + more + if has_room { ROOM_BYTES } else { 0 }
    }

    /// Returns the names in the spec of all labelled disks.
    pub fn names(&self) -> BTreeSet<String> {
        let beside = self.beside.then(|| BESIDE.to_owned());
        self.members.iter().map(|n| name(*n)).chain(beside).collect()
    }

    /// Returns the name in the spec of the mirror's member on the disk number `disk`.
    pub fn member(&self, disk: usize) -> String {
        if self.below { format!("b{disk}") } else { name(disk) }
    }

    /// Returns the kinds of the devices above disks in the graph.
    pub fn kinds(&self) -> Vec<&'static str> {
        let below = self.below.then_some("pass");
        let crypt = self.crypt.then_some("crypt");
        let placing = self.placing.map(Placing::kind);
        ["mirror"]
            .into_iter()
            .chain(placing)
            .chain(below)
            .chain(crypt)
            .chain(self.clear.iter().copied())
            .collect()
    }

    /// Returns the TOML text of the graph's spec. `trust`: the disk number of the member that the mirror trusts.
    pub fn text(&self, trust: Option<usize>) -> String {
        let mut text = "name = \"g\"\n[disk]\n".to_owned();
        for n in &self.members {
            let (name, path) = (name(*n), super::path(*n));
            let how = self.opened();
            line(&mut text, &name, &format!("path = \"{path}\", label = true{how}"));
        }
        if self.beside {
            line(&mut text, BESIDE, &format!("path = \"{}\", label = true", super::beside::PATH));
        }
        if self.raw_timeout_s.is_some() {
            text += "r0 = { memory = \"64KiB\" }\nr1 = { memory = \"64KiB\" }\n";
        }
        text += "[device]\n";
        for n in self.members.iter().filter(|_| self.below) {
            device(&mut text, &self.member(*n), "pass", &name(*n), "");
        }
        self.mirror(&mut text, trust);
        let top = self.above(&mut text);
        if let Some(timeout) = self.raw_timeout_s {
            let timeout = format!("timeout = \"{timeout}s\"");
            line(&mut text, "raw", &format!("kind = \"mirror\", on = [\"r0\", \"r1\"], {timeout}"));
        }
        text += "[export]\n";
        line(&mut text, "vol", &format!("on = \"{top}\""));
        if self.second {
            line(&mut text, "second", &format!("on = \"{top}\", read_only = true"));
        }
        if self.raw_timeout_s.is_some() {
            line(&mut text, "scratch", "on = \"raw\"");
        }
        if self.beside {
            line(&mut text, "own", &format!("on = \"{BESIDE}\""));
        }
        text
    }

    /// Returns the spec text of the options `timeout` and `cache` of each labelled disk; empty if the spec sets no
    /// timeout.
    fn opened(&self) -> String {
        let Some(timeout) = self.disk_timeout_s else { return String::new() };
        let cache = if timeout % 2 == 0 { ", cache = \"buffered\"" } else { "" };
        format!(", timeout = \"{timeout}s\"{cache}")
    }

    fn mirror(&self, text: &mut String, trust: Option<usize>) {
        let on: Vec<_> = self.members.iter().map(|n| format!("\"{}\"", self.member(*n))).collect();
        let mut fields = format!("kind = \"mirror\", on = [{}]", on.join(", "));
        if let Some(trusted) = trust {
            fields += &format!(", trust = \"{}\"", self.member(trusted));
        }
        if self.spare && self.members.len() > 2 {
            fields += ", spares = 1";
        }
        if self.regions {
            fields += ", region = \"4KiB\", clear_delay = \"1ms\"";
        }
        if let Some(timeout) = self.timeout_s {
            fields += &format!(", timeout = \"{timeout}s\"");
        }
        line(text, "m", &fields);
    }

    /// Adds the devices above the mirror to the spec `text`. Returns the name of the topmost device.
    fn above(&self, text: &mut String) -> &'static str {
        let mut top = "m";
        if let Some(placing) = self.placing {
            let more = match placing {
                Placing::Remap => ", block = \"4KiB\", pack = true, policy = \"log\"",
                Placing::Versioned => "",
            };
            let size = format!("size = {}{more}", super::VOLUME_BYTES);
            device(text, "map", placing.kind(), top, &size);
            top = "map";
        } else if self.large {
            device(text, "cut", "linear", top, &format!("size = {}", super::VOLUME_BYTES));
            top = "cut";
        }
        if self.crypt {
            device(text, "safe", "crypt", top, CRYPT);
            top = "safe";
        }
        if self.shifted {
            device(text, "shifted", "linear", top, "start = \"4KiB\"");
            top = "shifted";
        }
        for kind in &self.clear {
            let options = match *kind {
                "delay" => "time = \"20us\"",
                "limit" => "iops = 100000",
                _ => "",
            };
            // Its name is its kind.
            device(text, kind, kind, top, options);
            top = kind;
        }
        top
    }
}

/// Returns the name in the spec of the disk with the number `disk`.
pub fn name(disk: usize) -> String {
    format!("d{disk}")
}

fn device(text: &mut String, name: &str, kind: &str, on: &str, options: &str) {
    let comma = if options.is_empty() { "" } else { ", " };
    line(text, name, &format!("kind = \"{kind}\", on = \"{on}\"{comma}{options}"));
}

fn line(text: &mut String, name: &str, fields: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{name} = {{ {fields} }}");
}
