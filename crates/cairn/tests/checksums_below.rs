//! Checksums below each member of a mirror, under `cairn serve`: a member that cannot open, because its checksums are damaged or
//! their disk is absent.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::FileExt;

use api::{DeviceStatus, Member, MemberState, Status};
use common::{Dir, Serve, io, until};

const TOGETHER: &str = "p = { kind = \"checksum\", on = \"a\" }\n\
    q = { kind = \"checksum\", on = \"b\" }\n\
    m = { kind = \"mirror\", on = [\"p\", \"q\"] }";
const APART: &str = "p = { kind = \"checksum\", on = [\"a\", \"x\"], meta = \"x\" }\n\
    q = { kind = \"checksum\", on = [\"b\", \"y\"], meta = \"y\" }\n\
    m = { kind = \"mirror\", on = [\"p\", \"q\"] }";

/// Serves a graph with these disks, of 32 MiB each, and these devices; writes to it, and stops it.
fn written(disks: &[&str], devices: &str) -> Dir {
    let disk = |name: &&str| {
        format!(
            "{name} = {{ file = \"{name}.img\", size = \"32MiB\", create = true, label = true }}\n"
        )
    };
    let disks: String = disks.iter().map(disk).collect();
    let dir = Dir::new();
    let text = format!(
        "name = \"g\"\n[disk]\n{disks}[device]\n{devices}\n[export]\nvol = {{ on = \"m\" }}\n"
    );
    dir.write("g.toml", &text);
    let serve = dir.serve(&["g.toml"]);
    io(&dir, serve.uri(), &["write -P 0x11 1M 1M", "write -P 0x12 4M 1M", "flush"]);
    assert_eq!(serve.stop().code, 0);
    dir
}

/// Returns the status of a device. A degraded mirror has an exit code of its own.
fn device(dir: &Dir, name: &str) -> DeviceStatus {
    let ran = dir.cairn(&["-o", "json", "status"]);
    let all: Vec<Status> = serde_json::from_str(&ran.out).unwrap();
    let devices = all.into_iter().flat_map(|status| status.devices);
    devices.into_iter().find(|device| device.name == name).unwrap()
}

fn member(dir: &Dir, name: &str) -> Member {
    device(dir, "m").members.into_iter().find(|member| member.name == name).unwrap()
}

fn until_in_sync(dir: &Dir, name: &str) {
    until("the resync", || member(dir, name).state == MemberState::InSync);
}

/// Returns the place of the roots of the vault on a disk, two pages.
fn vault_of(dir: &Dir, disk: &str) -> u64 {
    let bytes = std::fs::read(dir.path(&format!("{disk}.img"))).unwrap();
    4096 * bytes.chunks(4096).position(|page| page.starts_with(b"CAIRNVLT")).unwrap() as u64
}

fn overwrite(dir: &Dir, disk: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(dir.path(&format!("{disk}.img"))).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Removes a disk, and returns its bytes.
fn taken(dir: &Dir, disk: &str) -> Vec<u8> {
    let path = dir.path(&format!("{disk}.img"));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    bytes
}

fn new_disk(dir: &Dir, name: &str) -> String {
    let path = format!("{name}.img");
    std::fs::File::create(dir.path(&path)).unwrap().set_len(32 << 20).unwrap();
    path
}

/// Checks that a start is refused, with these words.
fn is_refused(dir: &Dir, args: &[&str], words: &[&str]) {
    let args = [&["import", "g", "--directory", "."], args].concat();
    let ran = dir.cairn(&args);
    let has = |word: &&str| ran.err.contains(word);
    assert!(ran.code != 0 && words.iter().all(has), "{words:?}: {ran:?}");
}

/// Reads through the member `name` alone, and writes.
fn is_whole(dir: &Dir, serve: &Serve, name: &str, other: &str) {
    until_in_sync(dir, name);
    dir.text(&["device", "fail", "--yes", &format!("m/{other}")]);
    io(
        dir,
        serve.uri(),
        &["read -P 0x21 1M 512k", "read -P 0x11 1536k 512k", "read -P 0x12 4M 1M"],
    );
    dir.text(&["device", "resync", &format!("m/{other}")]);
    until_in_sync(dir, other);
}

/// Serves the graph without the member `p`, and writes what `p` misses.
fn goes_on_without(dir: &Dir, words: &str) -> Serve {
    let serve = dir.import(&["g", "--degraded"]);
    let out = member(dir, "p");
    assert!(out.state != MemberState::InSync && out.detail.contains(words), "{out:?}");
    io(dir, serve.uri(), &["read -P 0x11 1M 1M", "read -P 0x12 4M 1M"]);
    io(dir, serve.uri(), &["write -P 0x21 1M 512k", "flush"]);
    assert_eq!(serve.stop().code, 0);
    // The labels record by now that the member is out.
    let serve = dir.import(&["g"]);
    io(dir, serve.uri(), &["read -P 0x21 1M 512k", "read -P 0x11 1536k 512k"]);
    serve
}

#[test]
fn mirror_goes_on_degraded_without_member_of_damaged_checksums_until_it_is_replaced() {
    let dir = written(&["a", "b"], TOGETHER);
    overwrite(&dir, "a", vault_of(&dir, "a"), &[0x55; 8192]);
    let words = ["member p cannot be opened", "vault", "--degraded", "cairn device replace p"];
    is_refused(&dir, &[], &words);
    let checked = dir.cairn(&["check", "--directory", "."]);
    let is_found = |word: &&str| checked.out.contains(*word) || checked.err.contains(*word);
    assert!(checked.code == 10 && ["vault", "--degraded"].iter().all(is_found), "{checked:?}");
    let serve = goes_on_without(&dir, "cannot be opened");
    let next = device(&dir, "m").next;
    assert_eq!(next.as_deref(), Some("cairn device replace m/p PATH"));
    assert!(device(&dir, "p").summary.contains("vault"));
    dir.text(&["device", "replace", "m/p", &new_disk(&dir, "c")]);
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
    taken(&dir, "a");
    let serve = dir.import(&["g"]);
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
}

/// Made anew, the checksums would accept the block that has rotted meanwhile. So all bytes are copied.
#[test]
fn member_with_checksums_made_anew_gets_all_bytes_from_others() {
    let dir = written(&["a", "b"], TOGETHER);
    overwrite(&dir, "a", vault_of(&dir, "a"), &[0; 8192]);
    let serve = goes_on_without(&dir, "cannot be opened");
    assert_eq!(serve.stop().code, 0);
    let bytes = std::fs::read(dir.path("a.img")).unwrap();
    let rotten = bytes.chunks(4096).rposition(|block| block.iter().all(|byte| *byte == 0x12));
    overwrite(&dir, "a", rotten.unwrap() as u64 * 4096, b"rot");
    let serve = dir.import(&["g", "--accept-loss"]);
    assert!(device(&dir, "p").summary.contains("made anew"));
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn mirror_goes_on_degraded_without_member_of_absent_meta_disk_until_it_is_back() {
    let dir = written(&["a", "b", "x", "y"], APART);
    let disk = taken(&dir, "x");
    is_refused(&dir, &[], &["x of \"g\" not found", "--degraded"]);
    let serve = dir.import(&["g", "--degraded"]);
    let out = member(&dir, "p");
    let is_out = out.state != MemberState::InSync && out.detail.contains("the disk is absent");
    assert!(is_out && out.detail.contains("x: "), "{out:?}");
    io(&dir, serve.uri(), &["read -P 0x11 1M 1M", "write -P 0x21 1M 512k", "flush"]);
    assert_eq!(serve.stop().code, 0);
    std::fs::write(dir.path("x.img"), disk).unwrap();
    let serve = dir.import(&["g"]);
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn member_gets_all_bytes_when_its_absent_meta_disk_is_replaced() {
    let dir = written(&["a", "b", "x", "y"], APART);
    taken(&dir, "x");
    let serve = dir.import(&["g", "--degraded"]);
    io(&dir, serve.uri(), &["write -P 0x21 1M 512k", "flush"]);
    let new = new_disk(&dir, "new");
    let ran = dir.cairn(&["device", "replace", "m/p", &new]);
    assert!(ran.code != 0 && ran.err.contains("has several disks: a, x"), "{ran:?}");
    dir.text(&["device", "replace", "m/x", &new]);
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
    let serve = dir.import(&["g"]);
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
}

/// Without its data disk a member is out, too.
#[test]
fn mirror_goes_on_degraded_without_disk_of_member() {
    let dir = written(&["a", "b"], TOGETHER);
    let disk = taken(&dir, "a");
    let serve = dir.import(&["g", "--degraded"]);
    io(&dir, serve.uri(), &["read -P 0x11 1M 1M", "write -P 0x21 1M 512k", "flush"]);
    assert_eq!(serve.stop().code, 0);
    std::fs::write(dir.path("a.img"), disk).unwrap();
    let serve = dir.import(&["g"]);
    is_whole(&dir, &serve, "p", "q");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn degraded_start_refuses_checksums_of_another_device() {
    let dir = written(&["a", "b"], TOGETHER);
    let (at, from) = (vault_of(&dir, "a"), vault_of(&dir, "b"));
    let bytes = std::fs::read(dir.path("b.img")).unwrap();
    overwrite(&dir, "a", at, &bytes[from as usize..][..8192]);
    is_refused(&dir, &["--degraded"], &["p: the vault of the checksum is missing", "not "]);
}

/// Damage on both members leaves no member with all bytes.
#[test]
fn degraded_start_is_refused_without_any_member() {
    let dir = written(&["a", "b"], TOGETHER);
    for disk in ["a", "b"] {
        overwrite(&dir, disk, vault_of(&dir, disk), &[0; 8192]);
    }
    is_refused(&dir, &["--degraded"], &["vault"]);
}
