//! `cairn wipe`: removes the label of a disk.

use std::path::PathBuf;

use clap::Args;
use doctor::scan::Content;
use serde::Serialize;

use super::{confirm, core};
use crate::exit::Result;
use crate::labels;
use crate::out::Form;

/// Arguments of `wipe`.
#[derive(Args)]
pub struct WipeArgs {
    /// A file or a block device
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// Remove any content of both ends, not only a label of Cairn
    #[arg(long)]
    all_signatures: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// Show what would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Wiped {
    path: String,
    held: String,
    wiped: bool,
}

impl WipeArgs {
    /// Checks the content of the disk, asks for confirmation, and overwrites the first and the last MiB with zeros.
    pub fn run(self, form: Form) -> Result {
        let core = core()?;
        let doctor = labels::doctor(&core.env());
        let shown = self.disk.display().to_string();
        let disk = core.block_on(doctor.open(&self.disk, self.dry_run))?;
        let Content { words: held, ours, blank: nothing } = core.block_on(disk.content())?;
        if !ours && !self.all_signatures && !nothing {
            return Err(failure!(InUse, "{shown} holds {held}, but no label of Cairn")
                .next("--all-signatures, to remove that content"));
        }
        if !nothing && !self.dry_run {
            let warning = "The data on this disk cannot be found afterwards.";
            confirm(self.yes, &format!("remove {held} from {shown}? {warning}"))?;
            core.block_on(disk.wipe())?;
        }
        let wiped =
            Wiped { path: shown.clone(), held: held.clone(), wiped: !nothing && !self.dry_run };
        form.print(&wiped, || match (nothing, self.dry_run) {
            (true, _) => format!("{shown}  blank; nothing was changed\n"),
            (false, true) => format!("{shown}  would remove {held}\n"),
            (false, false) => format!("{shown}  removed {held}\n"),
        })
    }
}
