//! Lists of volumes, and look-ups that open and create nothing.

use block::OpenMode;
use export::Catalog;
use wire::nbd::Goal;

use crate::rig::{Rig, Told, inquire, spec};

fn told(rig: &Rig, name: &str, goal: Goal) -> block::Result<Told> {
    let asked = inquire(rig.world.env(), rig.at.clone(), name.to_owned(), goal);
    rig.world.block_on(asked).unwrap()
}

#[test]
fn list_and_info_create_and_open_no_volume() {
    let rig = Rig::new(&(spec("", "a") + "[export]\nvol = { on = \"b\" }\n"));
    rig.snap("left", "left@v1");
    let created = rig.count("created");
    let Told::Facts(facts) = told(&rig, "vms/left@v1+job", Goal::Describe).unwrap() else {
        panic!("INFO returns facts")
    };
    assert_eq!((facts.name.as_str(), facts.size_bytes), ("vms/left@v1+job", 32 << 10));
    let Told::Facts(facts) = told(&rig, "vms/left@v1", Goal::Describe).unwrap() else {
        panic!("INFO returns facts")
    };
    assert!(facts.flags.has(wire::nbd::TransmissionFlags::READ_ONLY), "a snapshot is read-only");
    let Told::List(entries) = told(&rig, "", Goal::List).unwrap() else { panic!("LIST lists") };
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["vms/left", "vms/left@v1", "vms/right", "vol"]);
    assert_eq!((rig.count("created"), rig.count("opened")), (created, 0));
}

#[test]
fn catalogue_lists_exports_and_volumes_in_pages_in_order() {
    let below = "q = { kind = \"linear\", on = \"b\", size = \"1MiB\" }\n\
                 r = { kind = \"linear\", on = \"b\", start = \"1MiB\" }\n";
    let exports = "[export]\nalpha = { on = \"q\" }\nvmt = { on = \"r\" }\n";
    let rig = Rig::new(&(spec(below, "a") + exports));
    (0..20).for_each(|n| rig.create(&format!("disk{n:02}")));
    let mut wanted: Vec<String> = (0..20).map(|n| format!("vms/disk{n:02}")).collect();
    wanted.extend(["alpha", "vms/left", "vms/right", "vmt"].map(str::to_owned));
    wanted.sort();
    for most in [1, 2, 7, 100] {
        let mut all: Vec<String> = Vec::new();
        loop {
            let after = all.last().cloned().unwrap_or_default();
            let page = rig.world.block_on(rig.catalog.list(&after, most)).unwrap().unwrap();
            let is_last = page.len() < most;
            all.extend(page.into_iter().map(|listed| listed.name));
            if is_last {
                break;
            }
        }
        assert_eq!(all, wanted, "in pages of {most}");
    }
}

#[test]
fn volume_is_located_on_disk_below_its_device() {
    let below = "p = { kind = \"linear\", on = \"a\", start = \"64KiB\" }\n";
    let rig = Rig::new(&spec(below, "p"));
    let found = rig.world.block_on(rig.live.locate_volume("vms/right", 4096)).unwrap().unwrap();
    assert_eq!((found.name.as_str(), found.kind.as_str()), ("vms/right", "shelf"));
    let disk = &found.below[0].below[0];
    // The label-free disk has the part of 64 KiB, the index of 64 KiB, and the first volume's slot before it.
    assert_eq!((disk.name.as_str(), disk.offset_bytes), ("a", 3 * (64 << 10) + 4096));
    let far = rig.world.block_on(rig.live.locate_volume("vms/right", 1 << 40)).unwrap();
    assert!(far.unwrap_err().to_string().contains("past the end"));
    let none = rig.world.block_on(rig.live.locate_volume("vms/none", 0)).unwrap();
    assert_eq!(none.unwrap_err().kind(), block::ErrorKind::NotFound);
}

#[test]
fn look_of_unknown_or_too_long_name_finds_nothing() {
    let rig = Rig::new(&spec("", "a"));
    let long = format!("vms/{}", "x".repeat(block::VOLUME_NAME_MAX_BYTES + 1));
    for name in ["vms/none", "none/left", "left", "vms/", &long] {
        let looked = rig.world.block_on(rig.live.volumes().look(name)).unwrap().unwrap();
        assert_eq!(looked, None, "{name}");
        let opened = rig.world.block_on(rig.live.volumes().open(name, OpenMode::OrCreate));
        assert!(opened.unwrap().unwrap().is_none(), "{name}");
    }
}
