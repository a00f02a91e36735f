//! Messages to the kernel's NBD client over generic netlink: connect a device, disconnect a device.
//!
//! The constants are those of `linux/netlink.h`, `linux/genetlink.h` and `linux/nbd-netlink.h`. Numbers in messages
//! have the byte order of the machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const ERROR: u16 = 2;

const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const FAMILY: &str = "nbd";

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
const SOCKET: u16 = 1;
const SOCKET_FD: u16 = 1;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;
const ALIGN: usize = 4;
/// Flag of an attribute whose value is a list of attributes.
const NESTED: u16 = 1 << 15;

/// Buffer size in bytes for one datagram of a reply; no reply to these requests is longer.
const ANSWER_BYTES: usize = 8192;

/// Maximum number of datagrams in one reply: those with attributes, and the one with the end.
const MESSAGES_MAX: usize = 8;

/// A netlink message that is being built.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; HEADER_BYTES + GENERIC_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
        bytes[HEADER_BYTES] = command;
        bytes[HEADER_BYTES + 1] = VERSION;
        Self(bytes)
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        put(&mut self.0, kind, value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

fn put(into: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = (ATTRIBUTE_BYTES + value.len()) as u16;
    into.extend_from_slice(&len.to_ne_bytes());
    into.extend_from_slice(&kind.to_ne_bytes());
    into.extend_from_slice(value);
    into.resize(into.len().next_multiple_of(ALIGN), 0);
}

fn text(words: &str) -> Vec<u8> {
    let mut bytes = words.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// A message of the kernel in a reply.
#[derive(PartialEq, Eq, Debug)]
enum Answer<'a> {
    /// The end of the reply, with 0 or a negative errno.
    Done(i32),
    /// The attributes in the message.
    Says(&'a [u8]),
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the messages in a datagram of the kernel, up to the first invalid one.
fn answers(mut bytes: &[u8]) -> Vec<Answer<'_>> {
    let mut all = Vec::new();
    while let Some(head) = bytes.get(..HEADER_BYTES) {
        let len = u32::from_ne_bytes(head[..4].try_into().expect("four bytes")) as usize;
        let Some(body) = bytes.get(HEADER_BYTES..len) else { break };
        match u16_at(head, 4) {
            Some(ERROR) => match body.first_chunk() {
                Some(code) => all.push(Answer::Done(i32::from_ne_bytes(*code))),
                None => break,
            },
            _ => all.push(Answer::Says(body.get(GENERIC_BYTES..).unwrap_or_default())),
        }
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    all
}

fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let (Some(len), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let value = bytes.get(ATTRIBUTE_BYTES..usize::from(len))?;
        if kind & !NESTED == wanted {
            return Some(value);
        }
        bytes = bytes.get(usize::from(len).next_multiple_of(ALIGN)..)?;
    }
    None
}

/// A netlink connection to the kernel's NBD client.
pub(crate) struct Kernel {
    socket: File,
    family: u16,
}

/// The properties of the NBD device that the kernel connects.
pub(crate) struct Device<'a> {
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    /// Transmission flags of the export, from the NBD server.
    pub(crate) flags: u16,
    /// Mark by which Cairn recognizes the device; the kernel shows the mark in sysfs.
    pub(crate) mark: &'a str,
}

impl Kernel {
    /// Opens a netlink connection to the kernel's NBD client.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no NBD client; other errors of the kernel.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let kind = Some(netlink::GENERIC);
        let socket: OwnedFd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, kind)?;
        let mut kernel = Self { socket: socket.into(), family: CONTROL };
        let ask = Message::new(CONTROL, GET_FAMILY).with(FAMILY_NAME, &text(FAMILY));
        let id = kernel.ask(ask, FAMILY_ID)?.and_then(|id| u16_at(&id, 0));
        kernel.family = id.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(kernel)
    }

    /// Connects a free NBD device to `socket`, on which the handshake with the server is complete. Returns the number
    /// of the device.
    ///
    /// The kernel sets no time limit for requests while the connection exists. Once it is lost, requests fail at once.
    pub(crate) fn connect(&mut self, socket: &UnixStream, device: &Device<'_>) -> io::Result<u32> {
        let number = self.ask(connect(self.family, socket.as_raw_fd(), device), INDEX)?;
        let number = number.as_deref().and_then(<[u8]>::first_chunk).copied();
        number.map(u32::from_ne_bytes).ok_or_else(|| io::Error::other("no device number"))
    }

    /// Disconnects the NBD device with this number from its socket, even if the device is in use.
    pub(crate) fn disconnect(&mut self, number: u32) -> io::Result<()> {
        let ask = Message::new(self.family, DISCONNECT).with(INDEX, &number.to_ne_bytes());
        self.ask(ask, INDEX).map(drop)
    }

    /// Sends a message to the kernel, and waits for the end of its reply. Returns the value of the attribute `wanted`,
    /// if the reply contains it.
    fn ask(&mut self, message: Message, wanted: u16) -> io::Result<Option<Vec<u8>>> {
        self.socket.write_all(&message.finish())?;
        let mut said = None;
        let mut buf = vec![0; ANSWER_BYTES];
        for _ in 0..MESSAGES_MAX {
            let len = self.socket.read(&mut buf)?;
            for answer in answers(&buf[..len]) {
                match answer {
                    Answer::Done(0) => return Ok(said),
                    Answer::Done(code) => return Err(io::Error::from_raw_os_error(-code)),
                    Answer::Says(attributes) => {
                        said = attribute(attributes, wanted).map(<[u8]>::to_vec).or(said);
                    }
                }
            }
        }
        Err(io::Error::other("netlink sent no end of its reply"))
    }
}

fn connect(family: u16, fd: i32, device: &Device<'_>) -> Message {
    let (mut item, mut sockets) = (Vec::new(), Vec::new());
    put(&mut item, SOCKET_FD, &fd.to_ne_bytes());
    put(&mut sockets, SOCKET | NESTED, &item);
    Message::new(family, CONNECT)
        .with(SIZE_BYTES, &device.size_bytes.to_ne_bytes())
        .with(BLOCK_BYTES, &u64::from(device.block_bytes).to_ne_bytes())
        .with(TIMEOUT, &0_u64.to_ne_bytes())
        .with(SERVER_FLAGS, &u64::from(device.flags).to_ne_bytes())
        .with(DEAD_CONNECTION_TIMEOUT, &0_u64.to_ne_bytes())
        .with(BACKEND, &text(device.mark))
        .with(SOCKETS | NESTED, &sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn nbd_connect_message_has_expected_bytes() {
        let device =
            Device { size_bytes: 1 << 20, block_bytes: 4096, flags: 0x6d, mark: "cairn:home" };
        let bytes = connect(0x1c, 5, &device).finish();
        #[rustfmt::skip]
        assert_eq!(bytes, [
            112, 0, 0, 0,  0x1c, 0,  5, 0,  0, 0, 0, 0,  0, 0, 0, 0,   1, 1, 0, 0,
            12, 0, 2, 0,  0, 0, 16, 0, 0, 0, 0, 0,
            12, 0, 3, 0,  0, 16, 0, 0, 0, 0, 0, 0,
            12, 0, 4, 0,  0, 0, 0, 0, 0, 0, 0, 0,
            12, 0, 5, 0,  0x6d, 0, 0, 0, 0, 0, 0, 0,
            12, 0, 8, 0,  0, 0, 0, 0, 0, 0, 0, 0,
            15, 0, 10, 0,  b'c', b'a', b'i', b'r', b'n', b':', b'h', b'o', b'm', b'e', 0, 0,
            16, 0, 7, 128,  12, 0, 1, 128,  8, 0, 1, 0,  5, 0, 0, 0,
        ][..]);
    }

    #[test]
    fn netlink_reply_parses_into_attributes_and_end() {
        let mut bytes = Message::new(0x1c, CONNECT).with(INDEX, &3_u32.to_ne_bytes()).finish();
        let mut end = vec![0; HEADER_BYTES + 4];
        end[..4].copy_from_slice(&20_u32.to_ne_bytes());
        end[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        end[16..].copy_from_slice(&(-libc::EBUSY).to_ne_bytes());
        bytes.extend(end);
        let [Answer::Says(attributes), Answer::Done(code)] = answers(&bytes)[..] else {
            panic!("{:?}", answers(&bytes));
        };
        assert_eq!(attribute(attributes, INDEX), Some(&3_u32.to_ne_bytes()[..]));
        assert_eq!((attribute(attributes, BACKEND), code), (None, -libc::EBUSY));
    }

    #[test]
    fn netlink_parser_rejects_truncated_or_mislabelled_messages() {
        let whole = Message::new(0x1c, CONNECT).with(INDEX, &3_u32.to_ne_bytes()).finish();
        for len in 0..whole.len() {
            assert!(answers(&whole[..len]).is_empty(), "{len}");
        }
        for wrong in [0_u32, 1, 15, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[..4].copy_from_slice(&wrong.to_ne_bytes());
            assert!(answers(&bytes).is_empty(), "{wrong}");
        }
        assert_eq!(attribute(&[3, 0, 1, 0], INDEX), None);
        assert_eq!(attribute(&[0, 0, 0, 0, 8, 0], INDEX), None);
    }
}
