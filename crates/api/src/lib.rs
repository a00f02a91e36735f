//! The control socket: HTTP and JSON over a unix socket that only its owner can open.
//!
//! | file | content |
//! | --- | --- |
//! | `types.rs` | requests and answers; the command's `-o json` prints the same |
//! | `bridge.rs` | the way from the HTTP thread to the core that owns the graph, and back |
//! | `server.rs` | the routes |
//! | `daemon.rs` | the types and routes of a daemon that keeps many graphs |
//! | `follow.rs` | events as they happen |
//! | `metrics.rs` | metrics for Prometheus |
//! | `client.rs` | the client |
//!
//! The server does not know the graph itself. It asks an implementation of [`Live`].
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "control-plane work: it runs on a thread of its own, not on a core below an Env"
)]

use std::pin::Pin;

use serde_json::Value;

mod bridge;
mod client;
mod daemon;
mod follow;
pub mod metrics;
#[cfg(test)]
mod openapi;
mod server;
mod types;

pub use block::control::job::Action as JobCommand;
pub use block::findings::{Checked, CheckedDevice, CheckedDisk, Finding, Soundness};
pub use block::{Health, JobState, Member, MemberState, Progress, Room, Scrub};
pub use bridge::{Answers, Bridge, JOBS_MAX, bridge};
pub use client::{ANSWER_MAX_BYTES, Client};
pub use daemon::{
    Answering, DaemonSocket, DaemonView, GraphSource, Keeps, KeptGraph, KeptName, MetricsPort,
    Phase, UpRequest,
};
pub use follow::FOLLOWERS_MAX;
pub use server::{SOCKET_PATH_MAX_BYTES, Server, is_heard};
pub use types::{
    Applied, ApplyRequest, AttachRequest, Attached, ChangeLine, CommandRequest, Counts,
    DetachRequest, DeviceStatus, DiskChange, DiskRequest, EventLine, ExportView, ForgottenDisk,
    GraphView, History, Job, JobRequest, Means, MemberRequest, NodeView, PastSpec, Place, Power,
    Problem, ResizeRequest, ScrubRequest, SpecText, Status, Top, TopRow, UndoRequest,
};

/// An answer that takes time. It runs on the core of the graph.
pub type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// A running graph, as the server sees it. Answers come at once, except for those of type [`Later`].
pub trait Live {
    /// Returns the structure of the graph.
    fn graph(&self) -> GraphView;
    /// Returns the spec of the graph as text.
    fn spec(&self) -> SpecText;
    /// Returns the status of the graph and its devices.
    fn status(&self) -> Status;
    /// Returns the request counts of its devices since the start.
    fn top(&self) -> Top;
    /// Returns the places of a byte of an export on its way down to the disks.
    ///
    /// # Errors
    /// No such export, or no such byte.
    fn locate(&self, export: &str, offset: u64) -> Later<Result<Place, Problem>>;
    /// Takes a member out of service.
    ///
    /// # Errors
    /// No such member, or it is the last one in sync.
    fn fail(&self, request: MemberRequest) -> Later<Result<DeviceStatus, Problem>>;
    /// Starts the resync of a member.
    ///
    /// # Errors
    /// No such member, or it needs no resync.
    fn resync(&self, request: MemberRequest) -> Later<Result<DeviceStatus, Problem>>;
    /// Starts or stops a scrub of all copies.
    ///
    /// # Errors
    /// No such device, or it has no copies.
    fn scrub(&self, request: ScrubRequest) -> Later<Result<DeviceStatus, Problem>>;
    /// Returns the recent events of devices with a number above `after`.
    fn events(&self, after: u64) -> Vec<EventLine>;
    /// Returns the events with a number above `after`, once there is one.
    fn next_events(&self, after: u64) -> Later<Vec<EventLine>>;
    /// Carries out a command on a device, and returns its answer by name.
    fn command(&self, request: CommandRequest) -> Later<Result<Value, Problem>>;
    /// Attaches an export as a block device of this machine.
    fn attach(&self, request: AttachRequest) -> Later<Result<Attached, Problem>>;
    /// Detaches a block device.
    fn detach(&self, request: DetachRequest) -> Later<Result<Attached, Problem>>;
    /// Changes the graph to match a spec, while its clients wait. A dry run only reports the changes.
    fn apply(&self, request: ApplyRequest) -> Later<Result<Applied, Problem>>;
    /// Checks the labels of the graph. With `repair`, rewrites each label that can be repaired.
    fn check(&self, repair: bool) -> Later<Result<Checked, Problem>>;
    /// Returns the previous specs of the graph.
    ///
    /// # Errors
    /// The graph has no labelled disks, so nothing keeps its history.
    fn history(&self) -> Result<History, Problem>;
    /// Changes the graph back to a previous spec. A dry run only reports the changes.
    fn undo(&self, request: UndoRequest) -> Later<Result<Applied, Problem>>;
    /// Returns the background jobs of its devices.
    fn jobs(&self) -> Vec<Job>;
    /// Pauses, resumes or cancels a background job.
    ///
    /// # Errors
    /// No such job, or the job does not support the command.
    fn job(&self, request: JobRequest) -> Later<Result<Job, Problem>>;
    /// Makes the graph use all of a disk that has grown.
    fn resize(&self, request: ResizeRequest) -> Later<Result<Applied, Problem>>;
    /// Inserts a disk into a redundant device, replaces one, or removes one.
    fn disk(&self, request: DiskRequest) -> Later<Result<Applied, Problem>>;
    /// Runs a task beside the answers.
    fn spawn(&self, task: Later<()>);
}
