//! Keeps the processors of the machine from sleeping while servers are measured.
//!
//! In a virtual machine the host takes an idle processor back, and needs longer than a request to return the processor:
//! the measurement would be one of the host. Processes of the idle scheduling class run only when no other process
//! wants to run, and yield at once. They affect every server equally.

use std::process::{Child, Command, Stdio};

/// Processes that fill the idle time of all processors. They are killed on drop.
pub struct Awake(Vec<Child>);

impl Awake {
    /// Starts one such process for each processor.
    pub fn begin() -> Result<Self, String> {
        let mut all = Self(Vec::new());
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let child = Command::new("chrt")
                .args(["--idle", "0", "sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
                .map_err(|error| format!("chrt: {error}; install util-linux"))?;
            all.0.push(child);
        }
        Ok(all)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
