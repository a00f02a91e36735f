//! Pausing a server: it begins nothing, answers all begun requests, and leaves every connection between two requests.
//! Then it, or another process, goes on with the connections.

use std::rc::{Rc, Weak};
use std::time::Duration;

use block::env::Socket;
use wire::nbd::handed::{HANDED_MAX, HANDED_MAX_BYTES, Handed, Shown, encoded_bytes};
use wire::stream::Inbox;

use super::server::{Paused, Server};

/// Time for handshakes under way to finish.
const HANDSHAKES: Duration = Duration::from_millis(200);

/// Time for clients to read their last replies.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes of a state besides its connections.
const STATE_BYTES: usize = 64;

/// The room that is left in a state.
struct Room {
    connections: usize,
    bytes: usize,
}

impl Room {
    fn new() -> Self {
        Self { connections: HANDED_MAX, bytes: HANDED_MAX_BYTES - STATE_BYTES }
    }

    /// Takes room for one more connection of so many bytes. Returns whether there was enough.
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
    /// Makes the server stop accepting clients and beginning requests, and waits up to `limit` until every begun
    /// request is answered. Returns whether they all are. A connection that cannot be handed over, such as one with
    /// TLS, is closed in order; so is one whose client does not read its replies.
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
            let cancels = inner.cancels.borrow().clone();
            cancels.iter().filter_map(Weak::upgrade).for_each(|cancel| cancel.cancel());
        }
        if inner.env.within(LINGER, self.all_closed()).await.is_none() {
            inner.peers.all().iter().for_each(|connection| connection.close());
            return inner.env.within(LINGER, self.all_closed()).await.is_some();
        }
        true
    }

    /// Takes the paused connections of the server, with their sockets, for another process: as many as fit into its
    /// state. The others are closed.
    pub fn hand_over(&self, identity: u64) -> Vec<(Handed, Rc<dyn Socket>)> {
        let (mut all, mut room) = (Vec::new(), Room::new());
        for Paused { export, socket, session, unread, .. } in self.0.paused.take() {
            let shown = Shown::of(&export.facts());
            let one = Handed { identity, session, shown, unread };
            match room.takes(encoded_bytes(&one)) {
                true => all.push((one, socket)),
                false => socket.shutdown(),
            }
        }
        all
    }

    /// Serves a connection that an earlier process has handed over.
    ///
    /// # Errors
    /// The reason, in words: the export does not exist any more, or shows another device. The connection is closed
    /// then.
    pub async fn take_over(
        &self,
        one: Handed,
        socket: Rc<dyn Socket>,
        identity: u64,
    ) -> Result<(), String> {
        let name = one.session.facts.name.clone();
        let found = self.0.catalog.find(&name).await;
        let shows = |facts| Shown::of(&facts) == one.shown && one.identity == identity;
        let taken = match found {
            Err(error) => Err(error.to_string()),
            Ok(None) => Err(format!("the export {name} no longer exists")),
            Ok(Some(export)) if !export.is_for_all() => {
                Err(format!("the export {name} is now restricted to certain clients"))
            }
            Ok(Some(export)) if !shows(export.facts()) => {
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

    /// Makes a paused server accept clients again, and resume all paused connections.
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
            let inbox = Inbox::new(server.0.env.pool()).await;
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
        let mut room = Room::new();
        let taken = [1 << 20, HANDED_MAX_BYTES, 1 << 20].map(|bytes| room.takes(bytes));
        assert_eq!(taken, [true, false, true]);
        assert_eq!((0..2 * HANDED_MAX).filter(|_| room.takes(100)).count(), HANDED_MAX - 2);
    }
}
