//! Restarts of `cairn serve` under a service manager with a descriptor store, after a kill and planned. Attached
//! devices and clients pause without errors until the next server takes their descriptors.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::Status;
use common::load::Load;
use common::machine::{Background, Name, is_root, noise, run};
use common::manager::Manager;
use common::{Dir, until};

/// Number of times that a test kills the server under load.
const KILLS: usize = 8;

/// The longest time that a client may wait for a reply after a kill of the server.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The longest time that a client may wait for a reply at a planned restart, in which the server hands over.
const PLANNED_MAX: Duration = Duration::from_secs(2);

/// Locks a mutex so that the tests of this file run one after the other: a program that one test starts would inherit
/// the descriptors of another test's servers.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The spec of an encrypted mirror: a crypt device over a mirror on two labelled disks.
const SAFE: &str = r#"
name = "home"
[disk]
a = { file = "a.img", size = "512MiB", create = true, label = true }
b = { file = "b.img", size = "512MiB", create = true, label = true }
[device]
pair = { kind = "mirror", on = ["a", "b"] }
safe = { kind = "crypt", on = "pair", plain = true, key = "file:key" }
[export]
vol = { on = "safe" }
"#;

fn safe() -> Dir {
    let dir = Dir::in_memory();
    fs::write(dir.path("key"), noise(64, 7)).unwrap();
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    dir.write("home.toml", SAFE);
    dir
}

/// Makes a directory with the spec of a memory disk, whose bytes are lost when the server ends.
fn mortal() -> Dir {
    let dir = Dir::new();
    dir.write(
        "home.toml",
        "name = \"home\"\n[disk]\nm = { memory = \"64MiB\" }\n[export]\nvol = { on = \"m\" }\n",
    );
    dir
}

/// Makes a directory with a raw disk of 64 MiB, without a spec.
fn plain() -> Dir {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "64M"]);
    dir
}

/// Starts a server under a service manager, and attaches the server's export `vol` as a block device.
fn attached<'d>(dir: &'d Dir, serve: &[&str]) -> (Manager<'d>, Name<'d>) {
    let mut manager = Manager::new(dir);
    manager.start(serve);
    let name = Name::new(dir);
    name.attach("vol");
    manager.listen();
    (manager, name)
}

/// Writes 1 MiB to the attached device at offset `at`, flushes, and checks that `disk` has the bytes at that offset.
fn is_on_disk(name: &Name, disk: &Path, at: u64, seed: u64) {
    let device = name.open();
    let (bytes, mut back) = (noise(1 << 20, seed), vec![0; 1 << 20]);
    device.write_all_at(&bytes, at).unwrap();
    device.sync_all().unwrap();
    File::open(disk).unwrap().read_exact_at(&mut back, at).unwrap();
    assert!(back == bytes, "bytes of seed {seed} at {at}");
}

/// Shell script that writes, syncs and compares files in a loop. It fails at the first error or difference, and ends
/// when the file `$1` exists.
const WRITER: &str = "n=0
    while test ! -e \"$1\"; do
        cp \"$2\" \"$3/f$n\" && sync \"$3/f$n\" || exit 1
        cmp \"$2\" \"$3/f$n\" || exit 2
        n=$(( (n + 1) % 8 ))
    done";

#[test]
fn attached_device_pauses_while_killed_server_restarts() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = safe();
    let mut manager = Manager::new(&dir);
    manager.start(&["home.toml"]);
    let name = Name::new(&dir);
    let device = name.attach("vol");
    manager.listen();
    name.make_fs();

    let at = name.mount_point().display().to_string();
    fs::write(dir.path("bytes"), noise(1 << 20 | 4095, 5)).unwrap();
    let [over, bytes] = ["over", "bytes"].map(|name| dir.path(name).display().to_string());
    let mut writer =
        Background::start(Command::new("bash").args(["-c", WRITER, "bash", &over, &bytes, &at]));
    let file = format!("--filename={at}/load");
    let load = Load::with(
        &dir,
        &["--ioengine=libaio", "--direct=1", "--size=96M", "--bsrange=4k-128k", &file],
    );

    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut longest_start = Duration::ZERO;
    for round in 0..KILLS {
        let random = noise(8, seed + round as u64);
        let random = u64::from_le_bytes(*random.first_chunk().unwrap());
        std::thread::sleep(Duration::from_millis(200 + random % 1800));
        let begun = Instant::now();
        manager.kill();
        manager.start(&["home.toml"]);
        longest_start = longest_start.max(begun.elapsed());
    }
    let pause = load.end();
    fs::write(&over, "").unwrap();
    assert_eq!(writer.end(), Some(0), "the writer saw an error: {}", manager.log());
    println!("{KILLS} kills: longest start {longest_start:?}");
    assert!(pause < PAUSE_MAX, "{pause:?}");
    assert_eq!(manager.log().matches("  resumed").count(), KILLS, "{}", manager.log());

    // The last server knows everything that the first one did.
    until("in sync", || dir.cairn(&["status"]).code == 0);
    let status: Vec<api::Status> = dir.json(0, &["status"]);
    let attached = &status[0].attached[0];
    assert_eq!((&attached.name, attached.has_resend), (&name.name, true));
    assert_eq!(attached.device.as_deref(), device.to_str());
    assert!(
        attached.notes[0].contains("pauses until that process is started again"),
        "{:?}",
        attached.notes
    );
    name.umount();
    run("e2fsck", &["-fn", &name.shown()]);
    name.detach_well();
    manager.listen();
    assert_eq!(manager.names(), ["listener"], "a device that is detached is not held");
    assert!(name.is_gone());
    assert_eq!(manager.stop(), 0);
    assert_eq!(manager.names(), [""; 0], "a server that ends in order leaves nothing");
}

#[test]
fn next_server_takes_over_listening_sockets_after_kill() {
    let _alone = alone();
    let dir = plain();
    let mut manager = Manager::new(&dir);
    let serve = ["disk.img", "--listen", "unix:vol.sock", "--listen", "tcp:127.0.0.1:0"];
    manager.start(&serve);
    manager.listen();
    assert_eq!(manager.names(), ["listener"; 2]);
    let inode = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(dir.path("vol.sock")).unwrap().ino()
    };
    let graph = || -> api::GraphView { dir.json(0, &["graph"]) };
    let (first, uris) = (inode(), graph().exports[0].uris.clone());
    let write = |pattern: &str| {
        let command = format!("write -P {pattern} 0 4096");
        let uri = "nbd+unix:///vol?socket=vol.sock";
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw", uri, "-c", &command, "-c", "flush"]).current_dir(&dir.0);
        io.stdout(Stdio::null()).spawn().unwrap()
    };
    assert!(write("1").wait().unwrap().success());
    for round in 0..3 {
        manager.kill();
        // No server runs, so the client waits and is not refused.
        let mut early = write("2");
        std::thread::sleep(Duration::from_millis(100));
        assert!(early.try_wait().unwrap().is_none(), "round {round}: it did not wait");
        manager.start(&serve);
        assert!(early.wait().unwrap().success());
        assert_eq!((inode(), &graph().exports[0].uris), (first, &uris), "round {round}");
    }
    // A listener that is no longer wanted is dropped from the store.
    manager.kill();
    manager.start(&["disk.img", "--listen", "unix:vol.sock"]);
    manager.listen();
    assert_eq!(manager.names(), ["listener"]);
    assert_eq!(inode(), first);
    assert_eq!(manager.stop(), 0);
    assert_eq!(manager.names(), [""; 0]);
    assert!(!dir.path("vol.sock").exists());
}

/// The client is fio, which does not reconnect, so the server must hand its connections to the next server.
#[test]
fn planned_restart_keeps_client_connections() {
    let _alone = alone();
    let dir = plain();
    let mut manager = Manager::new(&dir);
    let serve = ["disk.img", "--listen", "unix:vol.sock"];
    manager.start(&serve);
    let load = Load::of_nbd(&dir, "nbd+unix:///vol?socket=vol.sock");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        let connections = || dir.json::<Vec<Status>>(0, &["status"])[0].connections;
        until("fio has connected", || connections() > 0);
        assert_eq!(manager.replace(), 0, "{}", manager.log());
        assert_eq!(manager.names(), ["listener", "connection/0", "connections"]);
        manager.start(&serve);
        manager.listen();
        assert_eq!(manager.names(), ["listener"], "what it has taken is its own");
    }
    let longest = load.end();
    assert!(longest < PLANNED_MAX, "{longest:?}");
    assert_eq!(manager.stop(), 0);
    assert_eq!(manager.names(), [""; 0]);
}

#[test]
fn planned_restart_closes_graph_with_memory_disk() {
    let _alone = alone();
    let dir = mortal();
    let mut manager = Manager::new(&dir);
    manager.start(&["home.toml"]);
    assert_eq!(manager.replace(), 0);
    assert!(manager.log().contains("only in the memory of this process"), "{}", manager.log());
    assert_eq!(manager.names(), [""; 0]);
}

#[test]
fn reload_keeps_graph_with_memory_disk_and_hands_over_others() {
    let _alone = alone();
    let dir = mortal();
    let mut manager = Manager::new(&dir);
    manager.start(&["home.toml"]);
    manager.reload();
    until("the log has the reason", || manager.log().contains("only in the memory of this"));
    assert!(dir.text(&["status"]).contains("home"), "{}", manager.log());
    assert_eq!(manager.stop(), 0);

    let serve = ["disk.img", "--listen", "unix:vol.sock"];
    dir.text(&["create", "disk.img", "32M"]);
    manager.start(&serve);
    manager.reload();
    assert_eq!(manager.ended(), 0, "{}", manager.log());
    assert!(manager.names().contains(&"listener".to_owned()), "{:?}", manager.names());
    manager.start(&serve);
    assert_eq!(manager.stop(), 0);
}

#[test]
fn next_server_detaches_device_of_removed_export() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = plain();
    dir.text(&["create", "other.img", "32M"]);
    let spec = |file: &str, export: &str| {
        format!(
            "name = \"home\"\n[disk]\nd = {{ file = \"{file}\" }}\n\
             [export]\n{export} = {{ on = \"d\" }}\n"
        )
    };
    let mut manager = Manager::new(&dir);
    for (after, why) in [
        (spec("disk.img", "else"), "no export \"vol\""),
        (spec("other.img", "vol"), "sectors 131072; the export has 65536"),
    ] {
        dir.write("home.toml", &spec("disk.img", "vol"));
        manager.start(&["home.toml"]);
        let name = Name::new(&dir);
        name.attach("vol");
        manager.listen();
        assert_eq!(manager.held.len(), 2);
        let read = Command::new("dd")
            .args([&format!("if={}", name.shown()), "of=/dev/null", "bs=4k", "count=1"])
            .args(["iflag=direct", "status=none"])
            .stderr(Stdio::null())
            .spawn();
        assert!(read.unwrap().wait().unwrap().success());
        manager.kill();
        dir.write("home.toml", &after);
        manager.start(&["home.toml"]);
        manager.listen();
        let log = manager.log();
        assert!(log.contains(why) && log.contains("and is removed"), "{log}");
        assert_eq!(manager.names(), ["listener"]);
        until("nothing of it is left", || name.is_gone());
        assert_eq!(manager.stop(), 0);
    }
}

#[test]
fn server_does_not_store_attached_device_on_memory_disk() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = mortal();
    let mut manager = Manager::new(&dir);
    manager.start(&["home.toml"]);
    let name = Name::new(&dir);
    let ran = dir.cairn(&["attach", "vol", "--name", &name.name]);
    assert!(ran.code == 0 && ran.err.contains("returns I/O errors"), "{ran:?}");
    manager.listen();
    assert_eq!(manager.names(), ["listener"], "memory does not outlive its process");
    manager.kill();
    let device = File::open(name.path()).unwrap();
    assert!(device.read_at(&mut [0; 4096], 0).is_err());
    drop(device);
    name.detach_well();
    assert!(!Path::new("/run/cairn/attach").join(format!(".{}.resent", name.name)).exists());
}

#[test]
fn next_server_fails_request_present_at_every_crash() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = plain();
    // So slow that the server is killed before it can answer.
    dir.write(
        "home.toml",
        "name = \"home\"\n[disk]\nd = { file = \"disk.img\" }\n\
         [device]\nslow = { kind = \"delay\", on = \"d\", write = \"10min\" }\n\
         [export]\nvol = { on = \"slow\" }\n",
    );
    let (mut manager, name) = attached(&dir, &["home.toml"]);
    let read = || {
        let mut dd = Command::new("dd");
        dd.args([&format!("if={}", name.shown()), "of=/dev/null", "bs=4k", "count=1"]);
        dd.args(["iflag=direct", "status=none"]).status().unwrap().success()
    };
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", &format!("of={}", name.shown()), "bs=4k", "count=1", "seek=9"]);
    let mut writer = Background::start(dd.args(["oflag=direct", "status=none"]));
    let is_on_its_way = || {
        let top: api::Top = dir.json(0, &["top"]);
        let counts = top.rows.iter().filter_map(|row| row.counts.as_ref());
        counts.into_iter().any(|counts| counts.in_flight > 0)
    };
    until("the write is on its way", is_on_its_way);
    for round in 1..=3 {
        manager.kill();
        manager.start(&["home.toml"]);
        assert!(read(), "others go on");
        if round < 3 {
            until("it has come again", is_on_its_way);
            assert!(!manager.log().contains("I/O error"), "{}", manager.log());
        }
    }
    assert_eq!(writer.end(), Some(1), "its write fails");
    let log = manager.log();
    assert!(log.contains("vol: request ") && log.contains("offset: 36864, size: 4096"), "{log}");
    assert!(
        log.contains(
            "in flight when the server ended, 3 times in a row; the request fails with an I/O error"
        ),
        "{log}"
    );
    name.detach_well();
    assert!(name.is_gone());
    assert_eq!(manager.stop(), 0);
}

#[test]
fn next_server_resumes_device_when_another_attach_fails() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = Dir::new();
    let (name, taken) = (Name::new(&dir), Name::new(&dir));
    for disk in ["a.img", "b.img"] {
        dir.text(&["create", disk, "64M"]);
    }
    let spec = format!(
        "name = \"home\"\n[disk]\na = {{ file = \"a.img\" }}\nb = {{ file = \"b.img\" }}\n\
         [export]\n{} = {{ on = \"a\", attach = true }}\n",
        name.name
    );
    dir.write("home.toml", &spec);
    let mut manager = Manager::new(&dir);
    manager.start(&["home.toml"]);
    name.make_fs();
    fs::write(taken.path(), "of somebody else").unwrap();
    dir.write("home.toml", &format!("{spec}{} = {{ on = \"b\", attach = true }}\n", taken.name));
    let why = format!(
        "warning: the export {} is not attached: {} exists already",
        taken.name,
        taken.shown()
    );
    let ran = dir.cairn(&["apply", "home.toml"]);
    assert!(ran.code == 0 && ran.err.contains(&why), "{ran:?}");

    for kills in 1..=2 {
        manager.kill();
        manager.start(&["home.toml"]);
        let log = manager.log();
        assert_eq!(log.matches("  resumed").count(), kills, "{log}");
        assert_eq!(log.matches(&why).count(), kills, "{log}");
        fs::write(name.mount_point().join("f"), noise(1 << 16, kills as u64)).unwrap();
        name.sync();
    }
    name.umount();
    assert_eq!(manager.stop(), 0, "{}", manager.log());
    assert!(name.is_gone());

    // Without a device to continue, the start fails with this error, and nothing is left.
    let ran = dir.cairn(&["serve", "home.toml"]);
    assert!(ran.code == 5 && ran.err.contains("was not made by Cairn"), "{ran:?}");
    assert!(name.is_gone());
    fs::remove_file(taken.path()).unwrap();
}

#[test]
fn next_server_grows_attached_device_of_grown_export() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = plain();
    let (mut manager, name) = attached(&dir, &["disk.img"]);
    name.make_fs();
    // The state after a kill between the change of an export and that of its device.
    manager.kill();
    File::options().write(true).open(dir.path("disk.img")).unwrap().set_len(96 << 20).unwrap();
    manager.start(&["disk.img"]);
    let log = manager.log();
    assert!(log.contains("  resumed") && !log.contains("keeps its old size"), "{log}");
    assert_eq!(run("blockdev", &["--getsize64", &name.shown()]), format!("{}\n", 96 << 20));
    fs::write(name.mount_point().join("f"), noise(1 << 20, 3)).unwrap();
    name.sync();
    name.umount();
    run("e2fsck", &["-fn", &name.shown()]);
    // The added bytes belong to the export.
    is_on_disk(&name, &dir.path("disk.img"), 95 << 20, 4);
    name.detach_well();
    assert_eq!(manager.stop(), 0, "{}", manager.log());
}

#[test]
fn next_server_resumes_device_without_replay_counts() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = plain();
    let (mut manager, name) = attached(&dir, &["disk.img"]);
    // In the first round the file cannot be opened, in the second it cannot be rewritten.
    for (round, what) in [(1, "resent"), (2, "new")] {
        manager.kill();
        let in_the_way = Path::new("/run/cairn/attach").join(format!(".{}.{what}", name.name));
        fs::create_dir(&in_the_way).unwrap();
        manager.start(&["disk.img"]);
        until("it was told", || manager.log().matches("are not counted").count() == round);
        let log = manager.log();
        assert_eq!(log.matches("  resumed").count(), round, "{log}");
        is_on_disk(&name, &dir.path("disk.img"), 8 << 20, round as u64);
        fs::remove_dir(&in_the_way).unwrap();
    }
    name.detach_well();
    assert!(name.is_gone());
    assert_eq!(manager.stop(), 0, "{}", manager.log());
}

#[test]
fn apply_reports_whether_attached_device_survives_kill() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let dir = plain();
    let server = dir.serve(&["disk.img", "--listen", "tcp:127.0.0.1:0"]);
    // A late write of a dead process may land over TCP. The option `unsafe_replica` says whether that matters.
    let spec = |fenced: bool| {
        format!(
            "name = \"home\"\n[disk]\nd = {{ nbd = \"{}\", unsafe_replica = {fenced} }}\n\
             [export]\nother = {{ on = \"d\" }}\n",
            server.uri()
        )
    };
    let mut manager = Manager::new(&dir);
    dir.write("home.toml", &spec(true));
    manager.start(&["home.toml"]);
    let name = Name::new(&dir);
    name.attach("other");
    let device = name.open();
    let is_held = |name: &(String, _)| name.0.starts_with("attached/");
    manager.listen();
    assert!(manager.held.iter().any(is_held), "{:?}", manager.names());
    let note = || {
        let status: Vec<api::Status> = dir.json(0, &["status", "--at", "home"]);
        status[0].attached[0].notes[0].clone()
    };
    for (fenced, words) in [(false, "returns I/O errors"), (true, "pauses until"), (false, "")] {
        let before = manager.held.iter().find(|held| is_held(held));
        let copy = before.map(|(name, file)| (name.clone(), file.try_clone().unwrap()));
        dir.write("home.toml", &spec(fenced));
        let ran = dir.cairn(&["apply", "home.toml"]);
        assert!(ran.code == 0 && ran.err.contains(words), "{ran:?}");
        manager.listen();
        assert_eq!(manager.held.iter().any(is_held), fenced, "{:?}", manager.names());
        assert!(note().contains(words), "{}", note());
        let ran = dir.cairn(&["apply", "home.toml"]);
        assert!(ran.code == 0 && !ran.err.contains("is killed"), "it is told once: {ran:?}");
        if words.is_empty() {
            // A descriptor that a manager kept all the same must not be used.
            manager.kill();
            manager.held.extend(copy);
            assert!(manager.held.iter().any(is_held));
        }
    }
    manager.start(&["home.toml"]);
    manager.listen();
    let log = manager.log();
    assert!(log.contains("may overwrite newer ones; the device returns I/O errors"), "{log}");
    assert!(!manager.held.iter().any(is_held), "{:?}", manager.names());
    assert!(device.read_at(&mut [0; 4096], 0).is_err());
    drop(device);
    until("nothing of it is left", || name.is_gone());
    assert_eq!(manager.stop(), 0, "{}", manager.log());
}
