//! Descriptors for a program that is started next. The program receives them from a socket, which is its standard
//! input.
//!
//! All data are in the socket before the program starts: the names, each with a line end, and the descriptors in the
//! same order. So the parent has no work between `fork` and `exec`, and neither process waits for the other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use block::{Error, Result, bail};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::fdstore;

/// Most descriptors that are passed to one program: more than a graph has for devices, listeners and, in a hand-over,
/// connections.
pub const PASSED_FDS_MAX: usize = 512;

/// Most descriptors in one message. The kernel's limit is 253.
const AT_ONCE: usize = 64;

/// Length in bytes of one receive.
const CHUNK_BYTES: usize = 64 << 10;

/// Returns a socket from which a program that is started next can receive the descriptors `all` with their names.
///
/// # Errors
/// `Limit` for more than [`PASSED_FDS_MAX`] descriptors; errors of the system.
pub fn pass_fds<'f>(all: impl IntoIterator<Item = (&'f str, BorrowedFd<'f>)>) -> Result<OwnedFd> {
    let all: Vec<_> = all.into_iter().collect();
    if all.len() > PASSED_FDS_MAX {
        bail!(Limit, "cannot pass {} descriptors; at most {PASSED_FDS_MAX}", all.len());
    }
    let failed = |error: io::Error| Error::io(&error, "passing descriptors to a program");
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|error| failed(error.into()))?;
    for some in all.chunks(AT_ONCE) {
        let names: String = some.iter().flat_map(|(name, _)| [*name, "\n"]).collect();
        let files: Vec<_> = some.iter().map(|(_, file)| *file).collect();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut with = SendAncillaryBuffer::new(&mut room);
        with.push(SendAncillaryMessage::ScmRights(&files));
        let words = [IoSlice::new(names.as_bytes())];
        // There is room: names are short, and there is no other writer.
        let sent = sendmsg(&ours, &words, &mut with, SendFlags::DONTWAIT);
        let sent = sent.map_err(|error| failed(error.into()))?;
        if sent != names.len() {
            return Err(failed(io::ErrorKind::WouldBlock.into()));
        }
    }
    Ok(theirs)
}

/// Receives the descriptors that [`pass_fds`] has put into the socket, and adds them to those that earlier processes
/// left (`World::left`).
///
/// # Errors
/// `Invalid` if names and descriptors do not match; errors of the system.
pub fn inherit_from(socket: impl AsFd) -> Result<()> {
    let (mut names, mut files) = (Vec::new(), Vec::new());
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut with = RecvAncillaryBuffer::new(&mut room);
        let mut into = [IoSliceMut::new(&mut chunk)];
        let got =
            recvmsg(&socket, &mut into, &mut with, RecvFlags::CMSG_CLOEXEC).map_err(|error| {
                Error::io(&error.into(), "receiving descriptors from the parent process")
            })?;
        for message in with.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                files.extend(some);
            }
        }
        if got.bytes == 0 {
            break;
        }
        names.extend_from_slice(&chunk[..got.bytes]);
    }
    let names = String::from_utf8_lossy(&names);
    let names: Vec<_> = names.lines().map(str::to_owned).collect();
    if names.len() != files.len() {
        bail!(Invalid, "the parent passed {} names with {} descriptors", names.len(), files.len());
    }
    fdstore::leave(names.into_iter().zip(files));
    Ok(())
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;
    use std::io::{Read, Seek, Write};

    use super::*;

    fn file(text: &str) -> std::fs::File {
        let name = rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(name);
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn child_process_receives_passed_descriptors_by_name() {
        let all: Vec<_> = (0..PASSED_FDS_MAX).map(|n| (format!("passed-{n}"), n)).collect();
        let files: Vec<_> = all.iter().map(|(name, _)| file(name)).collect();
        let names = all.iter().map(|(name, _)| name.as_str());
        let socket = pass_fds(names.zip(files.iter().map(AsFd::as_fd))).unwrap();
        drop(files);
        inherit_from(&socket).unwrap();
        for (name, _) in &all {
            let left = fdstore::take(|left| left.name == *name).expect("it has arrived");
            let mut text = String::new();
            std::fs::File::from(left.file).read_to_string(&mut text).unwrap();
            assert_eq!(text, *name);
        }
        // An empty set is received as an empty set.
        inherit_from(pass_fds([]).unwrap()).unwrap();
        let file = file("");
        let too_many = std::iter::repeat_n(("x", file.as_fd()), PASSED_FDS_MAX + 1);
        assert_eq!(pass_fds(too_many).unwrap_err().kind(), ErrorKind::Limit);
    }

    #[test]
    fn child_process_rejects_name_without_descriptor() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        (&ours).write_all(b"listener\n").unwrap();
        drop(ours);
        assert_eq!(inherit_from(&theirs).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
