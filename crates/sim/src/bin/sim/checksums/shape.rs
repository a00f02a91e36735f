//! The graph in the trial of checksums: a `checksum` alone, above a mirror, or below each member of a mirror.

use std::collections::BTreeMap;

use sim::Count;
use sim::draw::Stream;

/// Kinds of the devices above disks that graphs of this trial may have.
pub const KINDS: [&str; 2] = ["checksum", "mirror"];

/// The place of redundancy in the graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// A checksum over one disk.
    Alone,
    /// A checksum over a mirror.
    OverMirror,
    /// A mirror over checksums, each over a disk of its own.
    UnderMirror,
}

/// The graph of the trial's volume.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The place of redundancy.
    pub layout: Layout,
    /// Number of disks with data.
    pub disks: usize,
    /// Number of disks with checksums only: one for each checksum device, or none. They come after the disks with data.
    pub others: usize,
    /// Option `crash` of the checksums; `None` if the spec has none.
    crash: Option<&'static str>,
    /// Whether the mirror has short regions, so that they often become clean.
    has_short_regions: bool,
}

impl Shape {
    /// Draws a graph.
    pub fn draw(draw: &Stream) -> Self {
        let layout = draw.pick(&[
            Layout::Alone,
            Layout::OverMirror,
            Layout::OverMirror,
            Layout::UnderMirror,
            Layout::UnderMirror,
        ]);
        let disks = if layout == Layout::Alone { 1 } else { draw.within(2, 3) as usize };
        let sums = if layout == Layout::UnderMirror { disks } else { 1 };
        Self {
            layout,
            disks,
            others: if draw.below(4) == 0 { sums } else { 0 },
            crash: draw.pick(&[None, None, Some("journal"), Some("regions")]),
            has_short_regions: draw.below(2) == 0,
        }
    }

    /// Whether a mirror is above or below the checksums.
    pub fn is_redundant(&self) -> bool {
        self.layout != Layout::Alone
    }

    /// Whether the disk `n` has data and no checksums.
    pub fn has_only_data(&self, n: usize) -> bool {
        self.others > 0 && n < self.disks
    }

    /// Whether no block may be accepted unverified.
    pub fn has_journal(&self) -> bool {
        self.crash.map_or(!self.is_redundant(), |crash| crash == "journal")
    }

    /// Returns the events to count for a graph of this shape.
    pub fn counts(&self) -> impl Iterator<Item = Count> {
        let layout = match self.layout {
            Layout::Alone => Count::SumsAlone,
            Layout::OverMirror => Count::SumsAbove,
            Layout::UnderMirror => Count::SumsBelow,
        };
        std::iter::once(layout).chain((self.others > 0).then_some(Count::SumsElsewhere))
    }

    /// Returns the kinds of the devices above disks, one entry for each device.
    pub fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec!["checksum"; self.sums().len()];
        kinds.extend(self.is_redundant().then_some("mirror"));
        kinds
    }

    /// Returns the names of the checksum devices.
    pub fn sums(&self) -> Vec<String> {
        match self.layout {
            Layout::UnderMirror => (0..self.disks).map(sum).collect(),
            Layout::Alone | Layout::OverMirror => vec![sum(0)],
        }
    }

    /// Returns the name of the mirror's member that has the disk `n`.
    pub fn member(&self, n: usize) -> String {
        match self.layout {
            Layout::UnderMirror => sum(n),
            Layout::Alone | Layout::OverMirror => disk(n),
        }
    }

    /// Returns the TOML text of the graph's spec.
    pub fn text(&self) -> String {
        let all = 0..self.disks + self.others;
        let disk_line = |n| format!("{} = {{ path = \"{}\", label = true }}", disk(n), path(n));
        let disks: Vec<_> = all.map(disk_line).collect();
        let mut devices = BTreeMap::new();
        let mirror_on = |on: Vec<String>| {
            let regions = match self.has_short_regions {
                true => ", region = \"4KiB\", clear_delay = \"1ms\"",
                false => "",
            };
            format!("m = {{ kind = \"mirror\", on = [{}]{regions} }}", on.join(", "))
        };
        let quoted = |name: String| format!("\"{name}\"");
        let top = match self.layout {
            Layout::Alone => {
                devices.insert("s0", self.sum_line(0, &disk(0)));
                "s0"
            }
            Layout::OverMirror => {
                devices.insert("m", mirror_on((0..self.disks).map(disk).map(quoted).collect()));
                devices.insert("s0", self.sum_line(0, "m"));
                "s0"
            }
            Layout::UnderMirror => {
                let sums: Vec<_> = (0..self.disks).map(|n| self.sum_line(n, &disk(n))).collect();
                devices.insert("s", sums.join("\n"));
                devices.insert("m", mirror_on(self.sums().into_iter().map(quoted).collect()));
                "m"
            }
        };
        let devices: Vec<_> = devices.into_values().collect();
        format!(
            "name = \"g\"\n[disk]\n{}\n[device]\n{}\n[export]\nvol = {{ on = \"{top}\" }}\n",
            disks.join("\n"),
            devices.join("\n"),
        )
    }

    /// Returns the line of the spec with the checksum number `n` over `on`.
    fn sum_line(&self, n: usize, on: &str) -> String {
        let crash = self.crash.map(|crash| format!(", crash = \"{crash}\"")).unwrap_or_default();
        let lowers = match self.others {
            0 => format!("on = \"{on}\""),
            _ => {
                let other = disk(self.disks + n);
                format!("on = [\"{on}\", \"{other}\"], meta = \"{other}\"")
            }
        };
        format!("{} = {{ kind = \"checksum\", {lowers}{crash}, cache = \"2MiB\" }}", sum(n))
    }
}

fn sum(n: usize) -> String {
    format!("s{n}")
}

/// Returns the name in the spec of the disk with the number `n`.
pub fn disk(n: usize) -> String {
    format!("d{n}")
}

/// Returns the path of the disk with the number `n`.
pub fn path(n: usize) -> String {
    format!("/disk{n}")
}
