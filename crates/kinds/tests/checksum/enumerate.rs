//! Power cuts at any write to a checksum device above a mirror, and to a mirror of checksum devices: any member is the source,
//! and a block that was durable long before rots on either copy, beside torn ones.

use std::rc::Rc;
use std::time::Duration;

use block::{Buf, Device, Info, Lower, MemberState, Needs, Op, Request, Result};
use kind::{Surroundings, Upper, Value};
use kinds::checksum::{BLOCK_BYTES, Core, Redundancy};
use meta::vault::Vault;
use sim::draw::Stream;
use sim::{Assembly, Labels, PartId, SimWorld};
use testkit::Shelf;
use testkit::recorded::{Disk, Event, Moment, Trace};

use crate::above::{USED, Versions, check};
use crate::scene::{
    Crash, DATA_BYTES, DATA_START, VAULT_BYTES, block_on, content, data_of, format_vault,
    formatted, open_core, read, run, slice,
};
use crate::unverified::{Sums, needs};

/// Numbers of the writes behind which a flush follows.
const FLUSHED: [u64; 2] = [1, 5];

/// The writes: each has a block and its version. Block 0 is written first alone, and flushed; block 1 is in its region.
const WRITES: [(u64, u64); 7] = [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3)];

/// The place of the checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    AboveMirror,
    BelowMirror,
}

/// A disk of the mirror.
struct Direct(Lower);

impl Device for Direct {
    fn info(&self) -> &Info {
        self.0.info()
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.0.forward(&mut request.op).await
    }
}

struct Graph {
    world: SimWorld,
    graph: Assembly,
    mirror: PartId,
    members: Vec<Rc<Sums>>,
    top: Option<(Core, Vault)>,
}

impl Graph {
    /// Opens the devices on recorded disks. Member `source` is the source after an unclean stop.
    fn open(
        world: &SimWorld,
        place: Place,
        disks: &[Rc<Disk>],
        shelf: &Rc<Shelf>,
        source: usize,
    ) -> Self {
        let env = world.env();
        let graph = Assembly::new(&env, kinds::REGISTRY, false, Stream::new(1, "order", 0));
        let mut graph = graph.in_world(world).on_labels(shelf.clone());
        let mut members = Vec::new();
        let mut parts = Vec::new();
        for (n, disk) in disks[..2].iter().enumerate() {
            let name = format!("member{n}");
            parts.push(match place {
                Place::AboveMirror => {
                    let direct = Rc::new(Direct(slice(disk, n, 0, DATA_BYTES)));
                    graph.adopt(&name, direct, Needs::LEAF, &[]).unwrap()
                }
                Place::BelowMirror => {
                    let vault = slice(disk, 10 + n, 0, VAULT_BYTES);
                    let lowers = (&vault, &vault, data_of(disk));
                    let opened = open_core(&env, lowers, Crash::Regions, Redundancy::Above);
                    let sums = Sums::new(block_on(world, opened).unwrap());
                    members.push(sums.clone());
                    graph.adopt(&name, sums, needs(), &[]).unwrap()
                }
            });
        }
        let verifies = place == Place::AboveMirror;
        let uppers = vec![Upper { name: "top".to_owned(), verifies }];
        graph.surround(Surroundings { uppers, ..Surroundings::default() });
        let trust = ("trust", Value::Text(format!("member{source}")));
        let region = ("region", Value::Size(DATA_BYTES));
        let mirror = graph.add("mirror", &[trust, region], &parts).unwrap();
        Self { world: world.clone(), graph, mirror, members, top: None }
    }

    /// Opens the checksum device above the mirror, if there is one.
    fn open_top(&mut self, place: Place, disks: &[Rc<Disk>]) {
        if place == Place::AboveMirror {
            let vault = slice(&disks[2], 9, 0, VAULT_BYTES);
            let lowers = (&vault, &vault, self.graph.lower(self.mirror));
            let env = self.world.env();
            let opened = open_core(&env, lowers, Crash::Regions, Redundancy::Below);
            self.top = Some(block_on(&self.world, opened).unwrap());
        }
    }

    fn submit(&self, op: Op) -> Result<()> {
        let lower = self.graph.lower(self.mirror);
        let mut op = op;
        block_on(&self.world, async {
            match &self.top {
                Some((core, _)) => core.submit(&mut op).await,
                None => lower.call(op).await.result,
            }
        })
    }

    fn write(&self, block: u64, version: u64) {
        let data = self.world.env().buf(BLOCK_BYTES as usize).unwrap();
        data.write().copy_from_slice(&content(block, version));
        self.submit(Op::write(run(block, 1), data)).unwrap();
    }

    fn read(&self, block: u64) -> Result<Vec<u8>> {
        let (env, lower) = (self.world.env(), self.graph.lower(self.mirror));
        block_on(&self.world, async {
            match &self.top {
                Some((core, _)) => read(&env, core, run(block, 1), false).await,
                None => {
                    let into: Buf = env.buf(BLOCK_BYTES as usize)?;
                    let found = lower.read(run(block, 1), into).await?;
                    let bytes = found.read().to_vec();
                    Ok(bytes)
                }
            }
        })
    }

    fn pass(&self, seconds: u64) {
        let until = self.world.env().now().after(Duration::from_secs(seconds));
        self.world.run(until).unwrap();
    }

    fn states(&self) -> Vec<MemberState> {
        let report = self.graph.report(self.mirror);
        report.members.iter().map(|member| member.state).collect()
    }

    /// Returns the numbers of all checksum devices: damaged blocks, and unverified bytes.
    fn numbers(&self) -> (u64, u64) {
        let members = self.members.iter().map(|sums| sums.core.numbers());
        let top = self.top.iter().map(|(core, _)| core.numbers());
        members.chain(top).fold((0, 0), |(damaged, unverified), one| {
            (damaged + one.damaged, unverified + one.unverified_bytes)
        })
    }
}

/// Byte of a disk at which its data begin.
fn data_start(place: Place) -> usize {
    if place == Place::AboveMirror { 0 } else { DATA_START as usize }
}

/// The state of the disks that a power cut has left, and the fault of a disk besides.
struct Case<'c> {
    place: Place,
    images: Vec<Vec<u8>>,
    shelf: &'c Shelf,
    source: usize,
    /// The member on which block 0 has rotted.
    rotten: Option<usize>,
    /// Whether clients read before the scans have ended.
    reads: bool,
}

impl Case<'_> {
    fn look(self, versions: &Versions, what: &str) {
        let (world, trace) = (SimWorld::new(2), Trace::default());
        let env = world.env();
        let disk = |(n, image)| Disk::new(n, image, &trace);
        let disks: Vec<_> = self.images.into_iter().enumerate().map(disk).collect();
        let shelf = Shelf::strict(&env, Stream::new(2, "shelf", 0), Vec::new());
        // The mirror was started before.
        drop(shelf.clone().kept("mirror2", &[]));
        shelf.restore(self.shelf.states());
        shelf.close(false);
        let start = data_start(self.place);
        if let Some(rotten) = self.rotten {
            disks[rotten].bytes.borrow_mut()[start + 9] ^= 1;
        }
        let mut graph = Graph::open(&world, self.place, &disks, &shelf, self.source);
        graph.open_top(self.place, &disks);
        let found: Vec<_> = match self.reads {
            true => (0..USED).map(|block| graph.read(block).expect(what)).collect(),
            false => Vec::new(),
        };
        graph.pass(30);
        for block in 0..USED {
            let bytes = graph.read(block).expect(what);
            check(block, &bytes, &versions[block as usize], what);
            assert!(!self.reads || found[block as usize] == bytes, "{what}: block {block}, again");
        }
        graph.submit(Op::Flush).unwrap();
        assert_eq!(graph.states(), [MemberState::InSync; 2], "{what}");
        assert_eq!(graph.numbers(), (0, 0), "{what}");
        let data = |n: usize| disks[n].bytes.borrow()[start..][..DATA_BYTES as usize].to_vec();
        assert!(data(0) == data(1), "{what}: the members differ");
    }
}

/// Writes to a new stack. Returns the disks before, the events, and the labels.
fn recorded(place: Place) -> (Vec<Vec<u8>>, Vec<Event>, Rc<Shelf>) {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let mut images: Vec<Vec<u8>> = Vec::new();
    if place == Place::AboveMirror {
        let vault = Disk::new(2, vec![0; VAULT_BYTES as usize], &Trace::default());
        let data = Disk::new(0, vec![0; DATA_BYTES as usize], &Trace::default());
        let lower = slice(&vault, 0, 0, VAULT_BYTES);
        let data = slice(&data, 1, 0, DATA_BYTES);
        block_on(&world, format_vault(&env, &lower, &data, true));
        images.extend([vec![0; DATA_BYTES as usize], vec![0; DATA_BYTES as usize]]);
        images.push(vault.bytes.borrow().clone());
    } else {
        for _ in 0..2 {
            let disk = block_on(&world, formatted(&env, &Trace::default(), true));
            images.push(disk.bytes.borrow().clone());
        }
    }
    let disk = |(n, image): (usize, &Vec<u8>)| Disk::new(n, image.clone(), &trace);
    let disks: Vec<_> = images.iter().enumerate().map(disk).collect();
    let shelf = Shelf::strict(&env, Stream::new(1, "shelf", 0), Vec::new());
    let mut graph = Graph::open(&world, place, &disks, &shelf, 0);
    graph.open_top(place, &disks);
    graph.pass(30);
    assert_eq!(graph.states(), [MemberState::InSync; 2]);
    let before = disks.iter().map(|disk| disk.bytes.borrow().clone()).collect();
    trace.take();
    for (number, (block, version)) in (1..).zip(WRITES) {
        trace.note(Event::Begun(number));
        graph.write(block, version);
        if FLUSHED.contains(&number) {
            graph.submit(Op::Flush).unwrap();
            trace.note(Event::Answered(number));
        }
    }
    (before, trace.take(), shelf)
}

fn enumerate(place: Place) -> usize {
    let (before, mut events, shelf) = recorded(place);
    let mut moments: Vec<_> = before.into_iter().map(Moment::new).collect();
    let mut versions: Versions = std::array::from_fn(|_| vec![0]);
    let mut states = 0_usize;
    events.extend((0..moments.len()).map(|disk| Event::Flush { disk }));
    for (number, event) in events.into_iter().enumerate() {
        match &event {
            Event::Begun(step) => {
                let (block, version) = WRITES[*step as usize - 1];
                versions[block as usize].push(version);
            }
            Event::Answered(_) => {
                for versions in &mut versions {
                    versions.drain(..versions.len() - 1);
                }
            }
            Event::Flush { disk } => {
                let is_cold = versions[0] == [1];
                moments[*disk].cuts(|image| {
                    states += 1;
                    let other = |n: usize| match (states + n) % 3 {
                        0 => moments[n].with(|_, _| false),
                        1 => moments[n].with(|_, _| true),
                        _ => moments[n].with(|write, sector| (write + sector) % 2 == 0),
                    };
                    let image_of = |n: usize| if n == *disk { image.clone() } else { other(n) };
                    let images = (0..moments.len()).map(image_of).collect();
                    let rotten = [None, Some(0), Some(1)][states / 3 % 3].filter(|_| is_cold);
                    let (source, reads) = (states / 9 % 2, (states / 18).is_multiple_of(2));
                    let what = format!(
                        "{place:?}, event {number}, state {states}, source {source}, rot on {rotten:?}, reads {reads}"
                    );
                    let case = Case { place, images, shelf: &shelf, source, rotten, reads };
                    case.look(&versions, &what);
                });
                moments[*disk].note(&event);
            }
            Event::Write { disk, .. } => moments[*disk].note(&event),
        }
    }
    states
}

#[test]
fn checksums_above_mirror_give_right_blocks_after_power_cut_and_rot() {
    let states = enumerate(Place::AboveMirror);
    assert!(states > 300, "only {states} states");
}

#[test]
fn mirror_of_checksums_gives_right_blocks_after_power_cut_and_rot() {
    let states = enumerate(Place::BelowMirror);
    assert!(states > 300, "only {states} states");
}
