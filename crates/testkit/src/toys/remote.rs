//! A remote disk for tests whose server is an engine in the same process.

use std::cell::Cell;
use std::rc::Rc;

use block::control::{Command, Reply, VerbInfo, find_verb};
use block::env::LocalFuture;
use block::{Device, Info, Request, Result};
use engine::{Engine, NodeId, Portal};

/// A disk that forwards requests and commands to a device of another engine. It encodes commands and their answers as
/// bytes, and supports only the commands in `verbs`.
pub struct Remote {
    engine: Engine,
    node: NodeId,
    portal: Portal,
    info: Info,
    verbs: &'static [&'static VerbInfo],
    /// Number of bytes of encoded commands and answers so far.
    crossed: Rc<Cell<usize>>,
}

impl Remote {
    /// Creates a remote disk for the device `node` of `engine` that supports the commands `verbs`.
    pub fn new(engine: &Engine, node: NodeId, verbs: &'static [&'static VerbInfo]) -> Self {
        let (engine, info) = (engine.clone(), engine.info(node));
        let portal = engine.portal("a remote disk", node);
        Self { engine, node, portal, info, verbs, crossed: Rc::default() }
    }

    /// Returns the number of bytes of encoded commands and answers so far.
    pub fn crossed(&self) -> usize {
        self.crossed.get()
    }
}

impl Device for Remote {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let op = std::mem::replace(&mut request.op, block::Op::Flush);
        let done = self.engine.call(&self.portal, op).await;
        request.op = done.op;
        done.result
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        self.verbs
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        let (name, args) = (command.verb().name, command.encode_args());
        let received = find_verb(self.verbs.iter().copied(), name).and_then(|verb| {
            let mut received = Command::decode(verb, &args)?;
            (received.id, received.origin) = (command.id, command.origin);
            (received.range, received.limit) = (command.range, command.limit);
            Ok(received)
        });
        let answer =
            received.map(|command| (command.verb(), self.engine.control(self.node, command)));
        Box::pin(async move {
            let (verb, answer) = answer?;
            let answer = answer.await?.encode(verb);
            self.crossed.set(self.crossed.get() + args.len() + answer.len());
            Reply::decode(verb, &answer)
        })
    }
}
