//! What the fuzz target runs. `fuzz/` includes this file, and `fuzz_smoke.rs` runs it over a few
//! thousand inputs in each `cargo test`.

use meta::Label;

/// Bytes where the checksum of a copy stands.
const CHECKSUM: std::ops::Range<usize> = 12..16;

/// As it is, and with the checksum that it would need: so the values behind it are reached, too. What
/// is understood is written again as it was read.
pub fn label(data: &[u8]) {
    let _ = meta::find(data, data);
    check(data);
    let mut sealed = data.to_vec();
    if sealed.len() < meta::HEADER_BYTES {
        return;
    }
    sealed[..8].copy_from_slice(&meta::MAGIC);
    let length = sealed.len().min(meta::COPY_BYTES_MAX);
    sealed[16..20].copy_from_slice(&(length as u32).to_le_bytes());
    let sum = meta::checksum(&sealed[..length]);
    sealed[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    check(&sealed);
}

fn check(data: &[u8]) {
    let Ok(label) = Label::decode(data) else { return };
    let again = label.encode().expect("what was read is within the limits");
    assert_eq!(Label::decode(&again), Ok(label));
}
