//! The body of the fuzz target of specs in labels. `fuzz/` includes this file, and `fuzz_smoke.rs` runs the body over a
//! few thousand inputs in each `cargo test`.

use graph::spec::{Local, Spec};

/// Parses the spec in an untrusted label. The spec must not set a program, TLS or a key of this machine, and no control
/// character of the spec may reach a message.
pub fn label_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let local =
        Local { keys: [("safe".to_owned(), "file:mine".to_owned())].into(), ..Local::default() };
    let spec = Spec::of_label(&text, "label of a", "home", kinds::REGISTRY, &local);
    assert!(spec.events_program().is_none() && spec.tls().is_none());
    for (device, source) in spec.keys(kinds::REGISTRY) {
        assert!(source == "ask" || (device, source) == ("safe", "file:mine"), "{device} {source}");
    }
    for (device, option, is_set) in spec.local_options(kinds::REGISTRY) {
        assert!(!is_set, "{} of {device} is the machine's", option.name);
    }
    let written = spec.to_text();
    assert!(!written.contains("\n[nbd]\n") && !written.contains("\n[events]\n"), "{written}");
    let shown = spec.faults().map(|faults| faults.to_string()).unwrap_or_default();
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
}
