//! Tests of requests in pieces, against a list of all writes and their times.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};

use block::{
    Buf, BufPool, ByteRange, Copies, Device, Error, ErrorKind, Extent, Info, Needs, Notify, Op,
    OpKind, Request, Result, State,
};

use super::PIECE_BYTES;
use crate::{Engine, NodeId, Portal, Sink};

const SIZE: u64 = 8192;

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).unwrap()
}

/// A small generator of numbers, so that a seed repeats a test.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A disk in memory. Each request waits for some steps, takes effect at once, and waits for some more.
struct Disk {
    info: Info,
    bytes: RefCell<Vec<u8>>,
    draws: RefCell<Draws>,
    slowness: u64,
    now: Cell<u64>,
    step: Notify,
    /// Operation that fails, and the number of requests of this type before it.
    fails: Cell<Option<(OpKind, u32)>>,
    log: RefCell<Vec<(OpKind, ByteRange, bool)>>,
}

impl Disk {
    fn new(size: u64, block: u32, slowness: u64, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            info: Info::disk(size, block),
            bytes: RefCell::new(vec![0; size as usize]),
            draws: RefCell::new(Draws(seed)),
            slowness,
            now: Cell::new(0),
            step: Notify::default(),
            fails: Cell::new(None),
            log: RefCell::default(),
        })
    }

    async fn wait(&self) {
        if self.slowness > 0 {
            let until = self.now.get() + self.draws.borrow_mut().below(self.slowness);
            self.step.until(|| self.now.get() >= until).await;
        }
    }

    fn pass_step(&self) {
        self.now.set(self.now.get() + 1);
        self.step.wake();
    }

    fn has_failed(&self, verb: OpKind) -> bool {
        match self.fails.get() {
            Some((fails, 0)) if fails == verb => true,
            Some((fails, left)) if fails == verb => {
                self.fails.set(Some((fails, left - 1)));
                false
            }
            _ => false,
        }
    }
}

impl Device for Disk {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.wait().await;
        let op = &mut request.op;
        let at = op.range().map_or(0..0, |range| range.start() as usize..range.end() as usize);
        if let Some(range) = op.range() {
            self.log.borrow_mut().push((op.verb(), range, op.fua()));
        }
        if self.has_failed(op.verb()) {
            return Err(Error::new(ErrorKind::Io, "a bad block"));
        }
        match op {
            Op::Read { into, .. } => into.write().copy_from_slice(&self.bytes.borrow()[at]),
            Op::Write { data, .. } => {
                self.bytes.borrow_mut()[at].copy_from_slice(&data.read());
            }
            Op::WriteZeroes { .. } | Op::Discard { .. } => self.bytes.borrow_mut()[at].fill(0),
            Op::Flush => {}
            Op::Status { range, extents } => {
                let half = range.len() / 2;
                *extents = vec![
                    Extent { len: half, state: State::Data },
                    Extent { len: range.len() - half, state: State::Hole },
                ];
            }
        }
        self.wait().await;
        Ok(())
    }
}

#[derive(Default)]
struct Answers(RefCell<BTreeMap<u64, (Op, Result<()>)>>);

impl Sink for Answers {
    fn done(&self, token: u64, request: Request, result: Result<()>) {
        let again = self.0.borrow_mut().insert(token, (request.op, result));
        assert!(again.is_none(), "request {token} completed twice");
    }
}

struct Bench {
    engine: Engine,
    pool: BufPool,
    disk: Rc<Disk>,
    node: NodeId,
    portal: Portal,
    answers: Rc<Answers>,
}

impl Bench {
    fn new(disk: Rc<Disk>) -> Self {
        let pool = BufPool::new(64 << 20, 0);
        let engine = Engine::new(&pool);
        let node = engine.add_device("disk", disk.clone(), Needs::LEAF, &[]).unwrap();
        let portal = engine.portal("client", node);
        Self { engine, pool, disk, node, portal, answers: Rc::default() }
    }

    fn buf(&self, bytes: &[u8]) -> Buf {
        let buf = self.pool.take(bytes.len()).unwrap();
        buf.write().copy_from_slice(bytes);
        buf
    }

    fn read_of(&self, range: ByteRange) -> Op {
        Op::read(range, self.pool.take(range.len() as usize).unwrap())
    }

    fn call(&self, op: Op) -> (Op, Result<()>) {
        self.engine.submit(&self.portal, op, self.answers.clone(), 0).expect("room for one");
        self.engine.turn();
        self.answers.0.borrow_mut().remove(&0).expect("nothing holds the request up")
    }

    /// Returns the requests that the disk got since the last call.
    fn log(&self) -> Vec<(OpKind, ByteRange, bool)> {
        self.disk.log.take()
    }
}

/// A change by a client: its bytes, and the times of its begin and its end.
struct Change {
    range: ByteRange,
    value: u8,
    begun: u64,
    ended: Option<u64>,
}

/// The changes of all clients in the order of their begins.
#[derive(Default)]
struct History(Vec<Change>);

impl History {
    /// Whether byte `at` may have the value `value` for an observer that began at `begun` and ended at `ended`: that of
    /// a change that no other change has replaced before the observer began.
    fn permits(&self, at: u64, value: u8, (begun, ended): (u64, u64)) -> bool {
        let byte = range(at, 1);
        let there = || self.0.iter().filter(|change| change.range.overlaps(byte));
        let is_replaced = |since: u64| {
            there().any(|other| other.begun > since && other.ended.is_some_and(|end| end < begun))
        };
        if value == 0 && !is_replaced(0) {
            return true;
        }
        there().any(|change| {
            change.value == value
                && change.begun < ended
                && change.ended.is_none_or(|end| !is_replaced(end))
        })
    }
}

/// Clients of two portals send overlapping requests of any offset and length, aligned ones among them. Each read, and
/// the disk at the end, has bytes that an execution of one request after the other could have left.
#[test]
fn unaligned_requests_equal_flat_model_under_concurrent_overlapping_requests() {
    for seed in 0..16 {
        let block = [512, 4096][seed as usize % 2];
        let bench = Bench::new(Disk::new(SIZE, block, 6, seed));
        let other = bench.engine.portal("other", bench.node);
        let mut draws = Draws(seed + 1000);
        let mut history = History::default();
        let mut running: BTreeMap<u64, (u64, Option<usize>)> = BTreeMap::new();
        let (mut time, mut waiting, mut begun, mut held) = (1, None, 0, 0);
        while begun < 150 || !running.is_empty() {
            time += 1;
            if running.len() < 12 && begun < 150 {
                let op = waiting.take().unwrap_or_else(|| draw_op(&bench, &mut draws, block));
                let (changes, value) = match &op {
                    Op::Write { range, data, .. } => (Some(*range), data.read()[0]),
                    Op::WriteZeroes { range, .. } => (Some(*range), 0),
                    _ => (None, 0),
                };
                let portal = if begun % 2 == 0 { &bench.portal } else { &other };
                let sink = bench.answers.clone();
                match bench.engine.submit(portal, op, sink, begun) {
                    Err(op) => {
                        held += 1;
                        waiting = Some(op);
                    }
                    Ok(()) => {
                        let change = changes.map(|range| {
                            history.0.push(Change { range, value, begun: time, ended: None });
                            history.0.len() - 1
                        });
                        running.insert(begun, (time, change));
                        begun += 1;
                    }
                }
            }
            bench.engine.turn();
            if draws.below(2) == 0 {
                bench.disk.pass_step();
                bench.engine.turn();
            }
            time += 1;
            for (token, (op, result)) in bench.answers.0.take() {
                result.unwrap();
                let (since, change) = running.remove(&token).unwrap();
                if let Some(change) = change {
                    history.0[change].ended = Some(time);
                }
                if let Op::Read { range, into, .. } = op {
                    for (at, value) in (range.start()..).zip(into.read().iter()) {
                        let sound = history.permits(at, *value, (since, time));
                        assert!(sound, "seed {seed}: byte {at} of a read is {value}");
                    }
                }
            }
        }
        for (at, value) in (0..).zip(bench.disk.bytes.borrow().iter()) {
            let sound = history.permits(at, *value, (time + 1, time + 2));
            assert!(sound, "seed {seed}: byte {at} is {value} at the end");
        }
        assert!(held > 0, "seed {seed}: no request had to wait");
        drop(waiting);
        assert_eq!((bench.engine.in_flight(), bench.pool.used_bytes()), (0, 0));
        assert_eq!(bench.pool.free_bytes(), bench.pool.limit_bytes());
    }
}

/// Draws a request in a small part of the disk, so that requests overlap. Half of all requests are aligned.
fn draw_op(bench: &Bench, draws: &mut Draws, block: u32) -> Op {
    let start = draws.below(SIZE - 1);
    let len = 1 + draws.below((SIZE - start).min(1500));
    let range = match range(start, len) {
        range if draws.below(2) == 0 => range.widen(block).unwrap(),
        range => range,
    };
    match draws.below(8) {
        0..4 => {
            let value = 1 + draws.below(255) as u8;
            Op::write(range, bench.buf(&vec![value; range.len() as usize]))
        }
        4 => Op::WriteZeroes { range, unmap: true, fua: false },
        _ => bench.read_of(range),
    }
}

#[test]
fn unaligned_write_reads_only_blocks_at_its_ends_and_keeps_fua() {
    let bench = Bench::new(Disk::new(SIZE, 512, 0, 0));
    bench.disk.bytes.borrow_mut().fill(9);
    let cases = [
        (range(1, 10), vec![range(0, 512)], range(0, 512)),
        (range(100, 1000), vec![range(0, 512), range(1024, 512)], range(0, 1536)),
        (range(512, 513), vec![range(1024, 512)], range(512, 1024)),
        (range(1000, 24), vec![range(512, 512)], range(512, 512)),
        (range(0, 1), vec![range(0, 512)], range(0, 512)),
        (range(SIZE - 1, 1), vec![range(SIZE - 512, 512)], range(SIZE - 512, 512)),
    ];
    for (at, read, written) in cases {
        for fua in [false, true] {
            let data = bench.buf(&vec![7; at.len() as usize]);
            bench.call(Op::Write { range: at, data, fua, restores: Copies::NONE }).1.unwrap();
            let mut log: Vec<_> = read.iter().map(|range| (OpKind::Read, *range, false)).collect();
            log.push((OpKind::Write, written, fua));
            assert_eq!(bench.log(), log, "{at}");
        }
        for (n, byte) in (0..).zip(bench.disk.bytes.borrow().iter()) {
            assert_eq!(*byte, if at.overlaps(range(n, 1)) { 7 } else { 9 }, "{at}: byte {n}");
        }
        bench.disk.bytes.borrow_mut().fill(9);
    }
}

#[test]
fn unaligned_read_returns_bytes_of_its_range() {
    let bench = Bench::new(Disk::new(SIZE, 512, 0, 0));
    for (n, byte) in (0..).zip(bench.disk.bytes.borrow_mut().iter_mut()) {
        *byte = (n * 7 % 251) as u8;
    }
    for at in [range(1, 10), range(0, 511), range(511, 2), range(513, 3000), range(SIZE - 1, 1)] {
        let (op, result) = bench.call(bench.read_of(at));
        result.unwrap();
        let Op::Read { into, range, .. } = op else { unreachable!() };
        assert_eq!(range, at);
        let at = at.start() as usize..at.end() as usize;
        assert_eq!(into.read()[..], bench.disk.bytes.borrow()[at]);
    }
}

/// Zeroes keep the abilities of the device for whole blocks. A discard leaves the bytes at its ends alone.
#[test]
fn unaligned_zeroes_and_discard_pass_whole_blocks_to_device() {
    let bench = Bench::new(Disk::new(SIZE, 512, 0, 0));
    let at = range(100, 2000);
    bench.disk.bytes.borrow_mut().fill(9);
    bench.call(Op::WriteZeroes { range: at, unmap: true, fua: true }).1.unwrap();
    let whole = range(512, 1536);
    assert!(bench.log().contains(&(OpKind::WriteZeroes, whole, true)));
    let is_zero = |n: usize| bench.disk.bytes.borrow()[n] == 0;
    assert!((0..SIZE as usize).all(|n| is_zero(n) == (100..2100).contains(&n)));

    bench.disk.bytes.borrow_mut().fill(9);
    bench.call(Op::Discard { range: at, fua: true }).1.unwrap();
    assert_eq!(bench.log(), [(OpKind::Discard, whole, true)]);
    assert!((0..SIZE as usize).all(|n| is_zero(n) == (512..2048).contains(&n)));

    // Inside one block.
    bench.disk.bytes.borrow_mut().fill(9);
    bench.call(Op::Discard { range: range(1, 510), fua: false }).1.unwrap();
    assert_eq!(bench.log(), []);
    bench.call(Op::WriteZeroes { range: range(1, 510), unmap: true, fua: false }).1.unwrap();
    assert!((0..SIZE as usize).all(|n| is_zero(n) == (1..511).contains(&n)));
}

#[test]
fn unaligned_block_status_describes_its_range() {
    let bench = Bench::new(Disk::new(SIZE, 512, 0, 0));
    let (op, result) = bench.call(Op::Status { range: range(100, 900), extents: Vec::new() });
    result.unwrap();
    let Op::Status { extents, .. } = op else { unreachable!() };
    let state = |len, state| Extent { len, state };
    assert_eq!(extents, [state(412, State::Data), state(488, State::Hole)]);
}

/// A block that cannot be read is not written, and a failed write leaves no entry that holds later requests up.
#[test]
fn unaligned_write_reports_errors_of_its_read_and_of_its_write() {
    for (verb, before) in [(OpKind::Read, 0), (OpKind::Read, 1), (OpKind::Write, 0)] {
        let bench = Bench::new(Disk::new(SIZE, 512, 0, 0));
        bench.disk.bytes.borrow_mut().fill(9);
        bench.disk.fails.set(Some((verb, before)));
        let data = || bench.buf(&[7; 1000]);
        let (_, result) = bench.call(Op::write(range(100, 1000), data()));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
        assert!(bench.disk.bytes.borrow().iter().all(|byte| *byte == 9));
        bench.disk.fails.set(None);
        bench.call(Op::write(range(100, 1000), data())).1.unwrap();
        assert_eq!(bench.disk.bytes.borrow()[100..1100], [7; 1000]);
        assert_eq!(bench.pool.free_bytes(), bench.pool.limit_bytes());
    }
}

#[test]
fn unaligned_request_past_end_or_to_read_only_device_is_refused() {
    let bench = Bench::new(Disk::new(SIZE, 512, 0, 0));
    let kind = |op| bench.call(op).1.unwrap_err().kind();
    assert_eq!(kind(bench.read_of(range(SIZE - 1, 2))), ErrorKind::OutOfRange);
    assert_eq!(kind(bench.read_of(range(u64::MAX - 1, 1))), ErrorKind::OutOfRange);
    let write = |at| Op::write(at, bench.buf(&vec![1; at.len() as usize]));
    assert_eq!(kind(write(range(SIZE - 1, 2))), ErrorKind::NoSpace);
    assert_eq!(kind(write(range(u64::MAX - 1, 1))), ErrorKind::NoSpace);

    let mut disk = Rc::into_inner(Disk::new(SIZE, 512, 0, 0)).unwrap();
    disk.info.read_only = true;
    let bench = Bench::new(Rc::new(disk));
    let write = Op::write(range(1, 1), bench.buf(&[1]));
    assert_eq!(bench.call(write).1.unwrap_err().kind(), ErrorKind::ReadOnly);
    bench.call(bench.read_of(range(1, 1))).1.unwrap();
}

/// Clients see a disk whose last block has padding only up to the padding.
#[test]
fn request_that_reaches_padding_of_last_block_is_refused() {
    let mut disk = Rc::into_inner(Disk::new(SIZE, 512, 0, 0)).unwrap();
    disk.info.padding = 100;
    let bench = Bench::new(Rc::new(disk));
    for at in [range(SIZE - 512, 512), range(SIZE - 101, 2), range(0, SIZE)] {
        let (_, result) = bench.call(bench.read_of(at));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfRange, "{at}");
        let write = Op::write(at, bench.buf(&vec![1; at.len() as usize]));
        assert_eq!(bench.call(write).1.unwrap_err().kind(), ErrorKind::NoSpace, "{at}");
    }
    for at in [range(SIZE - 512, 412), range(SIZE - 101, 1), range(0, SIZE - 100)] {
        bench.call(bench.read_of(at)).1.unwrap();
        let write = Op::write(at, bench.buf(&vec![1; at.len() as usize]));
        bench.call(write).1.unwrap();
    }
    let zeroes = Op::WriteZeroes { range: range(0, SIZE - 100), unmap: true, fua: false };
    bench.call(zeroes).1.unwrap();
}

/// A long request takes the buffers of one piece.
#[test]
fn unaligned_request_needs_bounded_memory() {
    const LONG: u64 = 8 << 20;
    let bench = Bench::new(Disk::new(LONG + 4096, 512, 2, 0));
    let data: Vec<u8> = (0..LONG).map(|n| (n * 13 / 7) as u8).collect();
    let write = Op::write(range(1, LONG), bench.buf(&data));
    let used = bench.pool.used_bytes();
    assert!(bench.engine.submit(&bench.portal, write, bench.answers.clone(), 0).is_ok());
    // The reserve of two buffers, each for a piece and two more blocks, and the buffers in use.
    let taken = bench.pool.limit_bytes() - bench.pool.free_bytes() - used;
    assert!(taken <= 6 * PIECE_BYTES as usize, "{taken} bytes are taken");
    while bench.answers.0.borrow().is_empty() {
        let more = bench.pool.used_bytes() - used;
        assert!(more <= 2 * PIECE_BYTES as usize, "{more} bytes are used");
        bench.engine.turn();
        bench.disk.pass_step();
    }
    bench.answers.0.take().remove(&0).unwrap().1.unwrap();
    assert!(bench.disk.bytes.borrow()[1..=LONG as usize] == data);
    let log = bench.log();
    let reads = log.iter().filter(|(verb, ..)| *verb == OpKind::Read).count();
    let writes = log.iter().filter(|(verb, ..)| *verb == OpKind::Write).count();
    assert_eq!((reads, writes as u64), (2, LONG / PIECE_BYTES + 1));
}

/// An aligned write begins at once if no request in pieces rewrites its blocks, and waits otherwise. A read never waits.
#[test]
fn aligned_write_waits_only_for_rewrite_of_its_blocks() {
    let bench = Bench::new(Disk::new(SIZE, 512, 2, 3));
    let submit = |op, token| bench.engine.submit(&bench.portal, op, bench.answers.clone(), token);
    let write = |at: ByteRange| Op::write(at, bench.buf(&vec![1; at.len() as usize]));
    assert!(submit(write(range(600, 10)), 0).is_ok());
    assert!(submit(write(range(1024, 512)), 1).is_ok());
    assert!(submit(bench.read_of(range(512, 512)), 2).is_ok());
    assert!(submit(bench.read_of(range(700, 5)), 3).is_ok());
    let held = submit(write(range(0, 1024)), 4).unwrap_err();
    assert!(submit(write(range(1000, 5)), 4).is_err());
    let mut room = Box::pin(bench.engine.wait_capacity(&bench.portal, &held, None));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut cx).is_pending());
    while !bench.answers.0.borrow().contains_key(&0) {
        bench.disk.pass_step();
        bench.engine.turn();
    }
    assert!(room.as_mut().poll(&mut cx).is_ready());
}

/// An unaligned write waits for the aligned write that began before it, and does not undo it.
#[test]
fn unaligned_write_keeps_bytes_of_aligned_write_in_flight() {
    let bench = Bench::new(Disk::new(SIZE, 512, 40, 5));
    let aligned = Op::write(range(0, 512), bench.buf(&[1; 512]));
    let unaligned = Op::write(range(10, 10), bench.buf(&[2; 10]));
    for (token, op) in [aligned, unaligned].into_iter().enumerate() {
        assert!(
            bench.engine.submit(&bench.portal, op, bench.answers.clone(), token as u64).is_ok()
        );
    }
    while bench.answers.0.borrow().len() < 2 {
        bench.disk.pass_step();
        bench.engine.turn();
    }
    let bytes = bench.disk.bytes.borrow();
    assert_eq!((bytes[9], bytes[10], bytes[19], bytes[20], bytes[511]), (1, 2, 2, 1, 1));
}

/// A request longer than the device's longest is divided, and its pieces use the client's buffer.
#[test]
fn request_above_longest_transfer_is_divided_without_copy() {
    let mut disk = Rc::into_inner(Disk::new(1 << 20, 512, 0, 0)).unwrap();
    disk.info.max_transfer = 100_352;
    let bench = Bench::new(Rc::new(disk));
    let data: Vec<u8> = (0..300_544).map(|n| (n * 31 / 7) as u8).collect();
    let at = range(1024, 300_544);
    let buf = bench.buf(&data);
    let used = bench.pool.used_bytes();
    bench
        .call(Op::Write { range: at, data: buf.clone(), fua: true, restores: Copies::NONE })
        .1
        .unwrap();
    let pieces = [range(1024, 100_352), range(101_376, 100_352), range(201_728, 99_840)];
    assert_eq!(bench.log(), pieces.map(|piece| (OpKind::Write, piece, true)));
    assert_eq!(bench.pool.used_bytes(), used);
    assert!(bench.disk.bytes.borrow()[1024..][..data.len()] == data);
    drop(buf);
    let (op, result) = bench.call(bench.read_of(at));
    result.unwrap();
    let Op::Read { into, .. } = op else { unreachable!() };
    assert!(into.read()[..] == data);
    assert_eq!(bench.log(), pieces.map(|piece| (OpKind::Read, piece, false)));
    // Whole blocks of the longest length go to the device as they are.
    bench.call(bench.read_of(range(0, 100_352))).1.unwrap();
    assert_eq!(bench.log(), [(OpKind::Read, range(0, 100_352), false)]);
}

/// A connection keeps the buffer in which a payload arrived, at any address that the device of that time accepted.
#[test]
fn buffer_at_address_that_device_refuses_is_copied() {
    let mut disk = Rc::into_inner(Disk::new(SIZE, 512, 0, 0)).unwrap();
    disk.info.buf_align = 4096;
    let bench = Bench::new(Rc::new(disk));
    let buf = bench.buf(&[[0; 512], [5; 512]].concat());
    let written = Op::write(range(1024, 512), buf.slice(512..1024));
    bench.call(written).1.unwrap();
    assert_eq!(bench.disk.bytes.borrow()[1024..1536], [5; 512]);
    let into = bench.buf(&[0; 1024]);
    bench.call(Op::read(range(1024, 512), into.slice(512..1024))).1.unwrap();
    assert_eq!(into.read()[512..], [5; 512]);
}
