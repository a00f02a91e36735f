//! NBD handshakes with the server, valid and malformed.

use std::time::{Duration, Instant};

use super::client::*;
use super::world::{MEMORY, SHORT, World};

#[test]
fn handshake_opens_export_by_export_name_and_go() {
    let world = World::new(MEMORY, SHORT);
    let mut old = Client::negotiate(&world);
    old.send_option(OPT_EXPORT_NAME, b"vol");
    assert_eq!(old.u64(), 1 << 20);
    old.bytes(2);
    assert_eq!(old.read(0, 512), [0; 512]);

    let mut new = Client::negotiate(&world);
    let list = new.option(OPT_LIST, &[]);
    assert_eq!(list[0], (SERVER, b"\0\0\0\x03vola test".to_vec()));
    assert_eq!(list[1].0, ACK);
    // Size and flags, the name, the description, the block sizes.
    let infos = new.option(OPT_INFO, &info_data("", &[1, 2, 3]));
    let kinds: Vec<_> = infos.iter().map(|(kind, data)| (*kind, data.get(1).copied())).collect();
    let told = |kind: u8| (INFO, Some(kind));
    assert_eq!(kinds, [told(0), told(1), told(2), told(3), (ACK, None)]);
    assert_eq!(infos[0].1[2..10], (1_u64 << 20).to_be_bytes());
    assert_eq!(infos[3].1[2..6], 1_u32.to_be_bytes());
    assert_eq!(new.option(OPT_ABORT, &[]), [(ACK, vec![])]);
    assert!(new.is_closed());
}

#[test]
fn list_option_returns_more_than_500_exports() {
    let exports: String =
        (0..600).map(|n| format!("v{n} = {{ on = \"d\", read_only = true }}\n")).collect();
    let spec = format!("[disk]\nd = {{ memory = \"1MiB\" }}\n[export]\n{exports}");
    let world = World::new(&spec, SHORT);
    let list = Client::negotiate(&world).option(OPT_LIST, &[]);
    assert_eq!((list.len(), list[600].0), (601, ACK), "more than two pages");
}

#[test]
fn handshake_continues_after_refused_options() {
    let world = World::new(MEMORY, SHORT);
    let mut client = Client::negotiate(&world);
    let kind = |replies: Vec<(u32, Vec<u8>)>| {
        let (kind, words) = replies.last().unwrap().clone();
        assert!(kind == ACK || !words.is_empty(), "a refusal has words");
        kind
    };
    assert_eq!(kind(client.option(0x1234_5678, b"whatever")), UNSUP);
    assert_eq!(kind(client.option(OPT_LIST, b"x")), INVALID);
    assert_eq!(kind(client.option(OPT_LIST_META, &meta_data("vol", &[]))), INVALID);
    assert_eq!(kind(client.go("nobody")), UNKNOWN);
    assert_eq!(kind(client.option(OPT_GO, b"\xff\xff\xff\xff")), INVALID);
    assert_eq!(kind(client.option(OPT_LIST, &vec![0; 100_000])), TOO_BIG);
    assert_eq!(kind(client.option(OPT_STRUCTURED, &[])), ACK);
    assert_eq!(kind(client.option(OPT_SET_META, &meta_data("vol", &["x:"; 65]))), TOO_BIG);
    assert_eq!(client.option(OPT_LIST_META, &meta_data("vol", &["base:"]))[0].0, META);
    assert_eq!(kind(client.option(OPT_EXTENDED, &[])), ACK);
    assert_eq!(kind(client.go("vol")), ACK);
}

#[test]
fn server_closes_and_logs_malformed_handshake() {
    let world = World::new(MEMORY, SHORT);
    let closed = |bytes: &[u8], words: &str| {
        let mut client = Client::negotiate(&world);
        client.send(bytes);
        assert!(client.is_closed());
        world.logs(words);
    };
    closed(b"GET / HTTP/1.1\r\n", "the magic of the option");
    closed(b"IHAVEOPT\0\0\0\x01\xff\xff\xff\xff", "length of the export name is 4294967295");
    closed(b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff", "skipped data is 4294967295");
    closed(b"IHAVEOPT\0\0\0\x01\0\0\0\x02no", "no export \"no\"");
    let many = b"IHAVEOPT\0\0\0\x63\0\0\0\0".repeat(33);
    closed(&many, "number of options is 33, the limit is 32");
    Client::new(&world).read(0, 512);
}

#[test]
fn server_closes_idle_and_slow_handshakes_at_deadline() {
    let world = World::new(MEMORY, SHORT);
    let begun = Instant::now();
    let mut idle = Client::negotiate(&world);
    let mut slow = Client::negotiate(&world);
    for byte in b"IHAVEOPT" {
        slow.send(&[*byte]);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(idle.is_closed() && slow.is_closed());
    assert!(begun.elapsed() >= SHORT.handshake, "{:?}", begun.elapsed());
    world.logs("did not complete the handshake within 300ms");
}

#[test]
fn server_refuses_client_above_connection_limit() {
    let world = World::new(MEMORY, SHORT);
    let mut served: Vec<_> = (0..SHORT.connections).map(|_| Client::new(&world)).collect();
    let mut late = Client::negotiate(&world);
    let told = late.go("vol");
    assert_eq!(told[0].0, POLICY);
    let words = String::from_utf8(told[0].1.clone()).unwrap();
    assert_eq!(words, "the server has reached its limit of 4 connections; try again later");
    assert!(late.is_closed());
    world.logs("its limit of 4 connections");
    for client in &mut served {
        client.read(0, 512);
    }
    drop(served.pop());
    super::world::until("there is room again", || world.connections() < SHORT.connections);
    Client::new(&world).read(0, 512);
}
