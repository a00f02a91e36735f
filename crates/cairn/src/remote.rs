//! The facts about an export of any NBD server, for `cairn info`.

use std::rc::Rc;
use std::time::Duration;

use block::env::Socket;
use block::units::format_exact;
use block::{Env, Memory};
use net::nbd::{Target, secure};
use serde::Serialize;
use wire::nbd::TransmissionFlags as Flags;
use wire::nbd::{ClientConfig, ClientHandshake, ClientProgress, ReplyStyle, Session};

use crate::exit::{Exit, Failure, Result};

/// Longest wait for all replies of the server. A slower server is too slow for a disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// Length of the receive buffer in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The facts about an export of an NBD server.
#[derive(Serialize)]
pub struct RemoteView {
    uri: String,
    export: String,
    description: String,
    size_bytes: u64,
    block_size_bytes: u32,
    preferred_block_size_bytes: u32,
    max_payload_bytes: u32,
    replies: &'static str,
    flags: Vec<&'static str>,
    contexts: Vec<String>,
}

/// Connects to the NBD server at the URI `text`, reads the facts about the export, and disconnects.
pub async fn facts(env: &Env, text: &str) -> Result<RemoteView> {
    let target = Target::of(text).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let tls = target.client(env)?;
    let address = &target.address;
    let asked = async {
        let mut socket = env.connect(address).await?;
        let session = negotiate(env, &mut socket, tls.as_ref(), &target.export).await;
        socket.shutdown();
        session
    };
    let Some(session) = env.within(PATIENCE, asked).await else {
        let why = format!("the server at {address} did not answer within {} s", PATIENCE.as_secs());
        return Err(Failure::new(Exit::Io, why));
    };
    Ok(RemoteView::new(text, session?))
}

async fn negotiate(
    env: &Env,
    socket: &mut Rc<dyn Socket>,
    tls: Option<&tls::Client>,
    export: &str,
) -> Result<Session> {
    let config = ClientConfig { tls: tls.is_some(), ..ClientConfig::connect(export) };
    let lost = |why: String| Failure::new(Exit::Io, why);
    let mut handshake = ClientHandshake::new(config).map_err(|error| lost(error.to_string()))?;
    let (mut input, mut out) = (Vec::new(), Vec::new());
    loop {
        let advanced = handshake.advance(&input, &mut out);
        send(env, &**socket, &mut out).await?;
        let (used, progress) = advanced.map_err(|error| refused(&error))?;
        input.drain(..used);
        match progress {
            ClientProgress::StartTls => {
                *socket = secure(env, socket, tls, input.len(), Memory::Free).await?;
                handshake.secured(&mut out);
            }
            ClientProgress::Connected(session) => return Ok(*session),
            ClientProgress::NeedMore => {
                let outcome = socket.recv(env.buf(CHUNK_BYTES)?).await;
                match (outcome.result?, outcome.buf) {
                    (n, Some(buf)) if n > 0 => input.extend_from_slice(&buf.read()[..n]),
                    _ => return Err(lost("the NBD server closed the connection".to_owned())),
                }
            }
            _ => {}
        }
    }
}

fn refused(error: &wire::nbd::ProtocolError) -> Failure {
    let exit = match error {
        wire::nbd::ProtocolError::Refused { .. } => Exit::NotFound,
        _ => Exit::Io,
    };
    Failure::new(exit, error.to_string())
}

async fn send(env: &Env, socket: &dyn Socket, out: &mut Vec<u8>) -> Result<()> {
    while !out.is_empty() {
        let buf = env.buf(out.len().min(CHUNK_BYTES))?;
        buf.write().copy_from_slice(&out[..buf.len()]);
        let sent = socket.send(vec![buf]).await.result?;
        if sent == 0 {
            fail!(Io, "the NBD server closed the connection");
        }
        out.drain(..sent);
    }
    Ok(())
}

impl RemoteView {
    fn new(uri: &str, session: Session) -> Self {
        let Session { style, contexts, facts } = session;
        let known = [
            (Flags::READ_ONLY, "read-only"),
            (Flags::FLUSH, "flush"),
            (Flags::FUA, "fua"),
            (Flags::TRIM, "trim"),
            (Flags::WRITE_ZEROES, "write-zeroes"),
            (Flags::FAST_ZERO, "fast-zero"),
            (Flags::DF, "df"),
            (Flags::CACHE, "cache"),
            (Flags::MULTI_CONN, "multi-conn"),
            (Flags::ROTATIONAL, "rotational"),
        ];
        let flags = known.into_iter().filter(|(flag, _)| facts.flags.has(*flag));
        Self {
            uri: uri.to_owned(),
            export: facts.name,
            description: facts.description,
            size_bytes: facts.size_bytes,
            block_size_bytes: facts.blocks.min(),
            preferred_block_size_bytes: facts.blocks.preferred(),
            max_payload_bytes: facts.blocks.max(),
            replies: match style {
                ReplyStyle::Simple => "simple",
                ReplyStyle::Structured => "structured",
                ReplyStyle::Extended => "extended",
            },
            flags: flags.map(|(_, name)| name).collect(),
            contexts: contexts.into_iter().map(|context| context.name).collect(),
        }
    }

    /// Returns the facts as text for people.
    pub fn text(&self) -> String {
        let name = if self.export.is_empty() { "(default)" } else { &self.export };
        let contexts =
            if self.contexts.is_empty() { "none".to_owned() } else { self.contexts.join(", ") };
        let mut text = format!(
            "{name}  {}, blocks of {}, best {}, at most {}, {} replies\n",
            format_exact(self.size_bytes),
            self.block_size_bytes,
            self.preferred_block_size_bytes,
            self.max_payload_bytes,
            self.replies,
        );
        if !self.description.is_empty() {
            text.push_str(&format!("  description: {}\n", self.description));
        }
        text.push_str(&format!("  can: {}\n  contexts: {contexts}\n", self.flags.join(", ")));
        text
    }
}
