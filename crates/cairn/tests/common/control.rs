//! Requests to the control socket of a graph, without the client of the API.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::{Dir, Serve};

/// The control socket of a running graph.
pub struct Control(PathBuf);

impl Control {
    pub fn of(dir: &Dir, graph: &str, serve: &Serve) -> Self {
        Self(dir.path(&format!("run/cairn/control/{graph}-{}.sock", serve.pid())))
    }

    /// Sends a request as it is, and returns the response.
    pub fn send(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(&self.0).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    }

    /// Posts a body of the content type `kind`.
    pub fn post(&self, path: &str, kind: &str, body: &str) -> String {
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ))
    }
}
