//! Tests that the battery refuses each wrong device by the rule that it breaks, and passes correct ones.

use testkit::conformance;
use testkit::wrong::{Sin, copies, keeper, one, subject};

#[test]
fn battery_refuses_each_wrong_device_by_expected_rule() {
    let mut wrong = Vec::new();
    for sin in Sin::ALL {
        match conformance(&subject(sin)) {
            Ok(passed) => wrong.push(format!("{sin:?} passed: {passed:?}")),
            Err(refusal) if !sin.breaks().contains(&refusal.broken) => {
                wrong.push(format!("{sin:?} by another rule: {refusal}"));
            }
            Err(refusal) => {
                let words = refusal.to_string();
                assert!(words.contains(&refusal.broken.to_string()), "{words}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn battery_accepts_correct_devices() {
    for subject in [one(None), copies(None), copies(None).on_labels(), keeper(None)] {
        if let Err(refusal) = conformance(&subject) {
            panic!("{refusal}");
        }
    }
}
