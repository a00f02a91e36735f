//! The one binary of Cairn: the command line, and the servers and helper processes that the command line starts.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "the command reads specs, asks sockets and waits for people: it is not below an Env"
)]

#[macro_use]
mod exit;
#[macro_use]
mod log;

mod args;
mod attach;
mod certificates;
mod complete;
mod daemon;
mod draw;
mod labels;
mod man;
mod names;
mod out;
mod place;
mod registry;
mod remote;
mod running;
mod serve;
mod source;
mod verbs;
mod view;

use std::process::ExitCode;

use args::Args;
use exit::Result;

fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|name| name == attach::helper::NAME) {
        return attach::helper::main();
    }
    if std::env::args_os().next().is_some_and(|name| serve::worker::is_meant(&name)) {
        return serve::worker::main();
    }
    if complete::is_answered() {
        return ExitCode::SUCCESS;
    }
    runtime::inherit();
    if let Err(failure) = said() {
        return ExitCode::from(code(Err(failure)));
    }
    let (args, verb) = Args::read();
    let code = code(args.run());
    debug_assert!(
        verb.as_ref().is_none_or(|verb| man::has_exit(verb, code)),
        "the manual page of {verb:?} does not list the exit code {code}"
    );
    ExitCode::from(code)
}

/// Returns the exit code of a verb. Prints the message of its failure.
fn code(ended: Result) -> u8 {
    match ended {
        Ok(exit) => exit.code(),
        Err(failure) => {
            if !failure.causes.is_empty() {
                note!("error: {}", failure);
            }
            failure.code
        }
    }
}

/// Checks that all arguments are UTF-8, because each may be written into a spec, a label or a reply.
fn said() -> Result<()> {
    std::env::args_os().skip(1).try_for_each(|word| place::text(&word).map(drop))
}
