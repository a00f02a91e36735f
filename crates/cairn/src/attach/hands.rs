//! A process of its own for whatever can wait for a device that this process serves: loop devices,
//! mounts, the last flush. If the server is killed meanwhile the device fails, and so this ends too; a
//! thread of the server would wait for the device, and the device for the end of that thread.
//!
//! It is this program under another name, asked on its standard input and answering on its standard
//! output.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use api::Problem;
use attach::{Connected, Name, Release, Wanted};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::exit::{Exit, Failure, Result};
use crate::serve::process;

/// The name under which this program is the hands.
pub const NAME: &str = "cairn-hands";

/// What is to be done for a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The name.
    pub name: String,
    /// What.
    pub step: Step,
}

/// A step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Make the way free.
    Prepare,
    /// From the mounted file to the named device.
    Connect {
        /// Its block.
        block_bytes: u32,
        /// Whether it may only be read.
        read_only: bool,
    },
    /// Be as large as what is behind it.
    Resize,
    /// From the server that listens for the name to the named device of the kernel's NBD client.
    ConnectNbd {
        /// What the server calls it.
        export: String,
        /// Its block.
        block_bytes: u32,
        /// Whether it may only be read.
        read_only: bool,
    },
    /// Flush, and remove everything.
    Release {
        /// How long to wait for users.
        patience: Duration,
        /// Past that, leave it to them.
        give_up: bool,
    },
    /// Remove what there is without waiting for anybody.
    Clear,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The device that was connected.
    pub device: Option<PathBuf>,
    /// Whether it goes past the page cache.
    pub direct: bool,
    /// Why the device that was released could not be flushed.
    pub unflushed: Option<Problem>,
}

impl Done {
    fn connected(Connected { device, direct }: Connected) -> Self {
        Self { device: Some(device), direct, ..Self::default() }
    }
}

impl Job {
    /// Does it in a process of its own.
    ///
    /// # Errors
    /// As the step, and what keeps a process from being started.
    pub async fn run(self) -> Result<Done> {
        let (tell, told) = oneshot::channel();
        let begun = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            // If nobody waits any more the job is done all the same.
            let _ = tell.send(self.run_apart());
        });
        begun.map_err(|error| Failure::io(&error, "starting a thread"))?;
        told.await.map_err(|_| Failure::new(Exit::Other, "the hands gave no answer"))?
    }

    fn run_apart(&self) -> Result<Done> {
        let failed = |error: &std::io::Error| Failure::io(error, NAME);
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let asked = child.stdin.take().expect("it is piped");
        // A child that has gone says so by its answer, which is none.
        let _ = serde_json::to_writer(asked, self);
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        let answer: Result<Done, Problem> =
            serde_json::from_slice(&output.stdout).map_err(|_| {
                Failure::new(
                    Exit::Other,
                    format!("{NAME} ended without an answer: {}", output.status),
                )
            })?;
        Ok(answer?)
    }

    /// Does it here and now.
    fn perform(&self) -> Result<Done> {
        let name: Name = self.name.parse()?;
        match &self.step {
            Step::Prepare => attach::prepare(&name)?,
            &Step::Connect { block_bytes, read_only } => {
                let wanted = Wanted { block_bytes, read_only };
                return Ok(Done::connected(attach::connect(&name, wanted)?));
            }
            &Step::ConnectNbd { ref export, block_bytes, read_only } => {
                let wanted = Wanted { block_bytes, read_only };
                return Ok(Done::connected(attach::connect_nbd(&name, export, wanted)?));
            }
            Step::Resize => attach::resize(&name)?,
            &Step::Release { patience, give_up } => {
                let unflushed = attach::release(&name, Release { patience, give_up })?;
                let unflushed = unflushed.map(|error| Failure::from(error).into());
                return Ok(Done { unflushed, ..Done::default() });
            }
            Step::Clear => attach::clear(&name)?,
        }
        Ok(Done::default())
    }
}

/// The whole life of that process.
pub fn main() -> ExitCode {
    process::take_name();
    let job: Result<Job, _> = serde_json::from_reader(std::io::stdin().lock());
    let answer = match job {
        Ok(job) => job.perform(),
        Err(error) => Err(Failure::new(Exit::Usage, format!("{NAME}: no job: {error}"))),
    };
    let answer = answer.map_err(Problem::from);
    // Whoever asked may be gone.
    let _ = serde_json::to_writer(std::io::stdout().lock(), &answer);
    ExitCode::SUCCESS
}
