//! What the fuzz targets run. `fuzz/` includes this file, and `fuzz_smoke.rs` runs every body over a few
//! thousand inputs in each `cargo test`.

use kinds::crypt::slots::{KeySlots, STATE_BYTES};

/// Key slots that anybody may have written: what is taken has one form, and stays within its limits.
pub fn keyslots(data: &[u8]) {
    // Most inputs have another length; the fuzzer is to get past that check.
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
