//! `cairn completions`: the scripts for completion in shells.

use clap::Args;
use clap_complete::Shell;

use crate::complete;
use crate::exit::{Exit, Result};
use crate::out;

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script that completes words of this program in the shell.
    pub fn run(self) -> Result {
        out::print_raw(&complete::script(self.shell))?;
        Ok(Exit::Ok)
    }
}
