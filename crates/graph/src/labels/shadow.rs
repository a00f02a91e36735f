//! Comparison of the diagnosis with the verdicts that it is to replace.

use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, Reason};

use super::Opening;
use super::diagnosis::Finding;

static ON: AtomicBool = AtomicBool::new(false);

/// Compares the two verdicts at every start from now on. For the simulator and tests: a difference ends the process.
pub fn compare_verdicts() {
    ON.store(true, Ordering::Relaxed);
}

/// Whether verdicts are compared.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Compares the errors that a start was refused for with its findings.
///
/// # Panics
/// If they differ, and not as [`is_intended`] permits.
pub fn compare(before: &[Error], findings: &[Finding], asked: &Opening) {
    let refusing = findings.iter().filter(|finding| finding.refuses(asked));
    let now: Vec<&Error> = refusing.map(|finding| &finding.error).collect();
    let before: Vec<&Error> = before.iter().collect();
    let is_same = before.len() == now.len()
        && before.iter().zip(&now).all(|(one, other)| one.to_string() == other.to_string());
    let verdict = |errors: &[&Error]| {
        let all: Vec<_> = errors.iter().map(|error| error.to_string()).collect();
        all.join("; ")
    };
    assert!(
        is_same || is_intended(&before, &now),
        "two verdicts on one set of labels:\n{}\n{}",
        verdict(&before),
        verdict(&now)
    );
}

/// Whether two verdicts differ on purpose. A start that was refused before is refused.
///
/// 1. A start that another host keeps from its disks reports everything else that keeps it from them, too: the disks can be
///    matched all the same. Before, that showed only with `--take`.
/// 2. The message about a split brain names other disks: the label that counts is the same in any order of the disks.
fn is_intended(before: &[&Error], now: &[&Error]) -> bool {
    let key = |error: &&Error| (error.reason(), error.place().map(str::to_owned));
    let (before, now): (Vec<_>, Vec<_>) =
        (before.iter().map(key).collect(), now.iter().map(key).collect());
    let is_held = before.iter().any(|(reason, _)| *reason == Some(Reason::LabelHeldByOtherHost));
    let is_split = before.iter().any(|(reason, _)| *reason == Some(Reason::LabelSplitBrain));
    let has_all = before.iter().all(|error| now.contains(error));
    is_held && has_all && before.first() == now.first() || is_split && before == now
}
