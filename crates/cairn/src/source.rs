//! The source from which a graph is served: a spec, labels, or a raw disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use block::Env;
use block::env::{CacheMode, Open};
use graph::spec::{Faults, KnownDisk, Planned, Spec, TEXT_MAX_BYTES};

use crate::certificates;
use crate::exit::{Exit, Failure, Result};
use crate::out;
use crate::place;
use crate::registry::REGISTRY;

/// Formats of files that contain a disk image: the first bytes of such a file, and the name of the format.
const FORMATS: [(&[u8], &str); 4] =
    [(b"QFI\xfb", "qcow2"), (b"KDMV", "vmdk"), (b"vhdxfile", "vhdx"), (b"conectix", "vhd")];

/// The source from which a graph is served.
pub enum Source {
    /// A spec file, with a name that ends in `.toml`.
    Spec(PathBuf),
    /// A raw disk to export, without a spec: the kind of the disk, and its path.
    Disk(&'static str, PathBuf),
    /// A spec that was read from labels of disks.
    Labels(Box<Spec>),
    /// A spec from the record of a daemon.
    Kept(Box<Spec>),
}

impl Source {
    /// Returns the source that `path` leads to.
    ///
    /// # Errors
    /// `NotFound`; `Usage` for a directory or a pipe; errors of the system.
    pub fn of(path: &Path) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let shown = path.display();
        let found = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                failure!(NotFound, "{shown}: no such file").next(next(path).to_string())
            }
            _ => Failure::io(&error, &shown),
        })?;
        let kind = found.file_type();
        if kind.is_file() && is_spec(path) {
            Ok(Self::Spec(path.to_owned()))
        } else if kind.is_file() {
            Ok(Self::Disk("file", path.to_owned()))
        } else if kind.is_block_device() {
            Ok(Self::Disk("path", path.to_owned()))
        } else {
            let what = "neither a spec (.toml), nor a file, nor a block device";
            Err(failure!(Usage, "{shown} is {what}")
                .next("use the path of a spec, a file or a block device"))
        }
    }

    /// Returns the spec of the graph from this source.
    pub fn spec(&self, read_only: bool, env: &Env) -> Result<Spec> {
        match self {
            Self::Spec(path) => {
                let mut spec = read_spec(path)?;
                certificates::check(env, &mut spec);
                Ok(spec)
            }
            Self::Disk(kind, path) => disk(kind, path, read_only, env),
            Self::Labels(spec) => Ok((**spec).clone()),
            Self::Kept(spec) => {
                let mut spec = (**spec).clone();
                certificates::check(env, &mut spec);
                Ok(spec)
            }
        }
    }

    /// Returns the plan of the spec, made with the facts about labelled disks in `probed`. Prints the faults of a
    /// spec from a file or from labels.
    pub async fn plan(
        &self,
        spec: &Spec,
        read_only: bool,
        env: &Env,
        probed: &BTreeMap<String, KnownDisk>,
    ) -> Result<Planned> {
        let planned = spec.plan_over(REGISTRY, env, probed).await;
        let mut planned = match self {
            Self::Spec(_) | Self::Labels(_) => planned.map_err(failure_of)?,
            Self::Kept(_) => planned.map_err(|faults| faulty(&faults))?,
            Self::Disk(..) => return planned.map_err(unusable),
        };
        if read_only {
            planned.refuse_writes();
        }
        Ok(planned)
    }
}

/// Returns the format of a file: `raw`, or the format of a file that contains a disk image.
pub fn format(path: &Path) -> Result<&'static str> {
    use std::io::Read;
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(8).read_to_end(&mut start));
    read.map_err(|error| Failure::io(&error, path.display()))?;
    let known = FORMATS.iter().find(|(magic, _)| start.starts_with(magic));
    Ok(known.map_or("raw", |(_, name)| name))
}

/// Returns the next step for the operator if the file at `path` does not exist.
fn next(path: &Path) -> String {
    let shown = path.display();
    if is_spec(path) {
        format!("create that spec; cairn validate {shown} checks a spec")
    } else if path.to_string_lossy().starts_with("nbd") && path.to_string_lossy().contains("://") {
        format!("write a spec with the disk d = {{ nbd = \"{shown}\" }}")
    } else {
        format!("cairn create {shown} 10GiB")
    }
}

/// Whether `path` is that of a spec: it ends in `.toml`.
pub fn is_spec(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "toml")
}

/// Reads and parses a spec file. Its variables get their values from the environment of this process.
pub fn read_spec(path: &Path) -> Result<Spec> {
    let text = read_text(path)?;
    Ok(Spec::parse(&text, &path.to_string_lossy(), &|name| std::env::var(name).ok()))
}

/// Reads the text of the spec file at `path`.
pub fn read_text(path: &Path) -> Result<String> {
    use std::io::Read;
    let shown = path.display();
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| Failure::io(&error, &shown))?;
    // One byte above the limit makes the parser refuse the text.
    let most = TEXT_MAX_BYTES as u64 + 1;
    file.take(most).read_to_end(&mut text).map_err(|error| Failure::io(&error, &shown))?;
    String::from_utf8(text).map_err(|error| failure!(Spec, "{shown} is not UTF-8: {error}"))
}

/// Returns a spec with one raw disk as its export. Probes the disk first: so an error of the system has an exit code
/// of its own, not that of a spec with faults.
fn disk(kind: &str, path: &Path, read_only: bool, env: &Env) -> Result<Spec> {
    let text = place::text(path)?;
    let open = Open {
        path: path.to_owned(),
        device: kind == "path",
        read_only,
        create: None,
        odd_size: true,
        cache: CacheMode::Direct,
    };
    env.probe(&open)?;
    let format = format(path)?;
    if format != "raw" {
        warn!(
            "{text} is a {format} image; clients see the bytes of the file, not the disk inside. \
             Next: qemu-img convert -O raw {text} {text}.raw"
        );
    }
    Ok(Spec::of_disk(kind, text, read_only))
}

/// Returns the failure for a raw disk whose spec has faults, in words that do not mention a spec.
fn unusable(faults: Faults) -> Failure {
    let words: Vec<_> = faults.iter().map(|fault| fault.message()).collect();
    Failure::new(Exit::Usage, words.join("; "))
}

/// Returns the failure for a spec with faults, as the reply to a client in another process.
pub fn faulty(faults: &Faults) -> Failure {
    let faults = faults.to_string();
    failure!(Spec, "the spec has faults\n{}", faults.trim_end())
}

/// Prints all faults of a spec, and returns the failure.
pub fn failure_of(faults: Faults) -> Failure {
    out::note(&faults.to_string());
    Failure::printed(Exit::Spec)
}
