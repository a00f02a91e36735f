//! Devices of the kernel's own NBD client.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use block::{Error, ErrorKind, Result, error};
use wire::nbd::{ClientConfig, ClientHandshake, ClientProgress, Session};

use crate::name::Name;
use crate::netlink::{Device, Kernel};
use crate::steps::Wanted;

/// Name of the sysfs file in which the kernel shows the mark of an NBD device.
const BACKEND: &str = "backend";

/// Paths of which one exists if the kernel has an NBD client.
const SIGNS: [&str; 2] = ["/sys/module/nbd", "/dev/nbd0"];

/// Time limit of each receive in the handshake with the server, which runs on this machine.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Maximum number of bytes of one receive in the handshake.
const RECEIVE_BYTES: usize = 4096;

/// Whether this kernel has an NBD client.
pub fn has_nbd() -> bool {
    SIGNS.iter().any(|sign| Path::new(sign).exists())
}

/// A device of the kernel's NBD client, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nbd(pub(crate) u32);

impl Nbd {
    /// Connects a free NBD device of the kernel to the server that listens on the socket of `name`.
    ///
    /// # Errors
    /// Errors of the handshake or the kernel.
    pub(crate) fn connect(name: &Name, export: &str, wanted: Wanted) -> Result<Self> {
        let at = name.socket();
        let failed = |error: &io::Error| Error::io(error, at.display());
        let mut socket = UnixStream::connect(&at).map_err(|error| failed(&error))?;
        socket.set_read_timeout(Some(HANDSHAKE)).map_err(|error| failed(&error))?;
        let session = negotiate(&mut socket, export).map_err(|error| error.at(at.display()))?;
        socket.set_read_timeout(None).map_err(|error| failed(&error))?;
        let device = Device {
            size_bytes: session.facts.size_bytes,
            block_bytes: wanted.block_bytes,
            flags: session.facts.flags.0,
            mark: &name.mark(),
        };
        let number = kernel()?.connect(&socket, &device);
        number.map(Self).map_err(|error| Error::io(&error, "netlink: connecting the NBD device"))
    }

    /// Disconnects the NBD device from its server at once, even if the device is in use.
    pub(crate) fn disconnect(self) -> Result<()> {
        let done = kernel()?.disconnect(self.0);
        done.map_err(|error| {
            Error::io(&error, format_args!("/dev/nbd{}: disconnecting the NBD device", self.0))
        })
    }

    /// Whether the NBD device with the sysfs directory `sysfs` is connected for the export attached under `name`.
    pub(crate) fn is_of(sysfs: &Path, name: &Name) -> bool {
        let backend = std::fs::read_to_string(sysfs.join(BACKEND));
        backend.is_ok_and(|backend| backend.trim_end() == name.mark())
    }
}

fn kernel() -> Result<Kernel> {
    Kernel::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => {
            let words = "this kernel has no NBD client";
            Error::new(ErrorKind::Unsupported, words).next("modprobe nbd")
        }
        _ => Error::io(&error, "netlink: the kernel's NBD client"),
    })
}

/// Carries out the handshake with the server for simple replies, the only ones that the kernel's NBD client supports.
fn negotiate(socket: &mut UnixStream, export: &str) -> Result<Session> {
    let config = ClientConfig {
        structured: false,
        extended: false,
        contexts: Vec::new(),
        ..ClientConfig::connect(export)
    };
    let broken =
        |error: wire::nbd::ProtocolError| error!(Unsupported, "the NBD handshake failed: {error}");
    let failed = |error: &io::Error| Error::io(error, "the NBD handshake");
    let mut handshake = ClientHandshake::new(config).map_err(broken)?;
    let (mut arrived, mut out) = (Vec::new(), Vec::new());
    let mut piece = [0; RECEIVE_BYTES];
    loop {
        let (used, progress) = handshake.advance(&arrived, &mut out).map_err(broken)?;
        arrived.drain(..used);
        socket.write_all(&out).map_err(|error| failed(&error))?;
        out.clear();
        match progress {
            ClientProgress::Connected(session) => return Ok(*session),
            ClientProgress::NeedMore => match socket.read(&mut piece).map_err(|e| failed(&e))? {
                0 => {
                    let words = "the NBD server closed the connection during the handshake";
                    return Err(Error::new(ErrorKind::Io, words));
                }
                len => arrived.extend_from_slice(&piece[..len]),
            },
            _ => {}
        }
    }
}
