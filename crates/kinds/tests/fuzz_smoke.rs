//! Runs the fuzz target for specs in labels over seeded inputs: mutated valid specs, and random bytes.

mod bodies;

use graph::spec::{Local, Spec};

#[test]
fn label_spec_parser_handles_random_texts() {
    let label = "name = \"home\"\n[disk]\n\"a\" = { uuid = \"x\", size = 65536, block = 4096 }\n\
        [device]\n\"t\" = { kind = \"trace\", on = [\"a\"], queue = 7 }\n\
        \"safe\" = { kind = \"crypt\", on = [\"t\"] }\n[export]\n\"vol\" = { on = \"safe\" }\n";
    let prepared = label.replace("queue = 7", "file = \"/etc/x\"");
    let prepared =
        format!("{prepared}[events]\nrun = \"/x\"\n[nbd]\nlisten = \"unix:${{X:-y}}\"\n");
    let whole = [label.as_bytes().to_vec(), prepared.into_bytes()];
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        let text = String::from_utf8_lossy(input);
        let spec = Spec::of_label(&text, "a", "home", kinds::REGISTRY, &Local::default());
        counted += u64::from(spec.faults().is_none());
        bodies::label_text(input);
    });
    assert!(counted > testkit::INPUTS / 50, "{counted} of {} were taken", testkit::INPUTS);
}

/// The fuzzer found this input, for which a check of the fuzz target failed.
#[test]
fn label_spec_parser_handles_control_character_in_number() {
    bodies::label_text(b"_ff=5_ff\x05f\xbff");
}
