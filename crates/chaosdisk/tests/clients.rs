//! NBD clients that disconnect in the middle of a request to `cairn serve`.
#![allow(clippy::disallowed_methods, reason = "a test drives real programs, by real time")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::{Rig, Shape, bytes_of, until};

const LEN: u64 = 128 << 10;

/// Connects to the export `vol`, and finishes the NBD handshake with `NBD_OPT_EXPORT_NAME`. Returns the connection.
fn bare(rig: &Rig) -> UnixStream {
    let mut stream = UnixStream::connect(rig.socket()).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"NBDMAGICIHAVEOPT"));
    // Fixed newstyle, no padding after the reply.
    let mut out = 3_u32.to_be_bytes().to_vec();
    out.extend(b"IHAVEOPT");
    out.extend(1_u32.to_be_bytes());
    out.extend(3_u32.to_be_bytes());
    out.extend(b"vol");
    stream.write_all(&out).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

/// Returns the NBD header, without the payload, of a write of [`LEN`] bytes to the start of the volume.
fn head() -> Vec<u8> {
    let mut head = 0x2560_9513_u32.to_be_bytes().to_vec();
    head.extend([0, 0, 0, 1]);
    head.extend(7_u64.to_be_bytes());
    head.extend(0_u64.to_be_bytes());
    head.extend((LEN as u32).to_be_bytes());
    head
}

#[test]
fn server_ignores_write_with_incomplete_payload() {
    let mut rig = Rig::of(&Shape::ONE, 1);
    rig.serve(&Shape::ONE.spec(0));
    let volume = rig.volume();
    let (old, new) = (bytes_of(1, LEN), bytes_of(2, LEN));
    volume.write(&rig.core, 0, &old);
    for sent in [0, 1, 512, LEN / 2, LEN - 1] {
        let before = rig.count("a", "write");
        let mut stream = bare(&rig);
        stream.write_all(&head()).unwrap();
        stream.write_all(&new[..sent as usize]).unwrap();
        drop(stream);
        // The count of connections shows that the server has noticed it.
        until("it is gone", || rig.ask(&["status"])[0]["connections"] == 1);
        assert_eq!(rig.count("a", "write"), before, "{sent} bytes of {LEN}");
        assert!(volume.read(&rig.core, 0, LEN) == old, "{sent} bytes of {LEN}");
    }
    // The same write, complete: it is written and acknowledged.
    let mut stream = bare(&rig);
    stream.write_all(&head()).unwrap();
    stream.write_all(&new).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    assert!(volume.read(&rig.core, 0, LEN) == new);
}
