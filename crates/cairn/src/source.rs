//! The source of a graph: a spec, labels, or a raw disk.

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

/// File formats other than raw disks: the first bytes and the name.
const FORMATS: [(&[u8], &str); 4] =
    [(b"QFI\xfb", "qcow2"), (b"KDMV", "vmdk"), (b"vhdxfile", "vhdx"), (b"conectix", "vhd")];

/// The source of a graph.
pub enum Source {
    /// A spec file, with a name that ends in `.toml`.
    Spec(PathBuf),
    /// A raw disk: the kind of the disk, and its path.
    Disk(&'static str, PathBuf),
    /// A spec from labels.
    Labels(Box<Spec>),
    /// A spec that a daemon keeps.
    Kept(Box<Spec>),
}

impl Source {
    /// Returns the source for a path.
    ///
    /// # Errors
    /// `NotFound`; `Usage` for a directory or a pipe; errors of the system.
    pub fn of(path: &Path) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let shown = path.display();
        let found = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::new(Exit::NotFound, format!("{shown}: no such file"))
                    .next(next(path).to_string())
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
            Err(Failure::new(Exit::Usage, format!("{shown} is {what}"))
                .next("use the path of a spec, a file or a block device"))
        }
    }

    /// Returns the spec of the graph.
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

    /// Plans the spec with the facts of labelled disks. Prints the faults of a spec from a file or from labels.
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

/// Returns the format of a file: `raw`, or a format that contains a disk.
pub fn format(path: &Path) -> Result<&'static str> {
    use std::io::Read;
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(8).read_to_end(&mut start));
    read.map_err(|error| Failure::io(&error, path.display()))?;
    let known = FORMATS.iter().find(|(magic, _)| start.starts_with(magic));
    Ok(known.map_or("raw", |(_, name)| name))
}

/// Returns the next step for a file that does not exist.
fn next(path: &Path) -> String {
    let shown = path.display();
    if is_spec(path) {
        format!("create that spec; cairn validate {shown} checks a spec")
    } else {
        format!("cairn create {shown} 10GiB")
    }
}

/// Whether the file's name is that of a spec.
pub fn is_spec(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "toml")
}

/// Reads a spec file, with variables from the environment.
pub fn read_spec(path: &Path) -> Result<Spec> {
    let text = read_text(path)?;
    Ok(Spec::parse(&text, &path.to_string_lossy(), &|name| std::env::var(name).ok()))
}

/// Reads the text of a spec.
pub fn read_text(path: &Path) -> Result<String> {
    use std::io::Read;
    let shown = path.display();
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| Failure::io(&error, &shown))?;
    // One byte above the limit makes the parser refuse the text.
    let most = TEXT_MAX_BYTES as u64 + 1;
    file.take(most).read_to_end(&mut text).map_err(|error| Failure::io(&error, &shown))?;
    String::from_utf8(text)
        .map_err(|error| Failure::new(Exit::Spec, format!("{shown} is not UTF-8: {error}")))
}

/// Returns a spec of one raw disk. Probes the disk first: an error of the system has an exit code of its own, which a
/// fault of the spec would hide.
fn disk(kind: &str, path: &Path, read_only: bool, env: &Env) -> Result<Spec> {
    let text = place::text(path)?;
    let open = Open {
        path: path.to_owned(),
        device: kind == "path",
        read_only,
        create: None,
        cache: CacheMode::Direct,
    };
    env.probe(&open)?;
    let format = format(path)?;
    if format != "raw" {
        out::note(&format!(
            "warning: {text} is a {format} image; clients see the bytes of the file, not the disk inside. \
             Next: qemu-img convert -O raw {text} {text}.raw"
        ));
    }
    Ok(Spec::of_disk(kind, text, read_only))
}

/// Returns the failure for a disk without a spec that cannot be served.
fn unusable(faults: Faults) -> Failure {
    let words: Vec<_> = faults.iter().map(|fault| fault.message()).collect();
    Failure::new(Exit::Usage, words.join("; "))
}

/// Returns the failure for a spec with faults, for a client that is another process.
pub fn faulty(faults: &Faults) -> Failure {
    let faults = faults.to_string();
    Failure::new(Exit::Spec, format!("the spec has faults\n{}", faults.trim_end()))
}

/// Prints all faults of a spec.
pub fn failure_of(faults: Faults) -> Failure {
    out::note(&faults.to_string());
    Failure::printed(Exit::Spec)
}
