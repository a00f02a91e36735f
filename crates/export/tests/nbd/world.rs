//! Runs an NBD server for a test, in a thread of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::env::Address;
use engine::Engine;
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use graph::Graph;
use graph::spec::Spec;
use runtime::{Config, Core};
use wire::nbd::handed;

/// A spec with a memory disk of 1 MiB as the export `vol`.
pub const MEMORY: &str = "[disk]\nm = { memory = \"1MiB\" }\n[export]\nvol = { on = \"m\" }\n";

/// Limits of the server with short timeouts, so that a test can wait until they expire.
pub const SHORT: Limits = Limits {
    connections: 4,
    requests: 256,
    held_bytes: 64 << 20,
    handshake: Duration::from_millis(300),
    request: Duration::from_millis(500),
    slow: Duration::from_secs(10),
    piece_bytes: 64 << 10,
};

/// A running NBD server. The thread of the server ends when this value is dropped.
pub struct World {
    pub path: PathBuf,
    shared: Arc<Shared>,
    ask: mpsc::Sender<Asked>,
    thread: Option<JoinHandle<(usize, bool)>>,
}

/// A command of the test to the thread of the server.
enum Asked {
    Stop(Duration),
    /// Starts a second server with this device identity, and hands all connections over to the second server.
    Next(u64),
    /// Pauses the server within this time, and resumes it. Reports whether all requests were answered in the pause.
    Pause(Duration, mpsc::Sender<bool>),
}

/// Identity of the export's device in the first server. A hand-over needs the same identity in the next server.
pub const IDENTITY: u64 = 7;

#[derive(Default)]
struct Shared {
    servers: AtomicUsize,
    log: Mutex<Vec<String>>,
    bytes: AtomicUsize,
    most_bytes: AtomicUsize,
    connections: AtomicUsize,
    port: AtomicU16,
    ready: AtomicBool,
}

impl World {
    pub fn new(spec: &str, limits: Limits) -> Self {
        Self::with_pool(spec, limits, Config::default().pool_limit_bytes)
    }

    pub fn with_pool(spec: &str, limits: Limits, pool_limit_bytes: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("cairn-nbd-{}-{n}", std::process::id()));
        let (ask, asked) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let (spec, at, ours) = (spec.to_owned(), path.clone(), shared.clone());
        let config = Config { pool_limit_bytes, ..Config::default() };
        let thread = std::thread::spawn(move || run(&spec, limits, config, at, &asked, &ours));
        let world = Self { path, shared, ask, thread: Some(thread) };
        until("the server listens", || world.shared.ready.load(Relaxed) || world.is_over());
        world
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the lines that the server has logged so far.
    pub fn log(&self) -> Vec<String> {
        self.shared.log.lock().unwrap().clone()
    }

    pub fn logs(&self, words: &str) {
        until(words, || self.log().iter().any(|line| line.contains(words)));
    }

    /// Returns the largest number of buffer bytes that were in use at once, sampled every few milliseconds.
    pub fn most_bytes(&self) -> usize {
        self.shared.most_bytes.load(Relaxed)
    }

    /// Returns the number of buffer bytes in use, sampled every few milliseconds.
    pub fn bytes(&self) -> usize {
        self.shared.bytes.load(Relaxed)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Relaxed)
    }

    /// Returns the TCP port on which the server listens at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.shared.port.load(Relaxed)
    }

    /// Hands all connections over to a second server with this device identity, and waits until that server runs.
    pub fn next(&self, identity: u64) {
        let before = self.shared.servers.load(Relaxed);
        self.ask.send(Asked::Next(identity)).unwrap();
        until("another server goes on", || self.shared.servers.load(Relaxed) > before);
    }

    /// Pauses the server, and resumes it. Returns whether all requests were answered within `limit`.
    pub fn pause(&self, limit: Duration) -> bool {
        let (tell, told) = mpsc::channel();
        self.ask.send(Asked::Pause(limit, tell)).unwrap();
        told.recv().unwrap()
    }

    /// Begins to stop the server, which waits at most `limit` for requests in flight. Does not wait for the end.
    pub fn begin_stop(&self, limit: Duration) {
        self.ask.send(Asked::Stop(limit)).unwrap();
    }

    /// Waits for the server's end. Returns the number of closed connections, and whether all requests were answered.
    pub fn end(mut self) -> (usize, bool) {
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn stop(self, limit: Duration) -> (usize, bool) {
        self.begin_stop(limit);
        self.end()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.ask.send(Asked::Stop(Duration::ZERO));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    spec: &str,
    limits: Limits,
    config: Config,
    path: PathBuf,
    asked: &mpsc::Receiver<Asked>,
    shared: &Arc<Shared>,
) -> (usize, bool) {
    let core = Core::new(config).unwrap();
    let env = core.env();
    let spec = Spec::parse(spec, "test.toml", &|_| None);
    let planned = core.block_on(spec.plan(kinds::REGISTRY, &env)).expect("the spec is right");
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let graph = core.block_on(Graph::build(&planned, &engine, &env)).expect("it can be built");
    let exports = ExportList::new(graph.exports().iter().map(|export| {
        let portal = engine.portal(&export.name, export.node);
        Export::new(&env, &engine, &portal, "a test")
    }));
    let listener = env.listen(&Address::Unix(path)).unwrap();
    let tcp = env.listen(&Address::Tcp("127.0.0.1".into(), 0)).unwrap();
    let Address::Tcp(_, port) = tcp.address() else { panic!("it listens to TCP") };
    shared.port.store(port, Relaxed);
    let begin = || {
        let ours = shared.clone();
        let log = move |line: &str| ours.log.lock().unwrap().push(line.to_owned());
        let server = Server::new(&env, exports.clone(), limits, log);
        server.serve(listener.clone());
        server.serve(tcp.clone());
        server
    };
    let mut server = begin();
    let mut is = IDENTITY;
    shared.ready.store(true, Relaxed);
    let ended = core.block_on(async {
        let limit = loop {
            shared.bytes.store(env.pool().used_bytes(), Relaxed);
            shared.most_bytes.fetch_max(env.pool().used_bytes(), Relaxed);
            shared.connections.store(server.connections(), Relaxed);
            match asked.try_recv() {
                Ok(Asked::Stop(limit)) => break limit,
                Ok(Asked::Next(identity)) => {
                    assert!(server.pause(Duration::from_secs(10)).await);
                    let (states, sockets): (Vec<_>, Vec<_>) =
                        server.hand_over(is).into_iter().unzip();
                    let states = handed::decode(&handed::encode(&states)).unwrap();
                    (server, is) = (begin(), identity);
                    for (state, socket) in states.into_iter().zip(sockets) {
                        if let Err(why) = server.take_over(state, socket, identity).await {
                            shared.log.lock().unwrap().push(why);
                        }
                    }
                    shared.servers.fetch_add(1, Relaxed);
                }
                Ok(Asked::Pause(limit, tell)) => {
                    tell.send(server.pause(limit).await).unwrap();
                    server.go_on();
                }
                Err(_) => env.sleep(Duration::from_millis(2)).await,
            }
        };
        server.stop(limit).await
    });
    core.shutdown(Duration::ZERO).ok();
    ended
}

/// Polls the condition `so` until it is true. Panics with `what` after 30 seconds.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
