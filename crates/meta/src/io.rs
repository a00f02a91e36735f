//! Requests of labels, vaults and logs to their disks: splits transfers at the limit of a disk, and waits for all parts
//! together.

use block::{Buf, ByteRange, Child, Lower, Op, Result, all};

/// Returns the length in bytes of the largest request to `lower`: its transfer limit, rounded down to whole blocks.
pub fn step(lower: &Lower) -> usize {
    let info = lower.info();
    (info.max_transfer - info.max_transfer % info.block_size) as usize
}

/// Starts the writes of `data` from byte `start` of `lower` on.
pub fn write_all(lower: &Lower, start: u64, data: &Buf) -> Vec<Child> {
    let step = step(lower);
    let part = |from: usize| {
        let to = data.len().min(from + step);
        let range = ByteRange::new(start + from as u64, (to - from) as u64);
        lower.start(Op::write(range.expect("a part has bytes"), data.slice(from..to)))
    };
    (0..data.len()).step_by(step).map(part).collect()
}

/// Waits for all started requests, even if one of them fails, and returns the error of the first that failed.
pub async fn all_of(begun: Vec<Child>) -> Result<()> {
    all(begun).await.into_iter().try_for_each(|done| done.result)
}
