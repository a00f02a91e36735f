//! The server's side of the handshake.

use super::bytes::{Reader, text};
use super::constants::{
    ClientFlags, EXPORT_NAME_ZEROES, HandshakeFlags, INIT_MAGIC, MAX_STRING_BYTES, OPTION_MAGIC,
    OptionCode, ReplyCode,
};
use super::error::{self, ProtocolError, Result, over_limit, require_magic, require_within};
use super::export::{Context, ExportFacts, Exports, ReplyStyle, Session};
use super::option::{
    InfoRequest, MetaRequest, OPTION_HEADER_BYTES, put_infos, put_refusal, put_reply, put_server,
};

/// Limits on the input of a client during its handshake, when the server does not know yet whether the client may
/// connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most options in one handshake. A usual client sends about five.
    pub options: u32,
    /// Most bytes of option data in one handshake. They are enough for several options with names of greatest length.
    pub option_bytes: u32,
    /// Most bytes of refused option data that are skipped in one handshake. So a client that sends too much data gets
    /// an error reply and can continue.
    pub skipped_bytes: u32,
    /// Most queries in one request for metadata contexts. An export has only a few contexts.
    pub queries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { options: 32, option_bytes: 64 << 10, skipped_bytes: 256 << 10, queries: 64 }
    }
}

/// The result of a call of [`ServerHandshake::advance`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ServerProgress {
    /// The input ends inside a message of the client. The caller must call again with the same bytes and more.
    NeedMore,
    /// One message of the client was handled. The caller must send the output, and call again with the rest of the
    /// input.
    Advanced,
    /// The handshake has ended. The caller must send the output. The rest of the stream has requests of this session.
    Ready(Box<Session>),
    /// The server has agreed to TLS. The caller must send the output, check that no input is left, start TLS on the
    /// stream, and call [`ServerHandshake::secured`].
    StartTls,
    /// The client has ended the handshake. The caller must send the output, and close the connection.
    Aborted,
}

/// The state of TLS on a connection of a server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ServerTls {
    /// The connection cannot begin TLS: `NOTLS` of the specification.
    #[default]
    Absent,
    /// The client must begin TLS before any other option: `FORCEDTLS` of the specification.
    Required,
    /// TLS protects the connection.
    Done,
}

/// The server's side of a fixed newstyle handshake of NBD.
///
/// The handshake stores no bytes. The caller keeps the input that was not taken: at most one option, which is a
/// header and [`Limits::option_bytes`]. One call handles at most one message, so the caller can stop reading from a
/// client that does not read its replies.
#[derive(Debug)]
pub struct ServerHandshake {
    limits: Limits,
    tls: ServerTls,
    options: u32,
    option_bytes: u32,
    skipped_bytes: u32,
    phase: Phase,
    no_zeroes: bool,
    agreed: Agreed,
}

/// The features on which client and server have agreed. The begin of TLS must discard exactly these (section "Option
/// types", `NBD_OPT_STARTTLS`).
#[derive(Debug, Default)]
struct Agreed {
    structured: bool,
    extended: bool,
    /// The canonical name of the export whose metadata contexts the client has selected, and these contexts.
    contexts: Option<(String, Vec<Context>)>,
}

#[derive(Debug)]
enum Phase {
    ClientFlags,
    Option,
    Skip(u32),
    /// Client and server have agreed to TLS, which does not protect the stream yet.
    StartTls,
    Over,
}

/// The reaction of the server to one option.
enum Answer {
    Ack,
    Secure,
    Refuse(ReplyCode, String),
    Enter(Box<Session>),
    Leave,
}

use Answer::{Ack, Enter, Leave, Refuse, Secure};

fn invalid(words: &str) -> Answer {
    Refuse(ReplyCode::ERR_INVALID, words.to_owned())
}

fn unsupported(words: &str) -> Answer {
    Refuse(ReplyCode::ERR_UNSUP, words.to_owned())
}

/// Whether an option only asks for the properties of an export, or opens the export.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Look,
    Open,
}

/// Returns the facts about the export called `name`; or the refusal for the client.
async fn find(exports: &impl Exports, name: &str, access: Access) -> Result<ExportFacts, Answer> {
    if let Some(why) = exports.refusal() {
        return Err(Refuse(ReplyCode::ERR_POLICY, why));
    }
    let unknown = |why| Refuse(ReplyCode::ERR_UNKNOWN, why);
    let found = match access {
        Access::Look => exports.look(name).await,
        Access::Open => exports.open(name).await,
    };
    found
        .map_err(unknown)?
        .ok_or_else(|| unknown(format!("the server has no export named {name:?}")))
}

impl ServerHandshake {
    /// Creates a server's handshake without TLS.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            tls: ServerTls::Absent,
            options: 0,
            option_bytes: 0,
            skipped_bytes: 0,
            phase: Phase::ClientFlags,
            no_zeroes: false,
            agreed: Agreed::default(),
        }
    }

    /// Creates a server's handshake that requires `NBD_OPT_STARTTLS` before any other option.
    pub fn with_tls(limits: Limits) -> Self {
        Self { tls: ServerTls::Required, ..Self::new(limits) }
    }

    /// Records that TLS protects the stream. Discards all agreed features, because a third party could have sent the
    /// options before.
    ///
    /// # Panics
    /// If the last progress was not [`ServerProgress::StartTls`].
    pub fn secured(&mut self) {
        assert!(matches!(self.phase, Phase::StartTls), "client and server have not agreed to TLS");
        self.phase = Phase::Option;
        self.tls = ServerTls::Done;
        self.agreed = Agreed::default();
    }

    /// Appends the server's greeting to `out`. The server sends it before it receives anything.
    pub fn greeting(out: &mut Vec<u8>) {
        let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
        out.extend_from_slice(&INIT_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&flags.0.to_be_bytes());
    }

    /// Handles at most one message of the client at the start of `input`, and appends the reply to `out`. It waits
    /// only for `exports`. Returns the number of bytes taken from `input`, and the progress of the handshake.
    ///
    /// # Errors
    /// A violation of the protocol, or the refusal of an option that has no error reply. The connection must be
    /// closed.
    pub async fn advance(
        &mut self,
        input: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Result<(usize, ServerProgress)> {
        let result = match self.phase {
            Phase::ClientFlags => self.take_client_flags(input),
            Phase::Option => self.take_option(input, exports, out).await,
            Phase::Skip(left) => Ok(self.skip(input, left)),
            Phase::StartTls | Phase::Over => Err(ProtocolError::HandshakeOver),
        };
        let ends = matches!(result, Ok((_, ServerProgress::Ready(_) | ServerProgress::Aborted)));
        if ends || result.is_err() {
            self.phase = Phase::Over;
        }
        result
    }

    /// Parses the client flags. A flag that is unknown, or that the server did not offer, ends the connection
    /// (section "Client flags").
    fn take_client_flags(&mut self, input: &[u8]) -> Result<(usize, ServerProgress)> {
        let Some(bits) = Reader::new(input).u32() else {
            return Ok((0, ServerProgress::NeedMore));
        };
        let flags = ClientFlags(bits);
        if flags.without(ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES) != ClientFlags::NONE
        {
            return Err(error::invalid("client flags field", bits, "must have no bit but 0 and 1"));
        }
        if !flags.has(ClientFlags::FIXED_NEWSTYLE) {
            return Err(ProtocolError::NotFixedNewstyle("plain newstyle"));
        }
        self.no_zeroes = flags.has(ClientFlags::NO_ZEROES);
        self.phase = Phase::Option;
        Ok((4, ServerProgress::Advanced))
    }

    async fn take_option(
        &mut self,
        input: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Result<(usize, ServerProgress)> {
        let mut reader = Reader::new(input);
        let Some(magic) = reader.u64() else { return Ok((0, ServerProgress::NeedMore)) };
        require_magic("option", magic, OPTION_MAGIC)?;
        let (Some(option), Some(len)) = (reader.u32(), reader.u32()) else {
            return Ok((0, ServerProgress::NeedMore));
        };
        let option = OptionCode(option);
        let options = self.options.saturating_add(1);
        require_within("number of options", options as usize, self.limits.options as usize)?;
        if len > self.limits.option_bytes - self.option_bytes {
            return self.refuse_size(option, len, out);
        }
        let Some(data) = reader.bytes(len as usize) else {
            return Ok((0, ServerProgress::NeedMore));
        };
        self.options = options;
        self.option_bytes += len;
        let progress = match self.answer(option, data, exports, out).await? {
            Ack => {
                put_reply(out, option, ReplyCode::ACK, &[]);
                ServerProgress::Advanced
            }
            Refuse(code, words) => {
                put_refusal(out, option, code, &words);
                ServerProgress::Advanced
            }
            Secure => {
                put_reply(out, option, ReplyCode::ACK, &[]);
                self.phase = Phase::StartTls;
                ServerProgress::StartTls
            }
            Enter(session) => ServerProgress::Ready(session),
            Leave => {
                put_reply(out, option, ReplyCode::ACK, &[]);
                ServerProgress::Aborted
            }
        };
        Ok((OPTION_HEADER_BYTES + len as usize, progress))
    }

    /// Refuses an option whose data would exceed the limit, and skips its data.
    fn refuse_size(
        &mut self,
        option: OptionCode,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<(usize, ServerProgress)> {
        let limit = self.limits.option_bytes;
        if option == OptionCode::EXPORT_NAME {
            return Err(over_limit("length of the export name", len, limit));
        }
        let skipped = self.skipped_bytes.saturating_add(len);
        require_within("skipped data", skipped as usize, self.limits.skipped_bytes as usize)?;
        let words = format!(
            "the option data has {len} bytes after {} earlier bytes; the limit of a handshake is \
             {limit}",
            self.option_bytes
        );
        put_refusal(out, option, ReplyCode::ERR_TOO_BIG, &words);
        self.options = self.options.saturating_add(1);
        self.skipped_bytes = skipped;
        self.phase = Phase::Skip(len);
        Ok((OPTION_HEADER_BYTES, ServerProgress::Advanced))
    }

    fn skip(&mut self, input: &[u8], left: u32) -> (usize, ServerProgress) {
        let passed = input.len().min(left as usize);
        let left = left - passed as u32;
        if left == 0 {
            self.phase = Phase::Option;
            return (passed, ServerProgress::Advanced);
        }
        self.phase = Phase::Skip(left);
        (passed, ServerProgress::NeedMore)
    }

    async fn answer(
        &mut self,
        option: OptionCode,
        data: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        if self.tls == ServerTls::Required {
            return plain(option, data);
        }
        let answer = match option {
            OptionCode::EXPORT_NAME => return self.export_name(data, exports, out).await,
            // Its data is ignored, as the specification requires.
            OptionCode::ABORT => Leave,
            OptionCode::LIST => list(data, exports, out).await,
            OptionCode::INFO | OptionCode::GO => self.info(option, data, exports, out).await,
            OptionCode::STRUCTURED_REPLY => self.structured_reply(data),
            OptionCode::EXTENDED_HEADERS => self.extended_headers(data),
            OptionCode::LIST_META_CONTEXT => self.list_contexts(data, exports, out).await,
            OptionCode::SET_META_CONTEXT => self.set_contexts(data, exports, out).await,
            OptionCode::STARTTLS if !data.is_empty() => invalid("STARTTLS has no data"),
            OptionCode::STARTTLS if self.tls == ServerTls::Done => invalid("TLS is active already"),
            OptionCode::STARTTLS => unsupported("this address has no TLS"),
            _ => unsupported("this server does not know the option"),
        };
        Ok(answer)
    }

    /// Handles `NBD_OPT_EXPORT_NAME` (section "Option types"). The option has no error reply, so every refusal closes
    /// the connection.
    async fn export_name(
        &mut self,
        data: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        if self.agreed.extended {
            let rule = "must be NBD_OPT_GO once extended headers are agreed";
            return Err(error::invalid("option", OptionCode::EXPORT_NAME.0, rule));
        }
        require_within("length of the export name", data.len(), MAX_STRING_BYTES)?;
        let name = text(data).ok_or(ProtocolError::BadText("name of the export"))?;
        if let Some(why) = exports.refusal() {
            return Err(ProtocolError::NotServed(why));
        }
        let found = exports.open(name).await.map_err(ProtocolError::NotServed)?;
        let facts = found.ok_or_else(|| ProtocolError::UnknownExport(name.to_owned()))?;
        let session = self.session(facts);
        out.extend_from_slice(&session.facts.size_bytes.to_be_bytes());
        out.extend_from_slice(&session.facts.flags.0.to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(Enter(Box::new(session)))
    }

    async fn info(
        &mut self,
        option: OptionCode,
        data: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Answer {
        let Some(request) = InfoRequest::parse(data) else {
            return invalid("a length or the name in the option data is invalid");
        };
        let access = if option == OptionCode::GO { Access::Open } else { Access::Look };
        let facts = match find(exports, request.name, access).await {
            Ok(facts) => facts,
            Err(answer) => return answer,
        };
        put_infos(out, option, &request, &facts, self.agreed.structured);
        if option == OptionCode::INFO {
            return Ack;
        }
        put_reply(out, option, ReplyCode::ACK, &[]);
        Enter(Box::new(self.session(facts)))
    }

    fn structured_reply(&mut self, data: &[u8]) -> Answer {
        if !data.is_empty() {
            return invalid("STRUCTURED_REPLY takes no data");
        }
        if self.agreed.extended {
            let words = "extended headers are agreed already and include structured replies";
            return Refuse(ReplyCode::ERR_EXT_HEADER_REQD, words.to_owned());
        }
        if self.agreed.structured {
            return invalid("structured replies are agreed already");
        }
        self.agreed.structured = true;
        Ack
    }

    fn extended_headers(&mut self, data: &[u8]) -> Answer {
        if !data.is_empty() {
            return invalid("EXTENDED_HEADERS takes no data");
        }
        if self.agreed.extended {
            return invalid("extended headers are agreed already");
        }
        self.agreed.structured = true;
        self.agreed.extended = true;
        Ack
    }

    async fn list_contexts(
        &self,
        data: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Answer {
        let (request, facts) = match self.meta_request(data, exports).await {
            Ok(both) => both,
            Err(error) => return error,
        };
        for name in &facts.contexts {
            let asked = request.count == 0 || request.queries().any(|query| lists(query, name));
            if asked {
                // In a list the number is reserved and SHOULD be zero.
                put_context(out, OptionCode::LIST_META_CONTEXT, 0, name);
            }
        }
        Ack
    }

    /// Replaces the selected metadata contexts, even if the option fails (section "Option types").
    async fn set_contexts(
        &mut self,
        data: &[u8],
        exports: &impl Exports,
        out: &mut Vec<u8>,
    ) -> Answer {
        self.agreed.contexts = None;
        let (request, facts) = match self.meta_request(data, exports).await {
            Ok(both) => both,
            Err(error) => return error,
        };
        let numbered = (0..).zip(&facts.contexts);
        let selected: Vec<Context> = numbered
            .filter(|(_, name)| request.queries().any(|query| query == *name))
            .map(|(id, name)| Context { id, name: name.clone() })
            .collect();
        for context in &selected {
            put_context(out, OptionCode::SET_META_CONTEXT, context.id, &context.name);
        }
        self.agreed.contexts = Some((facts.name, selected));
        Ack
    }

    /// Parses and checks an option that lists or selects metadata contexts.
    async fn meta_request<'a>(
        &self,
        data: &'a [u8],
        exports: &impl Exports,
    ) -> Result<(MetaRequest<'a>, ExportFacts), Answer> {
        if !self.agreed.structured {
            return Err(invalid("metadata contexts need structured replies first"));
        }
        let request = MetaRequest::parse(data).ok_or_else(|| {
            invalid("a length, the name or a query in the option data is invalid")
        })?;
        if request.count > self.limits.queries {
            let words = format!(
                "the option has {} queries; the limit is {}",
                request.count, self.limits.queries
            );
            return Err(Refuse(ReplyCode::ERR_TOO_BIG, words));
        }
        let facts = find(exports, request.name, Access::Look).await?;
        Ok((request, facts))
    }

    /// Creates the session. The selected metadata contexts are used only if they were selected for the same export
    /// (section "Metadata querying").
    fn session(&mut self, mut facts: ExportFacts) -> Session {
        let agreed = std::mem::take(&mut self.agreed);
        let contexts = match agreed.contexts {
            Some((name, contexts)) if name == facts.name => contexts,
            _ => Vec::new(),
        };
        facts.flags = facts.wire_flags(agreed.structured);
        let style = ReplyStyle::agreed(agreed.structured, agreed.extended);
        Session { style, contexts, facts }
    }
}

/// Handles an option that the client has sent before TLS, if TLS is required.
fn plain(option: OptionCode, data: &[u8]) -> Result<Answer> {
    match option {
        OptionCode::STARTTLS if data.is_empty() => Ok(Secure),
        OptionCode::STARTTLS => Ok(invalid("STARTTLS has no data")),
        OptionCode::ABORT => Ok(Leave),
        // This option has no error reply.
        OptionCode::EXPORT_NAME => {
            Err(ProtocolError::NotServed("TLS is required: send STARTTLS".to_owned()))
        }
        _ => Ok(Refuse(ReplyCode::ERR_TLS_REQD, "TLS is required: send STARTTLS".to_owned())),
    }
}

async fn list(data: &[u8], exports: &impl Exports, out: &mut Vec<u8>) -> Answer {
    if !data.is_empty() {
        return invalid("LIST takes no data");
    }
    if let Some(why) = exports.refusal() {
        return Refuse(ReplyCode::ERR_POLICY, why);
    }
    match exports.list().await {
        Ok(entries) => entries.iter().for_each(|entry| put_server(out, entry)),
        Err(why) => return Refuse(ReplyCode::ERR_UNKNOWN, why),
    }
    Ack
}

/// Whether a query of a list matches the metadata context `name`: the query is the name, or its namespace with a
/// colon.
fn lists(query: &str, name: &str) -> bool {
    query == name || (query.find(':') == Some(query.len() - 1) && name.starts_with(query))
}

fn put_context(out: &mut Vec<u8>, option: OptionCode, id: u32, name: &str) {
    put_reply(out, option, ReplyCode::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
}
