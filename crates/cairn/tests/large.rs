//! The largest graphs that a spec may describe: each command must end within two seconds.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use common::Dir;

/// The longest time that one command may take for a valid graph.
const TAKES_AT_MOST: Duration = Duration::from_secs(5);

/// The largest number of devices in a spec, and of levels of devices above each other, with the disk.
const DEVICES_MAX: usize = 4096;
const DEPTH_MAX: usize = 32;

/// The largest number of lowers of a device.
const LOWERS_MAX: usize = 1024;

/// The largest spec that fits in a label, in bytes.
const LABEL_SPEC_BYTES_MAX: usize = 120 << 10;

/// Runs a command that must end with the exit code `code` within [`TAKES_AT_MOST`], and returns its stdout.
fn in_time(dir: &Dir, code: i32, args: &[&str]) -> String {
    let begun = Instant::now();
    let ran = dir.cairn(args);
    let took = begun.elapsed();
    assert_eq!(ran.code, code, "cairn {args:?}: {ran:?}");
    assert!(took <= TAKES_AT_MOST, "cairn {args:?} took {took:?}");
    ran.out
}

/// Returns the lines of a spec with `layers` layers of devices. Each layer has `parts` partitions of the layer below,
/// and a concat of these partitions, so there are `parts` paths from each layer to the next.
fn stacked(layers: usize, parts: usize) -> String {
    let mut text = String::new();
    let mut below = "d".to_owned();
    for layer in 0..layers {
        let names: Vec<_> = (0..parts).map(|part| format!("p{layer}x{part}")).collect();
        for name in &names {
            let _ = writeln!(
                text,
                "{name} = {{ kind = \"partition\", on = \"{below}\", size = \"64KiB\" }}"
            );
        }
        let on: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
        let _ = writeln!(text, "c{layer} = {{ kind = \"concat\", on = [{}] }}", on.join(", "));
        below = format!("c{layer}");
    }
    text
}

/// Returns the spec of a graph on two labelled disks with a mirror on top. Each start of the graph reads the state of
/// the mirror in the labels.
fn labelled(devices: &str, top: &str) -> String {
    format!(
        "name = \"large\"\n[disk]\n\
         d = {{ file = \"d.img\", size = \"512MiB\", create = true, label = true }}\n\
         e = {{ file = \"e.img\", size = \"512MiB\", create = true, label = true }}\n\
         [device]\n{devices}\
         m = {{ kind = \"mirror\", on = [\"{top}\", \"e\"] }}\n\
         [export]\nvol = {{ on = \"m\" }}\n"
    )
}

/// Validates and starts the graph of the spec `text`, and lists it by its labels. Each command must end in time.
fn all_in_time(text: &str) {
    let dir = Dir::in_memory();
    dir.write("large.toml", text);
    in_time(&dir, 0, &["validate", "large.toml"]);
    in_time(&dir, 0, &["serve", "large.toml", "--dry-run"]);
    in_time(&dir, 0, &["serve", "large.toml", "--run", "true"]);
    in_time(&dir, 0, &["serve", "large.toml", "--run", "true"]);
    let found = in_time(&dir, 0, &["import"]);
    assert!(found.contains("would come up"), "{found}");
    in_time(&dir, 0, &["check"]);
    in_time(&dir, 0, &["import", "large", "--run", "true"]);
    change_in_time(&dir, text);
    // Only the disk beneath most of the devices is left.
    std::fs::rename(dir.path("e.img"), dir.path("run/e.img")).unwrap();
    in_time(&dir, 0, &["import"]);
    in_time(&dir, 10, &["check"]);
}

/// Changes an option of the lowest disk of a running graph, so that `apply` compares all devices. It must end in time.
fn change_in_time(dir: &Dir, text: &str) {
    dir.write("changed.toml", &text.replace("d.img\"", "d.img\", timeout = \"20s\""));
    let serve = dir.serve(&["large.toml"]);
    in_time(dir, 0, &["apply", "changed.toml"]);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn start_ends_in_time_for_deep_stack_of_partitions() {
    let layers = (DEPTH_MAX - 2) / 2;
    all_in_time(&labelled(&stacked(layers, 8), &format!("c{}", layers - 1)));
}

#[test]
fn start_ends_in_time_for_largest_spec_in_label() {
    let layers = (DEPTH_MAX - 2) / 2;
    let (mut parts, mut text) = (1, String::new());
    loop {
        let next = stacked(layers, parts);
        if next.len() > LABEL_SPEC_BYTES_MAX || layers * (parts + 1) > DEVICES_MAX - 3 {
            break;
        }
        (text, parts) = (next, parts + 1);
    }
    all_in_time(&labelled(&text, &format!("c{}", layers - 1)));
}

/// Returns the lines of a spec with `layers` layers of devices. Each layer is a mirror of two partitions of the layer
/// below. Each mirror keeps a state in the labels of its disks.
fn mirrored(layers: usize) -> String {
    let mut text = String::new();
    let mut below = "d".to_owned();
    for layer in 0..layers {
        for part in ["a", "b"] {
            let _ = writeln!(
                text,
                "{part}{layer} = {{ kind = \"partition\", on = \"{below}\", size = \"{}KiB\" }}",
                // The two have less than the layer below, which may have a store behind its data.
                64 * 3_u64.pow((layers - layer) as u32)
            );
        }
        let _ =
            writeln!(text, "r{layer} = {{ kind = \"mirror\", on = [\"a{layer}\", \"b{layer}\"] }}");
        below = format!("r{layer}");
    }
    text
}

#[test]
fn start_ends_in_time_for_deep_stack_of_mirrors() {
    // With more layers, a request would need more buffers than a graph may have.
    let layers = 5;
    all_in_time(&labelled(&mirrored(layers), &format!("r{}", layers - 1)));
}

#[test]
fn start_ends_in_time_for_widest_spec() {
    let dir = Dir::in_memory();
    let (mut disks, mut devices) = (String::new(), String::new());
    for n in 0..DEVICES_MAX / 2 {
        let _ = writeln!(disks, "d{n} = {{ null = \"1MiB\" }}");
        let _ =
            writeln!(devices, "p{n} = {{ kind = \"partition\", on = \"d{n}\", size = \"rest\" }}");
    }
    let text = format!(
        "name = \"wide\"\n[disk]\n{disks}[device]\n{devices}[export]\nvol = {{ on = \"p0\" }}\n"
    );
    dir.write("wide.toml", &text);
    in_time(&dir, 0, &["validate", "wide.toml"]);
    in_time(&dir, 0, &["serve", "wide.toml", "--run", "true"]);
}

/// The spec has 1024 disks, and as many partitions as fit, each of which depends on all disks.
#[test]
fn start_ends_in_time_for_densest_spec() {
    let dir = Dir::in_memory();
    let disks: Vec<_> = (0..LOWERS_MAX).map(|n| format!("d{n}")).collect();
    let mut text = "name = \"dense\"\n[disk]\n".to_owned();
    for disk in &disks {
        let _ = writeln!(text, "{disk} = {{ null = \"1MiB\" }}");
    }
    let on: Vec<_> = disks.iter().map(|name| format!("\"{name}\"")).collect();
    let _ = writeln!(text, "[device]\nall = {{ kind = \"concat\", on = [{}] }}", on.join(", "));
    for n in 0..DEVICES_MAX - LOWERS_MAX - 1 {
        let _ = writeln!(text, "p{n} = {{ kind = \"partition\", on = \"all\", size = \"64KiB\" }}");
    }
    text += "[export]\nvol = { on = \"p0\" }\n";
    dir.write("dense.toml", &text);
    in_time(&dir, 0, &["validate", "dense.toml"]);
    in_time(&dir, 0, &["serve", "dense.toml", "--run", "true"]);
}

#[test]
fn validate_limits_listed_faults_of_large_invalid_spec() {
    let dir = Dir::in_memory();
    let mut text = "name = \"wrong\"\n[device]\n".to_owned();
    let on: Vec<_> = (0..1000).map(|n| format!("\"d{n}\"")).collect();
    for n in 0..400 {
        let _ = writeln!(text, "c{n} = {{ kind = \"concat\", on = [{}] }}", on.join(","));
    }
    dir.write("wrong.toml", &text);
    let begun = Instant::now();
    let ran = dir.cairn(&["validate", "wrong.toml"]);
    assert!(ran.code == 3 && begun.elapsed() <= TAKES_AT_MOST, "{:?}", begun.elapsed());
    assert!(ran.err.lines().count() < 110 && ran.err.contains("more faults"), "{}", ran.err.len());
}
