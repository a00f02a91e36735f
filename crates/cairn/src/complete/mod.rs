//! Completion of words in a shell. The script of a shell calls this program with the words of its command line, and
//! the program prints the words that fit. So the names of running graphs can be completed too.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the call from a shell, and the script of each shell |
//! | `candidates.rs` | the words that fit an argument: names, specs, kinds, sources of keys |
//! | `ask.rs` | the questions to running graphs, within a time limit |

mod ask;
mod candidates;

pub use candidates::*;

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::AssertUnwindSafe;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::{self, CompleteEnv, EnvCompleter, Shells};

use crate::args::Args;

/// The environment variable with the name of the shell that asks for completions.
const VARIABLE: &str = "CAIRN_COMPLETE";

/// The program, as the scripts call it, and the command that they complete.
const PROGRAM: &str = "cairn";

const SHELLS: Shells<'static> = Shells(&[&Bash, &env::Elvish, &env::Fish, &env::Powershell, &Zsh]);

/// Prints the completions, if a shell has called this process for them. Prints nothing else: an error would be in the
/// middle of the command line that a person is typing.
pub fn is_answered() -> bool {
    if std::env::var_os(VARIABLE).is_none_or(|shell| shell.is_empty() || shell == "0") {
        return false;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let answered = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let complete = CompleteEnv::with_factory(command).var(VARIABLE).bin(PROGRAM);
        let complete = complete.completer(PROGRAM).shells(SHELLS);
        let directory = std::env::current_dir().ok();
        complete.try_complete(std::env::args_os(), directory.as_deref())
    }));
    // Without an answer the shell completes nothing.
    drop(answered);
    true
}

/// Returns the script that completes the words of this program in a shell.
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    let shells = SHELLS;
    let completer = shells.completer(&shell.to_string());
    let completer = completer.expect("each shell of the argument has a script");
    completer
        .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
        .expect("writes to a Vec do not fail");
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns the definition of the command line. The member of `device insert` is a new one, and that of other verbs is
/// not.
fn command() -> Command {
    Args::command().mut_subcommand("device", |device| {
        device.mut_subcommand("insert", |insert| {
            // A changed argument comes last unless it has an index.
            let insert = insert.mut_arg("member", |member| member.index(1).add(new_member()));
            insert.mut_arg("path", |path| path.index(2))
        })
    })
}

/// Completion in bash. The script of `clap_complete` passes words as readline splits them, at `:` and `=` too, which
/// are inside of sources of keys, addresses and URIs.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(
        &self,
        _var: &str,
        _name: &str,
        _bin: &str,
        _completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        buf.write_all(include_str!("cairn.bash").as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        directory: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        env::Bash.write_complete(command, args, directory, buf)
    }
}

/// Completion in zsh. The script of `clap_complete` only registers a function. As a file of the directory of
/// completions it is the function that zsh loads at the first completion, so it must also complete.
struct Zsh;

impl EnvCompleter for Zsh {
    fn name(&self) -> &'static str {
        env::Zsh.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Zsh.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        env::Zsh.write_registration(var, name, bin, completer, buf)?;
        writeln!(buf, "\nif [[ ${{funcstack[1]}} == _{name} ]]; then")?;
        writeln!(buf, "    _clap_dynamic_completer_{name} \"$@\"\nfi")
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        directory: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        env::Zsh.write_complete(command, args, directory, buf)
    }
}
