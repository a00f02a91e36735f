//! `cairn create`: creates an empty disk in a file.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use block::units::{format_size, parse_size, write_size};
use clap::Args;
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use crate::out::Form;

/// Length in bytes of the longest file that the kernel supports.
const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// Smallest block size in bytes. The size of a disk is a multiple of it.
const BLOCK_BYTES: u64 = 512;

/// Arguments of `create`.
#[derive(Args)]
pub struct CreateArgs {
    /// The file to create; it must not exist
    file: PathBuf,
    /// The size of the file: 4096, 64KiB, 10G, 1.5TiB
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Show the file without creating it
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Created {
    path: String,
    size_bytes: u64,
    created: bool,
}

impl CreateArgs {
    /// Creates the file, without allocating space for it.
    pub fn run(self, form: Form) -> Result {
        let shown = self.file.display();
        self.check_size()?;
        if self.file.symlink_metadata().is_ok() {
            return Err(self.is_there());
        }
        if !self.dry_run {
            self.make()?;
        }
        let path = shown.to_string();
        let created = Created { path, size_bytes: self.size, created: !self.dry_run };
        let would = if self.dry_run { "would create " } else { "" };
        form.print(&created, || {
            let size = format_size(self.size);
            format!("{would}{shown}  {size}, sparse, raw (without a label)\n")
        })
    }

    fn check_size(&self) -> Result<()> {
        let size = self.size;
        let whole = size - size % BLOCK_BYTES;
        let why = if size < BLOCK_BYTES {
            format!("a disk of {size} bytes is too small; at least {BLOCK_BYTES} are needed")
        } else if size > SIZE_MAX_BYTES {
            format!("a file of {size} bytes is too large; at most {SIZE_MAX_BYTES} are possible")
        } else if size != whole {
            let near = write_size(whole);
            format!("{size} bytes are not a multiple of {BLOCK_BYTES}. Next: use {near}")
        } else {
            return Ok(());
        };
        Err(Failure::new(Exit::Usage, why))
    }

    fn make(&self) -> Result<()> {
        let shown = self.file.display();
        let file = File::create_new(&self.file).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => self.is_there(),
            _ => Failure::io(&error, format_args!("creating {shown}")),
        })?;
        file.set_len(self.size).map_err(|error| {
            // A disk of the wrong size is removed: the file is new, and has no data yet.
            if let Err(error) = std::fs::remove_file(&self.file) {
                warn!("removing the empty file {shown}: {error}");
            }
            block::Error::size(&error, shown, self.size).into()
        })
    }

    fn is_there(&self) -> Failure {
        let shown = self.file.display();
        failure!(InUse, "{shown} already exists").next(format!("another name; cairn info {shown}"))
    }
}
