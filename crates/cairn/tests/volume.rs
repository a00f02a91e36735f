//! Encrypted volumes with key slots on labelled mirrors: the passphrases that open them, the effect of a lost or
//! failed member on the slots, and the places where the keys must not be.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use kinds::crypt::verbs::KeySlots;

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use common::memory::{find, holds, memory};
use common::{Dir, Ran, STORE_BYTES, Serve, tool, until};
use kinds::crypt::slots::KeySlots as KeySlotsOnDisk;
use meta::Label;

const MIB: usize = 1 << 20;
/// The byte range of the mirror's data on a disk of 16 MiB: between the labels at both ends, without the store.
const DATA: std::ops::Range<usize> = MIB..15 * MIB - STORE_BYTES as usize;

/// The spec of a crypt device over a mirror on two labelled disks of 16 MiB.
const SPEC: &str = r#"
name = "home"
[disk]
a = { file = "a.img", size = "16MiB", create = true, label = true }
b = { file = "b.img", size = "16MiB", create = true, label = true }
[device]
pair = { kind = "mirror", on = ["a", "b"] }
safe = { kind = "crypt", on = "pair", key = "file:key", kdf_memory = "1MiB", kdf_passes = 1 }
[export]
vol = { on = "safe" }
"#;

/// Makes a directory with the spec and three passphrases in files. The spec's key file holds the first passphrase.
fn home() -> Dir {
    let dir = Dir::new();
    dir.write("home.toml", SPEC);
    for name in ["one", "two", "three"] {
        put(&dir, name, format!("the passphrase {name}\n").as_bytes());
    }
    takes(&dir, "one");
    dir
}

fn put(dir: &Dir, name: &str, bytes: &[u8]) {
    fs::write(dir.path(name), bytes).unwrap();
    fs::set_permissions(dir.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// Writes the passphrase in the file `name` to the key file of the spec.
fn takes(dir: &Dir, name: &str) {
    put(dir, "key", &fs::read(dir.path(name)).unwrap());
}

/// Runs the qemu-io `commands` on the export of a running server. All must succeed.
fn io(dir: &Dir, serve: &Serve, commands: &[&str]) {
    let mut args = vec!["-f", "raw", serve.uri()];
    for command in commands {
        args.extend(["-c", command]);
    }
    let ran = tool(dir, "qemu-io", &args);
    let done = ran.out.matches(" ops; ").count();
    assert!(ran.code == 0 && done == commands.len(), "{commands:?}: {ran:?}");
    assert!(!ran.out.contains("failed"), "{commands:?}: {ran:?}");
}

fn stop(serve: Serve) {
    let ran = serve.stop();
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// Checks that `passphrase` opens the volume, and that its first MiB has the bytes of [`written`].
fn opens(dir: &Dir, passphrase: &str) {
    takes(dir, passphrase);
    let serve = dir.serve(&["home.toml"]);
    io(dir, &serve, &["read -P 7 0 1M"]);
    stop(serve);
}

/// Makes a directory with an encrypted volume whose first MiB is filled with the byte 7. Its server was stopped.
fn written() -> Dir {
    let dir = home();
    let serve = dir.serve(&["home.toml"]);
    io(&dir, &serve, &["write -P 7 0 1M"]);
    stop(serve);
    dir
}

fn image(dir: &Dir, name: &str) -> Vec<u8> {
    fs::read(dir.path(name)).unwrap()
}

/// Checks that a start with `passphrase` fails, and changes neither the data nor the key slots on the disks.
fn is_refused(dir: &Dir, passphrase: &str) -> Ran {
    takes(dir, passphrase);
    let before = [state(dir, "a.img"), state(dir, "b.img")];
    let data = [image(dir, "a.img"), image(dir, "b.img")].map(|bytes| bytes[DATA].to_vec());
    // If the volume were served, this would write to it.
    let run = "qemu-io -f raw \"$uri\" -c 'write -P 1 0 1M'";
    let ran = dir.cairn(&["serve", "home.toml", "--run", run]);
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(ran.err.contains("no key slot opens with this passphrase"), "{ran:?}");
    assert!(ran.out.is_empty(), "{ran:?}");
    assert!([state(dir, "a.img"), state(dir, "b.img")] == before, "the slots have changed");
    for (name, data) in ["a.img", "b.img"].into_iter().zip(data) {
        assert!(image(dir, name)[DATA] == data, "{name} has changed");
    }
    ran
}

/// Returns the newest key slots in the label at the front of a disk, in the format of `docs/formats/keyslots.md`.
fn state(dir: &Dir, name: &str) -> Vec<u8> {
    let bytes = image(dir, name);
    let copies = [64 << 10, 320 << 10].map(|at| &bytes[at..at + (256 << 10)]);
    let sequence = |copy: &[u8]| u64::from_le_bytes(copy[48..56].try_into().unwrap());
    let newest = copies.into_iter().filter(|copy| copy.starts_with(&meta::MAGIC));
    let newest = newest.max_by_key(|copy| sequence(copy)).expect("a labelled disk");
    let at = newest.windows(8).position(|window| window == b"CRNKEYS\0").expect("key slots");
    newest[at..at + 2240].to_vec()
}

/// Returns the numbers of the used key slots in each valid copy of a disk's label, also in copies of older generations.
fn slots_of_all_copies(dir: &Dir, name: &str) -> Vec<Vec<usize>> {
    let bytes = image(dir, name);
    let areas = [0, bytes.len() - MIB];
    let places = areas.into_iter().flat_map(|area| [area + (64 << 10), area + (320 << 10)]);
    let labels = places.filter_map(|at| Label::decode(&bytes[at..]).ok());
    let slots = labels.map(|label| KeySlotsOnDisk::parse(&label.cells["safe"].bytes).unwrap());
    let used = |(n, slot): (usize, &Option<_>)| slot.is_some().then_some(n);
    slots.map(|all| all.slots.iter().enumerate().filter_map(used).collect()).collect()
}

/// Derives the volume key from key slot `number` as in `docs/formats/keyslots.md`, without Cairn's code. Returns `None`
/// if the passphrase does not open the slot.
fn volume_key(state: &[u8], number: usize, passphrase: &[u8]) -> Option<Vec<u8>> {
    let (head, slot) = (&state[..192], &state[192 + 256 * number..][..256]);
    let word = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().unwrap());
    let params = Params::new(word(4), word(8), word(12), Some(32)).unwrap();
    let mut key = [0; 32];
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(passphrase, &slot[24..56], &mut key).unwrap();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
    let nonce = Nonce::try_assume_unique_for_key(&slot[56..68]).unwrap();
    let covered = [&head[..72], &slot[..68], &slot[148..]].concat();
    let mut sealed = slot[68..148].to_vec();
    let opened = key.open_in_place(nonce, Aad::from(covered), &mut sealed).ok()?.to_vec();
    let check = hmac::Key::new(hmac::HMAC_SHA256, &opened);
    hmac::verify(&check, &head[..40], &head[40..72]).expect("the key of this volume");
    Some(opened)
}

/// Returns the number and the name of each used key slot, as `cairn key ls` lists them.
fn slots(dir: &Dir) -> Vec<(usize, String)> {
    let slots: KeySlots = dir.json(0, &["key", "ls", "safe"]);
    slots.slots.into_iter().map(|slot| (slot.slot, slot.label)).collect()
}

fn in_sync(dir: &Dir) {
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
}

/// Checks that both members of the mirror hold the same bytes, no plain text, and the same key slots.
fn are_equal(dir: &Dir) {
    let (a, b) = (image(dir, "a.img"), image(dir, "b.img"));
    assert!(a[DATA] == b[DATA], "the members differ");
    assert!(!holds(&a[DATA], &[7; 64]), "the plain text is on the disk");
    assert!(state(dir, "a.img") == state(dir, "b.img"), "the slots differ");
}

#[test]
fn encrypted_volume_opens_only_with_passphrase() {
    let dir = written();
    are_equal(&dir);
    opens(&dir, "one");
    let ran = is_refused(&dir, "two");
    assert!(ran.err.contains("one slot is in use"), "{ran:?}");
    // The failed attempt leaves nothing that blocks the right passphrase.
    opens(&dir, "one");
    are_equal(&dir);
}

#[test]
fn key_commands_change_slots_while_volume_is_served() {
    let dir = written();
    let serve = dir.serve(&["home.toml"]);
    let add =
        ["key", "add", "safe", "--key", "file:one", "--new-key", "file:two", "--label", "laptop"];
    dir.text(&[&add[..], &["--dry-run"]].concat());
    assert_eq!(slots(&dir), [(0, String::new())]);
    dir.text(&add);
    assert_eq!(slots(&dir), [(0, String::new()), (1, "laptop".to_owned())]);
    // A passphrase that opens no slot cannot change one.
    for verb in ["add", "change"] {
        let args = ["key", verb, "safe", "--key", "file:three", "--new-key", "file:three"];
        assert_eq!(dir.cairn(&args).code, 7, "{verb}");
    }
    io(&dir, &serve, &["read -P 7 0 1M"]);
    stop(serve);

    opens(&dir, "two");
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["key", "rm", "safe", "0", "--yes"]);
    assert_eq!(slots(&dir), [(1, "laptop".to_owned())]);
    let ran = dir.cairn(&["key", "rm", "safe", "1", "--yes"]);
    assert!(ran.code == 5 && ran.err.contains("is the last in use"), "{ran:?}");
    stop(serve);
    is_refused(&dir, "one");

    takes(&dir, "two");
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["key", "change", "safe", "--key", "file:two", "--new-key", "file:three"]);
    assert_eq!(slots(&dir), [(1, "laptop".to_owned())]);
    // Killed right after the answer, which is sent only when the change is durable.
    serve.signal("KILL");
    assert_eq!(serve.end().code, -9);
    is_refused(&dir, "two");
    opens(&dir, "three");
    are_equal(&dir);
}

#[test]
fn key_rm_and_change_erase_slot_in_all_labels() {
    let dir = written();
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["key", "add", "safe", "--key", "file:one", "--new-key", "file:two"]);
    dir.text(&["key", "rm", "safe", "0", "--yes"]);
    for disk in ["a.img", "b.img"] {
        assert_eq!(slots_of_all_copies(&dir, disk), vec![vec![1]; 4], "{disk}");
    }
    let old = slot(&state(&dir, "a.img"), 1);
    assert!(holds(&image(&dir, "b.img"), &old));
    dir.text(&["key", "change", "safe", "--key", "file:two", "--new-key", "file:three"]);
    for disk in ["a.img", "b.img"] {
        assert!(!holds(&image(&dir, disk), &old), "{disk}");
    }
    serve.signal("KILL");
    serve.end();

    // A disk that was missing loses the old slot when it returns.
    fs::rename(dir.path("b.img"), dir.path("away")).unwrap();
    takes(&dir, "three");
    let serve = dir.serve(&["home.toml", "--degraded"]);
    let old = slot(&state(&dir, "a.img"), 1);
    dir.text(&["key", "change", "safe", "--key", "file:three", "--new-key", "file:one"]);
    stop(serve);
    fs::rename(dir.path("away"), dir.path("b.img")).unwrap();
    takes(&dir, "one");
    let serve = dir.serve(&["home.toml"]);
    assert!(!holds(&image(&dir, "b.img"), &old), "the disk that was away");
    stop(serve);
}

/// Returns the encrypted volume key in key slot `number`, without the salt and the nonce of the slot.
fn slot(state: &[u8], number: usize) -> Vec<u8> {
    state[192 + 256 * number..][68..148].to_vec()
}

#[test]
fn returning_mirror_member_gets_current_key_slots() {
    let dir = written();
    fs::rename(dir.path("b.img"), dir.path("away")).unwrap();
    let ran = dir.cairn(&["serve", "home.toml", "--run", "true"]);
    assert!(ran.code == 10 && ran.err.contains("--degraded"), "{ran:?}");
    let serve = dir.serve(&["home.toml", "--degraded"]);
    assert_eq!(dir.cairn(&["status"]).code, 10);
    io(&dir, &serve, &["read -P 7 0 1M", "write -P 8 4M 2M"]);
    dir.text(&["key", "change", "safe", "--key", "file:one", "--new-key", "file:two"]);
    stop(serve);

    // It still has the slot that was removed meanwhile.
    fs::rename(dir.path("away"), dir.path("b.img")).unwrap();
    assert!(volume_key(&state(&dir, "b.img"), 0, b"the passphrase one").is_some());
    is_refused_by_the_newer(&dir);
    takes(&dir, "two");
    let serve = dir.serve(&["home.toml"]);
    in_sync(&dir);
    io(&dir, &serve, &["read -P 7 0 1M", "read -P 8 4M 2M"]);
    stop(serve);
    are_equal(&dir);
    for name in ["a.img", "b.img"] {
        assert!(volume_key(&state(&dir, name), 0, b"the passphrase one").is_none(), "{name}");
        assert!(volume_key(&state(&dir, name), 0, b"the passphrase two").is_some(), "{name}");
    }
    opens(&dir, "two");
}

/// Checks that a start with the removed passphrase `one` fails, although a member still has the key slot of `one`.
fn is_refused_by_the_newer(dir: &Dir) {
    takes(dir, "one");
    let ran = dir.cairn(&["serve", "home.toml", "--run", "true"]);
    assert!(ran.code == 7 && ran.err.contains("no key slot opens"), "{ran:?}");
}

#[test]
fn key_slots_survive_failed_member() {
    let dir = written();
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["device", "fail", "pair/a", "--yes"]);
    dir.text(&["key", "add", "safe", "--key", "file:one", "--new-key", "file:two"]);
    io(&dir, &serve, &["write -P 8 4M 2M", "read -P 7 0 1M"]);
    dir.text(&["device", "resync", "pair/a", "--wait"]);
    in_sync(&dir);
    stop(serve);
    are_equal(&dir);

    // Each member alone opens with both passphrases, and holds all data.
    for (gone, passphrase) in [("a.img", "one"), ("b.img", "two")] {
        fs::rename(dir.path(gone), dir.path("away")).unwrap();
        takes(&dir, passphrase);
        let serve = dir.serve(&["home.toml", "--degraded"]);
        io(&dir, &serve, &["read -P 7 0 1M", "read -P 8 4M 2M"]);
        stop(serve);
        fs::rename(dir.path("away"), dir.path(gone)).unwrap();
        let serve = dir.serve(&["home.toml"]);
        in_sync(&dir);
        stop(serve);
    }
    are_equal(&dir);
}

#[test]
fn blank_replacement_disk_gets_key_slots() {
    let dir = written();
    fs::remove_file(dir.path("a.img")).unwrap();
    let serve = dir.serve(&["home.toml", "--wipe", "a"]);
    in_sync(&dir);
    stop(serve);
    are_equal(&dir);
    fs::remove_file(dir.path("b.img")).unwrap();
    let serve = dir.serve(&["home.toml", "--degraded"]);
    io(&dir, &serve, &["read -P 7 0 1M"]);
    stop(serve);
}

#[test]
fn passphrases_and_volume_key_stay_in_locked_memory() {
    let dir = home();
    let [mut one, mut two] = [[0; 48]; 2];
    let urandom = File::open("/dev/urandom").unwrap();
    for (name, secret) in [("one", &mut one), ("two", &mut two)] {
        urandom.read_exact_at(secret, 0).unwrap();
        // A newline at the end would not belong to the key.
        secret[47] = b'.';
        put(&dir, name, secret);
    }
    takes(&dir, "one");
    // Once with a new volume, and once with a volume that is opened and changed.
    for turn in 0..2 {
        let serve = dir.serve(&["home.toml"]);
        io(&dir, &serve, &["write -P 7 0 64k", "write -P 7 1M 4M", "read 0 64k", "read 1M 4M"]);
        if turn == 1 {
            dir.text(&["key", "add", "safe", "--key", "file:one", "--new-key", "file:two"]);
        }
        let key = volume_key(&state(&dir, "a.img"), 0, &one).expect("the first slot opens");
        look(&dir, &serve, &key, &[&one[..], &two[..]]);
        stop(serve);
    }
    assert!(volume_key(&state(&dir, "b.img"), 1, &two).is_some());
    for name in ["a.img", "b.img"] {
        let bytes = image(&dir, name);
        assert!(!holds(&bytes, &one[..16]) && !holds(&bytes, &two[..16]), "{name}");
    }
}

/// Checks that the volume key and the passphrases are only in locked memory of the server, and not in its core dump.
fn look(dir: &Dir, serve: &Serve, volume_key: &[u8], passphrases: &[&[u8]]) {
    let mappings = memory(serve.pid());
    let found = |locked: bool, piece: &[u8]| {
        mappings.iter().any(|(is, bytes)| *is == locked && holds(bytes, piece))
    };
    assert!(mappings.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 4 * MIB);
    for (n, piece) in volume_key.chunks(16).enumerate() {
        assert!(found(true, piece), "piece {n} of the volume key is not where it should be");
        assert!(!found(false, piece), "piece {n} of the volume key is where it should not be");
    }
    for (which, passphrase) in passphrases.iter().enumerate() {
        for (n, piece) in passphrase.chunks(16).enumerate() {
            assert!(!found(false, piece), "piece {n} of passphrase {which} is in open memory");
        }
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: only root may dump what is marked as not dumpable");
        return;
    }
    let pid = serve.pid().to_string();
    assert_eq!(tool(dir, "gcore", &["-o", "core", &pid]).code, 0);
    let core = memory_of_core(fs::read(dir.path(&format!("core.{pid}"))).unwrap());
    assert!(core.len() > MIB, "there is a core");
    for (which, secret) in passphrases.iter().chain([&volume_key]).enumerate() {
        for (n, piece) in secret.chunks(16).enumerate() {
            let found = find(&core, piece);
            let all = core.len();
            assert_eq!(found, None, "the core of {all} bytes holds piece {n} of secret {which}");
        }
    }
}

/// Returns a core dump in the format ELF64 with zeros for its notes: these have the registers of all threads, which may hold
/// bytes of a key.
fn memory_of_core(mut core: Vec<u8>) -> Vec<u8> {
    const NOTES: u64 = 4;
    let number = |core: &[u8], at: usize, bytes: usize| {
        core[at..at + bytes].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    let (headers, size, count) = (number(&core, 32, 8), number(&core, 54, 2), number(&core, 56, 2));
    let mut notes = 0;
    for header in (0..count).map(|n| (headers + n * size) as usize) {
        if number(&core, header, 4) == NOTES {
            let start = number(&core, header + 8, 8) as usize;
            let len = number(&core, header + 32, 8) as usize;
            core[start..start + len].fill(0);
            notes += 1;
        }
    }
    assert_eq!(notes, 1, "a core has the registers in its notes");
    core
}
