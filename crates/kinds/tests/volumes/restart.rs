//! Hand-overs of connections: volumes are found by name and identity.

use std::rc::Rc;
use std::time::Duration;

use export::nbd::{Limits, Server};
use export::{ExportList, GraphCatalog};
use wire::nbd::handed;

use crate::rig::{LIMIT, Rig, spec};

/// Identity of the graph's devices in both servers.
const GRAPH: u64 = 7;

/// Hands the connections of `rig` over to another server, which finds the volumes anew. `between` runs when the volumes
/// are closed. Returns the server, and the reasons for which connections were closed.
fn restart(rig: &Rig, between: impl FnOnce()) -> (Server, Vec<String>) {
    let (world, env) = (&rig.world, rig.world.env());
    assert!(world.block_on(rig.server.pause(LIMIT)).unwrap());
    let (states, sockets): (Vec<_>, Vec<_>) = rig.server.hand_over(GRAPH).into_iter().unzip();
    let states = handed::decode(&handed::encode(&states)).unwrap();
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.count("open"), 0, "no connection of the old server is left");
    between();
    let exports = ExportList::new([]);
    let catalog = GraphCatalog::new(&env, &rig.engine, &exports, rig.live.volumes(), "");
    let next = Server::new(&env, Rc::new(catalog), Limits::default(), |_| {});
    let mut closed = Vec::new();
    for (state, socket) in states.into_iter().zip(sockets) {
        let taken = world.block_on(next.take_over(state, socket, GRAPH)).unwrap();
        closed.extend(taken.err());
    }
    (next, closed)
}

#[test]
fn connections_of_volume_go_on_after_handover() {
    let rig = Rig::new(&spec("", "a"));
    rig.snap("left", "left@v1");
    let (left, clone) = (rig.connect("vms/left").unwrap(), rig.connect("vms/left@v1+job").unwrap());
    rig.write(&left, 0, 1);
    rig.write(&clone, 0, 2);
    let (_next, closed) = restart(&rig, || {});
    assert_eq!(closed, Vec::<String>::new());
    assert_eq!((rig.read(&left, 0), rig.read(&clone, 0)), (1, 2));
    rig.write(&left, 4096, 3);
    assert_eq!(rig.read(&left, 4096), 3);
    assert_eq!(rig.count("open"), 2);
}

#[test]
fn connection_is_closed_if_another_volume_has_its_name() {
    let rig = Rig::new(&spec("", "a"));
    let left = rig.connect("vms/left").unwrap();
    rig.write(&left, 0, 1);
    let (_next, closed) = restart(&rig, || {
        rig.remove("left").unwrap();
        rig.create("left");
    });
    assert_eq!(closed.len(), 1);
    assert!(closed[0].contains("have changed"), "{closed:?}");
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.count("open"), 0);
}

#[test]
fn handover_creates_no_volume_for_removed_name() {
    let rig = Rig::new(&spec("", "a"));
    rig.snap("left", "left@v1");
    let _clone = rig.connect("vms/left@v1+job").unwrap();
    let created = rig.count("created");
    let (_next, closed) = restart(&rig, || rig.remove("left@v1+job").unwrap());
    assert!(closed[0].contains("was removed"), "{closed:?}");
    assert_eq!(rig.count("created"), created);
}

/// A device with volumes that is opened again finds the volumes of the process before.
#[test]
fn volumes_are_found_again_after_live_change_and_flush() {
    let rig = Rig::new(&spec("", "a"));
    let left = rig.connect("vms/left").unwrap();
    rig.write(&left, 0, 6);
    left.close();
    rig.pass(Duration::from_secs(1));
    rig.change(&spec("p = { kind = \"pass\", on = \"a\" }\n", "p")).unwrap();
    assert_eq!(rig.read(&rig.connect("vms/left").unwrap(), 0), 6);
}
