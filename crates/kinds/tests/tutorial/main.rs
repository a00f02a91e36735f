//! Runs the battery, the conformance tests, on the two example kinds of CONTRIBUTING.md. The guide quotes the code of
//! these kinds, and a test compares the code with the guide.

mod count;
mod reverse;

use kind::Registry;
use sim::Reached;
use sim::crash::{Script, Setup, every_crash};
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
    judge(&subject.on_labels().promises(|report, _, log| {
        let (counted, flushed) = (report.counters[0].1, log.requests(Reached::Flushed));
        if counted >= flushed { Ok(()) } else { Err(format!("{counted} of {flushed} writes")) }
    }));
}

#[test]
fn tutorial_kind_count_keeps_count_after_any_crash() {
    const REGISTRY: Registry = Registry(&[kinds::path::KIND, count::KIND]);
    let setup = Setup::new(REGISTRY, 1, 64 << 10, "c = { kind = \"count\", on = \"d0\" }", "c");
    let script = async |script: Script| {
        for n in 0..3 {
            script.write(n * 512, 512, 7).await;
        }
    };
    let crashes = every_crash(&setup, script, |running, log| {
        let counted = running.report("c").counters[0].1;
        let acknowledged = log.requests(Reached::Acknowledged);
        if counted >= acknowledged { Ok(()) } else { Err(format!("{counted} of {acknowledged}")) }
    });
    assert!(crashes.unwrap_or_else(|words| panic!("{words}")).states > 50);
}

#[test]
fn contributing_guide_shows_compiled_code_of_kinds() {
    let guide = include_str!("../../../../CONTRIBUTING.md");
    let kinds = [
        ("reverse", include_str!("reverse/mod.rs")),
        ("count", include_str!("count/mod.rs")),
        ("wear", include_str!("../../src/wear/mod.rs")),
    ];
    for (name, code) in kinds {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let lines = code.lines().filter(is_code).count();
        assert!(
            lines <= 100,
            "{name} has {lines} lines of code; a kind of the guide has at most 100"
        );
        assert!(guide.contains(code), "CONTRIBUTING.md does not quote the folder of {name}");
    }
}
