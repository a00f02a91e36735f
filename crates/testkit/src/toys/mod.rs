//! Small devices that know commands: a lock, an allocator, and a remote disk in the same process. They are judges of how
//! commands travel, and no kinds.

mod allocator;
mod lock;
mod remote;

pub use allocator::{Allocate, Allocated, Allocator, Bytes, Release, UNIT_BYTES};
pub use lock::{Lock, Locker, Unlock};
pub use remote::Remote;
