//! Keeps the processors from sleeping while servers are measured.
//!
//! In a virtual machine a processor with nothing to do is given back to the host, and to have it again
//! takes longer than a request: what is measured then is the host. Processes of the idle class run
//! only when nobody else wants to, and leave at once; every server has the same of it.

use std::process::{Child, Command, Stdio};

/// Processes that fill idle time. They end when it is dropped.
pub struct Awake(Vec<Child>);

impl Awake {
    /// One for each processor.
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
