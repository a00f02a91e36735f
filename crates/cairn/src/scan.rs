//! Labels on this machine, wherever they are: on block devices, and in the files of a directory.

use std::io::Read;
use std::path::{Path, PathBuf};

use block::{Env, Error, Lower};
use engine::Engine;
use meta::{Inspection, Label, Seen, Store, Wrong};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use crate::place;
use crate::verbs::wipe;

/// Disks and files that are looked at.
const LOOKED_AT_MAX: usize = 4096;

const BLOCK_DEVICES: &str = "/sys/class/block";

/// A label, and where it is.
pub struct Sight {
    /// The disk.
    pub path: PathBuf,
    /// What it says.
    pub label: Label,
}

/// What somebody has open, or what cannot be read, and why.
#[derive(Serialize)]
pub struct Skipped {
    /// The disk, as it can be shown.
    pub path: String,
    /// Why it was skipped.
    #[serde(serialize_with = "as_text")]
    pub why: Error,
    /// Of one that somebody has open: its label.
    #[serde(skip)]
    pub label: Option<Label>,
}

/// What a look at everything came to.
type Looked<T> = (Vec<T>, Vec<Skipped>);

/// All labels that can be read.
///
/// # Errors
/// If the directory cannot be read, or there are too many disks to look at.
pub async fn labels(env: &Env, directory: &Path) -> Result<Looked<Sight>> {
    let look = async |path: PathBuf, lower: &Lower| match Store::look(env, lower).await? {
        Seen::Label(label, _) => Ok(Some(Sight { path, label: *label })),
        Seen::Wrong(wrong) => Err(unread(&path, &wrong)),
        Seen::Other(_) => Ok(None),
    };
    each(env, directory, look).await
}

/// All disks that have a label, or once had one, with every copy of it.
///
/// # Errors
/// As [`labels`].
pub async fn copies(env: &Env, directory: &Path) -> Result<Looked<(PathBuf, Inspection)>> {
    let look = async |path: PathBuf, lower: &Lower| {
        let inspection = meta::inspect(env, lower).await?;
        let is_ours = !matches!(inspection.label, Ok(None));
        Ok(is_ours.then_some((path, inspection)))
    };
    each(env, directory, look).await
}

async fn each<T>(
    env: &Env,
    directory: &Path,
    look: impl AsyncFn(PathBuf, &Lower) -> Result<Option<T>>,
) -> Result<Looked<T>> {
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for path in candidates(directory)? {
        let looked = async {
            place::text(&path)?;
            let node = wipe::open(&path, true, env, &engine).await?;
            let looked = look(path.clone(), &engine.lower(node)).await;
            engine.forget(node);
            looked
        };
        match looked.await {
            Ok(looked) => found.extend(looked),
            Err(mut failure) => {
                let in_use = failure.code == Exit::InUse.code();
                let label = in_use.then(|| label_in_use(&path)).flatten();
                let path = path.display().to_string();
                let why = failure.causes.pop().expect("each failure here has a cause");
                // The device and its disk have one name here, and the message says it as well.
                let why = if why.place() == Some(&path) { why.without_place() } else { why };
                skipped.push(Skipped { path, why, label });
            }
        }
    }
    Ok((found, skipped))
}

/// Serializes an error as its text.
pub fn as_text<S: serde::Serializer>(error: &Error, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(error)
}

/// What is said where no graph was found.
pub fn no_label(skipped: &[Skipped]) -> &'static str {
    if skipped.is_empty() {
        "no disk here has a label.\n"
    } else {
        "no other disk here has a label.\n"
    }
}

/// Of a disk whose label cannot be used nobody knows whose it is.
fn unread(path: &Path, wrong: &Wrong) -> Failure {
    let next = next_for(&path.display().to_string(), wrong);
    Failure::new(Exit::Damaged, format!("{} has {wrong}", path.display())).next(next.to_string())
}

/// What to do about a label that cannot be used.
pub fn next_for(place: &str, wrong: &Wrong) -> String {
    match wrong {
        Wrong::Version(_) | Wrong::Features(_) => "use a newer version of Cairn".to_owned(),
        Wrong::NoMagic | Wrong::Damaged(_) => format!(
            "cairn repair GRAPH --plan --disk NAME={place} tells whether its graph knows \
                         enough to give it back"
        ),
    }
}

/// The label at the front of a disk that somebody has locked, who may be writing the next one meanwhile: it goes
/// where this one is not.
pub fn label_in_use(path: &Path) -> Option<Label> {
    let mut front = vec![0; meta::AREA_BYTES as usize];
    std::fs::File::open(path).and_then(|mut disk| disk.read_exact(&mut front)).ok()?;
    let (_, label) = meta::newest([&front[..]]).ok()??;
    Some(label)
}

/// What may be a disk: block devices that this user may read, and files large enough for a label.
fn candidates(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    if let Ok(entries) = std::fs::read_dir(BLOCK_DEVICES) {
        let devices = entries.flatten().map(|entry| Path::new("/dev").join(entry.file_name()));
        paths.extend(devices.filter(|path| is_readable_device(path)));
    }
    let entries =
        std::fs::read_dir(directory).map_err(|error| Failure::io(&error, directory.display()))?;
    let files = entries.flatten().filter(|entry| {
        let found = entry.metadata();
        found.is_ok_and(|found| found.is_file() && meta::data_bytes(found.len()).is_ok())
    });
    let shown = |path: PathBuf| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
    paths.extend(files.map(|entry| shown(entry.path())));
    paths.sort();
    if paths.len() > LOOKED_AT_MAX {
        let why = format!(
            "{} block devices and files here; at most {LOOKED_AT_MAX} are looked at",
            paths.len()
        );
        return Err(
            Failure::new(Exit::Usage, why).next("--directory DIR, where only the disks are")
        );
    }
    Ok(paths)
}

/// Whether it has a medium, is not on a file of this directory, and may be read.
fn is_readable_device(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let size = std::fs::read_to_string(Path::new(BLOCK_DEVICES).join(name).join("size"));
    let sectors = size.ok().and_then(|size| size.trim().parse::<u64>().ok()).unwrap_or(0);
    meta::data_bytes(sectors.saturating_mul(512)).is_ok() && std::fs::File::open(path).is_ok()
}

/// How a spec names what somebody has said: an NBD URI, or a path.
pub fn said_place(at: &str) -> (String, String) {
    if at.contains("://") { ("nbd".to_owned(), at.to_owned()) } else { place(Path::new(at)) }
}

/// How a spec names what is at a path.
pub fn place(path: &Path) -> (String, String) {
    use std::os::unix::fs::FileTypeExt;
    let device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let kind = if device { "path" } else { "file" };
    (kind.to_owned(), path.to_string_lossy().into_owned())
}
