//! Small devices for tests of commands: a lock, an allocator, and a remote disk in the same process; and a pool of two
//! volumes. They test how commands travel and how clients find volumes. They are no kinds.

mod allocator;
mod lock;
mod pool;
mod remote;

pub use allocator::{Allocate, Allocated, Allocator, Bytes, Release, UNIT_BYTES};
pub use lock::{Lock, Locker, Unlock};
pub use pool::{Pool, Volume};
pub use remote::Remote;
