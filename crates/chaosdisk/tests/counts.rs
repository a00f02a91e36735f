//! Counts the requests to disks: a client's flush costs one flush of each disk, and a write with FUA costs no flush.
#![allow(clippy::disallowed_methods, reason = "a test drives real programs, by real time")]

mod common;

use std::time::Duration;

use common::{Rig, Shape, bytes_of};
use serde_json::Value;

fn flushes(rig: &Rig, disks: &[&str]) -> Vec<u64> {
    disks.iter().map(|disk| rig.count(disk, "flush")).collect()
}

/// Returns the number of requests of the operation `verb` to `device`, from the output `top` of `cairn top`.
fn ops(top: &Value, device: &str, verb: &str) -> u64 {
    let rows = top["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == device).unwrap();
    row["counts"]["ops"][verb].as_u64().unwrap()
}

#[test]
fn volume_flush_flushes_each_disk_once() {
    for shape in &Shape::ALL {
        println!("{}", shape.name);
        let mut rig = Rig::of(shape, 1);
        rig.serve(&shape.spec(0));
        rig.in_sync();
        let volume = rig.volume();
        volume.write(&rig.core, 0, &bytes_of(1, 64 << 10));
        let (before, top) = (flushes(&rig, shape.disks), rig.ask(&["top"]));
        volume.flush(&rig.core);
        volume.flush(&rig.core);
        let expected: Vec<_> = before.iter().map(|count| count + 2).collect();
        assert_eq!(flushes(&rig, shape.disks), expected, "{}", shape.name);
        let now = rig.ask(&["top"]);
        for disk in shape.disks {
            let told = ops(&now, disk, "flush") - ops(&top, disk, "flush");
            assert_eq!(told, 2, "{}: what cairn says of {disk}", shape.name);
        }
    }
}

#[test]
fn volume_passes_fua_to_disks_without_flush() {
    for shape in &Shape::ALL {
        println!("{}", shape.name);
        let mut rig = Rig::of(shape, 1);
        rig.serve(&shape.spec(0));
        rig.in_sync();
        let (volume, core) = (rig.volume(), &rig.core);
        let fua = |rig: &Rig| shape.disks.iter().map(|disk| rig.count(disk, "fua")).sum::<u64>();
        let (before, durable) = (flushes(&rig, shape.disks), fua(&rig));
        volume.write_fua(core, 0, &bytes_of(1, 4096));
        volume.zero(core, 0, 4096, true);
        volume.trim(core, 0, 4096, true);
        assert_eq!(flushes(&rig, shape.disks), before, "{}", shape.name);
        let copies = shape.members.len().max(1) as u64;
        assert_eq!(fua(&rig) - durable, 3 * copies, "{}", shape.name);
    }
}

#[test]
fn volume_flush_flushes_file_disk_once() {
    let mut rig = Rig::new(1, &["a=4KiB".to_owned()]);
    rig.serve(
        "[disk]\nfile = { file = \"disk.img\", size = \"1MiB\", create = true }\n\
         [export]\nvol = { on = \"file\" }\n",
    );
    let volume = rig.volume();
    for n in 0..3 {
        volume.write(&rig.core, n << 16, &bytes_of(1, 4096));
        volume.flush(&rig.core);
    }
    volume.write_fua(&rig.core, 0, &bytes_of(1, 4096));
    assert_eq!(ops(&rig.ask(&["top"]), "file", "flush"), 3);
}

#[test]
fn idle_volume_sends_no_requests_to_disks() {
    let mut rig = Rig::of(&Shape::MIRROR_OF_STRIPES, 1);
    rig.serve(&Shape::MIRROR_OF_STRIPES.spec(0));
    rig.in_sync();
    let volume = rig.volume();
    volume.write(&rig.core, 0, &bytes_of(1, 4096));
    let before = rig.counts();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(rig.counts(), before);
}
