//! How random graphs of the simulator draw `crypt` devices, and how the fuzzer checks key slots from disks.

use block::Result;
use kind::Value;
use kind::testing::{Drawing, PartId, Records, Testing};

use super::slots::{Cost, KeySlots, SLOTS, STATE_BYTES, Slot};

pub const TESTING: Testing = Testing { records: &[KEY_SLOTS], ..Testing::drawn(draw) };

fn draw(drawing: &mut dyn Drawing, depth: u32) -> Result<PartId> {
    if !drawing.may_scramble() {
        return crate::pass::testing::draw(drawing, depth);
    }
    let lower = drawing.device(depth)?;
    let discards = drawing.below(2) == 0;
    // Each has its own key. With one key for two devices, the second could get zeros encrypted by the first,
    // and would store zeros on its disk.
    let key = format!("file:/key{}", drawing.count());
    let options = vec![
        ("key", Value::Text(key)),
        ("plain", Value::Switch(true)),
        ("discards", Value::Switch(discards)),
    ];
    drawing.add(&super::KIND, options, &[lower])
}

const KEY_SLOTS: Records =
    Records { name: "key slots", valid: || (1..=SLOTS).map(key_slots).collect(), check };

/// Returns a valid key slot with fixed content.
pub(crate) fn slot() -> Slot {
    Slot {
        cost: Cost { memory_kib: 262_144, passes: 4, lanes: 1 },
        made_unix_s: 1_700_000_000,
        salt: [1; 32],
        nonce: [2; 12],
        wrapped: [3; 64],
        tag: [4; 16],
        label: "laptop".to_owned(),
    }
}

fn key_slots(used: usize) -> Vec<u8> {
    let slots = std::array::from_fn(|n| (n < used).then(slot));
    KeySlots { unit: 4096, volume_id: [5; 16], check: [6; 32], slots }.encode()
}

/// Parses untrusted key slots. Accepted slots must encode to the same bytes, and their costs must be within the limits.
/// Returns whether the bytes were accepted.
fn check(data: &[u8]) -> bool {
    // Most inputs have another length; the padded input passes that check.
    let mut padded = data.to_vec();
    padded.resize(STATE_BYTES, 0);
    for bytes in [data, &padded] {
        let Ok(slots) = KeySlots::parse(bytes) else { continue };
        assert!(slots.encode() == bytes, "accepted bytes are those that would be written");
        assert!(slots.slots.iter().any(Option::is_some));
        for slot in slots.slots.iter().flatten() {
            slot.cost.check().unwrap();
            assert!(slot.label.len() <= 64);
        }
    }
    KeySlots::parse(data).is_ok()
}
