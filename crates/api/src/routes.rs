//! The routes of control sockets: for each route, its path, the types of its request and reply, and its time limit.
//! Clients and servers use the same table. `docs/api/openapi.json` describes the routes.

use std::marker::PhantomData;
use std::time::Duration;

use block::control::{Nothing, Verb};
use serde_json::Value;

use crate::{
    Applied, ApplyRequest, AttachRequest, Attached, Byte, Checked, CommandRequest, CommandTo,
    DaemonView, DetachRequest, DeviceStatus, DiskRequest, EventLine, EventsAfter, GraphView,
    History, Job, JobRequest, KeptGraph, KeptName, LocateStep, MemberRequest, ResizeRequest,
    ScrubRequest, SpecText, Status, Top, UndoRequest, UpRequest, VolumeName, VolumePage,
    VolumeView, VolumesAfter,
};

/// A route with requests of type `Q` and replies of type `A`.
pub struct Route<Q, A> {
    /// Path of the route.
    pub path: &'static str,
    /// Whether the fields of the request are the query of a GET; otherwise they are the body of a POST.
    pub(crate) is_get: bool,
    /// Time within which the client expects the reply.
    pub(crate) patience: Duration,
    types: PhantomData<fn(Q) -> A>,
}

/// Time limit of replies that wait neither for disks nor for clients.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Time limit of commands to devices, which may derive a key from a passphrase. A derivation takes about a second for
/// each key slot that is tried; the costliest accepted parameters of a slot take a minute.
const PATIENCE_COMMAND: Duration = Duration::from_secs(180);

/// Time limit of replies that wait for disks. A flush of all memory of a machine may take that long.
const PATIENCE_DISKS: Duration = Duration::from_secs(600);

/// Returns the route of GET requests to `path`.
pub const fn get<Q, A>(path: &'static str) -> Route<Q, A> {
    Route { path, is_get: true, patience: PATIENCE, types: PhantomData }
}

const fn post<Q, A>(path: &'static str, patience: Duration) -> Route<Q, A> {
    Route { path, is_get: false, patience, types: PhantomData }
}

/// Returns the route at `path` that carries out commands of verb `V` on a device.
pub const fn command<V: Verb>(path: &'static str) -> Route<CommandTo<V::Args>, V::Answer> {
    post(path, PATIENCE_COMMAND)
}

/// Returns the structure of the graph: its nodes and exports.
pub const GRAPH: Route<Nothing, GraphView> = get("/v1/graph");
/// Returns the spec of the graph as text.
pub const SPEC: Route<Nothing, SpecText> = get("/v1/spec");
/// Returns the status of the graph and its devices.
pub const STATUS: Route<Nothing, Status> = get("/v1/status");
/// Returns the request counts of the graph's devices since the server was started.
pub const TOP: Route<Nothing, Top> = get("/v1/top");
/// Returns the volumes of the graph's devices after a name, in the order of their names. Opens and creates nothing.
pub const VOLUMES: Route<VolumesAfter, VolumePage> = get("/v1/volumes");
/// Returns a volume by its name. Opens and creates nothing. Fails if there is no such volume.
pub const VOLUME: Route<VolumeName, VolumeView> = get("/v1/volume");
/// Returns the places of a byte of an export, down to the disks. Fails if the graph has no such export, or the export
/// has no such byte.
pub const LOCATE: Route<Byte, LocateStep> = get("/v1/locate");
/// Fails a member of a redundant device on purpose. Fails if the device has no such member, or the member is the last
/// one in sync.
pub const FAIL: Route<MemberRequest, DeviceStatus> = post("/v1/device/fail", PATIENCE);
/// Starts the resync of a member. Fails if the device has no such member, or the member needs no resync.
pub const RESYNC: Route<MemberRequest, DeviceStatus> = post("/v1/device/resync", PATIENCE);
/// Starts or stops a scrub of all copies of a device. Fails if the graph has no such device, or the device has no
/// copies.
pub const SCRUB: Route<ScrubRequest, DeviceStatus> = post("/v1/device/scrub", PATIENCE);
/// Inserts a disk below a redundant device, replaces one of its disks, or removes one. Waits for clients and disks as
/// [`APPLY`] does.
pub const DISK: Route<DiskRequest, Applied> = post("/v1/device/disk", PATIENCE_DISKS);
/// Makes the graph use all bytes of a disk that has been enlarged.
pub const RESIZE: Route<ResizeRequest, Applied> = post("/v1/device/resize", PATIENCE_DISKS);
/// Returns the recent events of the graph's devices with a number above the given one.
pub const EVENTS: Route<EventsAfter, Vec<EventLine>> = get("/v1/events");
/// Returns events as [`EVENTS`] does, and continues with new ones: one line of JSON for each event.
pub(crate) const FOLLOW: Route<EventsAfter, EventLine> = get("/v1/events/follow");
/// Returns the background jobs of the graph's devices.
pub const JOBS: Route<Nothing, Vec<Job>> = get("/v1/jobs");
/// Pauses, resumes or cancels a background job. Fails if there is no such job, or the job does not support the action.
pub const JOB: Route<JobRequest, Job> = post("/v1/job", PATIENCE);
/// Carries out a command on a device, and returns the answer of the command as JSON.
pub const COMMAND: Route<CommandRequest, Value> = post("/v1/command", PATIENCE_COMMAND);
/// Attaches an export as a block device of this machine.
pub const ATTACH: Route<AttachRequest, Attached> = post("/v1/attach", PATIENCE_DISKS);
/// Detaches an export's block device from this machine. Waits for the last flush of the device.
pub const DETACH: Route<DetachRequest, Attached> = post("/v1/detach", PATIENCE_DISKS);
/// Changes the graph to match a spec. Waits until requests of clients that are in flight are complete, and for the
/// disks. A dry run only returns the changes.
pub const APPLY: Route<ApplyRequest, Applied> = post("/v1/apply", PATIENCE_DISKS);
/// Checks the labels of the running graph.
pub const CHECK: Route<Nothing, Checked> = get("/v1/check");
/// Rewrites the damaged copies of the graph's labels, and returns the result of a check after that.
pub const REPAIR: Route<(), Checked> = post("/v1/repair", PATIENCE_DISKS);
/// Returns the earlier specs of the graph. Fails for a graph without labelled disks, because only labels contain
/// earlier specs.
pub const HISTORY: Route<Nothing, History> = get("/v1/history");
/// Changes the graph back to an earlier spec. Waits for clients and disks as [`APPLY`] does.
pub const UNDO: Route<UndoRequest, Applied> = post("/v1/undo", PATIENCE_DISKS);

/// Returns the state of the daemon and of its graphs. This route and the following ones are routes of a daemon.
pub const DAEMON: Route<Nothing, DaemonView> = get("/v1/daemon");
/// Starts a graph under the daemon, which keeps it. Waits until clients can connect to the graph.
pub const UP: Route<UpRequest, KeptGraph> = post("/v1/daemon/up", PATIENCE_DISKS);
/// Closes a graph in order, and makes the daemon forget it. Waits for the last flush of the graph.
pub const STOP: Route<KeptName, KeptGraph> = post("/v1/daemon/stop", PATIENCE_DISKS);
/// Replaces the worker of a graph by a new process.
pub const RENEW: Route<KeptName, KeptGraph> = post("/v1/daemon/renew", PATIENCE_DISKS);
/// Ends the daemon. Its graphs run on, and the daemon that sends this request takes them over.
pub const LEAVE: Route<(), DaemonView> = post("/v1/daemon/leave", PATIENCE_DISKS);
