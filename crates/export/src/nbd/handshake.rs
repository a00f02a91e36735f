//! The handshake of a server with a client: limited in time, in options and in bytes.

use std::cell::RefCell;
use std::rc::Rc;

use block::env::Socket;
use block::seeded::{self, Bug};
use block::{Env, OpenMode};
use wire::nbd::{ExportEntry, ExportFacts, Exports, ServerHandshake, ServerProgress};
use wire::stream::Inbox;

use super::server::Paused;
use super::{Export, facts};
use crate::{Catalog, Listed};

/// Number of volumes that one call to a catalogue lists.
const PAGE: usize = 256;

/// Most volumes that the server lists in one handshake.
const LISTED_MAX: usize = 65_536;

/// The rules for the clients of one listener of an NBD server.
pub struct ListenerPolicy<'a> {
    pub catalog: &'a dyn Catalog,
    /// The server's limit of connections if this client is above it; `None` if the client may be served.
    pub full: Option<usize>,
    /// The server's side of TLS; `None` if the listener works without TLS. With it, a client must begin TLS.
    pub tls: Option<&'a tls::Server>,
}

impl ListenerPolicy<'_> {
    /// Returns the error text for a client above the server's limit of connections; `None` if the client may be
    /// served.
    pub fn refusal(&self) -> Option<String> {
        let all = |most| {
            format!("the server has reached its limit of {most} connections; try again later")
        };
        self.full.map(all)
    }

    fn begin(&self) -> ServerHandshake {
        let limits = wire::nbd::Limits::default();
        match self.tls {
            Some(_) => ServerHandshake::with_tls(limits),
            None => ServerHandshake::new(limits),
        }
    }
}

/// The exports of a catalogue that one client may see, as the codec asks for them.
struct Offer<'a> {
    policy: &'a ListenerPolicy<'a>,
    /// The names in the client's certificate; empty without TLS.
    names: &'a [String],
    /// The volume that the last search of the client has found.
    found: &'a RefCell<Option<Rc<Export>>>,
}

impl Offer<'_> {
    /// Adds up to `most` volumes of the catalogue to `all`, the next ones after the last volume in `all`. Returns
    /// whether the catalogue has no more volumes.
    async fn page(&self, all: &mut Vec<Listed>, most: usize) -> Result<bool, String> {
        let after = all.last().map_or("", |listed| &listed.name);
        let page =
            self.policy.catalog.list(after, most).await.map_err(|error| error.to_string())?;
        let is_last = page.len() < most;
        all.extend(page);
        Ok(is_last)
    }

    /// Returns the name of the volume that a client calls `name`: the empty name means the only volume of the
    /// catalogue, if it has only one.
    async fn named(&self, name: &str) -> Result<Option<String>, String> {
        if !name.is_empty() {
            return Ok(Some(name.to_owned()));
        }
        let mut first = Vec::new();
        self.page(&mut first, 2).await?;
        let only = <[Listed; 1]>::try_from(first).ok();
        Ok(only.map(|[only]| only.name))
    }
}

impl Exports for Offer<'_> {
    async fn list(&self) -> Result<Vec<ExportEntry>, String> {
        let mut all = Vec::new();
        while !self.page(&mut all, PAGE).await? {
            if all.len() >= LISTED_MAX {
                return Err(format!(
                    "the server lists at most {LISTED_MAX} exports; open an export by its name"
                ));
            }
        }
        let open = all.into_iter().filter(|listed| listed.is_for(self.names));
        Ok(open.map(|Listed { name, description, .. }| ExportEntry { name, description }).collect())
    }

    async fn look(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        if seeded::on(Bug::InfoCreates) {
            return self.open(name).await;
        }
        let Some(name) = self.named(name).await? else { return Ok(None) };
        let looked = self.policy.catalog.look(&name).await.map_err(|error| error.to_string())?;
        let looked = looked.filter(|looked| looked.listed.is_for(self.names));
        Ok(looked.as_ref().map(facts))
    }

    async fn open(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        let Some(name) = self.named(name).await? else { return Ok(None) };
        let found = self.policy.catalog.find(&name, OpenMode::OrCreate).await;
        let found = found.map_err(|error| error.to_string())?;
        let found = found.filter(|export| export.is_for(self.names));
        let facts = found.as_ref().map(|export| export.facts());
        *self.found.borrow_mut() = found;
        Ok(facts)
    }

    fn refusal(&self) -> Option<String> {
        self.policy.refusal()
    }
}

/// Carries out the NBD handshake with a client. Returns the connection before its first request; `None` if the client
/// ended the handshake. If TLS has begun, `socket` becomes the TLS socket.
///
/// # Errors
/// The reason, in words, why the server must close the connection.
pub async fn negotiate(
    env: &Env,
    socket: &mut Rc<dyn Socket>,
    policy: &ListenerPolicy<'_>,
    inbox: &mut Inbox,
) -> Result<Option<Paused>, String> {
    let mut handshake = policy.begin();
    let (mut names, found) = (Vec::new(), RefCell::new(None));
    let mut out = Vec::new();
    ServerHandshake::greeting(&mut out);
    loop {
        send(env, &**socket, &mut out).await?;
        let offer = Offer { policy, names: &names, found: &found };
        let advanced = handshake.advance(&inbox.bytes(), &offer, &mut out).await;
        let (used, progress) = match advanced {
            Ok(advanced) => advanced,
            Err(error) => {
                // The replies so far give the client the reason.
                send(env, &**socket, &mut out).await?;
                return Err(error.to_string());
            }
        };
        inbox.take(used);
        match progress {
            ServerProgress::Ready(session) => {
                send(env, &**socket, &mut out).await?;
                let export = found.take().expect("the agreed export was found");
                let (socket, session, unread) = (socket.clone(), *session, Vec::new());
                return Ok(Some(Paused { export, socket, session, names, unread }));
            }
            ServerProgress::Aborted => {
                send(env, &**socket, &mut out).await?;
                return Ok(None);
            }
            ServerProgress::StartTls => {
                // An attacker in between could have inserted these bytes, to be taken for the client's.
                if !inbox.is_empty() {
                    return Err("the client sent bytes before the reply to STARTTLS".to_owned());
                }
                send(env, &**socket, &mut out).await?;
                let tls = policy.tls.expect("TLS is agreed only on an address with TLS");
                let secured = tls.accept(env, socket.clone()).await;
                let secured = secured.map_err(|error| error.to_string())?;
                (*socket, names) = (secured.socket, secured.names);
                handshake.secured();
            }
            ServerProgress::NeedMore => {
                inbox.renew(env.pool()).await.map_err(|error| error.to_string())?;
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
            return Err("the client closed the connection in the handshake".to_owned());
        }
        rest = &rest[sent..];
    }
    out.clear();
    Ok(())
}
