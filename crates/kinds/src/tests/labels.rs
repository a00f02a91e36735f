//! Tests which sections and options the spec in a label may have.

use graph::spec::{Local, Spec};
use kind::Registry;

const REGISTRY: Registry = crate::REGISTRY;

const LABEL: &str = "name = \"home\"\n\
    [disk]\n\"a\" = { uuid = \"0190f5a0-62d8-4b1c-9a50-010203040506\", size = 65536, block = 4096 }\n\"raw\" = {  }\n\
    [device]\n\"pair\" = { kind = \"mirror\", on = [\"a\", \"raw\"], speed = 1048576 }\n\
    \"seen\" = { kind = \"trace\", on = [\"pair\"], queue = 7 }\n\
    \"safe\" = { kind = \"crypt\", on = [\"seen\"], plain = true }\n\
    [export]\n\"vol\" = { on = \"safe\", read_only = true }\n";

fn read(text: &str) -> Spec {
    Spec::of_label(text, "label of a", "home", REGISTRY, &Local::default())
}

#[test]
fn label_spec_accepts_graph_options() {
    let spec = read(LABEL);
    assert!(spec.faults().is_none(), "{:?}", spec.faults());
    assert_eq!(spec.keys(REGISTRY), [("safe", "ask")]);
    let local = spec.local_options(REGISTRY).into_iter();
    let local: Vec<_> =
        local.map(|(device, option, is_set)| (device, option.name, is_set)).collect();
    assert_eq!(local, [("pair", "trust", false), ("seen", "file", false)]);
}

#[test]
fn label_spec_rejects_local_options_and_unknown_sections() {
    for (from, to, words) in [
        ("[disk]", "[events]\nrun = \"/bin/x\"\n[disk]", "\"events\" is never in a label"),
        (
            "[disk]",
            "[nbd]\nlisten = \"tcp:0.0.0.0:1\"\ninsecure = true\n[disk]",
            "\"nbd\" is never",
        ),
        ("[disk]", "[later]\n[disk]", "\"later\" is never"),
        ("{  }", "{ file = \"/etc/shadow\" }", "\"file\" of disk \"raw\" is never"),
        ("block = 4096", "block = 4096, cache = \"buffered\"", "\"cache\" of disk \"a\""),
        ("queue = 7", "file = \"/etc/x\"", "\"file\" of device \"seen\""),
        ("plain = true", "key = \"file:/etc/x\"", "\"key\" of device \"safe\""),
        ("speed = 1048576", "trust = \"a\"", "\"trust\" of device \"pair\""),
        ("speed = 1048576", "x = 1", "\"x\" of device \"pair\""),
        ("read_only = true", "attach = true", "\"attach\" of export \"vol\""),
        ("read_only = true", "clients = [\"me\"]", "\"clients\" of export \"vol\""),
        ("name = \"home\"", "name = \"other\"", "has the name \"other\""),
        ("name = \"home\"", "name = \"/home\"", "name \"/home\""),
        ("\"pair\" =", "\"p\\u001b]0;x\" =", "p\\u{1b}]0;x"),
    ] {
        let text = LABEL.replacen(from, to, 1);
        assert_ne!(text, LABEL);
        let spec = read(&text);
        let faults = spec.faults().map(|faults| faults.to_string()).unwrap_or_default();
        assert!(faults.contains(words), "{to}: {faults}");
        assert!(faults.contains("label of a"), "{faults}");
        assert!(!faults.contains('\u{1b}'), "{faults}");
        // The refused setting is not in the spec either.
        assert_eq!(spec.keys(REGISTRY), [("safe", "ask")]);
        assert!(spec.events_program().is_none() && !spec.to_text().contains("listen"), "{to}");
        assert!(!spec.to_text().contains("/etc/"), "{}", spec.to_text());
    }
}
