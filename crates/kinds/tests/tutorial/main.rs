//! Runs the battery, the conformance tests, on the two example kinds of CONTRIBUTING.md. The guide quotes the code of
//! these kinds, and a test compares the code with the guide.

mod count;
mod reverse;

use kind::Registry;
use testkit::Subject;

const REGISTRY: Registry = Registry(&[reverse::KIND, count::KIND]);

fn judge(subject: &Subject) {
    if let Err(refusal) = testkit::conformance(subject) {
        panic!("{refusal}");
    }
}

#[test]
fn tutorial_kind_reverse_passes_battery() {
    judge(&Subject::new("reverse", REGISTRY, 1, 48 << 10, |graph, on| {
        graph.add("reverse", &[], on)
    }));
}

#[test]
fn tutorial_kind_count_passes_battery() {
    let subject =
        Subject::new("count", REGISTRY, 1, 48 << 10, |graph, on| graph.add("count", &[], on));
    judge(&subject.on_labels().promising(|before, after| {
        let ([(_, before)], [(_, after)]) = (&before.counters[..], &after.counters[..]) else {
            // A life that was cut short before the device was made has no number.
            return Ok(());
        };
        let is_kept = after >= before;
        if is_kept { Ok(()) } else { Err(format!("{before} writes became {after}")) }
    }));
}

#[test]
fn contributing_guide_shows_compiled_code_of_kinds() {
    let guide = include_str!("../../../../CONTRIBUTING.md");
    for (name, code) in
        [("reverse", include_str!("reverse/mod.rs")), ("count", include_str!("count/mod.rs"))]
    {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let lines = code.lines().filter(is_code).count();
        assert!(
            lines <= 100,
            "{name} has {lines} lines of code; a kind of the guide has at most 100"
        );
        assert!(guide.contains(code), "CONTRIBUTING.md does not quote the folder of {name}");
    }
}
