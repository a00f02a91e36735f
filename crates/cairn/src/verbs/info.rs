//! `cairn info`: the facts about a file, a block device or an export. Nothing is changed.

use std::path::{Path, PathBuf};

use block::env::{CacheMode, Open};
use block::units::{format_exact, format_size};
use block::{Env, ErrorKind};
use clap::Args;
use doctor::{Label, scan};
use serde::Serialize;

use super::core;
use crate::exit::{Failure, Result};
use crate::labels;
use crate::out::Form;
use crate::remote;
use crate::source::format;

/// Arguments of `info`.
#[derive(Args)]
pub struct InfoArgs {
    /// A file, a block device, or an NBD URI
    #[arg(value_name = "FILE|URI")]
    target: String,
}

/// The facts about a file or a block device.
#[derive(Serialize)]
struct FileView {
    path: String,
    size_bytes: u64,
    /// Bytes of the file that are allocated; `None` for a block device.
    allocated_bytes: Option<u64>,
    block_size_bytes: u32,
    format: String,
    access: String,
    holder: Option<String>,
    /// The facts about the label of the disk, if it has one.
    label: Option<LabelView>,
}

/// The facts about the label of a disk.
#[derive(Serialize)]
struct LabelView {
    graph: String,
    graph_uuid: String,
    disk: String,
    disk_uuid: String,
    data_bytes: u64,
    epoch: u64,
    sequence: u64,
    open_on: Option<String>,
    devices: Vec<String>,
}

impl InfoArgs {
    /// Prints the facts about the target.
    pub fn run(self, form: Form) -> Result {
        let core = core()?;
        let env = core.env();
        if self.target.contains("://") {
            let facts = core.block_on(remote::facts(&env, &self.target))?;
            return form.print(&facts, || facts.text());
        }
        let path = Path::new(&self.target);
        let mut facts = file(path, &env)?;
        let found = match facts.holder {
            None => core.block_on(labels::doctor(&env).label(path)),
            Some(_) => scan::label_in_use(path),
        };
        if let Some(label) = found {
            facts.format = "labelled".to_owned();
            facts.label = Some(label.into());
        }
        form.print(&facts, || text(&facts))
    }
}

fn file(path: &Path, env: &Env) -> Result<FileView> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| Failure::io(&error, &shown))?;
    let device = found.file_type().is_block_device();
    if !device && !found.is_file() {
        fail!(Usage, "{shown} is neither a file nor a block device");
    }
    let path = PathBuf::from(path);
    let open = Open {
        path,
        device,
        read_only: true,
        create: None,
        odd_size: true,
        cache: CacheMode::Direct,
    };
    let facts = env.probe(&open)?;
    Ok(FileView {
        path: shown.to_string(),
        size_bytes: facts.size,
        allocated_bytes: (!device).then(|| found.blocks() * 512),
        block_size_bytes: facts.block_size,
        format: format(&open.path)?.to_owned(),
        access: facts.words,
        holder: holder(&open, env)?,
        label: None,
    })
}

/// Returns the process that has the disk open for writing. To find it, takes the lock of a reader, and releases the
/// lock at once.
fn holder(open: &Open, env: &Env) -> Result<Option<String>> {
    match env.open(open) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::InUse => Ok(Some(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

impl From<Label> for LabelView {
    fn from(label: Label) -> Self {
        Self {
            graph: label.graph_name,
            graph_uuid: label.graph.to_string(),
            disk: label.disk_name,
            disk_uuid: label.disk.to_string(),
            data_bytes: label.data_bytes,
            epoch: label.epoch,
            sequence: label.sequence,
            open_on: label.holder.map(|machine| machine.host),
            devices: label.cells.into_keys().collect(),
        }
    }
}

impl LabelView {
    fn text(&self) -> String {
        let Self { graph, disk, disk_uuid, .. } = self;
        let open = match &self.open_on {
            Some(host) => format!("open on host {host:?}, or not closed by that host"),
            None => "closed".to_owned(),
        };
        let data = format_size(self.data_bytes);
        format!("  label: disk {disk:?} ({disk_uuid}) of {graph:?}, {data} of data, {open}\n")
    }
}

fn text(facts: &FileView) -> String {
    let FileView { path, format, access, block_size_bytes, .. } = facts;
    let size = format_exact(facts.size_bytes);
    let used = match facts.allocated_bytes {
        Some(bytes) => format!(", {} in use", format_size(bytes)),
        None => String::new(),
    };
    let mut text =
        format!("{path}  {size}{used}, blocks of {block_size_bytes}, {access}, {format}\n");
    if let Some(holder) = &facts.holder {
        text.push_str(&format!("  {holder}\n"));
    }
    if let Some(label) = &facts.label {
        text.push_str(&label.text());
    }
    text
}
