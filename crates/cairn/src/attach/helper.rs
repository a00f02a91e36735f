//! The helper process for steps that may wait for a device of the server: loop devices, mounts, the last flush. If
//! the server is killed during a step, the device fails, and so the helper ends too. A thread of the server instead
//! would wait for the device, and the kernel would not end the device before the thread.
//!
//! The helper is this program under another name. It reads a job from its standard input, and writes the result to
//! its standard output.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use api::Problem;
use attach::{Connected, Name, Release, Wanted};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::exit::{Failure, Result};
use crate::serve::process;

/// The program name (`argv[0]`) under which this program is the helper process.
pub const NAME: &str = "cairn-attach";

/// A step for the attached device of a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HelperJob {
    /// Name of the device in `/dev/cairn`.
    pub name: String,
    /// The step to carry out.
    pub step: Step,
}

/// A step of attaching or detaching a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Remove the parts of an earlier device of the same name.
    Prepare,
    /// Connect a loop device to the file of the mount.
    Connect(Wanted),
    /// Resize the device to the size of its backing.
    Resize,
    /// Connect a device of the kernel's NBD client to the server at the socket of the device's name. The text is the
    /// name of the export.
    ConnectNbd(String, Wanted),
    /// Check that the device could be released.
    CheckUnused,
    /// Flush the device, and remove it and its mount.
    Release(Release),
    /// Remove all parts of the device, even if they are in use.
    Clear,
}

/// The result of a step of attaching or detaching a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The device that a connecting step has connected.
    pub connected: Option<Connected>,
    /// The reason why a released device could not be flushed.
    pub unflushed: Option<Problem>,
}

impl HelperJob {
    /// Carries out the job in a helper process, and waits for the result.
    ///
    /// # Errors
    /// Errors of the step; errors of starting a process.
    pub async fn run(self) -> Result<Done> {
        let (sender, receiver) = oneshot::channel();
        let begun = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            // The job was done even if its caller has given up.
            let _ = sender.send(self.run_apart());
        });
        begun.map_err(|error| Failure::io(&error, "starting the thread of a helper process"))?;
        receiver.await.map_err(|_| failure!(Other, "the helper thread returned no result"))?
    }

    fn run_apart(&self) -> Result<Done> {
        let failed = |error: &std::io::Error| Failure::io(error, NAME);
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let asked = child.stdin.take().expect("the standard input of the helper process is piped");
        // If the child is gone, its missing answer reports that.
        let _ = serde_json::to_writer(asked, self);
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        let answer: Result<Done, Problem> =
            serde_json::from_slice(&output.stdout).map_err(|_| {
                failure!(Other, "the process {NAME} ended without a result: {}", output.status)
            })?;
        Ok(answer?)
    }

    /// Carries out the job in this process.
    fn perform(&self) -> Result<Done> {
        let name: Name = self.name.parse()?;
        let mut done = Done::default();
        match &self.step {
            Step::Prepare => attach::prepare(&name)?,
            Step::Connect(wanted) => done.connected = Some(attach::connect(&name, *wanted)?),
            Step::ConnectNbd(export, wanted) => {
                done.connected = Some(attach::connect_nbd(&name, export, *wanted)?);
            }
            Step::Resize => attach::resize(&name)?,
            Step::CheckUnused => attach::check_unused(&name)?,
            Step::Release(how) => {
                let unflushed = attach::release(&name, *how)?;
                done.unflushed = unflushed.map(|error| Failure::from(error).into());
            }
            Step::Clear => attach::clear(&name)?,
        }
        Ok(done)
    }
}

/// Runs the helper process: reads a job, carries it out, and writes its result.
pub fn main() -> ExitCode {
    process::take_name();
    let job: Result<HelperJob, _> = serde_json::from_reader(std::io::stdin().lock());
    let answer = match job {
        Ok(job) => job.perform(),
        Err(error) => Err(failure!(Usage, "{NAME}: standard input holds no job: {error}")),
    };
    let answer = answer.map_err(Problem::from);
    // The server may be gone.
    let _ = serde_json::to_writer(std::io::stdout().lock(), &answer);
    ExitCode::SUCCESS
}
