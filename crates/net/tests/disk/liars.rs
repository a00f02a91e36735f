//! Tests of an NBD disk whose server sends wrong or repeated replies, or does not reply.

use std::time::{Duration, Instant};

use kind::Value;

use crate::fake::{
    Act, BLOCK_STATUS, Claim, FLAGS, FLUSH, Fake, MULTI_CONN, PIECE_BYTE, Piece, READ, READ_ONLY,
    SLOW, WRITE, WRITE_ZEROES,
};
use crate::volume::{Volume, says, time};
use block::{EXTENTS_MAX, Extent, State};

fn good(_: u32) -> (u64, u16) {
    (1 << 20, FLAGS)
}

#[test]
fn disk_reconnects_after_duplicate_reply() {
    let fake = Fake::new(good, |asked| match asked.connection == 1 && asked.command == READ {
        true => Act::Twice,
        false => Act::Serve,
    });
    let volume = Volume::new(&fake.uri(), &[]);
    for n in 0..4 {
        volume.write(n * 512, 512, 9, false).unwrap();
        assert!(volume.read(n * 512, 512).unwrap() == [9; 512]);
    }
    volume.pass(Duration::from_millis(200));
    assert!(volume.read(0, 2048).unwrap() == [9; 2048]);
    assert_eq!(volume.counter("reconnects"), 1);
}

/// Checks that the disk reconnects more and more slowly to a server that handles each read with `act`, and then fails.
fn is_given_up(act: Act) {
    let fake = Fake::new(good, move |asked| if asked.command == READ { act } else { Act::Serve });
    let volume = Volume::new(&fake.uri(), &[]);
    let read = |_| volume.read(0, 512).err();
    let error = (0..100_000).find_map(read).expect("it ends some time");
    assert_eq!(error.kind(), block::ErrorKind::Faulted, "{act:?}: {error}");
    assert!(error.to_string().contains("the connection was lost 16 times in a row"), "{error}");
    let connections = fake.seen().connections;
    assert_eq!(connections, 17, "{act:?}");
    volume.pass(Duration::from_millis(100));
    assert_eq!(fake.seen().connections, connections, "it is over");
}

#[test]
fn disk_fails_when_server_always_sends_garbage() {
    is_given_up(Act::Garbage);
}

#[test]
fn disk_fails_when_server_always_replies_twice() {
    is_given_up(Act::Twice);
}

#[test]
fn disk_fails_when_server_always_disconnects() {
    is_given_up(Act::Lose);
}

#[test]
fn disk_fails_when_server_is_always_shutting_down() {
    is_given_up(Act::ShutDown);
}

const fn data(offset: u64, len: u32) -> Piece {
    Piece { offset, len, hole: false }
}

const fn hole(offset: u64, len: u32) -> Piece {
    Piece { offset, len, hole: true }
}

const WHOLE: &[Piece] = &[data(0, 4096)];

/// Reads 4 KiB at offset 0 from a server that replies with these chunks on the first connection, and correctly on the
/// second. Returns the bytes of the read, and the number of reconnects.
fn in_pieces(pieces: &'static [Piece]) -> (Vec<u8>, u64) {
    let fake = Fake::new(good, move |asked| match asked.command {
        READ => Act::Pieces(if asked.connection == 1 { pieces } else { WHOLE }),
        _ => Act::Serve,
    });
    fake.seen().structured = true;
    let volume = Volume::new(&fake.uri(), &[]);
    (volume.read(0, 4096).unwrap(), volume.counter("reconnects"))
}

#[test]
fn disk_read_accepts_reply_parts_in_any_order() {
    const ALL: [&[Piece]; 3] = [
        &[data(0, 4096)],
        &[hole(3072, 1024), data(0, 1024), data(1024, 2048)],
        &[data(2048, 512), data(0, 512), data(2560, 1536), hole(512, 1536)],
    ];
    for pieces in ALL {
        let (bytes, reconnects) = in_pieces(pieces);
        assert_eq!(reconnects, 0, "{pieces:?}");
        for piece in pieces {
            let part = &bytes[piece.offset as usize..][..piece.len as usize];
            let byte = if piece.hole { 0 } else { PIECE_BYTE };
            assert!(part.iter().all(|found| *found == byte), "{piece:?} of {pieces:?}");
        }
    }
}

#[test]
fn disk_closes_connection_after_read_reply_with_wrong_parts() {
    const ALL: [&[Piece]; 8] = [
        // As many bytes as were asked for, but not all of them.
        &[data(0, 2048), data(0, 2048)],
        &[data(0, 2048), hole(0, 2048)],
        &[hole(2048, 2048), data(2048, 2048)],
        &[data(0, 2048), data(2047, 2048)],
        // Bytes that were not asked for.
        &[data(0, 4096), data(4096, 512)],
        &[data(4095, 512)],
        &[data(u64::MAX, 16)],
        &[hole(u64::MAX, 16)],
    ];
    for pieces in ALL {
        let (bytes, reconnects) = in_pieces(pieces);
        assert_eq!(reconnects, 1, "{pieces:?}");
        assert!(bytes.iter().all(|byte| *byte == PIECE_BYTE), "{pieces:?}");
    }
}

#[test]
fn disk_reads_block_status_longer_than_one_receive() {
    // The last one is the most that a server may send.
    for count in [1, EXTENTS_MAX as u32 + 1, 33_000, 131_072] {
        let fake = Fake::new(
            |_| (1 << 30, FLAGS),
            move |asked| match asked.command {
                BLOCK_STATUS => Act::Extents(count),
                READ => Act::Pieces(WHOLE),
                _ => Act::Serve,
            },
        );
        fake.seen().structured = true;
        let volume = Volume::new(&fake.uri(), &[]);
        let told = volume.status(0, 1 << 30).unwrap();
        assert_eq!(told.len(), EXTENTS_MAX.min(count as usize));
        let by_turns = [State::Data, State::Hole].into_iter().cycle();
        for (extent, state) in told.into_iter().zip(by_turns) {
            assert_eq!(extent, Extent { len: 512, state });
        }
        assert!(volume.read(0, 4096).unwrap() == [PIECE_BYTE; 4096], "what comes next is heard");
        assert_eq!(volume.counter("reconnects"), 0);
    }
}

#[test]
fn disk_rejects_simple_reply_to_read_in_structured_session() {
    let fake = Fake::new(good, |asked| match asked.connection {
        1 => Act::Serve,
        _ if asked.command == READ => Act::Pieces(WHOLE),
        _ => Act::Serve,
    });
    fake.seen().structured = true;
    let volume = Volume::new(&fake.uri(), &[]);
    assert!(volume.read(0, 4096).unwrap() == [PIECE_BYTE; 4096]);
    assert_eq!(volume.counter("reconnects"), 1);
}

#[test]
fn disk_fails_when_server_exceeds_reply_timeout() {
    let fake = Fake::new(good, |asked| match asked.command {
        WRITE => Act::Hang,
        _ => Act::Serve,
    });
    let volume = Volume::new(&fake.uri(), &[("timeout", time(Duration::from_millis(200)))]);
    volume.read(0, 512).unwrap();
    says(volume.write(0, 512, 1, false), "the server did not answer within 0.2 s");
    says(volume.read(0, 512), "the server did not answer within 0.2 s");
    says(volume.flush(), "the server did not answer within 0.2 s");
    assert_eq!(volume.report().health, block::Health::Failed);
}

#[test]
fn disk_read_fails_past_real_end_of_export() {
    let fake = Fake::new(|_| (4 << 20, FLAGS), |_| Act::Serve);
    let volume = Volume::new(&fake.uri(), &[]);
    says(volume.read(3 << 20, 4096), "far: ");
    volume.write(0, 4096, 1, false).unwrap();
    volume.flush().unwrap();
}

#[test]
fn disk_open_refuses_export_above_size_limit() {
    let claims: [Claim; 3] =
        [|_| (i64::MAX as u64 - 511, FLAGS), |_| (1 << 63, FLAGS), |_| (u64::MAX, FLAGS)];
    for (n, claim) in claims.into_iter().enumerate() {
        let fake = Fake::new(claim, |asked| match asked.command {
            WRITE_ZEROES => Act::Pretend,
            _ => Act::Serve,
        });
        match Volume::try_new(&fake.uri(), &[]) {
            // The last bytes of the disk, in two commands.
            Ok(volume) if n == 0 => volume.zero(claim(1).0 - (3 << 29), 3 << 29).unwrap(),
            Ok(_) => panic!("{} bytes are taken", claim(1).0),
            refused => {
                says(refused, "bytes; the limit is 9223372036854775807");
            }
        }
    }
}

#[test]
fn disk_reconnect_refuses_changed_export() {
    let claims: [(Claim, &str); 3] = [
        (
            |n| (if n == 1 { 1 << 20 } else { 1 << 19 }, FLAGS),
            "which has 524288 bytes instead of 1048576",
        ),
        (
            |n| (1 << 20, if n == 1 { FLAGS } else { FLAGS | READ_ONLY }),
            "which has the flags 0x006f",
        ),
        (|n| (if n == 1 { 1 << 20 } else { 0 }, FLAGS), "which has 0 bytes"),
    ];
    for (claim, words) in claims {
        let fake = Fake::new(claim, |asked| match asked.connection {
            1 if asked.command == READ => Act::Die,
            _ => Act::Serve,
        });
        let volume = Volume::new(&fake.uri(), &[]);
        volume.write(0, 512, 1, false).unwrap();
        says(volume.read(0, 512), words);
        says(volume.flush(), "the server came back with another export");
        assert_eq!(fake.count(WRITE), 1, "nothing was written to it");
    }
}

#[test]
fn disk_uses_several_connections_only_with_multi_conn() {
    let fake = Fake::new(|_| (1 << 20, FLAGS | MULTI_CONN), |_| Act::Serve);
    let four = [("connections", Value::Integer(4))];
    let volume = Volume::new(&fake.uri(), &four);
    let calls: Vec<_> = (0..32)
        .map(|n| {
            let data = volume.filled(4096, 1);
            volume.client.send(block::Op::write(crate::volume::range(n << 12, 4096), data))
        })
        .collect();
    for call in calls {
        volume.core.block_on(call).result.unwrap();
    }
    volume.flush().unwrap();
    assert_eq!(fake.count(FLUSH), 1, "one is enough");
    let by = |n| fake.seen().asked.iter().filter(|asked| asked.connection == n).count();
    assert!((1..=4).all(|n| by(n) >= 6), "{:?}", [by(1), by(2), by(3), by(4)]);
    let fake = Fake::new(good, |_| Act::Serve);
    let refused = Volume::try_new(&fake.uri(), &four).map(drop);
    says(refused, "needs a server whose flush covers all connections");
}

#[test]
fn disk_splits_long_write_zeroes_to_fit_request_header() {
    let fake = Fake::new(
        |_| (5 << 30, FLAGS),
        |asked| match asked.command {
            READ | WRITE => Act::Serve,
            _ => Act::Pretend,
        },
    );
    let volume = Volume::new(&fake.uri(), &[]);
    volume.zero(0, 5 << 30).unwrap();
    let lens: Vec<_> = fake.seen().asked.iter().map(|asked| u64::from(asked.len)).collect();
    assert_eq!((lens.len(), lens.iter().sum()), (5, 5_u64 << 30));
}

#[test]
fn disk_ends_lost_connections_before_writes_of_next_session() {
    // The first connection is lost at a read; the other one still works, on a slow write.
    let fake = Fake::new(
        |_| (1 << 20, FLAGS | MULTI_CONN),
        |asked| match (asked.connection, asked.command) {
            (1 | 2, READ) => Act::Lose,
            (1 | 2, WRITE) => Act::Slow,
            _ => Act::Serve,
        },
    );
    let volume = Volume::new(&fake.uri(), &[("connections", Value::Integer(2))]);
    let place = crate::volume::range(0, 4096);
    let write = volume.client.send(block::Op::write(place, volume.filled(4096, 1)));
    volume.pass(SLOW / 4);
    let begun = Instant::now();
    assert!(volume.read(8192, 512).unwrap() == [0; 512]);
    assert!(begun.elapsed() >= SLOW / 2, "it waited for the old write: {:?}", begun.elapsed());
    volume.core.block_on(write).result.unwrap();
    volume.write(0, 4096, 2, false).unwrap();
    volume.pass(SLOW);
    assert!(volume.read(0, 4096).unwrap() == [2; 4096], "and nothing old landed on top");
}
