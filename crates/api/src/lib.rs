//! The control socket: HTTP and JSON over a unix socket that only its owner can open.
//!
//! | file | holds |
//! | --- | --- |
//! | `types.rs` | what is asked and answered; the command's `-o json` prints the same |
//! | `bridge.rs` | from the thread that speaks HTTP to the core that owns the graph, and back |
//! | `server.rs` | the routes |
//! | `daemon.rs` | the same of a daemon that keeps many graphs |
//! | `follow.rs` | events as they happen |
//! | `metrics.rs` | figures for Prometheus |
//! | `client.rs` | the other side |
//!
//! The server knows no graph: it asks whoever implements [`Live`].
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
    Applied, ApplyRequest, AttachRequest, Attached, ChangeLine, Checked, CheckedDevice,
    CheckedDisk, CommandRequest, Counts, DetachRequest, DeviceStatus, DiskChange, DiskRequest,
    EventLine, ExportView, Finding, ForgottenDisk, GraphView, History, Job, JobRequest, Means,
    MemberRequest, NodeView, PastSpec, Place, Power, Problem, ResizeRequest, ScrubRequest,
    Soundness, SpecText, Status, Top, TopRow, UndoRequest,
};

/// What takes time, on the core of whoever is asked.
pub type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// Somebody with a running graph. Answers come at once, but for those that say otherwise.
pub trait Live {
    /// The graph as it is built.
    fn graph(&self) -> GraphView;
    /// The graph as text.
    fn spec(&self) -> SpecText;
    /// How it is.
    fn status(&self) -> Status;
    /// What its devices have done so far.
    fn top(&self) -> Top;
    /// Where a byte of an export lies.
    ///
    /// # Errors
    /// No such export, or no such byte.
    fn locate(&self, export: &str, offset: u64) -> Later<Result<Place, Problem>>;
    /// Takes a member out of service.
    ///
    /// # Errors
    /// No such member, or it is the last one.
    fn fail(&self, request: MemberRequest) -> Later<Result<DeviceStatus, Problem>>;
    /// Begins to bring a member up to date.
    ///
    /// # Errors
    /// No such member, or nothing to do for it.
    fn resync(&self, request: MemberRequest) -> Later<Result<DeviceStatus, Problem>>;
    /// Begins to read and compare all copies, or ends that.
    ///
    /// # Errors
    /// No such device, or it has no copies.
    fn scrub(&self, request: ScrubRequest) -> Later<Result<DeviceStatus, Problem>>;
    /// What has happened to devices lately, after the event of that number.
    fn events(&self, after: u64) -> Vec<EventLine>;
    /// The same, once there is one.
    fn next_events(&self, after: u64) -> Later<Vec<EventLine>>;
    /// Carries out a command on a device, and returns its answer by name.
    fn command(&self, request: CommandRequest) -> Later<Result<Value, Problem>>;
    /// Makes an export a device of this machine.
    fn attach(&self, request: AttachRequest) -> Later<Result<Attached, Problem>>;
    /// Ends that.
    fn detach(&self, request: DetachRequest) -> Later<Result<Attached, Problem>>;
    /// Makes the graph what a spec says, while its clients wait; or says what that would do.
    fn apply(&self, request: ApplyRequest) -> Later<Result<Applied, Problem>>;
    /// What its labels are like; `repair`: what can be written anew is.
    fn check(&self, repair: bool) -> Later<Result<Checked, Problem>>;
    /// What it was before.
    ///
    /// # Errors
    /// Nothing keeps that: it has no labelled disks.
    fn history(&self) -> Result<History, Problem>;
    /// Makes the graph what it was, or says what that would do.
    fn undo(&self, request: UndoRequest) -> Later<Result<Applied, Problem>>;
    /// What takes long and is done in the background.
    fn jobs(&self) -> Vec<Job>;
    /// Looks after one of these.
    ///
    /// # Errors
    /// No such job, or it cannot be done.
    fn job(&self, request: JobRequest) -> Later<Result<Job, Problem>>;
    /// Lets the graph use all of a disk that has grown.
    fn resize(&self, request: ResizeRequest) -> Later<Result<Applied, Problem>>;
    /// Puts a disk in, in another's place, or takes it out.
    fn disk(&self, request: DiskRequest) -> Later<Result<Applied, Problem>>;
    /// Lets something go on beside the answers.
    fn spawn(&self, task: Later<()>);
}
