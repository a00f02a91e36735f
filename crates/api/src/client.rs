//! The client of a control socket. Each question uses a connection of its own.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use block::control::{Nothing, Verb};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::routes::{COMMAND, FOLLOW, PATIENCE, Route};
use crate::{CommandRequest, EventLine, EventsAfter, Problem};

/// The longest answer that is read. It is several times as long as the view of a graph with the most devices.
pub const ANSWER_MAX_BYTES: u64 = 64 << 20;

/// The longest line of a continuing response, and the longest head of a response.
const LINE_MAX_BYTES: u64 = 1 << 20;

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

    /// Asks a question without fields.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn get<A: DeserializeOwned>(&self, route: &Route<Nothing, A>) -> Answer<A> {
        self.ask(route, &Nothing {})
    }

    /// Asks a question, and returns the answer.
    ///
    /// # Errors
    /// An error of the server, or the reason why it was not reached.
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
            stream.set_read_timeout(Some(route.patience))?;
            stream.write_all(request.as_bytes())?;
            stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer)
        });
        exchanged.map_err(|error| self.lost(&error))?;
        self.parse(&answer)
    }

    /// Passes the events with a number above `after` to `each`: first the past ones, then new ones as they happen.
    /// Ends when the server does, or when `each` returns false.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn follow(&self, after: u64, mut each: impl FnMut(EventLine) -> bool) -> Answer<()> {
        // In HTTP/1.0, the response has no chunks, and ends only with the connection.
        let query = query(&EventsAfter { after });
        let request = format!("GET {}{query} HTTP/1.0\r\n\r\n", FOLLOW.path);
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

    /// Carries out a command of verb `V` on a device.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn command<V: Verb>(&self, device: &str, args: &V::Args) -> Answer<V::Answer> {
        let (device, verb) = (device.to_owned(), V::INFO.name.to_owned());
        let args = serde_json::to_value(args).map_err(|why| self.strange(why))?;
        let answer = self.ask(&COMMAND, &CommandRequest { device, verb, args })?;
        serde_json::from_value(answer).map_err(|why| self.strange(why))
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
            "the server at {shown} ended before it answered; the request may be done, \
                         or not"
        );
        Problem::new(8, message)
            .next("cairn status; cairn undo --list shows whether a change is done")
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

/// Returns the query of a question, with its question mark, if it has fields.
fn query(question: &impl Serialize) -> String {
    match serde_urlencoded::to_string(question).expect("a query can be written as a URL") {
        fields if fields.is_empty() => fields,
        fields => format!("?{fields}"),
    }
}
