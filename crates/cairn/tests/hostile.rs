//! Malicious disks, whose labels hold settings that Cairn never writes to a label.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::collections::BTreeMap;
use std::rc::Rc;

use api::{GraphSource, UpRequest};
use common::keeper::Daemon;
use common::{Dir, Ran, until};
use meta::{Label, Past};

const PAIR: &str = "name = \"home\"\n[disk]\n\
    a = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n\
    b = { file = \"b.img\", size = \"16MiB\", create = true, label = true }\n\
    [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
    [export]\nvol = { on = \"pair\" }\n";

const TRACED: &str = "name = \"home\"\n[disk]\n\
    a = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n\
    [device]\nt = { kind = \"trace\", on = \"a\", file = \"t.trace\", size = \"64KiB\" }\n\
    [export]\nvol = { on = \"t\" }\n";

/// Returns the spec `text` with entries that no label may hold: an event program, a TCP address, a path of a file.
fn prepared(dir: &Dir, text: &str) -> String {
    let (run, trace) = (dir.path("run.sh"), dir.path("made"));
    let device = format!(
        "\"t\" = {{ kind = \"trace\", on = \"pair\", file = \"{}\", size = \"64KiB\" }}\n",
        trace.display()
    );
    let text = text.replace("\n[export]", &format!("{device}\n[export]"));
    let text = text.replace("{ on = \"pair\" }", "{ on = \"t\", attach = true }");
    let (run, path) = (run.display(), dir.path("made.sock"));
    format!(
        "{text}\n[events]\nrun = \"{run}\"\n\n[nbd]\nlisten = [\"tcp:0.0.0.0:0\", \"unix:{}\"]\ninsecure = true\n",
        path.display()
    )
}

/// Makes a directory with a graph that was served once, and with a program that makes a file if it runs.
fn made(spec: &str) -> Dir {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    dir.write("home.toml", spec);
    assert_eq!(dir.serve(&["home.toml"]).stop().code, 0);
    dir.write("run.sh", &format!("#!/bin/sh\ntouch {}\n", dir.path("made-by-run").display()));
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path("run.sh"), mode).unwrap();
    dir
}

/// Applies `change` to every copy of the label of the disk `name`, and writes the copies back.
fn relabel(dir: &Dir, name: &str, change: impl Fn(&mut Label)) {
    const AREA_BYTES: usize = 1 << 20;
    let mut bytes = std::fs::read(dir.path(name)).unwrap();
    for area in [0, bytes.len() - AREA_BYTES] {
        for at in [area + (64 << 10), area + (320 << 10)] {
            let Ok(mut label) = Label::decode(&bytes[at..]) else { continue };
            change(&mut label);
            let copy = label.encode().unwrap();
            bytes[at..at + copy.len()].copy_from_slice(&copy);
        }
    }
    std::fs::write(dir.path(name), bytes).unwrap();
}

/// Checks that the event program did not run, no socket listens, and the trace device made no file.
fn is_untouched(dir: &Dir) {
    let is_made = |name: &String| name.starts_with("made");
    let found: Vec<_> = common::listing(&dir.0).into_iter().filter(is_made).collect();
    assert!(found.is_empty(), "{found:?}");
    assert!(!dir.path("run/cairn/home.sock").exists(), "it listens");
}

/// Checks that a command refused the spec in a label, and that its message names the disk and each forbidden entry.
fn is_refused(ran: &Ran, disk: &str) {
    assert_eq!(ran.code, 3, "{ran:?}");
    for word in [
        disk,
        "\"events\" is never",
        "\"nbd\" is never",
        "\"file\" of device \"t\"",
        "\"attach\" of export \"vol\"",
        "Next: ",
    ] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
}

#[test]
fn import_refuses_label_with_program_address_and_path() {
    let dir = made(PAIR);
    for disk in ["a.img", "b.img"] {
        relabel(&dir, disk, |label| label.spec = prepared(&dir, &label.spec));
    }
    let list = dir.text(&["import"]);
    assert!(list.contains("refused: label of ") && !list.contains("would come up"), "{list}");
    for args in [&["import", "home"][..], &["import", "home", "--set", "t.file=mine"]] {
        is_refused(&dir.cairn(args), ".img)");
        is_untouched(&dir);
    }
    let checked = dir.cairn(&["check"]);
    assert!(checked.code == 11 && checked.out.contains("is never in a label"), "{checked:?}");
    is_untouched(&dir);

    // The user's own spec overrides the labels, and corrects them.
    assert_eq!(dir.serve(&["home.toml"]).stop().code, 0);
    assert_eq!(dir.import(&["home"]).stop().code, 0);
    is_untouched(&dir);
}

#[test]
fn import_refuses_label_whose_spec_names_another_graph() {
    let dir = made(PAIR);
    for disk in ["a.img", "b.img"] {
        relabel(&dir, disk, |label| label.spec = label.spec.replace("home", "../home"));
    }
    let ran = dir.cairn(&["import", "home"]);
    assert!(ran.code == 3 && ran.err.contains("has the name \"../home\""), "{ran:?}");
}

#[test]
fn undo_refuses_earlier_spec_with_program_address_and_path() {
    let dir = made(PAIR);
    for disk in ["a.img", "b.img"] {
        relabel(&dir, disk, |label| {
            let spec = prepared(&dir, &label.spec);
            label.past = Rc::new([Past { epoch: 1, until_unix_s: 1, spec }]);
        });
    }
    let serve = dir.serve(&["home.toml"]);
    let ran = dir.cairn(&["undo", "--to", "1"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("change 1 in the labels of a, b"), "{ran:?}");
    for key in ["\"events\" is never", "\"file\" of device \"t\""] {
        assert!(ran.err.contains(key), "{ran:?}");
    }
    let made = common::listing(&dir.0).into_iter().filter(|name| name.starts_with("made"));
    assert_eq!(made.count(), 0);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn worker_refuses_label_with_program_address_and_path() {
    let dir = made(PAIR);
    let text = std::fs::read(dir.path("a.img")).unwrap();
    let text = prepared(&dir, &Label::decode(&text[64 << 10..]).unwrap().spec);
    let daemon = Daemon::start(&dir);
    let place = |name: &str| (name.to_owned(), ("file".to_owned(), format!("{name}.img")));
    let source = GraphSource::Labels {
        text,
        disks: ["a", "b"].map(place).into(),
        keys: BTreeMap::new(),
        options: BTreeMap::new(),
    };
    let up = UpRequest {
        name: "home".to_owned(),
        directory: dir.0.clone(),
        source,
        read_only: false,
        degraded: false,
        listen: Vec::new(),
        insecure: false,
        wipe: Vec::new(),
        trust: Vec::new(),
        accept_loss: false,
        take: false,
        keys: BTreeMap::new(),
    };
    let client = api::Client::new(dir.path("run/cairn/daemon.sock"));
    let problem = client.ask(&api::routes::UP, &up).unwrap_err();
    is_refused(
        &Ran { code: problem.exit.into(), out: String::new(), err: problem.message },
        "label of a, b",
    );
    is_untouched(&dir);
    drop(daemon);
}

#[test]
fn import_asks_for_options_that_labels_do_not_hold() {
    let dir = made(TRACED);
    std::fs::remove_file(dir.path("t.trace")).unwrap();
    let list = dir.text(&["import"]);
    assert!(list.contains("with --set t.file=VALUE"), "{list}");
    assert_eq!(dir.cairn(&["check"]).code, 0);
    let refused = |args: &[&str], words: &str| {
        let ran = dir.cairn(&[&["import", "home"], args].concat());
        assert!(ran.code == 2 && ran.err.contains(words), "{args:?}: {ran:?}");
        assert!(!dir.path("t.trace").exists());
    };
    refused(&[], "Next: --set t.file=VALUE");
    refused(&["--set", "t.queue=7"], "home has no such option to set");
    refused(&["--set", "vol.file=x"], "--set vol.file: home has no such option");
    refused(&["--set", "file=x"], "as in t.file=PATH");
    assert_eq!(dir.import(&["home", "--set", "t.file=u.trace"]).stop().code, 0);
    assert!(dir.path("u.trace").exists());

    // A daemon keeps the option for each start.
    let daemon = Daemon::start(&dir);
    dir.cairn(&["import", "home", "--set", "t.file=v.trace"]).ok();
    std::fs::remove_file(dir.path("v.trace")).unwrap();
    daemon.kill_worker("home");
    until("the trace is made", || dir.path("v.trace").exists());
}

#[test]
fn undo_asks_for_options_that_labels_do_not_hold() {
    let dir = made(TRACED);
    let plain = TRACED.replace("on = \"t\"", "on = \"a\"");
    let plain: Vec<_> = plain.lines().filter(|line| !line.starts_with("t = ")).collect();
    dir.write("plain.toml", &plain.join("\n"));
    let serve = dir.serve(&["home.toml"]);
    dir.cairn(&["apply", "plain.toml"]).ok();
    assert_eq!(serve.stop().code, 0);
    // The next process does not know the file.
    let serve = dir.serve(&["plain.toml"]);
    let ran = dir.cairn(&["undo"]);
    assert!(ran.code == 4 && ran.err.contains("Next: --set t.file=VALUE"), "{ran:?}");
    dir.cairn(&["undo", "--set", "t.file=w.trace"]).ok();
    assert!(dir.path("w.trace").exists());
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn commands_escape_terminal_controls_in_names_from_labels() {
    let dir = made(PAIR);
    for disk in ["a.img", "b.img"] {
        relabel(&dir, disk, |label| {
            label.graph_name = "ho\u{1b}]0;pwned\u{7}".to_owned();
            label.disk_name.push('\u{9b}');
        });
    }
    for args in [
        &["import"][..],
        &["-o", "json", "import"],
        &["import", "x"],
        &["import", "ho\u{1b}]0;pwned\u{7}"],
        &["check"],
        &["-o", "json", "check"],
        &["serve", "home.toml", "--dry-run"],
        &["info", "a.img"],
    ] {
        let ran = dir.cairn(args);
        let shown = format!("{}{}", ran.out, ran.err);
        assert!(!shown.is_empty(), "{args:?}");
        let is_raw = |c: char| c.is_control() && c != '\n';
        assert!(!shown.contains(is_raw), "{args:?}: {shown:?}");
    }
    assert!(dir.text(&["import"]).contains("ho\\u001b]0;pwned\\u0007"));
}
