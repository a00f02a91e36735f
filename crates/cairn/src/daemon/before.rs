//! The previous daemon, which has the state directory open: this module asks it to end, or reports it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::{Client, routes};
use block::{Error, ErrorKind};
use supervisor::State;

use crate::exit::{Exit, Result};
use crate::place;

/// Longest wait until the previous daemon has ended.
const LEAVE: Duration = Duration::from_secs(30);

/// Interval of the checks whether the previous daemon has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Opens the state directory at `path`. With `replace`, asks the daemon that has it open to end, and waits until it
/// has ended.
///
/// # Errors
/// `InUse` if a daemon has the directory open; or if that daemon has another runtime directory, which is checked
/// before any daemon is asked to end.
pub fn open(path: &Path, replace: bool) -> Result<State> {
    let mut opened = State::open(path);
    if let Some(error) = taken(&opened) {
        elsewhere(path, error)?;
    }
    if replace {
        ask_to_leave(path)?;
    }
    let begun = Instant::now();
    while replace && taken(&opened).is_some() && begun.elapsed() < LEAVE {
        std::thread::sleep(LOOK);
        opened = State::open(path);
    }
    let next = match replace {
        false => ". Next: --replace, to replace that daemon; or another --state".to_owned(),
        true => format!(", which did not end in {LEAVE:?}. Next: stop it; or another --state"),
    };
    match taken(&opened) {
        Some(error) => Err(failure!(InUse, "{error}{next}")),
        None => Ok(opened?),
    }
}

fn taken(opened: &block::Result<State>) -> Option<&Error> {
    opened.as_ref().err().filter(|error| error.kind() == ErrorKind::InUse)
}

/// Fails if the daemon that has the state directory open has another runtime directory than this process.
fn elsewhere(path: &Path, error: &Error) -> Result<()> {
    let (here, holder) = (place::directory(), State::holder(path));
    let answers = |at: &Path| {
        let view = Client::new(place::daemon_in(at)).get(&routes::DAEMON);
        view.is_ok_and(|view| Some(view.pid) == holder)
    };
    let said = holder.and_then(runtime_directory);
    let there = said.as_ref().map(|said| place::directory_of(said.clone()));
    if there.as_ref() == Some(&here) || answers(&here) {
        return Ok(());
    }
    let here = here.display();
    let why = match (there.filter(|there| answers(there)), said.flatten()) {
        (Some(there), said) => {
            let next = match said {
                Some(said) => format!("XDG_RUNTIME_DIR={}, as in that daemon", said.display()),
                None => "unset XDG_RUNTIME_DIR, as in that daemon".to_owned(),
            };
            format!("{error}, whose runtime directory is {}. Next: {next}", there.display())
        }
        (None, _) => {
            format!(
                "{error}, whose runtime directory is not {here}. Next: set XDG_RUNTIME_DIR as in that daemon"
            )
        }
    };
    Err(failure!(InUse, "{why}; or another --state"))
}

/// Returns the `XDG_RUNTIME_DIR` of a process. The outer `None` means that it is not known, the inner one that it is
/// not set.
fn runtime_directory(pid: u32) -> Option<Option<PathBuf>> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut all = environment.split(|byte| *byte == 0);
    let value = all.find_map(|one| one.strip_prefix(b"XDG_RUNTIME_DIR="));
    Some(value.map(|value| OsString::from_vec(value.to_vec()).into()))
}

/// Asks the running daemon of this runtime directory to end, if there is one. Fails if that daemon has another state
/// directory, because its graphs would have no daemon then.
fn ask_to_leave(path: &Path) -> Result<()> {
    let client = Client::new(place::daemon());
    let same = |other: &Path| match (std::fs::canonicalize(path), std::fs::canonicalize(other)) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        _ => path == other,
    };
    if let Ok(view) = client.get(&routes::DAEMON)
        && !same(&view.state)
    {
        fail!(
            InUse,
            "the running daemon uses the state directory {0}, not {1}. Next: --state {0}, to \
             replace that daemon; or another XDG_RUNTIME_DIR",
            view.state.display(),
            path.display()
        );
    }
    match client.ask(&routes::LEAVE, &()) {
        Ok(_) => Ok(()),
        Err(problem) if problem.exit == Exit::NotFound.code() => Ok(()),
        Err(problem) => Err(problem.into()),
    }
}
