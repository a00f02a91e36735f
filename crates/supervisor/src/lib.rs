//! What outlives the process that serves a graph: its descriptors, its place on this machine, and who
//! starts the next one.
//!
//! | file | holds |
//! | --- | --- |
//! | `record.rs` | the file that says what is local of a graph (`docs/formats/state.md`) |
//! | `state.rs` | the directory of such files, and its lock |
//! | `words.rs` | what a worker says, as systemd would hear it (`docs/formats/keeper.md`) |
//! | `ear.rs` | the socket where it is heard |
//! | `events.rs` | programs that are run for its events |
//! | `held.rs` | the descriptors that are held for the next worker |
//! | `seat.rs` | who is the worker of a graph |
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

mod ear;
mod events;
mod held;
mod keep;
mod pace;
mod record;
mod seat;
mod state;
mod words;
mod worker;

pub use ear::Ear;
pub use events::Run;
pub use held::Held;
pub use keep::{Charge, Ended, Kept, Left, Phase, Standing, Start, WATCHDOG};
pub use pace::{GIVE_UP_AFTER, PAUSE_MAX, Pace};
pub use record::{Options, RECORD_MAX_BYTES, Record, Source, VERSION};
pub use seat::{Sat, Seat};
pub use state::{Entry, State, file_in};
pub use words::{EVENT, Event, FAILURE, LASTING, RENEWED, WORDS_MAX_BYTES, Words};
