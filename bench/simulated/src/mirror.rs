//! The row of `mirror`: records and flushes of first writes to a region, with the bitmaps in a store on the members.

use bench::rows::Row;
use serde_json::json;

use crate::row;
use crate::scene::{REQUEST, Scene};

/// Bytes of each member.
const MEMBER_BYTES: u64 = 1 << 30;

/// Number of members.
const MEMBERS: u64 = 2;

/// Number of the first writes to one region, all in flight together.
const WRITES: u64 = 32;

/// Counts the records of the store and the flushes of first writes to one region at once.
pub fn first_writes() -> Vec<Row> {
    let scene = Scene::mirror(Vec::new(), &[MEMBER_BYTES; MEMBERS as usize]);
    // The mirror makes its store first.
    scene.rest();
    let before = scene.used();
    scene.write(WRITES, WRITES, |n| n * REQUEST);
    let used = scene.used();
    let flushes = (used.flushes - before.flushes) as f64 / MEMBERS as f64;
    let records = (used.writes - before.writes) as f64 / MEMBERS as f64 - WRITES as f64;
    vec![row(
        "mirror-first-writes".to_owned(),
        format!("mirror: writes for {WRITES} first writes to a region, depth {WRITES}"),
        "1 record and 1 flush of each member".to_owned(),
        format!("{records} record, {flushes} flush"),
        (records, flushes) == (1.0, 1.0),
        json!({ "records": records, "flushes": flushes }),
    )]
}
