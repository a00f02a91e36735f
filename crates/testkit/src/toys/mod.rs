//! Small devices for tests of commands (a lock, an allocator, and a disk that stands for a remote disk), and a kind
//! that holds volumes. The registry of kinds does not have them.

mod allocator;
mod lock;
mod remote;
mod shelf;

pub use allocator::{Allocate, Allocated, Allocator, Bytes, Release, UNIT_BYTES};
pub use lock::{Lock, Locker, Unlock};
pub use remote::Remote;
pub use shelf::{SHELF, SLOT_BYTES, Shelf, ShelfVolume, Snap, SnapArgs};
