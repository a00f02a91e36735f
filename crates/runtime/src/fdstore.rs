//! Descriptors that outlive this process: the descriptor store of the service manager that started it.
//!
//! This process sends datagrams to `$NOTIFY_SOCKET`, and gets stored descriptors back as `$LISTEN_FDS`.
//! systemd speaks this protocol, and so does a supervisor. A stored descriptor stays open when this process
//! ends: new connections wait, and a mount only pauses.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::env::nothing_left;
use block::{Error, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::sys;

/// Most descriptors that this process takes over at its start: more than any server has devices and listeners.
pub const INHERITED_MAX: usize = 1024;

/// Bytes of the longest name of a descriptor in the descriptor store (`sd_pid_notify_with_fds(3)`).
pub const NAME_MAX_BYTES: usize = 255;

/// Time for a busy service manager to take a message.
const PATIENCE: Duration = Duration::from_millis(500);

/// The first passed descriptor (`sd_listen_fds(3)`).
const FIRST: usize = 3;

const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
const MANAGER: &str = "NOTIFY_SOCKET";

/// A descriptor that an earlier process has left for this one, with its name.
pub(crate) struct Left {
    pub(crate) name: String,
    pub(crate) file: OwnedFd,
}

/// They belong to the process, not to one of its cores.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes over the descriptors that the service manager passed to this process, if any. A program must call this before
/// it starts threads and before it opens anything.
pub fn inherit() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    // Children inherit the variables of their parents, but these are meant for one process.
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

/// Adds descriptors to those that an earlier process has left for this one.
pub(crate) fn leave(all: impl IntoIterator<Item = (String, OwnedFd)>) {
    left().extend(all.into_iter().map(|(name, file)| Left { name, file }));
}

/// Takes all descriptors that an earlier process has left for this one, with their names.
pub fn take_all() -> Vec<(String, OwnedFd)> {
    left().drain(..).map(|left| (left.name, left.file)).collect()
}

/// Returns a duplicate of the descriptor that an earlier process has left under `name`; the original stays.
pub(crate) fn copy_of(name: &str) -> Result<Option<OwnedFd>> {
    let left = left();
    let found = left.iter().find(|one| one.name == name).map(|one| one.file.try_clone());
    found.transpose().map_err(|error| Error::io(&error, name))
}

/// Calls `each` for every descriptor that an earlier process has left under a name that begins with `prefix`, even
/// after an error. The descriptors stay.
///
/// # Errors
/// The first error of `each`.
pub(crate) fn each_left(
    prefix: &str,
    mut each: impl FnMut(&str, BorrowedFd<'_>) -> Result<()>,
) -> Result<()> {
    let left = left();
    let found = left.iter().filter(|one| one.name.starts_with(prefix));
    let told: Vec<_> = found.map(|one| each(&one.name, one.file.as_fd())).collect();
    told.into_iter().collect()
}

/// Returns the names of the descriptors that an earlier process has left and that are not taken yet.
pub(crate) fn names() -> Vec<String> {
    left().iter().map(|one| one.name.clone()).collect()
}

/// Takes the first descriptor left by an earlier process that satisfies `is_it`.
pub(crate) fn take(is_it: impl Fn(&Left) -> bool) -> Option<Left> {
    let mut left = left();
    let found = left.iter().position(is_it)?;
    Some(left.remove(found))
}

/// Takes the descriptor that an earlier process has left under `name`.
///
/// # Errors
/// `NotFound` if there is no descriptor with that name.
pub(crate) fn take_named(name: &str) -> Result<Left> {
    take(|left| left.name == name).ok_or_else(|| nothing_left(name))
}

/// Whether there is a service manager that could hold descriptors for the next process.
pub(crate) fn is_kept() -> bool {
    std::env::var_os(MANAGER).is_some()
}

/// Puts a descriptor into the service manager's descriptor store under `name`. Returns whether there is a service
/// manager.
///
/// # Errors
/// The error of the system. The service manager itself does not reply.
pub fn fdstore_put(name: &str, file: BorrowedFd<'_>) -> Result<bool> {
    debug_assert!(name.len() <= NAME_MAX_BYTES && !name.contains([':', '\n']), "{name}");
    notify(&format!("FDSTORE=1\nFDNAME={name}"), Some(file)).map_err(|error| {
        Error::io(&error, format_args!("${MANAGER}: putting {name} into the descriptor store"))
    })
}

/// Removes the descriptors called `name` from the service manager's descriptor store; it closes them.
///
/// # Errors
/// The error of the system.
pub fn withdraw(name: &str) -> Result<()> {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None).map(drop).map_err(|error| {
        Error::io(&error, format_args!("${MANAGER}: removing {name} from the descriptor store"))
    })
}

/// Removes the descriptor `name` of a socket or state that this process takes over from the service manager's store. It
/// is no error if the service manager does not listen any more: a supervisor that is being replaced ends soon, and its
/// descriptors with it.
///
/// # Errors
/// Any other error of the system.
pub(crate) fn take_from_manager(name: &str) -> Result<()> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    match notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None) {
        Err(error) if ![ConnectionRefused, NotFound].contains(&error.kind()) => Err(Error::io(
            &error,
            format_args!("${MANAGER}: removing inherited {name} from the descriptor store"),
        )),
        _ => Ok(()),
    }
}

/// Sends a line such as `READY=1` to the service manager, if there is one.
///
/// # Errors
/// The error of the system.
pub fn notify_manager(line: &str) -> Result<()> {
    notify(line, None)
        .map(drop)
        .map_err(|error| Error::io(&error, format_args!("${MANAGER}: sending {line}")))
}

/// Sends the watchdog message of this process to the service manager, if there is one. Does not wait for a manager
/// whose queue is full, and ignores one that is gone.
///
/// # Errors
/// Any other error of the system.
pub fn beat() -> Result<()> {
    const ALIVE: &str = "WATCHDOG=1";
    let Some(manager) = std::env::var_os(MANAGER) else { return Ok(()) };
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    match send(&manager, ALIVE, None, None) {
        Err(error) if ![ConnectionRefused, NotFound, WouldBlock].contains(&error.kind()) => {
            Err(Error::io(&error, format_args!("${MANAGER}: sending {ALIVE}")))
        }
        _ => Ok(()),
    }
}

fn notify(words: &str, file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    let Some(manager) = std::env::var_os(MANAGER) else { return Ok(false) };
    send(&manager, words, file, Some(PATIENCE)).map(|()| true)
}

/// Sends one message, and waits at most `patience` for room: a hanging manager must not block a core.
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
    fn descriptor_store_send_times_out_when_service_manager_hangs() {
        let path = std::env::temp_dir().join(format!("cairn-store-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let manager = UnixDatagram::bind(&path).unwrap();
        let beat = || send(path.as_os_str(), "WATCHDOG=1", None, None);
        // Nothing reads the socket: its queue fills up.
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
