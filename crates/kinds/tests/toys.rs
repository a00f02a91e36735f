//! Tests how commands pass through tables, hooks and mirrors, with the toy devices of the testkit.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use block::control::{Command, Nothing, Reply, Resolved, Verb, VerbInfo};
use block::env::LocalFuture;
use block::{Below, ByteRange, Device, Error, ErrorKind, Info, Lower, Needs, Request, Result};
use kind::Value;
use kinds::REGISTRY;
use sim::draw::Stream;
use sim::{Assembly, PartId, SimWorld};
use testkit::toys::{
    Allocate, Allocated, Allocator, Bytes, Lock, Locker, Release, Remote, UNIT_BYTES, Unlock,
};

const SIZE: u64 = 1 << 20;

const VERBS: &[&VerbInfo] = &[Lock::INFO, Unlock::INFO, Allocate::INFO, Release::INFO];

struct Bench {
    world: SimWorld,
    graph: Assembly,
}

impl Bench {
    fn new() -> Self {
        let world = SimWorld::new(7);
        let graph = Assembly::new(&world.env(), REGISTRY, false, Stream::new(7, "order", 0));
        Self { graph: graph.in_world(&world), world }
    }

    fn disk(&mut self) -> PartId {
        self.graph.add("null", &[("null", Value::Size(SIZE))], &[]).unwrap()
    }

    fn lock(&mut self) -> (PartId, Rc<Locker>) {
        let disk = self.disk();
        let lock = Rc::new(Locker::new(self.graph.lower(disk)));
        let name = format!("lock{disk}");
        (self.graph.adopt(&name, lock.clone(), Needs::children(1), &[disk]).unwrap(), lock)
    }

    fn add(&mut self, kind: &str, options: sim::Options<'_>, on: &[PartId]) -> PartId {
        self.graph.add(kind, options, on).unwrap()
    }

    fn begin<V: Verb>(
        &self,
        part: PartId,
        origin: u32,
        range: ByteRange,
        args: V::Args,
    ) -> LocalFuture<Result<Reply>> {
        let mut command = Command::new::<V>(args).at(range);
        (command.origin, command.id) = (origin, 7);
        self.graph.engine.control(self.graph.node(part), command)
    }
}

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}

fn polled<T>(future: &mut LocalFuture<T>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn done<T>(mut future: LocalFuture<Result<T>>) -> Result<T> {
    polled(&mut future).expect("it needs no time")
}

/// A device that forwards all requests, and reports that it may move its bytes to other addresses.
struct Moving(Lower);

impl Device for Moving {
    fn info(&self) -> &Info {
        self.0.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.0.forward(&mut request.op).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        let all = vec![Below { lower: 0, above: range.start(), range, how: "".into() }];
        Ok(Resolved::Places { all, upto: range.end(), moves: true })
    }
}

/// Sends lock commands for the byte range `above` to the device `top`, from the clients (origins) 1 and 2. After each
/// command, every lock device in `below` must have its part of the range locked for the same client.
fn judge_lock(bench: &Bench, top: PartId, above: ByteRange, below: &[(&Locker, ByteRange)]) {
    let lock = |origin| bench.begin::<Lock>(top, origin, above, Nothing {});
    let expect = |origins: &[u32]| {
        for (lock, part) in below {
            let wanted: Vec<_> = origins.iter().map(|origin| (*part, *origin)).collect();
            assert_eq!(lock.locks(), wanted);
        }
    };
    done(lock(1)).unwrap();
    expect(&[1]);
    let mut waiting = lock(2);
    assert!(polled(&mut waiting).is_none(), "another origin has the range");
    drop(waiting);
    expect(&[1]);
    let mut waiting = lock(2);
    assert!(polled(&mut waiting).is_none());
    done(bench.begin::<Unlock>(top, 1, above, Nothing {})).unwrap();
    polled(&mut waiting).expect("the range is free").unwrap();
    expect(&[2]);
    done(bench.begin::<Unlock>(top, 2, above, Nothing {})).unwrap();
    expect(&[]);
}

#[test]
fn lock_command_passes_through_tables_and_hooks() {
    let mut bench = Bench::new();
    let (a, lock_a) = bench.lock();
    let (b, lock_b) = bench.lock();
    let both: [(&Locker, ByteRange); 2] = [(&lock_a, range(0, 4096)), (&lock_b, range(0, 4096))];

    let hook = bench.add("pass", &[], &[a]);
    judge_lock(&bench, hook, range(8192, 4096), &[(&lock_a, range(8192, 4096))]);
    let part =
        bench.add("linear", &[("start", Value::Size(4096)), ("size", Value::Size(65536))], &[hook]);
    judge_lock(&bench, part, range(0, 4096), &[(&lock_a, range(4096, 4096))]);
    let stripe = bench.add("stripe", &[("chunk", Value::Size(4096))], &[a, b]);
    judge_lock(&bench, stripe, range(0, 8192), &both);
    let concat = bench.add("concat", &[], &[a, b]);
    let across = range(SIZE - 4096, 8192);
    judge_lock(
        &bench,
        concat,
        across,
        &[(&lock_a, range(SIZE - 4096, 4096)), (&lock_b, range(0, 4096))],
    );
    let hooked = bench.add("delay", &[("time", Value::Duration(Duration::ZERO))], &[stripe]);
    judge_lock(&bench, hooked, range(0, 8192), &both);
    let mirror =
        bench.add("mirror", &[("trust", Value::Text(bench.graph.name(a).to_owned()))], &[a, b]);
    bench.world.settle();
    judge_lock(&bench, mirror, range(0, 4096), &both);
}

#[test]
fn dropped_lock_command_releases_ranges_on_all_devices() {
    let mut bench = Bench::new();
    let (a, lock_a) = bench.lock();
    let (b, lock_b) = bench.lock();
    let stripe = bench.add("stripe", &[("chunk", Value::Size(4096))], &[a, b]);
    done(bench.begin::<Lock>(b, 1, range(0, 4096), Nothing {})).unwrap();
    let mut waiting = bench.begin::<Lock>(stripe, 2, range(0, 8192), Nothing {});
    assert!(polled(&mut waiting).is_none(), "one of the two is held");
    assert_eq!(lock_a.locks(), [(range(0, 4096), 2)], "the first one is granted");
    drop(waiting);
    assert!(lock_a.locks().is_empty(), "it is released with the command");
    assert_eq!(lock_b.locks(), [(range(0, 4096), 1)]);
}

#[test]
fn lock_commands_of_two_stripes_lock_shared_disks_in_same_order() {
    let mut bench = Bench::new();
    let (a, lock_a) = bench.lock();
    let (b, _) = bench.lock();
    let one = bench.add("stripe", &[("chunk", Value::Size(4096))], &[a, b]);
    let other = bench.add("stripe", &[("chunk", Value::Size(4096))], &[b, a]);
    let mut first = bench.begin::<Lock>(one, 1, range(0, 8192), Nothing {});
    polled(&mut first).expect("nothing is held").unwrap();
    let mut second = bench.begin::<Lock>(other, 2, range(0, 8192), Nothing {});
    assert!(polled(&mut second).is_none());
    assert_eq!(lock_a.locks(), [(range(0, 4096), 1)], "the second one waits at the first place");
    done(bench.begin::<Unlock>(one, 1, range(0, 8192), Nothing {})).unwrap();
    polled(&mut second).expect("both are free").unwrap();
}

#[test]
fn lock_command_locks_ranges_of_one_disk_in_order_of_address() {
    let mut bench = Bench::new();
    let (a, lock) = bench.lock();
    let part = |bench: &mut Bench, start| {
        let options = [("start", Value::Size(start)), ("size", Value::Size(4096))];
        bench.add("linear", &options, &[a])
    };
    let (low, high) = (part(&mut bench, 0), part(&mut bench, 8192));
    let one = bench.add("concat", &[], &[low, high]);
    let other = bench.add("concat", &[], &[high, low]);
    let both = range(0, 8192);
    done(bench.begin::<Lock>(low, 1, range(0, 4096), Nothing {})).unwrap();
    let mut waiting = [one, other].map(|top| bench.begin::<Lock>(top, 2, both, Nothing {}));
    for waiting in &mut waiting {
        assert!(polled(waiting).is_none());
        let held: Vec<_> = lock.locks().into_iter().map(|(range, _)| range.start()).collect();
        assert_eq!(held, [0], "it waits for the lower addresses, and holds no higher ones");
    }
}

#[test]
fn engine_refuses_lasting_command_above_device_that_moves_bytes() {
    let mut bench = Bench::new();
    let (a, lock_a) = bench.lock();
    let moving = Rc::new(Moving(bench.graph.lower(a)));
    let moving = bench.graph.adopt("moving", moving, Needs::children(1), &[a]).unwrap();
    let refused = done(bench.begin::<Lock>(moving, 1, range(0, 4096), Nothing {})).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.message().contains("which moves bytes"), "{refused}");
    assert!(lock_a.locks().is_empty());
}

#[test]
fn engine_names_disk_that_does_not_support_command() {
    let mut bench = Bench::new();
    let disk = bench.disk();
    let hook = bench.add("pass", &[], &[disk]);
    let refused = done(bench.begin::<Lock>(hook, 1, range(0, 4096), Nothing {})).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let name = bench.graph.name(disk);
    assert!(refused.message().starts_with(&format!("{name} has no locks")), "{refused}");
}

#[test]
fn allocated_range_is_translated_upwards_and_refused_across_stripe() {
    let mut bench = Bench::new();
    let disk = bench.disk();
    let space = Rc::new(Allocator::new(bench.graph.lower(disk)));
    let a = bench.graph.adopt("space", space.clone(), Needs::children(1), &[disk]).unwrap();
    let other = bench.disk();
    let other_space = Rc::new(Allocator::new(bench.graph.lower(other)));
    let b = bench.graph.adopt("other", other_space.clone(), Needs::children(1), &[other]).unwrap();
    let part =
        bench.add("linear", &[("start", Value::Size(65536)), ("size", Value::Size(65536))], &[a]);
    let wanted = Bytes { bytes: 2 * UNIT_BYTES };

    let answer = done(bench.begin::<Allocate>(part, 1, range(0, 65536), wanted)).unwrap();
    let run = answer.answer::<Allocate>().unwrap();
    assert_eq!(run, Allocated { start: 0, bytes: 2 * UNIT_BYTES }, "in the address space above");
    assert_eq!(space.runs(), [Allocated { start: 65536, bytes: 2 * UNIT_BYTES }]);
    done(bench.begin::<Release>(part, 1, range(0, 65536), wanted)).unwrap();
    assert!(space.runs().is_empty());

    let stripe = bench.add("stripe", &[("chunk", Value::Size(4096))], &[a, b]);
    let wanted = Bytes { bytes: UNIT_BYTES };
    let refused = done(bench.begin::<Allocate>(stripe, 1, range(0, 65536), wanted)).unwrap_err();
    assert!(refused.message().contains("not contiguous in the device above"), "{refused}");
    assert!(space.runs().is_empty() && other_space.runs().is_empty(), "it is taken back");
}

#[test]
fn remote_disk_sends_commands_as_bytes() {
    let (mut server, mut bench) = (Bench::new(), Bench::new());
    let (a, lock) = server.lock();
    let part =
        server.add("linear", &[("start", Value::Size(4096)), ("size", Value::Size(65536))], &[a]);
    let remote = Remote::new(&server.graph.engine, server.graph.node(part), VERBS);
    let remote = Rc::new(remote);
    let disk = bench.graph.adopt("remote", remote.clone(), Needs::LEAF, &[]).unwrap();
    let hook = bench.add("pass", &[], &[disk]);
    judge_lock(&bench, hook, range(0, 4096), &[(&lock, range(4096, 4096))]);
    assert!(remote.crossed() > 0, "arguments and answers are bytes on the way");
}

#[test]
fn encoded_commands_decode_to_same_arguments() {
    let known = || VERBS.iter().copied().chain(REGISTRY.verbs());
    for verb in known() {
        let found = known().filter(|other| other.name == verb.name).count();
        assert_eq!(found, 1, "{verb:?} is the name of one command");
    }
    let command = Command::new::<Allocate>(Bytes { bytes: 8192 });
    let again = Command::decode(command.verb(), &command.encode_args()).unwrap();
    assert_eq!(again.args::<Allocate>(), Some(&Bytes { bytes: 8192 }));
    let wrong = Command::decode(Allocate::INFO, b"{\"bytes\": \"many\"}").unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
}

/// A device that refuses lock commands, and counts the unlock commands that it gets.
struct Refusing(Lower, Cell<u32>);

impl Device for Refusing {
    fn info(&self) -> &Info {
        self.0.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.0.forward(&mut request.op).await
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        &[Lock::INFO, Unlock::INFO]
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        if command.is::<Unlock>() {
            self.1.set(self.1.get() + 1);
            return command.done(Ok(()));
        }
        command.done(Err(Error::new(ErrorKind::InUse, "no locks today")))
    }
}

#[test]
fn engine_undoes_refused_command_only_on_devices_that_accepted() {
    let mut bench = Bench::new();
    let (a, lock) = bench.lock();
    let disk = bench.disk();
    let refusing = Rc::new(Refusing(bench.graph.lower(disk), Cell::new(0)));
    let b = bench.graph.adopt("refusing", refusing.clone(), Needs::children(1), &[disk]).unwrap();
    let stripe = bench.add("stripe", &[("chunk", Value::Size(4096))], &[a, b]);
    let refused = done(bench.begin::<Lock>(stripe, 1, range(0, 8192), Nothing {})).unwrap_err();
    assert_eq!(refused.message(), "no locks today");
    assert!(lock.locks().is_empty(), "it is released where it was taken");
    assert_eq!(refusing.1.get(), 0, "nothing was taken here, so nothing is released");
}
