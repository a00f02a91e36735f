//! How attached block devices end: by `detach` during use, by signals to the server, by force; and failed attaches.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::machine::{Background, Name, is_root, noise, run};
use common::{Dir, Serve, until};

/// Starts `cairn serve` on a file of 64 MiB with the export `vol`, with further arguments of the command.
fn file(args: &[&str]) -> (Dir, Serve) {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "64M"]);
    let serve = dir.serve(&[&["disk.img"], args].concat());
    (dir, serve)
}

#[test]
fn detach_refuses_device_in_use_and_reports_user() {
    if !is_root() {
        return;
    }
    let (dir, _serve) = file(&[]);
    let name = Name::new(&dir);
    name.attach("vol");
    name.make_fs();
    let at = name.mount_point().display().to_string();
    let ran = name.detach();
    let expected = format!("error: {} is mounted on {at}. Next: umount {at}\n", name.shown());
    assert_eq!((ran.code, &*ran.err), (5, &*expected));
    let ran = dir.cairn(&["detach", &name.name, "--dry-run"]);
    assert_eq!((ran.code, &*ran.err), (5, &*expected));
    std::fs::write(name.mount_point().join("f"), "still here").unwrap();
    name.umount();

    let opened = File::open(name.path()).unwrap();
    let open = Background::start(Command::new("sleep").arg("1000").stdin(opened));
    let ran = name.detach();
    let expected = format!(
        "is open in process {} (sleep). Next: end the processes that have the device open\n",
        open.id()
    );
    assert!(ran.code == 5 && ran.err.ends_with(&expected), "{ran:?}");
    drop(open);

    // A mount in another mount namespace, for a short time. The detach waits for it.
    run("mkfs.ext4", &["-q", &name.shown()]);
    let script = format!("mount {} {at}; touch mounted; sleep 1; umount {at}", name.shown());
    let mut command = Command::new("unshare");
    let hidden = command.args(["--mount", "sh", "-ec", &script]).current_dir(&dir.0);
    let mut hidden = Background::start(hidden);
    until("it is mounted", || dir.path("mounted").exists());
    name.detach_well();
    assert_eq!(hidden.end(), Some(0));
    assert!(name.is_gone());
    let ran = name.detach();
    assert!(ran.code == 4 && ran.err.contains("is not attached; no device is attached"), "{ran:?}");
}

/// `attach` takes the name of a virtual disk, and gives the device another one. `detach` takes both.
#[test]
fn detach_takes_name_of_export() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let spec = "[disk]\na = { file = \"a.img\", size = \"64MiB\", create = true, label = true }\n\
                [device]\nvms = { kind = \"pool\", on = \"a\" }\n";
    dir.write("g.toml", spec);
    let _serve = dir.serve(&["g.toml"]);
    dir.text(&["vdisk", "create", "vms/web", "8M"]);
    let name = Name::new(&dir);
    name.attach("vms/web");
    assert_eq!(
        dir.text(&["detach", "vms/web", "--dry-run"]),
        format!("{}  would be detached\n", name.shown())
    );
    dir.text(&["detach", "vms/web"]);
    assert!(name.is_gone());
    let ran = dir.cairn(&["detach", "vms/web"]);
    assert!(ran.code == 4 && ran.err.contains("vms/web is not attached"), "{ran:?}");
}

#[test]
fn detach_removes_device_with_longest_name_after_kill() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file(&[]);
    let mut name = Name::new(&dir);
    name.name = format!("{:x<64}", name.name);
    name.attach("vol");
    assert_eq!(name.detach().code, 0);
    name.attach("vol");
    serve.signal("KILL");
    assert_eq!(serve.end().code, -9);
    let ran = dir.cairn(&["status"]);
    let left = format!("{} is left of a server that has ended. Next: cairn detach", name.shown());
    assert!(ran.code == 4 && ran.err.contains(&left), "{ran:?}");
    let ran = name.detach();
    assert!(ran.code == 0 && ran.out.contains("removed"), "{ran:?}");
    assert!(name.is_gone());
}

#[test]
fn attached_device_returns_io_errors_after_server_is_killed() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file(&[]);
    let name = Name::new(&dir);
    let first = name.attach("vol");
    name.make_fs();
    std::fs::write(name.mount_point().join("kept"), noise(1 << 20, 1)).unwrap();
    name.sync();
    // Killed with requests in flight.
    let to = name.mount_point().join("lost").display().to_string();
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", &format!("of={to}"), "bs=64k", "oflag=direct", "status=none"]);
    let mut writer = Background::start(&mut dd);
    until("something is written", || {
        std::fs::metadata(&to).is_ok_and(|found| found.len() > 1 << 20)
    });
    serve.signal("KILL");
    assert_eq!(serve.end().code, -9, "the process is gone, whatever was on its way");
    assert_eq!(writer.end(), Some(1), "its writes fail");
    let device = File::open(name.path()).unwrap();
    assert!(device.read_at(&mut [0; 4096], 32 << 20).is_err());
    drop(device);

    // The dead device is still mounted.
    let serve = dir.serve(&["disk.img"]);
    let second = name.attach("vol");
    assert_ne!(first, second, "the dead one is still in use");
    name.umount();
    until("the dead device is free", || name.loops().len() == 1);
    // The journal of the file system is replayed, as after any crash.
    name.mount();
    let kept = std::fs::read(name.mount_point().join("kept")).unwrap();
    assert!(kept == noise(1 << 20, 1), "what was synced is there");
    name.umount();
    run("e2fsck", &["-fn", &name.shown()]);
    name.mount();
    serve.signal("KILL");
    serve.end();

    // No server takes over. The command removes the remains by itself, except for those in use.
    let out = dir.text(&["detach", &name.name, "--dry-run"]);
    assert!(out.starts_with("would remove"), "{out}");
    let out = dir.text(&["detach", &name.name]);
    let at = name.mount_point().display().to_string();
    let used = format!("the device behind {} is mounted on {at}. Next: umount {at}\n", name.name);
    let removed = format!("{}  removed; its server process has ended\n", name.shown());
    assert_eq!(out, format!("{removed}  {used}"));
    let ran = name.detach();
    assert!(ran.code == 4 && ran.err.ends_with(&used), "{ran:?}");
    name.umount();
    until("nothing is left", || name.is_gone());
    let ran = name.detach();
    assert!(ran.code == 4 && !ran.err.contains("the device behind"), "{ran:?}");
}

#[test]
fn server_waits_for_users_of_attached_device_after_sigterm() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file(&[]);
    let name = Name::new(&dir);
    name.attach("vol");
    name.make_fs();
    serve.signal("TERM");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        // The server serves on until the device is unmounted.
        std::fs::write(name.mount_point().join("f"), noise(1 << 16, 2)).unwrap();
        name.sync();
    }
    name.umount();
    let ran = serve.end();
    let waits = format!("{} is mounted on {}", name.shown(), name.mount_point().display());
    assert!(
        ran.code == 0 && ran.err.contains(&waits) && ran.err.contains("waiting up to"),
        "{ran:?}"
    );
    assert!(name.is_gone());
    run("e2fsck", &["-fn", &dir.path("disk.img").display().to_string()]);
}

#[test]
fn server_stops_after_deadline_despite_users_of_device() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file(&["--stop-timeout", "500ms"]);
    let name = Name::new(&dir);
    name.attach("vol");
    name.make_fs();
    std::fs::write(name.mount_point().join("f"), noise(1 << 20, 4)).unwrap();
    let ran = serve.stop();
    assert!(ran.code == 12 && ran.err.contains("I/O errors now"), "{ran:?}");
    assert!(!name.path().is_symlink(), "the name is free");
    assert!(File::open(name.mount_point().join("nothing")).is_err());
    name.umount();
    until("the device went with its last user", || name.is_gone());
    // The bytes that the file system had cached were written back at the end.
    let _serve = dir.serve(&["disk.img"]);
    name.attach("vol");
    name.mount();
    assert!(std::fs::read(name.mount_point().join("f")).unwrap() == noise(1 << 20, 4));
    name.umount();
    name.detach_well();
}

#[test]
fn labels_stay_marked_open_while_attached_device_is_used() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    dir.write(
        "home.toml",
        "name = \"home\"\n[disk]\na = { file = \"a.img\", size = \"8MiB\", create = true, label = \
         true }\n[export]\nvol = { on = \"a\" }\n",
    );
    let is_marked_open = || {
        let disk = std::fs::read(dir.path("a.img")).unwrap();
        let front = &disk[..meta::AREA_BYTES as usize];
        let (_, label) = meta::newest([front]).unwrap().expect("it was labelled");
        label.holder.is_some()
    };
    let serve = dir.serve(&["home.toml", "--stop-timeout", "500ms"]);
    let name = Name::new(&dir);
    name.attach("vol");
    let opened = File::options().write(true).open(name.path()).unwrap();
    assert!(is_marked_open());
    let ran = serve.stop();
    assert!(ran.code == 12 && ran.err.contains("I/O errors now"), "{ran:?}");
    // The user's writes after the last flush are lost, so the label must not be marked as closed in order.
    assert!(is_marked_open());
    drop(opened);
    until("the device went with its last user", || name.is_gone());

    let serve = dir.serve(&["home.toml"]);
    name.attach("vol");
    name.detach_well();
    assert_eq!(serve.stop().code, 0);
    assert!(!is_marked_open(), "with nobody on it, it is closed in order");
}

#[test]
fn forced_unmount_fails_attached_device_but_not_server() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file(&[]);
    let name = Name::new(&dir);
    let device = name.attach("vol");
    let on = Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file");
    run("umount", &["-f", "-l", &format!("/run/cairn/attach/{}", name.name)]);
    let device = File::open(name.path()).unwrap();
    assert!(device.read_at(&mut [0; 4096], 1 << 20).is_err());
    drop(device);
    // The server runs on, and NBD clients were not disturbed.
    assert_eq!(dir.cairn(&["status"]).code, 0);
    let info = common::tool(&dir, "nbdinfo", &["--size", serve.uri()]);
    assert_eq!(info.out, format!("{}\n", 64 << 20), "{info:?}");
    let ran = name.detach();
    assert!(ran.code == 8 && ran.err.contains("is detached, but its last flush failed"), "{ran:?}");
    assert!(name.is_gone());
    // After the forced unmount, the backing file of the loop device has no directory any more.
    until("the device is free", || {
        std::fs::read_to_string(&on).map_or(true, |on| on != "/volume\n")
    });
    let ran = serve.stop();
    assert!(ran.code == 0 && ran.err.contains("ended without cairn detach"), "{ran:?}");
}

#[test]
fn attach_refuses_device_name_of_another_server() {
    if !is_root() {
        return;
    }
    let (dir, serve) = file(&[]);
    let name = Name::new(&dir);
    name.attach("vol");
    dir.text(&["create", "other.img", "1M"]);
    let other = dir.serve(&["other.img"]);
    let at = dir.path(&format!("run/cairn/control/other.img-{}.sock", other.pid()));
    let at = at.display().to_string();
    let ran = dir.cairn(&["attach", "vol", "--name", &name.name, "--at", &at]);
    let expected = format!("{} belongs to process {}.", name.shown(), serve.pid());
    assert!(ran.code == 5 && ran.err.contains(&expected), "{ran:?}");
    assert!(name.path().is_symlink() && name.loops().len() == 1);

    // Where two graphs have an export of that name, the command must name one. The device is found by its own name.
    assert_eq!(dir.cairn(&["attach", "vol"]).code, 2);
    name.detach_well();

    // A file of another program is left alone.
    std::fs::write(name.path(), "mine").unwrap();
    let ran = dir.cairn(&["attach", "vol", "--name", &name.name, "--at", &at]);
    assert!(ran.code == 5 && ran.err.contains("was not made by Cairn"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(name.path()).unwrap(), "mine");
    std::fs::remove_file(name.path()).unwrap();
    assert!(name.is_gone());
}

#[test]
fn attach_reports_memory_lock_limit_when_too_low() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    // Enough memory for a ring, too little for the buffers in which messages arrive.
    let script = format!(
        "ulimit -l 900; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock -- \
         {} serve disk.img --pidfile pid",
        env!("CARGO_BIN_EXE_cairn")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&dir.0).env("XDG_RUNTIME_DIR", dir.path("run"));
    let mut server = Background::start(&mut command);
    until("it serves", || dir.path("pid").exists());
    let name = Name::new(&dir);
    let ran = dir.cairn(&["attach", "vol", "--name", &name.name]);
    assert!(ran.code == 1 && ran.err.contains("ulimit -l"), "{ran:?}");
    assert!(name.is_gone());
    common::send(server.id(), "TERM");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn attach_refuses_user_without_root() {
    let dir = Dir::new();
    if !rustix::process::geteuid().is_root() {
        dir.text(&["create", "disk.img", "1M"]);
        let _serve = dir.serve(&["disk.img"]);
        let ran = dir.cairn(&["attach", "vol"]);
        assert!(ran.code == 7 && ran.err.contains("needs root"), "{ran:?}");
        return;
    }
    // As another user, in a directory of that user.
    let user = "65534";
    let script = format!(
        "cp {} cairn; chown -R {user} . run; chmod 755 .; chmod 700 run; XDG_RUNTIME_DIR=$PWD/run\n\
         export XDG_RUNTIME_DIR\n\
         as() {{ setpriv --reuid={user} --regid={user} --clear-groups -- \"$@\"; }}\n\
         as ./cairn create disk.img 1M >/dev/null\n\
         as ./cairn serve disk.img --pidfile pid >/dev/null 2>&1 &\n\
         while ! [ -e pid ]; do sleep 0.01; done\n\
         as ./cairn attach vol && exit 99\n\
         echo $?; as ./cairn attach \"nbd+unix:///vol?socket=x.sock\"; echo $?; kill $(cat pid)",
        env!("CARGO_BIN_EXE_cairn")
    );
    let mut command = Command::new("timeout");
    let output = command.args(["60", "sh", "-c", &script]).current_dir(&dir.0).output().unwrap();
    let ran = common::Ran::of(&output);
    assert_eq!(ran.out, "7\n7\n", "{ran:?}");
    assert_eq!(ran.err.matches("attaching needs root").count(), 2, "{ran:?}");
    // The messages print the exact command to type instead, for a served export and for a URI.
    assert_eq!(ran.err.matches("sudo cairn attach 'nbd+unix:///vol?socket=").count(), 2, "{ran:?}");
    // Root does not see the servers of other users. The message says how to reach them.
    let ran = dir.cairn(&["attach", "vol"]);
    assert!(ran.code == 4 && ran.err.contains("if another user serves the export"), "{ran:?}");
}
