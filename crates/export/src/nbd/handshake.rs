//! The handshake of a connection: bounded in time, in options and in bytes.

use std::rc::Rc;

use block::Env;
use block::env::Socket;
use wire::nbd::{ExportEntry, ExportFacts, Exports, ServerHandshake, ServerProgress, Session};
use wire::stream::Inbox;

use super::Export;

/// The exports that a client may see, as the codec asks for them.
pub struct Offer<'a> {
    pub exports: &'a [Rc<Export>],
    /// Whom the client's certificate names.
    pub names: &'a [String],
}

impl Offer<'_> {
    fn open(&self) -> impl Iterator<Item = &Rc<Export>> {
        self.exports.iter().filter(|export| export.is_for(self.names))
    }
}

impl Exports for Offer<'_> {
    fn list(&self) -> Vec<ExportEntry> {
        let entry = |export: &Rc<Export>| ExportEntry {
            name: export.name.clone(),
            description: export.description.clone(),
        };
        self.open().map(entry).collect()
    }

    /// The empty name asks for the only export, if there is only one.
    fn find(&self, name: &str) -> Option<ExportFacts> {
        let found = match self.exports {
            [_] if name.is_empty() => self.open().next(),
            _ => self.open().find(|export| export.name == name),
        };
        found.map(|export| export.facts())
    }
}

/// Tells whoever is one too many.
pub struct Full(pub usize);

impl Exports for Full {
    fn list(&self) -> Vec<ExportEntry> {
        Vec::new()
    }

    fn find(&self, _: &str) -> Option<ExportFacts> {
        None
    }

    fn refusal(&self) -> Option<String> {
        Some(format!("the server has all of its {} connections; try again later", self.0))
    }
}

/// What a client finds at the address where it connects.
pub struct ListenerPolicy<'a> {
    pub exports: &'a [Rc<Export>],
    /// So many connections are all; this one is too many.
    pub full: Option<usize>,
    /// TLS, and nothing without it.
    pub tls: Option<&'a tls::Server>,
}

impl ListenerPolicy<'_> {
    fn begin(&self) -> ServerHandshake {
        let limits = wire::nbd::Limits::default();
        match self.tls {
            Some(_) => ServerHandshake::with_tls(limits),
            None => ServerHandshake::new(limits),
        }
    }
}

/// Leads the handshake. Returns the session and the names in the client's certificate, or `None` if the client left.
/// After TLS `socket` is the one above it.
///
/// # Errors
/// Why the connection must be closed, in words.
pub async fn shake(
    env: &Env,
    socket: &mut Rc<dyn Socket>,
    door: &ListenerPolicy<'_>,
    inbox: &mut Inbox,
) -> Result<Option<(Session, Vec<String>)>, String> {
    let mut handshake = door.begin();
    let mut names = Vec::new();
    let mut out = Vec::new();
    ServerHandshake::greeting(&mut out);
    loop {
        send(env, &**socket, &mut out).await?;
        let offer = Offer { exports: door.exports, names: &names };
        let full = door.full.map(Full);
        let exports: &dyn Exports = full.as_ref().map_or(&offer, |full| full);
        let advanced = handshake.advance(&inbox.bytes(), exports, &mut out);
        let (used, progress) = match advanced {
            Ok(advanced) => advanced,
            Err(error) => {
                // What was answered so far tells the client why.
                send(env, &**socket, &mut out).await?;
                return Err(error.to_string());
            }
        };
        inbox.take(used);
        match progress {
            ServerProgress::Ready(session) => {
                send(env, &**socket, &mut out).await?;
                return Ok(Some((*session, names)));
            }
            ServerProgress::Aborted => {
                send(env, &**socket, &mut out).await?;
                return Ok(None);
            }
            ServerProgress::StartTls => {
                // Whoever stands in between could have put it there, to be taken for the client's.
                if !inbox.is_empty() {
                    return Err("bytes came after STARTTLS before it was answered".to_owned());
                }
                send(env, &**socket, &mut out).await?;
                let tls = door.tls.expect("the codec agrees to it only where it is required");
                let secured = tls.accept(env, socket.clone()).await;
                let secured = secured.map_err(|error| error.to_string())?;
                (*socket, names) = (secured.socket, secured.names);
                handshake.secured();
            }
            ServerProgress::NeedMore => {
                let outcome = socket.recv(inbox.room()).await;
                match outcome.result.map_err(|error| error.to_string())? {
                    0 => return Ok(None),
                    n => inbox.arrived(n),
                }
            }
            _ => {}
        }
    }
}

async fn send(env: &Env, socket: &dyn Socket, out: &mut Vec<u8>) -> Result<(), String> {
    let mut rest = out.as_slice();
    while !rest.is_empty() {
        let buf = env.buf(rest.len().min(4096)).map_err(|error| error.to_string())?;
        buf.write().copy_from_slice(&rest[..buf.len()]);
        let sent = socket.send(vec![buf]).await.result.map_err(|error| error.to_string())?;
        if sent == 0 {
            return Err("the client takes no more".to_owned());
        }
        rest = &rest[sent..];
    }
    out.clear();
    Ok(())
}
