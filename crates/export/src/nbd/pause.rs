//! Pausing a server: the server begins no more requests, answers all begun requests, and leaves every connection
//! between two requests. Then this server or that of another process continues the connections.

use std::rc::Rc;
use std::time::Duration;

use block::OpenMode;
use block::env::Socket;
use wire::nbd::handed::{HANDED_MAX, HANDED_MAX_BYTES, Handed, Shown, encoded_bytes};
use wire::stream::Inbox;

use super::Export;
use super::server::{Paused, Server};

/// Time in which running handshakes may end after a server was paused.
const HANDSHAKES: Duration = Duration::from_millis(200);

/// Time in which clients may read their last replies after a server was paused.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that the state for the next process may need besides its connections.
const STATE_BYTES: usize = 64;

/// The room that remains for connections in the state for the next process.
struct StateSpace {
    connections: usize,
    bytes: usize,
}

impl StateSpace {
    fn new() -> Self {
        Self { connections: HANDED_MAX, bytes: HANDED_MAX_BYTES - STATE_BYTES }
    }

    /// Takes the room for one more connection of `bytes` bytes. Returns `false`, and takes nothing, if there is too
    /// little room.
    fn takes(&mut self, bytes: usize) -> bool {
        let fits = self.connections > 0 && bytes <= self.bytes;
        if fits {
            self.connections -= 1;
            self.bytes -= bytes;
        }
        fits
    }
}

impl Server {
    /// Makes the server accept no more clients and begin no more requests, and waits up to `limit` until every begun
    /// request is answered. Returns whether all are answered. A connection that cannot be handed over, such as one
    /// with TLS, is closed between two requests. A connection whose client does not read its replies is closed too.
    pub async fn pause(&self, limit: Duration) -> bool {
        let inner = &self.0;
        inner.pausing.set(true);
        inner.listeners.borrow().iter().for_each(|listener| listener.call_off());
        let open = inner.peers.all();
        open.iter().for_each(|connection| connection.leave());
        if !self.all_quiet(&open, limit).await {
            return false;
        }
        // A client that finishes its handshake now begins no requests.
        let negotiated = inner.waiting.until(|| inner.shaking.get() == 0);
        if inner.env.within(HANDSHAKES, negotiated).await.is_none() {
            inner.cancels.all().iter().for_each(|cancel| cancel.cancel());
        }
        if inner.env.within(LINGER, self.all_closed()).await.is_none() {
            inner.peers.all().iter().for_each(|connection| connection.close());
            return inner.env.within(LINGER, self.all_closed()).await.is_some();
        }
        true
    }

    /// Removes the paused connections from the server and returns those that fit into the state for the next process,
    /// with their sockets. The other connections are closed, and the log has their number. `identity` identifies the
    /// graph.
    pub fn hand_over(&self, identity: u64) -> Vec<(Handed, Rc<dyn Socket>)> {
        let (mut all, mut room, mut closed) = (Vec::new(), StateSpace::new(), 0_usize);
        for Paused { export, socket, session, unread, .. } in self.0.paused.take() {
            let shown = Shown::of(&export.facts());
            let identity = export.identity(identity);
            let one = Handed { identity, session, shown, unread };
            match room.takes(encoded_bytes(&one)) {
                true => all.push((one, socket)),
                false => {
                    socket.shutdown();
                    closed += 1;
                }
            }
        }
        if closed > 0 {
            self.0.log.line(&format!(
                "{closed} connections are closed at the restart: the next process takes over at most {HANDED_MAX}, \
                 and {} MiB of their requests. Next: the clients connect again",
                HANDED_MAX_BYTES >> 20
            ));
        }
        all
    }

    /// Serves a connection that an earlier process has handed over, if its export has not changed.
    ///
    /// # Errors
    /// The reason, in words: the export does not exist any more, or has another device, size or flags. Then the
    /// connection is closed.
    pub async fn take_over(
        &self,
        one: Handed,
        socket: Rc<dyn Socket>,
        identity: u64,
    ) -> Result<(), String> {
        let name = one.session.facts.name.clone();
        let found = self.0.catalog.find(&name, OpenMode::Existing).await;
        let shows = |export: &Export| {
            Shown::of(&export.facts()) == one.shown && one.identity == export.identity(identity)
        };
        let taken = match found {
            Err(error) => Err(error.to_string()),
            Ok(None) => Err(format!("the export {name} no longer exists")),
            Ok(Some(export)) if !export.is_for_all() => {
                Err(format!("the export {name} is now restricted to certain clients"))
            }
            Ok(Some(export)) if !shows(&export) => {
                Err(format!("the device, size or flags of the export {name} have changed"))
            }
            Ok(Some(export)) => Ok(export),
        };
        match taken {
            Ok(export) => {
                let Handed { session, unread, .. } = one;
                self.resume(Paused { export, socket, session, names: Vec::new(), unread });
                Ok(())
            }
            Err(why) => {
                socket.shutdown();
                Err(why)
            }
        }
    }

    /// Makes a paused server accept clients again, and continue all paused connections.
    pub fn go_on(&self) {
        let inner = &self.0;
        inner.pausing.set(false);
        inner.waiting.wake();
        for paused in inner.paused.take() {
            self.resume(paused);
        }
    }

    fn resume(&self, paused: Paused) {
        let cancel = self.count();
        let server = self.clone();
        self.0.env.spawn("an NBD connection", async move {
            let socket = paused.socket.clone();
            let inbox = Inbox::small(server.0.env.pool()).await;
            let ended = match inbox {
                Ok(inbox) => server.transmit(paused, inbox, cancel).await,
                Err(error) => Err(error.to_string()),
            };
            server.ended(&*socket, &socket.peer(), ended);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handover_refuses_oversized_connection_and_accepts_next() {
        let mut room = StateSpace::new();
        let taken = [1 << 20, HANDED_MAX_BYTES, 1 << 20].map(|bytes| room.takes(bytes));
        assert_eq!(taken, [true, false, true]);
        assert_eq!((0..2 * HANDED_MAX).filter(|_| room.takes(100)).count(), HANDED_MAX - 2);
    }
}
