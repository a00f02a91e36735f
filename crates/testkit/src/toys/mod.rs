//! Small devices for tests of commands: a lock, an allocator, and a remote disk in the same process. And a pool of two
//! volumes for tests of catalogues. These devices are no kinds, so a spec cannot have them.

mod allocator;
mod lock;
mod pool;
mod remote;

pub use allocator::{Allocate, Allocated, Allocator, Bytes, Release, UNIT_BYTES};
pub use lock::{Lock, Locker, Unlock};
pub use pool::{Pool, Volume};
pub use remote::Remote;
