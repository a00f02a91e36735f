//! Checks that code uses time, disks, network, threads and random numbers only through `Env`.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

/// The source files that may call the operating system directly, in crates that implement `Env` or do control-plane
/// work. A new file needs a decision and an entry here.
const MAY_CALL_WORLD: &[&str] = &[
    "crates/api/src/lib.rs",
    "crates/attach/src/lib.rs",
    "crates/block/src/secret.rs",
    "crates/cairn/src/main.rs",
    "crates/chaosdisk/src/lib.rs",
    "crates/doctor/src/scan.rs",
    "crates/house/src/lib.rs",
    "crates/runtime/src/lib.rs",
    "crates/runtime/src/one_shot_keys.rs",
    "crates/supervisor/src/lib.rs",
    "crates/tls/src/tests.rs",
];

/// Calls that the clippy configuration must forbid in all other files.
const REFUSED: &[&str] = &[
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::thread::sleep",
    "std::fs::File::open",
    "std::net::TcpStream::connect",
    "std::os::unix::net::UnixListener::bind",
];

/// Crates that make random numbers without `Env`. No crate of Cairn may depend on them.
const SOURCES_OF_RANDOMNESS: &[&str] = &["fastrand", "getrandom", "oorandom", "rand", "rand_core"];

#[test]
fn only_listed_sources_call_operating_system_directly() {
    let root = std::fs::canonicalize(house::root()).unwrap();
    let mut found = Vec::new();
    for path in house::rust_files() {
        let path = std::fs::canonicalize(path).unwrap();
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let is_source = name.starts_with("crates/") && name.contains("/src/");
        if is_source
            && std::fs::read_to_string(&path).unwrap().contains("clippy::disallowed_methods")
        {
            found.push(name);
        }
    }
    assert_eq!(
        found, MAY_CALL_WORLD,
        "the list of sources that allow clippy::disallowed_methods differs"
    );
}

#[test]
fn clippy_config_refuses_calls_that_bypass_env() {
    let text = std::fs::read_to_string(house::root().join("clippy.toml")).unwrap();
    let settings: toml::Table = text.parse().unwrap();
    let rows = settings["disallowed-methods"].as_array().unwrap();
    let paths: Vec<_> = rows.iter().filter_map(|row| row["path"].as_str()).collect();
    for call in REFUSED {
        assert!(paths.contains(call), "clippy.toml does not refuse {call}");
    }
}

#[test]
fn no_crate_depends_on_random_number_library() {
    for (name, manifest) in house::manifests() {
        let named = manifest.get("dependencies").and_then(|table| table.as_table());
        let other = named.and_then(|table| {
            table.keys().find(|key| SOURCES_OF_RANDOMNESS.contains(&key.as_str()))
        });
        assert_eq!(
            other, None,
            "{name}: random numbers come from Env, so that the simulator draws them"
        );
    }
}
