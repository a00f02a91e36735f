//! What only the inside of a mirror shows: its members, and what is on their disks.

use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use block::{ByteRange, Control, Op};
use graph::kind::Value;
use sim::draw::Stream;
use sim::{Assembly, Client, DiskConfig, Faults, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

const MIB: u64 = 1 << 20;

/// Two disks and a mirror over them that trusts the first.
struct Pair {
    world: SimWorld,
    graph: Assembly,
    disks: [Rc<SimDisk>; 2],
    names: [String; 2],
    mirror: PartId,
}

impl Pair {
    fn new(size: u64) -> Self {
        Self::over(size, None)
    }

    /// `shelf`: where it keeps its state, if its disks are labelled.
    fn over(size: u64, shelf: Option<&Rc<Shelf>>) -> Self {
        let world = SimWorld::new(1);
        let order = Stream::new(1, "order", 0);
        let mut graph = Assembly::new(&world.env(), kinds::REGISTRY, false, order).in_world(&world);
        if let Some(shelf) = shelf {
            graph = graph.on_labels(shelf.clone());
        }
        let made = [0, 1].map(|n| {
            let disk = SimDisk::new(&world, n, DiskConfig::new(size, Profile::Native512));
            let path = format!("/disk{n}");
            world.plug(&path, &disk);
            let part = graph.add("path", &[("path", Value::Text(path))], &[]).unwrap();
            (disk, part, graph.name(part).to_owned())
        });
        let parts = [made[0].1, made[1].1];
        let names = [made[0].2.clone(), made[1].2.clone()];
        let trust = [("trust", Value::Text(names[0].clone()))];
        let mirror = graph.add("mirror", &trust, &parts).unwrap();
        let disks = made.map(|(disk, ..)| disk);
        Self { world, graph, disks, names, mirror }
    }

    fn client(&self) -> Client {
        Client::new(&self.graph.engine, self.graph.node(self.mirror))
    }

    fn write_of(&self, start: u64, byte: u8) -> Op {
        let data = self.world.env().buf(4096).unwrap();
        data.write().fill(byte);
        Op::write(ByteRange::new(start, 4096).unwrap(), data)
    }

    fn write(&self, start: u64, byte: u8) {
        let write = self.client().send(self.write_of(start, byte));
        self.world.block_on(write).unwrap().result.unwrap();
    }

    fn second(&self) -> block::Member {
        let report = self.graph.control(self.mirror, &Control::Report).unwrap();
        report.members[1].clone()
    }

    fn pass(&self, time: Duration) {
        self.world.run(self.world.env().now().after(time)).unwrap();
    }

    fn until(&self, over: impl Fn(&block::Member) -> bool) {
        while !over(&self.second()) {
            self.pass(Duration::from_micros(10));
        }
    }

    fn is_alike(&self) -> bool {
        let all = ByteRange::new(0, self.disks[0].config().size).unwrap();
        self.disks[0].peek(all) == self.disks[1].peek(all)
    }
}

#[test]
fn a_member_that_comes_back_is_copied_from_the_beginning() {
    let pair = Pair::new(8 * MIB);
    // Almost done: what the first copy has passed is changed without the member, and then that copy
    // must not be the one that calls it in sync.
    pair.until(|second| second.progress.is_some_and(|(done, _)| done == 7 * MIB));
    let member = pair.names[1].clone();
    pair.graph.control(pair.mirror, &Control::Fail { member: member.clone() }).unwrap();
    pair.write(3 * MIB, 7);
    pair.graph.control(pair.mirror, &Control::Resync { member: Some(member) }).unwrap();
    pair.until(|second| second.state == "in sync");
    assert!(pair.is_alike());
}

#[test]
fn a_member_whose_flush_fails_is_out_before_the_others_have_answered() {
    let pair = Pair::new(MIB);
    pair.until(|second| second.state == "in sync");
    pair.write(0, 7);
    pair.disks[0].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    pair.disks[1].set_faults(Faults { flush_error: 1_000_000, ..Faults::default() });
    let flush = pair.client().send(Op::Flush);
    pair.pass(Duration::from_millis(10));
    assert_eq!(pair.second().state, "failed");
    // The first one's answer is late, and counts.
    pair.world.block_on(flush).unwrap().result.unwrap();
}

/// What is answered has to be found after a crash: the label of the one that has it must say before
/// that the other has not.
#[test]
fn a_write_that_misses_a_member_is_answered_when_that_is_durable() {
    let shelf = Shelf::new();
    let pair = Pair::over(MIB, Some(&shelf));
    pair.until(|second| second.state == "in sync");
    pair.write(0, 7);
    pair.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    shelf.hold(true);
    let mut write = std::pin::pin!(pair.client().send(pair.write_of(4096, 8)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(&mut cx).is_pending());
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.second().state, "failed");
    assert!(write.as_mut().poll(&mut cx).is_pending(), "the label does not say so yet");
    let before = shelf.writes();
    shelf.hold(false);
    pair.world.block_on(write).unwrap().result.unwrap();
    assert!(shelf.writes() > before);
}
