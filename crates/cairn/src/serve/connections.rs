//! Hand-over of connections to the next process. `docs/formats/keeper.md` defines how the supervisor holds them.

use std::rc::Rc;

use block::env::Socket;
use wire::nbd::handed::{self, HANDED_MAX_BYTES, Handed};

use super::Serving;
use crate::exit::{Failure, Result};
use crate::registry::REGISTRY;

/// Name under which the supervisor holds the state of all connections for the next process.
const STATE: &str = "connections";

/// Prefix of the name under which the supervisor holds the socket of a connection. The connection's index in the
/// state follows.
const SOCKET: &str = "connection/";

impl Serving {
    /// Returns a number that identifies the devices behind the exports. It differs if a device changes.
    fn identity(&self) -> u64 {
        // Instructions for the first start do not change the identity.
        let mut spec = self.spec.borrow().clone();
        spec.forget_start_options(REGISTRY, |_| true);
        handed::identity(&self.live.now().planned.name, &spec.to_text())
    }

    /// Passes all paused connections to the supervisor, for the next process. If the supervisor cannot hold them,
    /// they are closed.
    pub(super) fn leave_connections(&self) {
        let all = self.server.hand_over(self.identity());
        if all.is_empty() {
            return;
        }
        if let Err(failure) = self.entrust_connections(&all) {
            warn!("client connections are not handed over, and end with this process: {}", failure);
            all.iter().for_each(|(_, socket)| socket.shutdown());
        }
    }

    /// Passes the sockets and their state to the supervisor. The state is passed last, because sockets without a
    /// state are useless.
    fn entrust_connections(&self, all: &[(Handed, Rc<dyn Socket>)]) -> Result<()> {
        for (place, (_, socket)) in all.iter().enumerate() {
            socket.fdstore_put(&format!("{SOCKET}{place}"))?;
        }
        let states: Vec<Handed> = all.iter().map(|(state, _)| state.clone()).collect();
        self.env.fdstore_put(STATE, &handed::encode(&states))?;
        Ok(())
    }

    /// Takes over the connections of the previous process from the supervisor. A connection whose export has changed
    /// is closed; its client can connect again.
    pub(super) async fn take_connections(&self) {
        let left = self.env.inherited();
        let is_one = |name: &&String| **name == STATE || name.starts_with(SOCKET);
        if !left.iter().any(|name| is_one(&name)) {
            return;
        }
        let closed = |why| note!("a client connection of the previous process is closed: {why}");
        match self.states() {
            Ok(states) => {
                for (place, state) in states.into_iter().enumerate() {
                    self.take_connection(place, state).await.unwrap_or_else(closed);
                }
            }
            Err(failure) => closed(failure.to_string()),
        }
        for name in self.env.inherited().iter().filter(is_one) {
            if let Err(error) = self.env.fdstore_remove(name) {
                warn!("{error}");
            }
        }
    }

    fn states(&self) -> Result<Vec<Handed>> {
        let bytes = self.env.take_bytes(STATE, HANDED_MAX_BYTES)?;
        handed::decode(&bytes)
            .map_err(|bad| Failure::new(crate::exit::Exit::Other, bad.to_string()))
    }

    async fn take_connection(&self, place: usize, state: Handed) -> Result<(), String> {
        let socket = self.env.take_socket(&format!("{SOCKET}{place}"));
        let socket = socket.map_err(|error| error.to_string())?;
        self.server.take_over(state, socket, self.identity()).await
    }
}
