//! An NBD server that a test controls: it follows the protocol, loses writes, sends wrong replies, or does not reply.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

/// Transmission flags of an export that supports flush, FUA, trim and write zeroes.
pub const FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;
pub const READ_ONLY: u16 = 1 << 1;
pub const MULTI_CONN: u16 = 1 << 8;

const GO: u32 = 7;
const STRUCTURED: u32 = 8;
const SET_META_CONTEXT: u32 = 10;
const EINVAL: u32 = 22;

/// Time after which the server replies to a slow request.
pub const SLOW: Duration = Duration::from_millis(400);

/// How the server handles a request of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// The server carries out the request, and replies correctly.
    Serve,
    /// The server carries out the request, and sends its reply twice.
    Twice,
    /// The server replies with garbage.
    Garbage,
    /// The server never replies.
    Hang,
    /// The server closes the connection without carrying out the request.
    Lose,
    /// The server carries out the request, and closes the connection before the reply.
    ServeAndLose,
    /// The server loses all unflushed writes, and closes the connection.
    Die,
    /// The server replies correctly after [`SLOW`].
    Slow,
    /// The server replies that it is shutting down, without carrying out the request.
    ShutDown,
    /// The server reports success without carrying out the request.
    Pretend,
    /// The server replies to a read with a structured reply of these pieces.
    Pieces(&'static [Piece]),
    /// The server replies to block status with this number of extents of 512 bytes, alternately data and holes.
    Extents(u32),
}

/// A chunk of a structured reply to a read: data, or a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub offset: u64,
    pub len: u32,
    pub hole: bool,
}

/// Value of every byte in a chunk of data.
pub const PIECE_BYTE: u8 = 0x5a;

/// A request as the server received it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub connection: u32,
    pub command: u16,
    pub flags: u16,
    pub offset: u64,
    pub len: u32,
}

/// Function that returns the size in bytes and the flags that the server reports on the connection with this number.
pub type Claim = fn(u32) -> (u64, u16);

#[derive(Default)]
pub struct Seen {
    /// The current bytes of the export. `durable` has the bytes that survive a crash of the server.
    pub bytes: Vec<u8>,
    durable: Vec<u8>,
    pub asked: Vec<Asked>,
    pub connections: u32,
    /// Whether the server closes new connections before the handshake.
    pub shut: bool,
    /// Whether the server offers structured replies.
    pub structured: bool,
}

pub struct Fake {
    pub path: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

impl Fake {
    pub fn new(claim: Claim, act: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cairn-fake-{}-{n}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let size = claim(1).0.min(1 << 20) as usize;
        let seen = Seen { bytes: vec![0; size], durable: vec![0; size], ..Seen::default() };
        let seen = Arc::new(Mutex::new(seen));
        let (shared, act) = (seen.clone(), Arc::new(act));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, act) = (shared.clone(), act.clone());
                let connection = {
                    let mut seen = shared.lock().unwrap();
                    if seen.shut {
                        continue;
                    }
                    seen.connections += 1;
                    seen.connections
                };
                std::thread::spawn(move || {
                    let mut peer = Peer { stream: stream.unwrap(), connection, shared };
                    // An error only ends this connection.
                    let _ = peer.negotiate(claim).and_then(|()| peer.serve(&*act));
                    let _ = peer.stream.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { path, seen }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path.display())
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Returns the number of requests with the command `command` that the server has received.
    pub fn count(&self, command: u16) -> usize {
        self.seen().asked.iter().filter(|asked| asked.command == command).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Peer {
    stream: UnixStream,
    connection: u32,
    shared: Arc<Mutex<Seen>>,
}

impl Peer {
    fn bytes<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn negotiate(&mut self, claim: Claim) -> std::io::Result<()> {
        let (size, flags) = claim(self.connection);
        self.stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        self.bytes::<4>()?;
        loop {
            let head = self.bytes::<16>()?;
            let option = u32::from_be_bytes(head[8..12].try_into().unwrap());
            let len = u32::from_be_bytes(head[12..].try_into().unwrap());
            let mut data = vec![0; len as usize];
            self.stream.read_exact(&mut data)?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut all = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                all.extend([option, kind, data.len() as u32].map(u32::to_be_bytes).concat());
                all.extend(data);
                self.stream.write_all(&all)
            };
            if option == GO {
                let info = [&[0, 0], &size.to_be_bytes()[..], &flags.to_be_bytes()].concat();
                reply(3, &info)?;
                return reply(1, &[]);
            }
            let structured = self.shared.lock().unwrap().structured;
            if structured && option == SET_META_CONTEXT {
                reply(4, b"\0\0\0\x01base:allocation")?;
            }
            let structured = structured && [STRUCTURED, SET_META_CONTEXT].contains(&option);
            // No other extension is supported.
            reply(if structured { 1 } else { 1 << 31 | 1 }, &[])?;
        }
    }

    fn serve(&mut self, act: &dyn Fn(&Asked) -> Act) -> std::io::Result<()> {
        loop {
            let head = self.bytes::<28>()?;
            let asked = Asked {
                connection: self.connection,
                flags: u16::from_be_bytes(head[4..6].try_into().unwrap()),
                command: u16::from_be_bytes(head[6..8].try_into().unwrap()),
                offset: u64::from_be_bytes(head[16..24].try_into().unwrap()),
                len: u32::from_be_bytes(head[24..].try_into().unwrap()),
            };
            let mut payload = vec![0; if asked.command == WRITE { asked.len as usize } else { 0 }];
            self.stream.read_exact(&mut payload)?;
            if asked.command == DISC {
                return Ok(());
            }
            let (error, data) = {
                let mut seen = self.shared.lock().unwrap();
                seen.asked.push(asked);
                match act(&asked) {
                    Act::Hang => continue,
                    Act::Garbage => return self.stream.write_all(&[0x55; 64]),
                    Act::Lose => return Ok(()),
                    Act::Die => {
                        seen.bytes = seen.durable.clone();
                        return Ok(());
                    }
                    Act::ServeAndLose => {
                        seen.carry_out(&asked, &payload);
                        return Ok(());
                    }
                    Act::ShutDown => (108, Vec::new()),
                    Act::Pretend => (0, Vec::new()),
                    Act::Pieces(pieces) => {
                        drop(seen);
                        self.stream.write_all(&in_pieces(pieces, &head[8..16]))?;
                        continue;
                    }
                    Act::Extents(count) => {
                        drop(seen);
                        self.stream.write_all(&in_extents(count, &head[8..16]))?;
                        continue;
                    }
                    Act::Slow => {
                        drop(seen);
                        std::thread::sleep(SLOW);
                        self.shared.lock().unwrap().carry_out(&asked, &payload)
                    }
                    Act::Serve | Act::Twice => seen.carry_out(&asked, &payload),
                }
            };
            let head = [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &head[8..16]];
            let reply = [&head.concat()[..], &data].concat();
            self.stream.write_all(&reply)?;
            if act(&asked) == Act::Twice {
                self.stream.write_all(&reply)?;
            }
        }
    }
}

fn chunk(flags: u16, kind: u16, cookie: &[u8], data: &[u8]) -> Vec<u8> {
    let magic = 0x668e_33ef_u32.to_be_bytes();
    let words = [flags, kind].map(u16::to_be_bytes).concat();
    [&magic[..], &words, cookie, &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Encodes a reply to block status with `count` extents of 512 bytes, alternately data and holes.
fn in_extents(count: u32, cookie: &[u8]) -> Vec<u8> {
    let extents = (0..count).flat_map(|n| [512, n % 2 * 3]);
    let words = std::iter::once(1).chain(extents).flat_map(u32::to_be_bytes);
    chunk(1, 5, cookie, &words.collect::<Vec<_>>())
}

/// Encodes a structured reply to a read: these chunks, and a last chunk that ends the reply.
fn in_pieces(pieces: &[Piece], cookie: &[u8]) -> Vec<u8> {
    let chunk = |flags, kind, data: &[u8]| chunk(flags, kind, cookie, data);
    let piece = |piece: &Piece| {
        let offset = piece.offset.to_be_bytes();
        match piece.hole {
            true => chunk(0, 2, &[&offset[..], &piece.len.to_be_bytes()].concat()),
            false => chunk(0, 1, &[&offset[..], &vec![PIECE_BYTE; piece.len as usize]].concat()),
        }
    };
    let mut all: Vec<u8> = pieces.iter().flat_map(piece).collect();
    all.extend(chunk(1, 0, &[]));
    all
}

impl Seen {
    fn carry_out(&mut self, asked: &Asked, payload: &[u8]) -> (u32, Vec<u8>) {
        let (from, len) = (asked.offset as usize, asked.len as usize);
        if asked.command == FLUSH {
            self.durable = self.bytes.clone();
            return (0, Vec::new());
        }
        let Some(place) = self.bytes.get_mut(from..from + len) else {
            return (EINVAL, Vec::new());
        };
        match asked.command {
            READ => return (0, place.to_vec()),
            WRITE => place.copy_from_slice(payload),
            _ => place.fill(0),
        }
        if asked.flags & 1 != 0 {
            self.durable[from..from + len].copy_from_slice(&self.bytes[from..from + len]);
        }
        (0, Vec::new())
    }
}
