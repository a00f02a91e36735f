//! Labels on this machine, wherever they are: on block devices, and in the files of a directory.

use std::path::{Path, PathBuf};

use block::Env;
use graph::engine::Engine;
use meta::{Label, Seen, Store};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
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
    /// The disk.
    pub path: PathBuf,
    /// Why, in words.
    pub why: String,
}

/// All labels that can be read.
///
/// # Errors
/// If the directory cannot be read, or there are too many disks to look at.
pub async fn labels(env: &Env, directory: &Path) -> Result<(Vec<Sight>, Vec<Skipped>)> {
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let (mut sights, mut skipped) = (Vec::new(), Vec::new());
    for path in candidates(directory)? {
        match label(env, &engine, &path).await {
            Ok(Some(label)) => sights.push(Sight { path, label }),
            Ok(None) => {}
            Err(failure) => skipped.push(Skipped { path, why: failure.message }),
        }
    }
    Ok((sights, skipped))
}

async fn label(env: &Env, engine: &Engine, path: &Path) -> Result<Option<Label>> {
    let node = wipe::open(path, true, env, engine).await?;
    let seen = Store::look(env, &engine.lower(node)).await;
    engine.forget(node);
    Ok(match seen? {
        Seen::Label(label, _) => Some(*label),
        Seen::Wrong(_) | Seen::Other(_) => None,
    })
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
            "{} block devices and files here; at most {LOOKED_AT_MAX} are looked at. Next: \
             --directory DIR, where only the disks are",
            paths.len()
        );
        return Err(Failure::new(Exit::Usage, why));
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

/// How a spec names what is at a path.
pub fn place(path: &Path) -> (String, String) {
    use std::os::unix::fs::FileTypeExt;
    let device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let kind = if device { "path" } else { "file" };
    (kind.to_owned(), path.to_string_lossy().into_owned())
}
