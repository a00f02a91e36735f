//! Disks that fail while `cairn serve` uses them: the errors of clients, the output of `status`, the exit code.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::machine::Loop;
use common::{Dir, Ran, Serve, listens, send, tool, until};

/// Runs `commands` with qemu-io on the export, and returns the output. qemu-io sends a flush when it ends.
fn io(dir: &Dir, serve: &Serve, commands: &[&str]) -> Ran {
    run(dir, &["-f", "raw", serve.uri()], commands)
}

/// Runs `commands` with qemu-io on the export opened read-only, so that qemu-io sends no flush when it ends.
fn look(dir: &Dir, serve: &Serve, commands: &[&str]) -> Ran {
    run(dir, &["-r", "-f", "raw", serve.uri()], commands)
}

fn run(dir: &Dir, args: &[&str], commands: &[&str]) -> Ran {
    let mut args = args.to_vec();
    for command in commands {
        args.extend(["-c", command]);
    }
    let mut ran = tool(dir, "qemu-io", &args);
    ran.out.push_str(&std::mem::take(&mut ran.err));
    ran
}

/// The mount point of a file system for one test. It is unmounted when this value is dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(dir: &Dir, size: &str) -> Self {
        let path = dir.path("full");
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let args = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        let status = Command::new("mount").args(args).arg(&path).status().unwrap();
        assert!(status.success(), "mount a tmpfs");
        Self(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A running nbdkit server, which the test can stop and continue by signals.
struct Other(Child);

impl Other {
    fn start(dir: &Dir) -> Self {
        Self::at(dir, "other.sock", &["memory", "1M"])
    }

    fn at(dir: &Dir, socket: &str, args: &[&str]) -> Self {
        let child = Command::new("nbdkit")
            .args(["-f", "-U", socket])
            .args(args)
            .current_dir(&dir.0)
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdkit is needed: install the package nbdkit");
        until("nbdkit listens", || listens(&dir.path(socket)));
        Self(child)
    }

    fn signal(&self, signal: &str) {
        send(self.0.id(), signal);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn concat_joins_nbd_servers_with_different_limits() {
    let dir = Dir::new();
    let start = |socket: &str, blocks: u32, most: u32| {
        let limits = [("minimum", blocks), ("preferred", blocks), ("maximum", most)];
        let [blocks, preferred, most] = limits.map(|(what, n)| format!("blocksize-{what}={n}"));
        let filter = "--filter=blocksize-policy";
        Other::at(&dir, socket, &[filter, "memory", "1M", &blocks, &preferred, &most])
    };
    let disk = |name| format!("{name} = {{ nbd = \"nbd+unix:///?socket={name}.sock\" }}\n");
    for (name, third) in [("some.toml", "odd"), ("none.toml", "small")] {
        let (a, b) = (disk("large"), disk(third));
        let both = format!("both = {{ kind = \"concat\", on = [\"large\", \"{third}\"] }}");
        let spec = format!("[disk]\n{a}{b}[device]\n{both}\n[export]\nvol = {{ on = \"both\" }}\n");
        dir.write(name, &spec);
    }
    let _large = start("large.sock", 4096, 1 << 20);
    // 13 blocks of 512 bytes hold one block of the large server, and a part of another.
    let _odd = start("odd.sock", 512, 13 * 512);
    let _small = start("small.sock", 512, 4 * 512);
    let serve = dir.serve(&["some.toml"]);
    let ran = io(&dir, &serve, &["write -P 5 1020k 64k", "read -P 5 1020k 64k"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    serve.stop().ok();
    let ran = dir.cairn(&["validate", "none.toml"]);
    assert!(
        ran.code == 3 && ran.err.contains("\"both\" would have blocks of 4096 bytes"),
        "{ran:?}"
    );
}

#[test]
fn disk_error_fails_only_requests_in_failing_range() {
    let dir = Dir::new();
    dir.write(
        "bad.toml",
        "[disk]\nm = { memory = \"1MiB\" }\n\
         [device]\nbad = { kind = \"error\", on = \"m\", start = \"512KiB\", size = \"4KiB\" }\n\
         [export]\nvol = { on = \"bad\" }\n",
    );
    let serve = dir.serve(&["bad.toml"]);
    let ran =
        io(&dir, &serve, &["write -P 1 0 4k", "write 512k 4k", "read 508k 8k", "read -P 1 0 4k"]);
    assert_eq!(ran.out.matches("Input/output error").count(), 2, "{ran:?}");
    assert!(ran.out.contains("wrote 4096/4096 bytes at offset 0"), "{ran:?}");
    assert!(ran.out.contains("read 4096/4096 bytes at offset 0"), "{ran:?}");
    // One bad range does not fail the whole disk.
    assert_eq!(dir.cairn(&["status"]).code, 0);
    let ran = serve.stop();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn mirror_returns_errors_of_last_member_in_sync() {
    let dir = Dir::new();
    dir.write(
        "pair.toml",
        "[disk]\nm = { memory = \"1MiB\" }\nn = { memory = \"1MiB\" }\n\
         [device]\na = { kind = \"error\", on = \"m\", op = \"write\" }\n\
         b = { kind = \"error\", on = \"n\", op = \"write\" }\n\
         pair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
         [export]\nvol = { on = \"pair\" }\n",
    );
    let serve = dir.serve(&["pair.toml"]);
    let ran = io(&dir, &serve, &["write 0 4k", "read 0 4k"]);
    assert!(ran.out.contains("write failed: Input/output error"), "{ran:?}");
    assert!(ran.out.contains("read 4096/4096"), "{ran:?}");
    let ran = dir.cairn(&["status"]);
    assert!(ran.code == 10 && ran.out.contains("next: cairn device resync pair/"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn client_gets_enospc_when_file_system_is_full() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: needs root: it mounts a tmpfs");
        return;
    }
    let dir = Dir::new();
    let mount = Mount::tmpfs(&dir, "4m");
    let image = mount.0.join("disk.img");
    dir.text(&["create", image.to_str().unwrap(), "16M"]);
    let serve = dir.serve(&[image.to_str().unwrap()]);
    let ran = io(&dir, &serve, &["write -P 1 0 1M", "write 1M 8M", "read -P 1 0 1M"]);
    assert!(ran.out.contains("write failed: No space left on device"), "{ran:?}");
    assert!(ran.out.contains("read 1048576/1048576"), "{ran:?}");
    // With room again, the server goes on without a restart.
    let ran =
        io(&dir, &serve, &["discard 1M 8M", "write -P 3 1M 512k", "flush", "read -P 3 1M 512k"]);
    assert!(ran.out.contains("read 524288/524288") && !ran.out.contains("failed"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

/// Writes the spec of a thin volume of 128 MiB on a sparse file of 64 MiB. The file is on a tmpfs of `size` bytes.
fn thin(dir: &Dir, size: &str) -> Mount {
    let mount = Mount::tmpfs(dir, size);
    dir.write(
        "thin.toml",
        "name = \"g\"\n[disk]\n\
         a = { file = \"full/a.img\", size = \"64MiB\", create = true, label = true }\n\
         [device]\nthin = { kind = \"remap\", on = \"a\", size = \"128MiB\" }\n\
         [export]\nvol = { on = \"thin\" }\n",
    );
    mount
}

#[test]
fn thin_volume_discards_and_reopens_on_full_file_system() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: needs root: it mounts a tmpfs");
        return;
    }
    let dir = Dir::new();
    let _mount = thin(&dir, "8m");
    let serve = dir.serve(&["thin.toml"]);
    let ran = io(&dir, &serve, &["write -P 1 0 4M", "flush", "write 4M 16M"]);
    assert!(ran.out.contains("write failed: No space left on device"), "{ran:?}");
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert_eq!(serve.stop().code, 0);
    // The file system is still full, but the space of the device's own metadata is allocated.
    let serve = dir.serve(&["thin.toml"]);
    let ran = io(&dir, &serve, &["discard 0 2M", "flush", "write -P 2 20M 1M", "flush"]);
    assert!(!ran.out.contains("failed"), "{ran:?}");
    assert_eq!(dir.cairn(&["status"]).code, 0);
    let ran = io(&dir, &serve, &["read -P 1 2M 2M", "read -P 0 0 2M", "read -P 2 20M 1M"]);
    assert!(!ran.out.contains("failed"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn pool_on_full_file_system_goes_on_when_space_is_freed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: needs root: it mounts a tmpfs");
        return;
    }
    let dir = Dir::new();
    let mount = Mount::tmpfs(&dir, "16m");
    dir.write(
        "pool.toml",
        "[nbd]\nlisten = \"unix:s.sock\"\n\
         [disk]\na = { file = \"full/a.img\", size = \"64MiB\", create = true, label = true }\n\
         [device]\nvms = { kind = \"pool\", on = \"a\" }\n",
    );
    let serve = dir.serve(&["pool.toml"]);
    assert_eq!(dir.cairn(&["vdisk", "create", "vms/web", "32M"]).code, 0);
    let uri = format!("nbd+unix:///vms/web?socket={}", dir.path("s.sock").display());
    let ballast = mount.0.join("ballast");
    let to = format!("of={}", ballast.display());
    let filled = tool(&dir, "dd", &["if=/dev/zero", &to, "bs=64k"]);
    assert!(filled.err.contains("No space left"), "{filled:?}");

    let writes = ["write -P 5 0 1M", "flush", "read -P 5 0 1M"];
    std::thread::scope(|scope| {
        let client = scope.spawn(|| run(&dir, &["-f", "raw", &uri], &writes));
        let status = || dir.cairn(&["status"]);
        until("the wait", || status().out.contains("has no space: writes wait"));
        assert_eq!(status().code, 0, "{:?}", status());
        std::fs::remove_file(&ballast).unwrap();
        let ran = client.join().unwrap();
        assert!(!ran.out.contains("failed") && ran.out.contains("read 1048576/1048576"), "{ran:?}");
        assert!(!status().out.contains("writes wait"));
    });
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn start_refuses_new_thin_volume_without_space_for_map() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: needs root: it mounts a tmpfs");
        return;
    }
    let dir = Dir::new();
    let mount = thin(&dir, "8m");
    let fill = |bytes: u64| {
        let (file, block) = (mount.0.join("other"), vec![1; 4096]);
        let mut file = File::create(file).unwrap();
        let mut written = 0;
        while written < bytes && std::io::Write::write_all(&mut file, &block).is_ok() {
            written += 4096;
        }
    };
    let serve = |code: i32| {
        let ran = dir.cairn(&["serve", "thin.toml", "--run", "true"]);
        assert_eq!(ran.code, code, "{ran:?}");
        ran.err
    };
    // The failed start leaves nothing behind that takes up space.
    fill((8 << 20) - (96 << 10));
    let said = serve(6);
    assert!(said.contains("no room for the"), "{said}");
    assert!(said.contains("Next: free some space on the disk"), "{said}");
    fill(0);
    serve(0);
}

#[test]
fn mirror_fails_hanging_member_after_timeout() {
    let dir = Dir::new();
    dir.write(
        "pair.toml",
        "[disk]\na = { memory = \"1MiB\" }\nm = { memory = \"1MiB\" }\n\
         [device]\nb = { kind = \"delay\", on = \"m\", write = \"10min\" }\n\
         pair = { kind = \"mirror\", on = [\"a\", \"b\"], timeout = \"300ms\" }\n\
         [export]\nvol = { on = \"pair\" }\n",
    );
    let serve = dir.serve(&["pair.toml", "--stop-timeout", "500ms"]);
    let begun = Instant::now();
    let ran = io(&dir, &serve, &["write -P 7 0 64k", "flush", "read -P 7 0 64k"]);
    assert!(!ran.out.contains("failed") && ran.out.contains("read 65536/65536"), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let text = dir.cairn(&["status"]);
    assert_eq!(text.code, 10, "{text:?}");
    assert!(text.out.contains("DEGRADED") && text.out.contains("b "), "{text:?}");
    assert!(text.out.contains("next: "), "{text:?}");
    // A request is still in flight on the failed member. Nothing depends on it, so the stop does not wait for it.
    let begun = Instant::now();
    let ran = serve.stop();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// A running nbdfuse, and the file that it provides through FUSE. The test can stop and continue the process.
struct Fuse(Child, PathBuf);

impl Fuse {
    fn start(dir: &Dir) -> Self {
        dir.write("fuse.img", "");
        let child = Command::new("nbdfuse")
            .args(["fuse.img", "--command", "nbdkit", "-s", "memory", "1M"])
            .current_dir(&dir.0)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdfuse is needed: install the packages nbdfuse and nbdkit");
        let path = dir.path("fuse.img");
        until("the file of nbdfuse", || std::fs::metadata(&path).unwrap().len() == 1 << 20);
        Self(child, path)
    }

    fn signal(&self, signal: &str) {
        send(self.0.id(), signal);
    }

    /// Kills the nbdfuse process, so that all later requests to its file fail.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_some()) {
            let _ = Command::new("umount").arg("-l").arg(&self.1).status();
            return;
        }
        // It unmounts when it gets SIGTERM.
        self.signal("CONT");
        self.signal("TERM");
        let _ = self.0.wait();
    }
}

const SLOW_FILE: &str =
    "[disk]\nd = { file = \"fuse.img\", timeout = \"500ms\" }\n[export]\nvol = { on = \"d\" }\n";

#[test]
fn hanging_file_disk_fails_requests_until_file_answers() {
    let dir = Dir::new();
    let fuse = Fuse::start(&dir);
    dir.write("slow.toml", SLOW_FILE);
    let serve = dir.serve(&["slow.toml"]);
    assert!(io(&dir, &serve, &["write -P 5 0 4k"]).out.contains("wrote 4096/4096"));
    fuse.signal("STOP");
    let begun = Instant::now();
    let ran = look(&dir, &serve, &["read 0 4k"]);
    assert!(ran.out.contains("read failed: Input/output error"), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let ran = dir.cairn(&["status"]);
    assert!(ran.code == 11 && ran.out.contains("no answer from the disk within 0.5 s"), "{ran:?}");
    fuse.signal("CONT");
    until("the disk is back", || {
        look(&dir, &serve, &["read -P 5 0 4k"]).out.contains("read 4096/4096")
    });
    assert_eq!(dir.cairn(&["status"]).code, 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn hanging_nbd_disk_fails_requests_until_restart() {
    let dir = Dir::new();
    let other = Other::start(&dir);
    dir.write(
        "far.toml",
        "[disk]\nfar = { nbd = \"nbd+unix:///?socket=other.sock\", timeout = \"500ms\" }\n\
         [export]\nvol = { on = \"far\" }\n",
    );
    let serve = dir.serve(&["far.toml"]);
    assert!(io(&dir, &serve, &["write -P 5 0 4k"]).out.contains("wrote 4096/4096"));
    other.signal("STOP");
    let begun = Instant::now();
    let ran = io(&dir, &serve, &["read 0 4k"]);
    assert!(ran.out.contains("read failed: Input/output error"), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(dir.cairn(&["status"]).code, 11);
    other.signal("CONT");
    // The fate of the writes that were in flight is unknown.
    assert_eq!(serve.stop().code, 12);
    let serve = dir.serve(&["far.toml"]);
    assert!(io(&dir, &serve, &["read -P 5 0 4k"]).out.contains("read 4096/4096"));
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn mirror_degrades_when_block_device_is_lost() {
    let dir = Dir::new();
    let mut fuse = Fuse::start(&dir);
    let device = Loop::over(&dir, "fuse.img");
    let spec = format!(
        "[disk]\na = {{ memory = \"1MiB\" }}\nb = {{ path = {:?} }}\n\
         [device]\nleft = {{ kind = \"partition\", on = \"b\", size = \"512KiB\" }}\n\
         right = {{ kind = \"partition\", on = \"b\", size = \"rest\" }}\n\
         pair = {{ kind = \"mirror\", on = [\"a\", \"left\"], trust = \"a\" }}\n\
         [export]\nvol = {{ on = \"pair\" }}\nalone = {{ on = \"right\" }}\n",
        device.0
    );
    dir.write("gone.toml", &spec);
    let serve = dir.serve(&["gone.toml"]);
    let alone = serve.uri().replace("/vol?", "/alone?");
    let on = |uri: &str, commands: &[&str]| run(&dir, &["-f", "raw", uri], commands);
    until("the copy", || dir.cairn(&["status"]).code == 0);
    let ran = on(&alone, &["write -P 3 0 4k", "flush", "read -P 3 0 4k"]);
    assert!(!ran.out.contains("failed"), "{ran:?}");

    fuse.kill();
    let ran = on(serve.uri(), &["write -P 7 0 64k", "flush", "read -P 7 0 64k"]);
    assert!(!ran.out.contains("failed") && ran.out.contains("read 65536/65536"), "{ran:?}");
    let ran = on(&alone, &["read 64k 4k", "write 64k 4k", "flush"]);
    assert!(ran.out.contains("read failed: Input/output error"), "{ran:?}");
    let text = dir.cairn(&["status"]);
    assert_eq!(text.code, 11, "what the disk alone was to keep may be lost: {text:?}");
    assert!(text.out.contains("left") && text.out.contains("next: "), "{text:?}");
    let ran = serve.stop();
    assert_eq!(ran.code, 12, "what the device was to keep is not flushed: {ran:?}");
}

#[test]
fn server_stops_after_deadline_when_disk_hangs() {
    let dir = Dir::new();
    let other = Other::start(&dir);
    dir.write(
        "far.toml",
        "[disk]\nfar = { nbd = \"nbd+unix:///?socket=other.sock\", timeout = \"10min\" }\n\
         [export]\nvol = { on = \"far\" }\n",
    );
    let serve = dir.serve(&["far.toml", "--stop-timeout", "500ms"]);
    other.signal("STOP");
    let begun = Instant::now();
    let ran = serve.stop();
    assert_eq!(ran.code, 12, "{ran:?}");
    assert!(
        ran.err.contains("stopped after 500 ms") && ran.err.contains("far (nbd): 1"),
        "{ran:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn killed_server_keeps_acknowledged_writes_on_disk() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "16M"]);
    for round in 1..=3_u64 {
        let serve = dir.serve(&["disk.img"]);
        // qemu-io reports each write once it is acknowledged. The kill comes between two writes, or inside one.
        let script = format!(
            "n=0; while [ $n -lt 4000 ]; do echo \"write -P $(((n + {round}) % 255)) $((n * 4))k 4k\"; \
             n=$((n + 1)); done | qemu-io -f raw '{}' 2>/dev/null",
            serve.uri()
        );
        let mut client = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .stdout(
                OpenOptions::new()
                    .create(true)
                    .write(true)
                    .truncate(true)
                    .open(dir.path("told"))
                    .unwrap(),
            )
            .spawn()
            .unwrap();
        let told =
            || std::fs::read_to_string(dir.path("told")).unwrap().matches("wrote 4096").count();
        until("some writes", || told() > 200);
        serve.signal("KILL");
        assert_eq!(serve.end().code, -9);
        client.wait().unwrap();
        let answered = told();
        // The next server gets the lock as soon as the last write of the killed one has ended.
        let serve = dir.serve(&["disk.img"]);
        let bytes = std::fs::read(dir.path("disk.img")).unwrap();
        for (n, block) in bytes.chunks(4096).take(answered).enumerate() {
            let pattern = ((n as u64 + round) % 255) as u8;
            assert!(block.iter().all(|byte| *byte == pattern), "block {n} of {answered}");
        }
        assert_eq!(serve.stop().code, 0);
    }
}
