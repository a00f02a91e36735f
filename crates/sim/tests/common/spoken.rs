//! A minimal NBD server that acknowledges every request, stores nothing, and offers the flags that a test sets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::Env;
use block::env::{Address, Socket};
use sim::SimWorld;
use wire::nbd::{
    Command, ExportEntry, ExportFacts, Exports, Limits, Reply, RequestHeader, ServerHandshake,
    ServerProgress, TransmissionFlags,
};
use wire::stream::Inbox;

#[derive(Default)]
pub struct Spoken {
    /// The transmission flags that the server offers to new connections.
    pub flags: Cell<TransmissionFlags>,
    /// The commands that the server has received.
    pub told: RefCell<Vec<Command>>,
}

impl Exports for Spoken {
    async fn list(&self) -> Result<Vec<ExportEntry>, String> {
        Ok(Vec::new())
    }

    async fn open(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        self.look(name).await
    }

    async fn look(&self, name: &str) -> Result<Option<ExportFacts>, String> {
        let (name, flags) = (name.to_owned(), self.flags.get());
        Ok(Some(ExportFacts { name, flags, size_bytes: 1 << 20, ..ExportFacts::default() }))
    }
}

/// Starts the minimal NBD server in `world`.
pub fn serve(world: &SimWorld) -> Rc<Spoken> {
    let (env, spoken) = (world.env(), Rc::<Spoken>::default());
    let listener = env.listen(&Address::Unix("/socket".into())).unwrap();
    let ours = spoken.clone();
    world.env().spawn("a server", async move {
        while let Ok(socket) = listener.accept().await {
            let talk = talk(env.clone(), socket, ours.clone());
            env.spawn("a connection", async move { talk.await.unwrap_or_default() });
        }
    });
    spoken
}

/// Serves one client connection until it ends; then returns `None`.
async fn talk(env: Env, socket: Rc<dyn Socket>, spoken: Rc<Spoken>) -> Option<()> {
    let mut inbox = Inbox::new(env.pool()).await.ok()?;
    let mut out = Vec::new();
    ServerHandshake::greeting(&mut out);
    let mut handshake = ServerHandshake::new(Limits::default());
    let style = loop {
        send(&env, &*socket, &mut out).await?;
        let advanced = handshake.advance(&inbox.bytes(), &*spoken, &mut out).await;
        let (used, progress) = advanced.ok()?;
        inbox.take(used);
        match progress {
            ServerProgress::NeedMore => hear(&*socket, &mut inbox).await?,
            ServerProgress::Ready(session) => break session.style,
            _ => {}
        }
    };
    loop {
        send(&env, &*socket, &mut out).await?;
        let parsed = RequestHeader::parse(&inbox.bytes(), style).ok()?;
        let whole =
            parsed.map(|(header, used)| (header, used + header.payload_bytes(style) as usize));
        let Some((header, len)) = whole.filter(|(_, len)| *len <= inbox.len()) else {
            hear(&*socket, &mut inbox).await?;
            continue;
        };
        inbox.take(len);
        spoken.told.borrow_mut().push(header.command);
        out.extend_from_slice(&Reply::new(&header, style).done());
    }
}

async fn hear(socket: &dyn Socket, inbox: &mut Inbox) -> Option<()> {
    let came = socket.recv(inbox.room()).await.result.ok()?;
    inbox.arrived(came);
    (came > 0).then_some(())
}

async fn send(env: &Env, socket: &dyn Socket, out: &mut Vec<u8>) -> Option<()> {
    while !out.is_empty() {
        let buf = env.buf(out.len()).ok()?;
        buf.write().copy_from_slice(out);
        let sent = socket.send(vec![buf]).await.result.ok()?;
        out.drain(..sent);
    }
    Some(())
}
