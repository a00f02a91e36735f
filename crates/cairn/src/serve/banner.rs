//! What is printed at the start.

use std::fmt::Write as _;

use graph::spec::{Listen, Planned};
use graph::spec::units::format_exact;

use super::listen::{uri, uris};

/// Each export with its URIs, notes, and lines to paste.
pub fn text(planned: &Planned) -> String {
    let summary = planned.summary();
    let mut lines = summary.lines();
    let mut text = String::new();
    for (export, line) in planned.exports.iter().zip(&mut lines) {
        text.push_str(line);
        text.push('\n');
        for uri in uris(&planned.listens, &export.name) {
            // Writing to a String does not fail.
            let _ = writeln!(text, "  {uri}");
        }
    }
    for note in lines {
        text.push_str(note);
        text.push('\n');
    }
    if let (Some(first), Some(at)) = (planned.exports.first(), planned.listens.first()) {
        let (name, uri) = (&first.name, uri(at, &first.name));
        let _ = write!(
            text,
            "  try:  nbdinfo '{uri}'\n\
             \x20       qemu-img convert -f raw -O qcow2 '{uri}' {name}.qcow2\n\
             \x20       fio --name=try --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k \
             --iodepth=32 --time_based --runtime=5\n"
        );
    }
    text
}

/// What a start would do.
pub fn dry(planned: &Planned, listens: &[Listen]) -> String {
    let mut text = planned.summary();
    for node in planned.nodes.iter().filter(|node| node.created && node.lowers.is_empty()) {
        if let Some(path) = node.given.text("file") {
            let _ = writeln!(text, "would create {path}, {}", format_exact(node.info.size));
        }
    }
    for at in listens {
        let _ = writeln!(text, "would listen on {at}");
    }
    text
}
