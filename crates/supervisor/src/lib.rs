//! The part of a daemon that outlives the process that serves a graph. It holds the descriptors and the local
//! state of the graph, and starts the next process.
//!
//! | file | holds |
//! | --- | --- |
//! | `record.rs` | the file of a graph's local state (`docs/formats/state.md`) |
//! | `state.rs` | the directory of such files, and its lock |
//! | `notify_message.rs` | the messages of a worker, in systemd's format (`docs/formats/keeper.md`) |
//! | `notify_socket.rs` | the socket that receives them |
//! | `events.rs` | the programs that run for its events |
//! | `held.rs` | the descriptors that are held for the next worker |
//! | `worker_lock.rs` | the lock of the worker of a graph |
//! | `worker.rs` | one process, from its start until it is completely gone |
//! | `pace.rs` | the pause before the next one |
//! | `keep.rs` | one graph: starts its worker, receives its messages, starts it again |
//!
//! This crate does not know the content of a graph, and opens no disk.
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
pub use state::{Entry, State, file_in};
pub use worker_lock::{LockHolder, WorkerLock};
