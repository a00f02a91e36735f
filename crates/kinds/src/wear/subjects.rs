//! The devices and graphs with `wear` that the battery, the conformance tests, runs on.

use block::{ByteRange, Report};
use kind::Value;
use sim::{Reached, WriteLog};
use testkit::{LowerSpec, Subject};

use crate::tests::subjects::{labelled, over};

/// Bytes of each lower: the counts and their log, and more than a MiB of data.
pub const LOWER_BYTES: u64 = 1536 << 10;

pub fn subjects() -> Vec<Subject> {
    let alone = over("wear", 1, |graph, on| graph.add("wear", &[], on));
    let apart = over("a wear with counts elsewhere", 2, |graph, on| {
        let meta = ("meta", Value::Text(graph.name(on[1]).to_owned()));
        graph.add("wear", &[meta], on)
    });
    let sized = |subject: Subject| {
        let lowers = subject.lowers.iter().map(|lower| LowerSpec { size: LOWER_BYTES, ..*lower });
        let subject = Subject { lowers: lowers.collect(), ..subject };
        labelled(subject).promises(|report, _, log| judge(report, log))
    };
    vec![sized(alone), sized(apart)]
}

/// Judges the counts in a report: no count is below the acknowledged writes that no power cut has lost, and none is above the
/// requests that were sent.
pub fn judge(report: &Report, log: &WriteLog) -> Result<(), String> {
    let count = |mib: u64| {
        let name = format!("writes to MiB {mib}");
        let row = report.rows.iter().find(|(named, _)| *named == name);
        row.map_or(Ok(0), |(_, count)| count.parse().map_err(|_| format!("{row:?} is no count")))
    };
    for mib in 0..LOWER_BYTES.div_ceil(1 << 20) {
        let (counted, sent) = (count(mib)?, log.requests(Reached::Sent));
        let range = ByteRange::new(mib << 20, 1 << 20).expect("a MiB has bytes");
        let acknowledged = log.writes_in(range, Reached::Acknowledged);
        if !(acknowledged..=sent).contains(&counted) {
            return Err(format!(
                "MiB {mib} has count {counted}; {acknowledged} to {sent} are right"
            ));
        }
    }
    Ok(())
}
