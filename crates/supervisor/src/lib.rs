//! The part of a daemon that outlives the worker processes of a graph. It holds the descriptors and the local state
//! of the graph, and starts the next worker.
//!
//! | file | holds |
//! | --- | --- |
//! | `record.rs` | the file with a graph's local state (`docs/formats/daemon-state.md`) |
//! | `state.rs` | the directory of such files, and its lock |
//! | `notify_message.rs` | the messages of a worker, in systemd's format (`docs/formats/keeper.md`) |
//! | `notify_socket.rs` | the socket on which the daemon receives these messages |
//! | `events.rs` | the programs that the daemon runs for events of a graph |
//! | `held.rs` | the descriptors that the daemon holds for the next worker |
//! | `worker_lock.rs` | the lock that a worker of a graph holds |
//! | `worker.rs` | a worker process, from its start until its last thread has ended |
//! | `spare.rs` | descriptors in reserve for the start of a worker |
//! | `pace.rs` | the pause before the next worker is started |
//! | `keep.rs` | the supervision of one graph: starts its workers and receives their messages |
//!
//! This crate does not know the content of a graph's spec, and opens no disk.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "control-plane work: processes, sockets and small files, not below an Env"
)]

mod events;
mod held;
mod keep;
mod notify_message;
mod notify_socket;
mod pace;
mod record;
mod spare;
mod state;
mod worker;
mod worker_lock;

pub use events::Run;
pub use held::Held;
pub use keep::{Ended, Kept, Left, Phase, Start, WATCHDOG, WorkerSpec, WorkerStatus};
pub use notify_message::{EVENT, Event, FAILURE, LASTING, NotifyMessage, RENEWED, WORDS_MAX_BYTES};
pub use notify_socket::NotifySocket;
pub use pace::{GIVE_UP_AFTER, PAUSE_MAX, Pace};
pub use record::{Options, RECORD_MAX_BYTES, Record, Source, VERSION};
pub use spare::SpareDescriptors;
pub use state::{Entry, State, file_in};
pub use worker_lock::{LockHolder, WorkerLock};
