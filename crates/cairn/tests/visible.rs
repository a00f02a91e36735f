//! Block devices with a label, which each search for labels on this machine sees. So this file runs at rest: a test beside
//! it would find the label of a graph that is not its own.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use common::machine::Loop;
use common::{Dir, tool};

#[test]
fn search_for_labels_claims_no_block_device_without_label() {
    let dir = Dir::new();
    let size = ["-s", "8M", "blank.img"];
    assert_eq!(tool(&dir, "truncate", &size).code, 0);
    let blank = Loop::over(&dir, "blank.img");
    assert_eq!(dir.cairn(&["create", "other.img", "8M"]).code, 0);
    dir.write(
        "other.toml",
        "[disk]\na = { file = \"other.img\", label = true }\n[export]\nvol = { on = \"a\" }\n",
    );
    let serve = dir.serve(&["other.toml"]);
    assert_eq!(serve.stop().code, 0);
    let labelled = Loop::over(&dir, "other.img");

    // A search that claimed one of the devices would report that the device is in use.
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let claim = |device: &Loop| {
        OpenOptions::new().read(true).custom_flags(exclusive).open(&device.0).unwrap()
    };
    let _claims = [claim(&blank), claim(&labelled)];
    std::fs::create_dir(dir.path("empty")).unwrap();
    let ran = dir.cairn(&["import", "--directory", "empty"]);
    let text = format!("{}{}", ran.out, ran.err);
    assert!(!text.contains(&blank.0), "{ran:?}");
    assert!(text.contains(&labelled.0), "{ran:?}");
}
