//! `cairn completions` and `cairn man`: shell completions and manual pages, made from the definition of the command
//! line.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::{Exit, Failure, Result};
use crate::out;

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Directory for a page of every verb; by default the page of `cairn` is printed
    dir: Option<PathBuf>,
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

impl ManArgs {
    /// Prints the manual page of `cairn`, or writes the pages of all verbs into a directory.
    pub fn run(self, command: Command) -> Result {
        match &self.dir {
            None => out::print(&String::from_utf8_lossy(&page(command)))?,
            Some(dir) => {
                std::fs::create_dir_all(dir).map_err(|error| {
                    Failure::io(&error, format_args!("making {}", dir.display()))
                })?;
                write(command, dir, "")?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// Writes the manual page of a command into `dir`, and those of its subcommands. `above` are the names of the
/// commands above it.
fn write(command: Command, dir: &Path, above: &str) -> Result<()> {
    let name = format!("{above}{}", command.get_name());
    for verb in command.get_subcommands() {
        write(verb.clone(), dir, &format!("{name}-"))?;
    }
    let path = dir.join(format!("{name}.1"));
    // clap only takes names with a static lifetime.
    let name: &'static str = name.leak();
    let text = page(command.name(name).disable_help_flag(true));
    std::fs::write(&path, text)
        .map_err(|error| Failure::io(&error, format_args!("writing {}", path.display())))
}

fn page(command: Command) -> Vec<u8> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text).expect("writes to a Vec do not fail");
    text
}
