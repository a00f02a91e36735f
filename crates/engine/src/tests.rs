use super::*;
use block::{
    BUF_MAX_BYTES, Buf, BufPool, ByteRange, Device, Needs, OpKind, Port, Push, State, error,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Wake;

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}

/// A disk in memory that replies at once, or after `let_go` if `hold` is set.
struct Bytes {
    info: Info,
    bytes: RefCell<Vec<u8>>,
    held: Notify,
    hold: Cell<bool>,
    flushes: Cell<u32>,
    swap: Option<BufPool>,
}

impl Bytes {
    fn new(size: u64) -> Rc<Self> {
        Rc::new(Self {
            info: Info::disk(size, 512),
            bytes: RefCell::new(vec![0; size as usize]),
            held: Notify::default(),
            hold: Cell::new(false),
            flushes: Cell::new(0),
            swap: None,
        })
    }

    fn let_go(&self) {
        self.hold.set(false);
        self.held.wake();
    }

    fn slice(range: &ByteRange) -> std::ops::Range<usize> {
        range.start() as usize..range.end() as usize
    }
}

impl Device for Bytes {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.held.until(|| !self.hold.get()).await;
        match &mut request.op {
            Op::Read { range, into, .. } => {
                if let Some(pool) = &self.swap {
                    *into = pool.take(into.len()).unwrap();
                }
                into.write().copy_from_slice(&self.bytes.borrow()[Self::slice(range)]);
            }
            Op::Write { range, data, .. } => {
                self.bytes.borrow_mut()[Self::slice(range)].copy_from_slice(&data.read());
            }
            Op::WriteZeroes { range, .. } | Op::Discard { range, .. } => {
                self.bytes.borrow_mut()[Self::slice(range)].fill(0);
            }
            Op::Flush => self.flushes.set(self.flushes.get() + 1),
            Op::Status { range, extents } => {
                let data = self.bytes.borrow()[Self::slice(range)].iter().any(|b| *b != 0);
                let state = if data { State::Data } else { State::Hole };
                *extents = vec![block::Extent { len: range.len(), state }];
            }
        }
        Ok(())
    }
}

/// An asynchronous device that forwards every request to its lower.
struct Pass {
    info: Info,
    lower: Lower,
}

impl Device for Pass {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.lower.forward(&mut request.op).await
    }
}

/// A hook that records every request and reply at its place in the graph.
#[derive(Default)]
struct Seen(RefCell<Vec<String>>);

impl Hooks for Seen {
    fn push(&self, request: &Request) -> Push {
        self.0.borrow_mut().push(format!("down {:?}", request.op.range()));
        Push::Watch(request.op.range().map_or(0, |r| r.start()))
    }

    fn pop(&self, saved: u64, request: &Request, result: &mut Result<()>) {
        self.0.borrow_mut().push(format!("up {:?} {}", request.op.range(), result.is_ok()));
        assert_eq!(saved, request.op.range().map_or(0, |r| r.start()), "its own address space");
    }
}

#[derive(Default)]
struct Answers(RefCell<BTreeMap<u64, (Request, Result<()>)>>);

impl Sink for Answers {
    fn done(&self, token: u64, request: Request, result: Result<()>) {
        let again = self.0.borrow_mut().insert(token, (request, result));
        assert!(again.is_none(), "request {token} completed twice");
    }
}

struct Bench {
    engine: Engine,
    pool: BufPool,
    answers: Rc<Answers>,
    tokens: Cell<u64>,
}

impl Bench {
    fn new() -> Self {
        let pool = BufPool::new(1 << 24, 0);
        Self { engine: Engine::new(&pool), pool, answers: Rc::default(), tokens: Cell::new(0) }
    }

    fn disk(&self, name: &str, size: u64) -> (Rc<Bytes>, NodeId) {
        let disk = Bytes::new(size);
        let id = self.engine.add_device(name, disk.clone(), Needs::LEAF, &[]).unwrap();
        (disk, id)
    }

    fn pass(&self, below: NodeId) -> NodeId {
        let lower = self.engine.lower(below);
        let pass = Pass { info: lower.info().clone(), lower };
        self.engine.add_device("pass", Rc::new(pass), Needs::children(1), &[below]).unwrap()
    }

    fn copying(&self, below: NodeId) -> NodeId {
        let (lower, needs) =
            (self.engine.lower(below), Needs { children: 1, scratch_copies: 1, ..Needs::LEAF });
        let device = Rc::new(Copying(Pass { info: lower.info().clone(), lower }));
        self.engine.add_device("copying", device, needs, &[below]).unwrap()
    }

    fn table(&self, table: Table, lowers: &[NodeId]) -> NodeId {
        let info = Info { size: table.size(), ..self.engine.info(lowers[0]) };
        self.engine.add_table("table", info, Rc::new(table), lowers).unwrap()
    }

    fn portal(&self, node: NodeId) -> Portal {
        self.engine.portal("client", node)
    }

    fn submit(&self, node: NodeId, op: Op) -> u64 {
        let token = self.tokens.replace(self.tokens.get() + 1);
        let portal = self.portal(node);
        assert!(self.engine.submit(&portal, op, self.answers.clone(), token).is_ok());
        token
    }

    fn answer(&self, token: u64) -> Option<(Request, Result<()>)> {
        self.answers.0.borrow_mut().remove(&token)
    }

    fn call(&self, node: NodeId, op: Op) -> (Request, Result<()>) {
        let token = self.submit(node, op);
        self.engine.turn();
        self.answer(token).expect("nothing holds it up")
    }

    fn buf(&self, bytes: &[u8]) -> Buf {
        let buf = self.pool.take(bytes.len()).unwrap();
        buf.write().copy_from_slice(bytes);
        buf
    }

    fn read(&self, node: NodeId, range: ByteRange) -> Vec<u8> {
        let into = self.pool.take(range.len() as usize).unwrap();
        let (request, result) = self.call(node, Op::read(range, into));
        result.unwrap();
        assert_eq!(request.op.range(), Some(range), "the request comes back as it went");
        let Op::Read { into, .. } = request.op else { unreachable!() };
        into.read().to_vec()
    }
}

fn stripe(bench: &Bench, chunk: u32) -> ([Rc<Bytes>; 2], NodeId) {
    let (a, a_id) = bench.disk("a", 65536);
    let (b, b_id) = bench.disk("b", 65536);
    let table =
        Table::stripe(&[(block::Port(0), 65536), (block::Port(1), 65536)], chunk).unwrap().table;
    ([a, b], bench.table(table, &[a_id, b_id]))
}

#[test]
fn engine_read_returns_written_bytes_through_devices_and_tables() {
    let bench = Bench::new();
    let ([a, b], stripe) = stripe(&bench, 512);
    let top = bench.pass(bench.pass(stripe));
    let bytes: Vec<u8> = (0..16384_u32).map(|n| (n / 64) as u8).collect();
    bench.call(top, Op::write(range(512, 16384), bench.buf(&bytes))).1.unwrap();
    assert_eq!(bench.read(top, range(512, 16384)), bytes);
    assert_eq!(bench.read(top, range(1024, 512)), bytes[512..1024]);
    assert_eq!(a.bytes.borrow()[512..1024], bytes[512..1024]);
    assert_eq!(b.bytes.borrow()[..512], bytes[..512]);
    assert_eq!(bench.engine.in_flight(), 0);
    drop(bench.answers.0.take());
    assert_eq!(bench.pool.used_bytes(), 0, "every buffer came back");
}

#[test]
fn engine_read_returns_bytes_that_disk_put_in_other_buffer() {
    let bench = Bench::new();
    let mut disks = Vec::new();
    for fill in [1, 2] {
        let mut disk = Rc::into_inner(Bytes::new(4096)).unwrap();
        disk.swap = Some(bench.pool.clone());
        disk.bytes.borrow_mut().fill(fill);
        disks.push(bench.engine.add_device("disk", Rc::new(disk), Needs::LEAF, &[]).unwrap());
    }
    let table = Table::concat(&[(block::Port(0), 4096), (block::Port(1), 4096)]).unwrap();
    let both = bench.table(table, &disks);
    let read = bench.read(both, range(0, 8192));
    assert_eq!((read[0], read[4095], read[4096], read[8191]), (1, 1, 2, 2));
}

#[test]
fn table_sends_flush_to_every_lower_once() {
    let bench = Bench::new();
    let ([a, b], stripe) = stripe(&bench, 512);
    bench.call(stripe, Op::Flush).1.unwrap();
    assert_eq!((a.flushes.get(), b.flushes.get()), (1, 1));
}

#[test]
fn table_sends_striped_discard_as_one_request_per_disk() {
    let bench = Bench::new();
    let (_, a) = bench.disk("a", 65536);
    let (_, b) = bench.disk("b", 65536);
    let table =
        Table::stripe(&[(block::Port(0), 65536), (block::Port(1), 65536)], 512).unwrap().table;
    let top = bench.table(table, &[a, b]);
    bench.call(top, Op::Discard { range: range(1024, 102_400), fua: false }).1.unwrap();
    for disk in [a, b] {
        assert_eq!(bench.engine.counters(disk, |c| c.ops(block::OpKind::Discard)), 1);
        assert_eq!(bench.engine.counters(disk, |c| c.bytes(block::OpKind::Discard)), 51200);
    }
}

#[test]
fn hooks_see_request_and_reply_at_hook_addresses() {
    let bench = Bench::new();
    let (_, disk) = bench.disk("disk", 8192);
    let (low, high) = (Rc::new(Seen::default()), Rc::new(Seen::default()));
    let low_id = bench.engine.add_hooks("low", low.clone(), disk).unwrap();
    let table = Table::linear(block::Port(0), 8192, 4096, 4096).unwrap();
    let part = bench.table(table, &[low_id]);
    let top = bench.engine.add_hooks("high", high.clone(), part).unwrap();
    bench.read(top, range(512, 512));
    assert_eq!(*high.0.borrow(), ["down Some(512+512)", "up Some(512+512) true"]);
    assert_eq!(*low.0.borrow(), ["down Some(4608+512)", "up Some(4608+512) true"]);
}

#[test]
fn engine_keeps_number_of_client_request_down_to_disk() {
    #[derive(Default)]
    struct Numbers(RefCell<Vec<u64>>);
    impl Hooks for Numbers {
        fn push(&self, request: &Request) -> Push {
            self.0.borrow_mut().push(request.id);
            Push::Forward
        }

        fn pop(&self, _: u64, _: &Request, _: &mut Result<()>) {}
    }
    let bench = Bench::new();
    let (_, disk) = bench.disk("disk", 8192);
    let (low, high) = (Rc::new(Numbers::default()), Rc::new(Numbers::default()));
    let below = bench.engine.add_hooks("low", low.clone(), disk).unwrap();
    let top = bench.engine.add_hooks("high", high.clone(), bench.pass(below)).unwrap();
    for _ in 0..3 {
        bench.read(top, range(0, 512));
    }
    assert_eq!(*low.0.borrow(), *high.0.borrow());
    assert_eq!(low.0.borrow().len(), 3);
    assert!(low.0.borrow().windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn dropped_child_request_completes_before_buffer_is_freed() {
    let bench = Bench::new();
    let (disk, id) = bench.disk("disk", 4096);
    disk.hold.set(true);
    let child = bench.engine.lower(id).start(Op::write(range(0, 512), bench.buf(&[9; 512])));
    drop(child);
    assert!(bench.pool.used_bytes() > 0, "the disk still needs it");
    disk.let_go();
    bench.engine.turn();
    assert_eq!(disk.bytes.borrow()[511], 9);
    assert_eq!(bench.pool.used_bytes(), 0);
}

#[test]
fn engine_rejects_misaligned_or_out_of_range_request_before_device() {
    let bench = Bench::new();
    let (_, id) = bench.disk("disk", 4096);
    let lower = bench.engine.lower(id);
    for (start, len) in [(4096, 512), (100, 512), (0, 100)] {
        let child =
            lower.start(Op::read(range(start, len), bench.pool.take(len as usize).unwrap()));
        let mut child = std::pin::pin!(child);
        let polled = child.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(done) = polled else { panic!("a refusal does not wait") };
        assert!(done.result.is_err());
    }
    assert_eq!(bench.engine.counters(id, |c| c.ops(block::OpKind::Read)), 0);
}

#[test]
fn engine_admits_request_only_with_enough_free_slots() {
    let bench = Bench::new();
    let (disk, id) = bench.disk("disk", 65536);
    disk.hold.set(true);
    let mut top = id;
    for _ in 0..4 {
        // Two segments; the lower half comes last.
        let halves = [2048, 0].map(|start| Table::linear(Port(0), 4096, start, 2048).unwrap());
        let joined = Table::concat(&[(Port(0), 2048), (Port(1), 2048)]).unwrap();
        let swapped = joined.fuse(&halves.each_ref().map(Some)).unwrap().table;
        top = bench.table(swapped.renumber(&[Port(0); 2]).unwrap(), &[top]);
    }
    // Each table may fan out to a window of parts: 1 + 8 * (1 + 8 * ...).
    let need = 1 + 8 * (1 + 8 * (1 + 8 * (1 + 8)));
    let fit = (SLOTS_MAX as u32 - SLOTS_OWN) / need;
    let tokens: Vec<_> = (0..fit).map(|_| bench.submit(top, Op::Flush)).collect();
    let refused =
        bench.engine.submit(&bench.portal(top), Op::Flush, bench.answers.clone(), u64::MAX);
    assert!(matches!(refused, Err(Op::Flush)));
    let portal = bench.portal(top);
    let mut room = std::pin::pin!(bench.engine.wait_capacity(&portal, &Op::Flush, None));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut cx).is_pending());
    disk.let_go();
    bench.engine.turn();
    assert!(room.as_mut().poll(&mut cx).is_ready());
    assert!(tokens.into_iter().all(|token| bench.answer(token).is_some()));
}

/// A device that forwards every request, and declares that it may need buffers for a copy of the payload.
struct Copying(Pass);

impl Device for Copying {
    fn info(&self) -> &Info {
        &self.0.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        Device::submit(&self.0, request).await
    }
}

#[test]
fn engine_admits_request_only_with_enough_free_buffers() {
    let bench = Bench::new();
    let (disk, id) = bench.disk("disk", 65536);
    disk.hold.set(true);
    let copying = |max_transfer| {
        let lower = bench.engine.lower(id);
        let info = Info { max_transfer, ..lower.info().clone() };
        {
            let needs = Needs { children: 1, scratch_copies: 1, ..Needs::LEAF };
            bench.engine.add_device("copying", Rc::new(Copying(Pass { info, lower })), needs, &[id])
        }
    };
    // One request may use at most half of the pool. Longer ones are split above.
    let long = copying(BUF_MAX_BYTES as u32).unwrap();
    assert_eq!(bench.engine.info(long).max_transfer, 4 << 20);
    let top = copying(65536).unwrap();
    let zero = || Op::WriteZeroes { range: range(0, 65536), unmap: false, fua: false };
    // 64 KiB with one more block at either end need a buffer of 128 KiB.
    let fit = bench.pool.free_for_clients() >> 17;
    let tokens: Vec<_> = (0..fit).map(|_| bench.submit(top, zero())).collect();
    let refused = bench.engine.submit(&bench.portal(top), zero(), bench.answers.clone(), u64::MAX);
    assert!(refused.is_err());
    assert!(bench.pool.take_for_client(1).is_err(), "the reserve is not available to others");
    assert!(bench.pool.take(1 << 20).is_ok(), "background work has a part of its own");
    let mut cx = Context::from_waker(Waker::noop());
    let mut scratch = std::pin::pin!(bench.pool.scratch(65536));
    assert!(scratch.as_mut().poll(&mut cx).is_ready(), "those that are admitted have it");
    let zero = zero();
    let portal = bench.portal(top);
    let mut room = std::pin::pin!(bench.engine.wait_capacity(&portal, &zero, None));
    assert!(room.as_mut().poll(&mut cx).is_pending());
    disk.let_go();
    bench.engine.turn();
    assert!(room.as_mut().poll(&mut cx).is_ready());
    assert!(tokens.into_iter().all(|token| bench.answer(token).is_some()));
    assert_eq!(bench.pool.free_bytes(), bench.pool.limit_bytes());
}

/// A client that has all requests through one sink, with a share of its own.
#[derive(Default)]
struct Client {
    answers: Cell<u64>,
    share: Share,
}

impl Sink for Client {
    fn done(&self, _: u64, _: Request, result: Result<()>) {
        result.unwrap();
        self.answers.set(self.answers.get() + 1);
    }

    fn share(&self) -> Option<&Share> {
        Some(&self.share)
    }
}

#[test]
fn engine_keeps_buffers_for_other_exports_and_other_clients() {
    let bench = Bench::new();
    let (disk, id) = bench.disk("disk", 65536);
    disk.hold.set(true);
    let top = bench.copying(id);
    let zero = || Op::WriteZeroes { range: range(0, 65536), unmap: false, fua: false };
    let as_many_as_fit = |portal: &Portal, client: &Rc<Client>| {
        (0..)
            .take_while(|n| bench.engine.submit(portal, zero(), client.clone(), *n).is_ok())
            .count()
    };
    let [first, second] = ["first", "second"].map(|name| bench.engine.portal(name, top));
    let [greedy, modest, other] = [(); 3].map(|()| Rc::<Client>::default());
    // 112 requests of 128 KiB fit into the part of the pool that clients may use.
    assert_eq!(as_many_as_fit(&first, &greedy), 56, "a half, because as much stays free");
    assert_eq!(
        as_many_as_fit(&first, &modest),
        0,
        "the export has its share, whichever the client"
    );
    assert_eq!(
        as_many_as_fit(&second, &greedy),
        0,
        "the client has its share, whichever the export"
    );
    assert_eq!(as_many_as_fit(&second, &other), 28, "a half of the rest");
    disk.let_go();
    bench.engine.turn();
    assert_eq!([&greedy, &modest, &other].map(|client| client.answers.get()), [56, 0, 28]);
    disk.hold.set(true);
    assert_eq!(as_many_as_fit(&first, &modest), 56, "shares are given back");
}

/// A device that answers at once, but gives way `self.0` times before.
struct GivesWay(u32, Info);

impl Device for GivesWay {
    fn info(&self) -> &Info {
        &self.1
    }

    async fn submit(&self, _: &mut Request) -> Result<()> {
        for _ in 0..self.0 {
            let mut gave = false;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut gave, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        Ok(())
    }
}

#[test]
fn engine_lets_other_tasks_run_while_devices_give_way() {
    let bench = Bench::new();
    let info = Info::disk(4096, 512);
    let device = Rc::new(GivesWay(1000, info));
    let id = bench.engine.add_device("busy", device, Needs::LEAF, &[]).unwrap();
    let token = bench.submit(id, Op::Flush);
    let mut driven = std::pin::pin!(bench.engine.clone().drive());
    let woken = Arc::new(Flag::default());
    let waker = Waker::from(woken.clone());
    let mut polls = 0;
    while bench.answers.0.borrow().is_empty() {
        assert!(driven.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        polls += 1;
        assert!(woken.0.swap(false, Relaxed) || !bench.answers.0.borrow().is_empty());
    }
    assert!(polls >= 1000 / ROUND, "{polls} polls for 1000 steps");
    assert!(bench.answer(token).is_some());
}

/// Whether a task was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn abandoned_engine_returns_reserves_of_unanswered_requests() {
    let bench = Bench::new();
    let (disk, id) = bench.disk("disk", 65536);
    disk.hold.set(true);
    let top = bench.copying(id);
    bench.submit(top, Op::WriteZeroes { range: range(0, 65536), unmap: false, fua: false });
    assert!(bench.pool.free_bytes() < bench.pool.limit_bytes());
    bench.engine.abandon();
    assert_eq!(bench.pool.free_bytes(), bench.pool.limit_bytes());
}

#[test]
fn engine_shuffle_reaches_every_order_of_completion() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..24_usize {
        let bench = Bench::new();
        let mut state = seed;
        bench.engine.shuffle(move |n| {
            let draw = state % n;
            state /= n;
            draw
        });
        let (disk, id) = bench.disk("disk", 4096);
        disk.hold.set(true);
        let order = Rc::new(Order::default());
        for token in 0..4 {
            let sent = bench.engine.submit(&bench.portal(id), Op::Flush, order.clone(), token);
            assert!(sent.is_ok());
        }
        disk.let_go();
        bench.engine.turn();
        orders.insert(order.0.take());
    }
    assert_eq!(orders.len(), 24, "4 requests have 24 orders");
}

#[derive(Default)]
struct Order(RefCell<Vec<u64>>);

impl Sink for Order {
    fn done(&self, token: u64, _: Request, result: Result<()>) {
        result.unwrap();
        self.0.borrow_mut().push(token);
    }
}

#[test]
fn portals_retarget_moves_creates_and_closes_portals_together() {
    let bench = Bench::new();
    let ((one, a), (two, b)) = (bench.disk("one", 4096), bench.disk("two", 4096));
    let portals = Portals::default();
    let targets =
        |both: &[(&str, NodeId)]| both.iter().map(|(n, id)| ((*n).to_owned(), *id)).collect();
    portals.retarget(&bench.engine, &targets(&[("first", a), ("second", a)]));
    let (first, second) = (portals.get("first").unwrap(), portals.get("second").unwrap());
    let flush = |portal: &Portal| {
        let token = bench.tokens.replace(bench.tokens.get() + 1);
        assert!(bench.engine.submit(portal, Op::Flush, bench.answers.clone(), token).is_ok());
        bench.engine.turn();
        bench.answer(token).expect("nothing holds it up").1
    };
    portals.retarget(&bench.engine, &targets(&[("first", b), ("third", a)]));
    flush(&first).unwrap();
    assert_eq!((one.flushes.get(), two.flushes.get()), (0, 1), "it was led to the other disk");
    let gone = flush(&second).unwrap_err();
    assert_eq!(gone.to_string(), "second: the export is no longer offered");
    assert!(portals.get("second").is_none() && portals.get("third").is_some());
    // A node lasts as long as a portal leads to it.
    bench.engine.forget(b);
    flush(&first).unwrap();
    portals.close(&error!(Io, "the graph is lost"));
    assert_eq!(flush(&first).unwrap_err().to_string(), "first: the graph is lost");
}

/// A device whose every request fails with the error that the test sets.
struct Failing {
    info: Info,
    error: block::Error,
}

impl Device for Failing {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, _: &mut Request) -> Result<()> {
        Err(self.error.clone())
    }
}

#[test]
fn engine_reports_failed_request_once_for_device_of_its_origin() {
    let bench = Bench::new();
    let failing = |name: &str, error: block::Error| {
        let device = Failing { info: Info::disk(4096, 512), error };
        bench.engine.add_device(name, Rc::new(device), Needs::LEAF, &[]).unwrap()
    };
    let disk = failing("disk", error!(Io, "broken").at("disk"));
    let above = bench.pass(bench.pass(disk));
    let refusing = failing("refusing", error!(ReadOnly, "refused"));
    let zeroes = Op::WriteZeroes { range: range(512, 512), unmap: false, fua: false };
    bench.call(above, zeroes).1.unwrap_err();
    bench.call(refusing, Op::Flush).1.unwrap_err();
    bench.call(above, Op::Flush).1.unwrap_err();
    let (failures, lost) = bench.engine.take_failures();
    assert_eq!(lost, 0);
    let seen = failures.iter().map(|one| (one.device.as_str(), one.verb, one.range));
    let zeroed = ("disk", OpKind::WriteZeroes, Some(range(512, 512)));
    assert!(seen.eq([zeroed, ("disk", OpKind::Flush, None)]), "{failures:?}");
}
