//! The text that `cairn serve` prints at the start.

use std::fmt::Write as _;

use api::Attached;
use block::env::Address;
use block::units::format_exact;
use graph::spec::{Listen, Planned, PlannedNode};

use crate::attach::must_be_root;

use super::listen::{absolute, reachable, uri, uris};

/// Returns a line for each export and each of its URIs, the notes of the plan, and examples of commands.
pub fn text(planned: &Planned, attached: &[Attached]) -> String {
    let summary = planned.summary();
    let mut lines = summary.lines();
    let mut text = String::new();
    for (export, line) in planned.exports.iter().zip(&mut lines) {
        text.push_str(line);
        text.push('\n');
        for uri in uris(&planned.listens, &export.name, export.clients.is_some()) {
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
    let is_pool = |node: &&PlannedNode| node.kind.name == kinds::pool::KIND.name;
    let pools = planned.nodes.iter().filter(is_pool);
    for pool in pools {
        let _ = writeln!(text, "{0}: cairn vdisk create {0}/NAME SIZE", pool.name);
    }
    if let Some((at, name)) = first(planned) {
        let (uri, qemu) = (try_uri(at, name), qemu(at, name));
        let is_attached = attached.iter().any(|one| one.export == name);
        let attach = match must_be_root(None) {
            _ if is_attached => String::new(),
            Ok(()) => format!("        cairn attach {name}\n"),
            Err(_) => format!("        sudo cairn attach '{uri}'\n"),
        };
        let _ = write!(
            text,
            "  try:  nbdinfo '{uri}'\n\
             \x20       qemu-img convert {qemu} -O qcow2 {name}.qcow2\n\
             {attach}\
             \x20       fio --name=try --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k \
             --iodepth=32 --time_based --runtime=5\n"
        );
        if at.tls {
            text.push_str("        (DIR: with ca-cert.pem, client-cert.pem, client-key.pem)\n");
        }
    }
    text
}

/// Returns the first export that clients can use, with the first address for it.
fn first(planned: &Planned) -> Option<(&Listen, &str)> {
    let at = |named: bool| planned.listens.iter().find(|at| at.tls || !named);
    planned.exports.iter().find_map(|export| Some((at(export.clients.is_some())?, &*export.name)))
}

/// Returns the URI of an export for the examples. With TLS it has a placeholder for the client's certificate files.
fn try_uri(at: &Listen, export: &str) -> String {
    let uri = uri(at, export);
    match (at.tls, uri.contains('?')) {
        (false, _) => uri,
        (true, true) => format!("{uri}&tls-certificates=DIR"),
        (true, false) => format!("{uri}?tls-certificates=DIR"),
    }
}

/// Returns the source argument of `qemu-img convert` for an export. The NBD URIs of `qemu-img` do not support TLS.
fn qemu(at: &Listen, export: &str) -> String {
    if !at.tls {
        return format!("-f raw '{}'", uri(at, export));
    }
    let server = match &at.address {
        Address::Unix(path) => {
            format!("server.type=unix,server.path={},tls-hostname=localhost", absolute(path))
        }
        Address::Tcp(host, port) => {
            format!("server.type=inet,server.host={},server.port={port}", reachable(host))
        }
    };
    format!(
        "--object tls-creds-x509,id=tls0,endpoint=client,dir=DIR --image-opts \
         'driver=nbd,{server},export={export},tls-creds=tls0'"
    )
}

/// Returns the effects that a start of the graph would have, for a dry run.
pub fn dry(planned: &Planned, listens: &[Listen]) -> String {
    let mut text = planned.summary();
    // Labelled disks are reported with their labels.
    let made = |node: &&PlannedNode| node.created && node.lowers.is_empty() && !node.has_label();
    for node in planned.nodes.iter().filter(made) {
        if let Some(path) = node.path() {
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
