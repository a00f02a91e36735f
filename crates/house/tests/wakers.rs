//! Checks that only listed source files store task wakers.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

use std::path::Path;

/// The source files that may store wakers: the wait primitives of `block`, executors, timers and the reactor. All other
/// code waits with `Notify`, `Waiter`, `Mutex` or a task group of `block`.
const MAY_KEEP_WAKERS: &[&str] = &[
    "crates/block/src/notify.rs",
    "crates/block/src/test_world.rs",
    "crates/engine/src/ready.rs",
    "crates/kinds/src/tests/world.rs",
    "crates/runtime/src/executor.rs",
    "crates/runtime/src/slab.rs",
    "crates/runtime/src/timers.rs",
    "crates/runtime/src/workers.rs",
    "crates/runtime/tests/tasks.rs",
    "crates/sim/src/clock.rs",
    "crates/sim/src/world.rs",
];

/// Whether a line of code declares a value that stores a waker: a field, a type argument, or a part of a tuple.
fn keeps_waker(line: &str) -> bool {
    let line = line.trim_start();
    let is_kept = |(at, _): (usize, &str)| {
        let after = &line[at + "Waker".len()..];
        line[..at].ends_with(['<', '(', ' ', ':']) && after.starts_with([',', '>', ')'])
    };
    let is_code = !["//", "use ", "fn ", "pub fn ", "pub(crate) fn "]
        .iter()
        .any(|start| line.starts_with(start));
    is_code && line.match_indices("Waker").any(is_kept)
}

#[test]
fn only_listed_sources_store_wakers() {
    let root = std::fs::canonicalize(house::root()).unwrap();
    let of_house = |path: &Path| path.starts_with("crates/house");
    let mut found = Vec::new();
    for path in house::rust_files() {
        let path = std::fs::canonicalize(path).unwrap();
        let name = path.strip_prefix(&root).unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        if !of_house(&name) && text.lines().any(keeps_waker) {
            found.push(name.to_str().unwrap().to_owned());
        }
    }
    assert_eq!(found, MAY_KEEP_WAKERS, "the list of sources that store wakers differs");
}

#[test]
fn search_for_stored_wakers_finds_declarations_only() {
    let kept = [
        "    waiting: RefCell<Vec<Waker>>,",
        "    waiter: Cell<Option<std::task::Waker>>,",
        "    waker: Waker,",
        "    Wake(Waker),",
        "    waiter: RefCell<Option<(usize, Waker)>>,",
        "struct List(VecDeque<Waker>);",
    ];
    for line in kept {
        assert!(keeps_waker(line), "{line}");
    }
    let other = [
        "    use std::task::{Context, Poll, Waker};",
        "    fn set_timer(&self, at: Mono, waker: Waker) -> TimerId {",
        "    let mut cx = Context::from_waker(Waker::noop());",
        "    woken.drain(..).for_each(Waker::wake);",
        "    // as Vec<Waker> did",
    ];
    for line in other {
        assert!(!keeps_waker(line), "{line}");
    }
}
