//! The FUSE server of a volume on a simulated channel instead of the kernel's: its replies, and the channel's end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use block::env::{Channel, Outcome, Ticket, Tickets, stopped};
use block::{Buf, Env, Result, Waiter};
use engine::Engine;
use export::fuse::Volume;
use export::nbd::Export;
use graph::Graph;
use graph::spec::Spec;
use runtime::{Config, Core};
use wire::fuse::RESENT;

const GETATTR: u32 = 3;
const LOOKUP: u32 = 1;
const READ: u32 = 15;
const WRITE: u32 = 16;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const FALLOCATE: u32 = 43;

const MEMORY: &str = "[disk]\nm = { memory = \"1MiB\" }\n[export]\nvol = { on = \"m\" }\n";

/// The state of the simulated FUSE channel: messages to the server and replies of the server.
#[derive(Default)]
struct Wire {
    to: RefCell<VecDeque<Vec<u8>>>,
    from: RefCell<Vec<Vec<u8>>>,
    over: Cell<bool>,
    waiting: Waiter,
    /// Number of messages that the server had received when it asked the channel to resend requests.
    resent: Cell<Option<usize>>,
    taken: Cell<usize>,
    /// Number of times that the channel resent each request, by the number of the request.
    counts: RefCell<BTreeMap<u64, u64>>,
    withdrawn: Cell<bool>,
    closed: Cell<bool>,
}

struct Fake(Rc<Wire>);

impl Channel for Fake {
    fn recv(&self, head: &Buf, rest: &Buf) -> Result<Option<usize>> {
        if self.0.over.get() {
            return Err(stopped());
        }
        let Some(message) = self.0.to.borrow_mut().pop_front() else { return Ok(None) };
        self.0.taken.set(self.0.taken.get() + 1);
        let cut = message.len().min(head.len());
        head.write()[..cut].copy_from_slice(&message[..cut]);
        rest.write()[..message.len() - cut].copy_from_slice(&message[cut..]);
        Ok(Some(message.len()))
    }

    fn ready(&self) -> Ticket {
        Ticket::new(self.0.clone(), 0)
    }

    fn send(&self, head: &[u8], rest: Option<&Buf>) -> Result<()> {
        let mut message = head.to_vec();
        if let Some(rest) = rest {
            message.extend_from_slice(&rest.read());
        }
        self.0.from.borrow_mut().push(message);
        Ok(())
    }

    fn pin(&self, _: &Buf) -> Result<()> {
        Ok(())
    }

    fn lacks(&self) -> Option<&str> {
        None
    }

    fn fdstore_remove(&self) -> Result<()> {
        self.0.withdrawn.set(true);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.0.closed.set(true);
        Ok(())
    }

    fn resend(&self) -> Result<()> {
        assert!(self.0.resent.replace(Some(self.0.taken.get())).is_none(), "asked twice");
        Ok(())
    }

    fn came_again(&self, number: u64) -> Result<u64> {
        let mut counts = self.0.counts.borrow_mut();
        let count = counts.entry(number).or_default();
        *count += 1;
        Ok(*count)
    }
}

impl Tickets for Wire {
    fn poll(&self, _: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        if self.over.get() || !self.to.borrow().is_empty() {
            return Poll::Ready(Outcome::bare(Ok(0)));
        }
        self.waiting.wake_later(cx);
        Poll::Pending
    }

    fn abandon(&self, _: u64) {}
}

impl Wire {
    /// Sends a FUSE request to the server: a header with these numbers, and the arguments `body`.
    fn ask(&self, opcode: u32, unique: u64, node: u64, body: &[u8]) {
        let mut message = (40 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(opcode.to_ne_bytes());
        message.extend(unique.to_ne_bytes());
        message.extend(node.to_ne_bytes());
        message.extend([0; 16]);
        message.extend(body);
        self.to.borrow_mut().push_back(message);
        self.waiting.wake();
    }

    fn read(&self, unique: u64, offset: u64, size: u32) {
        self.ask(READ, unique, 2, &arguments(offset, size));
    }

    fn write(&self, unique: u64, offset: u64, data: &[u8]) {
        let mut body = arguments(offset, data.len() as u32);
        body.extend(data);
        self.ask(WRITE, unique, 2, &body);
    }

    fn break_off(&self) {
        self.over.set(true);
        self.waiting.wake();
    }

    /// Waits for the reply to the request number `unique`. Returns its errno (0 for success) and its body.
    async fn answer(&self, env: &Env, unique: u64) -> (i32, Vec<u8>) {
        loop {
            let found = self.answered(unique);
            if let Some(answer) = found {
                return answer;
            }
            env.sleep(Duration::from_millis(1)).await;
        }
    }

    fn answered(&self, unique: u64) -> Option<(i32, Vec<u8>)> {
        let all = self.from.borrow();
        let message = all.iter().find(|message| message[8..16] == unique.to_ne_bytes())?;
        assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
        let error = i32::from_ne_bytes(*message[4..].first_chunk().unwrap());
        Some((-error, message[16..].to_vec()))
    }
}

/// Returns the encoded arguments of a FUSE read or write of `size` bytes at `offset`.
fn arguments(offset: u64, size: u32) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(offset.to_ne_bytes());
    body.extend(size.to_ne_bytes());
    body.extend([0; 20]);
    body
}

/// Runs `test` on a core, with the only export of the graph of `spec` and the engine of the graph.
fn with_export<F: Future<Output = ()>>(
    spec: &str,
    test: impl FnOnce(Env, Rc<Export>, Engine) -> F,
) {
    let core = Core::new(Config::default()).unwrap();
    let env = core.env();
    let spec = Spec::parse(spec, "test.toml", &|_| None);
    core.block_on(async {
        let planned = spec.plan(kinds::REGISTRY, &env).await.expect("the spec is right");
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let graph = Graph::build(&planned, &engine, &env).await.expect("it can be built");
        let export = &graph.exports()[0];
        let portal = engine.portal(&export.name, export.node);
        let export = Export::new(&env, &engine, &portal, "a test");
        test(env.clone(), export, engine).await;
    });
}

fn serve(export: &Rc<Export>, log: &Rc<RefCell<Vec<String>>>) -> (Rc<Wire>, Volume) {
    let wire = Rc::<Wire>::default();
    let log = log.clone();
    let log = move |line: &str| log.borrow_mut().push(line.to_owned());
    let volume = Volume::serve(export, Rc::new(Fake(wire.clone())), log).unwrap();
    (wire, volume)
}

#[test]
fn mounted_volume_keeps_written_bytes_and_rejects_bad_requests() {
    with_export(MEMORY, |env, export, _| async move {
        let log = Rc::default();
        let (wire, volume) = serve(&export, &log);
        let offer: Vec<u8> = [7u32, 45, 0, 1 << 30, 1 << 7].map(u32::to_ne_bytes).concat();
        wire.ask(INIT, 1, 0, &offer);
        let agreed = volume.agreed().await.unwrap();
        assert_eq!((agreed.minor, agreed.has_resend), (45, true));

        // One payload is long enough that its buffer is handed over, and one is short enough to be copied.
        for (unique, len) in [(10, 256 << 10), (20, 4096)] {
            let data: Vec<u8> = (0..len).map(|n| (n / 7 + unique as usize) as u8).collect();
            wire.write(unique, 4096, &data);
            assert_eq!(wire.answer(&env, unique).await.1[..4], (len as u32).to_ne_bytes());
            wire.read(unique + 1, 4096, len as u32);
            assert!(wire.answer(&env, unique + 1).await == (0, data), "{len} bytes differ");
        }
        wire.ask(FSYNC, 30, 2, &[0; 16]);
        assert_eq!(wire.answer(&env, 30).await, (0, vec![]));

        // Reads end at the end of the volume, and nothing is written past it.
        wire.read(40, (1 << 20) - 512, 4096);
        assert_eq!(wire.answer(&env, 40).await, (0, vec![0; 512]));
        wire.read(41, 1 << 20, 4096);
        assert_eq!(wire.answer(&env, 41).await, (0, vec![]));
        wire.write(42, 1 << 20, &[0; 512]);
        assert_eq!(wire.answer(&env, 42).await.0, 28);
        wire.write(43, (1 << 20) - 5, &[0; 6]);
        assert_eq!(wire.answer(&env, 43).await.0, 28);

        // A write may begin and end inside a block.
        wire.write(44, 100, &[9; 512]);
        assert_eq!(wire.answer(&env, 44).await.1[..4], 512u32.to_ne_bytes());
        wire.read(45, 99, 514);
        let expected = [&[0][..], &[9; 512], &[0]].concat();
        assert_eq!(wire.answer(&env, 45).await, (0, expected));

        // Unknown names, nodes and requests.
        wire.ask(LOOKUP, 50, 1, b"volume\0");
        assert_eq!(wire.answer(&env, 50).await.0, 0);
        wire.ask(LOOKUP, 51, 1, b"volumes\0");
        assert_eq!(wire.answer(&env, 51).await.0, 2);
        wire.ask(GETATTR, 52, 3, &[0; 16]);
        assert_eq!(wire.answer(&env, 52).await.0, 2);
        wire.ask(READ, 53, 1, &arguments(0, 512));
        assert_eq!(wire.answer(&env, 53).await.0, 21);
        wire.ask(999, 54, 2, &[]);
        assert_eq!(wire.answer(&env, 54).await.0, 38);

        // A message that no kernel sends ends the mount.
        wire.ask(READ, 60, 2, &[0; 8]);
        volume.ended().await;
        assert_eq!(wire.answered(60).unwrap().0, 71);
        assert!(wire.closed.get(), "who asks from now on would wait for ever");
        assert!(log.borrow()[0].contains("no FUSE request"), "{log:?}");
    });
}

#[test]
fn mount_fails_when_kernel_fuse_version_is_too_old() {
    with_export(MEMORY, |env, export, _| async move {
        let log = Rc::default();
        let (wire, volume) = serve(&export, &log);
        wire.ask(INIT, 1, 0, &[7u32, 27, 0, 0].map(u32::to_ne_bytes).concat());
        assert_eq!(wire.answer(&env, 1).await.0, 71);
        wire.break_off();
        let error = volume.agreed().await.unwrap_err();
        assert!(error.to_string().contains("older than version 7.28"), "{error}");
    });
}

#[test]
fn mount_read_waits_for_overlapping_write_of_broken_mount() {
    let spec = "[disk]\nm = { memory = \"1MiB\" }\n[device]\n\
                late = { kind = \"delay\", on = \"m\", time = \"200ms\" }\n\
                [export]\nvol = { on = \"late\" }\n";
    with_export(spec, |env, export, _| async move {
        let log = Rc::default();
        let (old, gone) = serve(&export, &log);
        let (new, _volume) = serve(&export, &log);
        old.write(1, 0, &[1; 4096]);
        env.sleep(Duration::from_millis(20)).await;
        old.break_off();
        env.sleep(Duration::from_millis(1)).await;

        let begun = env.now();
        new.write(2, 0, &[2; 512]);
        gone.ended().await;
        assert!(new.answered(2).is_none(), "it began while another was on its way");
        assert!(old.answered(1).is_none(), "nobody is there to be told");
        assert_eq!(new.answer(&env, 2).await.0, 0);
        // Two waits: for the rest of the old write, and for the new one.
        assert!(env.now().since(begun) >= Duration::from_millis(350), "it did not wait");
        new.read(3, 0, 1024);
        let both = [[2; 512], [1; 512]].concat();
        assert_eq!(new.answer(&env, 3).await, (0, both));
    });
}

/// The server cuts a long discard into pieces. During a live change or a hand-over it begins no further piece.
#[test]
fn mount_admits_long_discard_piece_by_piece() {
    const PUNCH_AND_KEEP_SIZE: u64 = 3;
    let spec = "[disk]\nm = { memory = \"64MiB\" }\n[device]\n\
                late = { kind = \"delay\", on = \"m\", write = \"50ms\" }\n\
                [export]\nvol = { on = \"late\" }\n";
    with_export(spec, |env, export, engine| async move {
        let log = Rc::default();
        let (wire, _volume) = serve(&export, &log);
        let last = (64 << 20) - 4096;
        wire.write(1, last, &[7; 4096]);
        assert_eq!(wire.answer(&env, 1).await.0, 0);
        wire.ask(
            FALLOCATE,
            2,
            2,
            &[0, 0, 64 << 20, PUNCH_AND_KEEP_SIZE].map(u64::to_ne_bytes).concat(),
        );
        env.sleep(Duration::from_millis(20)).await;
        let held = engine.suspend();
        let drained = env.within(Duration::from_millis(200), engine.drained()).await;
        assert!(drained.is_some(), "it waits for one piece");
        env.sleep(Duration::from_millis(300)).await;
        assert!(wire.answered(2).is_none(), "a piece began in a graph that is held");
        drop(held);
        assert_eq!(wire.answer(&env, 2).await.0, 0);
        wire.read(3, last, 4096);
        assert_eq!(wire.answer(&env, 3).await, (0, vec![0; 4096]));
    });
}

#[test]
fn resumed_mount_carries_out_requests_without_reply() {
    with_export(MEMORY, |env, export, _| async move {
        let lines = Rc::<RefCell<Vec<String>>>::default();
        let wire = Rc::<Wire>::default();
        // These messages are there before the process takes over.
        wire.write(RESENT | 10, 4096, &[7; 4096]);
        wire.read(RESENT | 11, 8192, 4096);
        wire.ask(FSYNC, RESENT | 12, 2, &[0; 16]);
        wire.ask(GETATTR, RESENT | 13, 2, &[0; 16]);
        wire.counts.borrow_mut().extend([(11, 1), (12, 2)]);
        let resume = |max_bytes| {
            let lines = lines.clone();
            let log = move |line: &str| lines.borrow_mut().push(line.to_owned());
            Volume::resume(&export, Rc::new(Fake(wire.clone())), max_bytes, log)
        };
        let refused = resume(2 << 20).err().unwrap().to_string();
        assert!(refused.contains("existing mount needs 2097152 bytes"), "{refused}");
        let volume = resume(128 << 10).unwrap();
        assert_eq!(wire.resent.get(), Some(0), "before the first message is taken");
        assert!(volume.agreed().await.unwrap().has_resend, "nobody greets again");
        assert_eq!(wire.answer(&env, RESENT | 10).await.1[..4], 4096u32.to_ne_bytes());
        assert_eq!(wire.answer(&env, RESENT | 11).await, (0, vec![0; 4096]));
        assert_eq!(wire.answer(&env, RESENT | 12).await.0, 5, "it is not begun a third time");
        assert_eq!(wire.answer(&env, RESENT | 13).await.0, 0);
        let counts = BTreeMap::from([(10, 1), (11, 2), (12, 3)]);
        assert_eq!(*wire.counts.borrow(), counts, "what needs no device harms nobody");
        let said = lines.borrow().join("\n");
        assert!(said.contains("vol: request 12 (Fsync)") && said.contains("3 times"), "{said}");
        // A request that comes for the first time is not counted, and the agreed length still applies.
        wire.write(20, 0, &vec![1; 128 << 10]);
        assert_eq!(wire.answer(&env, 20).await.0, 0);
        wire.write(21, 0, &vec![1; 256 << 10]);
        assert_eq!(wire.answer(&env, 21).await.0, 22);
        assert_eq!(*wire.counts.borrow(), counts);
        assert!(!wire.withdrawn.get());
        wire.break_off();
        volume.ended().await;
        assert!(!wire.closed.get(), "another process may go on with it");
    });
}

#[test]
fn mount_leaves_descriptor_store_after_failed_flush() {
    let spec = "[disk]\nm = { memory = \"1MiB\" }\n[device]\n\
                bad = { kind = \"error\", on = \"m\", op = \"flush\" }\n\
                [export]\nvol = { on = \"bad\" }\n";
    with_export(spec, |env, export, _| async move {
        let (wire, volume) = serve(&export, &Rc::default());
        wire.write(1, 0, &[1; 4096]);
        assert_eq!(wire.answer(&env, 1).await.0, 0);
        assert!(!wire.withdrawn.get());
        wire.ask(FSYNC, 2, 2, &[0; 16]);
        assert_eq!(wire.answer(&env, 2).await.0, 5);
        assert!(wire.withdrawn.get());
        wire.break_off();
        volume.ended().await;
    });
}
