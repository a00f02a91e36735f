//! Runs the handshakes of the NBD client and the NBD server against each other, in packets of any lengths.

use proptest::prelude::*;
use wire::nbd::{
    ClientConfig, ClientProgress, ExportEntry, Goal, ProtocolError, ReplyCode, ReplyStyle,
    ServerProgress, Session, TransmissionFlags,
};

use crate::pair::{ALL_FLAGS, Ends, facts, negotiate};

/// Returns the sessions of the client and the server. Panics unless both handshakes succeeded and took every byte.
fn sessions(ends: Ends) -> (Session, Session) {
    assert_eq!(ends.left, (0, 0));
    match (ends.client, ends.server) {
        (Some(Ok(ClientProgress::Connected(client))), Some(Ok(ServerProgress::Ready(server)))) => {
            (*client, *server)
        }
        other => panic!("the handshake came to {other:?}"),
    }
}

fn assert_agree(config: &ClientConfig, ends: Ends) {
    let (client, server) = sessions(ends);
    assert_eq!(client.style, server.style);
    assert_eq!(client.contexts, server.contexts);
    assert_eq!(client.facts.name, server.facts.name);
    assert_eq!(client.facts.description, server.facts.description);
    assert_eq!(client.facts.size_bytes, server.facts.size_bytes);
    assert_eq!(client.facts.flags, server.facts.flags);
    assert_eq!(client.facts.blocks, server.facts.blocks);

    let style = match (config.structured, config.extended) {
        (_, true) => ReplyStyle::Extended,
        (true, false) => ReplyStyle::Structured,
        (false, false) => ReplyStyle::Simple,
    };
    assert_eq!(client.style, style);
    let contexts = if style == ReplyStyle::Simple { 0 } else { config.contexts.len() };
    assert_eq!(client.contexts.len(), contexts);
    let mut flags = ALL_FLAGS | TransmissionFlags::HAS_FLAGS;
    if style == ReplyStyle::Simple {
        flags = flags.without(TransmissionFlags::DF);
    }
    assert_eq!(client.facts.flags, flags);
}

#[test]
fn handshake_succeeds_when_bytes_arrive_one_by_one() {
    let config = ClientConfig::connect("second");
    assert_agree(&config, negotiate(config.clone(), || 1));
}

#[test]
fn handshake_returns_name_of_default_export() {
    let (client, server) = sessions(negotiate(ClientConfig::connect(""), || 1000));
    assert_eq!(client.facts.name, "first");
    assert_eq!(server.facts.name, "first");
}

#[test]
fn client_aborts_handshake_when_export_is_unknown() {
    let ends = negotiate(ClientConfig::connect("third"), || 1000);
    let Some(Err(ProtocolError::Refused { reply, message, .. })) = ends.client else {
        panic!("the client came to {:?}", ends.client);
    };
    assert_eq!(reply, ReplyCode::ERR_UNKNOWN);
    assert!(message.contains("\"third\""), "{message}");
    assert_eq!(ends.server, Some(Ok(ServerProgress::Aborted)));
}

#[test]
fn describe_handshake_returns_export_info_and_aborts() {
    let ends = negotiate(ClientConfig { goal: Goal::Describe, ..ClientConfig::connect("") }, || 3);
    let Some(Ok(ClientProgress::Described(told))) = ends.client else {
        panic!("the client came to {:?}", ends.client);
    };
    let mut expected = facts("first");
    expected.flags |= TransmissionFlags::HAS_FLAGS;
    expected.contexts.clear();
    assert_eq!(*told, expected);
    assert_eq!(ends.server, Some(Ok(ServerProgress::Aborted)));
}

#[test]
fn list_handshake_returns_exports_and_aborts() {
    let ends = negotiate(ClientConfig { goal: Goal::List, ..ClientConfig::connect("") }, || 3);
    let entry = |name: &str, description: &str| ExportEntry {
        name: name.to_owned(),
        description: description.to_owned(),
    };
    let expected = vec![entry("first", "the first"), entry("second", "the second")];
    assert_eq!(ends.client, Some(Ok(ClientProgress::Listed(expected))));
    assert_eq!(ends.server, Some(Ok(ServerProgress::Aborted)));
}

proptest! {
    #[test]
    fn handshake_result_is_independent_of_packet_boundaries(
        structured: bool,
        extended: bool,
        contexts in proptest::sample::subsequence(vec!["base:allocation", "x-cairn:dirty"], 0..=2),
        pieces in proptest::collection::vec(1usize..90, 1..20),
    ) {
        let config = ClientConfig {
            structured,
            extended,
            contexts: contexts.into_iter().map(str::to_owned).collect(),
            ..ClientConfig::connect("second")
        };
        let mut turn = pieces.iter().cycle();
        let ends = negotiate(config.clone(), || *turn.next().expect("a cycle never ends"));
        assert_agree(&config, ends);
    }
}
