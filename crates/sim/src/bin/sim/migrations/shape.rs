//! The graph of a trial of migrations: a volume on one side, and perhaps a device that moves it to another side.

use std::collections::BTreeSet;

/// All kinds of devices in such graphs.
pub const KINDS: [&str; 3] = ["migrate", "mirror", "crypt"];

/// The name of the device that moves the bytes of the volume.
pub const MOVE: &str = "move";

/// Options of an encryption whose key slots need little computing time.
const CRYPT: &str = "key = \"credential:safe\", kdf_memory = \"64KiB\", kdf_passes = 1";

/// A side of a migration, which can have the bytes of the volume: one disk or a mirror of two, perhaps encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// Numbers of the side's disks.
    pub disks: Vec<usize>,
    /// Whether a `crypt` is the topmost device of the side.
    pub is_encrypted: bool,
}

/// The graph of a volume, with or without a migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The side that has the bytes, or had them when the migration began.
    pub source: Side,
    /// The side to which the bytes are moved; `None` without a migration.
    pub target: Option<Side>,
    /// Limit of the migration's speed in bytes per second, if there is one.
    pub speed: Option<u64>,
}

impl Side {
    /// Returns the name of the topmost device of the side.
    pub fn top(&self) -> String {
        if self.is_encrypted { format!("safe{}", self.disks[0]) } else { self.base() }
    }

    fn base(&self) -> String {
        match self.disks[..] {
            [one] => disk(one),
            _ => format!("m{}", self.disks[0]),
        }
    }

    fn devices(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.disks.len() > 1 {
            let on: Vec<_> = self.disks.iter().map(|n| format!("\"{}\"", disk(*n))).collect();
            let options = "region = \"4KiB\", clear_delay = \"1ms\"";
            let (base, on) = (self.base(), on.join(", "));
            lines.push(format!("{base} = {{ kind = \"mirror\", on = [{on}], {options} }}"));
        }
        if self.is_encrypted {
            let (top, base) = (self.top(), self.base());
            lines.push(format!("{top} = {{ kind = \"crypt\", on = \"{base}\", {CRYPT} }}"));
        }
        lines
    }
}

impl Shape {
    /// Returns the graph of a volume without a migration.
    pub fn still(side: Side) -> Self {
        Self { source: side, target: None, speed: None }
    }

    /// Whether both sides have the same disks, so that the migration is in place.
    pub fn is_in_place(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.disks == self.source.disks)
    }

    /// Returns the numbers of the graph's disks.
    pub fn disks(&self) -> BTreeSet<usize> {
        self.sides().flat_map(|side| &side.disks).copied().collect()
    }

    /// Returns the kinds of the devices in the graph.
    pub fn kinds(&self) -> BTreeSet<&'static str> {
        let of_side = |side: &Side| {
            let mirror = (side.disks.len() > 1).then_some("mirror");
            mirror.into_iter().chain(side.is_encrypted.then_some("crypt"))
        };
        let of_target = self.target.is_some().then_some("migrate");
        self.sides().flat_map(of_side).chain(of_target).collect()
    }

    /// Returns the spec of the graph.
    pub fn text(&self) -> String {
        let disks = self.disks();
        let disks = disks
            .iter()
            .map(|n| format!("{} = {{ path = \"{}\", label = true }}", disk(*n), path(*n)));
        let mut devices: BTreeSet<String> = self.sides().flat_map(Side::devices).collect();
        let mut top = self.source.top();
        if let Some(target) = &self.target {
            let on = format!("on = [\"{top}\", \"{}\"]", target.top());
            let speed = self.speed.map(|bytes| format!(", speed = {bytes}")).unwrap_or_default();
            devices.insert(format!("{MOVE} = {{ kind = \"migrate\", {on}{speed} }}"));
            top = MOVE.to_owned();
        }
        let lines = |lines: Vec<String>| lines.join("\n");
        format!(
            "name = \"g\"\n[disk]\n{}\n[device]\n{}\n[export]\nvol = {{ on = \"{top}\" }}\n",
            lines(disks.collect()),
            lines(devices.into_iter().collect()),
        )
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        std::iter::once(&self.source).chain(&self.target)
    }
}

/// Returns the name of a disk.
pub fn disk(n: usize) -> String {
    format!("d{n}")
}

/// Returns the path of a disk.
pub fn path(n: usize) -> String {
    format!("/disk{n}")
}
