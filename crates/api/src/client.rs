//! The client of a control socket. Each request uses a connection of its own.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::control::{Nothing, Verb};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::routes::{COMMAND, FOLLOW, PATIENCE, Route};
use crate::{CommandRequest, EventLine, EventsAfter, Problem};

/// Maximum length in bytes of a response. The view of the largest possible graph is several times shorter.
pub const ANSWER_MAX_BYTES: u64 = 64 << 20;

/// Maximum length in bytes of one line of a response that reports events, and of the head of any response.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// A client of a control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    /// Most time for a reply, whatever the route.
    limit: Duration,
}

type Answer<T> = Result<T, Problem>;

impl Client {
    /// Returns a client of the control socket at `path`. Opens no connection yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), limit: Duration::MAX }
    }

    /// Returns the client with requests that wait for their replies for at most `limit`.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Returns the path of the control socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a connection to the control socket. Success shows that a server listens on the socket.
    ///
    /// # Errors
    /// `ConnectionRefused` if the server of the socket is gone; `NotFound` if there is no socket.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Sends a request without fields, and returns the reply of the server.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn get<A: DeserializeOwned>(&self, route: &Route<Nothing, A>) -> Answer<A> {
        self.ask(route, &Nothing {})
    }

    /// Sends the request `question` to a route, and returns the reply of the server.
    ///
    /// # Errors
    /// The problem that the server returned, or the reason why the server was not reached.
    pub fn ask<Q: Serialize, A>(&self, route: &Route<Q, A>, question: &Q) -> Answer<A>
    where
        A: DeserializeOwned,
    {
        const HEAD: &str = "HTTP/1.1\r\nHost: cairn\r\nConnection: close\r\n";
        let path = route.path;
        let request = if route.is_get {
            format!("GET {path}{} {HEAD}\r\n", query(question))
        } else {
            let body = serde_json::to_string(question);
            let body = body.expect("a request can be written as JSON");
            let length = body.len();
            format!(
                "POST {path} {HEAD}Content-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            )
        };
        let mut answer = Vec::new();
        let exchanged = self.connect().and_then(|mut stream| {
            stream.set_read_timeout(Some(route.patience.min(self.limit)))?;
            stream.write_all(request.as_bytes())?;
            stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer)
        });
        exchanged.map_err(|error| self.lost(&error))?;
        self.parse(&answer)
    }

    /// Calls `each` with every event of the graph whose number is above `after`: first with past events, then with new
    /// ones as they happen. Ends when the server closes the connection, or when `each` returns false.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn follow(&self, after: u64, mut each: impl FnMut(EventLine) -> bool) -> Answer<()> {
        // A response in HTTP/1.0 has no chunks, and ends with the connection.
        let query = query(&EventsAfter { after });
        let request = format!("GET {}{query} HTTP/1.0\r\n\r\n", FOLLOW.path);
        let asked = self.connect().and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            let mut reader = BufReader::new(stream);
            let head = head(&mut reader)?;
            // Any time may pass until the next event.
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
                Ok(_) => {}
                // The server was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(self.lost(&error)),
            }
            if !each(serde_json::from_str(&line).map_err(|error| self.strange(error))?) {
                return Ok(());
            }
        }
    }

    /// Carries out a command of verb `V` on a device of the graph.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn command<V: Verb>(&self, device: &str, args: &V::Args) -> Answer<V::Answer> {
        let (device, verb) = (device.to_owned(), V::INFO.name.to_owned());
        let args = serde_json::to_value(args).map_err(|why| self.strange(why))?;
        let answer = self.ask(&COMMAND, &CommandRequest { device, verb, args })?;
        serde_json::from_value(answer).map_err(|why| self.strange(why))
    }

    /// Parses a response. The server sends the length of its body, and closes the connection after the body.
    fn parse<T: DeserializeOwned>(&self, answer: &[u8]) -> Answer<T> {
        if answer.is_empty() {
            return Err(self.gone());
        }
        let text = String::from_utf8_lossy(answer);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status == "200" {
            return serde_json::from_str(body).map_err(|error| self.strange(error));
        }
        let told = serde_json::from_str(body);
        Err(told.unwrap_or_else(|_| self.strange(head.lines().next().unwrap_or("no status line"))))
    }

    fn strange(&self, why: impl Display) -> Problem {
        let shown = self.path.display();
        Problem::new(8, format!("the server at {shown} sent an invalid reply: {why}"))
    }

    fn gone(&self) -> Problem {
        let shown = self.path.display();
        let message = format!(
            "the server at {shown} ended before it answered; the request may be done, or not"
        );
        Problem::new(8, message).next("cairn status; cairn undo --list shows the changes")
    }

    fn lost(&self, error: &io::Error) -> Problem {
        let shown = self.path.display();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Problem::new(4, format!("no server runs at {shown}")).next("cairn ls")
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => self.gone(),
            io::ErrorKind::PermissionDenied => {
                Problem::new(7, format!("{shown} belongs to another user"))
                    .next("run this command as that user")
            }
            _ => Problem::new(8, format!("{shown}: {error}")),
        }
    }
}

/// Reads the head of a response, up to and including the empty line before the body.
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

/// Returns the query string of a request, with its question mark; empty for a request without fields.
fn query(question: &impl Serialize) -> String {
    match serde_urlencoded::to_string(question).expect("a query can be written as a URL") {
        fields if fields.is_empty() => fields,
        fields => format!("?{fields}"),
    }
}
