//! The handshakes of an NBD server and an NBD client, between which a test carries the bytes.

use std::task::{Context, Poll, Waker};

pub use testkit::nbd::{info_data, meta_data};
use wire::nbd::{
    BlockSizes, ClientConfig, ClientHandshake, ClientProgress, ExportEntry, ExportFacts, Exports,
    Limits, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionCode, ProtocolError, ReplyCode,
    ServerHandshake, ServerProgress, Session, TransmissionFlags,
};

/// The transmission flags of an export with every feature: writable, and not on a rotating disk.
pub const ALL_FLAGS: TransmissionFlags = TransmissionFlags(0b1101_1110_1100);

/// The exports of a server under test: two exports. The empty name selects the first export.
pub struct TwoExports;

pub fn facts(name: &str) -> ExportFacts {
    ExportFacts {
        name: name.to_owned(),
        description: format!("the {name}"),
        size_bytes: 1 << 20,
        flags: ALL_FLAGS,
        blocks: BlockSizes::new(512, 4096, 1 << 16).unwrap(),
        contexts: vec!["base:allocation".to_owned(), "x-cairn:dirty".to_owned()],
    }
}

impl Exports for TwoExports {
    async fn list(&self) -> Result<Vec<ExportEntry>, String> {
        let entry =
            |name: &str| ExportEntry { name: name.to_owned(), description: format!("the {name}") };
        Ok(vec![entry("first"), entry("second")])
    }

    async fn open(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        self.look(name).await
    }

    async fn look(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        Ok(match name {
            "" | "first" => Some(facts("first")),
            "second" => Some(facts("second")),
            _ => None,
        })
    }
}

/// Polls a future of a codec once, which must be ready, and returns its result.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits for nothing"),
    }
}

/// The handshake of a server that has received the client's flags, and the bytes that the server has sent.
pub struct Server {
    pub handshake: ServerHandshake,
    pub out: Vec<u8>,
}

pub type ServerStep = Result<(usize, ServerProgress), ProtocolError>;

impl Server {
    pub fn with(limits: Limits, client_flags: u32) -> Self {
        let mut server = Self { handshake: ServerHandshake::new(limits), out: Vec::new() };
        let step = server.give(&client_flags.to_be_bytes());
        assert_eq!(step, Ok((4, ServerProgress::Advanced)));
        server
    }

    pub fn new() -> Self {
        Self::with(Limits::default(), 3)
    }

    pub fn give(&mut self, input: &[u8]) -> ServerStep {
        now(self.handshake.advance(input, &TwoExports, &mut self.out))
    }

    /// Sends one option to the server, and returns the type and the data of each reply.
    pub fn ask(&mut self, code: OptionCode, data: &[u8]) -> Vec<(ReplyCode, Vec<u8>)> {
        let input = option(code, data);
        let (taken, progress) = self.give(&input).expect("the option is answered");
        assert_eq!(taken, input.len());
        assert_eq!(progress, ServerProgress::Advanced);
        replies(&std::mem::take(&mut self.out), code)
    }

    /// Sends one option to the server, and returns the types of the replies.
    pub fn kinds(&mut self, code: OptionCode, data: &[u8]) -> Vec<ReplyCode> {
        self.ask(code, data).into_iter().map(|(kind, _)| kind).collect()
    }

    /// Sends `NBD_OPT_GO` for the export `name` to the server, which must accept it. Returns the server's session.
    pub fn go(&mut self, name: &str) -> Session {
        match self.give(&option(OptionCode::GO, &info_data(name, &[]))) {
            Ok((_, ServerProgress::Ready(session))) => *session,
            other => panic!("GO came to {other:?}"),
        }
    }
}

pub fn option(code: OptionCode, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(code.0.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

pub fn reply(code: OptionCode, kind: ReplyCode, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(code.0.to_be_bytes());
    bytes.extend(kind.0.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Splits the bytes of a server's option replies, which must all be for the option `code`.
fn replies(mut bytes: &[u8], code: OptionCode) -> Vec<(ReplyCode, Vec<u8>)> {
    let word = |bytes: &[u8], at: usize| {
        u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    };
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(word(bytes, 8), code.0);
        let end = 20 + word(bytes, 16) as usize;
        found.push((ReplyCode(word(bytes, 12)), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    found
}

/// The results of the client's and the server's handshake; `None` for a handshake that has not ended.
pub struct Ends {
    pub client: Option<Result<ClientProgress, ProtocolError>>,
    pub server: Option<Result<ServerProgress, ProtocolError>>,
    /// Numbers of bytes that the client and the server have received and not taken.
    pub left: (usize, usize),
}

/// Runs the handshakes of a client and a server against each other, and carries `piece()` bytes at a time.
pub fn negotiate(config: ClientConfig, mut piece: impl FnMut() -> usize) -> Ends {
    let mut client = ClientHandshake::new(config).unwrap();
    let mut server = ServerHandshake::new(Limits::default());
    let mut ends = Ends { client: None, server: None, left: (0, 0) };
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut server_in, mut client_in) = (Vec::new(), Vec::new());
    ServerHandshake::greeting(&mut to_client);
    while ends.client.is_none() || ends.server.is_none() {
        let moved = transfer(&mut to_client, &mut client_in, piece())
            + transfer(&mut to_server, &mut server_in, piece());
        while ends.client.is_none() {
            match client.advance(&client_in, &mut to_server) {
                Ok((taken, progress)) => {
                    client_in.drain(..taken);
                    match progress {
                        ClientProgress::NeedMore => break,
                        ClientProgress::Advanced => {}
                        last => ends.client = Some(Ok(last)),
                    }
                }
                Err(error) => ends.client = Some(Err(error)),
            }
        }
        while ends.server.is_none() {
            match now(server.advance(&server_in, &TwoExports, &mut to_client)) {
                Ok((taken, progress)) => {
                    server_in.drain(..taken);
                    match progress {
                        ServerProgress::NeedMore => break,
                        ServerProgress::Advanced => {}
                        last => ends.server = Some(Ok(last)),
                    }
                }
                Err(error) => ends.server = Some(Err(error)),
            }
        }
        if moved == 0 && to_client.is_empty() && to_server.is_empty() {
            break;
        }
    }
    ends.left = (to_server.len() + server_in.len(), to_client.len() + client_in.len());
    ends
}

fn transfer(from: &mut Vec<u8>, to: &mut Vec<u8>, count: usize) -> usize {
    let count = count.min(from.len());
    to.extend(from.drain(..count));
    count
}
