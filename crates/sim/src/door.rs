//! How simulated clients send requests to a volume: directly into the engine, or over NBD connections to a server.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::env::Address;
use block::{Buf, Env, Error, Info, Op, Result};
use net::nbd::Client as Connection;
use wire::nbd::{ClientConfig, Command, CommandFlags, TransmissionFlags};

use crate::client::{Answer, Client};
use crate::draw::Stream;

/// Pause of a simulated client after a failed try to connect to the NBD server.
const REST: Duration = Duration::from_millis(1);

/// How a simulated client sends requests to a volume. A clone uses the same connections.
#[derive(Clone)]
pub enum Door {
    /// The client sends requests directly into the engine, without an NBD server.
    Graph(Client),
    /// The client sends requests over NBD connections to a server.
    Nbd(Rc<Remote>),
}

/// The result of a client's request, with or without a reply.
#[derive(Debug)]
pub struct Reply {
    /// The operation with its buffers, and its result.
    pub answer: Answer,
    /// Whether the connection broke before the reply came, so that the client cannot know the result.
    pub lost: bool,
}

/// Several NBD connections of a simulated client to one export. The client replaces a broken connection by a new one.
pub struct Remote {
    env: Env,
    address: Address,
    export: String,
    info: Info,
    connections: RefCell<Vec<Option<Connection>>>,
    draw: Stream,
}

impl Door {
    /// Returns the facts (size, block size, limits) about the volume.
    pub fn info(&self) -> &Info {
        match self {
            Self::Graph(client) => client.info(),
            Self::Nbd(remote) => &remote.info,
        }
    }

    /// Waits until the engine has room for a request, sends the request, and waits for the reply.
    pub async fn send(&self, op: Op) -> Reply {
        match self {
            Self::Graph(client) => {
                client.room(&op).await;
                Reply { answer: client.send(op).await, lost: false }
            }
            Self::Nbd(remote) => remote.send(op).await,
        }
    }

    /// Waits until the engine has room for a request, and sends the request without waiting for the reply.
    pub async fn abandon(&self, op: Op) {
        match self {
            Self::Graph(client) => {
                client.room(&op).await;
                drop(client.send(op));
            }
            Self::Nbd(remote) => {
                // Without a connection it is never sent, which the client cannot notice.
                let connection = remote.any();
                let Some(connection) = connection else { return };
                if let Some(sent) = Sent::of(&op, &connection) {
                    drop(sent.start(&connection));
                }
            }
        }
    }
}

/// A client's request as one NBD command.
struct Sent {
    command: Command,
    flags: CommandFlags,
    start: u64,
    len: u64,
    buf: Option<Buf>,
}

impl Sent {
    /// Returns the NBD command for the operation `op`, with flags that the server has offered on `connection`; `None`
    /// for block status, which is no single command.
    fn of(op: &Op, connection: &Connection) -> Option<Self> {
        let offers = |flag| connection.session().facts.flags.has(flag);
        let (command, buf) = match op {
            Op::Read { into, .. } => (Command::Read, Some(into.clone())),
            Op::Write { data, .. } => (Command::Write, Some(data.clone())),
            // Without `TRIM`: writing zeros is a valid result of a discard.
            Op::Discard { .. } if offers(TransmissionFlags::TRIM) => (Command::Trim, None),
            Op::WriteZeroes { .. } | Op::Discard { .. } => (Command::WriteZeroes, None),
            Op::Flush => (Command::Flush, None),
            Op::Status { .. } => return None,
        };
        let mut flags = if op.fua() { CommandFlags::FUA } else { CommandFlags::NONE };
        if matches!(op, Op::WriteZeroes { unmap: false, .. }) {
            flags |= CommandFlags::NO_HOLE;
        }
        let (start, len) = op.range().map_or((0, 0), |range| (range.start(), range.len()));
        Some(Self { command, flags, start, len, buf })
    }

    fn start(self, connection: &Connection) -> block::env::Ticket {
        connection.start(self.command, self.flags, self.start, self.len, self.buf)
    }
}

impl Remote {
    /// Creates the access to `export` of the NBD server at `address`, over `count` connections. A connection is opened
    /// when a request first needs the connection. `info`: the facts about the export.
    pub fn new(
        env: &Env,
        address: &Address,
        export: &str,
        info: Info,
        count: usize,
        draw: Stream,
    ) -> Rc<Self> {
        Rc::new(Self {
            env: env.clone(),
            address: address.clone(),
            export: export.to_owned(),
            info,
            connections: RefCell::new(vec![None; count]),
            draw,
        })
    }

    /// Closes every NBD connection with a disconnect command.
    pub fn close(&self) {
        for connection in self.connections.take().iter().flatten() {
            connection.close();
        }
    }

    fn pick(&self) -> usize {
        self.draw.below(self.connections.borrow().len() as u64) as usize
    }

    /// Returns a random one of the NBD connections; `None` if the connection is not open, or broken.
    fn any(&self) -> Option<Connection> {
        let n = self.pick();
        self.connections.borrow()[n].clone().filter(|connection| connection.gone().is_none())
    }

    /// Returns a random NBD connection. Opens the connection if necessary, in at most 100 tries.
    async fn connection(&self) -> Result<Connection> {
        let mut failed = block::env::stopped();
        for _ in 0..100 {
            if let Some(connection) = self.any() {
                return Ok(connection);
            }
            let config = ClientConfig::connect(self.export.clone());
            match Connection::connect(&self.env, &self.address, config).await {
                Ok(connection) => {
                    let n = self.pick();
                    let before = self.connections.borrow_mut()[n].replace(connection.clone());
                    if let Some(before) = before {
                        before.close();
                    }
                    return Ok(connection);
                }
                Err(error) => failed = error,
            }
            self.env.sleep(REST).await;
        }
        Err(failed)
    }

    async fn send(&self, mut op: Op) -> Reply {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return Reply { answer: Answer { op, result: Err(error) }, lost: true },
        };
        let result = self.carry_out(&connection, &mut op).await;
        let lost = result.is_err() && connection.gone().is_some();
        Reply { answer: Answer { op, result }, lost }
    }

    async fn carry_out(&self, connection: &Connection, op: &mut Op) -> Result<(), Error> {
        if let Op::Status { range, extents } = op {
            *extents = connection.status(range.start(), range.len()).await?;
            return Ok(());
        }
        let sent =
            Sent::of(op, connection).expect("every request except block status is one NBD command");
        let outcome = sent.start(connection).await;
        outcome.result?;
        if let (Op::Read { into, .. }, Some(buf)) = (op, outcome.buf) {
            *into = buf;
        }
        Ok(())
    }
}
