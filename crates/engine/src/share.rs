//! Shares: the slots and buffers that the requests of one export, or of one client, have reserved. The engine compares
//! them with the rest, so that no export and no client keeps the others waiting.

use std::cell::Cell;

use block::BufPool;

/// The slots and buffers that the admitted requests of one export, or of one client, have reserved.
///
/// A further request is admitted while the share, with this request, does not exceed the free resources. So n exports
/// under load use n / (n + 1) of the resources at most, in equal parts, and a request of another export is admitted at
/// once.
#[derive(Default, Debug)]
pub struct Share {
    slots: Cell<i64>,
    bytes: Cell<usize>,
}

/// The slots and the bytes of the buffer pool that one request needs.
#[derive(Clone, Copy, Default)]
pub(super) struct Need {
    pub slots: i64,
    pub bytes: usize,
}

impl Share {
    /// Whether a request that needs `need` may be added while `slots` and `bytes` are free. A share without requests
    /// always has room for one.
    fn has_room(&self, need: Need, slots: i64, bytes: usize) -> bool {
        let (used, reserved) = (self.slots.get(), self.bytes.get());
        used == 0
            || used + need.slots <= slots
                && (need.bytes == 0 || reserved == 0 || reserved + need.bytes <= bytes)
    }

    pub(super) fn add(&self, need: Need) {
        self.slots.set(self.slots.get() + need.slots);
        self.bytes.set(self.bytes.get() + need.bytes);
    }

    pub(super) fn subtract(&self, need: Need) {
        self.slots.set(self.slots.get() - need.slots);
        self.bytes.set(self.bytes.get() - need.bytes);
    }
}

/// Whether a request that needs `need` may begin while `slots` are free in the engine, beside the requests of the
/// `shares` to which it would belong. `is_idle` is whether the engine has no request of a client: then the request may
/// use all of `pool`.
pub(super) fn may_begin(
    need: Need,
    slots: i64,
    pool: &BufPool,
    is_idle: bool,
    shares: [Option<&Share>; 2],
) -> bool {
    if slots < need.slots {
        return false;
    }
    let bytes = if is_idle { pool.free_bytes() } else { pool.free_for_clients() };
    (need.bytes == 0 || need.bytes <= bytes)
        && shares.into_iter().flatten().all(|share| share.has_room(need, slots, bytes))
}
