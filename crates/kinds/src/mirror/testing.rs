//! How random graphs of the simulator draw mirrors, and how the fuzzer checks the records of mirrors from disks.

use block::{Found, Result, StoredState};
use kind::Value;
use kind::testing::{Drawing, PartId, Records, Shape, Testing};

use super::Scrubbed;
use super::opening::Members;
use super::record::{CHANGE_MAX, Content, Generation, Known, MemberState, Record};
use super::regions::{Bitmap, Regions};

/// The parts of the kind `mirror` in the simulator and the fuzzer. Random graphs draw mirrors more often than other
/// kinds, because a fault in a mirror loses the most data.
pub const TESTING: Testing = Testing {
    shape: Some(Shape { draw, weight: 5 }),
    records: &[Records { name: "mirror", valid, check }],
    ..Testing::NONE
};

fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    let count = drawing.within(2, 3) as usize;
    drawing.redundant(depth, count, |drawing, members, patience| {
        let trust = Value::Text(drawing.name(members[0]));
        let options = vec![("trust", trust), ("timeout", Value::Duration(patience))];
        drawing.add(&super::KIND, options, members)
    })
}

/// The names of the members in the fuzzer's records.
const MEMBERS: [&str; 3] = ["a", "b", "c"];

/// Returns the length in bytes of a record of `members` members, with 16 bytes of bitmaps.
const fn record_bytes(members: usize) -> usize {
    Record::bytes_of(members) + 16
}

/// Returns valid inputs of [`check`] for every value of the first byte, with and without a failed member.
fn valid() -> Vec<Vec<u8>> {
    let records = |first: u8| [false, true].map(|failed| labels(first, failed));
    (0..=u8::MAX).flat_map(records).collect()
}

/// Returns the number of members, 2 or 3, that the first byte of a fuzz input selects.
fn members_of(first: u8) -> usize {
    2 + usize::from(first & 1)
}

/// Returns a fuzz input: the first byte, and then the same record for each member. The last member failed if `failed`.
fn labels(first: u8, failed: bool) -> Vec<u8> {
    let count = members_of(first);
    let generation = Generation { incarnation: 5, events: 9 };
    // Two bitmaps of 8 bytes, or one of 16.
    let regions = if failed { 25 } else { 75 };
    let member = |n: usize| {
        let failed = failed && n + 1 == count;
        let mut missing = if failed { Bitmap::all(regions) } else { Bitmap::none(regions) };
        missing.remove(3);
        Known {
            name: MEMBERS[n].to_owned(),
            state: if failed { MemberState::Failed } else { MemberState::InSync },
            known: generation,
            sent: generation,
            missing,
            refilled: failed,
            content: if failed { Content::Empty } else { Content::Stale },
        }
    };
    let members = (0..count).map(member).collect();
    let active = Bitmap::all(regions);
    let regions = Regions::new(regions as u64 * 4096, 4096).expect("as many as that");
    let scrubbed = Scrubbed { ended_unix_s: Some(1 << 30), at: Some(4096), ..Scrubbed::default() };
    let record =
        Record { generation, regions, scrubbed, active, flush_failed: false, members, room: None };
    let bytes = record.encode();
    assert_eq!(bytes.len(), record_bytes(count));
    [&[first], &bytes.repeat(count)[..]].concat()
}

/// Parses a fuzz input: a first byte, and then the untrusted record of each member. An accepted record must encode to
/// the same bytes. If the mirror opens, a member must be in sync, and the mirror must resync all regions in which the
/// other members differ. The first byte selects the number of members, the present members, the trusted member, and
/// whether the mirror may open degraded. Returns whether the first record was accepted.
fn check(data: &[u8]) -> bool {
    let Some((first, data)) = data.split_first() else { return false };
    let bit = |n: usize| first >> n & 1 == 1;
    let count = members_of(*first);
    let mut records = data.chunks(record_bytes(count));
    let found: Vec<Found> = (0..count)
        .map(|n| {
            let bytes = records.next().map(<[u8]>::to_vec);
            let state = bytes.map(|bytes| StoredState { sequence: 1, bytes });
            Found { labelled: true, present: bit(1 + n), state, ..Found::default() }
        })
        .collect();
    let mut accepted = Vec::new();
    for state in found.iter().filter_map(|found| found.state.as_ref()) {
        let record = Record::decode(&state.bytes);
        accepted.push(record.is_ok());
        let Ok(record) = record else { continue };
        assert!(record.encode() == state.bytes, "a record has one form");
        assert!(record.generation.events <= CHANGE_MAX, "the next one has a number");
    }
    opens_over_member_in_sync(&found, *first);
    accepted.first() == Some(&true)
}

fn opens_over_member_in_sync(found: &[Found], first: u8) {
    let bit = |n: usize| first >> n & 1 == 1;
    let members = Members {
        names: MEMBERS[..found.len()].to_vec(),
        regions: Regions::new(100 << 10, 8 << 10).expect("13 regions"),
        found: found.iter().collect(),
        stored: None,
        created: false,
        spares: 0,
        trust: bit(4).then_some(usize::from(first >> 5) % found.len()),
        trusted_now: bit(0),
        may_degrade: bit(7),
    };
    let Ok(decision) = members.decide() else { return };
    let readable = |n: usize| decision.states[n] == MemberState::InSync && found[n].present;
    assert!((0..found.len()).any(readable), "no member can be read: {decision:?}");
    assert!(decision.events <= CHANGE_MAX);
    assert!(decision.scrubbed.at.is_none_or(|at| at <= 100 << 10), "{decision:?}");
    for (state, missing) in decision.states.iter().zip(&decision.missing) {
        assert!(*state != MemberState::InSync || missing.is_empty(), "{decision:?}");
        assert!(missing.next(13).is_none(), "{decision:?}");
    }
}

/// The fuzz inputs have no records, with every set of present members.
#[test]
fn mirror_fuzz_check_rejects_labels_without_records() {
    (0..=u8::MAX).for_each(|first| assert!(!check(&[first])));
}
