//! The other side of the socket: one question, one connection.

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

/// The longest answer that is read: a graph of the most devices fits several times.
pub const ANSWER_MAX_BYTES: u64 = 64 << 20;

/// The longest line of an answer that goes on, and the longest head of one.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// A server that does not answer for so long does not answer at all: none of these answers waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// A command may derive keys. That takes about a second for each slot that is tried, and as long as the slot says: a
/// minute for the costliest that is taken.
const PATIENCE_COMMAND: Duration = Duration::from_secs(180);

/// For what waits for disks: as long as writing out what a machine's memory holds may take.
const PATIENCE_DISKS: Duration = Duration::from_secs(600);

/// A control socket, seen from outside.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

type Answer<T> = Result<T, Problem>;

impl Client {
    /// The socket at that path; nothing is opened yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a connection, to see whether somebody is there.
    ///
    /// # Errors
    /// `ConnectionRefused` if the process is gone, `NotFound` without a socket.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// The graph as it is built.
    ///
    /// # Errors
    /// As all questions: the server's own, or why it was not reached.
    pub fn graph(&self) -> Answer<GraphView> {
        self.get("/v1/graph")
    }

    /// The graph as text.
    ///
    /// # Errors
    /// As all.
    pub fn spec(&self) -> Answer<SpecText> {
        self.get("/v1/spec")
    }

    /// How it is.
    ///
    /// # Errors
    /// As all.
    pub fn status(&self) -> Answer<Status> {
        self.get("/v1/status")
    }

    /// What its devices have done.
    ///
    /// # Errors
    /// As all.
    pub fn top(&self) -> Answer<Top> {
        self.get("/v1/top")
    }

    /// Where a byte of an export lies.
    ///
    /// # Errors
    /// As all.
    pub fn locate(&self, export: &str, offset: u64) -> Answer<Place> {
        self.get(&format!("/v1/locate?export={}&offset={offset}", escaped(export)))
    }

    /// Takes a member out of service.
    ///
    /// # Errors
    /// As all.
    pub fn fail(&self, request: &MemberRequest) -> Answer<DeviceStatus> {
        self.post("/v1/device/fail", request)
    }

    /// Begins to bring a member up to date.
    ///
    /// # Errors
    /// As all.
    pub fn resync(&self, request: &MemberRequest) -> Answer<DeviceStatus> {
        self.post("/v1/device/resync", request)
    }

    /// Begins to read and compare all copies of a device, or ends that.
    ///
    /// # Errors
    /// As all.
    pub fn scrub(&self, request: &ScrubRequest) -> Answer<DeviceStatus> {
        self.post("/v1/device/scrub", request)
    }

    /// Puts a disk in, in another's place, or takes it out. It waits as a change does.
    ///
    /// # Errors
    /// As all.
    pub fn disk(&self, request: &DiskRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/device/disk", request)
    }

    /// What its labels are like.
    ///
    /// # Errors
    /// As all.
    pub fn check(&self) -> Answer<Checked> {
        self.get("/v1/check")
    }

    /// The same, once what can be written anew has been.
    ///
    /// # Errors
    /// As all.
    pub fn repair(&self) -> Answer<Checked> {
        self.post_within(PATIENCE_DISKS, "/v1/repair", &())
    }

    /// What the graph was before.
    ///
    /// # Errors
    /// As all.
    pub fn history(&self) -> Answer<History> {
        self.get("/v1/history")
    }

    /// Makes it what it was. It waits as a change does.
    ///
    /// # Errors
    /// As all.
    pub fn undo(&self, request: &UndoRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/undo", request)
    }

    /// What has happened to devices lately, after the event of that number.
    ///
    /// # Errors
    /// As all.
    pub fn events(&self, after: u64) -> Answer<Vec<EventLine>> {
        self.get(&format!("/v1/events?after={after}"))
    }

    /// What has happened to devices after the event of that number, and what happens from now on, as it
    /// does; until the server ends, or `each` wants no more.
    ///
    /// # Errors
    /// As all.
    pub fn follow(&self, after: u64, mut each: impl FnMut(EventLine) -> bool) -> Answer<()> {
        // Of the older version the end of the answer is the end of the connection, and nothing else.
        let request = format!("GET /v1/events/follow?after={after} HTTP/1.0\r\n\r\n");
        let asked = self.connect().and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            let mut reader = BufReader::new(stream);
            let head = head(&mut reader)?;
            // It may be long until something happens.
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
                // It was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    /// Carries out a command of verb `V` on a device.
    ///
    /// # Errors
    /// As all.
    pub fn command<V: Verb>(&self, device: &str, args: &V::Args) -> Answer<V::Answer> {
        let (device, verb) = (device.to_owned(), V::INFO.name.to_owned());
        let args = serde_json::to_value(args).map_err(|why| self.strange(&why.to_string()))?;
        self.post_within(PATIENCE_COMMAND, "/v1/command", &CommandRequest { device, verb, args })
    }

    /// Makes the graph what a spec says. It waits for what clients have begun, and for the disks.
    ///
    /// # Errors
    /// As all.
    pub fn apply(&self, request: &ApplyRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/apply", request)
    }

    /// What takes long and is done in the background.
    ///
    /// # Errors
    /// As all.
    pub fn jobs(&self) -> Answer<Vec<Job>> {
        self.get("/v1/jobs")
    }

    /// Looks after a job.
    ///
    /// # Errors
    /// As all.
    pub fn job(&self, request: &JobRequest) -> Answer<Job> {
        self.post("/v1/job", request)
    }

    /// Lets the graph use all of a disk that has grown.
    ///
    /// # Errors
    /// As all.
    pub fn resize(&self, request: &ResizeRequest) -> Answer<Applied> {
        self.post_within(PATIENCE_DISKS, "/v1/device/resize", request)
    }

    /// Makes an export a device of this machine.
    ///
    /// # Errors
    /// As all.
    pub fn attach(&self, request: &AttachRequest) -> Answer<Attached> {
        self.post_within(PATIENCE_DISKS, "/v1/attach", request)
    }

    /// Ends that. It waits for the last flush.
    ///
    /// # Errors
    /// As all.
    pub fn detach(&self, request: &DetachRequest) -> Answer<Attached> {
        self.post_within(PATIENCE_DISKS, "/v1/detach", request)
    }

    /// Of a daemon: what it keeps.
    ///
    /// # Errors
    /// As all.
    pub fn daemon(&self) -> Answer<DaemonView> {
        self.get("/v1/daemon")
    }

    /// Of a daemon: brings a graph up, and has it kept. It waits until clients can connect.
    ///
    /// # Errors
    /// As all.
    pub fn up(&self, request: &UpRequest) -> Answer<KeptGraph> {
        self.post_within(PATIENCE_DISKS, "/v1/daemon/up", request)
    }

    /// Of a daemon: closes a graph in order, and has it forgotten. It waits for the last flush.
    ///
    /// # Errors
    /// As all.
    pub fn stop(&self, graph: &KeptName) -> Answer<KeptGraph> {
        self.post_within(PATIENCE_DISKS, "/v1/daemon/stop", graph)
    }

    /// Of a daemon: has the process of a graph replaced by a new one.
    ///
    /// # Errors
    /// As all.
    pub fn renew(&self, graph: &KeptName) -> Answer<KeptGraph> {
        self.post_within(PATIENCE_DISKS, "/v1/daemon/renew", graph)
    }

    /// Of a daemon: has it end, and leave all graphs as they are.
    ///
    /// # Errors
    /// As all.
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

    /// The body of an answer. The server says its length and closes behind it.
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

/// The head of an answer, with the empty line behind it.
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

/// Everything but letters and digits as `%XX`.
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
