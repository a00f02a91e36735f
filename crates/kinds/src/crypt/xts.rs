//! AES-256-XTS, by the library AWS-LC. No key leaves locked memory: the contexts of the library, which contain the key
//! schedules, lie in a [`Secret`].
//!
//! One of the few files with unsafe code: the calls into the library, and the use of a buffer's bytes by a worker
//! thread.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use aws_lc_sys as lc;
use block::seeded::{self, Bug};
use block::{Buf, Env, Error, ErrorKind, Result, Secret, error};

/// Bytes of an AES-256-XTS key: one half for the data, one for the tweak.
pub const KEY_BYTES: usize = 64;

/// Bytes of a sector, the unit in which tweaks count. The tweak of a data unit is the number of its first 512-byte
/// sector, whatever the length of the data unit, as with `plain64` in dm-crypt.
const TWEAK_UNIT_BYTES: u64 = 512;

/// Bytes of locked memory for the two contexts of a cipher: one encrypts, the other decrypts.
const PAGE: usize = 4096;
const CONTEXT_ROOM: usize = PAGE / 2;
/// Offset in bytes of the key schedules in the memory of a context. The key schedules reach to the end of that memory.
const SCHEDULES_AT: usize = 256;

/// The direction in which a cipher works: encryption or decryption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Encrypt,
    Decrypt,
}

/// An AES-256-XTS cipher with its expanded key, for use by one thread at a time.
pub struct Cipher {
    page: Secret,
    unit: usize,
    zeros_stay: bool,
}

impl Cipher {
    /// Returns a cipher with the key `key` of [`KEY_BYTES`] bytes; `unit` is the length of a data unit in bytes.
    ///
    /// If `zeros_stay`, each sector of zeros decrypts to zeros. A discard leaves such sectors, while encryption
    /// produces one only by a chance of 2^-4096. A discard that a power cut interrupts may leave zeros in only a part
    /// of a data unit.
    ///
    /// # Errors
    /// `Denied` for a key with equal halves, which would weaken XTS; `Limit` if no memory can be locked.
    pub fn new(key: &[u8], unit: u32, zeros_stay: bool) -> Result<Self> {
        assert_eq!(key.len(), KEY_BYTES, "the key source checked the length of the key");
        let (data, tweak) = key.split_at(KEY_BYTES / 2);
        if data == tweak {
            let why = "the two halves of the key are equal, which makes XTS weak";
            return Err(Error::new(ErrorKind::Denied, why).next("use a key of 64 random bytes"));
        }
        let mut cipher = Self { page: Secret::zeroed(PAGE)?, unit: unit as usize, zeros_stay };
        for way in [Way::Encrypt, Way::Decrypt] {
            cipher.prepare(way, key);
        }
        Ok(cipher)
    }

    fn context(&mut self, way: Way) -> *mut lc::EVP_CIPHER_CTX {
        let at = match way {
            Way::Encrypt => 0,
            Way::Decrypt => CONTEXT_ROOM,
        };
        const { assert!(size_of::<lc::EVP_CIPHER_CTX>() <= SCHEDULES_AT) };
        self.page.bytes_mut()[at..at + CONTEXT_ROOM].as_mut_ptr().cast()
    }

    fn prepare(&mut self, way: Way, key: &[u8]) {
        let context = self.context(way);
        let encrypt = c_int::from(way == Way::Encrypt);
        // SAFETY: the context lies at a multiple of 2048 bytes, in room of its own that does not move. It gets the
        // cipher first, without a key, and the library allocates room for the schedules on the heap. That room is
        // replaced by the rest of ours, which is zeroed as the library leaves its own before there is a key. A test
        // checks how much of it the library writes. Only then the context gets the key.
        let ready = unsafe {
            lc::EVP_CIPHER_CTX_init(context);
            let cipher = lc::EVP_aes_256_xts();
            let begun = lc::EVP_CipherInit_ex(context, cipher, null_mut(), null(), null(), encrypt);
            lc::OPENSSL_free((*context).cipher_data);
            (*context).cipher_data = context.cast::<u8>().add(SCHEDULES_AT).cast();
            let tweak = [0; 16];
            begun == 1
                && lc::EVP_CipherInit_ex(
                    context,
                    null(),
                    null_mut(),
                    key.as_ptr(),
                    tweak.as_ptr(),
                    encrypt,
                ) == 1
        };
        assert!(ready, "the library takes a key of the right length with unequal halves");
    }

    /// Encrypts or decrypts `from` into `to`, of the same length. The bytes are complete data units, the first of which
    /// begins at byte `offset` of the device.
    pub fn apply(&mut self, way: Way, offset: u64, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "input and output of the cipher have the same length");
        // SAFETY: both slices have this length, and a unique slice overlaps no other.
        unsafe { self.apply_at(way, offset, from.as_ptr(), to.as_mut_ptr(), to.len()) }
    }

    /// Encrypts or decrypts `bytes` in place. The bytes are complete data units, the first of which begins at byte
    /// `offset` of the device.
    pub fn apply_in_place(&mut self, way: Way, offset: u64, bytes: &mut [u8]) {
        let (at, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: one slice; XTS reads a block before it writes it.
        unsafe { self.apply_at(way, offset, at, at, len) }
    }

    /// # Safety
    /// `from` is valid for reads and `to` for writes of `len` bytes. The two ranges are equal, or do not overlap.
    unsafe fn apply_at(&mut self, way: Way, offset: u64, from: *const u8, to: *mut u8, len: usize) {
        assert!(len.is_multiple_of(self.unit), "{len} bytes are not whole data units");
        let context = self.context(way);
        let mut tweak = [0; 16];
        for at in (0..len).step_by(self.unit) {
            let mut zeros = Zeros(0);
            if self.zeros_stay && way == Way::Decrypt {
                // SAFETY: `len` bytes are whole units, so the unit at `at` is inside; nothing writes to the unit
                // meanwhile.
                zeros = Zeros::of(unsafe { std::slice::from_raw_parts(from.add(at), self.unit) });
            }
            let unit_at = if seeded::on(Bug::TweakOnce) { 0 } else { at as u64 };
            let sector = (offset + unit_at) / TWEAK_UNIT_BYTES;
            tweak[..8].copy_from_slice(&sector.to_le_bytes());
            let mut done = 0;
            // SAFETY: the context was prepared; its key stays when only a tweak is set. The bytes are whole units, as
            // checked above, so the unit at `at` is inside.
            let worked = unsafe {
                lc::EVP_CipherInit_ex(context, null(), null_mut(), null(), tweak.as_ptr(), -1) == 1
                    && lc::EVP_CipherUpdate(
                        context,
                        to.add(at),
                        &raw mut done,
                        from.add(at),
                        self.unit as c_int,
                    ) == 1
            };
            assert!(worked && done as usize == self.unit, "XTS takes units of 16 bytes or more");
            for piece in zeros.pieces() {
                // SAFETY: 512 bytes of that unit. They may be the same bytes as were read.
                unsafe { to.add(at + piece * PIECE).write_bytes(0, PIECE) };
            }
        }
    }
}

/// Bytes of a sector, the unit that a disk writes atomically.
const PIECE: usize = 512;

/// A bitmap of the sectors of a data unit that are zeros. A unit has at most 65536 bytes.
#[derive(Clone, Copy)]
struct Zeros(u128);

impl Zeros {
    fn of(unit: &[u8]) -> Self {
        let zeros = unit.chunks(PIECE).map(block::is_zero);
        Self(zeros.rev().fold(0, |bits, zero| bits << 1 | u128::from(zero)))
    }

    fn pieces(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let piece = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(piece)
        })
    }
}

/// A job of a worker thread: the bytes to encrypt or decrypt, in buffers that a [`Lender`] keeps.
struct Loan {
    way: Way,
    offset: u64,
    from: *const u8,
    to: *mut u8,
    len: usize,
}

// SAFETY: only the job uses the pointers, and the buffers behind them live until it has ended: see `Lender`.
unsafe impl Send for Loan {}

/// The result of a job, set when the job has ended or will never begin. The inner `None` means that the job lost its
/// cipher.
#[derive(Default)]
struct Back {
    ended: Mutex<Option<Option<Cipher>>>,
    told: Condvar,
}

/// The worker thread's end of a job. Dropping this value sets the result of the job, however the job ends.
struct Borrower {
    back: Arc<Back>,
    cipher: Option<Cipher>,
}

impl Drop for Borrower {
    fn drop(&mut self) {
        let mut ended = self.back.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended = Some(self.cipher.take());
        self.back.told.notify_all();
    }
}

/// The reactor thread's end of a job. Keeps the buffers until the job has ended.
struct Lender {
    back: Arc<Back>,
    _from: Buf,
    _to: Buf,
}

impl Lender {
    fn wait(&self) -> Option<Cipher> {
        let ended = self.back.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = self
            .back
            .told
            .wait_while(ended, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        // Leave `ended` set, so that the wait in `drop` returns at once.
        ended.replace(None).flatten()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // If the future is dropped during the job, this wait blocks the thread: at most a few milliseconds, for the
        // longest request.
        self.wait();
    }
}

/// Runs [`Cipher::apply`] on a worker thread, from one buffer into another of the same length or in place, and returns
/// the cipher.
///
/// # Errors
/// `Faulted` if the job ended without its cipher, which is a bug.
pub async fn apply_elsewhere(
    env: &Env,
    cipher: Cipher,
    (way, offset): (Way, u64),
    (from, to): (Buf, Buf),
) -> Result<Cipher> {
    let apart = from.as_ptr().addr().abs_diff(to.as_ptr().addr());
    assert!(
        from.same(&to) || from.len() == to.len() && apart >= to.len(),
        "the two buffers are the same or do not overlap"
    );
    let loan = Loan { way, offset, from: from.as_ptr(), to: to.as_ptr(), len: to.len() };
    let back = Arc::<Back>::default();
    let mut borrower = Borrower { back: back.clone(), cipher: Some(cipher) };
    let lender = Lender { back, _from: from, _to: to };
    env.work(move || {
        let Loan { way, offset, from, to, len } = { loan };
        if let Some(cipher) = &mut borrower.cipher {
            // SAFETY: the lender holds both buffers, so their bytes stay until the borrower is dropped at the end of
            // this job. Nothing writes to the payload of a request below its export, and nothing else uses the target
            // buffer, as with a buffer that the kernel fills. Buffers of different blocks do not overlap; slices of one
            // block are the same bytes here.
            unsafe { cipher.apply_at(way, offset, from, to, len) };
        }
    })
    .await;
    let cipher = lender.wait();
    cipher.ok_or_else(|| error!(Faulted, "the worker thread lost its cipher"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = {
        let mut key = [0; KEY_BYTES];
        let mut n = 0;
        while n < KEY_BYTES {
            key[n] = n as u8;
            n += 1;
        }
        key
    };

    #[test]
    fn cipher_key_schedules_fit_reserved_memory() {
        let mut cipher = Cipher::new(&KEY, 4096, false).unwrap();
        let mut bytes = vec![7; 8192];
        cipher.apply_in_place(Way::Encrypt, 0, &mut bytes);
        cipher.apply_in_place(Way::Decrypt, 0, &mut bytes);
        assert_eq!(bytes, vec![7; 8192]);
        for room in cipher.page.bytes().chunks(CONTEXT_ROOM) {
            let last = room.iter().rposition(|byte| *byte != 0).unwrap();
            assert!(last < CONTEXT_ROOM - 512, "{last} of {CONTEXT_ROOM} bytes are in use");
            // The first round keys are the key itself: finding it here proves that the schedules are here, and so
            // nowhere else.
            let schedules = &room[SCHEDULES_AT..];
            assert!(schedules.windows(32).any(|window| window == &KEY[32..]));
        }
    }

    #[test]
    fn cipher_rejects_key_with_equal_halves() {
        let refused = Cipher::new(&[3; KEY_BYTES], 512, false).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied);
    }

    #[test]
    fn decrypt_keeps_discarded_zeros_of_partial_unit() {
        let plain: Vec<u8> = (0..65536_u32).map(|n| (n / 256 + 1) as u8).collect();
        for unit in [512, 4096, 65536] {
            let mut cipher = Cipher::new(&KEY, unit, true).unwrap();
            let mut bytes = plain.clone();
            cipher.apply_in_place(Way::Encrypt, 0, &mut bytes);
            let mut expected = plain.clone();
            for gone in [0..512, 4096..8192, 9216..9728, 65024..65536] {
                bytes[gone.clone()].fill(0);
                expected[gone].fill(0);
            }
            cipher.apply_in_place(Way::Decrypt, 0, &mut bytes);
            assert!(bytes == expected, "in units of {unit}");
        }
    }

    #[test]
    fn data_units_are_encrypted_with_separate_tweaks() {
        let mut cipher = Cipher::new(&KEY, 512, false).unwrap();
        let mut whole = vec![0; 4096];
        cipher.apply_in_place(Way::Encrypt, 1 << 40, &mut whole);
        for (n, unit) in whole.chunks(512).enumerate() {
            let mut alone = [0; 512];
            cipher.apply(Way::Encrypt, (1 << 40) + n as u64 * 512, &[0; 512], &mut alone);
            assert_eq!(alone, unit);
        }
        assert!(whole.chunks(512).skip(1).all(|unit| unit != &whole[..512]));
    }

    #[test]
    fn ciphertext_matches_dm_crypt() {
        let key: Vec<u8> = (0..64_u32).map(|n| (37 * n + 11) as u8).collect();
        let vectors = include_str!("vectors/plain64.txt");
        let mut seen = 0;
        for line in vectors.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let mut number = || words.next().unwrap().parse::<u64>().unwrap();
            let (unit, sector) = (number(), number());
            let plain: Vec<u8> = (0..unit).map(|n| (7 * n + sector) as u8).collect();
            let mut bytes = plain.clone();
            let mut cipher = Cipher::new(&key, unit as u32, false).unwrap();
            cipher.apply_in_place(Way::Encrypt, sector * 512, &mut bytes);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(Some(hex.as_str()), words.next(), "{unit} {sector}");
            cipher.apply_in_place(Way::Decrypt, sector * 512, &mut bytes);
            assert_eq!(bytes, plain);
            seen += 1;
        }
        assert_eq!(seen, 7);
    }
}
