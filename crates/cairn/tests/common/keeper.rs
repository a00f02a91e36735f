//! A running `cairn daemon`, in a temporary directory of the test.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use api::{DaemonView, KeptGraph};

use super::{Dir, PATIENCE, Ran, send, tool, until};

pub struct Daemon<'d> {
    pub dir: &'d Dir,
    child: Option<Child>,
}

impl<'d> Daemon<'d> {
    /// Starts `cairn daemon`, and waits until the daemon answers and none of its graphs is about to start.
    pub fn start(dir: &'d Dir) -> Self {
        Self::with(dir, &[])
    }

    pub fn with(dir: &'d Dir, args: &[&str]) -> Self {
        let mut daemon = Self { dir, child: None };
        daemon.child = Some(daemon.spawn(args));
        daemon.settled();
        daemon
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path("log"));
        let mut command = self.dir.command(&[&["daemon", "--state", "state"], args].concat());
        command.env("XDG_STATE_HOME", self.dir.path("nowhere"));
        command.stdout(Stdio::null()).stderr(log.unwrap()).spawn().unwrap()
    }

    /// Waits until the daemon answers and none of its graphs is about to start.
    pub fn settled(&self) {
        let is_on_its_way = |graph: &KeptGraph| {
            matches!(graph.phase, api::Phase::Starting)
                || graph.starts == 0 && graph.problem.is_none()
        };
        until("the daemon has begun", || {
            self.view().is_some_and(|view| {
                Some(view.pid) == self.child.as_ref().map(Child::id)
                    && !view.graphs.iter().any(is_on_its_way)
            })
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn view(&self) -> Option<DaemonView> {
        api::Client::new(self.dir.path("run/cairn/daemon.sock")).get(&api::routes::DAEMON).ok()
    }

    pub fn graph(&self, name: &str) -> KeptGraph {
        let graphs = self.view().expect("the daemon answers").graphs;
        graphs.into_iter().find(|graph| graph.name == name).expect("it is kept")
    }

    /// Waits until the graph `name` is up, and returns the process id of its worker.
    pub fn worker(&self, name: &str) -> u32 {
        until("it is up", || self.graph(name).phase == api::Phase::Up);
        self.graph(name).pid.unwrap()
    }

    /// Kills the worker of the graph `name`, and waits until the next worker is up. Returns the time between the two.
    pub fn kill_worker(&self, name: &str) -> Duration {
        let old = self.worker(name);
        let begun = Instant::now();
        send(old, "KILL");
        until("another process is up", || {
            let graph = self.graph(name);
            graph.phase == api::Phase::Up && graph.pid != Some(old)
        });
        begun.elapsed()
    }

    /// Kills the daemon with SIGKILL; its workers go on.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts another daemon in the directory. If the old daemon still runs, the new daemon asks for a hand-over.
    pub fn start_again(&mut self, args: &[&str]) {
        let old = self.child.take();
        self.child = Some(self.spawn(args));
        self.settled();
        if let Some(old) = old {
            // The new daemon asked the old one to end.
            assert_eq!(end(old).code, 0, "{}", self.log());
        }
    }

    /// Stops the daemon with SIGTERM, and returns its exit code.
    pub fn stop(&mut self) -> i32 {
        send(self.pid(), "TERM");
        end(self.child.take().unwrap()).code
    }

    /// Waits until the daemon has ended, and returns its exit code.
    pub fn ended(&mut self) -> i32 {
        end(self.child.take().unwrap()).code
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path("log")).unwrap_or_default()
    }

    /// Returns the path of the daemon's record of the graph `name` in the state directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path("state").join(name).join("graph")
    }
}

fn end(mut child: Child) -> Ran {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ran::of(&child.wait_with_output().unwrap())
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let graphs = self.view().map(|view| view.graphs).unwrap_or_default();
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A worker outlives its daemon by design, so each is killed here.
        for pid in graphs.iter().filter_map(|graph| graph.pid) {
            let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

/// Returns the spec of a graph called `name`: a mirror over two labelled disks. Appends the text `more` to the spec.
pub fn mirror(name: &str, more: &str) -> String {
    format!(
        "name = \"{name}\"\n[disk]\n\
         a = {{ file = \"{name}-a.img\", size = \"16MiB\", create = true, label = true }}\n\
         b = {{ file = \"{name}-b.img\", size = \"16MiB\", create = true, label = true }}\n\
         [device]\npair = {{ kind = \"mirror\", on = [\"a\", \"b\"] }}\n\
         [export]\nvol = {{ on = \"pair\" }}\n{more}"
    )
}

/// Makes a directory with the spec `home.toml`: a mirror over two labelled disks.
pub fn home() -> Dir {
    let dir = Dir::new();
    dir.write("home.toml", &mirror("home", ""));
    dir
}

/// Returns the NBD URI of the export `vol` of `graph` under the daemon in `dir`.
pub fn uri(dir: &Dir, graph: &str) -> String {
    format!("nbd+unix:///vol?socket={}", dir.path(&format!("run/cairn/{graph}.sock")).display())
}

/// Runs a qemu-io command and a flush on the export `vol` of `graph`. Both must succeed.
pub fn io(dir: &Dir, graph: &str, command: &str) {
    let ran = tool(dir, "qemu-io", &["-f", "raw", &uri(dir, graph), "-c", command, "-c", "flush"]);
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{command}: {ran:?}");
}
