//! The vocabulary of Cairn and the contract of a device. This crate performs no I/O, reads no clock and needs no
//! runtime.
//!
//! A [`Device`] answers [`Request`]s on one address space of bytes. It reaches the devices below through [`Lower`],
//! and the world through [`Env`]. The guarantees of each operation are described at [`Device`].

pub mod answers;
mod buf;
mod check;
pub mod control;
mod copies;
mod deadline;
mod device;
mod emulate;
pub mod env;
mod error;
mod event;
mod fan;
pub mod findings;
mod flush_fault;
mod info;
pub mod job;
mod lower;
mod mutex;
mod notify;
mod patience;
mod range;
mod range_lock;
mod reason;
mod request;
mod secret;
pub mod seeded;
mod state_store;
mod table;
mod tasks;
#[cfg(test)]
mod test_world;
mod throttle;
pub mod units;
mod volumes;
mod window;

pub use buf::{BUF_ALIGN, BUF_MAX_BYTES, Buf, BufPool, Memory, Ref, RefMut, Reservation, is_zero};
pub use check::check;
pub use control::{
    Difference, Health, Job, JobState, Member, MemberState, Progress, ROWS_MAX, Report, Scrub,
    SpaceUse,
};
pub use copies::{COPIES_MAX, Copies, CopyNumbers};
pub use deadline::{Deadline, Guard};
pub use device::{Below, Device, Handover, Hooks, Push};
pub use emulate::{Blocks, Emulate};
pub use env::{Env, Mono};
pub use error::{Error, ErrorKind, Result};
pub use event::{EVENTS_MAX, Event, Events, Level, RecordedEvent, What};
pub use fan::{Fan, all};
pub use flush_fault::FlushFault;
pub use info::{Info, Needs};
pub use lower::{Child, ChildId, Core, Done, Lower, Started};
pub use mutex::Mutex;
pub use notify::{Notify, OneShot, ScopeGuard, TaskTracker, TrackedTask, Waiter, first};
pub use patience::{NO_SPACE_MAX, Patience};
pub use range::ByteRange;
pub use range_lock::{Locked, Locking, Mode, RangeLock};
pub use reason::Reason;
pub use request::{EXTENTS_MAX, Extent, Op, OpKind, Request, State, clip_extents, push_extent};
pub use secret::{KeySource, SECRET_BYTES_MAX, Secret, Wanted, while_hidden};
pub use state_store::{Found, NoStateStore, OnFailure, STATE_BYTES_MAX, StateStore, StoredState};
pub use table::{
    Fused, Origin, Place, Port, PortPath, Run, Runs, Segment, StatusMerge, Stripe, StripeTable,
    Table, TableError,
};
pub use tasks::TaskGroup;
pub use throttle::{
    BUSY_SHARE, ClientGuard, LEAST_BYTES_PER_S, STEP_BYTES_MAX, STEP_BYTES_MIN, Step, Throttle,
};
pub use volumes::{
    OpenMode, OpenedVolume, VOLUME_NAME_MAX_BYTES, VolumeEntry, VolumeFacts, VolumeId, Volumes,
    VolumesVisitor,
};
pub use window::Window;
