//! A graph over labelled disks: a mirror, and perhaps something between it and its disks, and above it.

use sim::draw::Stream;

/// All kinds that stand in such graphs.
pub const KINDS: [&str; 3] = ["mirror", "pass", "crypt"];

/// What stands where besides the mirror.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// On each disk, below the mirror.
    below: Option<&'static str>,
    /// On the mirror.
    above: Option<&'static str>,
}

/// Key slots cost next to nothing here.
const CRYPT: &str = "key = \"credential:safe\", kdf_memory = \"64KiB\", kdf_passes = 1";

impl Shape {
    /// The shape of a seed.
    pub fn draw(draw: &Stream) -> Self {
        // A crypt below would need its disk to open, so a mirror could not do without it.
        let below = draw.pick(&[None, None, Some("pass")]);
        let above = draw.pick(&[None, None, Some("pass"), Some("crypt"), Some("crypt")]);
        Self { below, above }
    }

    /// The name of a member of the mirror.
    pub fn member(self, disk: usize) -> String {
        if self.below.is_some() { format!("b{disk}") } else { format!("d{disk}") }
    }

    /// The kinds in it.
    pub fn kinds(self) -> Vec<&'static str> {
        ["mirror"].into_iter().chain(self.below).chain(self.above).collect()
    }

    /// Its spec over so many disks; `trust`: whose bytes count.
    pub fn text(self, disks: usize, trust: Option<usize>) -> String {
        let mut text = "name = \"g\"\n[disk]\n".to_owned();
        for n in 0..disks {
            text += &format!("d{n} = {{ path = \"{}\", label = true }}\n", super::path(n));
        }
        text += "[device]\n";
        for n in (0..disks).filter(|_| self.below.is_some()) {
            text += &device(&format!("b{n}"), self.below, &format!("d{n}"));
        }
        let on: Vec<_> = (0..disks).map(|n| format!("\"{}\"", self.member(n))).collect();
        let trust = trust.map(|n| format!(", trust = \"{}\"", self.member(n)));
        let trust = trust.unwrap_or_default();
        text += &format!("m = {{ kind = \"mirror\", on = [{}]{trust} }}\n", on.join(", "));
        text += &device("top", self.above, "m");
        let top = if self.above.is_some() { "top" } else { "m" };
        text + &format!("[export]\nvol = {{ on = \"{top}\" }}\n")
    }
}

fn device(name: &str, kind: Option<&str>, on: &str) -> String {
    let Some(kind) = kind else { return String::new() };
    let options = if kind == "crypt" { format!(", {CRYPT}") } else { String::new() };
    format!("{name} = {{ kind = \"{kind}\", on = \"{on}\"{options} }}\n")
}
