//! Commands that need no running graph, such as `create`, `info` and `validate`, and their messages about wrong input.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::os::unix::fs::MetadataExt;

use common::{Dir, PAIR, listing};
use serde_json::Value;

#[test]
fn create_makes_sparse_file_but_refuses_existing_file() {
    let dir = Dir::new();
    let out = dir.text(&["create", "disk.img", "10G"]);
    assert_eq!(out, "disk.img  10 GiB, sparse, raw (without a label)\n");
    let found = std::fs::metadata(dir.path("disk.img")).unwrap();
    assert_eq!((found.len(), found.blocks()), (10 << 30, 0));
    let ran = dir.cairn(&["create", "disk.img", "1M"]);
    assert!(ran.code == 5 && ran.err.contains("already exists"), "{ran:?}");
    assert_eq!(std::fs::metadata(dir.path("disk.img")).unwrap().len(), 10 << 30);
    std::os::unix::fs::symlink("nowhere", dir.path("link")).unwrap();
    assert_eq!(dir.cairn(&["create", "link", "1M"]).code, 5);
    assert!(!dir.path("nowhere").exists());
}

#[test]
fn create_leaves_no_file_when_size_is_invalid() {
    let dir = Dir::new();
    let before = listing(&dir.0);
    for (size, code, words) in [
        ("10GB", 2, "write GiB"),
        ("0", 2, "at least 512"),
        ("1000", 2, "Next: use 512"),
        ("-1", 2, "unexpected argument"),
        ("x", 2, "a size is needed"),
        ("8388608TiB", 2, "at most"),
    ] {
        let ran = dir.cairn(&["create", "x.img", size]);
        assert!(ran.code == code && ran.err.contains(words), "{size}: {ran:?}");
    }
    assert_eq!(dir.cairn(&["create", "no/such/x.img", "1M"]).code, 4);
    let out = dir.text(&["create", "x.img", "1M", "--dry-run"]);
    assert!(out.starts_with("would create x.img  1 MiB"), "{out}");
    assert_eq!(listing(&dir.0), before);
}

#[test]
fn create_reports_file_size_limit() {
    let dir = Dir::new();
    dir.write("x.toml", "[disk]\nd = { file = \"d.img\", size = \"1TiB\", create = true }\n[export]\nvol = { on = \"d\" }\n");
    for (args, code) in [("create d.img 1TiB", 9), ("serve x.toml --run true", 3)] {
        // A file size limit of the process is reported like one of the file system.
        let limited =
            format!("trap '' XFSZ; ulimit -f 1024; exec {} {args}", env!("CARGO_BIN_EXE_cairn"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &limited]).current_dir(&dir.0).env("XDG_RUNTIME_DIR", dir.path("run"));
        let ran = common::Ran::of(&command.output().unwrap());
        let why = "d.img: the file system does not support files of 1099511627776 bytes. \
                   Next: choose a smaller size";
        assert!(ran.code == code && ran.err.contains(why), "{args}: {ran:?}");
        assert!(!dir.path("d.img").exists());
    }
}

#[test]
fn info_prints_size_use_and_format() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    let out = dir.text(&["info", "disk.img"]);
    assert!(out.starts_with("disk.img  1 MiB (1048576 B), 0 B in use, blocks of "), "{out}");
    assert!(out.ends_with(", raw\n"), "{out}");
    let mut bytes = b"QFI\xfb".to_vec();
    bytes.resize(65536, 1);
    std::fs::write(dir.path("x.qcow2"), bytes).unwrap();
    let facts: Value = dir.json(0, &["info", "x.qcow2"]);
    assert_eq!((&facts["format"], &facts["size_bytes"]), (&"qcow2".into(), &65536.into()));
    assert_eq!(facts["holder"], Value::Null);
    let ran = dir.cairn(&["serve", "x.qcow2", "--dry-run"]);
    assert!(ran.code == 0 && ran.err.contains("warning: x.qcow2 is a qcow2 image"), "{ran:?}");
    for (target, code) in [
        ("nope", 4),
        (".", 2),
        ("http://x", 2),
        ("nbds://x", 2),
        ("nbd://127.0.0.1:1", 8),
        ("nbd+unix:///x?socket=none", 4),
    ] {
        let ran = dir.cairn(&["info", target]);
        assert!(ran.code == code && ran.err.starts_with("error: "), "{target}: {ran:?}");
    }
}

#[test]
fn info_reports_facts_of_nbd_export() {
    let dir = Dir::new();
    dir.text(&["create", "disk.img", "1M"]);
    let serve = dir.serve(&["disk.img"]);
    let facts: Value = dir.json(0, &["info", serve.uri()]);
    assert_eq!((&facts["export"], &facts["size_bytes"]), (&"vol".into(), &(1 << 20).into()));
    assert!(facts["flags"].as_array().unwrap().contains(&"multi-conn".into()), "{facts}");
    assert_eq!(facts["contexts"], serde_json::json!(["base:allocation"]));
    let out = dir.text(&["info", serve.uri()]);
    assert!(out.starts_with("vol  1 MiB (1048576 B), blocks of "), "{out}");
    let ran = dir.cairn(&["info", &serve.uri().replace("/vol", "/other")]);
    assert!(ran.code == 4, "{ran:?}");
}

#[test]
fn validate_reports_all_faults_of_spec() {
    let dir = Dir::new();
    dir.write("bad.toml", "[disk]\na = { memory = \"1GB\" }\n[export]\nvol = { on = \"aa\" }\n");
    let ran = dir.cairn(&["validate", "bad.toml"]);
    assert_eq!((ran.code, &*ran.out), (3, ""), "{ran:?}");
    assert!(ran.err.starts_with("bad.toml:2:16  error  "), "{ran:?}");
    assert!(ran.err.ends_with("2 faults, nothing done.\n"), "{ran:?}");
    let json: Value = dir.json(3, &["validate", "bad.toml"]);
    assert_eq!(json["faults"].as_array().unwrap().len(), 2);
    assert_eq!((&json["faults"][0]["line"], &json["graph"]), (&2.into(), &Value::Null));
    for verb in ["serve", "show", "graph"] {
        assert_eq!(dir.cairn(&[verb, "bad.toml"]).code, 3, "{verb}");
    }
    dir.write("utf.toml", "");
    std::fs::write(dir.path("utf.toml"), [0xff]).unwrap();
    assert_eq!(dir.cairn(&["validate", "utf.toml"]).code, 3);
    assert_eq!(dir.cairn(&["validate", "nope.toml"]).code, 4);
}

#[test]
fn validate_summarizes_spec_without_opening_disks() {
    let dir = Dir::new();
    dir.write("pair.toml", PAIR);
    let before = listing(&dir.0);
    let out = dir.text(&["validate", "pair.toml"]);
    assert!(out.starts_with("vol  16 MiB (16777216 B), blocks of "), "{out}");
    assert!(out.contains("survives the loss of 1 of 2 disks"), "{out}");
    let json: Value = dir.json(0, &["validate", "pair.toml"]);
    assert_eq!((&json["graph"]["name"], &json["graph"]["pid"]), (&"home".into(), &Value::Null));
    dir.text(&["graph", "pair.toml"]);
    assert_eq!(listing(&dir.0), before);
}

#[test]
fn show_prints_equivalent_spec() {
    let dir = Dir::new();
    let spec =
        PAIR.replace("64MiB", "${SIZE:-64MiB}").replace("\"a.img\"", "\"a$$ \\\"1\\\".img\"");
    dir.write("one.toml", &spec);
    let shown = dir.text(&["show", "one.toml"]);
    assert!(!shown.contains("${SIZE"), "{shown}");
    dir.write("two.toml", &shown);
    assert_eq!(dir.text(&["show", "two.toml"]), shown);
    let graph = |file: &str| -> Value { dir.json(0, &["graph", file]) };
    assert_eq!(graph("one.toml"), graph("two.toml"));
}

#[test]
fn serve_refuses_file_that_is_no_disk() {
    let dir = Dir::new();
    dir.write("empty.img", "");
    dir.write("raw.img", &"x".repeat(4096));
    let serve = |args: &[&str]| dir.cairn(&[&["serve"], args, &["--run", "true"]].concat());
    for (args, code, words) in [
        (&["nope.img"][..], 4, "cairn create nope.img"),
        (&["nope.toml"], 4, "cairn validate"),
        (&["."], 2, "neither a spec"),
        (&["empty.img"], 2, "0 bytes"),
        (&["raw.img", "--degraded"], 2, "labelled"),
        (&["raw.img", "--wipe", "a"], 2, "labelled"),
    ] {
        let ran = serve(args);
        assert!(ran.code == code && ran.err.contains(words), "{args:?}: {ran:?}");
    }
}

#[test]
fn kinds_command_lists_kinds_and_shows_manual() {
    let dir = Dir::new();
    let list = dir.text(&["kinds"]);
    assert!(list.lines().any(|line| line.starts_with("mirror ")), "{list}");
    let one = dir.text(&["kinds", "mirror"]);
    assert!(one.starts_with("# mirror\n") && one.contains("trust"), "{one}");
    let json: Value = dir.json(0, &["kinds", "mirror"]);
    assert_eq!((&json["manual"], &json["options"][0]["name"]), (&one.into(), &"trust".into()));
    assert_eq!(json["commands"][0]["name"], "member.fail");
    let all: Value = dir.json(0, &["kinds"]);
    assert_eq!(all.as_array().unwrap().len(), list.lines().count());
    let ran = dir.cairn(&["kinds", "mirorr"]);
    assert!(ran.code == 4 && ran.err.contains("mirror"), "{ran:?}");
}

#[test]
fn command_reports_full_stdout_but_not_closed_pipe() {
    let dir = Dir::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = dir.command(&["kinds"]).stdout(full).stderr(std::process::Stdio::null()).status();
    assert_eq!(status.unwrap().code(), Some(6));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = dir.command(&["kinds"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}
