//! The client's side of the handshake.

use super::bytes::{Reader, text, truncated};
use super::constants::{
    BASE_ALLOCATION, ClientFlags, EXPORT_NAME_ZEROES, HandshakeFlags, INIT_MAGIC, InfoCode,
    MAX_STRING_BYTES, OLDSTYLE_MAGIC, OPTION_MAGIC, OptionCode, ReplyCode,
};
use super::error::{ProtocolError, Result, invalid, require_magic, require_within};
use super::export::{Context, ExportEntry, ExportFacts, ReplyStyle, Session};
use super::option::{
    InfoRequest, MetaRequest, OPTION_REPLY_HEADER_BYTES, ReplyHeader, parse_server, put_option,
    take_info,
};

/// Length in bytes of the longest data of one option reply: two strings of greatest length, with their lengths.
const MAX_OPTION_REPLY_BYTES: usize = 16 << 10;

/// Most bytes of option replies that a client accepts in one handshake. They are enough for a list of tens of
/// thousands of exports.
pub const MAX_HANDSHAKE_REPLY_BYTES: usize = 4 << 20;

/// The purpose of a client's handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// The client enters the transmission phase of the export.
    Connect,
    /// The client reads the facts about the export, and ends the connection.
    Describe,
    /// The client reads the list of the server's exports, and ends the connection.
    List,
}

/// The settings of a client's handshake. If the server refuses a feature, the handshake continues without the
/// feature; the [`Session`] has the features in use. Only the goal and TLS are required.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Name of the export to use; empty for the server's default export.
    pub export: String,
    /// Purpose of the client's handshake.
    pub goal: Goal,
    /// Whether the client requests structured replies.
    pub structured: bool,
    /// Whether the client requests extended headers.
    pub extended: bool,
    /// Full names of the metadata contexts that the client requests.
    pub contexts: Vec<String>,
    /// Whether the client requires TLS before any other option.
    pub tls: bool,
}

impl ClientConfig {
    /// Returns the settings of a client that connects to `export` with every feature that this crate supports.
    pub fn connect(export: impl Into<String>) -> Self {
        Self {
            export: export.into(),
            goal: Goal::Connect,
            structured: true,
            extended: true,
            contexts: vec![BASE_ALLOCATION.to_owned()],
            tls: false,
        }
    }
}

/// The result of a call of [`ClientHandshake::advance`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClientProgress {
    /// The input ends inside a message of the server. The caller must call again with the same bytes and more.
    NeedMore,
    /// One message of the server was parsed. The caller must send the output, and call again with the rest of the
    /// input.
    Advanced,
    /// The server has agreed to TLS. The caller must check that no input is left, start TLS on the stream, and call
    /// [`ClientHandshake::secured`].
    StartTls,
    /// The handshake has ended. The rest of the stream has replies of this session.
    Connected(Box<Session>),
    /// The server has sent the facts about the export. The caller must send the output, and close the connection.
    Described(Box<ExportFacts>),
    /// The server has sent the list of its exports. The caller must send the output, and close the connection.
    Listed(Vec<ExportEntry>),
}

/// The client's side of a fixed newstyle handshake of NBD.
///
/// The handshake requests structured replies, extended headers and metadata contexts, in this order and only if
/// configured, and the goal last. After an error the caller must send the output before it closes the connection: the
/// output ends the session as the protocol requires.
#[derive(Debug)]
pub struct ClientHandshake {
    config: ClientConfig,
    /// The options that the client has not sent yet, the next one last.
    plan: Vec<OptionCode>,
    phase: Phase,
    reply_bytes: usize,
    no_zeroes: bool,
    structured: bool,
    extended: bool,
    contexts: Vec<Context>,
    facts: ExportFacts,
    has_size: bool,
    entries: Vec<ExportEntry>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Greeting,
    /// The client waits for a reply to this option.
    Reply(OptionCode),
    /// The client waits for the reply to `NBD_OPT_EXPORT_NAME`, which has no header.
    ExportName,
    /// Client and server have agreed to TLS, which does not protect the stream yet.
    StartTls,
    Over,
}

impl ClientHandshake {
    /// Creates a handshake for `config`. Fails if the protocol cannot transfer a name in it.
    pub fn new(config: ClientConfig) -> Result<Self> {
        for name in config.contexts.iter().chain([&config.export]) {
            require_within("length of a name", name.len(), MAX_STRING_BYTES)?;
            text(name.as_bytes()).ok_or(ProtocolError::BadText("name"))?;
        }
        let mut plan = vec![match config.goal {
            Goal::Connect => OptionCode::GO,
            Goal::Describe => OptionCode::INFO,
            Goal::List => OptionCode::LIST,
        }];
        if config.goal != Goal::List {
            let ask = |wanted: bool, option| wanted.then_some(option);
            plan.extend(ask(!config.contexts.is_empty(), OptionCode::SET_META_CONTEXT));
            plan.extend(ask(config.extended, OptionCode::EXTENDED_HEADERS));
            plan.extend(ask(config.structured, OptionCode::STRUCTURED_REPLY));
        }
        plan.extend(config.tls.then_some(OptionCode::STARTTLS));
        let facts = ExportFacts { name: config.export.clone(), ..ExportFacts::default() };
        Ok(Self {
            config,
            plan,
            phase: Phase::Greeting,
            reply_bytes: 0,
            no_zeroes: false,
            structured: false,
            extended: false,
            contexts: Vec::new(),
            facts,
            has_size: false,
            entries: Vec::new(),
        })
    }

    /// Parses at most one message of the server at the start of `input`, and appends the next message of the client
    /// to `out`. Returns the number of bytes taken from `input`, and the progress of the handshake.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, ClientProgress)> {
        let result = match self.phase {
            Phase::Greeting => self.take_greeting(input, out),
            Phase::Reply(option) => self.take_reply(option, input, out),
            Phase::ExportName => Ok(self.take_export_name(input)),
            Phase::StartTls | Phase::Over => Err(ProtocolError::HandshakeOver),
        };
        match result {
            Ok((_, ClientProgress::NeedMore | ClientProgress::Advanced)) => {}
            Ok((_, ClientProgress::StartTls)) => self.phase = Phase::StartTls,
            _ => self.phase = Phase::Over,
        }
        result
    }

    /// Appends the next option of the client to `out`. The caller calls it when TLS protects the stream.
    ///
    /// # Panics
    /// If the last progress was not [`ClientProgress::StartTls`].
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        assert!(matches!(self.phase, Phase::StartTls), "client and server have not agreed to TLS");
        self.send_next(out);
    }

    /// Parses the server's greeting (section "Newstyle negotiation"). Fails for any handshake but fixed newstyle.
    fn take_greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientProgress)> {
        let mut reader = Reader::new(input);
        let Some(magic) = reader.u64() else { return Ok((0, ClientProgress::NeedMore)) };
        require_magic("greeting", magic, INIT_MAGIC)?;
        let Some(magic) = reader.u64() else { return Ok((0, ClientProgress::NeedMore)) };
        if magic == OLDSTYLE_MAGIC {
            return Err(ProtocolError::NotFixedNewstyle("oldstyle"));
        }
        require_magic("newstyle greeting", magic, OPTION_MAGIC)?;
        let Some(flags) = reader.u16().map(HandshakeFlags) else {
            return Ok((0, ClientProgress::NeedMore));
        };
        if !flags.has(HandshakeFlags::FIXED_NEWSTYLE) {
            return Err(ProtocolError::NotFixedNewstyle("plain newstyle"));
        }
        let mut answer = ClientFlags::FIXED_NEWSTYLE;
        if flags.has(HandshakeFlags::NO_ZEROES) {
            answer |= ClientFlags::NO_ZEROES;
            self.no_zeroes = true;
        }
        out.extend_from_slice(&answer.0.to_be_bytes());
        self.send_next(out);
        Ok((18, ClientProgress::Advanced))
    }

    /// Appends the next option of the plan to `out`. The last one is the goal, which is never left out.
    fn send_next(&mut self, out: &mut Vec<u8>) {
        while let Some(option) = self.plan.pop() {
            let export = &self.config.export;
            let data = match option {
                // Contexts cannot be selected without structured replies.
                OptionCode::SET_META_CONTEXT if !self.structured => continue,
                OptionCode::SET_META_CONTEXT => MetaRequest::data(export, &self.config.contexts),
                OptionCode::GO | OptionCode::INFO => InfoRequest::data(
                    export,
                    &[InfoCode::NAME, InfoCode::DESCRIPTION, InfoCode::BLOCK_SIZE],
                ),
                _ => Vec::new(),
            };
            put_option(out, option, &data);
            self.phase = Phase::Reply(option);
            return;
        }
    }

    fn take_reply(
        &mut self,
        option: OptionCode,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientProgress)> {
        let Some(header) = ReplyHeader::parse(input)? else {
            return Ok((0, ClientProgress::NeedMore));
        };
        if header.option != option {
            let rule = "must be the option that was sent";
            return Err(invalid("option of an option reply", header.option.0, rule));
        }
        require_within("length of an option reply", header.len, MAX_OPTION_REPLY_BYTES)?;
        let total = OPTION_REPLY_HEADER_BYTES + header.len;
        let spent = self.reply_bytes + total;
        require_within("length of all option replies", spent, MAX_HANDSHAKE_REPLY_BYTES)?;
        let Some(data) = input.get(OPTION_REPLY_HEADER_BYTES..total) else {
            return Ok((0, ClientProgress::NeedMore));
        };
        self.reply_bytes = spent;
        let progress = match header.reply {
            ReplyCode::ACK => self.acknowledged(option, out)?,
            code if code.is_error() => self.refused(option, code, data, out)?,
            code => self.take_item(option, code, data)?,
        };
        Ok((total, progress))
    }

    /// Parses a reply to `option` that is not the last one.
    fn take_item(
        &mut self,
        option: OptionCode,
        code: ReplyCode,
        data: &[u8],
    ) -> Result<ClientProgress> {
        match (option, code) {
            (OptionCode::GO | OptionCode::INFO, ReplyCode::INFO) => {
                let info = take_info(&mut self.facts, data)?;
                self.has_size |= info == InfoCode::EXPORT;
            }
            (OptionCode::SET_META_CONTEXT, ReplyCode::META_CONTEXT) => self.take_context(data)?,
            (OptionCode::LIST, ReplyCode::SERVER) => self.entries.push(parse_server(data)?),
            _ => {
                let rule = "must be a reply to the option that was sent";
                return Err(invalid("kind of an option reply", code.0, rule));
            }
        }
        Ok(ClientProgress::Advanced)
    }

    /// Parses the reply with one metadata context. Accepts each requested context once, which limits their number.
    fn take_context(&mut self, data: &[u8]) -> Result<()> {
        let mut reader = Reader::new(data);
        let (Some(id), Some(name)) = (reader.u32(), text(reader.rest())) else {
            return Err(ProtocolError::BadText("metadata context"));
        };
        let asked = self.config.contexts.iter().any(|asked| asked == name);
        let again = self.contexts.iter().any(|known| known.id == id || known.name == name);
        if !asked || again {
            let rule = "must belong to exactly one requested context";
            return Err(invalid("number of a metadata context", id, rule));
        }
        self.contexts.push(Context { id, name: name.to_owned() });
        Ok(())
    }

    fn acknowledged(&mut self, option: OptionCode, out: &mut Vec<u8>) -> Result<ClientProgress> {
        match option {
            OptionCode::STARTTLS => return Ok(ClientProgress::StartTls),
            OptionCode::STRUCTURED_REPLY => self.structured = true,
            OptionCode::EXTENDED_HEADERS => {
                self.structured = true;
                self.extended = true;
            }
            OptionCode::LIST => {
                put_option(out, OptionCode::ABORT, &[]);
                return Ok(ClientProgress::Listed(std::mem::take(&mut self.entries)));
            }
            OptionCode::GO | OptionCode::INFO if !self.has_size => {
                let rule = "must come after an NBD_INFO_EXPORT";
                return Err(invalid("option reply", ReplyCode::ACK.0, rule));
            }
            OptionCode::GO => return Ok(self.connected()),
            OptionCode::INFO => {
                put_option(out, OptionCode::ABORT, &[]);
                let facts = std::mem::take(&mut self.facts);
                return Ok(ClientProgress::Described(Box::new(facts)));
            }
            _ => {}
        }
        self.send_next(out);
        Ok(ClientProgress::Advanced)
    }

    /// Handles the refusal of an option: continues without the feature, uses `NBD_OPT_EXPORT_NAME`, which every
    /// server supports, or fails.
    fn refused(
        &mut self,
        option: OptionCode,
        code: ReplyCode,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientProgress> {
        // A client with `tls` does not go on without TLS.
        let last = matches!(
            option,
            OptionCode::STARTTLS | OptionCode::GO | OptionCode::INFO | OptionCode::LIST
        );
        let fatal = matches!(code, ReplyCode::ERR_TLS_REQD | ReplyCode::ERR_SHUTDOWN);
        if option == OptionCode::GO && code == ReplyCode::ERR_UNSUP && !self.extended {
            put_option(out, OptionCode::EXPORT_NAME, self.config.export.as_bytes());
            self.phase = Phase::ExportName;
            return Ok(ClientProgress::Advanced);
        }
        if last || fatal {
            put_option(out, OptionCode::ABORT, &[]);
            return Err(ProtocolError::Refused { option, reply: code, message: words(data) });
        }
        if option == OptionCode::SET_META_CONTEXT {
            // Contexts before the error do not count.
            self.contexts.clear();
        }
        self.send_next(out);
        Ok(ClientProgress::Advanced)
    }

    fn take_export_name(&mut self, input: &[u8]) -> (usize, ClientProgress) {
        let mut reader = Reader::new(input);
        let zeroes = if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES };
        let fields = (reader.u64(), reader.u16(), reader.bytes(zeroes));
        let (Some(size), Some(flags), Some(_)) = fields else {
            return (0, ClientProgress::NeedMore);
        };
        self.facts.size_bytes = size;
        self.facts.flags.0 = flags;
        (10 + zeroes, self.connected())
    }

    fn connected(&mut self) -> ClientProgress {
        let style = ReplyStyle::agreed(self.structured, self.extended);
        let contexts = std::mem::take(&mut self.contexts);
        let facts = std::mem::take(&mut self.facts);
        ClientProgress::Connected(Box::new(Session { style, contexts, facts }))
    }
}

/// Returns a message of the server for people: without control characters, and no longer than a string of the
/// protocol.
fn words(data: &[u8]) -> String {
    let message = String::from_utf8_lossy(data);
    let shown = truncated(&message, MAX_STRING_BYTES).chars();
    shown.map(|c| if c.is_control() { ' ' } else { c }).collect()
}
