//! The control API: HTTP and JSON over a Unix socket that only its owner can open, the control socket of a server or
//! daemon.
//!
//! | file | content |
//! | --- | --- |
//! | `types.rs` | types of requests and replies; the command prints the same JSON with `-o json` |
//! | `bridge.rs` | passes requests from the HTTP thread to the thread that owns the graph, and replies back |
//! | `routes.rs` | the routes of control sockets |
//! | `server.rs` | the server of a control socket |
//! | `daemon.rs` | types of requests and replies of a daemon, which keeps many graphs |
//! | `follow.rs` | the response that reports events as they happen |
//! | `metrics.rs` | metrics for Prometheus |
//! | `client.rs` | the client of a control socket |
//!
//! This crate does not know graphs. The process that starts a server passes a handler for each route.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "control-plane work: it runs on a thread of its own, not on a core below an Env"
)]

mod bridge;
mod client;
mod daemon;
mod follow;
mod listen;
pub mod metrics;
pub mod routes;
mod server;
mod types;

pub use block::answers::{ChangeLine, LocateStep};
pub use block::control::job::Action as JobCommand;
pub use block::findings::{Checked, CheckedDevice, CheckedDisk, Finding, Soundness};
pub use block::{Difference, Health, JobState, Member, MemberState, Progress, Scrub, SpaceUse};
pub use bridge::{Answering, Answers, Bridge, JOBS_MAX, bridge};
pub use client::{ANSWER_MAX_BYTES, Client};
pub use daemon::{DaemonView, GraphSource, KeptGraph, KeptName, MetricsPort, Phase, UpRequest};
pub use follow::{FOLLOWERS_MAX, follow};
pub use listen::{CONTROL_LIMITS, ConnectionLimits, METRICS_LIMITS};
pub use server::{
    ControlSocket, Handler, SOCKET_PATH_MAX_BYTES, Server, figures, is_heard, repair,
};
pub use types::{
    Applied, ApplyRequest, AttachRequest, Attached, Byte, ChangeWay, CommandRequest, CommandTo,
    Counts, DetachRequest, DeviceStatus, DiskChange, DiskRequest, EventLine, EventsAfter,
    ExportView, ForgottenDisk, GraphView, History, Job, JobRequest, Means, MemberRequest, NodeView,
    PastSpec, Power, Problem, ResizeRequest, ScrubRequest, SpecText, Status, StatusRow, Top,
    TopRow, UndoRequest, VolumeName, VolumePage, VolumeView, VolumesAfter,
};
