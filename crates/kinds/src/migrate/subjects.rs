//! The devices and graphs with `migrate` that the battery, the conformance tests, runs on.

use block::JobState;
use testkit::Subject;

use crate::tests::subjects::{labelled, over, plain};

/// Sets that the subject, a migration, starts on disks with content, and stays completed over restarts once completed.
fn moving(subject: Subject) -> Subject {
    labelled(subject).adopting().promises(|after, before, _| {
        match (&before.jobs[..], &after.jobs[..]) {
            ([was], [is])
                if was.state == JobState::Done
                    && is.progress.done_bytes < is.progress.all_bytes =>
            {
                Err(format!("a move that was done is at {:?}", is.progress))
            }
            _ => Ok(()),
        }
    })
}

pub fn subjects() -> Vec<Subject> {
    vec![
        moving(over("migrate", 2, |graph, on| graph.add("migrate", &[], on))),
        moving(over("a migrate of 4 KiB blocks", 2, |graph, on| graph.add("migrate", &[], on)))
            .with_blocks_of_4k(),
        moving(over("a migrate in place", 1, |graph, on| {
            let safe = graph.add("crypt", &plain(), on)?;
            graph.add("migrate", &[], &[on[0], safe])
        })),
    ]
}
