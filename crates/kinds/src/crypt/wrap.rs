//! Wraps the volume key with a passphrase: Argon2id and AES-256-GCM, in the format of `slots.rs`.
//!
//! Wrapping and unwrapping run on a worker thread: a key derivation takes a second and hundreds of MiB, on purpose.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{constant_time, hmac};
use block::{Result, Secret, bail, error, while_hidden};
use zeroize::Zeroize;

use super::slots::{Cost, KeySlots, SLOTS, Slot};
use super::xts::KEY_BYTES;

const WRAPPING_KEY_BYTES: usize = 32;

/// The random parts of a new key slot, its cost and its label.
pub struct NewSlot {
    pub cost: Cost,
    pub salt: [u8; 32],
    pub nonce: [u8; 12],
    pub made_unix_s: u64,
    pub label: String,
}

/// Returns the state of a new encrypted device with the volume key `key`, and without a key slot.
pub fn new_volume(unit: u32, volume_id: [u8; 16], key: &Secret) -> KeySlots {
    let slots = [const { None }; SLOTS];
    let mut volume = KeySlots { unit, volume_id, check: [0; 32], slots };
    volume.check = check_of(&volume, key.bytes());
    volume
}

/// Whether `key` is the volume key of the device with this state.
pub fn is_key(volume: &KeySlots, key: &Secret) -> bool {
    let check = check_of(volume, key.bytes());
    constant_time::verify_slices_are_equal(&check, &volume.check).is_ok()
}

fn check_of(volume: &KeySlots, key: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &volume.head());
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Wraps the volume key `key` with a passphrase, and returns the new key slot.
///
/// # Errors
/// `Limit` if the machine has too little free memory for the key derivation.
pub fn wrap(volume: &KeySlots, key: &Secret, passphrase: &Secret, new: NewSlot) -> Result<Slot> {
    let NewSlot { cost, salt, nonce, made_unix_s, label } = new;
    let (wrapped, tag) = ([0; 64], [0; 16]);
    let mut slot = Slot { cost, made_unix_s, salt, nonce, wrapped, tag, label };
    let wrapping = wrapping_key(&slot, passphrase)?;
    let mut bytes = Secret::copy_of(key.bytes())?;
    let (nonce, covered) = (Nonce::assume_unique_for_key(nonce), Aad::from(volume.bound(&slot)));
    let tag = wrapping
        .seal_in_place_separate_tag(nonce, covered, bytes.bytes_mut())
        .map_err(|_| error!(Faulted, "wrapping the volume key failed"))?;
    slot.tag.copy_from_slice(tag.as_ref());
    slot.wrapped.copy_from_slice(bytes.bytes());
    Ok(slot)
}

/// Returns the volume key, and the number of the key slot that the passphrase opens; `None` if the passphrase opens no
/// key slot.
///
/// # Errors
/// `Limit` if the machine has too little free memory for the key derivation; `Corrupt` if the passphrase opens a key
/// slot that holds the key of another volume.
pub fn unwrap(volume: &KeySlots, passphrase: &Secret) -> Result<Option<(Secret, usize)>> {
    for (number, slot) in volume.slots.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let Some(key) = open(volume, slot, passphrase)? else { continue };
        if !is_key(volume, &key) {
            bail!(Corrupt, "key slot {number} opens, but holds the key of another volume");
        }
        return Ok(Some((key, number)));
    }
    Ok(None)
}

fn open(volume: &KeySlots, slot: &Slot, passphrase: &Secret) -> Result<Option<Secret>> {
    let wrapping = wrapping_key(slot, passphrase)?;
    let mut sealed = Secret::zeroed(slot.wrapped.len() + slot.tag.len())?;
    let (wrapped, tag) = sealed.bytes_mut().split_at_mut(slot.wrapped.len());
    wrapped.copy_from_slice(&slot.wrapped);
    tag.copy_from_slice(&slot.tag);
    let nonce = Nonce::assume_unique_for_key(slot.nonce);
    let covered = Aad::from(volume.bound(slot));
    if wrapping.open_in_place(nonce, covered, sealed.bytes_mut()).is_err() {
        return Ok(None);
    }
    sealed.truncate(KEY_BYTES);
    Ok(Some(sealed))
}

fn wrapping_key(slot: &Slot, passphrase: &Secret) -> Result<LessSafeKey> {
    let mut derived = Secret::zeroed(WRAPPING_KEY_BYTES)?;
    derive(slot, passphrase.bytes(), derived.bytes_mut())?;
    let key = UnboundKey::new(&AES_256_GCM, derived.bytes());
    Ok(LessSafeKey::new(key.expect("a key of 32 bytes is what AES-256 takes")))
}

fn derive(slot: &Slot, passphrase: &[u8], into: &mut [u8]) -> Result<()> {
    let Cost { memory_kib, passes, lanes } = slot.cost;
    let params = Params::new(memory_kib, passes, lanes, Some(into.len()));
    let params = params.expect("the limits of the format are within those of Argon2");
    let mut memory: Vec<Block> = Vec::new();
    if memory.try_reserve_exact(params.block_count()).is_err() {
        return Err(error!(Limit, "the key derivation needs {memory_kib} KiB of free memory")
            .next("free memory, or open the volume on a machine with more memory"));
    }
    memory.resize(params.block_count(), Block::default());
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    while_hidden(&mut memory, |memory| {
        argon2
            .hash_password_into_with_memory(passphrase, &slot.salt, into, &mut *memory)
            .expect("all lengths are within the limits of Argon2");
        memory.iter_mut().for_each(Zeroize::zeroize);
    });
    wipe_stack();
    Ok(())
}

/// Overwrites the stack of the calling thread, where Argon2 leaves a part of the passphrase.
#[inline(never)]
fn wipe_stack() {
    let mut deep = [0_u8; 64 << 10];
    deep.zeroize();
    std::hint::black_box(&deep);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Cost = Cost { memory_kib: 64, passes: 1, lanes: 1 };

    fn secret(bytes: &[u8]) -> Secret {
        Secret::copy_of(bytes).unwrap()
    }

    fn new(label: &str) -> NewSlot {
        let label = label.to_owned();
        NewSlot { cost: CHEAP, salt: [7; 32], nonce: [8; 12], made_unix_s: 0, label }
    }

    fn volume() -> (KeySlots, Secret) {
        let key = secret(&[0x5a; 64]);
        let mut volume = new_volume(4096, [1; 16], &key);
        volume.slots[2] = Some(wrap(&volume, &key, &secret(b"one"), new("first")).unwrap());
        volume.slots[5] = Some(wrap(&volume, &key, &secret(b"two"), new("")).unwrap());
        (volume, key)
    }

    #[test]
    fn passphrase_opens_only_own_key_slot() {
        let (volume, key) = volume();
        let opened = |passphrase| unwrap(&volume, &secret(passphrase)).unwrap();
        for (passphrase, slot) in [(b"one", 2), (b"two", 5)] {
            let (found, number) = opened(passphrase).unwrap();
            assert!(found.same(&key));
            assert_eq!(number, slot);
        }
        assert!(opened(b"three").is_none());
        assert!(opened(b"One").is_none());
    }

    #[test]
    fn key_slot_with_flipped_bit_does_not_open() {
        let whole = volume().0.encode();
        let mut opened = 0;
        // Change one bit in every byte that carries information in the header and in the slot.
        for at in (0..72).chain(192 + 2 * 256..192 + 2 * 256 + 160) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            let Ok(volume) = KeySlots::parse(&bytes) else { continue };
            if volume.slots[2].as_ref().is_none_or(|slot| slot.cost.memory_kib > 1 << 16) {
                continue;
            }
            opened += 1;
            assert!(unwrap(&volume, &secret(b"one")).unwrap().is_none(), "byte {at}");
        }
        assert!(opened > 150, "{opened} changes were tried");
    }

    #[test]
    fn key_slot_of_another_volume_does_not_open() {
        let (volume, key) = volume();
        let mut other = new_volume(4096, [2; 16], &key);
        other.slots[2] = volume.slots[2].clone();
        assert!(unwrap(&other, &secret(b"one")).unwrap().is_none());
    }

    /// Checks against a value computed by OpenSSL. The vector of RFC 9106 has a secret and associated data, which are
    /// not used here.
    #[test]
    fn key_derivation_matches_argon2id_value_of_openssl() {
        let slot = Slot {
            cost: Cost { memory_kib: 64, passes: 3, lanes: 1 },
            made_unix_s: 0,
            salt: *b"0123456789abcdef0123456789abcdef",
            nonce: [0; 12],
            wrapped: [0; 64],
            tag: [0; 16],
            label: String::new(),
        };
        let mut derived = [0; 32];
        derive(&slot, b"correct horse", &mut derived).unwrap();
        assert_eq!(hex(&derived), include_str!("vectors/argon2id.hex").trim());
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
