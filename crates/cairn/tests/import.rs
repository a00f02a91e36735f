//! `cairn import`: starts a graph from its labelled disks alone, without the spec file.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::keeper::{Daemon, mirror};
use common::machine::run;
use common::{Dir, Ran, send, tool, until};
use serde_json::Value;

const HOME: &str = "name = \"home\"\n[disk]\n\
    a = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n\
    b = { file = \"b.img\", size = \"16MiB\", create = true, label = true }\n\
    [device]\n\
    pair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
    safe = { kind = \"crypt\", on = \"pair\", key = \"file:key\", kdf_memory = \"1MiB\", kdf_passes = 1 }\n\
    upper = { kind = \"partition\", on = \"safe\", size = \"4MiB\" }\n\
    rest = { kind = \"partition\", on = \"safe\", size = \"rest\" }\n\
    [export]\nvol = { on = \"upper\" }\nseen = { on = \"rest\", read_only = true }\n";

const PAIR: &str = "name = \"home\"\n[disk]\n\
    a = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n\
    b = { file = \"b.img\", size = \"16MiB\", create = true, label = true }\n\
    [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
    [export]\nvol = { on = \"pair\" }\n";

/// Makes a directory with the renamed disks of a graph and its key, without the spec. The graph was served once, and
/// its volume holds a pattern.
fn moved() -> Dir {
    let dir = Dir::new();
    dir.write("key", "correct horse battery staple");
    dir.write("home.toml", HOME);
    let serve = dir.serve(&["home.toml"]);
    let wrote = ["-f", "raw", serve.uri(), "-c", "write -P 9 0 4M", "-c", "flush"];
    assert_eq!(tool(&dir, "qemu-io", &wrote).code, 0);
    assert_eq!(serve.stop().code, 0);
    std::fs::remove_file(dir.path("home.toml")).unwrap();
    std::fs::rename(dir.path("a.img"), dir.path("x")).unwrap();
    std::fs::rename(dir.path("b.img"), dir.path("a.img")).unwrap();
    dir
}

/// Runs `cairn` with `args` and without a terminal.
fn cairn(dir: &Dir, args: &[&str]) -> Ran {
    Ran::of(&dir.command(args).stdin(std::process::Stdio::null()).output().unwrap())
}

fn reads(dir: &Dir, uri: &str) {
    let read = ["-r", "-f", "raw", uri, "-c", "read -P 9 0 4M"];
    assert_eq!(tool(dir, "qemu-io", &read).code, 0);
}

#[test]
fn import_finds_graph_on_disks_without_spec() {
    let dir = moved();
    let list = dir.text(&["import"]);
    assert!(
        list.starts_with("home  2 disks, 2 found (x = a, change 1; a.img = b, change 1)\n"),
        "{list}"
    );
    assert!(list.contains("would come up; with the key of safe, which is asked for"), "{list}");
    let found: Value = dir.json(0, &["import"]);
    assert_eq!(found["graphs"][0]["disks"][1]["path"], "a.img");

    // Without a terminal, the key cannot be asked for.
    let ran = cairn(&dir, &["import", "home"]);
    assert_eq!(ran.code, 7, "{ran:?}");
    let dry = cairn(&dir, &["import", "home", "--dry-run"]);
    assert!(dry.code == 0 && dry.out.contains("labelled     a  x "), "{dry:?}");
    let serve = dir.import(&["home", "--key", "safe=file:key"]);
    reads(&dir, serve.uri());
    // A read-only export still is read-only.
    let uri = serve.uri().replace("///vol?", "///seen?");
    let ran = tool(&dir, "nbdinfo", &[&uri]);
    assert!(ran.out.contains("is_read_only: true"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
    // And from one of the disks.
    std::fs::remove_file(dir.path("x")).unwrap();
    let list = dir.text(&["import"]);
    assert!(list.contains("1 found (a.img = b, change 1), missing a"), "{list}");
    assert_eq!(cairn(&dir, &["import", "home", "--key", "safe=file:key"]).code, 10);
    let serve = dir.import(&["home", "--key", "safe=file:key", "--degraded"]);
    reads(&dir, serve.uri());
    assert_eq!(dir.cairn(&["status"]).code, 10);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn import_refuses_ambiguous_arguments() {
    let dir = moved();
    let refused = |args: &[&str], code: i32, words: &str| {
        let ran = cairn(&dir, args);
        assert!(ran.code == code && ran.err.contains(words), "{args:?}: {ran:?}");
    };
    refused(&["import", "nope"], 4, "found graphs: home");
    refused(&["import", "home", "--disk", "z=a.img"], 2, "home has no such disk");
    refused(&["import", "home", "--key", "pair=file:key"], 2, "no such device with a key");
    refused(&["import", "home", "--key", "safe"], 2, "as in safe=file:key");
    refused(&["import", "--directory", "nowhere"], 4, "nowhere");
    // A copy of a disk beside the disk.
    std::fs::copy(dir.path("x"), dir.path("y")).unwrap();
    refused(&["import", "home", "--key", "safe=file:key"], 5, "one is a copy");
    let serve = dir.import(&["home", "--key", "safe=file:key", "--disk", "a=y"]);
    reads(&dir, serve.uri());
    // The list reports disks in use.
    let list = dir.text(&["import"]);
    assert!(list.contains("refused: a.img: is in use by process"), "{list}");
    assert_eq!(serve.stop().code, 0);
    // Another graph of that name.
    let other = Dir::new();
    other.write("key", "another one");
    other.write("home.toml", HOME);
    assert_eq!(other.serve(&["home.toml"]).stop().code, 0);
    for name in ["a.img", "b.img"] {
        std::fs::copy(other.path(name), dir.path(&format!("other-{name}"))).unwrap();
    }
    refused(&["import", "home"], 2, "2 graphs are called \"home\"");
}

/// Makes a directory with a mirror of two labelled disks that was served once.
fn made() -> Dir {
    let dir = Dir::new();
    dir.write("home.toml", PAIR);
    assert_eq!(dir.serve(&["home.toml"]).stop().code, 0);
    dir
}

#[test]
fn import_list_predicts_result_of_import() {
    let dir = made();
    let says = |words: &str, code: i32| {
        let list = dir.text(&["import"]);
        assert!(list.contains(words) && !list.contains("nowhere"), "{list}");
        let ran = cairn(&dir, &["import", "home", "--run", "true"]);
        assert_eq!(ran.code, code, "{list} {ran:?}");
    };
    says("would come up\n", 0);
    std::fs::copy(dir.path("a.img"), dir.path("twin")).unwrap();
    says("refused: a.img and twin are both disk \"a\"", 5);
    std::fs::remove_file(dir.path("twin")).unwrap();
    let open = |name: &str| std::fs::File::options().write(true).open(dir.path(name)).unwrap();
    open("b.img").set_len(9 << 20).unwrap();
    says("refused: b: b.img has 9437184 bytes", 11);
    std::fs::remove_file(dir.path("b.img")).unwrap();
    says("would come up with --degraded\n", 10);
    // All copies of a label are damaged, except for their first bytes.
    for at in [64 << 10, 320 << 10, (15 << 20) + (64 << 10), (15 << 20) + (320 << 10)] {
        open("a.img").write_all_at(&[7; 8], at + 600).unwrap();
    }
    let list = dir.text(&["import"]);
    assert!(list.contains("skipped: a.img has a damaged label"), "{list}");
    let found: Value = dir.json(0, &["import"]);
    assert_eq!(skipped(&found), ["a.img"]);
}

/// Returns the paths that the import has skipped, without block devices of this machine (`/dev/...`).
fn skipped(found: &Value) -> Vec<&str> {
    let paths =
        found["skipped"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap());
    paths.filter(|path| !path.starts_with("/dev/")).collect()
}

/// Makes a directory with a split brain: each of the two members of a mirror was served without the other.
fn split() -> Dir {
    let dir = made();
    let away =
        |name: &str| std::fs::rename(dir.path(name), dir.path(&format!("{name}.away"))).unwrap();
    let back =
        |name: &str| std::fs::rename(dir.path(&format!("{name}.away")), dir.path(name)).unwrap();
    for (here, gone) in [("a", "b.img"), ("b", "a.img")] {
        away(gone);
        let serve = dir.serve(&["home.toml", "--degraded"]);
        std::fs::write(dir.path("image"), here.repeat(64 << 10)).unwrap();
        run("nbdcopy", &["--flush", &dir.path("image").display().to_string(), serve.uri()]);
        serve.stop().ok();
        back(gone);
    }
    dir
}

#[test]
fn import_list_reports_split_brain() {
    let dir = split();
    let apart = "pair: split brain: b and the other members were written independently";
    let list = dir.text(&["import"]);
    assert!(
        list.contains(&format!("refused: {apart}")) && list.contains("--trust MEMBER"),
        "{list}"
    );
    assert!(!list.contains("would come up"), "{list}");
    let ran = cairn(&dir, &["check"]);
    assert!(ran.code == 11 && ran.out.contains(&format!("damaged: {apart}")), "{ran:?}");
    assert!(!ran.out.contains("the missing bytes are copied"), "{ran:?}");
    for how in [&["import", "home", "--dry-run"][..], &["import", "home", "--run", "true"]] {
        let ran = cairn(&dir, how);
        assert!(ran.code == 10 && ran.err.contains(apart), "{ran:?}");
    }
    let ran = cairn(&dir, &["repair", "home", "--trust", "b", "--yes"]);
    assert!(ran.code == 2 && ran.err.contains("cairn import home --trust b"), "{ran:?}");
    let ran = cairn(&dir, &["import", "home", "--trust", "vol", "--run", "true"]);
    assert!(
        ran.code == 2 && ran.err.contains("vol is no member of a mirror; members: a, b"),
        "{ran:?}"
    );
    let serve = dir.import(&["home", "--trust", "b"]);
    until("a is copied from b", || dir.cairn(&["status"]).code == 0);
    run("nbdcopy", &[serve.uri(), &dir.path("read").display().to_string()]);
    assert!(std::fs::read(dir.path("read")).unwrap().starts_with(b"bbbb"));
    serve.stop().ok();
    // The trust was for that start.
    assert!(dir.text(&["import"]).contains("would come up\n"));
    dir.text(&["check"]);
}

#[test]
fn import_wipes_member_only_with_wipe_option() {
    let dir = made();
    std::fs::remove_file(dir.path("b.img")).unwrap();
    let ran = cairn(&dir, &["import", "home", "--wipe", "b", "--run", "true"]);
    assert!(
        ran.code == 2 && ran.err.contains("--wipe b: no such disk is found. Next: --disk b=PATH"),
        "{ran:?}"
    );
    dir.text(&["create", "c.img", "16M"]);
    let serve = dir.import(&["home", "--disk", "b=c.img", "--wipe", "b"]);
    until("it is copied", || dir.cairn(&["status"]).code == 0);
    serve.stop().ok();
    assert!(dir.text(&["import"]).contains("c.img = b, change"));
}

#[test]
fn import_reports_open_disks_as_in_use() {
    let dir = made();
    let serve = dir.serve(&["home.toml"]);
    dir.text(&["create", "c.img", "16M"]);
    dir.text(&["device", "insert", "home/c", "c.img"]);
    dir.text(&["device", "remove", "home/c", "--yes"]);
    let in_use = format!("is in use by process {}", serve.pid());
    let list = dir.text(&["import"]);
    assert!(list.contains(&format!("refused: a.img: {in_use}")), "{list}");
    assert!(list.contains("a.img = a, change") && !list.contains("missing"), "{list}");
    let ran = cairn(&dir, &["import", "home"]);
    assert!(ran.code == 5 && ran.err.contains(&in_use) && !ran.err.contains("nowhere"), "{ran:?}");
    assert_eq!(serve.stop().code, 0);
    // After the disks are removed, nothing is found.
    for name in ["a.img", "b.img"] {
        std::fs::remove_file(dir.path(name)).unwrap();
    }
    let ran = cairn(&dir, &["import", "home"]);
    assert!(
        ran.code == 4 && ran.err.contains("b: is not found. Next: connect the disk"),
        "{ran:?}"
    );
}

#[test]
fn import_skips_and_reports_non_utf8_file_names() {
    let dir = moved();
    std::fs::rename(dir.path("x"), dir.0.join(OsStr::from_bytes(b"\xff.img"))).unwrap();
    for verb in ["import", "check"] {
        let text = dir.cairn(&[verb]);
        let why = "skipped: \"\\xFF.img\" is not UTF-8";
        assert!(text.out.contains(why) && text.out.contains("Next: rename that file"), "{text:?}");
        // The missing member is not a failure of the import.
        let found: Value = dir.json(text.code, &[verb]);
        assert_eq!(skipped(&found), ["\u{fffd}.img"]);
        assert_eq!(found["graphs"][0]["disks"][0]["name"], "b");
    }
}

#[test]
fn import_probes_64_disks_within_a_second() {
    let dir = Dir::new();
    let disks: String = (0..64)
        .map(|n| {
            format!(
                "d{n} = {{ file = \"d{n}.img\", size = \"16MiB\", create = true, label = true }}\n"
            )
        })
        .collect();
    // The disks that become stale later are mirrored.
    let pairs: String = (0..3)
        .map(|n| format!("m{n} = {{ kind = \"mirror\", on = [\"d{n}\", \"d{}\"] }}\n", n + 3))
        .collect();
    let pair = (0..3).map(|n| format!("\"m{n}\""));
    let names: Vec<_> = pair.chain((6..64).map(|n| format!("\"d{n}\""))).collect();
    let spec = |more: &str| {
        format!(
            "name = \"many\"\n[disk]\n{disks}[device]\n{pairs}all = {{ kind = \"concat\", on = [{}] }}\n\
             {more}[export]\nvol = {{ on = \"{}\" }}\n",
            names.join(", "),
            if more.is_empty() { "all" } else { "seen" }
        )
    };
    dir.write("many.toml", &spec(""));
    assert_eq!(dir.serve(&["many.toml"]).stop().code, 0);
    let stale: Vec<_> =
        (0..3).map(|n| (n, std::fs::read(dir.path(&format!("d{n}.img"))).unwrap())).collect();
    dir.write("many.toml", &spec("seen = { kind = \"pass\", on = \"all\" }\n"));
    assert_eq!(dir.serve(&["many.toml"]).stop().code, 0);
    for (n, bytes) in stale {
        std::fs::write(dir.path(&format!("d{n}.img")), bytes).unwrap();
    }
    std::fs::copy(dir.path("d9.img"), dir.path("twin.img")).unwrap();
    let other = moved();
    std::fs::copy(other.path("x"), dir.path("foreign.img")).unwrap();

    let begun = Instant::now();
    let list = dir.text(&["import"]);
    let took = begun.elapsed();
    println!("{took:?} for 66 files");
    assert!(took < Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 }), "{took:?}");
    assert!(
        list.contains("many  64 disks, 64 found") && list.contains("home  2 disks, 1 found"),
        "{list}"
    );
    assert!(
        list.contains("d0.img = d0, change 1;") && list.contains("d3.img = d3, change 2;"),
        "{list}"
    );
    let ran = cairn(&dir, &["import", "many"]);
    assert!(ran.code == 5 && ran.err.contains("both disk \"d9\""), "{ran:?}");
    // The newest labels define the graph. Stale labels are brought up to date.
    let serve = dir.import(&["many", "--disk", "d9=twin.img"]);
    assert!(dir.text(&["graph"]).contains("seen"));
    assert_eq!(serve.stop().code, 0);
    std::fs::remove_file(dir.path("d9.img")).unwrap();
    let list = dir.text(&["import"]);
    assert!(list.contains("d0.img = d0, change 2;"), "{list}");
}

/// The command that `stop` prints brings the graph back as it was, except what only the spec has.
#[test]
fn stop_prints_import_with_settings_that_labels_do_not_hold() {
    let dir = Dir::new();
    dir.write("the key", "correct horse battery staple");
    let crypt = "pair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
                 safe = { kind = \"crypt\", on = \"pair\", key = \"file:the key\", kdf_memory = \"1MiB\", kdf_passes = 1 }";
    let spec = mirror(
        "home",
        "raw = { on = \"c\" }\n[nbd]\nlisten = \"unix:home.sock\"\nmax_connections = 9\n",
    )
    .replace("pair = { kind = \"mirror\", on = [\"a\", \"b\"] }", crypt)
    .replace("vol = { on = \"pair\" }", "vol = { on = \"safe\" }")
    .replace("[device]", "c = { file = \"c.img\", size = \"1MiB\", create = true }\n[device]");
    dir.write("home.toml", &spec);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let said = dir.text(&["stop", "home"]);
    let arguments = "--disk c=c.img --key 'safe=file:the key' --listen unix:home.sock";
    let expected = format!(
        "home  stopped; any machine may open its disks. Next: cairn import home {arguments}\n  \
         labels do not hold max_connections of [nbd] of its spec; cairn apply home.toml sets them again\n"
    );
    assert_eq!(said, expected);
    let up = dir.text(&[
        "import",
        "home",
        "--disk",
        "c=c.img",
        "--key",
        "safe=file:the key",
        "--listen",
        "unix:home.sock",
    ]);
    assert!(up.contains("home  up.") && up.contains("home.sock"), "{up}");
    let said = dir.text(&["stop", "home"]);
    assert!(said.ends_with(&format!("Next: cairn import home {arguments}\n")), "{said}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn import_sets_options_of_exports() {
    let dir = made();
    let ran = cairn(&dir, &["import", "home", "--set", "vol.nonsense=1"]);
    assert!(
        ran.code == 2 && ran.err.contains("--set vol.nonsense: home has no such option"),
        "{ran:?}"
    );
    let ran = cairn(&dir, &["import", "home", "--set", "vol.attach=perhaps", "--dry-run"]);
    assert!(ran.code == 3 && ran.err.contains("attach"), "{ran:?}");
    let ran = cairn(&dir, &["import", "home", "--attach", "--dry-run"]);
    match rustix::process::geteuid().is_root() {
        true => assert!(ran.out.contains("would attach vol as /dev/cairn/vol"), "{ran:?}"),
        false => assert!(ran.code == 7 && ran.err.contains("root"), "{ran:?}"),
    }
}

/// While the daemon tries to start the graph, the disks are in use. The import waits for that attempt.
#[test]
fn import_waits_for_start_of_same_graph_by_daemon() {
    let dir = Dir::new();
    dir.text(&["create", "c.img", "1M"]);
    let far = dir.serve(&["c.img", "--listen", "unix:c.sock"]);
    let spec = mirror("home", "far = { on = \"c\" }\n")
        .replace("[device]", "c = { nbd = \"nbd+unix:///vol?socket=c.sock\" }\n[device]");
    dir.write("home.toml", &spec);
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let worker = daemon.worker("home");
    send(far.pid(), "STOP");
    send(worker, "KILL");
    until("the next worker has the disks", || {
        daemon.graph("home").pid.is_some_and(|pid| pid != worker)
            && dir.text(&["import"]).contains("is in use")
    });
    let far_pid = far.pid();
    let on = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        send(far_pid, "CONT");
    });
    let ran = cairn(&dir, &["import", "home", "--disk", "c=nbd+unix:///vol?socket=c.sock"]);
    on.join().unwrap();
    assert!(ran.code == 0 && ran.out.starts_with("home  up."), "{ran:?}");
    assert_eq!(daemon.stop(), 0);
    assert_eq!(far.stop().code, 0);
}
