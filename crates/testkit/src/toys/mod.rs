//! Small devices for tests of commands (a lock, an allocator, and a disk that stands for a remote disk) and of opening
//! volumes by name (a pool of two volumes). The registry of kinds does not have them.

mod allocator;
mod lock;
mod pool;
mod remote;

pub use allocator::{Allocate, Allocated, Allocator, Bytes, Release, UNIT_BYTES};
pub use lock::{Lock, Locker, Unlock};
pub use pool::{Pool, Volume};
pub use remote::Remote;
