//! Bodies of the fuzz targets. `fuzz/` includes this file, and `fuzz_smoke.rs` runs every body over a few thousand
//! inputs in each `cargo test`.

use block::{Found, StoredState};
use graph::spec::{Local, Spec};
use kinds::crypt::slots::{KeySlots, STATE_BYTES};
use kinds::mirror::opening::Members;
use kinds::mirror::record::{CHANGE_MAX, MemberState, Record};
use kinds::mirror::regions::Regions;

/// Parses untrusted key slots. Accepted ones have a single encoding, and are within the limits.
pub fn keyslots(data: &[u8]) {
    // Most inputs have another length; the padded input passes that check.
    let mut padded = data.to_vec();
    padded.resize(STATE_BYTES, 0);
    for bytes in [data, &padded] {
        let Ok(slots) = KeySlots::parse(bytes) else { continue };
        assert!(slots.encode() == bytes, "what is taken is what would be written");
        assert!(slots.slots.iter().any(Option::is_some));
        for slot in slots.slots.iter().flatten() {
            slot.cost.check().unwrap();
            assert!(slot.label.len() <= 64);
        }
    }
}

/// The names of the members in [`mirror_records`].
pub const MEMBERS: [&str; 3] = ["a", "b", "c"];

/// Returns the bytes of a record of `members` members in [`mirror_records`]: one with 16 bytes of bitmaps.
pub const fn record_bytes(members: usize) -> usize {
    Record::bytes_of(members) + 16
}

/// Parses untrusted records in the labels beneath a mirror, one behind the other. Accepted ones have a single encoding.
/// A mirror that opens has a member in sync, and copies the others where they differ. The first byte selects the number
/// of members, the present ones, the trusted one, and whether the mirror may open degraded.
pub fn mirror_records(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let bit = |n: usize| first >> n & 1 == 1;
    let count = 2 + usize::from(bit(0));
    let mut records = data.chunks(record_bytes(count));
    let found: Vec<Found> = (0..count)
        .map(|n| {
            let bytes = records.next().map(<[u8]>::to_vec);
            let state = bytes.map(|bytes| StoredState { sequence: 1, bytes });
            Found { labelled: true, present: bit(1 + n), state, ..Found::default() }
        })
        .collect();
    for state in found.iter().filter_map(|found| found.state.as_ref()) {
        let Ok(record) = Record::decode(&state.bytes) else { continue };
        assert!(record.encode() == state.bytes, "a record has one form");
        assert!(record.generation.events <= CHANGE_MAX, "the next one has a number");
    }
    let members = Members {
        names: MEMBERS[..count].to_vec(),
        regions: Regions::new(100 << 10, 8 << 10).expect("13 regions"),
        found: found.iter().collect(),
        created: false,
        spares: 0,
        trust: bit(4).then_some(usize::from(first >> 5) % count),
        trusted_now: bit(0),
        may_degrade: bit(7),
    };
    let Ok(decision) = members.decide() else { return };
    let readable = |n: usize| decision.standings[n] == MemberState::InSync && found[n].present;
    assert!((0..count).any(readable), "a mirror opens over somebody: {decision:?}");
    assert!(decision.events <= CHANGE_MAX);
    assert!(decision.scrubbed.at.is_none_or(|at| at <= 100 << 10), "{decision:?}");
    for (standing, missing) in decision.standings.iter().zip(&decision.missing) {
        assert!(*standing != MemberState::InSync || missing.is_empty(), "{decision:?}");
        assert!(missing.next(13).is_none(), "{decision:?}");
    }
}

/// Parses an untrusted record of a migration. An accepted one has a single encoding, and its window is the next one.
pub fn migrate_records(data: &[u8]) {
    use kinds::migrate::record::{Record, WINDOW_MAX_BYTES};
    let Ok(record) = Record::decode(data) else { return };
    assert!(record.encode() == data, "what is taken is what would be written");
    assert!(record.boundary <= record.size);
    let Some(window) = record.window else { return };
    let edge = if record.back { window.range.end() } else { window.range.start() };
    assert!(edge == record.boundary && window.range.end() <= record.size);
    assert!(window.range.len() <= WINDOW_MAX_BYTES);
}

/// Parses an untrusted record of a remap. An accepted one has a single encoding, and its places lie at valid addresses.
pub fn remap_records(data: &[u8]) {
    use kinds::remap::record::Record;
    let Ok(record) = Record::decode(data) else { return };
    assert!(record.encode() == data, "what is taken is what would be written");
    let layout = record.layout;
    assert!(layout.size() > 0 && layout.range(layout.blocks - 1, 1).end() == layout.size());
    assert!(layout.places(layout.places - 1, 1).end() <= 1 << 62);
}

/// Parses the spec in an untrusted label. No setting of the machine comes from it, and no control character reaches a
/// message.
pub fn label_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let local =
        Local { keys: [("safe".to_owned(), "file:mine".to_owned())].into(), ..Local::default() };
    let spec = Spec::of_label(&text, "label of a", "home", kinds::REGISTRY, &local);
    assert!(spec.events_program().is_none() && spec.tls().is_none());
    for (device, source) in spec.keys(kinds::REGISTRY) {
        assert!(source == "ask" || (device, source) == ("safe", "file:mine"), "{device} {source}");
    }
    for (device, option, is_set) in spec.local_options(kinds::REGISTRY) {
        assert!(!is_set, "{} of {device} is the machine's", option.name);
    }
    let written = spec.to_text();
    assert!(!written.contains("\n[nbd]\n") && !written.contains("\n[events]\n"), "{written}");
    let shown = spec.faults().map(|faults| faults.to_string()).unwrap_or_default();
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
}
