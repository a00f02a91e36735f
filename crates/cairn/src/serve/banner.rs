//! What is printed at the start.

use std::fmt::Write as _;

use api::Attached;
use block::env::Address;
use graph::spec::units::format_exact;
use graph::spec::{Planned, PlannedNode};

use crate::attach::must_be_root;

use super::listen::{uri, uris};

/// Each export with its URIs, notes, and lines to paste.
pub fn text(planned: &Planned, attached: &[Attached]) -> String {
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
        for Attached { path, device, .. } in attached.iter().filter(|one| one.export == export.name)
        {
            let _ = writeln!(text, "  {path} -> {}", device.as_deref().unwrap_or_default());
        }
    }
    for note in lines {
        text.push_str(note);
        text.push('\n');
    }
    if let (Some(first), Some(at)) = (planned.exports.first(), planned.listens.first()) {
        let (name, uri) = (&first.name, uri(at, &first.name));
        let attach = match must_be_root() {
            Ok(()) => format!("cairn attach {name}"),
            Err(_) => format!("sudo cairn attach '{uri}'"),
        };
        let _ = write!(
            text,
            "  try:  nbdinfo '{uri}'\n\
             \x20       qemu-img convert -f raw -O qcow2 '{uri}' {name}.qcow2\n\
             \x20       {attach}\n\
             \x20       fio --name=try --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k \
             --iodepth=32 --time_based --runtime=5\n"
        );
    }
    text
}

/// What a start would do.
pub fn dry(planned: &Planned, listens: &[Address]) -> String {
    let mut text = planned.summary();
    // What becomes of labelled disks is told with their labels.
    let made = |node: &&PlannedNode| node.created && node.lowers.is_empty() && !node.has_label();
    for node in planned.nodes.iter().filter(made) {
        if let Some(path) = node.given.text("file") {
            let _ = writeln!(text, "would create {path}, {}", format_exact(node.info.size));
        }
    }
    for at in listens {
        let _ = writeln!(text, "would listen on {at}");
    }
    for export in planned.exports.iter().filter(|export| export.attach) {
        let _ = writeln!(text, "would attach {0} as {1}/{0}", export.name, attach::DEVICES);
    }
    text
}
