//! The control socket: HTTP and JSON over a unix socket that only its owner can open.
//!
//! | file | content |
//! | --- | --- |
//! | `types.rs` | requests and answers; the command's `-o json` prints the same |
//! | `bridge.rs` | the way from the HTTP thread to the core that owns the graph, and back |
//! | `routes.rs` | the routes |
//! | `server.rs` | the server of a socket |
//! | `daemon.rs` | the types of a daemon that keeps many graphs |
//! | `follow.rs` | events as they happen |
//! | `metrics.rs` | metrics for Prometheus |
//! | `client.rs` | the client |
//!
//! The server does not know the graph itself. The process that starts it passes a handler for each route.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "control-plane work: it runs on a thread of its own, not on a core below an Env"
)]

mod bridge;
mod client;
mod daemon;
mod follow;
pub mod metrics;
pub mod routes;
mod server;
mod types;

pub use block::answers::{ChangeLine, Place};
pub use block::control::job::Action as JobCommand;
pub use block::findings::{Checked, CheckedDevice, CheckedDisk, Finding, Soundness};
pub use block::{Health, JobState, Member, MemberState, Progress, Room, Scrub};
pub use bridge::{Answering, Answers, Bridge, JOBS_MAX, bridge};
pub use client::{ANSWER_MAX_BYTES, Client};
pub use daemon::{DaemonView, GraphSource, KeptGraph, KeptName, MetricsPort, Phase, UpRequest};
pub use follow::{FOLLOWERS_MAX, follow};
pub use server::{
    ControlSocket, Handler, SOCKET_PATH_MAX_BYTES, Server, figures, is_heard, repair,
};
pub use types::{
    Applied, ApplyRequest, AttachRequest, Attached, Byte, ChangeWay, CommandRequest, Counts,
    DetachRequest, DeviceStatus, DiskChange, DiskRequest, EventLine, EventsAfter, ExportView,
    ForgottenDisk, GraphView, History, Job, JobRequest, Means, MemberRequest, NodeView, PastSpec,
    Power, Problem, ResizeRequest, ScrubRequest, SpecText, Status, Top, TopRow, UndoRequest,
};
