//! The program fio as a client under load: it writes, reads, and verifies the bytes of its reads.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Dir, send};

/// The time for which a load runs at least. A busy machine sends too few requests in less.
const SHORTEST: Duration = Duration::from_secs(2);
/// The time that fio may take to start.
const START: Duration = Duration::from_secs(20);

/// A running fio process, which sends requests until [`Load::end`].
pub struct Load<'d> {
    dir: &'d Dir,
    fio: Child,
    since: Instant,
}

impl<'d> Load<'d> {
    /// Starts fio on the block device at the path `device`.
    pub fn start(dir: &'d Dir, device: &str) -> Self {
        let file = format!("--filename={device}");
        Self::with(dir, &["--ioengine=libaio", "--direct=1", "--size=96M", &file])
    }

    /// Starts fio on the NBD export `uri`. fio does not reconnect after a lost connection.
    pub fn of_nbd(dir: &'d Dir, uri: &str) -> Self {
        Self::of_nbd_with(dir, uri, &["--size=24M"])
    }

    /// Starts fio on the NBD export `uri` with further options of fio.
    pub fn of_nbd_with(dir: &'d Dir, uri: &str, args: &[&str]) -> Self {
        Self::with(dir, &[&["--ioengine=nbd", &format!("--uri={uri}")], args].concat())
    }

    /// Starts fio with the options of every load and then `args`, and returns when its job begins. An option in `args`
    /// overrides the earlier value.
    pub fn with(dir: &'d Dir, args: &[&str]) -> Self {
        let mut fio = Command::new("fio");
        fio.args(["--name=load", "--rw=randrw", "--bsrange=4k-64k"]);
        fio.args(["--iodepth=8", "--fsync=64", "--verify=crc32c"]);
        fio.args(["--verify_fatal=1", "--time_based", "--runtime=600", "--verify_state_save=0"]);
        fio.args(["--output-format=json", "--output=fio.json"]).args(args);
        fio.arg("--exec_prerun=touch fio.began");
        fio.current_dir(&dir.0).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = fs::remove_file(dir.path("fio.began"));
        let mut load = Self { dir, fio: fio.spawn().unwrap(), since: Instant::now() };
        while !dir.path("fio.began").exists() {
            assert!(load.since.elapsed() < START, "fio did not begin in {START:?}");
            thread::sleep(Duration::from_millis(10));
        }
        load.since = Instant::now();
        load
    }

    /// Stops fio after [`SHORTEST`] or more, checks that no request failed and no byte that fio read was wrong. Returns the longest
    /// latency.
    pub fn end(mut self) -> Duration {
        thread::sleep(SHORTEST.saturating_sub(self.since.elapsed()));
        let said = || fs::read_to_string(self.dir.path("fio.json")).unwrap_or_default();
        let ended = self.fio.try_wait().unwrap();
        assert!(ended.is_none(), "fio has ended before it was told: {}", said());
        send(self.fio.id(), "INT");
        self.fio.wait().unwrap();
        let said = said();
        let said: serde_json::Value =
            serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
        let job = &said["jobs"][0];
        assert_eq!(job["error"], 0, "{said}");
        assert!(job["write"]["total_ios"].as_u64().unwrap() > 100, "{said}");
        let longest = ["read", "write", "sync"].map(|what| {
            let ns = &job[what][if what == "sync" { "lat_ns" } else { "clat_ns" }]["max"];
            Duration::from_nanos(ns.as_u64().unwrap_or_default())
        });
        println!(
            "read, write, sync: {longest:?} at most; {} reads, {} writes",
            job["read"]["total_ios"], job["write"]["total_ios"]
        );
        longest.into_iter().max().unwrap()
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let _ = self.fio.kill();
        let _ = self.fio.wait();
    }
}
