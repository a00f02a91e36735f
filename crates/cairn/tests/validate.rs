//! `cairn validate`: warnings about this machine, which do not make a spec unusable.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::process::Command;

use common::{Dir, Ran};
use serde_json::Value;

#[test]
fn validate_warns_of_missing_key_file() {
    let dir = Dir::new();
    dir.write(
        "safe.toml",
        "[disk]\nd = { memory = \"1MiB\" }\n[device]\n\
         safe = { kind = \"crypt\", on = \"d\", plain = true, key = \"file:no/key\" }\n[export]\nvol = { on = \"safe\" }\n",
    );
    let ran = dir.cairn(&["validate", "safe.toml"]);
    let words = "safe.toml:4:1  warning  the key file of \"safe\", no/key, does not exist here. Next: create \
                 it before the start\n";
    assert!(ran.code == 0 && ran.err.contains(words), "{ran:?}");
    let shown: Value = dir.json(0, &["validate", "safe.toml"]);
    let fault = &shown["faults"][0];
    assert_eq!((&fault["severity"], &fault["line"]), (&"warning".into(), &4.into()), "{shown}");
    std::fs::create_dir(dir.path("no")).unwrap();
    dir.write("no/key", "k");
    let ran = dir.cairn(&["validate", "safe.toml"]);
    assert!(ran.code == 0 && !ran.err.contains("key file"), "{ran:?}");
}

#[test]
fn validate_warns_of_attach_without_root() {
    let dir = Dir::new();
    dir.write(
        "home.toml",
        "[disk]\nd = { memory = \"1MiB\" }\n[export]\nvol = { on = \"d\", attach = true }\n",
    );
    let words = "home.toml  warning  export \"vol\" has attach = true, which needs root. Next: serve as root, \
                 or remove attach\n";
    let mut ran = dir.cairn(&["validate", "home.toml"]);
    if rustix::process::geteuid().is_root() {
        assert!(ran.code == 0 && !ran.err.contains("warning"), "{ran:?}");
        // That user may have no access to the build directory.
        std::fs::copy(env!("CARGO_BIN_EXE_cairn"), dir.path("cairn")).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "./cairn"]);
        command.args(["validate", "home.toml"]).current_dir(&dir.0);
        ran = Ran::of(&command.output().unwrap());
    }
    assert!(ran.code == 0 && ran.err.contains(words), "{ran:?}");
}
