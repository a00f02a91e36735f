//! Runs the battery, the conformance tests, on every kind: alone, and in graphs with other kinds. The environment variable
//! `SUBJECT` names one subject, on which alone the battery runs.

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
    let chosen = std::env::var("SUBJECT").ok();
    let is_chosen = |subject: &&Subject| chosen.as_ref().is_none_or(|name| subject.name == *name);
    for subject in subjects.iter().filter(is_chosen) {
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

        #[test]
        fn environment_names_existing_subject() {
            let Ok(chosen) = std::env::var("SUBJECT") else { return };
            let all = [$(crate::$kind::subjects::subjects()),*];
            let names: Vec<_> = all.iter().flatten().map(|subject| &*subject.name).collect();
            assert!(names.contains(&&*chosen), "SUBJECT={chosen} is none of {names:?}");
        }
    };
}

for_each_kind!(batteries);
