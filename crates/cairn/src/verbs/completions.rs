//! `cairn completions`: shell completions, made from the definition of the command line.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::{Exit, Result};
use crate::out;

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the completions for the shell.
    pub fn run(self, mut command: Command) -> Result {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "cairn", &mut script);
        out::print(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Ok)
    }
}
