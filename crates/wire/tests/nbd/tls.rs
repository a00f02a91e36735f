//! Tests of the NBD option STARTTLS in the client's and the server's handshake.

use wire::nbd::{
    ClientConfig, ClientHandshake, ClientProgress, Limits, OptionCode, ProtocolError, ReplyCode,
    ServerHandshake, ServerProgress,
};

use crate::pair::{TwoExports, info_data, now, option, reply};

struct Forced(ServerHandshake);

impl Forced {
    fn new() -> Self {
        let mut forced = Self(ServerHandshake::with_tls(Limits::default()));
        forced.give(&3u32.to_be_bytes()).unwrap();
        forced
    }

    fn give(&mut self, input: &[u8]) -> Result<(ServerProgress, Vec<u8>), ProtocolError> {
        let mut out = Vec::new();
        let (used, progress) = now(self.0.advance(input, &TwoExports, &mut out))?;
        assert_eq!(used, input.len());
        Ok((progress, out))
    }

    /// Sends one option to the server. Returns the progress of the handshake, and the type of the only reply.
    fn kind(&mut self, code: OptionCode, data: &[u8]) -> (ServerProgress, ReplyCode) {
        let (progress, out) = self.give(&option(code, data)).unwrap();
        (progress, ReplyCode(u32::from_be_bytes(out[12..16].try_into().unwrap())))
    }
}

#[test]
fn server_with_tls_refuses_other_options_before_starttls() {
    let go = info_data("first", &[]);
    let asked: [(OptionCode, &[u8]); 6] = [
        (OptionCode::LIST, b""),
        (OptionCode::GO, &go),
        (OptionCode::INFO, &go),
        (OptionCode::STRUCTURED_REPLY, b""),
        (OptionCode::EXTENDED_HEADERS, b""),
        (OptionCode(77), b"what"),
    ];
    for (code, data) in asked {
        let told = (ServerProgress::Advanced, ReplyCode::ERR_TLS_REQD);
        assert_eq!(Forced::new().kind(code, data), told, "{code:?}");
    }
    let data = (ServerProgress::Advanced, ReplyCode::ERR_INVALID);
    assert_eq!(Forced::new().kind(OptionCode::STARTTLS, b"x"), data);
    assert_eq!(
        Forced::new().kind(OptionCode::ABORT, b""),
        (ServerProgress::Aborted, ReplyCode::ACK)
    );
    let named = Forced::new().give(&option(OptionCode::EXPORT_NAME, b"first"));
    assert!(matches!(named, Err(ProtocolError::NotServed(_))), "{named:?}");
}

#[test]
fn server_restarts_option_phase_after_tls_handshake() {
    let mut forced = Forced::new();
    let started = (ServerProgress::StartTls, ReplyCode::ACK);
    assert_eq!(forced.kind(OptionCode::STARTTLS, b""), started);
    // A client that goes on without TLS gets no reply.
    let plain = forced.give(&option(OptionCode::LIST, b""));
    assert_eq!(plain, Err(ProtocolError::HandshakeOver));

    let mut forced = Forced::new();
    assert_eq!(forced.kind(OptionCode::STARTTLS, b""), started);
    forced.0.secured();
    let twice = (ServerProgress::Advanced, ReplyCode::ERR_INVALID);
    assert_eq!(forced.kind(OptionCode::STARTTLS, b""), twice);
    let list = forced.kind(OptionCode::LIST, b"");
    assert_eq!(list, (ServerProgress::Advanced, ReplyCode::SERVER));
}

fn client() -> ClientHandshake {
    let config = ClientConfig { tls: true, ..ClientConfig::connect("first") };
    let mut client = ClientHandshake::new(config).unwrap();
    let (mut greeting, mut out) = (Vec::new(), Vec::new());
    ServerHandshake::greeting(&mut greeting);
    client.advance(&greeting, &mut out).unwrap();
    assert_eq!(out[4..], option(OptionCode::STARTTLS, b""), "the first thing that is asked for");
    client
}

#[test]
fn client_with_tls_fails_when_server_refuses_starttls() {
    let answer = |kind| {
        let (mut client, mut out) = (client(), Vec::new());
        let step = client.advance(&reply(OptionCode::STARTTLS, kind, b""), &mut out);
        (client, step, out)
    };
    let (mut secured, step, mut out) = answer(ReplyCode::ACK);
    assert_eq!(step, Ok((20, ClientProgress::StartTls)));
    assert!(out.is_empty(), "nothing is said in plain");
    secured.secured(&mut out);
    assert_eq!(out, option(OptionCode::STRUCTURED_REPLY, b""));
    for kind in [ReplyCode::ERR_UNSUP, ReplyCode::ERR_POLICY, ReplyCode::ERR_INVALID] {
        let (_, step, out) = answer(kind);
        assert!(matches!(step, Err(ProtocolError::Refused { .. })), "{step:?}");
        assert_eq!(out, option(OptionCode::ABORT, b""), "{kind:?}");
    }
}
