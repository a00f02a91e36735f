//! Live changes beneath a device with open volumes, and flushes of a device without an export.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, ErrorKind};
use graph::live::Unchanged;
use sim::Faults;

use crate::rig::{BLOCK, LIMIT, Rig, connect, read, spec, write};

pub const PASS: &str = "p = { kind = \"pass\", on = \"a\" }\n";

/// The bytes of the clients under load: each client writes to its own blocks and reads them back.
#[derive(Default)]
pub struct Load {
    is_over: Cell<bool>,
    done: Cell<u64>,
    running: Cell<u64>,
    failed: RefCell<Vec<String>>,
}

impl Load {
    /// Starts `clients` clients of the volume called `name`, which write and read until the load is over.
    pub fn begin(self: &Rc<Self>, rig: &Rig, name: &str, clients: u64) {
        for client in 0..clients {
            let (env, at, load) = (rig.world.env(), rig.at.clone(), self.clone());
            let name = name.to_owned();
            load.running.set(load.running.get() + 1);
            rig.world.env().spawn("a client under load", async move {
                let connection = connect(env.clone(), at, name).await.unwrap();
                let start = client * BLOCK as u64;
                for byte in (1..=255).cycle() {
                    if load.is_over.get() {
                        break;
                    }
                    let came = async {
                        write(&env, &connection, start, byte).await?;
                        read(&env, &connection, start).await
                    };
                    env.sleep(Duration::from_millis(1)).await;
                    match came.await {
                        Ok(found) if found == byte => load.done.set(load.done.get() + 1),
                        Ok(found) => load.failed.borrow_mut().push(format!("{found}, not {byte}")),
                        Err(error) => load.failed.borrow_mut().push(error.to_string()),
                    }
                }
                load.running.set(load.running.get() - 1);
            });
        }
    }

    /// Returns the number of blocks that were written and read.
    pub fn done(&self) -> u64 {
        self.done.get()
    }

    /// Ends the load. No request may have failed.
    pub fn end(&self, rig: &Rig) {
        self.is_over.set(true);
        rig.pass(Duration::from_secs(2));
        assert_eq!(self.running.get(), 0, "every client is answered");
        assert_eq!(*self.failed.borrow(), Vec::<String>::new());
    }
}

#[test]
fn live_change_moves_open_volumes_under_load() {
    let rig = Rig::new(&spec("", "a"));
    let load = Rc::<Load>::default();
    load.begin(&rig, "vms/left", 4);
    load.begin(&rig, "vms/right", 4);
    rig.pass(Duration::from_secs(1));
    let node = || rig.live.volumes().open_nodes()[0].1;
    for (below, on) in [(PASS, "p"), ("", "a"), (PASS, "p")] {
        let (before, was) = (load.done.get(), rig.opened("vms/left"));
        // A client that connects during the change gets its volume too.
        let late = Rc::<Cell<bool>>::default();
        let (env, at, came) = (rig.world.env(), rig.at.clone(), late.clone());
        rig.world.env().spawn("a client in the change", async move {
            connect(env, at, "vms/left".to_owned()).await.unwrap();
            came.set(true);
        });
        let changed = rig.change(&spec(below, on));
        changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
        assert_eq!((rig.count("open"), rig.count("opened")), (2, 2), "on the new device");
        rig.pass(Duration::from_secs(1));
        assert!(load.done.get() > before + 100 && late.get(), "the clients go on");
        let is = rig.opened("vms/left");
        assert!(Rc::ptr_eq(&was, &is) && was.portal().node() == Some(node()));
    }
    load.end(&rig);
}

/// A mirror over labelled disks gets another member while clients use volumes on it.
#[test]
fn mirror_below_open_volumes_gets_another_member_under_load() {
    let text = |disks: &[usize]| {
        let disk = |n: &usize| format!("d{n} = {{ path = \"/disk{n}\", label = true }}\n");
        let names: Vec<_> = disks.iter().map(|n| format!("\"d{n}\"")).collect();
        format!(
            "name = \"g\"\n[disk]\n{}[device]\nm = {{ kind = \"mirror\", on = [{}] }}\n\
             vms = {{ kind = \"shelf\", on = \"m\" }}\n",
            disks.iter().map(disk).collect::<String>(),
            names.join(", ")
        )
    };
    let rig = Rig::new(&text(&[0, 1]));
    let load = Rc::<Load>::default();
    load.begin(&rig, "vms/left", 4);
    load.begin(&rig, "vms/right", 4);
    rig.pass(Duration::from_secs(1));
    for disks in [&[0, 1, 2][..], &[1, 2]] {
        let before = load.done.get();
        rig.change(&text(disks)).unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
        rig.pass(Duration::from_secs(2));
        assert!(load.done.get() > before + 100, "the clients go on");
    }
    load.end(&rig);
}

#[test]
fn volumes_stay_open_when_live_change_fails() {
    let rig = Rig::new(&spec("", "a"));
    let load = Rc::<Load>::default();
    load.begin(&rig, "vms/left", 2);
    rig.pass(Duration::from_secs(1));
    // The device with volumes is made anew, and refuses to open them.
    let broken = spec(PASS, "p").replace("\"300ms\"", "\"300ms\", refuse = true");
    let Err(Unchanged::Failed(error)) = rig.change(&broken) else { panic!("it opens nothing") };
    assert!(error.to_string().contains("refuses to open"), "{error}");
    let before = load.done.get();
    rig.pass(Duration::from_secs(1));
    assert!(load.done.get() > before + 100, "the clients go on");
    load.end(&rig);
}

/// The closing of a volume takes longer than the change may.
#[test]
fn volumes_are_opened_again_when_live_change_ends_while_they_are_closed() {
    let slow = |below, on| spec(below, on).replace("\"300ms\"", "\"300ms\", closing = \"32s\"");
    let rig = Rig::new(&slow("", "a"));
    let load = Rc::<Load>::default();
    load.begin(&rig, "vms/left", 2);
    load.begin(&rig, "vms/right", 2);
    rig.pass(Duration::from_secs(1));
    let changed = rig.change(&slow(PASS, "p"));
    let Err(Unchanged::Failed(error)) = changed else { panic!("it ends after {LIMIT:?}") };
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let before = load.done.get();
    rig.pass(Duration::from_secs(4));
    assert!(load.done.get() > before + 100, "the clients go on");
    assert_eq!(rig.count("open"), 2, "the closing that had begun went on to its end");
    load.end(&rig);
}

#[test]
fn live_change_may_not_remove_device_of_open_volume() {
    let exports = "[export]\nvol = { on = \"b\" }\n";
    let rig = Rig::new(&(spec("", "a") + exports));
    let client = rig.connect("vms/left").unwrap();
    let lines = spec("", "a");
    let without: String = lines
        .lines()
        .filter(|line| !line.starts_with("vms"))
        .fold(String::new(), |text, line| text + line + "\n");
    let without = without + exports + "raw = { on = \"a\" }\n";
    let Err(Unchanged::Failed(error)) = rig.change(&without) else { panic!("a client is there") };
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    client.close();
    rig.pass(Duration::from_secs(2));
    rig.change(&without).unwrap();
    rig.connect("vms/left").err().expect("the device is gone");
}

#[test]
fn live_change_may_not_give_open_volume_other_bytes() {
    let rig = Rig::new(&spec("", "a"));
    let client = rig.connect("vms/left").unwrap();
    let Err(Unchanged::Failed(error)) = rig.change(&spec("", "b")) else { panic!("other bytes") };
    assert!(error.to_string().contains("would have other bytes"), "{error}");
    rig.write(&client, 0, 1);
}

/// The index of the device is written by a flush alone.
#[test]
fn flush_of_graph_reaches_device_with_volumes_without_export() {
    let rig = Rig::new(&spec("", "a"));
    let index = || rig.disks[0].peek(ByteRange::new(0, 4096).unwrap());
    let has_names = || String::from_utf8_lossy(&index()).contains("right");
    assert!(!has_names(), "it is in memory only");
    assert!(rig.world.block_on(rig.live.flush()).unwrap().is_empty());
    assert!(has_names());
}

#[test]
fn failed_flush_of_device_with_volumes_is_reported() {
    let rig = Rig::new(&spec("", "a"));
    rig.disks[0].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let failed = rig.world.block_on(rig.live.flush()).unwrap();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, "vms");
}

#[test]
fn stop_of_graph_closes_open_volumes_before_their_device() {
    let rig = Rig::new(&spec("", "a"));
    let client = rig.connect("vms/left").unwrap();
    rig.write(&client, 0, 5);
    let deadline = rig.world.env().now().after(Duration::from_secs(5));
    // The test kind panics if it is closed before its volumes.
    rig.world.block_on(rig.live.close_devices(deadline)).unwrap();
    assert_eq!(rig.count("open"), 0);
}
