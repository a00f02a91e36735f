//! Tests of the NBD client's handshake with servers that refuse options, break the protocol, or are old.

use wire::nbd::{
    ClientConfig, ClientHandshake, ClientProgress, ExportFacts, Goal, OptionCode, ProtocolError,
    ReplyCode, ReplyStyle, ServerHandshake, Session, TransmissionFlags,
};

use crate::pair::{option, reply};

struct Client {
    handshake: ClientHandshake,
    out: Vec<u8>,
}

type Step = Result<ClientProgress, ProtocolError>;

impl Client {
    /// Returns a client that has received the server's greeting and sent its first option.
    fn greeted(config: ClientConfig) -> Self {
        let mut client = Self::new(config);
        let mut greeting = Vec::new();
        ServerHandshake::greeting(&mut greeting);
        client.give(&greeting).unwrap();
        client
    }

    fn new(config: ClientConfig) -> Self {
        Self { handshake: ClientHandshake::new(config).unwrap(), out: Vec::new() }
    }

    /// Gives one message of the server to the client, which must take all bytes. Afterwards `out` has only the client's
    /// output of this step.
    fn give(&mut self, input: &[u8]) -> Step {
        self.out.clear();
        let (taken, progress) = self.handshake.advance(input, &mut self.out)?;
        assert_eq!(taken, input.len());
        Ok(progress)
    }

    fn answer(&mut self, code: OptionCode, kind: ReplyCode, data: &[u8]) -> Step {
        self.give(&reply(code, kind, data))
    }
}

fn plain() -> ClientConfig {
    let contexts = Vec::new();
    ClientConfig { structured: false, extended: false, contexts, ..ClientConfig::connect("disk") }
}

fn export_info() -> Vec<u8> {
    [&[0, 0][..], &4096u64.to_be_bytes(), &[0, 1]].concat()
}

fn invalid(step: Step) -> &'static str {
    match step {
        Err(ProtocolError::Invalid { what, .. }) => what,
        other => panic!("nothing was invalid: {other:?}"),
    }
}

#[test]
fn client_refuses_oldstyle_and_plain_newstyle_handshakes() {
    let greet = |tail: &[u8]| Client::new(plain()).give(&[b"NBDMAGIC", tail].concat());
    let oldstyle = [0x00, 0x00, 0x42, 0x02, 0x81, 0x86, 0x12, 0x53];
    let not_fixed = |found| Err(ProtocolError::NotFixedNewstyle(found));
    assert_eq!(greet(&oldstyle), not_fixed("oldstyle"));
    assert_eq!(greet(b"IHAVEOPT\0\0"), not_fixed("plain newstyle"));
    assert_eq!(greet(b"IHAVEOPT\0\x02"), not_fixed("plain newstyle"));
    assert!(matches!(greet(b"IHAVEOPX"), Err(ProtocolError::BadMagic { .. })));
    let web = Client::new(plain()).give(b"HTTP/1.1");
    assert!(matches!(web, Err(ProtocolError::BadMagic { what: "greeting", .. })));
}

#[test]
fn client_ignores_unknown_greeting_flags() {
    for (server, client) in [(1, 1), (3, 3), (0x8001, 1)] {
        let mut subject = Client::new(plain());
        subject.give(&[b"NBDMAGICIHAVEOPT", &u16::to_be_bytes(server)[..]].concat()).unwrap();
        assert_eq!(subject.out[..4], u32::to_be_bytes(client));
    }
}

#[test]
fn client_continues_handshake_after_refused_extensions() {
    let mut client = Client::greeted(ClientConfig::connect("disk"));
    client.answer(OptionCode::STRUCTURED_REPLY, ReplyCode::ERR_UNSUP, b"").unwrap();
    client.answer(OptionCode::EXTENDED_HEADERS, ReplyCode::ERR_POLICY, b"no").unwrap();
    // There are no contexts without structured replies, so the next option is GO.
    client.answer(OptionCode::GO, ReplyCode::INFO, &export_info()).unwrap();
    let Ok(ClientProgress::Connected(session)) = client.answer(OptionCode::GO, ReplyCode::ACK, b"")
    else {
        panic!("no session")
    };
    let facts = ExportFacts {
        name: "disk".to_owned(),
        size_bytes: 4096,
        flags: TransmissionFlags::HAS_FLAGS,
        ..ExportFacts::default()
    };
    assert_eq!(*session, Session { style: ReplyStyle::Simple, contexts: vec![], facts });
}

#[test]
fn client_selects_no_context_after_failed_selection() {
    let config = ClientConfig { extended: false, ..ClientConfig::connect("disk") };
    let mut client = Client::greeted(config);
    let set = OptionCode::SET_META_CONTEXT;
    client.answer(OptionCode::STRUCTURED_REPLY, ReplyCode::ACK, b"").unwrap();
    client.answer(set, ReplyCode::META_CONTEXT, b"\0\0\0\x05base:allocation").unwrap();
    client.answer(set, ReplyCode::ERR_TOO_BIG, b"").unwrap();
    client.answer(OptionCode::GO, ReplyCode::INFO, &export_info()).unwrap();
    let Ok(ClientProgress::Connected(session)) = client.answer(OptionCode::GO, ReplyCode::ACK, b"")
    else {
        panic!("no session")
    };
    assert_eq!((session.style, session.contexts), (ReplyStyle::Structured, vec![]));
}

#[test]
fn client_rejects_contexts_that_were_not_requested() {
    let set = OptionCode::SET_META_CONTEXT;
    let selecting = || {
        let config = ClientConfig { extended: false, ..ClientConfig::connect("disk") };
        let mut client = Client::greeted(config);
        client.answer(OptionCode::STRUCTURED_REPLY, ReplyCode::ACK, b"").unwrap();
        client
    };
    let asked = b"\0\0\0\x05base:allocation";
    let other = selecting().answer(set, ReplyCode::META_CONTEXT, b"\0\0\0\x05base:other");
    assert_eq!(invalid(other), "number of a metadata context");
    let mut client = selecting();
    client.answer(set, ReplyCode::META_CONTEXT, asked).unwrap();
    let again = client.answer(set, ReplyCode::META_CONTEXT, asked);
    assert_eq!(invalid(again), "number of a metadata context");
    let text = selecting().answer(set, ReplyCode::META_CONTEXT, b"\0\0\0\x05\xff");
    assert_eq!(text, Err(ProtocolError::BadText("metadata context")));
}

#[test]
fn client_uses_export_name_when_server_lacks_go() {
    for (flags, zeroes) in [(1u16, 124), (3, 0)] {
        let mut client = Client::new(plain());
        client.give(&[b"NBDMAGICIHAVEOPT", &flags.to_be_bytes()[..]].concat()).unwrap();
        client.answer(OptionCode::GO, ReplyCode::ERR_UNSUP, b"").unwrap();
        assert_eq!(client.out, option(OptionCode::EXPORT_NAME, b"disk"));
        let mut answer = [&4096u64.to_be_bytes()[..], &[0, 3]].concat();
        answer.extend(vec![0; zeroes]);
        let (last, most) = answer.split_last().unwrap();
        let waiting = client.handshake.advance(most, &mut Vec::new());
        assert_eq!(waiting, Ok((0, ClientProgress::NeedMore)), "without the last byte {last}");
        let Ok(ClientProgress::Connected(session)) = client.give(&answer) else {
            panic!("no session")
        };
        assert_eq!((session.facts.size_bytes, session.facts.flags.0), (4096, 3));
    }
}

#[test]
fn client_never_uses_export_name_with_extended_headers() {
    let mut client = Client::greeted(ClientConfig { extended: true, ..plain() });
    client.answer(OptionCode::EXTENDED_HEADERS, ReplyCode::ACK, b"").unwrap();
    let refused = client.answer(OptionCode::GO, ReplyCode::ERR_UNSUP, b"");
    assert!(matches!(refused, Err(ProtocolError::Refused { .. })), "{refused:?}");
    assert_eq!(client.out, option(OptionCode::ABORT, &[]));
}

#[test]
fn client_aborts_and_reports_refused_option() {
    let abort = option(OptionCode::ABORT, &[]);
    let cases = [
        (OptionCode::STRUCTURED_REPLY, ReplyCode::ERR_TLS_REQD, "; connect with TLS"),
        (OptionCode::STRUCTURED_REPLY, ReplyCode::ERR_SHUTDOWN, "; connect again later"),
    ];
    for (code, kind, hint) in cases {
        let mut client = Client::greeted(ClientConfig::connect("disk"));
        let error = client.answer(code, kind, b"first\nsecond\x1b").unwrap_err();
        assert_eq!(client.out, abort);
        assert_eq!(
            error.to_string(),
            format!("the server refused {code} with {kind}: first second {hint}")
        );
        assert_eq!(client.give(b""), Err(ProtocolError::HandshakeOver));
    }
    for (goal, code) in [(Goal::Describe, OptionCode::INFO), (Goal::List, OptionCode::LIST)] {
        let mut client = Client::greeted(ClientConfig { goal, ..plain() });
        let refused = client.answer(code, ReplyCode::ERR_POLICY, b"");
        assert!(matches!(refused, Err(ProtocolError::Refused { .. })), "{refused:?}");
        assert_eq!(client.out, abort);
    }
}

#[test]
fn client_rejects_reply_to_other_option() {
    let client = || Client::greeted(plain());
    let other_option = client().answer(OptionCode::LIST, ReplyCode::ACK, b"");
    assert_eq!(invalid(other_option), "option of an option reply");
    for kind in [ReplyCode::SERVER, ReplyCode::META_CONTEXT, ReplyCode(0), ReplyCode(77)] {
        let step = client().answer(OptionCode::GO, kind, b"\0\0\0\0");
        assert_eq!(invalid(step), "kind of an option reply");
    }
    let no_size = client().answer(OptionCode::GO, ReplyCode::ACK, b"");
    assert_eq!(invalid(no_size), "option reply");
    let magic = client().give(&[7; 20]);
    assert!(matches!(magic, Err(ProtocolError::BadMagic { what: "option reply", .. })));
}

#[test]
fn client_rejects_malformed_export_info() {
    let info = |data: &[u8]| Client::greeted(plain()).answer(OptionCode::GO, ReplyCode::INFO, data);
    let good = export_info();
    for data in [&[][..], &[0], &good[..11], &[&good[..], &[0]].concat(), b"\0\x03", &[0, 3, 1]] {
        assert_eq!(invalid(info(data)), "length of an NBD_REP_INFO", "{data:?}");
    }
    let sizes = |min: u32, preferred: u32, max: u32| {
        let fields = [min, preferred, max].map(u32::to_be_bytes).concat();
        info(&[&[0, 3][..], &fields].concat())
    };
    assert_eq!(sizes(512, 4096, 1 << 20), Ok(ClientProgress::Advanced));
    assert!(invalid(sizes(3, 4096, 1 << 20)).contains("block size"));
    let text = |what| Err(ProtocolError::BadText(what));
    assert_eq!(info(b"\0\x01\xff"), text("name of the export"));
    assert_eq!(info(b"\0\x02a\0b"), text("description"));
    assert_eq!(info(b"\x12\x34anything"), Ok(ClientProgress::Advanced), "unknown is ignored");
}

#[test]
fn client_rejects_export_list_entry_with_invalid_text() {
    let entry = |data: &[u8]| {
        let mut client = Client::greeted(ClientConfig { goal: Goal::List, ..plain() });
        client.answer(OptionCode::LIST, ReplyCode::SERVER, data)
    };
    assert_eq!(entry(b"\0\0\0\x01awords"), Ok(ClientProgress::Advanced));
    let wrong = Err(ProtocolError::BadText("entry of the export list"));
    for data in [&b""[..], b"\0\0\0\x02a", b"\0\0\0\x01\xff", b"\xff\xff\xff\xffa"] {
        assert_eq!(entry(data), wrong, "{data:?}");
    }
}
