//! Devices and exports on volumes: `on = "vms/left"`.

use std::rc::Rc;
use std::time::Duration;

use block::ErrorKind;
use graph::live::Unchanged;

use crate::change::{Load, PASS};
use crate::rig::{BLOCK, LIMIT, Rig, spec};

/// A device on the volume `left`, and a part of the volume `right`.
const ABOVE: &str = "low = { kind = \"pass\", on = \"vms/left\" }\n\
                     part = { kind = \"partition\", on = \"vms/right\", start = \"8K\", size = \"8K\" }\n\
                     [export]\nlow = { on = \"low\" }\nright = { on = \"part\" }\n";

/// Returns `spec` with names of exports that differ from those of the devices.
fn with_devices(below: &str, on: &str, above: &str) -> String {
    let above = above.replace("\nlow = { on", "\nshown = { on");
    spec(below, on) + &above
}

fn refused<T>(result: Result<T, Unchanged>) -> block::Error {
    match result {
        Ok(_) => panic!("it is refused"),
        Err(Unchanged::Failed(error)) => error,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn device_on_volume_shows_its_bytes() {
    let rig = Rig::new(&spec("", "a"));
    let client = rig.connect("vms/right").unwrap();
    rig.write(&client, 2 * BLOCK as u64, 7);
    client.close();
    rig.pass(Duration::from_secs(1));
    rig.change(&with_devices("", "a", ABOVE)).unwrap();
    rig.offer();
    let part = rig.connect("right").unwrap();
    assert_eq!(rig.read(&part, 0), 7, "the bytes from 8 KiB on");
    rig.write(&part, BLOCK as u64, 8);
    part.close();
    rig.change(&spec("", "a")).unwrap();
    rig.offer();
    rig.pass(Duration::from_secs(1));
    let client = rig.connect("vms/right").unwrap();
    assert_eq!((rig.read(&client, 2 * BLOCK as u64), rig.read(&client, 3 * BLOCK as u64)), (7, 8));
}

#[test]
fn start_opens_devices_on_volumes() {
    let above = ABOVE.to_owned() + "whole = { on = \"vms/left@v1+job\" }\n";
    let text = with_devices(PASS, "p", &above);
    let rig = Rig::new(&spec(PASS, "p"));
    rig.snap("left", "left@v1");
    let rig = rig.restart(&text).unwrap();
    let (shown, whole) = (rig.connect("shown").unwrap(), rig.connect("whole").unwrap());
    rig.write(&shown, 0, 1);
    rig.write(&whole, 0, 2);
    let rig = rig.restart(&text).unwrap();
    let (shown, whole) = (rig.connect("shown").unwrap(), rig.connect("whole").unwrap());
    assert_eq!((rig.read(&shown, 0), rig.read(&whole, 0)), (1, 2));
}

#[test]
fn clients_cannot_open_volume_that_device_may_write() {
    let rig = Rig::new(&spec("", "a"));
    rig.snap("left", "left@v1");
    let above = ABOVE.to_owned() + "old = { on = \"vms/left@v1\" }\n";
    rig.change(&with_devices("", "a", &above)).unwrap();
    let error = rig.connect("vms/left").err().expect("a device has it");
    assert!(error.to_string().contains("a device or an export of the graph uses"), "{error}");
    // A snapshot has no writers.
    rig.connect("vms/left@v1").unwrap();
    assert_eq!(rig.remove("right").unwrap_err().kind(), ErrorKind::InUse);
}

#[test]
fn device_is_not_put_on_volume_with_clients() {
    let rig = Rig::new(&spec("", "a"));
    let client = rig.connect("vms/left").unwrap();
    let error = refused(rig.change(&with_devices("", "a", ABOVE)));
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    client.close();
    rig.pass(Duration::from_secs(1));
    rig.change(&with_devices("", "a", ABOVE)).unwrap();
}

#[test]
fn missing_volume_is_reported_where_spec_names_it() {
    let rig = Rig::new(&spec("", "a"));
    let above = ABOVE.replace("vms/left", "vms/none");
    let error = refused(rig.change(&with_devices("", "a", &above)));
    assert!(error.to_string().contains("no volume \"vms/none\""), "{error}");
    assert!(error.to_string().starts_with("g.toml:7:"), "{error}");
    let rig = rig.restart(&with_devices("", "a", &above));
    assert!(refused(rig.map(drop)).to_string().contains("no volume \"vms/none\""));
}

#[test]
fn live_change_beneath_moves_devices_on_volumes_under_load() {
    let rig = Rig::new(&spec("", "a"));
    rig.change(&with_devices("", "a", ABOVE)).unwrap();
    rig.offer();
    let load = Rc::<Load>::default();
    load.begin(&rig, "shown", 4);
    load.begin(&rig, "right", 2);
    rig.pass(Duration::from_secs(1));
    for (below, on) in [(PASS, "p"), ("", "a"), (PASS, "p")] {
        let before = load.done();
        let changed = rig.change(&with_devices(below, on, ABOVE));
        changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
        assert_eq!((rig.count("open"), rig.count("opened")), (2, 2), "on the new device");
        rig.pass(Duration::from_secs(1));
        assert!(load.done() > before + 100, "the clients go on");
    }
    // The device with volumes is made anew, and refuses to open them.
    let broken = with_devices("", "a", ABOVE).replace("\"300ms\"", "\"300ms\", refuse = true");
    let error = refused(rig.change(&broken));
    assert!(error.to_string().contains("refuses to open"), "{error}");
    let before = load.done();
    rig.pass(Duration::from_secs(1));
    assert!(load.done() > before + 100, "the clients go on");
    load.end(&rig);
}

#[test]
fn flush_of_graph_reaches_volumes_that_no_device_uses() {
    let rig = Rig::new(&spec("", "a"));
    rig.change(&with_devices("", "a", ABOVE)).unwrap();
    rig.create("late");
    assert!(rig.world.block_on(rig.live.flush()).unwrap().is_empty());
    let index = rig.disks[0].peek(block::ByteRange::new(0, 4096).unwrap());
    assert!(String::from_utf8_lossy(&index).contains("late"));
}

#[test]
fn stop_closes_devices_before_their_volumes() {
    let rig = Rig::new(&spec("", "a"));
    rig.change(&with_devices("", "a", ABOVE)).unwrap();
    let deadline = rig.world.env().now().after(LIMIT);
    // The test kind panics if it is closed before its volumes.
    rig.world.block_on(rig.live.close_devices(deadline)).unwrap();
    assert_eq!(rig.count("open"), 0);
}
