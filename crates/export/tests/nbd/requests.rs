//! NBD requests to the server, valid and invalid.

use std::time::{Duration, Instant};

use super::client::*;
use super::world::{MEMORY, SHORT, World};

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const SIZE: u64 = 1 << 20;

#[test]
fn export_executes_every_nbd_command() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 4096, 4096, &[7; 4096]), 0);
    assert_eq!(client.ask(WRITE, 1, 8192, 4096, &[8; 4096]), 0, "FUA");
    assert_eq!(client.ask(FLUSH, 0, 0, 0, &[]), 0);
    assert_eq!(client.ask(CACHE, 0, 0, SIZE as u32, &[]), 0);
    assert_eq!(client.read(4096, 8192), [[7; 4096], [8; 4096]].concat());
    assert_eq!(client.ask(WRITE_ZEROES, 2, 4096, 4096, &[]), 0, "NO_HOLE");
    assert_eq!(client.ask(TRIM, 0, 8192, 4096, &[]), 0);
    assert_eq!(client.read(4096, 8192), [0; 8192]);
    client.request(DISC, 0, 0, 0, &[]);
    assert!(client.is_closed());
}

#[test]
fn export_rejects_bad_requests_without_change() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 0, 4096, &[1; 4096]), 0);
    for (command, flags, offset, len, error) in [
        (READ, 0, SIZE, 512, EINVAL),
        (READ, 0, u64::MAX - 511, 512, EINVAL),
        (READ, 0, u64::MAX, u32::MAX, EINVAL),
        (READ, 0, 0, 0, EINVAL),
        (READ, 0, SIZE - 1, 2, EINVAL),
        (READ, 0, 0, (32 << 20) + 512, EINVAL),
        (READ, 2, 0, 512, EINVAL),
        (TRIM, 0, SIZE - 511, 512, EINVAL),
        (WRITE_ZEROES, 0, SIZE - 512, 1024, ENOSPC),
        (WRITE_ZEROES, 0, 0, !511, ENOSPC),
        (BLOCK_STATUS, 0, 0, 512, EINVAL),
        (FLUSH, 0, 0, 512, EINVAL),
        (CACHE, 0, SIZE, 512, EINVAL),
        (99, 0, 0, 512, EINVAL),
        (u16::MAX, u16::MAX, u64::MAX, u32::MAX, EINVAL),
    ] {
        assert_eq!(client.ask(command, flags, offset, len, &[]), error, "{command} {offset} {len}");
    }
    // The payload of a refused write is skipped.
    for (flags, offset, error) in
        [(0, SIZE - 511, ENOSPC), (0, u64::MAX - 511, EINVAL), (0x80, 0, EINVAL)]
    {
        assert_eq!(client.ask(WRITE, flags, offset, 300 << 10, &[2; 300 << 10]), error);
    }
    let mut expected = vec![1; 4096];
    expected.resize(SIZE as usize, 0);
    assert_eq!(client.read(0, SIZE as u32), expected);
}

/// A request may begin and end at any byte. Its neighbours in the same blocks do not change.
#[test]
fn export_executes_unaligned_requests() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    let mut expected = vec![1; SIZE as usize];
    assert_eq!(client.ask(WRITE, 0, 0, SIZE as u32, &expected), 0);
    // The last ones are longer than what is received with its header, and than what is rewritten at once.
    for (at, len, value) in [
        (1, 1, 2),
        (511, 2, 3),
        (1000, 3000, 4),
        (SIZE - 1, 1, 5),
        (7001, 70_001, 6),
        (99, 900_001, 7),
    ] {
        assert_eq!(client.ask(WRITE, 1, at, len, &vec![value; len as usize]), 0, "{at} {len}");
        expected[at as usize..][..len as usize].fill(value);
        assert_eq!(client.read(at, len), expected[at as usize..][..len as usize], "{at} {len}");
        assert_eq!(client.read(0, SIZE as u32), expected, "{at} {len}");
    }
    for (at, len) in [(3, 5), (513, 100_000)] {
        assert_eq!(client.ask(WRITE_ZEROES, 0, at, len, &[]), 0);
        expected[at as usize..][..len as usize].fill(0);
        assert_eq!(client.ask(CACHE, 0, at, len, &[]), 0);
        assert_eq!(client.read(0, SIZE as u32), expected, "{at} {len}");
    }
    assert_eq!(client.ask(TRIM, 0, 300_001, 5000, &[]), 0);
    let got = client.read(0, SIZE as u32);
    let outside = |n: &usize| !(300_001..305_001).contains(n);
    assert!((0..SIZE as usize).filter(outside).all(|n| got[n] == expected[n]));
    assert_eq!(client.ask(FLUSH, 0, 0, 0, &[]), 0);
}

/// The pieces of a long unaligned request are whole blocks, but for the ends of the request.
#[test]
fn export_executes_long_unaligned_write_zeroes_in_pieces() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 0, SIZE as u32, &vec![1; SIZE as usize]), 0);
    let (at, len) = (5, (SIZE - 12) as u32);
    assert!(u64::from(len) > 2 * SHORT.piece_bytes, "in several pieces");
    assert_eq!(client.ask(WRITE_ZEROES, 0, at, len, &[]), 0);
    let mut expected = vec![0; SIZE as usize];
    expected[..5].fill(1);
    expected[SIZE as usize - 7..].fill(1);
    assert_eq!(client.read(0, SIZE as u32), expected);
}

#[test]
fn export_fails_long_write_zeroes_when_one_piece_fails() {
    let spec = "[disk]\nm = { memory = \"1MiB\" }\n[device]\n\
                bad = { kind = \"error\", on = \"m\", with = \"io\", start = \"64KiB\", size = \"64KiB\" }\n\
                [export]\nvol = { on = \"bad\" }\n";
    let world = World::new(spec, SHORT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 128 << 10, 4096, &[7; 4096]), 0);
    for command in [WRITE_ZEROES, TRIM] {
        assert_eq!(client.ask(command, 0, 0, 256 << 10, &[]), EIO);
        assert_eq!(client.read(128 << 10, 4096), [7; 4096], "no piece begins after one has failed");
    }
    assert_eq!(client.ask(CACHE, 0, 0, 256 << 10, &[]), EIO);
}

#[test]
fn server_closes_connection_after_garbage_in_request() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    client.send(&[0x55; 4096]);
    assert!(client.is_closed());
    world.logs("the magic of the request is 0x55555555");
    let mut client = Client::new(&world);
    client.send(&header(WRITE, 0, 0, u32::MAX));
    assert!(client.is_closed());
    world.logs("payload of a request is 4294967295, the limit is 33554432");
}

#[test]
fn write_with_truncated_payload_changes_no_bytes() {
    let world = World::new(MEMORY, SHORT);
    // One is short enough to be received with its header, the other is received directly into its place.
    for len in [4096_u32, 512 << 10] {
        let mut client = Client::new(&world);
        client.send(&header(WRITE, 0, 0, len));
        client.send(&vec![9; len as usize / 2]);
        drop(client);
        let mut client = Client::new(&world);
        client.send(&header(WRITE, 0, 0, len));
        client.send(&vec![9; len as usize / 2]);
        let begun = Instant::now();
        assert!(client.is_closed());
        assert!(begun.elapsed() >= SHORT.request / 2, "{:?}", begun.elapsed());
        world.logs("did not complete a request within 500ms of its first byte");
        assert_eq!(Client::new(&world).read(0, len), vec![0; len as usize]);
    }
    world.logs("closed the connection inside a");
}

#[test]
fn server_closes_connection_when_payload_misses_deadline() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    client.send(&header(WRITE, 0, SIZE, 512 << 10));
    assert!(client.is_closed());
    world.logs("did not complete a request within 500ms of its first byte");
}

#[test]
fn server_closes_connection_when_request_misses_deadline() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::new(&world);
    let begun = Instant::now();
    for byte in header(READ, 0, 0, 512) {
        use std::io::Write;
        if client.0.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(client.is_closed());
    assert!(begun.elapsed() >= SHORT.request, "{:?}", begun.elapsed());
    // A client that sends nothing at all may stay.
    let mut quiet = Client::new(&world);
    std::thread::sleep(SHORT.request + SHORT.handshake);
    assert_eq!(quiet.read(0, 512), [0; 512]);
}

#[test]
fn export_reports_holes_in_block_status_and_reads() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::structured(&world);
    client.request(WRITE, 0, 65536, 4096, &[5; 4096]);
    assert_eq!(client.chunk(), (1, 0, vec![]));
    client.request(READ, 0, 0, 4096, &[]);
    let hole = [0_u64.to_be_bytes().to_vec(), 4096_u32.to_be_bytes().to_vec()].concat();
    assert_eq!(client.chunk(), (1, 2, hole));
    // DF: one chunk of data, though it is all zeros.
    client.request(READ, 4, 0, 4096, &[]);
    let (flags, kind, data) = client.chunk();
    assert_eq!((flags, kind, data.len()), (1, 1, 8 + 4096));
    client.request(BLOCK_STATUS, 0, 0, SIZE as u32, &[]);
    let (flags, kind, data) = client.chunk();
    assert_eq!((flags, kind), (1, 5));
    let words: Vec<u32> =
        data.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    let extents: Vec<(u32, u32)> = words[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect();
    assert_eq!(extents.iter().map(|(len, _)| len).sum::<u32>(), SIZE as u32);
    assert_eq!(extents[0], (65536, 3), "{extents:?}");
    assert_eq!(extents[1].1, 0, "{extents:?}");
    client.request(BLOCK_STATUS, 8, 0, SIZE as u32, &[]);
    assert_eq!(client.chunk().2.len(), 12, "REQ_ONE");
    // An error chunk has a message.
    client.request(READ, 0, SIZE, 512, &[]);
    let (flags, kind, data) = client.chunk();
    assert_eq!((flags, kind), (1, 1 << 15 | 1));
    assert_eq!(data[..4], EINVAL.to_be_bytes());
    assert_eq!(&data[6..], b"the range ends past the end of the export");
}

#[test]
fn export_serves_extended_headers_as_nbd_specifies() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::negotiate(&world);
    assert_eq!(client.option(OPT_EXTENDED, &[])[0].0, ACK);
    assert_eq!(client.option(OPT_SET_META, &meta_data("vol", &["base:allocation"]))[0].0, META);
    assert_eq!(client.go("vol").last().unwrap().0, ACK);
    // PAYLOAD_LEN goes with every extended write.
    client.send(&extended(WRITE, 1 << 5, 65536, 4096));
    client.send(&[6; 4096]);
    assert_eq!(client.extended_chunk(65536), (1, 0, vec![]));
    client.send(&extended(READ, 0, 65536, 4096));
    let data = [&65536_u64.to_be_bytes()[..], &[6; 4096]].concat();
    assert_eq!(client.extended_chunk(65536), (1, 1, data));
    client.send(&extended(BLOCK_STATUS, 1 << 3, 0, SIZE));
    let (flags, kind, data) = client.extended_chunk(0);
    assert_eq!((flags, kind), (1, 6));
    // The context, one extent of 64 bits, its flags: a hole of zeros.
    let words = [&0_u32.to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
    let extent = [65536_u64.to_be_bytes(), 3_u64.to_be_bytes()].concat();
    assert_eq!(data, [words, extent].concat());
    // A length that compact headers cannot express.
    client.send(&extended(TRIM, 0, 0, 1 << 40));
    let (flags, kind, data) = client.extended_chunk(0);
    assert_eq!((flags, kind, &data[..4]), (1, 1 << 15 | 1, &EINVAL.to_be_bytes()[..]));
    client.send(&extended(WRITE, 0, 0, 4096));
    assert_eq!(client.extended_chunk(0).1, 1 << 15 | 1, "without PAYLOAD_LEN there is no payload");
    client.send(&extended(READ, 0, 0, 512));
    assert_eq!(client.extended_chunk(0).0, 1);
}

#[test]
fn block_status_of_128_tib_stripe_is_answered_at_once() {
    let world = World::new(
        "[disk]\na = { null = \"64TiB\" }\nb = { null = \"64TiB\" }\n\
         [device]\nall = { kind = \"stripe\", on = [\"a\", \"b\"], chunk = \"4KiB\" }\n\
         [export]\nvol = { on = \"all\" }\n",
        SHORT,
    );
    let mut client = Client::negotiate(&world);
    assert_eq!(client.option(OPT_EXTENDED, &[])[0].0, ACK);
    assert_eq!(client.option(OPT_SET_META, &meta_data("vol", &["base:allocation"]))[0].0, META);
    assert_eq!(client.go("vol").last().unwrap().0, ACK);
    let begin = Instant::now();
    client.send(&extended(BLOCK_STATUS, 0, 0, 1 << 47));
    let (_, kind, data) = client.extended_chunk(0);
    assert_eq!((kind, &data[8..16]), (6, &(1_u64 << 47).to_be_bytes()[..]), "one hole");
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

#[test]
fn long_write_zeroes_succeeds_up_to_highest_offset() {
    let quarter = |name| format!("{name} = {{ null = \"4194304TiB\" }}\n");
    let world = World::new(
        &format!(
            "[disk]\n{}{}{}{}[device]\nless = {{ kind = \"linear\", on = \"d\", size = \"4398046511103MiB\" }}\n\
             all = {{ kind = \"concat\", on = [\"a\", \"b\", \"c\", \"less\"] }}\n[export]\nvol = {{ on = \"all\" }}\n",
            quarter("a"),
            quarter("b"),
            quarter("c"),
            quarter("d"),
        ),
        SHORT,
    );
    let mut client = Client::negotiate(&world);
    assert_eq!(client.option(OPT_EXTENDED, &[])[0].0, ACK);
    assert_eq!(client.go("vol").last().unwrap().0, ACK);
    let end = 0_u64.wrapping_sub(SIZE);
    for (command, len) in [(TRIM, 3 << 29), (WRITE_ZEROES, 3 << 29), (CACHE, 3 << 19)] {
        client.send(&extended(command, 0, end - len, len));
        assert_eq!(client.extended_chunk(end - len), (1, 0, vec![]));
    }
}

#[test]
fn reply_contains_errno_of_failed_disk() {
    for (with, error) in [("io", EIO), ("nospace", ENOSPC), ("timeout", EIO), ("readonly", EPERM)] {
        let spec = format!(
            "[disk]\nm = {{ memory = \"1MiB\" }}\n\
             [device]\nbad = {{ kind = \"error\", on = \"m\", with = \"{with}\", start = \"64KiB\" }}\n\
             [export]\nvol = {{ on = \"bad\" }}\n"
        );
        let world = World::new(&spec, SHORT);
        let mut client = Client::new(&world);
        assert_eq!(client.ask(WRITE, 0, 64 << 10, 4096, &[1; 4096]), error, "{with}");
        assert_eq!(client.ask(WRITE, 0, 0, 4096, &[1; 4096]), 0);
    }
}

#[test]
fn read_only_export_refuses_writes_zeroes_and_trims() {
    let spec = MEMORY.replace("on = \"m\"", "on = \"m\", read_only = true");
    let world = World::new(&spec, SHORT);
    let mut client = Client::new(&world);
    assert_eq!(client.ask(WRITE, 0, 0, 512, &[1; 512]), EPERM);
    assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 512, &[]), EPERM);
    assert_eq!(client.ask(TRIM, 0, 0, 512, &[]), EPERM);
    assert_eq!(client.read(0, 512), [0; 512]);
}
