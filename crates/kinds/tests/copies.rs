//! Tests the numbers of copies over random trees of mirrors and tables: a read gets the copy that it asks for, and no
//! copy that it avoids; a write that restores copies reaches these copies alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::control::copies::{Changed, Numbers, Pending, Ranges, Verdict, Verified, Wrong};
use block::control::member::{Fail, Name, Resync, Stale};
use block::control::{Command, Member, Nothing, Verb};
use block::{Buf, ByteRange, COPIES_MAX, Copies, Device, Done, Error, ErrorKind, Info, Lower};
use block::{MemberState, Needs, Op, Request, Result, State, push_extent};
use kind::Value;
use kinds::REGISTRY;
use sim::draw::Stream;
use sim::{Assembly, PartId, SimWorld};

const SECTOR: u64 = 512;

/// Bytes of each disk, and of the chunks of a stripe.
const DISK_BYTES: u64 = 16 << 10;
const CHUNK: u64 = 2 << 10;

/// A disk on which each sector contains the number of the disk and that of the sector, whatever is written to it.
struct Leaf {
    number: u32,
    info: Info,
    disks: Rc<Disks>,
}

/// State of all disks.
#[derive(Default)]
struct Disks {
    /// The sectors that were written.
    written: RefCell<Vec<Place>>,
    /// Numbers of the disks, as bits, that fail each read but last resorts.
    unverified: Cell<u64>,
}

fn stamp(leaf: u32, sector: u64) -> Vec<u8> {
    let word = u64::from(leaf) << 32 | sector;
    word.to_le_bytes().repeat(SECTOR as usize / 8)
}

impl Device for Leaf {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { last_resort: false, .. }
                if self.disks.unverified.get() & (1 << self.number) != 0 =>
            {
                return Err(Error::new(ErrorKind::Io, "the bytes cannot be verified"));
            }
            Op::Read { range, into, .. } => {
                let sectors = range.start() / SECTOR..range.end() / SECTOR;
                let bytes: Vec<u8> = sectors.flat_map(|at| stamp(self.number, at)).collect();
                into.write().copy_from_slice(&bytes);
            }
            Op::Status { range, extents } => push_extent(extents, range.len(), State::Data),
            Op::Write { range, .. } => {
                let sectors = range.start() / SECTOR..range.end() / SECTOR;
                self.disks.written.borrow_mut().extend(sectors.map(|at| (self.number, at)));
            }
            Op::WriteZeroes { .. } | Op::Discard { .. } | Op::Flush => {}
        }
        Ok(())
    }
}

/// A random device. It maps each copy of its sectors to a sector of a leaf.
enum Tree {
    Leaf(u32),
    Mirror(Vec<Tree>),
    Concat(Vec<Tree>),
    Stripe(Vec<Tree>),
    /// The sectors of the device below from this sector on.
    Linear(u64, Box<Tree>),
}

/// A sector of a leaf.
type Place = (u32, u64);

impl Tree {
    /// Draws a tree of at most `depth` levels above its leaves, of which `leaves` is the number so far.
    fn draw(draw: &Stream, depth: u32, leaves: &mut u32) -> Self {
        let what = if depth == 0 { 0 } else { draw.below(6) };
        let mut some = |least, most| {
            let count = draw.within(least, most);
            (0..count).map(|_| Self::draw(draw, depth - 1, leaves)).collect()
        };
        match what {
            0 => {
                *leaves += 1;
                Self::Leaf(*leaves - 1)
            }
            1 | 2 => Self::Mirror(some(2, 4)),
            3 => Self::Concat(some(2, 3)),
            4 => Self::Stripe(some(2, 3)),
            _ => {
                let below = some(1, 1).remove(0);
                Self::Linear(draw.below(below.sectors() / 2), Box::new(below))
            }
        }
    }

    fn sectors(&self) -> u64 {
        let least = |all: &[Self]| all.iter().map(Self::sectors).min().unwrap();
        match self {
            Self::Leaf(_) => DISK_BYTES / SECTOR,
            Self::Mirror(members) => least(members),
            Self::Concat(lowers) => lowers.iter().map(Self::sectors).sum(),
            Self::Stripe(lowers) => {
                let chunk = CHUNK / SECTOR;
                (least(lowers) / chunk).max(1) * chunk * lowers.len() as u64
            }
            Self::Linear(start, below) => below.sectors() - start,
        }
    }

    /// Returns the number of copies of the sector with the most, depth first.
    fn copies(&self) -> usize {
        match self {
            Self::Leaf(_) => 1,
            Self::Mirror(members) => members.iter().map(Self::copies).sum(),
            Self::Concat(all) | Self::Stripe(all) => all.iter().map(Self::copies).max().unwrap(),
            Self::Linear(_, below) => below.copies(),
        }
    }

    /// Returns for each number of a copy the place of that copy of a sector, if the sector has it.
    fn places(&self, at: u64) -> Vec<Option<Place>> {
        let mut places = match self {
            Self::Leaf(leaf) => vec![Some((*leaf, at))],
            Self::Mirror(members) => members.iter().flat_map(|one| one.places(at)).collect(),
            Self::Linear(start, below) => below.places(start + at),
            Self::Concat(lowers) => {
                let (mut at, mut n) = (at, 0);
                while at >= lowers[n].sectors() {
                    at -= lowers[n].sectors();
                    n += 1;
                }
                lowers[n].places(at)
            }
            Self::Stripe(lowers) => {
                let (chunk, count) = (CHUNK / SECTOR, lowers.len() as u64);
                let row = at / chunk / count;
                lowers[(at / chunk % count) as usize].places(row * chunk + at % chunk)
            }
        };
        places.resize(self.copies(), None);
        places
    }

    fn build(&self, graph: &mut Assembly, disks: &Rc<Disks>) -> PartId {
        let text = |word: &str| Value::Text(word.to_owned());
        match self {
            Self::Leaf(number) => {
                // Short requests need few buffers in deep trees.
                let disk = Info::disk(DISK_BYTES, SECTOR as u32);
                let info = Info { max_transfer: 8192, ..disk };
                let leaf = Leaf { number: *number, info, disks: disks.clone() };
                graph.adopt(&format!("leaf{number}"), Rc::new(leaf), Needs::LEAF, &[]).unwrap()
            }
            Self::Mirror(members) => {
                let on: Vec<_> = members.iter().map(|member| member.build(graph, disks)).collect();
                let trust = text(graph.name(on[0]));
                graph.add("mirror", &[("trust", trust)], &on).unwrap()
            }
            Self::Concat(lowers) => {
                let on: Vec<_> = lowers.iter().map(|lower| lower.build(graph, disks)).collect();
                graph.add("concat", &[], &on).unwrap()
            }
            Self::Stripe(lowers) => {
                let on: Vec<_> = lowers.iter().map(|lower| lower.build(graph, disks)).collect();
                graph.add("stripe", &[("chunk", Value::Size(CHUNK))], &on).unwrap()
            }
            Self::Linear(start, below) => {
                let on = below.build(graph, disks);
                graph.add("linear", &[("start", Value::Size(start * SECTOR))], &[on]).unwrap()
            }
        }
    }
}

/// A graph with the devices of a tree, of which all members are in sync.
struct Bench {
    world: SimWorld,
    lower: Lower,
    tree: Tree,
    graph: Assembly,
    top: PartId,
    disks: Rc<Disks>,
}

impl Bench {
    fn new(seed: u64, tree: Tree, fuse: bool) -> Self {
        let world = SimWorld::new(seed);
        let order = Stream::new(seed, "order", 0);
        let mut graph = Assembly::new(&world.env(), REGISTRY, fuse, order).in_world(&world);
        let disks = Rc::default();
        let top = tree.build(&mut graph, &disks);
        // The members that are not trusted get a resync.
        world.run(world.env().now().after(Duration::from_secs(60))).unwrap();
        let lower = graph.lower(top);
        assert_eq!(lower.info().size, tree.sectors() * SECTOR);
        assert_eq!(lower.info().copies as usize, tree.copies().min(COPIES_MAX as usize));
        Self { world, lower, tree, graph, top, disks }
    }

    fn call(&self, op: Op) -> Done {
        let lower = self.lower.clone();
        self.world.block_on(async move { lower.call(op).await }).unwrap()
    }

    /// Reads `sectors` sectors, and returns the bytes and the copies that the read reports.
    fn read(&self, at: u64, sectors: u64, avoid: Copies) -> (Buf, Copies) {
        let range = ByteRange::new(at * SECTOR, sectors * SECTOR).unwrap();
        let into = self.world.env().buf(range.len() as usize).unwrap();
        let done = self.call(Op::Read { range, into, avoid, last_resort: false });
        let copies = done.copies();
        (done.into_buf().unwrap(), copies)
    }

    /// Returns the numbers of the copies of a sector that requests can name.
    fn numbered(&self, at: u64) -> Vec<(usize, Place)> {
        let places = self.tree.places(at).into_iter().take(COPIES_MAX as usize).enumerate();
        places.filter_map(|(n, place)| Some((n, place?))).collect()
    }

    fn is(&self, bytes: &[u8], place: Place) -> bool {
        bytes == stamp(place.0, place.1)
    }

    /// Reads each copy of a range alone.
    fn check_each_copy(&self, at: u64, sectors: u64) {
        for n in 0..COPIES_MAX as usize + 2 {
            let avoid = Copies::all_but(n);
            let (bytes, copies) = self.read(at, sectors, avoid);
            let mut exists = false;
            for (sector, bytes) in (at..).zip(bytes.read().chunks(SECTOR as usize)) {
                let numbered = self.numbered(sector);
                if let Some((_, place)) = numbered.iter().find(|(number, _)| *number == n) {
                    exists = true;
                    assert!(self.is(bytes, *place), "copy {n} of sector {sector}");
                }
            }
            assert_eq!(copies.has(n), exists, "copy {n} of sectors {at} + {sectors}");
            assert!(avoid.is_within(copies));
        }
    }

    /// Reads one sector while avoiding some copies of it.
    fn check_avoid(&self, at: u64, avoid: Copies) {
        let (bytes, copies) = self.read(at, 1, avoid);
        let numbered = self.numbered(at);
        let from = numbered.iter().find(|(_, place)| self.is(&bytes.read(), *place));
        let Some((n, _)) = from else {
            let all = Copies(numbered.iter().fold(0, |all, (n, _)| all | 1 << n));
            assert!(all.is_within(avoid), "sector {at}, avoiding {avoid:x?}: another copy is left");
            return;
        };
        assert_eq!(copies, avoid.with(*n), "sector {at}, avoiding {avoid:x?}");
        let left = numbered.iter().any(|(n, _)| !avoid.has(*n));
        assert!(!avoid.has(*n) || !left, "sector {at}: copy {n} was read, avoiding {avoid:x?}");
    }

    /// Restores copies of a range, and returns the sectors that were written.
    fn restore(&self, at: u64, sectors: u64, copies: Copies) -> Result<Vec<Place>> {
        let range = ByteRange::new(at * SECTOR, sectors * SECTOR).unwrap();
        let data = self.world.env().buf(range.len() as usize).unwrap();
        self.disks.written.take();
        self.call(Op::restore(range, data, copies)).result?;
        let mut written = self.disks.written.take();
        written.sort_unstable();
        Ok(written)
    }

    fn check_restore(&self, at: u64, sectors: u64, copies: Copies) {
        let named = (at..at + sectors).flat_map(|at| self.numbered(at));
        let named = named.filter(|(n, _)| copies.has(*n)).map(|(_, place)| place);
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        let written = self.restore(at, sectors, copies).unwrap();
        assert_eq!(written, named, "copies {copies:x?} of sectors {at} + {sectors}");
    }

    fn check(&self, draw: &Stream) {
        for _ in 0..4 {
            let at = draw.below(self.tree.sectors());
            self.check_each_copy(at, 1);
            self.check_each_copy(at, draw.within(1, (self.tree.sectors() - at).min(12)));
        }
        for _ in 0..40 {
            let few = Copies(draw.below(1 << self.tree.copies().min(31)) as u32);
            let at = draw.below(self.tree.sectors());
            self.check_avoid(at, few);
            // Without a copy it would be a write of new content.
            if few != Copies::NONE {
                self.check_restore(at, draw.within(1, (self.tree.sectors() - at).min(12)), few);
            }
        }
    }
}

#[test]
fn copies_of_random_trees_are_read_by_number_depth_first() {
    for seed in 0..60 {
        let draw = Stream::new(seed, "tree", 0);
        let tree = Tree::draw(&draw, 3, &mut 0);
        Bench::new(seed, tree, seed % 2 == 0).check(&draw);
    }
}

#[test]
fn restore_of_copy_changes_no_member_and_fails_if_member_is_out_of_service() {
    let bench = Bench::new(1, Tree::Mirror(vec![Tree::Leaf(0), Tree::Leaf(1)]), false);
    let states = || -> Vec<_> {
        bench.graph.report(bench.top).members.iter().map(|member| member.state).collect()
    };
    assert_eq!(bench.restore(3, 1, Copies(0b10)).unwrap(), [(1, 3)]);
    assert_eq!(states(), [MemberState::InSync; 2]);
    let member = bench.graph.report(bench.top).members[1].name.clone();
    bench.graph.ask::<Fail>(bench.top, Name { member }).unwrap();
    assert_eq!(bench.restore(3, 1, Copies(0b10)).unwrap_err().kind(), ErrorKind::Faulted);
    assert_eq!(bench.restore(3, 1, Copies(0b01)).unwrap(), [(0, 3)]);
    assert_eq!(states(), [MemberState::InSync, MemberState::Failed]);
}

#[test]
fn last_resort_reads_unverified_copy_only_after_all_copies_have_failed() {
    let inner = Tree::Mirror(vec![Tree::Leaf(1), Tree::Leaf(2)]);
    let bench = Bench::new(9, Tree::Mirror(vec![Tree::Leaf(0), inner]), false);
    let read = |last_resort| {
        let into = bench.world.env().buf(SECTOR as usize).unwrap();
        let (range, avoid) = (sectors(0, 1), Copies::NONE);
        let done = bench.call(Op::Read { range, into, avoid, last_resort });
        let bytes = done.into_buf()?.read().to_vec();
        Ok::<_, Error>((0..3).find(|leaf| bench.is(&bytes, (*leaf, 0))).unwrap())
    };
    for right in 0..3 {
        bench.disks.unverified.set(0b111 & !(1 << right));
        assert_eq!([read(true), read(true)], [Ok(right), Ok(right)], "one copy is verified");
    }
    bench.disks.unverified.set(0b111);
    assert_eq!(read(false).unwrap_err().kind(), ErrorKind::Io);
    assert!(read(true).is_ok());
}

fn sectors(at: u64, count: u64) -> ByteRange {
    ByteRange::new(at * SECTOR, count * SECTOR).unwrap()
}

/// A concat of a mirror and a disk; the second member of the mirror is a mirror below a table.
fn stack() -> Bench {
    let inner = Tree::Linear(4, Box::new(Tree::Mirror(vec![Tree::Leaf(1), Tree::Leaf(2)])));
    let outer = Tree::Mirror(vec![Tree::Leaf(0), inner]);
    Bench::new(5, Tree::Concat(vec![outer, Tree::Leaf(3)]), true)
}

impl Bench {
    fn ask<V: Verb>(&self, range: ByteRange, args: V::Args) -> Result<V::Answer> {
        let (lower, command) = (self.lower.clone(), Command::new::<V>(args).at(range));
        self.world.block_on(async move { lower.control::<V>(command).await }).unwrap()
    }

    /// Returns the errors and states of the members of each mirror, the lower mirror first.
    fn members(&self) -> Vec<Vec<(u64, MemberState)>> {
        let mirrors = (0..=self.top).map(|part| self.graph.report(part).members);
        let state = |member: &Member| (member.errors, member.state);
        mirrors.filter(|all| !all.is_empty()).map(|all| all.iter().map(state).collect()).collect()
    }
}

#[test]
fn wrong_copies_count_as_read_errors_of_member_that_has_them() {
    let bench = stack();
    let wrong = |copies: u32| bench.ask::<Wrong>(sectors(2, 1), Numbers { copies });
    wrong(0b001).unwrap();
    wrong(0b100).unwrap();
    let sync = MemberState::InSync;
    assert_eq!(bench.members(), [[(0, sync), (1, sync)], [(1, sync), (0, sync)]]);
    // A range that reaches into the disk, which has no other copy.
    bench.ask::<Wrong>(sectors(20, 20), Numbers { copies: 0b100 }).unwrap();
    let alone = bench.ask::<Wrong>(sectors(30, 1), Numbers { copies: 1 });
    assert_eq!(alone.unwrap_err().kind(), ErrorKind::Unsupported);
    for _ in 0..8 {
        wrong(0b100).unwrap();
    }
    let failed = MemberState::Failed;
    assert_eq!(bench.members(), [[(0, sync), (10, failed)], [(1, sync), (0, sync)]]);
    // The last member in sync stays.
    for _ in 0..20 {
        wrong(0b010).unwrap();
    }
    assert_eq!(bench.members()[0], [(20, sync), (10, failed)]);
    let far = bench.ask::<Wrong>(sectors(60, 9), Numbers { copies: 1 });
    assert_eq!(far.unwrap_err().kind(), ErrorKind::OutOfRange);
}

#[test]
fn pending_ranges_are_those_that_resync_has_not_copied_yet() {
    let bench = stack();
    let pending = |range| bench.ask::<Pending>(range, Nothing {}).unwrap();
    let all = sectors(0, bench.tree.sectors());
    assert_eq!(pending(all), Ranges::default());
    let lower = (0..=bench.top).find(|part| !bench.graph.report(*part).members.is_empty()).unwrap();
    let member = bench.graph.report(lower).members[1].name.clone();
    bench.graph.ask::<Fail>(lower, Name { member }).unwrap();
    assert_eq!(pending(all), Ranges::default(), "a failed member does not return by itself");
    bench.graph.ask::<Resync>(lower, Stale::default()).unwrap();
    // The lower mirror begins 4 sectors before the device above it.
    let mirror = bench.tree.sectors() - DISK_BYTES / SECTOR;
    assert_eq!(pending(all).ranges, [(0, mirror * SECTOR)]);
    assert_eq!(pending(sectors(3, 2)).ranges, [(3 * SECTOR, 2 * SECTOR)]);
    assert_eq!(bench.ask::<Verified>(all, Verdict { alike: true }), Ok(Nothing {}));
    let far = bench.ask::<Verified>(sectors(60, 9), Verdict { alike: true });
    assert_eq!(far.unwrap_err().kind(), ErrorKind::OutOfRange);
    bench.world.run(bench.world.env().now().after(Duration::from_secs(60))).unwrap();
    assert_eq!(pending(all), Ranges::default());
}

#[test]
fn changed_waits_until_member_of_any_mirror_returns() {
    let bench = stack();
    let mirrors: Vec<_> =
        (0..=bench.top).filter(|part| !bench.graph.report(*part).members.is_empty()).collect();
    assert_eq!(mirrors.len(), 2);
    let minute = || bench.world.run(bench.world.env().now().after(Duration::from_secs(60)));
    for mirror in mirrors {
        let ended = Rc::new(Cell::new(false));
        let (done, lower) = (ended.clone(), bench.lower.clone());
        bench.world.env().spawn("a wait for changes", async move {
            let command = Command::new::<Changed>(Nothing {});
            lower.control::<Changed>(command).await.unwrap();
            done.set(true);
        });
        let member = bench.graph.report(mirror).members[1].name.clone();
        bench.graph.ask::<Fail>(mirror, Name { member }).unwrap();
        minute().unwrap();
        assert!(!ended.get());
        bench.graph.ask::<Resync>(mirror, Stale::default()).unwrap();
        minute().unwrap();
        assert!(ended.get());
    }
    let alone = bench.ask::<Changed>(sectors(30, 1), Nothing {});
    assert_eq!(alone.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn copies_beyond_32_are_never_read_by_number() {
    let leaves =
        |first: u32, count: u32| Tree::Mirror((first..first + count).map(Tree::Leaf).collect());
    let shapes: [&[u32]; 3] = [&[8; 8], &[8, 8, 8, 7, 4, 8], &[2, 8, 8, 8, 8]];
    for (seed, counts) in shapes.into_iter().enumerate() {
        let mut first = 0;
        let members = counts.iter().map(|count| {
            first += count;
            leaves(first - count, *count)
        });
        let tree = Tree::Mirror(members.collect());
        let bench = Bench::new(seed as u64, tree, false);
        bench.check(&Stream::new(seed as u64, "beyond", 0));
        for _ in 0..100 {
            let (bytes, copies) = bench.read(0, 1, Copies::NONE);
            let leaf = (0..COPIES_MAX).find(|leaf| bench.is(&bytes.read(), (*leaf, 0)));
            assert_eq!(copies, Copies::NONE.with(leaf.expect("a copy with a number") as usize));
        }
    }
}
