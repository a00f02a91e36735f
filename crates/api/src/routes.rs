//! The routes of control sockets: for each, its path, its types and its time limit. Clients and servers share them.
//! `docs/api/openapi.json` describes them.

use std::marker::PhantomData;
use std::time::Duration;

use block::control::Nothing;
use serde_json::Value;

use crate::{
    Applied, ApplyRequest, AttachRequest, Attached, Byte, Checked, CommandRequest, DaemonView,
    DetachRequest, DeviceStatus, DiskRequest, EventLine, EventsAfter, GraphView, History, Job,
    JobRequest, KeptGraph, KeptName, MemberRequest, Place, ResizeRequest, ScrubRequest, SpecText,
    Status, Top, UndoRequest, UpRequest,
};

/// A route with questions of type `Q` and answers of type `A`.
pub struct Route<Q, A> {
    /// Path of the route.
    pub path: &'static str,
    /// Whether the question is the query of a GET, not the body of a POST.
    pub(crate) is_get: bool,
    /// Time limit of the answer.
    pub(crate) patience: Duration,
    types: PhantomData<fn(Q) -> A>,
}

/// The time limit of answers that do not wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The time limit of commands, which may derive keys. A derivation takes about a second for each slot that is tried,
/// but the parameters of a slot may demand more: a minute for the costliest that is accepted.
const PATIENCE_COMMAND: Duration = Duration::from_secs(180);

/// The time limit of answers that wait for disks. Writing out the memory of a machine may take so long.
const PATIENCE_DISKS: Duration = Duration::from_secs(600);

const fn get<Q, A>(path: &'static str) -> Route<Q, A> {
    Route { path, is_get: true, patience: PATIENCE, types: PhantomData }
}

const fn post<Q, A>(path: &'static str, patience: Duration) -> Route<Q, A> {
    Route { path, is_get: false, patience, types: PhantomData }
}

/// Returns the structure of the graph.
pub const GRAPH: Route<Nothing, GraphView> = get("/v1/graph");
/// Returns the spec of the graph as text.
pub const SPEC: Route<Nothing, SpecText> = get("/v1/spec");
/// Returns the status of the graph and its devices.
pub const STATUS: Route<Nothing, Status> = get("/v1/status");
/// Returns the request counts of its devices since the start.
pub const TOP: Route<Nothing, Top> = get("/v1/top");
/// Returns the places of a byte of an export on its way down to the disks. Fails if there is no such export, or no
/// such byte.
pub const LOCATE: Route<Byte, Place> = get("/v1/locate");
/// Takes a member out of service. Fails if there is no such member, or it is the last one in sync.
pub const FAIL: Route<MemberRequest, DeviceStatus> = post("/v1/device/fail", PATIENCE);
/// Starts the resync of a member. Fails if there is no such member, or it needs no resync.
pub const RESYNC: Route<MemberRequest, DeviceStatus> = post("/v1/device/resync", PATIENCE);
/// Starts or stops a scrub of all copies of a device. Fails if there is no such device, or it has no copies.
pub const SCRUB: Route<ScrubRequest, DeviceStatus> = post("/v1/device/scrub", PATIENCE);
/// Inserts a disk into a redundant device, replaces one, or removes one. Waits like [`APPLY`].
pub const DISK: Route<DiskRequest, Applied> = post("/v1/device/disk", PATIENCE_DISKS);
/// Makes the graph use all of a disk that has grown.
pub const RESIZE: Route<ResizeRequest, Applied> = post("/v1/device/resize", PATIENCE_DISKS);
/// Returns the recent events of devices with a number above that one.
pub const EVENTS: Route<EventsAfter, Vec<EventLine>> = get("/v1/events");
/// Goes on with new events after the past ones: a line of JSON for each.
pub(crate) const FOLLOW: Route<EventsAfter, EventLine> = get("/v1/events/follow");
/// Returns the background jobs of its devices.
pub const JOBS: Route<Nothing, Vec<Job>> = get("/v1/jobs");
/// Pauses, resumes or cancels a background job. Fails if there is no such job, or it does not support the command.
pub const JOB: Route<JobRequest, Job> = post("/v1/job", PATIENCE);
/// Carries out a command on a device, and returns its answer by name.
pub const COMMAND: Route<CommandRequest, Value> = post("/v1/command", PATIENCE_COMMAND);
/// Attaches an export as a block device of this machine.
pub const ATTACH: Route<AttachRequest, Attached> = post("/v1/attach", PATIENCE_DISKS);
/// Detaches a block device. Waits for the last flush.
pub const DETACH: Route<DetachRequest, Attached> = post("/v1/detach", PATIENCE_DISKS);
/// Changes the graph to match a spec. Waits for the requests that clients have begun, and for the disks. A dry run
/// only reports the changes.
pub const APPLY: Route<ApplyRequest, Applied> = post("/v1/apply", PATIENCE_DISKS);
/// Checks the labels of the graph.
pub const CHECK: Route<Nothing, Checked> = get("/v1/check");
/// Repairs the labels of the graph as far as possible, and then checks them.
pub const REPAIR: Route<(), Checked> = post("/v1/repair", PATIENCE_DISKS);
/// Returns the previous specs of the graph. Fails without labelled disks, because nothing keeps its history.
pub const HISTORY: Route<Nothing, History> = get("/v1/history");
/// Changes the graph back to a previous spec. Waits like [`APPLY`].
pub const UNDO: Route<UndoRequest, Applied> = post("/v1/undo", PATIENCE_DISKS);

/// Returns the daemon with its graphs. This and the following ones are routes of a daemon.
pub const DAEMON: Route<Nothing, DaemonView> = get("/v1/daemon");
/// Starts a graph and keeps it. Waits until clients can connect.
pub const UP: Route<UpRequest, KeptGraph> = post("/v1/daemon/up", PATIENCE_DISKS);
/// Closes a graph in order and drops it. Waits for the last flush.
pub const STOP: Route<KeptName, KeptGraph> = post("/v1/daemon/stop", PATIENCE_DISKS);
/// Replaces the process of a graph by a new one.
pub const RENEW: Route<KeptName, KeptGraph> = post("/v1/daemon/renew", PATIENCE_DISKS);
/// Ends the daemon, and leaves all graphs as they are to the daemon that asks.
pub const LEAVE: Route<(), DaemonView> = post("/v1/daemon/leave", PATIENCE_DISKS);
