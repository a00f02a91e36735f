//! The graphs that the tests run on chaosdisk's disks.

/// A graph under test: its devices, and the names of chaosdisk's disks below them.
pub struct Shape {
    pub name: &'static str,
    pub disks: &'static [&'static str],
    devices: &'static str,
    /// The names of the members of the graph's mirror; empty if the graph has no mirror.
    pub members: &'static [&'static str],
}

/// Size of each disk in bytes: a few simulated tracks, so that a test can read a whole disk quickly.
pub const SIZE: u64 = 256 << 10;

impl Shape {
    pub const ONE: Self = Self { name: "one disk", disks: &["a"], devices: "", members: &[] };

    pub const STRIPE: Self = Self {
        name: "stripe",
        disks: &["a", "b"],
        devices: r#"top = { kind = "stripe", on = ["a", "b"], chunk = "4KiB" }"#,
        members: &[],
    };

    pub const CONCAT: Self = Self {
        name: "concat",
        disks: &["a", "b"],
        devices: r#"top = { kind = "concat", on = ["a", "b"] }"#,
        members: &[],
    };

    pub const MIRROR: Self = Self {
        name: "mirror",
        disks: &["a", "b"],
        devices: r#"top = { kind = "mirror", on = ["a", "b"], trust = "TRUST", timeout = "1s" }"#,
        members: &["a", "b"],
    };

    pub const MIRROR_OF_STRIPES: Self = Self {
        name: "mirror of stripes",
        disks: &["a", "b", "c", "d"],
        devices: r#"
            left = { kind = "stripe", on = ["a", "b"], chunk = "4KiB" }
            right = { kind = "stripe", on = ["c", "d"], chunk = "8KiB" }
            top = { kind = "mirror", on = ["left", "right"], trust = "TRUST" }"#,
        members: &["left", "right"],
    };

    pub const ALL: [Self; 5] =
        [Self::ONE, Self::STRIPE, Self::CONCAT, Self::MIRROR, Self::MIRROR_OF_STRIPES];

    /// Returns the disks of the graph as arguments of chaosdisk: `NAME=SIZE`.
    pub fn disks(&self) -> Vec<String> {
        self.disks.iter().map(|disk| format!("{disk}={SIZE}B")).collect()
    }

    /// Returns the spec of the graph. If the graph has a mirror, the spec trusts the member number `turn`.
    pub fn spec(&self, turn: usize) -> String {
        let disks: String =
            self.disks.iter().map(|disk| format!("{disk} = {{ nbd = \"@{disk}\" }}\n")).collect();
        let trust = self.members.get(turn % self.members.len().max(1)).copied().unwrap_or_default();
        let devices = self.devices.replace("TRUST", trust);
        let top = if devices.is_empty() { "a" } else { "top" };
        format!("[disk]\n{disks}[device]\n{devices}\n[export]\nvol = {{ on = \"{top}\" }}\n")
    }
}
