//! Tests of the NBD server's handshake with clients that send options out of order or malformed.

use wire::nbd::{
    Context, ExportEntry, ExportFacts, Exports, Limits, OptionCode, ProtocolError, ReplyCode,
    ReplyStyle, ServerHandshake, ServerProgress, Session, TransmissionFlags,
};

use crate::pair::{ALL_FLAGS, Server, TwoExports, info_data, meta_data, now, option, reply};

const INVALID: [ReplyCode; 1] = [ReplyCode::ERR_INVALID];

fn set(server: &mut Server, name: &str, queries: &[&str]) -> Vec<ReplyCode> {
    server.kinds(OptionCode::SET_META_CONTEXT, &meta_data(name, queries))
}

fn structured() -> Server {
    let mut server = Server::new();
    assert_eq!(server.kinds(OptionCode::STRUCTURED_REPLY, &[]), [ReplyCode::ACK]);
    server
}

fn extended() -> Server {
    let mut server = Server::new();
    assert_eq!(server.kinds(OptionCode::EXTENDED_HEADERS, &[]), [ReplyCode::ACK]);
    server
}

fn export_name(server: &mut Server, name: &str) -> Result<Session, ProtocolError> {
    match server.give(&option(OptionCode::EXPORT_NAME, name.as_bytes()))? {
        (_, ServerProgress::Ready(session)) => Ok(*session),
        other => panic!("EXPORT_NAME came to {other:?}"),
    }
}

/// The exports of a server under test, which refuse every client.
struct Nobody;

impl Exports for Nobody {
    async fn list(&self) -> Result<Vec<ExportEntry>, String> {
        panic!("nobody is shown the list")
    }

    async fn look(&self, _: &str) -> Result<Option<ExportFacts>, String> {
        panic!("nobody is told about an export")
    }

    async fn open(&self, _: &str) -> Result<Option<ExportFacts>, String> {
        panic!("nobody gets an export")
    }

    fn refusal(&self) -> Option<String> {
        Some("come back later".to_owned())
    }
}

/// The exports of a server under test, which count the openings.
#[derive(Default)]
struct Counted(std::cell::Cell<u32>);

impl Exports for Counted {
    async fn list(&self) -> Result<Vec<ExportEntry>, String> {
        TwoExports.list().await
    }

    async fn look(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        TwoExports.look(name).await
    }

    async fn open(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        self.0.set(self.0.get() + 1);
        TwoExports.open(name).await
    }
}

#[test]
fn server_opens_export_only_for_go_and_export_name() {
    let opened = |code, data: &[u8]| {
        let (mut server, exports) = (structured(), Counted::default());
        now(server.handshake.advance(&option(code, data), &exports, &mut Vec::new())).unwrap();
        exports.0.get()
    };
    assert_eq!(opened(OptionCode::LIST, b""), 0);
    assert_eq!(opened(OptionCode::INFO, &info_data("first", &[])), 0);
    let contexts = meta_data("first", &["base:allocation"]);
    assert_eq!(opened(OptionCode::LIST_META_CONTEXT, &contexts), 0);
    assert_eq!(opened(OptionCode::SET_META_CONTEXT, &contexts), 0);
    assert_eq!(opened(OptionCode::GO, &info_data("first", &[])), 1);
    assert_eq!(opened(OptionCode::EXPORT_NAME, b"first"), 1);
}

#[test]
fn server_sends_reason_when_export_refuses_client() {
    let asked = |code, data: &[u8]| {
        let (mut server, mut out) = (structured(), Vec::new());
        let step = now(server.handshake.advance(&option(code, data), &Nobody, &mut out));
        (step, out)
    };
    for (code, data) in [
        (OptionCode::LIST, Vec::new()),
        (OptionCode::INFO, info_data("first", &[])),
        (OptionCode::GO, info_data("first", &[])),
        (OptionCode::LIST_META_CONTEXT, meta_data("first", &[])),
        (OptionCode::SET_META_CONTEXT, meta_data("first", &[])),
    ] {
        let (step, out) = asked(code, &data);
        assert!(matches!(step, Ok((_, ServerProgress::Advanced))), "{step:?}");
        assert_eq!(out, reply(code, ReplyCode::ERR_POLICY, b"come back later"));
    }
    let (step, out) = asked(OptionCode::EXPORT_NAME, b"first");
    assert_eq!(step.unwrap_err().to_string(), "come back later");
    assert!(out.is_empty());
    assert!(matches!(asked(OptionCode::ABORT, &[]).0, Ok((_, ServerProgress::Aborted))));
}

#[test]
fn server_rejects_unknown_client_flags() {
    let step = |flags: u32| {
        let mut handshake = ServerHandshake::new(Limits::default());
        now(handshake.advance(&flags.to_be_bytes(), &TwoExports, &mut Vec::new()))
    };
    assert!(matches!(step(1), Ok((4, ServerProgress::Advanced))));
    assert!(matches!(step(3), Ok((4, ServerProgress::Advanced))));
    for not_fixed in [0, 2] {
        assert!(matches!(step(not_fixed), Err(ProtocolError::NotFixedNewstyle(_))));
    }
    for unknown in [5, 1 << 31 | 1] {
        assert!(matches!(step(unknown), Err(ProtocolError::Invalid { .. })));
    }
}

#[test]
fn export_name_reply_ends_with_zeroes_unless_no_zeroes_agreed() {
    for (flags, zeroes) in [(1, 124), (3, 0)] {
        let mut server = Server::with(Limits::default(), flags);
        let session = export_name(&mut server, "second").unwrap();
        assert_eq!(session.facts.name, "second");
        assert_eq!(session.style, ReplyStyle::Simple);
        let mut expected = (1u64 << 20).to_be_bytes().to_vec();
        expected.extend(session.facts.flags.0.to_be_bytes());
        expected.extend(vec![0; zeroes]);
        assert_eq!(server.out, expected);
    }
}

#[test]
fn server_closes_connection_after_export_name_error() {
    let unknown = ProtocolError::UnknownExport("third".to_owned());
    assert_eq!(export_name(&mut Server::new(), "third"), Err(unknown));
    let text = ProtocolError::BadText("name of the export");
    assert_eq!(export_name(&mut Server::new(), "a\0b"), Err(text));
    // The option is forbidden once extended headers are agreed.
    let refused = export_name(&mut extended(), "first");
    assert!(matches!(refused, Err(ProtocolError::Invalid { .. })), "{refused:?}");
    assert_eq!(export_name(&mut structured(), "first").unwrap().style, ReplyStyle::Structured);
}

#[test]
fn handshake_continues_after_info_option() {
    let mut server = Server::new();
    let kinds = server.kinds(OptionCode::INFO, &info_data("second", &[1, 2, 3, 999]));
    let info = ReplyCode::INFO;
    assert_eq!(kinds, [info, info, info, info, ReplyCode::ACK]);
    // Without information requests the reply has only size and flags.
    assert_eq!(server.kinds(OptionCode::INFO, &info_data("", &[])), [info, ReplyCode::ACK]);
    let unknown = server.kinds(OptionCode::INFO, &info_data("third", &[3]));
    assert_eq!(unknown, [ReplyCode::ERR_UNKNOWN]);
    assert_eq!(server.go("second").facts.name, "second");
}

#[test]
fn client_can_repeat_go_option_after_malformed_go_option() {
    let mut server = Server::new();
    let good = info_data("first", &[3]);
    let mut long_name = good.clone();
    long_name[3] = 200;
    let mut many = good.clone();
    many[10] = 2;
    let mut extra = good.clone();
    extra.push(0);
    let wrong = [&[][..], &good[..good.len() - 1], &extra, &long_name, &many];
    for data in wrong {
        assert_eq!(server.kinds(OptionCode::GO, data), INVALID, "{data:?}");
    }
    let mut text = good;
    text[4] = 0xff;
    assert_eq!(server.kinds(OptionCode::GO, &text), INVALID);
    assert_eq!(server.go("first").facts.name, "first");
}

#[test]
fn server_rejects_data_in_options_without_data() {
    let without = [
        OptionCode::LIST,
        OptionCode::STARTTLS,
        OptionCode::STRUCTURED_REPLY,
        OptionCode::EXTENDED_HEADERS,
    ];
    let mut server = Server::new();
    for code in without {
        assert_eq!(server.kinds(code, b"x"), INVALID, "{code}");
    }
    assert_eq!(server.go("first").style, ReplyStyle::Simple, "nothing was agreed");
}

#[test]
fn server_continues_handshake_after_unsupported_option() {
    let mut server = Server::new();
    for code in [0, 4, 12, 999, u32::MAX].map(OptionCode) {
        assert_eq!(server.kinds(code, b"some data"), [ReplyCode::ERR_UNSUP], "{code}");
    }
    let replies = server.ask(OptionCode::STARTTLS, &[]);
    assert_eq!(replies, [(ReplyCode::ERR_UNSUP, b"this address has no TLS".to_vec())]);
    server.go("first");
}

#[test]
fn server_acknowledges_abort_with_or_without_data() {
    for data in [&b""[..], b"bye"] {
        let mut server = Server::new();
        let input = option(OptionCode::ABORT, data);
        assert_eq!(server.give(&input), Ok((input.len(), ServerProgress::Aborted)));
        assert_eq!(server.out[12..16], ReplyCode::ACK.0.to_be_bytes());
        assert_eq!(server.give(b"more"), Err(ProtocolError::HandshakeOver));
    }
}

#[test]
fn server_rejects_input_after_end_of_handshake() {
    let mut server = Server::new();
    server.go("first");
    assert_eq!(server.give(&option(OptionCode::LIST, &[])), Err(ProtocolError::HandshakeOver));
    let mut server = Server::new();
    assert!(matches!(server.give(&[0; 8]), Err(ProtocolError::BadMagic { found: 0, .. })));
    assert_eq!(server.give(&option(OptionCode::LIST, &[])), Err(ProtocolError::HandshakeOver));
}

#[test]
fn server_rejects_option_that_was_agreed_already() {
    assert_eq!(structured().kinds(OptionCode::STRUCTURED_REPLY, &[]), INVALID);
    assert_eq!(extended().kinds(OptionCode::EXTENDED_HEADERS, &[]), INVALID);
    let late = extended().kinds(OptionCode::STRUCTURED_REPLY, &[]);
    assert_eq!(late, [ReplyCode::ERR_EXT_HEADER_REQD]);
    let mut both = structured();
    assert_eq!(both.kinds(OptionCode::EXTENDED_HEADERS, &[]), [ReplyCode::ACK]);
    assert_eq!(both.go("first").style, ReplyStyle::Extended);
}

#[test]
fn server_refuses_metadata_contexts_before_structured_replies() {
    let data = meta_data("first", &["base:allocation"]);
    let mut server = Server::new();
    assert_eq!(server.kinds(OptionCode::SET_META_CONTEXT, &data), INVALID);
    assert_eq!(server.kinds(OptionCode::LIST_META_CONTEXT, &data), INVALID);
    assert_eq!(server.go("first").contexts, []);
    let selected = [ReplyCode::META_CONTEXT, ReplyCode::ACK];
    assert_eq!(set(&mut extended(), "first", &["base:allocation"]), selected);
}

#[test]
fn server_applies_metadata_contexts_only_to_selected_export() {
    let base = Context { id: 0, name: "base:allocation".to_owned() };
    for (selected_for, went_to, expected) in [
        ("first", "first", vec![base.clone()]),
        ("first", "", vec![base]),
        ("first", "second", vec![]),
    ] {
        let mut server = structured();
        set(&mut server, selected_for, &["base:allocation", "base:allocation"]);
        assert_eq!(server.go(went_to).contexts, expected, "{selected_for} then {went_to}");
    }
}

#[test]
fn server_uses_last_context_selection_even_when_failed() {
    let mut server = structured();
    let names = |session: Session| -> Vec<String> {
        session.contexts.into_iter().map(|context| context.name).collect()
    };
    set(&mut server, "first", &["base:allocation"]);
    set(&mut server, "first", &["x-cairn:dirty"]);
    assert_eq!(names(server.go("first")), ["x-cairn:dirty"]);

    let mut server = structured();
    set(&mut server, "first", &["base:allocation"]);
    assert_eq!(set(&mut server, "third", &["base:allocation"]), [ReplyCode::ERR_UNKNOWN]);
    assert_eq!(names(server.go("first")), [""; 0]);

    let mut server = structured();
    set(&mut server, "first", &["base:allocation"]);
    assert_eq!(set(&mut server, "first", &[]), [ReplyCode::ACK]);
    assert_eq!(names(server.go("first")), [""; 0]);
}

#[test]
fn wildcard_queries_list_contexts_but_select_no_context() {
    let (one, two) = ([ReplyCode::META_CONTEXT; 1], [ReplyCode::META_CONTEXT; 2]);
    for (queries, found) in [
        (&[][..], &two[..]),
        (&["base:"], &one),
        (&["base:", "x-cairn:dirty"], &two),
        (&["base:allocation"], &one),
        (&["base:alloc"], &[]),
        (&["other:"], &[]),
    ] {
        let data = meta_data("first", queries);
        let kinds = structured().kinds(OptionCode::LIST_META_CONTEXT, &data);
        assert_eq!(kinds, [found, &[ReplyCode::ACK]].concat(), "{queries:?}");
    }
    for nothing in ["base:", "base:unknown", "other:thing"] {
        assert_eq!(set(&mut structured(), "first", &[nothing]), [ReplyCode::ACK], "{nothing}");
    }
}

#[test]
fn server_rejects_malformed_context_queries() {
    let good = meta_data("first", &["base:allocation"]);
    let mut many = good.clone();
    many[9..13].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut long = good.clone();
    long[13..17].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut extra = good.clone();
    extra.push(0);
    let no_colon = meta_data("first", &["base"]);
    let no_namespace = meta_data("first", &[":allocation"]);
    let mut server = structured();
    let cut = &good[..good.len() - 1];
    for data in [&[][..], cut, &many, &long, &extra, &no_colon, &no_namespace] {
        assert_eq!(server.kinds(OptionCode::SET_META_CONTEXT, data), INVALID, "{data:?}");
        assert_eq!(server.kinds(OptionCode::LIST_META_CONTEXT, data), INVALID, "{data:?}");
    }
}

#[test]
fn server_offers_df_flag_only_with_structured_replies() {
    let flags = structured().go("first").facts.flags;
    assert_eq!(flags, ALL_FLAGS | TransmissionFlags::HAS_FLAGS);
    let flags = Server::new().go("first").facts.flags;
    assert!(flags.has(TransmissionFlags::HAS_FLAGS) && !flags.has(TransmissionFlags::DF));
    let mut facts = crate::pair::facts("first");
    facts.flags = TransmissionFlags::FAST_ZERO | TransmissionFlags::DF;
    let sent = TransmissionFlags::HAS_FLAGS | TransmissionFlags::DF;
    assert_eq!(facts.wire_flags(true), sent, "FAST_ZERO means nothing without WRITE_ZEROES");
}
