//! The graph in the trial of migrations: a volume on a source, and optionally a `migrate` device that moves it to a
//! target.

use std::collections::BTreeSet;

/// Kinds of the devices above disks that graphs of this trial may have.
pub const KINDS: [&str; 3] = ["migrate", "mirror", "crypt"];

/// Name of the `migrate` device in the spec.
pub const MOVE: &str = "move";

/// Options of a `crypt` device whose key slots need little computing time.
const CRYPT: &str = "key = \"credential:safe\", kdf_memory = \"64KiB\", kdf_passes = 1";

/// The source or the target of a migration: one disk or a mirror of two, with or without a `crypt` above.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// Numbers of the disks of this source or target.
    pub disks: Vec<usize>,
    /// Whether the source or target has a `crypt` as its topmost device.
    pub is_encrypted: bool,
}

/// The graph of the trial's volume, with or without a migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The devices that hold the volume, or held it when the migration began.
    pub source: Side,
    /// The devices to which the migration moves the volume; `None` without a migration.
    pub target: Option<Side>,
    /// Option `speed` of the `migrate` device: a limit in bytes per second; `None` for no limit.
    pub speed: Option<u64>,
}

impl Side {
    /// Returns the name of the topmost device of the source or target.
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
            lines.push(format!(
                "{base} = {{ kind = \"mirror\", on = [{on}], store = false, {options} }}"
            ));
        }
        if self.is_encrypted {
            let (top, base) = (self.top(), self.base());
            lines.push(format!("{top} = {{ kind = \"crypt\", on = \"{base}\", {CRYPT} }}"));
        }
        lines
    }
}

impl Shape {
    /// Returns the graph without a migration: the volume lies on `side`.
    pub fn still(side: Side) -> Self {
        Self { source: side, target: None, speed: None }
    }

    /// Whether source and target have the same disks, so that the migration encrypts or decrypts in place.
    pub fn is_in_place(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.disks == self.source.disks)
    }

    /// Returns the numbers of all disks in the graph.
    pub fn disks(&self) -> BTreeSet<usize> {
        self.sides().flat_map(|side| &side.disks).copied().collect()
    }

    /// Returns the kinds of the devices above disks in the graph.
    pub fn kinds(&self) -> BTreeSet<&'static str> {
        let of_side = |side: &Side| {
            let mirror = (side.disks.len() > 1).then_some("mirror");
            mirror.into_iter().chain(side.is_encrypted.then_some("crypt"))
        };
        let of_target = self.target.is_some().then_some("migrate");
        self.sides().flat_map(of_side).chain(of_target).collect()
    }

    /// Returns the TOML text of the graph's spec.
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

/// Returns the name in the spec of the disk with the number `n`.
pub fn disk(n: usize) -> String {
    format!("d{n}")
}

/// Returns the path of the disk with the number `n`.
pub fn path(n: usize) -> String {
    format!("/disk{n}")
}
