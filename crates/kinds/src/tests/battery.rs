//! Runs the battery, the conformance tests, on every kind: alone, and in graphs with other kinds.

use testkit::{Subject, conformance};

/// Runs the battery on the subjects of the kind `name`. `forgets`: whether the kind keeps no bytes.
fn judge(name: &str, subjects: &[Subject], forgets: bool) {
    let kind = crate::REGISTRY.find(name).expect("each folder has the name of its kind");
    // A stateful kind needs a subject on labelled disks.
    let is_labelled = kind.maker.keeps_state();
    let is_alone = |subject: &Subject| subject.name == name && subject.labelled == is_labelled;
    // A pool has no bytes of its own; `versioned` is a pool of one volume.
    let has_bytes = name != "pool";
    let is_judged = subjects.iter().any(is_alone);
    assert!(forgets || !has_bytes || is_judged, "{name} needs a subject of that name");
    for subject in subjects {
        match conformance(subject) {
            Ok(passed) => {
                assert!(subject.is_disk || passed.errors > 0, "{}: {passed:?}", subject.name)
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

macro_rules! batteries {
    ($($kind:ident)*) => {
        $(#[test]
        fn $kind() {
            let forgets = crate::$kind::testing::TESTING.forgets;
            judge(stringify!($kind), &crate::$kind::subjects::subjects(), forgets);
        })*
    };
}

for_each_kind!(batteries);
