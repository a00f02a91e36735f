//! Crashes in starts of a mirror with two disks beneath each member: a state may reach only some disks of a member.

use std::rc::Rc;

use block::Result;
use kind::Value;
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, Profile, SimDisk, SimWorld};
use testkit::Shelf;

const MIB: u64 = 1 << 20;

/// A mirror of two members with two disks each.
struct Scene {
    world: SimWorld,
    shelf: Rc<Shelf>,
}

impl Scene {
    /// Creates the mirror, and serves it once.
    fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        for n in 0..4 {
            let config = DiskConfig::new(MIB, Profile::Native512);
            world.plug(format!("/disk{n}"), &SimDisk::new(&world, n, config));
        }
        let shelf = Shelf::strict(&world.env(), Stream::new(seed, "shelf", 0), Vec::new());
        let scene = Self { world, shelf };
        scene.start(None).expect("all disks are new");
        scene
    }

    /// Starts the mirror. The process dies as soon as it is up, or before, after this number of writes to single labels.
    fn start(&self, writes: Option<u64>) -> Result<()> {
        self.shelf.stop_after(writes);
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&self.world.env(), crate::REGISTRY, false, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let path = |n| Value::Text(format!("/disk{n}"));
        let mut disks = Vec::new();
        for n in 0..4 {
            disks.push(graph.add("path", &[("path", path(n))], &[])?);
        }
        let members =
            [graph.add("concat", &[], &disks[..2])?, graph.add("concat", &[], &disks[2..])?];
        let started = graph.add("mirror", &[], &members).map(drop);
        self.world.drop_tasks();
        started
    }
}

#[test]
fn mirror_opens_after_two_starts_that_reached_only_some_disks_of_members() {
    let mut torn = 0;
    for (first, second) in (0..5).flat_map(|first| (0..9).map(move |second| (first, second))) {
        for seed in 0..4 {
            let scene = Scene::new(seed);
            torn += u64::from(scene.start(Some(first)).is_err());
            torn += u64::from(scene.start(Some(second)).is_err());
            let opened = scene.start(None);
            assert!(opened.is_ok(), "{first} and {second} writes, seed {seed}: {opened:?}");
        }
    }
    assert!(torn > 100, "only {torn} starts died before they were up");
}
