//! Hand-over of connections to the next process. `docs/formats/keeper.md` describes how they get there.

use std::rc::Rc;

use block::env::Socket;
use wire::nbd::handed::{self, HANDED_MAX_BYTES, Handed};

use super::Serving;
use crate::exit::{Failure, Result};
use crate::out;
use crate::registry::REGISTRY;

/// Name under which the state of all connections is left to the next process.
const STATE: &str = "connections";

/// Prefix of the name of a connection's socket, before its index in the state.
const SOCKET: &str = "connection/";

impl Serving {
    /// Returns a number that identifies the devices behind the exports.
    fn identity(&self) -> u64 {
        // Instructions for the first start do not change the identity.
        let mut spec = self.spec.borrow().clone();
        spec.forget_start_options(REGISTRY, |_| true);
        handed::identity(&self.live.now().planned.name, &spec.to_text())
    }

    /// Leaves all paused connections to the next process. If the supervisor cannot hold them, they end with this process.
    pub(super) fn leave_connections(&self) {
        let all = self.server.hand_over(self.identity());
        if all.is_empty() {
            return;
        }
        if let Err(failure) = self.entrust_connections(&all) {
            out::note(&format!(
                "warning: client connections are not handed over, and end with this process: {}",
                failure
            ));
            all.iter().for_each(|(_, socket)| socket.shutdown());
        }
    }

    /// Gives the sockets and their state to the supervisor. The state comes last: sockets without it are useless.
    fn entrust_connections(&self, all: &[(Handed, Rc<dyn Socket>)]) -> Result<()> {
        for (place, (_, socket)) in all.iter().enumerate() {
            socket.fdstore_put(&format!("{SOCKET}{place}"))?;
        }
        let states: Vec<Handed> = all.iter().map(|(state, _)| state.clone()).collect();
        self.env.fdstore_put(STATE, &handed::encode(&states))?;
        Ok(())
    }

    /// Takes over the connections that the previous process left. Closes those that do not fit any more; their clients
    /// reconnect and negotiate again.
    pub(super) async fn take_connections(&self) {
        let left = self.env.inherited();
        let is_one = |name: &&String| **name == STATE || name.starts_with(SOCKET);
        if !left.iter().any(|name| is_one(&name)) {
            return;
        }
        let closed = |why| {
            out::note(&format!("a client connection of the previous process is closed: {why}"))
        };
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
                out::note(&format!("warning: {error}"));
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
