//! `--run`: a shell command that runs while the server serves. The server stops when the command ends.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use block::env::Address;
use graph::spec::Planned;
use runtime::Signals;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use super::listen;
use crate::exit::{Failure, Result};

/// The running shell command of `--run`.
pub struct Command {
    pid: Pid,
    ended: oneshot::Receiver<u8>,
}

impl Command {
    /// Starts the shell command `line`, with the URI, socket and size of the first export in its environment.
    pub fn start(line: &str, planned: &Planned, signals: &Signals) -> Result<Self> {
        let (export, at) = match (planned.exports.first(), planned.listens.first()) {
            (Some(export), Some(at)) => (export, at),
            _ => fail!(Usage, "--run needs an export; the spec has none"),
        };
        let socket = match &at.address {
            Address::Unix(path) => listen::absolute(path),
            Address::Tcp(..) => String::new(),
        };
        let mut command = std::process::Command::new("/bin/sh");
        command
            .args(["-c", line])
            .env("uri", listen::uri(at, &export.name))
            .env("unixsocket", socket)
            .env("size", export.info.data_bytes().to_string())
            .stdin(Stdio::inherit());
        let child = signals
            .let_through(|| command.spawn())
            .map_err(|error| Failure::io(&error, "starting /bin/sh"))?;
        let pid = Pid::from_child(&child);
        let (sender, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("cairn-run".to_owned())
            .spawn(move || {
                // The receiver is gone if the server was ordered to end at once.
                let _ = sender.send(status(child));
            })
            .map_err(|error| Failure::io(&error, "starting the thread of --run"))?;
        Ok(Self { pid, ended })
    }

    /// Waits until the command has ended. Returns its exit status in the shell's encoding.
    pub async fn ended(&mut self) -> u8 {
        (&mut self.ended).await.unwrap_or(1)
    }

    /// Sends SIGTERM to the command.
    pub fn terminate(&self) {
        // The command may just have ended by itself.
        let _ = kill_process(self.pid, Signal::TERM);
    }
}

fn status(mut child: Child) -> u8 {
    match child.wait() {
        Ok(status) => {
            let killed = || status.signal().map_or(1, |signal| 128 + signal);
            status.code().unwrap_or_else(killed) as u8
        }
        Err(_) => 1,
    }
}
