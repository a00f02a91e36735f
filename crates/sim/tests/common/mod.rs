//! A simulated server process with a mirror over labelled disks, which tests open and change live.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::ops::Deref;

use block::{ByteRange, Op};
use sim::{Client, DiskConfig, Image, Profile, crash};

pub use sim::crash::{LIMIT, moments, opening};

pub const DATA_BYTES: u64 = 64 << 10;
pub const PIECE: usize = 4096;

/// Longest time that a disk takes for a reply, in nanoseconds, unless a test sets another time.
pub const NS_MAX: u64 = 500_000;

/// Returns the spec of a mirror over the disks with the numbers `on`, with a crypt device above the mirror if `safe`.
pub fn text(on: &[usize], safe: bool) -> String {
    let disk = |n: &usize| format!("d{n} = {{ path = \"/disk{n}\", label = true }}\n");
    let disks: String = on.iter().map(disk).collect();
    let names: Vec<_> = on.iter().map(|n| format!("\"d{n}\"")).collect();
    let names = names.join(", ");
    let (safe, top) = if safe { (SAFE, "safe") } else { ("", "m") };
    format!(
        "name = \"g\"\n[disk]\n{disks}[device]\nm = {{ kind = \"mirror\", on = [{names}] }}\n{safe}\
         [export]\nvol = {{ on = \"{top}\" }}\n"
    )
}

const SAFE: &str = "safe = { kind = \"crypt\", on = \"m\", key = \"credential:safe\", \
                    kdf_memory = \"64KiB\", kdf_passes = 1 }\n";

/// Returns the configuration of a disk with `bytes` bytes for data that takes at most `most_ns` nanoseconds for a reply.
pub fn disk(bytes: u64, most_ns: u64) -> DiskConfig {
    let config = DiskConfig::new(bytes + 2 * meta::AREA_BYTES, Profile::Native512);
    DiskConfig { most_ns, ..config }
}

/// A simulated process of graphs of all kinds, and the bytes that tests write to a volume.
pub struct Rig(crash::Rig);

impl Deref for Rig {
    type Target = crash::Rig;

    fn deref(&self) -> &crash::Rig {
        &self.0
    }
}

impl Rig {
    pub fn new(disks: usize) -> Self {
        Self::of_speeds(&vec![NS_MAX; disks])
    }

    /// Makes one disk for each of `most_ns`, the longest time in nanoseconds that the disk takes for a reply.
    pub fn of_speeds(most_ns: &[u64]) -> Self {
        let disks: Vec<_> = most_ns.iter().map(|most_ns| disk(DATA_BYTES, *most_ns)).collect();
        Self(crash::Rig::new(kinds::REGISTRY, &disks))
    }

    /// Makes disks with the content of `images`, and with `data_bytes` bytes for data beside the labels.
    pub fn of_larger(images: &[Image], data_bytes: u64) -> Self {
        let disks = vec![disk(data_bytes, NS_MAX); images.len()];
        let rig = crash::Rig::new(kinds::REGISTRY, &disks);
        rig.put(images);
        Self(rig)
    }

    /// Makes a new process in a new simulated world, with disks that have the content of `images`.
    pub fn of(images: &[Image]) -> Self {
        Self::of_larger(images, DATA_BYTES)
    }

    pub fn fill(&self, client: &Client, byte: u8) {
        let data = self.world.env().buf(PIECE).unwrap();
        data.write().fill(byte);
        self.call(
            client,
            Op::Write { range: piece(), data, fua: true, restores: block::Copies::NONE },
        );
    }

    /// Whether all bytes of the volume's test range have this value.
    pub fn holds(&self, client: &Client, byte: u8) -> bool {
        let into = self.world.env().buf(PIECE).unwrap();
        let Op::Read { into, .. } = self.call(client, Op::read(piece(), into)) else {
            panic!("a read is answered as one")
        };
        let bytes = into.read();
        bytes.iter().all(|held| *held == byte)
    }
}

pub fn piece() -> ByteRange {
    ByteRange::new(0, PIECE as u64).unwrap()
}
