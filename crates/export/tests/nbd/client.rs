//! An NBD client for tests, written from the specification without Cairn's codec.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub use testkit::nbd::{info_data, meta_data};

use super::world::World;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED: u32 = 8;
pub const OPT_LIST_META: u32 = 9;
pub const OPT_SET_META: u32 = 10;
pub const OPT_EXTENDED: u32 = 11;

pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const INFO: u32 = 3;
pub const META: u32 = 4;
pub const UNSUP: u32 = 1 << 31 | 1;
pub const POLICY: u32 = 1 << 31 | 2;
pub const INVALID: u32 = 1 << 31 | 3;
pub const UNKNOWN: u32 = 1 << 31 | 6;
pub const TOO_BIG: u32 = 1 << 31 | 9;

const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client(pub UnixStream);

impl Client {
    /// Connects to the server, reads its greeting, and sends the client's flags. Options can follow.
    pub fn negotiate(world: &World) -> Self {
        Self::greeted(UnixStream::connect(&world.path).unwrap())
    }

    fn greeted(socket: UnixStream) -> Self {
        let mut client = Self(socket);
        client.0.set_read_timeout(Some(PATIENCE)).unwrap();
        client.0.set_write_timeout(Some(PATIENCE)).unwrap();
        let greeting = client.bytes(18);
        assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
        client.send(&3_u32.to_be_bytes());
        client
    }

    /// Connects to the server over TCP, and finishes the handshake with simple replies.
    pub fn over_tcp(world: &World) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", world.port())).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut client = Self::greeted(UnixStream::from(OwnedFd::from(socket)));
        assert_eq!(client.go("vol").last().unwrap().0, ACK);
        client
    }

    /// Connects to the server over its unix socket, and finishes the handshake with simple replies.
    pub fn new(world: &World) -> Self {
        let mut client = Self::negotiate(world);
        assert_eq!(client.go("vol").last().unwrap().0, ACK);
        client
    }

    /// Connects to the server, and finishes the handshake with structured replies and the context `base:allocation`.
    pub fn structured(world: &World) -> Self {
        let mut client = Self::negotiate(world);
        assert_eq!(client.option(OPT_STRUCTURED, &[])[0].0, ACK);
        assert_eq!(client.option(OPT_SET_META, &meta_data("vol", &["base:allocation"]))[0].0, META);
        assert_eq!(client.go("vol").last().unwrap().0, ACK);
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes(8).try_into().unwrap())
    }

    pub fn send_option(&mut self, code: u32, data: &[u8]) {
        let head = [code.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat();
        self.send(&[b"IHAVEOPT", &head[..], data].concat());
    }

    /// Sends a handshake option, and returns all replies of the server to the option.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(code, data);
        self.option_replies(code)
    }

    pub fn option_replies(&mut self, code: u32) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            assert_eq!(self.u64(), 0x0003_e889_0455_65a9);
            assert_eq!(self.u32(), code);
            let (kind, len) = (self.u32(), self.u32());
            let data = self.bytes(len as usize);
            all.push((kind, data));
            if kind == ACK || kind >= 1 << 31 {
                return all;
            }
        }
    }

    pub fn go(&mut self, name: &str) -> Vec<(u32, Vec<u8>)> {
        self.option(OPT_GO, &info_data(name, &[]))
    }

    pub fn request(&mut self, command: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) {
        self.send(&header(command, flags, offset, len));
        self.send(payload);
    }

    /// Reads a simple reply of the server. Returns the error number and the cookie of the reply.
    pub fn reply(&mut self) -> (u32, u64) {
        assert_eq!(self.u32(), 0x6744_6698);
        (self.u32(), self.u64())
    }

    /// Sends a request whose reply has no data, and waits for the reply. Returns the error number of the reply.
    pub fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> u32 {
        self.request(command, flags, offset, len, payload);
        let (error, cookie) = self.reply();
        assert_eq!(cookie, cookie_of(offset, len));
        error
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        assert_eq!(self.ask(READ, 0, offset, len, &[]), 0);
        self.bytes(len as usize)
    }

    /// Reads one chunk of a structured reply of the server. Returns its flags, its type, and its data.
    pub fn chunk(&mut self) -> (u16, u16, Vec<u8>) {
        assert_eq!(self.u32(), 0x668e_33ef);
        let both = self.u32();
        self.u64();
        let len = self.u32();
        ((both >> 16) as u16, both as u16, self.bytes(len as usize))
    }

    /// Reads one chunk of an extended reply to a request at `offset`. Returns its flags, its type, and its data.
    pub fn extended_chunk(&mut self, offset: u64) -> (u16, u16, Vec<u8>) {
        assert_eq!(self.u32(), 0x6e8a_278c);
        let both = self.u32();
        assert_eq!((self.u64(), self.u64()), (EXTENDED_COOKIE, offset));
        let len = self.u64();
        ((both >> 16) as u16, both as u16, self.bytes(len as usize))
    }

    /// Reads and drops bytes until the server closes the connection. Returns `false` if the server does not close it.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

pub fn cookie_of(offset: u64, len: u32) -> u64 {
    offset ^ u64::from(len).rotate_left(32)
}

pub fn header(command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie_of(offset, len).to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

pub const EXTENDED_COOKIE: u64 = 0x0123_4567_89ab_cdef;

pub fn extended(command: u16, flags: u16, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = 0x21e4_1c71_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(EXTENDED_COOKIE.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}
