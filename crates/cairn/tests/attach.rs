//! `cairn attach`: exports as block devices of this machine, file systems on them, and the bytes on their disks.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use api::{Attached, GraphView, Status};
use common::keeper::{Daemon, mirror};
use common::machine::{Background, Name, is_root, noise, run};
use common::{Dir, PAIR, tool, until};

/// Starts `cairn serve` on a sparse file of 512 MiB, with the export `vol`.
fn file() -> (Dir, common::Serve) {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "512M"]);
    let serve = dir.serve(&["disk.img"]);
    (dir, serve)
}

#[test]
fn attached_device_keeps_files_over_remount() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file();
    let name = Name::new(&dir);
    let device = name.attach("vol");
    assert_eq!(
        std::fs::read_link(name.path()).unwrap(),
        std::path::Path::new("..").join(device.file_name().unwrap())
    );
    name.make_fs();
    for n in 0..20 {
        std::fs::write(name.mount_point().join(format!("f{n}")), noise(1 << 20 | n, n as u64))
            .unwrap();
    }
    name.umount();
    name.mount();
    for n in 0..20 {
        let read = std::fs::read(name.mount_point().join(format!("f{n}"))).unwrap();
        assert!(read == noise(1 << 20 | n, n as u64), "file {n} differs");
    }
    name.umount();
    let ran = name.detach();
    assert_eq!((ran.code, &*ran.out), (0, &*format!("{}  detached\n", name.shown())), "{ran:?}");
    assert!(name.is_gone());
    assert_eq!(serve.stop().code, 0);
    // After the detach, all data are on the disk.
    run("e2fsck", &["-fn", &dir.path("disk.img").display().to_string()]);
}

#[test]
fn attached_device_holds_xfs_btrfs_and_ext4_file_systems() {
    if !is_root() {
        return;
    }
    let (dir, _serve) = file();
    for make in
        [&["mkfs.xfs", "-q", "-f"][..], &["mkfs.btrfs", "-q", "-f"], &["mkfs.ext4", "-q", "-F"]]
    {
        let name = Name::new(&dir);
        name.attach("vol");
        let (program, args) = make.split_first().unwrap();
        run(program, &[args, &[&*name.shown()]].concat());
        let kind = program.trim_start_matches("mkfs.");
        // Where the kernel lacks this file system, only mkfs is tested.
        let known = std::fs::read_to_string("/proc/filesystems").unwrap();
        if known.split_whitespace().any(|word| word == kind) {
            name.mount();
            std::fs::write(name.mount_point().join("f"), noise(3 << 20, 7)).unwrap();
            let ran = name.detach();
            assert!(ran.code == 5 && ran.err.contains("is mounted on"), "{kind}: {ran:?}");
            name.umount();
            name.mount();
            assert!(std::fs::read(name.mount_point().join("f")).unwrap() == noise(3 << 20, 7));
            name.umount();
        } else {
            eprintln!("passed over: mounting {kind}: this kernel does not know it");
        }
        name.detach_well();
    }
}

#[test]
fn attached_device_serves_direct_and_buffered_io() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file();
    let name = Name::new(&dir);
    name.attach("vol");
    let bytes = noise(8 << 20, 1);
    let through = name.open();
    // Unaligned on purpose: the kernel reads the bytes around it and writes whole pages.
    through.write_all_at(&bytes, 4097).unwrap();
    through.sync_all().unwrap();
    let uri = serve.uri();
    let read = ["-f", "raw", uri, "-c", "read -v 4096 512"];
    let out = tool(&dir, "qemu-io", &read).out;
    let first: Vec<_> = bytes[..3].iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(out.contains(&format!("00001000:  00 {}", first.join(" "))), "{out}");
    drop(through);
    // `dd` aligns its buffers as O_DIRECT requires.
    dir.write("bytes", "");
    std::fs::write(dir.path("bytes"), &bytes).unwrap();
    let (from, to) = (dir.path("bytes").display().to_string(), name.shown());
    run(
        "dd",
        &[&format!("if={from}"), &format!("of={to}"), "bs=1M", "oflag=direct", "status=none"],
    );
    run(
        "dd",
        &[
            &format!("if={to}"),
            &format!("of={from}.2"),
            "bs=1M",
            "count=8",
            "iflag=direct",
            "status=none",
        ],
    );
    assert!(std::fs::read(dir.path("bytes.2")).unwrap() == bytes);
    let direct = File::options().read(true).custom_flags(0o40000).open(name.path());
    assert!(direct.is_ok(), "O_DIRECT is refused: {direct:?}");
    drop(direct);
    name.detach_well();
    // A read past the end of the device must not have become an error of the disk.
    let top: api::Top = dir.json(0, &["top"]);
    assert_eq!(top.rows[0].counts.as_ref().unwrap().errors, 0);
}

#[test]
fn fstrim_on_attached_device_frees_space_of_backing_file() {
    if !is_root() {
        return;
    }
    let (dir, _serve) = file();
    let name = Name::new(&dir);
    name.attach("vol");
    name.make_fs();
    let used = || std::fs::metadata(dir.path("disk.img")).unwrap().blocks() * 512;
    std::fs::write(name.mount_point().join("f"), noise(64 << 20, 3)).unwrap();
    name.sync();
    let full = used();
    assert!(full >= 64 << 20, "{full}");
    std::fs::remove_file(name.mount_point().join("f")).unwrap();
    name.sync();
    run("fstrim", &[&name.mount_point().display().to_string()]);
    let empty = used();
    assert!(empty + (48 << 20) < full, "{full} bytes before, {empty} after");
    name.umount();
    run("e2fsck", &["-fn", &name.shown()]);
    name.detach_well();
}

#[test]
fn attached_device_reads_zeros_after_zeroout_and_discard() {
    if !is_root() {
        return;
    }
    let (dir, _serve) = file();
    let name = Name::new(&dir);
    name.attach("vol");
    let device = name.open();
    device.write_all_at(&noise(4 << 20, 5), 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    run("blkdiscard", &["--zeroout", "--offset", "1MiB", "--length", "1MiB", &name.shown()]);
    run("blkdiscard", &["--offset", "2MiB", "--length", "1MiB", &name.shown()]);
    let device = File::open(name.path()).unwrap();
    let mut read = vec![1; 4 << 20];
    device.read_exact_at(&mut read, 0).unwrap();
    drop(device);
    let bytes = noise(4 << 20, 5);
    assert!(read[..1 << 20] == bytes[..1 << 20] && read[3 << 20..] == bytes[3 << 20..]);
    assert!(read[1 << 20..3 << 20].iter().all(|byte| *byte == 0));
    name.detach_well();
}

#[test]
fn server_attaches_several_exports_and_status_lists_each() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    dir.write("pair.toml", PAIR);
    let serve = dir.serve(&["pair.toml"]);
    let (vol, all) = (Name::new(&dir), Name::new(&dir));
    let device = vol.attach("vol");
    let attached: Attached = dir.json(0, &["attach", "all", "--name", &all.name]);
    assert!(
        attached.notes[0].contains(&format!("process {} is killed", serve.pid())),
        "{attached:?}"
    );
    assert_eq!((&*attached.path, &*attached.export), (&*all.shown(), "all"));

    // One may be written, the other is read-only.
    run("mkfs.ext4", &["-q", &vol.shown()]);
    assert_eq!(run("blockdev", &["--getro", &all.shown()]), "1\n");
    assert_eq!(run("blockdev", &["--getsize64", &vol.shown()]), "16777216\n");
    let refused = File::options().write(true).open(all.path()).and_then(|file| {
        file.write_all_at(&[1; 512], 0)?;
        file.sync_all()
    });
    assert!(refused.is_err());

    let status: Vec<Status> = dir.json(0, &["status"]);
    assert_eq!(status[0].attached.len(), 2);
    let graph: GraphView = dir.json(0, &["graph"]);
    assert_eq!(graph.exports[0].attached, Some(vol.shown()));
    assert!(dir.text(&["ls"]).contains(&vol.shown()));
    let line = format!("  {} -> {}   vol\n", vol.shown(), device.display());
    assert!(dir.text(&["status"]).contains(&line));

    // A second device of the same export would be a second cache of the same bytes.
    let ran = dir.cairn(&["attach", "vol", "--name", "other"]);
    assert!(ran.code == 5 && ran.err.contains("already"), "{ran:?}");
    assert_eq!(
        dir.text(&["detach", &vol.shown(), "--dry-run"]),
        format!("{}  would be detached\n", vol.shown())
    );
    vol.detach_well();
    assert!(vol.is_gone() && !all.is_gone());
    // The server detaches the remaining devices when it ends.
    let ran = serve.stop();
    assert_eq!((ran.code, &*ran.out), (0, "flushed; closed 0 connections.\n"), "{ran:?}");
    assert!(all.is_gone());
}

#[test]
fn kernel_finds_partitions_on_attached_device() {
    if !is_root() {
        return;
    }
    let (dir, _serve) = file();
    let name = Name::new(&dir);
    name.attach("vol");
    let table =
        format!("printf 'label: gpt\\nsize=100M\\nsize=200M\\n' | sfdisk -q {}", name.shown());
    run("sh", &["-c", &table]);
    name.detach_well();
    // Partitions are found when the device is attached again. A kernel that reads no partition tables gets them from
    // `partx`.
    let device = name.attach("vol");
    let part = format!("{}p2", device.display());
    if !std::path::Path::new(&part).exists() {
        run("partx", &["--add", &device.display().to_string()]);
    }
    assert_eq!(run("blockdev", &["--getsize64", &part]), format!("{}\n", 200 << 20));
    run("mkfs.ext4", &["-q", &part]);
    run("mount", &[&part, &name.mount_point().display().to_string()]);
    let ran = name.detach();
    assert!(
        ran.code == 5
            && ran.err.contains(&format!("is mounted on {}", name.mount_point().display())),
        "{ran:?}"
    );
    name.umount();
    name.detach_well();
    assert!(name.is_gone());
}

#[test]
fn serve_attaches_export_with_attach_option() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let name = Name::new(&dir);
    let spec = format!(
        "[disk]\nd = {{ memory = \"64MiB\" }}\n[export]\n{} = {{ on = \"d\", attach = true }}\n",
        name.name
    );
    dir.write("s.toml", &spec);
    let ran = dir.cairn(&["serve", "s.toml", "--dry-run"]);
    assert!(
        ran.out.contains(&format!("would attach {} as {}\n", name.name, name.shown())),
        "{ran:?}"
    );
    assert!(name.is_gone());
    let serve = dir.serve(&["s.toml"]);
    assert!(serve.banner.contains(&format!("  {} -> /dev/loop", name.shown())), "{}", serve.banner);
    run("mkfs.ext4", &["-q", &name.shown()]);
    assert!(dir.text(&["show"]).contains("attach = true"));
    let ran = serve.stop();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("is killed"), "{ran:?}");
    assert!(name.is_gone());
}

#[test]
fn import_attaches_exports_as_before_stop() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let name = Name::new(&dir);
    let export = format!("{} = {{ on = \"pair\", attach = true }}", name.name);
    let spec =
        mirror("home", "").replace("16MiB", "64MiB").replace("vol = { on = \"pair\" }", &export);
    dir.write("home.toml", &spec);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    name.make_fs();
    std::fs::write(name.mount_point().join("kept"), "kept").unwrap();
    name.umount();
    let said = dir.text(&["stop", "home"]);
    assert!(said.ends_with("Next: cairn import home --attach\n"), "{said}");
    assert!(name.is_gone());
    let up = dir.text(&["import", "home", "--attach"]);
    assert!(up.contains(&name.shown()), "{up}");
    name.mount();
    assert_eq!(std::fs::read_to_string(name.mount_point().join("kept")).unwrap(), "kept");
    name.umount();
    // The daemon keeps the setting for later starts.
    daemon.kill_worker("home");
    until("it is attached again", || !name.is_gone());
    dir.text(&["stop", "home"]);
    assert!(name.is_gone());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn attach_by_uri_serves_export_of_another_server() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file();
    let name = Name::new(&dir);
    let uri = serve.uri().to_owned();
    let mut remote = Background::start(&mut dir.command(&["attach", &uri, "--name", &name.name]));
    common::until("it is attached", || name.path().is_symlink());
    let bytes = noise(1 << 20, 11);
    let device = name.open();
    device.write_all_at(&bytes, 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    // It is listed and detached like any other device. Then its process ends.
    name.detach_well();
    assert_eq!(remote.end(), Some(0));
    assert!(name.is_gone());
    assert_eq!(serve.stop().code, 0);
    assert!(std::fs::read(dir.path("disk.img")).unwrap()[..1 << 20] == bytes);
    let ran = dir.cairn(&["attach", &uri, "--name", &name.name]);
    assert!(ran.code == 8 && ran.out.is_empty(), "{ran:?}");
    assert!(name.is_gone());
}

/// The process id of an nbdkit server. The server is killed when this value is dropped.
struct Nbdkit(u32);

impl Nbdkit {
    fn start(dir: &Dir, args: &[&str]) -> (Self, String) {
        let args = [&["-U", "kit.sock", "--pidfile", "kit.pid"], args].concat();
        let ran = tool(dir, "nbdkit", &args);
        assert_eq!(ran.code, 0, "{ran:?}");
        // The file exists a moment before it holds the pid.
        let pid = || std::fs::read_to_string(dir.path("kit.pid")).ok()?.trim().parse().ok();
        common::until("nbdkit runs", || pid().is_some());
        let pid = pid().unwrap();
        let socket = dir.path("kit.sock").display().to_string();
        (Self(pid), format!("nbd+unix:///?socket={socket}"))
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        common::send(self.0, "TERM");
    }
}

#[test]
fn attach_writes_zeros_when_nbd_server_lacks_write_zeroes() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let (_kit, uri) = Nbdkit::start(&dir, &["--filter=nozero", "memory", "64M"]);
    let name = Name::new(&dir);
    let mut command = dir.command(&["attach", &uri, "--name", &name.name]);
    let mut remote = Background::start(&mut command);
    common::until("it is attached", || name.path().is_symlink());
    let device = name.open();
    device.write_all_at(&noise(2 << 20, 9), 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    // Zeros are written out. A discard, which the kernel cannot distinguish from them, leaves the bytes as they are.
    run("blkdiscard", &["--offset", "1MiB", "--length", "1MiB", &name.shown()]);
    run("blkdiscard", &["--zeroout", "--length", "1MiB", &name.shown()]);
    let mut read = vec![1; 2 << 20];
    File::open(name.path()).unwrap().read_exact_at(&mut read, 0).unwrap();
    assert!(read[..1 << 20].iter().all(|byte| *byte == 0));
    assert!(read[1 << 20..] == noise(2 << 20, 9)[1 << 20..]);
    name.detach_well();
    assert_eq!(remote.end(), Some(0));
}

#[test]
fn attached_device_returns_io_errors_of_disk() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let fails = "error-rate=100%";
    let kit = ["--filter=error", "memory", "16M", fails, "error-file=fail"];
    let (_kit, uri) = Nbdkit::start(&dir, &kit);
    let name = Name::new(&dir);
    let mut command = dir.command(&["attach", &uri, "--name", &name.name]);
    let mut remote = Background::start(&mut command);
    common::until("it is attached", || name.path().is_symlink());
    let device = name.open();
    device.write_all_at(&noise(1 << 20, 9), 0).unwrap();
    device.sync_all().unwrap();
    std::fs::write(dir.path("fail"), "").unwrap();
    assert!(device.read_at(&mut [0; 4096], 8 << 20).is_err());
    // This write is not flushed by its writer, so the detach flushes it.
    device.write_all_at(&noise(1 << 16, 10), 0).unwrap();
    drop(device);
    // The device can be detached all the same. The message names the loss that is possible.
    let ran = name.detach();
    assert!(ran.code == 8 && ran.err.contains("last flush failed"), "{ran:?}");
    assert!(name.is_gone());
    assert_eq!(remote.end(), Some(0));
}

#[test]
fn attached_device_returns_written_bytes_under_random_load() {
    if !is_root() {
        return;
    }
    let (dir, _serve) = file();
    let name = Name::new(&dir);
    name.attach("vol");
    let args = [
        "--name=load",
        "--rw=randrw",
        "--bsrange=4k-256k",
        "--ioengine=libaio",
        "--direct=1",
        "--iodepth=32",
        "--size=128m",
        "--io_size=256m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=64",
        "--numjobs=2",
        "--offset_increment=128m",
        "--output-format=terse",
    ];
    let file = format!("--filename={}", name.shown());
    let ran = tool(&dir, "fio", &[&args[..], &[&*file]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    name.detach_well();
}
