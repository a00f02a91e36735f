//! Reads the memory of a running process, to search it for secrets.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Returns the bytes of each readable memory mapping of the process `pid`. The flag of a mapping says whether the
/// mapping is locked in memory and excluded from core dumps.
pub fn memory(pid: u32) -> Vec<(bool, Vec<u8>)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mem = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut all = Vec::new();
    let mut bytes = Vec::new();
    for line in maps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| flags.split(' ').any(|one| one == flag);
            all.push((has("lo") && has("dd"), std::mem::take(&mut bytes)));
        } else if let Some((from, to)) =
            line.split(' ').next().and_then(|word| word.split_once('-'))
        {
            let parse = |text| u64::from_str_radix(text, 16);
            let (Ok(from), Ok(to)) = (parse(from), parse(to)) else { continue };
            bytes = vec![0; (to - from) as usize];
            // Mappings that cannot be read hold no secret: rings of the kernel, guard pages.
            if mem.read_exact_at(&mut bytes, from).is_err() {
                bytes.clear();
            }
        }
    }
    all
}

/// Whether `secret` occurs anywhere in `bytes`.
pub fn holds(bytes: &[u8], secret: &[u8]) -> bool {
    find(bytes, secret).is_some()
}

/// Returns the offset of the first occurrence of `secret` in `bytes`.
pub fn find(bytes: &[u8], secret: &[u8]) -> Option<usize> {
    // Most chunks are zeros. Each of these is skipped in one step.
    const STEP: usize = 4096;
    (0..bytes.len()).step_by(STEP).find_map(|at| {
        let chunk = &bytes[at..bytes.len().min(at + STEP + secret.len() - 1)];
        if is_zero(chunk) {
            return None;
        }
        chunk.windows(secret.len()).position(|window| window == secret).map(|within| at + within)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 8192] = [0; 8192];
    *bytes == ZEROS[..bytes.len()]
}
