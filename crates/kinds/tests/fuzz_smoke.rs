//! Runs the body of every fuzz target over seeded inputs: valid states with mutations, and noise.

mod bodies;

use graph::spec::{Local, Spec};
use kinds::crypt::slots::{Cost, KeySlots, SLOTS, Slot};
use kinds::mirror::Scrubbed;
use kinds::mirror::record::{Generation, Known, MemberState, Record};
use kinds::mirror::regions::{Bitmap, Regions};

fn whole(used: usize) -> Vec<u8> {
    let slot = Slot {
        cost: Cost { memory_kib: 65536, passes: 3, lanes: 4 },
        made_unix_s: 1,
        salt: [1; 32],
        nonce: [2; 12],
        wrapped: [3; 64],
        tag: [4; 16],
        label: "laptop".to_owned(),
    };
    let slots = std::array::from_fn(|n| (n < used).then(|| slot.clone()));
    KeySlots { unit: 4096, volume_id: [5; 16], check: [6; 32], slots }.encode()
}

#[test]
fn keyslots() {
    let whole: Vec<_> = (1..=SLOTS).map(whole).collect();
    let mut taken = 0;
    testkit::smoke(&whole, |input| {
        taken += u64::from(KeySlots::parse(input).is_ok());
        bodies::keyslots(input);
    });
    assert!(taken > testkit::INPUTS / 10, "{taken} of {} were taken", testkit::INPUTS);
}

/// Returns the same record for each label of a mirror of `count` members. The last member failed if `failed`.
fn mirrored(count: usize, failed: bool) -> Vec<u8> {
    let generation = Generation { incarnation: 5, events: 9 };
    // Two bitmaps of 8 bytes, or one of 16.
    let regions = if failed { 25 } else { 75 };
    let member = |n: usize| {
        let failed = failed && n + 1 == count;
        Known {
            name: bodies::MEMBERS[n].to_owned(),
            standing: if failed { MemberState::Failed } else { MemberState::InSync },
            known: generation,
            sent: generation,
            missing: if failed { all_but_one(regions) } else { Bitmap::none(regions) },
            refilled: failed,
        }
    };
    let members = (0..count).map(member).collect();
    let active = Bitmap::all(regions);
    let regions = Regions::new(regions as u64 * 4096, 4096).expect("as many as that");
    let scrubbed = Scrubbed { ended_unix_s: Some(1 << 30), at: Some(4096) };
    let record = Record { generation, regions, scrubbed, active, flush_failed: false, members };
    let bytes = record.encode();
    assert_eq!(bytes.len(), bodies::record_bytes(count));
    bytes.repeat(count)
}

fn all_but_one(regions: usize) -> Bitmap {
    let mut map = Bitmap::all(regions);
    map.remove(3);
    map
}

#[test]
fn mirror_records() {
    let whole = [(2, false), (2, true), (3, false), (3, true)]
        .map(|(count, failed)| mirrored(count, failed));
    // Labels without a record, too, for every set of present members.
    (0..=u8::MAX).for_each(|first| bodies::mirror_records(&[first]));
    let (mut first, mut taken) = (0_u8, 0);
    testkit::smoke(&whole, |input| {
        first = first.wrapping_add(1);
        let length = bodies::record_bytes(2 + usize::from(first & 1));
        taken += u64::from(input.get(..length).is_some_and(|one| Record::decode(one).is_ok()));
        bodies::mirror_records(&[&[first], input].concat());
    });
    assert!(taken > testkit::INPUTS / 10, "{taken} of {} were taken", testkit::INPUTS);
}

#[test]
fn migrate_records() {
    use kinds::migrate::record::{Record, WINDOW_MAX_BYTES, Window};
    let whole = |back: bool, sectors: u64| {
        let start = if back { (8 << 20) - sectors * 512 } else { 8 << 20 };
        let range = block::ByteRange::new(start, sectors * 512);
        let window = range.map(|range| Window { range, sums: (0..sectors).collect() });
        Record { back, paused: back, size: 64 << 20, boundary: 8 << 20, window }.encode()
    };
    let most = WINDOW_MAX_BYTES / 512;
    let whole = [whole(false, 0), whole(true, 0), whole(false, 1), whole(true, most)];
    let mut taken = 0;
    testkit::smoke(&whole, |input| {
        taken += u64::from(Record::decode(input).is_ok());
        bodies::migrate_records(input);
    });
    assert!(taken > testkit::INPUTS / 10, "{taken} of {} were taken", testkit::INPUTS);
}

#[test]
fn remap_records() {
    use kinds::remap::layout::Layout;
    use kinds::remap::record::Record;
    let layout = Layout { block_bytes: 65536, blocks: 100, places: 50, start: 1 << 20 };
    let vault = Some(meta::Uuid([3; 16]));
    let whole = [
        Record { vault, paused: false, layout }.encode(),
        Record { vault: None, paused: true, layout }.encode(),
    ];
    let mut taken = 0;
    testkit::smoke(&whole, |input| {
        taken += u64::from(Record::decode(input).is_ok());
        bodies::remap_records(input);
    });
    assert!(taken > testkit::INPUTS / 10, "{taken} of {} were taken", testkit::INPUTS);
}

#[test]
fn label_texts() {
    let label = "name = \"home\"\n[disk]\n\"a\" = { uuid = \"x\", size = 65536, block = 4096 }\n\
        [device]\n\"t\" = { kind = \"trace\", on = [\"a\"], queue = 7 }\n\
        \"safe\" = { kind = \"crypt\", on = [\"t\"] }\n[export]\n\"vol\" = { on = \"safe\" }\n";
    let prepared = label.replace("queue = 7", "file = \"/etc/x\"");
    let prepared =
        format!("{prepared}[events]\nrun = \"/x\"\n[nbd]\nlisten = \"unix:${{X:-y}}\"\n");
    let whole = [label.as_bytes().to_vec(), prepared.into_bytes()];
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        let text = String::from_utf8_lossy(input);
        let spec = Spec::of_label(&text, "a", "home", kinds::REGISTRY, &Local::default());
        counted += u64::from(spec.faults().is_none());
        bodies::label_text(input);
    });
    assert!(counted > testkit::INPUTS / 50, "{counted} of {} were taken", testkit::INPUTS);
}

/// An input that the fuzz target found.
#[test]
fn label_text_with_control_character_in_number() {
    bodies::label_text(b"_ff=5_ff\x05f\xbff");
}
