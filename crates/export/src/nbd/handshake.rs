//! The handshake of a connection: bounded in time, in options and in bytes.

use std::rc::Rc;

use block::Env;
use block::env::Socket;
use wire::nbd::{ExportEntry, ExportFacts, Exports, ServerHandshake, ServerProgress, Session};
use wire::stream::Inbox;

use super::Export;

/// The exports of a server, as the codec asks for them.
pub struct Offer<'a>(pub &'a [Rc<Export>]);

impl Exports for Offer<'_> {
    fn list(&self) -> Vec<ExportEntry> {
        let entry = |export: &Rc<Export>| ExportEntry {
            name: export.name.clone(),
            description: export.description.clone(),
        };
        self.0.iter().map(entry).collect()
    }

    /// The empty name asks for the only export, if there is only one.
    fn find(&self, name: &str) -> Option<ExportFacts> {
        let export = match (name, self.0) {
            ("", [only]) => only,
            _ => self.0.iter().find(|export| export.name == name)?,
        };
        Some(export.facts())
    }
}

/// Leads the handshake; `None` if the client left.
///
/// # Errors
/// Why the connection must be closed, in words.
pub async fn shake(
    env: &Env,
    socket: &dyn Socket,
    exports: &dyn Exports,
    inbox: &mut Inbox,
) -> Result<Option<Session>, String> {
    let mut handshake = ServerHandshake::new(wire::nbd::Limits::default());
    let mut out = Vec::new();
    ServerHandshake::greeting(&mut out);
    loop {
        send(env, socket, &mut out).await?;
        let advanced = handshake.advance(&inbox.bytes(), exports, &mut out);
        let (used, progress) = match advanced {
            Ok(advanced) => advanced,
            Err(error) => {
                // What was answered so far tells the client why.
                send(env, socket, &mut out).await?;
                return Err(error.to_string());
            }
        };
        inbox.take(used);
        match progress {
            ServerProgress::Ready(session) => {
                send(env, socket, &mut out).await?;
                return Ok(Some(*session));
            }
            ServerProgress::Aborted => {
                send(env, socket, &mut out).await?;
                return Ok(None);
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
