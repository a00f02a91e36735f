//! Search for the disks of this machine: its block devices, and the files of a directory.

#![allow(clippy::disallowed_methods, reason = "it looks for disks in directories of this machine")]

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use block::env::{CacheMode, Open};
use block::{Env, Error, ErrorKind, Lower, Needs, Result, bail, error};
use engine::{Engine, NodeId};
use kind::{DeviceConfig, Maker, MakerArgs, Value};
use meta::{AreaContent, ForeignContent, Inspection, Label, Machine, Store, Uuid, Wrong};
use serde::Serialize;

use crate::Doctor;

/// File in which Linux stores the id of the machine.
const MACHINE_ID: &str = "/etc/machine-id";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Maximum number of block devices and files that a scan opens.
const LOOKED_AT_MAX: usize = 4096;

const BLOCK_DEVICES: &str = "/sys/class/block";

/// A label that a scan has read, and the path of its disk.
pub struct FoundLabel {
    /// Path of the disk.
    pub path: PathBuf,
    /// Newest label on the disk.
    pub label: Label,
}

/// A disk that a scan skipped, because another process has the disk open or the disk cannot be read.
#[derive(Serialize)]
pub struct Skipped {
    /// Path of the disk, as printable text.
    pub path: String,
    /// The error of opening or reading the disk, for which the scan skipped it.
    #[serde(serialize_with = "as_text")]
    pub why: Error,
    /// Label of the disk, read without its lock, if another process has the disk open.
    #[serde(skip)]
    pub label: Option<Label>,
}

/// Serializes an error as its text.
///
/// # Errors
/// As the serializer.
pub fn as_text<S: serde::Serializer>(error: &Error, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(error)
}

/// Result of a scan: the findings, and the disks that were skipped.
pub type Scanned<T> = (Vec<T>, Vec<Skipped>);

impl Doctor {
    /// Scans the block devices and the files of `directory`, and returns all labels that can be read and the skipped
    /// disks.
    ///
    /// # Errors
    /// If the directory cannot be read, or there are too many disks.
    pub async fn labels(&self, directory: &Path) -> Result<Scanned<FoundLabel>> {
        let look = async |path: PathBuf, lower: &Lower| match Store::look(&self.env, lower).await? {
            AreaContent::Label(label, _) => Ok(Some(FoundLabel { path, label: *label })),
            AreaContent::Wrong(wrong) => Err(unread(&path, &wrong)),
            AreaContent::Other(_) => Ok(None),
        };
        self.each(directory, look).await
    }

    /// Scans the block devices and the files of `directory`, and returns all disks that have or had a label, with an
    /// inspection of every copy of the label, and the skipped disks.
    ///
    /// # Errors
    /// As [`Doctor::labels`].
    pub async fn copies(&self, directory: &Path) -> Result<Scanned<(PathBuf, Inspection)>> {
        let look = async |path: PathBuf, lower: &Lower| {
            let inspection = meta::inspect(&self.env, lower).await?;
            let is_ours = !matches!(inspection.label, Ok(None));
            Ok(is_ours.then_some((path, inspection)))
        };
        self.each(directory, look).await
    }

    async fn each<T>(
        &self,
        directory: &Path,
        look: impl AsyncFn(PathBuf, &Lower) -> Result<Option<T>>,
    ) -> Result<Scanned<T>> {
        let engine = self.engine();
        let (mut found, mut skipped) = (Vec::new(), Vec::new());
        for path in candidates(directory)? {
            let looked = async {
                text(&path)?;
                let node = open(self, &path, true, &engine).await?;
                let looked = look(path.clone(), &engine.lower(node)).await;
                engine.forget(node);
                looked
            };
            match looked.await {
                Ok(looked) => found.extend(looked),
                Err(why) => {
                    let in_use = why.kind() == ErrorKind::InUse;
                    let label = in_use.then(|| label_in_use(&path)).flatten();
                    let path = path.display().to_string();
                    // The device and its disk have the path as their name; the message contains the path already.
                    let why = if why.place() == Some(&path) { why.without_place() } else { why };
                    skipped.push(Skipped { path, why, label });
                }
            }
        }
        Ok((found, skipped))
    }
}

/// Returns a path as text, because specs and labels can contain only text.
///
/// # Errors
/// `Invalid` if the path is not UTF-8.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        error!(Invalid, "{path:?} is not UTF-8, as all paths in specs and labels must be")
            .next("rename that file")
    })
}

/// Returns the identity of this machine: its host name and its id. Without an id, derives the id from the host name.
pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let host = read(HOST_NAME).trim().to_owned();
    let id = read(MACHINE_ID).trim().parse::<Uuid>().map(|id| id.0);
    let by_name = || {
        let mut id = [0; 16];
        id.iter_mut().zip(host.bytes()).for_each(|(id, byte)| *id = byte);
        id
    };
    Machine::new(&host, id.unwrap_or_else(|_| by_name()))
}

/// Returns the error that the label of the disk at `path` is unusable.
fn unread(path: &Path, wrong: &Wrong) -> Error {
    let next = next_for(&path.display().to_string(), wrong);
    error!(Corrupt, "{} has {wrong}", path.display()).next(next)
}

/// Returns the next step for the operator if the label of the disk at `place` cannot be used.
pub fn next_for(place: &str, wrong: &Wrong) -> String {
    match wrong {
        Wrong::Version(_) | Wrong::Features(_) => "use a newer version of Cairn".to_owned(),
        Wrong::NoMagic | Wrong::Damaged(_) => format!(
            "cairn repair GRAPH --plan --disk NAME={place} shows whether the label can be restored"
        ),
    }
}

/// Returns the label at the front of a disk that another process has locked. That process may be writing the next label
/// at this time, but it writes to other copies.
pub fn label_in_use(path: &Path) -> Option<Label> {
    let mut front = vec![0; meta::AREA_BYTES as usize];
    std::fs::File::open(path).and_then(|mut disk| disk.read_exact(&mut front)).ok()?;
    let (_, label) = meta::newest([&front[..]]).ok()??;
    Some(label)
}

/// Returns the paths that may be disks: block devices with traces of a label, and files of `directory` that are large
/// enough for one.
fn candidates(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    if let Ok(entries) = std::fs::read_dir(BLOCK_DEVICES) {
        let devices = entries.flatten().map(|entry| Path::new("/dev").join(entry.file_name()));
        paths.extend(devices.filter(|path| has_traces_of_label(path)));
    }
    let entries =
        std::fs::read_dir(directory).map_err(|error| Error::io(&error, directory.display()))?;
    let files = entries.flatten().filter(|entry| {
        let found = entry.metadata();
        found.is_ok_and(|found| found.is_file() && meta::data_bytes(found.len()).is_ok())
    });
    let shown = |path: PathBuf| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
    paths.extend(files.map(|entry| shown(entry.path())));
    paths.sort();
    if paths.len() > LOOKED_AT_MAX {
        return Err(error!(
            Invalid,
            "found {} block devices and files; at most {LOOKED_AT_MAX} are searched",
            paths.len()
        )
        .next("--directory DIR, with only the disks in it"));
    }
    Ok(paths)
}

/// Whether this user may read the block device, and either end of it has a label or remains of one. Does not claim the
/// device: the kernel would refuse a mount of the device at the same time. A drive without a medium has no bytes.
fn has_traces_of_label(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let size = std::fs::read_to_string(Path::new(BLOCK_DEVICES).join(name).join("size"));
    let sectors = size.ok().and_then(|size| size.trim().parse::<u64>().ok()).unwrap_or(0);
    let Ok(data) = meta::data_bytes(sectors.saturating_mul(512)) else { return false };
    let Ok(disk) = std::fs::File::open(path) else { return false };
    let mut ends = [0, meta::DATA_START + data].map(|at| (at, vec![0; meta::AREA_BYTES as usize]));
    let read = ends.iter_mut().try_for_each(|(at, end)| disk.read_exact_at(end, *at));
    // A disk that cannot be read is reported by the scan that opens it.
    read.is_err() || !matches!(meta::newest(ends.iter().map(|(_, end)| &end[..])), Ok(None))
}

/// Returns the kind and the value with which a spec names the disk at `at`, an NBD URI or a path.
pub fn said_place(at: &str) -> (String, String) {
    if at.contains("://") { ("nbd".to_owned(), at.to_owned()) } else { place(Path::new(at)) }
}

/// Returns the kind and the value with which a spec names the disk at a path.
pub fn place(path: &Path) -> (String, String) {
    use std::os::unix::fs::FileTypeExt;
    let device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let kind = if device { "path" } else { "file" };
    (kind.to_owned(), path.to_string_lossy().into_owned())
}

/// Opens and locks the raw disk at `path`. Returns its node in `engine`.
///
/// # Errors
/// `Invalid` for a path that is no disk; errors of the system or of the disk.
async fn open(doctor: &Doctor, path: &Path, read_only: bool, engine: &Engine) -> Result<NodeId> {
    let (registry, env) = (doctor.registry, &doctor.env);
    use std::os::unix::fs::FileTypeExt;
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| Error::io(&error, &shown))?;
    let device = found.file_type().is_block_device();
    if !device && !found.is_file() {
        bail!(Invalid, "{shown} is neither a file nor a block device");
    }
    let cache = CacheMode::Direct;
    let open =
        Open { path: path.to_owned(), device, read_only, create: None, odd_size: false, cache };
    env.probe(&open)?;
    let name = if device { "path" } else { "file" };
    let kind = registry.find(name).filter(|kind| matches!(kind.maker, Maker::Disk { .. }));
    let Some(Maker::Disk { make, .. }) = kind.map(|kind| kind.maker) else {
        bail!(Unsupported, "no kind {name}");
    };
    let options =
        vec![(name, Value::Text(shown.to_string())), ("read_only", Value::Switch(read_only))];
    let given = DeviceConfig {
        graph: String::new(),
        name: shown.to_string(),
        options,
        lowers: Vec::new(),
        trusted_now: false,
    };
    let disk = make(MakerArgs::new(&given, env)).await?;
    engine.add_device(&given.name, disk, Needs::LEAF, &[])
}

/// A raw disk that this process has opened and locked.
pub struct OpenDisk {
    env: Env,
    engine: Engine,
    node: NodeId,
    lower: Lower,
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        self.engine.forget(self.node);
    }
}

/// The content of both ends of a disk, for the user.
pub struct Content {
    /// Description of the content in words.
    pub words: String,
    /// Whether the content is a label of Cairn, even a damaged one.
    pub ours: bool,
    /// Whether both ends of the disk are zeros.
    pub blank: bool,
}

impl Doctor {
    /// Opens and locks the raw disk at `path`.
    ///
    /// # Errors
    /// `Invalid` for a path that is no disk; errors of the system or of the disk.
    pub async fn open(&self, path: &Path, read_only: bool) -> Result<OpenDisk> {
        let engine = self.engine();
        let node = open(self, path, read_only, &engine).await?;
        let (env, lower) = (self.env.clone(), engine.lower(node));
        Ok(OpenDisk { env, engine, node, lower })
    }

    /// Returns the label of the disk at `path`; `None` if another process has the disk open, or no label can be read.
    pub async fn label(&self, path: &Path) -> Option<Label> {
        let disk = self.open(path, true).await.ok()?;
        match Store::look(&self.env, &disk.lower).await {
            Ok(AreaContent::Label(label, _)) => Some(*label),
            _ => None,
        }
    }
}

impl OpenDisk {
    /// Returns the lower through which requests to the disk go.
    pub(crate) fn lower(&self) -> &Lower {
        &self.lower
    }

    /// Returns a description of the content of both ends of the disk.
    ///
    /// # Errors
    /// Errors of the disk.
    pub async fn content(&self) -> Result<Content> {
        let seen = Store::look(&self.env, &self.lower).await?;
        let (words, ours) = held(&seen);
        Ok(Content {
            words,
            ours,
            blank: matches!(seen, AreaContent::Other(ForeignContent::Blank)),
        })
    }

    /// Zeros both label areas of the disk.
    ///
    /// # Errors
    /// Errors of the disk.
    pub async fn wipe(&self) -> Result<()> {
        meta::wipe(&self.env, &self.lower).await
    }
}

/// Returns a description of the content of a disk, and whether the content is a label of Cairn.
fn held(seen: &AreaContent) -> (String, bool) {
    match seen {
        AreaContent::Label(label, _) => {
            let (disk, graph) = (&label.disk_name, &label.graph_name);
            (format!("the label of disk {disk:?} of the graph {graph:?}"), true)
        }
        AreaContent::Wrong(wrong) => (wrong.to_string(), true),
        AreaContent::Other(ForeignContent::Blank) => ("nothing".to_owned(), false),
        AreaContent::Other(ForeignContent::Holds(what)) => (what.to_string(), false),
        AreaContent::Other(ForeignContent::Unknown) => {
            ("bytes of an unknown format".to_owned(), false)
        }
        AreaContent::Other(ForeignContent::TooSmall(bytes)) => {
            (format!("{bytes} bytes, too few for a label"), false)
        }
    }
}

/// Returns the path with all symbolic links resolved; `None` if no file is there.
pub fn real(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}
