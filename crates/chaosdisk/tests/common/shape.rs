//! Graphs over chaosdisks.

/// A graph, and its disks.
pub struct Shape {
    pub name: &'static str,
    pub disks: &'static [&'static str],
    devices: &'static str,
    /// The members of its mirror.
    pub members: &'static [&'static str],
}

/// Bytes of each disk: a few tracks, so that a whole disk is read quickly.
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

    /// Returns the disks in chaosdisk's form.
    pub fn disks(&self) -> Vec<String> {
        self.disks.iter().map(|disk| format!("{disk}={SIZE}B")).collect()
    }

    /// Returns the spec. If there is a mirror, the `turn`-th member is trusted.
    pub fn spec(&self, turn: usize) -> String {
        let disks: String =
            self.disks.iter().map(|disk| format!("{disk} = {{ nbd = \"@{disk}\" }}\n")).collect();
        let trust = self.members.get(turn % self.members.len().max(1)).copied().unwrap_or_default();
        let devices = self.devices.replace("TRUST", trust);
        let top = if devices.is_empty() { "a" } else { "top" };
        format!("[disk]\n{disks}[device]\n{devices}\n[export]\nvol = {{ on = \"{top}\" }}\n")
    }
}
