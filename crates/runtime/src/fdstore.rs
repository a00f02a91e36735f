//! Descriptors that outlive this process: the descriptor store of whoever has started it.
//!
//! It is told by datagrams to `$NOTIFY_SOCKET`, and gives back what it holds as `$LISTEN_FDS`: systemd
//! does both, and so does anybody else who speaks as it does. A descriptor that somebody else holds as
//! well is not closed by our death: who connects waits, and a mount only pauses.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::{Error, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::sys;

/// The most descriptors that are taken over: more than any server has devices and listeners.
pub const INHERITED_MAX: usize = 1024;

/// The longest name of a descriptor (`sd_pid_notify_with_fds(3)`).
pub const NAME_MAX_BYTES: usize = 255;

/// For a service manager to take a message, if it has many.
const PATIENCE: Duration = Duration::from_millis(500);

/// The first one that is passed (`sd_listen_fds(3)`).
const FIRST: usize = 3;

const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
const MANAGER: &str = "NOTIFY_SOCKET";

/// A descriptor that was held while nobody was there.
pub(crate) struct Left {
    pub(crate) name: String,
    pub(crate) file: OwnedFd,
}

/// They belong to the process, not to a core of it.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the descriptors that were passed to this process, if any were. A program does it first of all:
/// before it starts threads, and before it opens anything.
pub fn inherit() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    // Children have the variables of their parents, but these are about one process.
    if variable(PROCESS).parse() != Ok(std::process::id()) {
        return;
    }
    let count = variable(COUNT).parse().unwrap_or(0).min(INHERITED_MAX);
    let names = variable(NAMES);
    sys::forget_variables(&[PROCESS, COUNT, NAMES]);
    let mut names = names.split(':');
    for number in FIRST..FIRST + count {
        let name = names.next().unwrap_or_default().to_owned();
        if let Ok(file) = sys::inherited(number as i32) {
            left().push(Left { name, file });
        }
    }
}

/// These are left to this process from now on.
pub(crate) fn leave(all: impl IntoIterator<Item = (String, OwnedFd)>) {
    left().extend(all.into_iter().map(|(name, file)| Left { name, file }));
}

/// Everything that was left to this process: whoever asks keeps it from now on.
pub fn take_all() -> Vec<(String, OwnedFd)> {
    left().drain(..).map(|left| (left.name, left.file)).collect()
}

/// Another descriptor of what was left under that name, which stays.
pub(crate) fn copy_of(name: &str) -> Result<Option<OwnedFd>> {
    let left = left();
    let found = left.iter().find(|one| one.name == name).map(|one| one.file.try_clone());
    found.transpose().map_err(|error| Error::io(&error, name))
}

/// Does something with all that was left under names that begin so, and stays: with each of them, whatever comes of the
/// others.
///
/// # Errors
/// What the first says that fails.
pub(crate) fn each_left(
    prefix: &str,
    mut each: impl FnMut(&str, BorrowedFd<'_>) -> Result<()>,
) -> Result<()> {
    let left = left();
    let found = left.iter().filter(|one| one.name.starts_with(prefix));
    let told: Vec<_> = found.map(|one| each(&one.name, one.file.as_fd())).collect();
    told.into_iter().collect()
}

/// The names of what was left to this process and is not taken yet.
pub(crate) fn names() -> Vec<String> {
    left().iter().map(|one| one.name.clone()).collect()
}

/// The first one of which that is true; nobody else gets it.
pub(crate) fn take(is_it: impl Fn(&Left) -> bool) -> Option<Left> {
    let mut left = left();
    let found = left.iter().position(is_it)?;
    Some(left.remove(found))
}

/// Whether there is somebody who could hold something.
pub(crate) fn is_kept() -> bool {
    std::env::var_os(MANAGER).is_some()
}

/// Has a descriptor held under that name from now on; whether there is somebody who could.
///
/// # Errors
/// What the system says; the store itself does not answer.
pub fn entrust(name: &str, file: BorrowedFd<'_>) -> Result<bool> {
    debug_assert!(name.len() <= NAME_MAX_BYTES && !name.contains([':', '\n']), "{name}");
    tell(&format!("FDSTORE=1\nFDNAME={name}"), Some(file))
        .map_err(|error| Error::io(&error, format_args!("${MANAGER}: storing {name}")))
}

/// Has what is held under that name closed.
///
/// # Errors
/// What the system says.
pub fn withdraw(name: &str) -> Result<()> {
    tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None)
        .map(drop)
        .map_err(|error| Error::io(&error, format_args!("${MANAGER}: giving up {name}")))
}

/// The same of something that this process takes for itself. Who does not listen any more, a keeper that is
/// just being replaced, holds nothing for long either.
///
/// # Errors
/// What the system says otherwise.
pub(crate) fn take_from_manager(name: &str) -> Result<()> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    match tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None) {
        Err(error) if ![ConnectionRefused, NotFound].contains(&error.kind()) => {
            Err(Error::io(&error, format_args!("${MANAGER}: taking {name}")))
        }
        _ => Ok(()),
    }
}

/// Tells whoever has started this process a line, such as `READY=1`, if somebody wants to know.
///
/// # Errors
/// What the system says.
pub fn tell_manager(line: &str) -> Result<()> {
    tell(line, None)
        .map(drop)
        .map_err(|error| Error::io(&error, format_args!("${MANAGER}: {line}")))
}

/// Tells it that this process still turns. One that does not listen is not waited for, and one that is gone
/// needs not know.
///
/// # Errors
/// What the system says.
pub fn beat() -> Result<()> {
    const ALIVE: &str = "WATCHDOG=1";
    let Some(manager) = std::env::var_os(MANAGER) else { return Ok(()) };
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    match send(&manager, ALIVE, None, None) {
        Err(error) if ![ConnectionRefused, NotFound, WouldBlock].contains(&error.kind()) => {
            Err(Error::io(&error, format_args!("${MANAGER}: {ALIVE}")))
        }
        _ => Ok(()),
    }
}

fn tell(words: &str, file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    let Some(manager) = std::env::var_os(MANAGER) else { return Ok(false) };
    send(&manager, words, file, Some(PATIENCE)).map(|()| true)
}

/// Sends one message, and waits so long for room: a manager that hangs must not hold a core.
fn send(
    manager: &OsStr,
    words: &str,
    file: Option<BorrowedFd<'_>>,
    patience: Option<Duration>,
) -> io::Result<()> {
    let address = match manager.as_encoded_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden),
        None => SocketAddr::from_pathname(manager),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address?)?;
    match patience {
        Some(_) => socket.set_write_timeout(patience)?,
        None => socket.set_nonblocking(true)?,
    }
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut room);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        with.push(SendAncillaryMessage::ScmRights(&files));
    }
    let words = [IoSlice::new(words.as_bytes())];
    sendmsg(socket.as_fd(), &words, &mut with, SendFlags::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_manager_that_hangs_holds_nobody_for_long() {
        let path = std::env::temp_dir().join(format!("cairn-store-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let manager = UnixDatagram::bind(&path).unwrap();
        let beat = || send(path.as_os_str(), "WATCHDOG=1", None, None);
        // Nobody reads: at some time there is no room.
        let full = (0..1 << 20).find_map(|_| beat().err()).expect("a socket is not for ever");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let begun = Instant::now();
        let stored = send(path.as_os_str(), "FDSTORE=1", None, Some(PATIENCE));
        assert_eq!(stored.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() < 4 * PATIENCE, "{:?}", begun.elapsed());
        manager.recv(&mut [0; 16]).unwrap();
        send(path.as_os_str(), "FDSTORE=1", None, Some(PATIENCE)).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
