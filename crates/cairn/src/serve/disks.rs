//! `cairn device insert`, `replace` and `remove`: live changes of one member of a device.

use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use api::{Applied, DiskChange, DiskRequest};
use block::units::format_exact;
use doctor::Opening;
use graph::Member;
use graph::spec::Planned;
use kind::Kind;

use super::{Serving, live};
use crate::exit::{Exit, Failure, Result};
use crate::names;
use crate::registry::REGISTRY;

impl Serving {
    /// Inserts, replaces or removes a member, by a live change of the graph.
    ///
    /// # Errors
    /// As [`Serving::apply`]. A disk with data is refused, unless the request permits to overwrite the data.
    pub async fn disk(&self, request: &DiskRequest) -> Result<Applied> {
        let turn = self.turn().await?;
        let change = &request.change;
        let (device, request) = self.device_of(request)?;
        let (request, member) = (&request, &request.member);
        let mut spec = self.spec.borrow().clone();
        let mut wipe = Vec::new();
        let edited = match change {
            DiskChange::Insert(path) => {
                wipe.extend(request.wipe.then(|| member.clone()));
                let (kind, path) = place(&request.directory, path)?;
                spec.insert_disk(&device, member, kind, path)
            }
            DiskChange::Replace(path) => {
                // The graph knows this name: the record must state that it means another disk now.
                wipe.push(member.clone());
                let (kind, path) = place(&request.directory, path)?;
                spec.move_disk(member, kind, path, REGISTRY)
            }
            DiskChange::Remove => spec.remove_member(&device, member),
        };
        edited.map_err(|why| Failure::new(Exit::Usage, why))?;
        if matches!(change, DiskChange::Replace(_)) && !request.wipe {
            // This check fails if the new disk already holds data.
            let opening = Opening { replaced: vec![member.clone()], ..self.opening(Vec::new()) };
            let wanted = self.wanted(&spec, opening, true).await;
            wanted.map_err(|failure| self.by_size(failure, &device, request))?;
        }
        let became = self.become_spec(&turn, spec, self.opening(wipe), request.dry_run).await;
        let mut applied = became.map_err(|failure| self.by_size(failure, &device, request))?;
        // A daemon keeps the changed spec by itself.
        if !request.dry_run && self.record.is_none() {
            applied.notes.push(note(&device, request));
        }
        Ok(applied)
    }

    /// Returns the failure of a change. If the new disk is smaller than the device above it, the failure names the
    /// disk and the size that it needs, because faults of the new spec name only devices that would become smaller.
    fn by_size(&self, failure: Failure, device: &str, request: &DiskRequest) -> Failure {
        let (DiskChange::Insert(path) | DiskChange::Replace(path)) = &request.change else {
            return failure;
        };
        let now = self.live.now();
        let nodes = &now.planned.nodes;
        let Some(node) = nodes.iter().find(|node| node.name == device) else { return failure };
        let below = node.lowers.iter().filter_map(|lower| now.graph.member(&nodes[*lower].name));
        // A label takes the same number of bytes at both ends of a disk.
        let label_bytes = 2 * below.map(Member::label_bytes).max().unwrap_or(0);
        // A member of a mirror may have room behind the bytes of the mirror.
        let members = node.lowers.iter().map(|lower| nodes[*lower].info.data_bytes());
        let needed = members.min().unwrap_or_else(|| node.info.data_bytes()) + label_bytes;
        let label = if label_bytes > 0 { " with the label" } else { "" };
        let Some(has) = size_of(&request.directory.join(path)).filter(|has| *has < needed) else {
            return failure;
        };
        let kinds = [Exit::Spec, Exit::Usage, Exit::Unsupported].map(Exit::code);
        if !kinds.contains(&failure.code) {
            return failure;
        }
        let (path, member) = (path.display(), &request.member);
        let (has, needed) = (format_exact(has), format_exact(needed));
        failure
            .reworded(format!(
                "{path} is too small for {device}/{member}: it has {has}, and {device} needs {needed}{label}"
            ))
            .next("a disk of that size at least")
    }

    /// Returns the name of the device that a request is about, and the request with the disk to replace as its member. A new
    /// member has no path yet; so an insert may name the graph with only one device with members.
    fn device_of(&self, request: &DiskRequest) -> Result<(String, DiskRequest)> {
        let DiskRequest { of, member, change, .. } = request;
        let now = self.live.now();
        let members = live::members(&now.graph);
        let mut devices: Vec<_> =
            members.iter().map(|(path, device)| (path[..2].to_vec(), *device)).collect();
        devices.dedup_by(|one, other| one.0 == other.0);
        let known = devices.iter().map(|(_, device)| device.name.as_str());
        let known = names::listed(known, "no device has members", "devices with members:");
        if matches!(change, DiskChange::Insert(_)) {
            let unknown = || format!("no device {of} with members; {known}");
            let found = names::resolve_or_only(of, devices);
            let found = found.map(|it| it.name.clone()).map_err(|why| why.refuse(of, unknown))?;
            return Ok((found, request.clone()));
        }
        let word = format!("{of}/{member}");
        let unknown = || format!("no member {word}; {known}");
        if matches!(change, DiskChange::Remove) {
            let found = names::resolve(&word, members).map(|it| it.name.clone());
            let found = found.map_err(|why| why.refuse(&word, unknown))?;
            return Ok((found, request.clone()));
        }
        let found = names::resolve(&word, disks_of(&now.planned, &members));
        let (device, disks) = found.map_err(|why| why.refuse(&word, unknown))?;
        match &disks[..] {
            [disk] => Ok((device, DiskRequest { member: disk.clone(), ..request.clone() })),
            disks => Err(failure!(
                Usage,
                "the member {member} of {device} has several disks: {}",
                disks.join(", ")
            )
            .next(format!("name the disk to replace, as in {device}/{}", disks[0]))),
        }
    }
}

/// Returns for each member of a graph its path, its device and the disks beneath it. A disk that is no member itself has a
/// path of its own behind that of the member.
fn disks_of(
    planned: &Planned,
    members: &[(names::Path, &Member)],
) -> Vec<(names::Path, (String, Vec<String>))> {
    let is_member = |disk: &String| members.iter().any(|(path, _)| path.last() == Some(disk));
    let mut all = Vec::new();
    for (path, device) in members {
        let disks = path.last().map(|member| planned.beneath(member)).unwrap_or_default();
        for disk in disks.iter().filter(|disk| !is_member(disk)) {
            let below = [&path[..], std::slice::from_ref(disk)].concat();
            all.push((below, (device.name.clone(), vec![disk.clone()])));
        }
        all.push((path.clone(), (device.name.clone(), disks)));
    }
    all
}

/// Returns the size in bytes of a file or block device; `None` if it cannot be opened.
fn size_of(path: &Path) -> Option<u64> {
    std::fs::File::open(path).ok()?.seek(SeekFrom::End(0)).ok()
}

/// Returns the kind of the disk at `path`, and the path for the spec. A relative path begins in `directory`; it stays
/// relative if the graph is served from there.
fn place(directory: &Path, path: &Path) -> Result<(&'static Kind, PathBuf)> {
    use std::os::unix::fs::FileTypeExt;
    let here =
        std::env::current_dir().map_err(|error| Failure::io(&error, "the current directory"))?;
    let path = if here == directory { path.to_owned() } else { directory.join(path) };
    let found = std::fs::metadata(&path).map_err(|error| Failure::io(&error, path.display()))?;
    let kind = REGISTRY.path_disk(found.file_type().is_block_device());
    let kind = kind.expect("disks on files and on block devices are kinds of this binary");
    Ok((kind, path))
}

/// Returns a note for the operator to change the spec file in the same way, because Cairn does not write spec files.
fn note(device: &str, request: &DiskRequest) -> String {
    let member = &request.member;
    let next = match &request.change {
        DiskChange::Insert(path) => {
            format!("add {member} at {} to that file, and to {device}", path.display())
        }
        DiskChange::Replace(path) => {
            format!("set the path of {member} to {} in that file", path.display())
        }
        DiskChange::Remove => format!("remove {member} from {device} in that file"),
    };
    format!("note: the next start reads your spec file. Next: {next}")
}
