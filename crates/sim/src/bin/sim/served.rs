//! The NBD server of a trial, between the simulated clients and the graph.

use block::Env;
use block::env::Address;
use engine::{Engine, Portal};
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use sim::draw::Stream;
use sim::{Client, Door, Remote};

use crate::trial::Failure;

/// Length in bytes of the pieces into which the NBD server divides longer trims and writes of zeroes. So short that
/// most trims and writes of zeroes have several pieces.
const PIECE_BYTES: u64 = 8 << 10;

/// Returns the limits (such as lengths) of the NBD servers in all trials.
pub fn limits() -> Limits {
    Limits { piece_bytes: PIECE_BYTES, ..Limits::default() }
}

/// Returns the clients' access to the export behind `portal`: through a new NBD server with `connections` connections,
/// or directly into the engine if `connections` is 0. `start` is the number of the process's start.
pub fn serve(
    env: &Env,
    engine: &Engine,
    portal: Portal,
    connections: usize,
    start: u64,
) -> Result<(Door, Option<Server>), Failure> {
    let export = ExportList::new([Export::new(env, engine, &portal, "")]);
    let (name, client) = (portal.name().to_owned(), Client::of(engine, portal));
    if connections == 0 {
        return Ok((Door::Graph(client), None));
    }
    let server = Server::new(env, export, limits(), |_| {});
    let at = Address::Unix("/socket".into());
    server.serve(env.listen(&at).map_err(|error| Failure::new(error.to_string()))?);
    let draw = Stream::new(env.random("connections"), "connections", start);
    let remote = Remote::new(env, &at, &name, client.info().clone(), connections, draw);
    Ok((Door::Nbd(remote), Some(server)))
}
