//! Kills of the worker and the daemon at random times, while sixteen threads write to an attached device. Each thread
//! checks that no acknowledged write is lost.
//!
//! `make torture` runs this test with `KILLS=200`. `SEED=` repeats the same times of kills and the same blocks.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::{GraphView, Phase};
use common::keeper::Daemon;
use common::machine::{Name, is_root};
use common::{Dir, send, until};

/// Number of writers, each with one request in flight.
const DEPTH: u64 = 16;

/// Bytes of each write, and the number of blocks of the device that the writers use.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 12 << 8;

/// The number of kills in a run of `make test`.
const KILLS_DEFAULT: u64 = 7;

/// The longest time that a request may wait for its reply after a kill, unless the next kill follows at once.
const PAUSE_MAX: Duration = Duration::from_secs(5);

const SPEC: &str = "name = \"home\"\n[disk]\n\
    a = { file = \"a.img\", size = \"16MiB\", create = true, label = true }\n\
    b = { file = \"b.img\", size = \"16MiB\", create = true, label = true }\n\
    [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
    [export]\nvol = { on = \"pair\" }\n";

/// The operation of the graph that is in progress when the test kills the worker or the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum During {
    Requests,
    Rebuild,
    Insert,
    Remove,
    Move,
    Recovery,
}

const DURING: [During; 6] = [
    During::Rebuild,
    During::Insert,
    During::Remove,
    During::Move,
    During::Recovery,
    During::Requests,
];

/// A pseudo-random number generator with a seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

fn number(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect("it is a number"))
}

/// A buffer of one block, aligned for O_DIRECT.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

impl Aligned {
    /// Fills the buffer with the content of write number `count` to block `number`. Every 8 bytes hold both numbers.
    fn fill(&mut self, number: u64, count: u64) {
        for (n, word) in self.0.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(count << 32 | number << 9 | n as u64).to_le_bytes());
        }
    }

    /// Whether the buffer has the content of write number `count` to block `number`; zeros for `count` 0.
    fn is(&self, number: u64, count: u64) -> bool {
        let mut words = self.0.chunks_exact(8).enumerate();
        words.all(|(n, word)| {
            let is = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            is == if count == 0 { 0 } else { count << 32 | number << 9 | n as u64 }
        })
    }

    fn counts(&self) -> Vec<u64> {
        let word =
            |sector: &[u8]| u64::from_le_bytes(sector[..8].try_into().expect("8 bytes")) >> 32;
        self.0.chunks_exact(512).map(word).collect()
    }
}

/// A thread that writes to its own blocks of the attached device, and knows the content of each block.
struct Writer {
    device: File,
    draw: Draw,
    first: u64,
    /// Number of writes of this writer to each of its blocks.
    counts: Vec<u64>,
    buf: Box<Aligned>,
    done: Arc<AtomicU64>,
    longest: Arc<Mutex<Duration>>,
}

impl Writer {
    fn number(&self, block: u64) -> u64 {
        self.first + block * DEPTH
    }

    fn write(&mut self, block: u64) -> Result<(), String> {
        let (number, count) = (self.number(block), self.counts[block as usize] + 1);
        self.buf.fill(number, count);
        let wrote = self.device.write_all_at(&self.buf.0, number * BLOCK as u64);
        wrote.map_err(|error| format!("write of block {number}: {error}"))?;
        self.counts[block as usize] = count;
        Ok(())
    }

    fn read(&mut self, block: u64) -> Result<(), String> {
        let (number, count) = (self.number(block), self.counts[block as usize]);
        let read = self.device.read_exact_at(&mut self.buf.0, number * BLOCK as u64);
        read.map_err(|error| format!("read of block {number}: {error}"))?;
        if self.buf.is(number, count) {
            return Ok(());
        }
        let is = self.buf.counts();
        Err(format!("block {number} was written {count} times, and its sectors are of {is:?}"))
    }

    fn step(&mut self) -> Result<(), String> {
        let block = self.draw.below(self.counts.len() as u64);
        match self.draw.below(32) {
            0 => self.device.sync_data().map_err(|error| format!("flush: {error}")),
            n if n < 20 => self.write(block),
            _ => self.read(block),
        }
    }

    /// Writes and reads blocks until `stop` is set, and then reads and checks all blocks of the writer once more.
    fn work(mut self, stop: &AtomicBool) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            self.step()?;
            self.done.fetch_add(1, Ordering::Relaxed);
            let mut longest = self.longest.lock().expect("nobody panics with it");
            *longest = begun.elapsed().max(*longest);
        }
        (0..self.counts.len() as u64).try_for_each(|block| self.read(block))
    }
}

/// The running writers, with their common counters and their first error.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    longest: Arc<Mutex<Duration>>,
    wrong: Arc<Mutex<Option<String>>>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(device: &str, seed: u64) -> Self {
        let (stop, done, longest, wrong, writers) = Default::default();
        let mut load = Self { stop, done, longest, wrong, writers };
        load.writers = (0..DEPTH).map(|n| load.writer(device, seed, n)).collect();
        load
    }

    fn writer(&self, device: &str, seed: u64, n: u64) -> JoinHandle<()> {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let device = File::options().read(true).write(true).custom_flags(direct).open(device);
        let writer = Writer {
            device: device.unwrap(),
            draw: Draw(seed ^ ((n + 1) << 40) | 1),
            first: n,
            counts: vec![0; (BLOCKS / DEPTH) as usize],
            buf: Box::new(Aligned([0; BLOCK])),
            done: self.done.clone(),
            longest: self.longest.clone(),
        };
        let (stop, wrong) = (self.stop.clone(), self.wrong.clone());
        std::thread::spawn(move || {
            if let Err(why) = writer.work(&stop) {
                wrong.lock().expect("nobody panics with it").get_or_insert(why);
                stop.store(true, Ordering::Relaxed);
            }
        })
    }

    /// Waits until the writers have completed sixteen more requests. Checks that no request failed or read wrong bytes.
    fn is_well(&self, when: &str) {
        let before = self.done.load(Ordering::Relaxed);
        let is_over = || self.stop.load(Ordering::Relaxed);
        until("clients are answered", || {
            is_over() || self.done.load(Ordering::Relaxed) >= before + DEPTH
        });
        let wrong = self.wrong.lock().expect("nobody panics with it");
        assert!(wrong.is_none(), "{when}: {}", wrong.as_ref().unwrap());
    }

    /// Stops the writers. Returns the number of completed requests, and the longest latency of a request.
    fn end(mut self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.drain(..).for_each(|writer| writer.join().expect("it does not panic"));
        let wrong = self.wrong.lock().expect("nobody panics with it").take();
        assert!(wrong.is_none(), "at the end: {}", wrong.unwrap());
        (self.done.load(Ordering::Relaxed), *self.longest.lock().expect("nobody panics with it"))
    }
}

/// The daemon and the graph under test, with the random choices of the test and the number of kills so far.
struct Trial<'d> {
    dir: &'d Dir,
    daemon: Daemon<'d>,
    draw: Draw,
    /// The file of the mirror's second member.
    second: String,
    /// The file of the mirror's third member; `None` if the mirror has two members.
    third: Option<String>,
    files: u64,
    kills: u64,
}

impl Trial<'_> {
    fn nodes(&self) -> Vec<String> {
        let graph: GraphView = self.dir.json(0, &["graph"]);
        graph.nodes.into_iter().map(|node| node.name).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.nodes().iter().any(|node| node == name)
    }

    fn new_file(&mut self) -> String {
        self.files += 1;
        let name = format!("disk{}.img", self.files);
        self.dir.text(&["create", &name, "16M"]);
        name
    }

    fn in_sync(&self) {
        until("all members are in sync", || self.dir.cairn(&["status"]).code == 0);
    }

    /// Kills the worker of the graph, and waits until the next worker is up.
    fn kill(&mut self) {
        self.kills += 1;
        self.daemon.kill_worker("home");
    }

    /// Kills the worker of the graph, and kills the next worker while that worker starts.
    fn kill_twice(&mut self) {
        let old = self.daemon.worker("home");
        send(old, "KILL");
        let pid = || self.daemon.graph("home").pid.filter(|pid| *pid != old);
        until("another process is there", || pid().is_some());
        let next = pid().expect("it is there");
        std::thread::sleep(self.draw.millis(0, 80));
        // If it is up by now, this is one more kill under load.
        let _ = Command::new("kill").args(["-KILL", &next.to_string()]).status();
        self.kills += 2;
        until("a third one is up", || {
            let graph = self.daemon.graph("home");
            graph.phase == Phase::Up && graph.pid != Some(next)
        });
    }

    /// Starts the `cairn` command `args`, and kills the worker during the command or just after its end.
    fn kill_within(&mut self, args: &[&str]) {
        let mut command = self.dir.command(args);
        let child: Child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(self.draw.millis(0, 150));
        self.kill();
        // The command may have succeeded or not.
        let _ = child.wait_with_output();
    }

    fn round(&mut self, during: During) {
        match during {
            During::Requests => {
                std::thread::sleep(self.draw.millis(200, 5000));
                self.kill();
            }
            During::Recovery => self.kill_twice(),
            During::Rebuild => {
                self.in_sync();
                self.second = self.new_file();
                let file = self.second.clone();
                self.dir.text(&["device", "replace", "home/b", &file]);
                std::thread::sleep(self.draw.millis(0, 300));
                self.kill();
            }
            During::Insert => {
                self.in_sync();
                if self.third.take().is_some() {
                    self.dir.text(&["device", "remove", "home/c", "--yes"]);
                }
                let file = self.new_file();
                self.kill_within(&["device", "insert", "home/c", &file, "--wipe"]);
                self.third = self.has("c").then_some(file);
            }
            During::Remove => {
                if self.third.is_none() {
                    let file = self.new_file();
                    self.dir.text(&["device", "insert", "home/c", &file]);
                    self.third = Some(file);
                }
                self.in_sync();
                self.kill_within(&["device", "remove", "home/c", "--yes"]);
                self.third = self.third.take().filter(|_| self.has("c"));
            }
            During::Move => self.kill_in_move(),
        }
    }

    /// Starts a migration that encrypts or decrypts the volume in place, and kills the worker during the migration.
    fn kill_in_move(&mut self) {
        self.in_sync();
        let disk =
            |name: &str, file: &str| format!("{name} = {{ file = \"{file}\", label = true }}\n");
        let mut disks = disk("a", "a.img") + &disk("b", &self.second);
        let mut members = "\"a\", \"b\"".to_owned();
        if let Some(third) = &self.third {
            disks += &disk("c", third);
            members += ", \"c\"";
        }
        let is_safe = self.has("safe");
        let (safe, on) = match is_safe {
            true => ("", "pair"),
            false => (
                "safe = { kind = \"crypt\", on = \"pair\", plain = true, key = \"file:key\" }\n",
                "safe",
            ),
        };
        let spec = format!(
            "name = \"home\"\n[disk]\n{disks}[device]\n\
             pair = {{ kind = \"mirror\", on = [{members}] }}\n{safe}\
             [export]\nvol = {{ on = \"{on}\" }}\n"
        );
        self.dir.write("next.toml", &spec);
        self.dir.text(&["apply", "next.toml", "--move"]);
        std::thread::sleep(self.draw.millis(0, 700));
        self.kill();
        until("the bytes are there", || {
            let nodes = self.nodes();
            !nodes.iter().any(|node| node.contains("move"))
                && nodes.iter().any(|node| node == "safe") != is_safe
        });
    }

    /// Kills the daemon, and starts the next daemon, which adopts the running worker.
    fn kill_daemon(&mut self) {
        self.daemon.kill();
        std::thread::sleep(self.draw.millis(0, 300));
        self.daemon.start_again(&[]);
    }

    /// Erases some blocks on every disk while no worker runs, to prove that the writers notice lost bytes.
    fn lose_blocks(&mut self) {
        let daemon = self.daemon.pid();
        let worker = self.daemon.worker("home");
        send(daemon, "STOP");
        send(worker, "KILL");
        until("it is gone", || !std::path::Path::new(&format!("/proc/{worker}/fd/0")).exists());
        let files = ["a.img".to_owned(), self.second.clone()].into_iter().chain(self.third.clone());
        for file in files {
            let disk = File::options().write(true).open(self.dir.path(&file)).unwrap();
            disk.write_all_at(&vec![0; 256 * BLOCK], (1 << 20) + 1024 * BLOCK as u64).unwrap();
        }
        send(daemon, "CONT");
        let up = || self.daemon.graph("home");
        until("another one is up", || up().phase == Phase::Up && up().pid != Some(worker));
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.daemon.log();
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("the daemon's last words:");
            last.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
    }
}

#[test]
fn attached_device_keeps_acknowledged_writes_under_random_kills() {
    if !is_root() {
        return;
    }
    let kills = number("KILLS").unwrap_or(KILLS_DEFAULT);
    let seed = number("SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let sabotage = std::env::var("SABOTAGE").is_ok_and(|what| what == "lose");
    let dir = Dir::new();
    dir.write(
        "key",
        &"a key of sixty-four bytes, as plain encryption wants it to be. ".repeat(2)[..64],
    );
    dir.write("home.toml", SPEC);
    let daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let name = Name::new(&dir);
    name.attach("vol");
    println!("SEED={seed} KILLS={kills}");
    let load = Load::start(&name.shown(), seed);
    let (second, third) = ("b.img".to_owned(), None);
    let draw = Draw(seed << 8 | 0xa5);
    let mut trial = Trial { dir: &dir, daemon, draw, second, third, files: 0, kills: 0 };
    let mut rounds = 0;
    while trial.kills < kills {
        let during = DURING[rounds % DURING.len()];
        rounds += 1;
        trial.round(during);
        load.is_well(&format!("SEED={seed}, round {rounds} ({during:?})"));
        if rounds % 5 == 0 {
            trial.kill_daemon();
        }
        if sabotage && trial.kills * 2 >= kills {
            trial.lose_blocks();
        }
    }
    trial.in_sync();
    let (done, longest) = load.end();
    println!("{} kills in {rounds} rounds: {done} requests, the longest {longest:?}", trial.kills);
    assert!(longest < PAUSE_MAX * 2, "{longest:?}");
    name.detach_well();
    assert_eq!(trial.daemon.stop(), 0, "{}", trial.daemon.log());
}
