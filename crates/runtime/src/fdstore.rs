//! Descriptors that outlive this process: the descriptor store of the service manager that started it.
//!
//! This process sends datagrams to `$NOTIFY_SOCKET`, and gets stored descriptors back at its start as `$LISTEN_FDS`.
//! Both systemd and Cairn's supervisor use this protocol. A stored descriptor stays open when this process ends: so
//! new connections wait, and a mount only pauses.

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

/// Most descriptors that a process takes over at its start: more than any server has for devices and listeners.
pub const INHERITED_MAX: usize = 1024;

/// Length in bytes of the longest name in the descriptor store (`sd_pid_notify_with_fds(3)`).
pub const NAME_MAX_BYTES: usize = 255;

/// Longest wait until a busy service manager takes a message.
const PATIENCE: Duration = Duration::from_millis(500);

/// The number of the first descriptor that a service manager passes (`sd_listen_fds(3)`).
const FIRST: usize = 3;

const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
const MANAGER: &str = "NOTIFY_SOCKET";

/// A descriptor that an earlier process left for this process in the descriptor store, with its name.
pub(crate) struct Left {
    pub(crate) name: String,
    pub(crate) file: OwnedFd,
}

/// The descriptors that earlier processes left. They belong to the process, not to a core.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes over the descriptors that the service manager passed to this process, if there are any. A program must call
/// this function before it starts a thread or opens a file.
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

/// Adds descriptors to those that earlier processes left for this process.
pub(crate) fn leave(all: impl IntoIterator<Item = (String, OwnedFd)>) {
    left().extend(all.into_iter().map(|(name, file)| Left { name, file }));
}

/// Takes all descriptors that earlier processes left for this process, with their names.
pub fn take_all() -> Vec<(String, OwnedFd)> {
    left().drain(..).map(|left| (left.name, left.file)).collect()
}

/// Returns a duplicate of the descriptor that an earlier process left under `name`. The original is not taken.
pub(crate) fn copy_of(name: &str) -> Result<Option<OwnedFd>> {
    let left = left();
    let found = left.iter().find(|one| one.name == name).map(|one| one.file.try_clone());
    found.transpose().map_err(|error| Error::io(&error, name))
}

/// Calls `each` for every descriptor that an earlier process left under a name with this `prefix`, even after an
/// error. The descriptors are not taken.
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

/// Returns the names of the descriptors that earlier processes left and that are not taken yet.
pub(crate) fn names() -> Vec<String> {
    left().iter().map(|one| one.name.clone()).collect()
}

/// Takes the first descriptor left by an earlier process for which `is_it` is true.
pub(crate) fn take(is_it: impl Fn(&Left) -> bool) -> Option<Left> {
    let mut left = left();
    let found = left.iter().position(is_it)?;
    Some(left.remove(found))
}

/// Takes the descriptor that an earlier process left under `name`.
///
/// # Errors
/// `NotFound` if no earlier process left a descriptor under `name`.
pub(crate) fn take_named(name: &str) -> Result<Left> {
    take(|left| left.name == name).ok_or_else(|| nothing_left(name))
}

/// Whether a service manager could hold descriptors of this process for the next process.
pub(crate) fn is_kept() -> bool {
    std::env::var_os(MANAGER).is_some()
}

/// Passes a descriptor to the service manager's descriptor store under `name`. Returns whether there is a service
/// manager.
///
/// # Errors
/// The error of the system. The service manager does not reply.
pub fn fdstore_put(name: &str, file: BorrowedFd<'_>) -> Result<bool> {
    debug_assert!(name.len() <= NAME_MAX_BYTES && !name.contains([':', '\n']), "{name}");
    notify(&format!("FDSTORE=1\nFDNAME={name}"), Some(file)).map_err(|error| {
        Error::io(&error, format_args!("${MANAGER}: putting {name} into the descriptor store"))
    })
}

/// Makes the service manager remove the descriptors called `name` from its descriptor store, and close them.
///
/// # Errors
/// The error of the system.
pub fn withdraw(name: &str) -> Result<()> {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None).map(drop).map_err(|error| {
        Error::io(&error, format_args!("${MANAGER}: removing {name} from the descriptor store"))
    })
}

/// Makes the service manager remove the descriptor `name`, which this process takes over, from its descriptor store.
/// A service manager that does not listen any more is no error: it is a supervisor that another one replaces, and its
/// descriptors end with it.
///
/// # Errors
/// Other errors of the system.
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

/// Sends a watchdog message to the service manager, if there is one. Does not wait for a manager with a full queue,
/// and ignores a manager that has ended.
///
/// # Errors
/// Other errors of the system.
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

/// Sends one message, and waits at most `patience` until the manager takes it: a manager that hangs must not block a
/// core.
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
