//! The socket on which a supervisor receives the messages of a worker.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::notify_message::{NotifyMessage, WORDS_MAX_BYTES};

/// Most descriptors in one message; further ones are closed.
const FILES_MAX: usize = 4;

/// A datagram socket in the file system, on which a supervisor receives messages of workers.
pub struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// Device and inode of the socket's file.
    made: (u64, u64),
}

/// A message of a worker, and the descriptor that came with the message.
pub type Heard = (NotifyMessage, Option<OwnedFd>);

impl NotifySocket {
    /// Creates the socket at `path`, in place of an earlier socket there. From now on messages to `path` arrive at
    /// this socket.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The mode must be right from the first moment on.
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixDatagram::bind(path);
        rustix::process::umask(before);
        let socket = bound?;
        Ok(Self { socket, path: path.to_owned(), made: id(path)? })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next message of a worker. No message is lost if the future is dropped.
    ///
    /// # Errors
    /// Errors of the system.
    pub async fn hear(&self) -> io::Result<Heard> {
        self.socket.async_io(Interest::READABLE, || receive(&self.socket)).await
    }

    /// Returns a message that has already arrived; `None` if there is none.
    pub fn heard(&self) -> Option<Heard> {
        receive(&self.socket).ok()
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        // The file of another daemon may be there by now.
        if id(&self.path).is_ok_and(|found| found == self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn receive(socket: &UnixDatagram) -> io::Result<Heard> {
    let mut bytes = vec![0; WORDS_MAX_BYTES];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut with = RecvAncillaryBuffer::new(&mut room);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, &mut into, &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let file = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((NotifyMessage::parse(&bytes[..got.bytes]), file))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::{MaybeUninit, NotifySocket, io};

    #[tokio::test]
    async fn newest_notify_socket_at_path_receives_messages() {
        let path = std::env::temp_dir().join(format!("cairn-ear-{}", std::process::id()));
        let say = |words: &str| {
            let socket = UnixDatagram::unbound().unwrap();
            socket.send_to(words.as_bytes(), &path).unwrap();
        };
        let first = NotifySocket::open(&path).unwrap();
        say("READY=1");
        assert!(first.hear().await.unwrap().0.ready);
        let second = NotifySocket::open(&path).unwrap();
        drop(first);
        say("READY=1");
        assert!(second.hear().await.unwrap().0.ready);
        assert!(second.heard().is_none());
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn notify_socket_receives_descriptor_with_message() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let path = std::env::temp_dir().join(format!("cairn-ear-with-{}", std::process::id()));
        let ear = NotifySocket::open(&path).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&path).unwrap();
        let files = [socket.as_fd()];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut room);
        with.push(SendAncillaryMessage::ScmRights(&files));
        let words = [io::IoSlice::new(b"FDSTORE=1\nFDNAME=listener")];
        sendmsg(&socket, &words, &mut with, SendFlags::empty()).unwrap();
        let (words, file) = ear.hear().await.unwrap();
        assert!(words.store && words.name == "listener" && file.is_some());
    }
}
