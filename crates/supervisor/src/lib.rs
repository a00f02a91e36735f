//! What outlives the process that serves a graph: its descriptors, its place on this machine, and who
//! starts the next one.
//!
//! | file | holds |
//! | --- | --- |
//! | `record.rs` | the file that says what is local of a graph (`docs/formats/state.md`) |
//! | `state.rs` | the directory of such files, and its lock |
//! | `notify_message.rs` | what a worker says, as systemd would hear it (`docs/formats/keeper.md`) |
//! | `notify_socket.rs` | the socket where it is heard |
//! | `events.rs` | programs that are run for its events |
//! | `held.rs` | the descriptors that are held for the next worker |
//! | `worker_lock.rs` | who is the worker of a graph |
//! | `worker.rs` | one process, from its start until it is wholly gone |
//! | `pace.rs` | how long to wait before the next one |
//! | `keep.rs` | one graph: started, heard, started again |
//!
//! Nothing here knows a graph, opens a disk or does I/O on one.
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
pub use worker_lock::{Sat, WorkerLock};
