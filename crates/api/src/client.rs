//! The client of a control socket. Each question uses a connection of its own.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::control::Verb;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{
    Applied, ApplyRequest, AttachRequest, Attached, Checked, CommandRequest, DaemonView,
    DetachRequest, DeviceStatus, DiskRequest, EventLine, GraphView, History, Job, JobRequest,
    KeptGraph, KeptName, MemberRequest, Place, Problem, ResizeRequest, ScrubRequest, SpecText,
    Status, Top, UndoRequest, UpRequest,
};

/// The longest answer that is read. It is several times as long as the view of a graph with the most devices.
pub const ANSWER_MAX_BYTES: u64 = 64 << 20;

/// The longest line of a continuing response, and the longest head of a response.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// The time limit of answers that do not wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time limit of commands, which may derive keys. A derivation takes about a second for each slot that is tried,
/// but the parameters of a slot may demand more: a minute for the costliest that is accepted.
const PATIENCE_COMMAND: Duration = Duration::from_secs(180);

/// The time limit of answers that wait for disks. Writing out the memory of a machine may take so long.
const PATIENCE_DISKS: Duration = Duration::from_secs(600);

/// A client of a control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

type Answer<T> = Result<T, Problem>;

impl Client {
    /// Returns a client of the socket at that path. Opens nothing yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a connection, which shows whether a process listens.
    ///
    /// # Errors
    /// `ConnectionRefused` if the process is gone, `NotFound` without a socket.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Returns the structure of the graph.
    ///
    /// # Errors
    /// Those of all questions: an error of the server, or the reason why it was not reached.
    pub fn graph(&self) -> Answer<GraphView> {
        self.get("/v1/graph")
    }

    /// Returns the spec of the graph as text.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn spec(&self) -> Answer<SpecText> {
        self.get("/v1/spec")
    }

    /// Returns the status of the graph and its devices.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn status(&self) -> Answer<Status> {
        self.get("/v1/status")
    }

    /// Returns the request counts of its devices.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn top(&self) -> Answer<Top> {
        self.get("/v1/top")
    }

    /// Returns the places of a byte of an export on its way down to the disks.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn locate(&self, export: &str, offset: u64) -> Answer<Place> {
        self.get(&format!("/v1/locate?export={}&offset={offset}", escaped(export)))
    }

    /// Takes a member out of service.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn fail(&self, request: &MemberRequest) -> Answer<DeviceStatus> {
        self.post("/v1/device/fail", request)
    }

    /// Starts the resync of a member.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn resync(&self, request: &MemberRequest) -> Answer<DeviceStatus> {
        self.post("/v1/device/resync", request)
    }

    /// Starts or stops a scrub of all copies of a device.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn scrub(&self, request: &ScrubRequest) -> Answer<DeviceStatus> {
        self.post("/v1/device/scrub", request)
    }

    /// Inserts a disk into a redundant device, replaces one, or removes one. Waits like [`Client::apply`].
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn disk(&self, request: &DiskRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/device/disk", request)
    }

    /// Checks the labels of the graph.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn check(&self) -> Answer<Checked> {
        self.get("/v1/check")
    }

    /// Repairs the labels of the graph as far as possible, and then checks them.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn repair(&self) -> Answer<Checked> {
        self.post_within(PATIENCE_DISKS, "/v1/repair", &())
    }

    /// Returns the previous specs of the graph.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn history(&self) -> Answer<History> {
        self.get("/v1/history")
    }

    /// Changes the graph back to a previous spec. Waits like [`Client::apply`].
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn undo(&self, request: &UndoRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/undo", request)
    }

    /// Returns the recent events of devices with a number above `after`.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn events(&self, after: u64) -> Answer<Vec<EventLine>> {
        self.get(&format!("/v1/events?after={after}"))
    }

    /// Passes the events with a number above `after` to `each`: first the past ones, then new ones as they happen.
    /// Ends when the server does, or when `each` returns false.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn follow(&self, after: u64, mut each: impl FnMut(EventLine) -> bool) -> Answer<()> {
        // In HTTP/1.0, the response has no chunks, and ends only with the connection.
        let request = format!("GET /v1/events/follow?after={after} HTTP/1.0\r\n\r\n");
        let asked = self.connect().and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            let mut reader = BufReader::new(stream);
            let head = head(&mut reader)?;
            // The next event may take any time.
            reader.get_ref().set_read_timeout(None)?;
            Ok((head, reader))
        });
        let (head, mut reader) = asked.map_err(|error| self.lost(&error))?;
        if head.split(' ').nth(1) != Some("200") {
            let mut answer = head.into_bytes();
            let read = reader.take(ANSWER_MAX_BYTES).read_to_end(&mut answer);
            read.map_err(|error| self.lost(&error))?;
            return self.parse(&answer);
        }
        loop {
            let mut line = String::new();
            match reader.by_ref().take(LINE_MAX_BYTES).read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => match serde_json::from_str::<EventLine>(&line) {
                    Ok(event) => {
                        if !each(event) {
                            return Ok(());
                        }
                    }
                    Err(error) => return Err(self.strange(&error.to_string())),
                },
                // The server was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    /// Carries out a command of verb `V` on a device.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn command<V: Verb>(&self, device: &str, args: &V::Args) -> Answer<V::Answer> {
        let (device, verb) = (device.to_owned(), V::INFO.name.to_owned());
        let args = serde_json::to_value(args).map_err(|why| self.strange(&why.to_string()))?;
        self.post_within(PATIENCE_COMMAND, "/v1/command", &CommandRequest { device, verb, args })
    }

    /// Changes the graph to match a spec. Waits for the requests that clients have begun, and for the disks.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn apply(&self, request: &ApplyRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/apply", request)
    }

    /// Returns the background jobs of its devices.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn jobs(&self) -> Answer<Vec<Job>> {
        self.get("/v1/jobs")
    }

    /// Pauses, resumes or cancels a background job.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn job(&self, request: &JobRequest) -> Answer<Job> {
        self.post("/v1/job", request)
    }

    /// Makes the graph use all of a disk that has grown.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn resize(&self, request: &ResizeRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/device/resize", request)
    }

    /// Attaches an export as a block device of this machine.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn attach(&self, request: &AttachRequest) -> Answer<Attached> {
        self.post_within(PATIENCE_DISKS, "/v1/attach", request)
    }

    /// Detaches a block device. Waits for the last flush.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn detach(&self, request: &DetachRequest) -> Answer<Attached> {
        self.post_within(PATIENCE_DISKS, "/v1/detach", request)
    }

    /// Returns the daemon with its graphs. For the socket of a daemon.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn daemon(&self) -> Answer<DaemonView> {
        self.get("/v1/daemon")
    }

    /// Makes a daemon start and keep a graph. Waits until clients can connect.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn up(&self, request: &UpRequest) -> Answer<KeptGraph> {
        self.post_within(PATIENCE_DISKS, "/v1/daemon/up", request)
    }

    /// Makes a daemon close a graph in order and drop it. Waits for the last flush.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn stop(&self, graph: &KeptName) -> Answer<KeptGraph> {
        self.post_within(PATIENCE_DISKS, "/v1/daemon/stop", graph)
    }

    /// Makes a daemon end and leave all graphs as they are.
    ///
    /// # Errors
    /// As for [`Client::graph`].
    pub fn leave(&self) -> Answer<DaemonView> {
        self.post_within(PATIENCE_DISKS, "/v1/daemon/leave", &())
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        self.ask(
            PATIENCE,
            &format!("GET {path} HTTP/1.1\r\nHost: cairn\r\nConnection: close\r\n\r\n"),
        )
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Answer<T> {
        self.post_within(PATIENCE, path, body)
    }

    fn post_within<T: DeserializeOwned>(
        &self,
        patience: Duration,
        path: &str,
        body: &impl Serialize,
    ) -> Answer<T> {
        let body = serde_json::to_string(body).expect("a request has only fields that JSON knows");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: cairn\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.ask(patience, &request)
    }

    fn ask<T: DeserializeOwned>(&self, patience: Duration, request: &str) -> Answer<T> {
        let mut answer = Vec::new();
        let exchanged = self.connect().and_then(|mut stream| {
            stream.set_read_timeout(Some(patience))?;
            stream.write_all(request.as_bytes())?;
            stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer)
        });
        exchanged.map_err(|error| self.lost(&error))?;
        self.parse(&answer)
    }

    /// Parses the body of a response. The server sends its length, and closes the connection after it.
    fn parse<T: DeserializeOwned>(&self, answer: &[u8]) -> Answer<T> {
        if answer.is_empty() {
            return Err(self.gone());
        }
        let text = String::from_utf8_lossy(answer);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status == "200" {
            return serde_json::from_str(body).map_err(|error| self.strange(&error.to_string()));
        }
        let told = serde_json::from_str(body);
        Err(told.unwrap_or_else(|_| self.strange(head.lines().next().unwrap_or("nothing"))))
    }

    fn strange(&self, why: &str) -> Problem {
        let shown = self.path.display();
        Problem::new(8, format!("{shown} gave a strange answer: {why}"))
    }

    fn gone(&self) -> Problem {
        let shown = self.path.display();
        let message = format!(
            "{shown}: its process has ended before it answered; what was asked may be \
                         done, or not"
        );
        Problem::new(8, message)
            .next("cairn status; what has become of a change, cairn undo --list says")
    }

    fn lost(&self, error: &io::Error) -> Problem {
        let shown = self.path.display();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Problem::new(4, format!("nothing runs at {shown}")).next("cairn ls")
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => self.gone(),
            io::ErrorKind::PermissionDenied => {
                Problem::new(7, format!("{shown} belongs to another user")).next("ask as that user")
            }
            _ => Problem::new(8, format!("{shown}: {error}")),
        }
    }
}

/// Reads the head of a response, including the empty line after it.
fn head(reader: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let room = LINE_MAX_BYTES.saturating_sub(head.len() as u64);
        if reader.by_ref().take(room).read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Encodes everything but letters and digits as `%XX`.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
