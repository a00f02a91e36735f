//! The measurements of the suite: groups of servers that run at the same time, and the rows of the table with their
//! loads.

use std::time::Duration;

use bench::load::{Load, Pattern, Verify};

use crate::server::{Recipe, Serves, words};

/// Servers that run at the same time, and the rows that compare them. The suite starts and fills a server once for all
/// rows, and two rows with the same load on the same server share its rounds.
pub struct Group {
    /// How the suite starts each server of the group.
    pub recipes: Vec<Recipe>,
    /// Size in bytes of each server's volume.
    pub size: u64,
    /// Whether the suite fills the volumes before the measurement. It fills files in any case.
    pub filled: bool,
    /// The rows that compare servers of this group.
    pub rows: Vec<Row>,
}

/// A row of the table: one load on a Cairn server and on the servers that it is compared with (its peers).
#[derive(Clone)]
pub struct Row {
    /// Short name of the row, by which `--only` selects it.
    pub id: &'static str,
    /// Title of the row: what was measured.
    pub title: &'static str,
    /// The load that each server of the row gets.
    pub load: Load,
    /// Name of the recipe of the Cairn server.
    pub ours: &'static str,
    /// Names of the recipes of the peers. The Cairn server is compared with the best peer.
    pub peers: &'static [&'static str],
    /// Whether the time of the cipher of `crypt` alone is added to the time of the peer's requests.
    pub cipher: bool,
    /// Whether fio with its io_uring engine also runs directly on a file, without a server.
    pub direct: bool,
    /// Whether fio with its nbd engine is the client instead of the suite's own client, as a second opinion. The
    /// processor time in the results is then the time of fio.
    pub by_fio: bool,
    /// The figure that the Cairn server must reach.
    pub target: Target,
}

/// The figure that the Cairn server of a row must reach.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// At least this many times the requests per second of the best peer.
    TimesBest(f64),
    /// At least this many times the requests per second of fio directly on a file, with at most this share of the best
    /// peer's processor time for each request.
    TimesDirect(f64, f64),
    /// At least this many times the requests per second of the best peer with O_DIRECT, with at most this share of its
    /// processor time for each request.
    TimesBestAtCpu(f64, f64),
    /// No target; the table only shows the figure.
    Shown,
}

use Pattern::{Mixed, RandomRead, RandomWrite, SequentialRead, SequentialWrite};

const GIB: u64 = 1 << 30;

/// Length of a round without the argument `--millis`.
pub const ROUND: Duration = Duration::from_secs(1);

/// Time with requests before each round: 40,000 requests of the fastest server, a dozen turns of the slowest.
const WARM_UP: Duration = Duration::from_millis(75);

/// Returns all groups of servers that the suite measures.
pub fn all() -> Vec<Group> {
    vec![null(), memory(), tls(), file(), attached()]
}

impl Group {
    /// Keeps the rows with `part` in their names, and the servers that these rows need. Sets the length of a round to
    /// `time`.
    pub fn only(mut self, part: &str, time: Duration) -> Self {
        self.rows.retain(|row| row.id.contains(part));
        self.rows.iter_mut().for_each(|row| row.load.time = time);
        self.recipes.retain(|recipe| {
            self.rows.iter().any(|row| row.ours == recipe.name || row.peers.contains(&recipe.name))
        });
        self
    }
}

impl Row {
    fn new(id: &'static str, title: &'static str, load: Load, target: Target) -> Self {
        let (ours, peers): (_, &[_]) = ("cairn", &["nbdkit"]);
        let (cipher, direct, by_fio) = (false, false, false);
        Self { id, title, load, ours, peers, cipher, direct, by_fio, target }
    }

    /// Sets the peers of the row, instead of nbdkit.
    fn beside(self, peers: &'static [&'static str]) -> Self {
        Self { peers, ..self }
    }

    /// Compares the Cairn server `ours`, whose graph has one more kind, with the Cairn server `cairn` without that
    /// kind.
    fn of(self, ours: &'static str) -> Self {
        Self { ours, peers: &["cairn"], ..self }
    }
}

fn load(pattern: Pattern, connections: u32, depth: u32, block: u32) -> Load {
    Load {
        pattern,
        connections,
        depth,
        block,
        shift: 0,
        warm_up: WARM_UP,
        time: ROUND,
        span: None,
        verify: Verify::Nothing,
        flush_every: None,
        structured: false,
    }
}

/// Makes the client compare every read of the load.
fn verified(load: Load) -> Load {
    Load { verify: Verify::Everything, ..load }
}

fn cairn(spec: &str) -> Recipe {
    ours("cairn", spec)
}

fn ours(name: &'static str, spec: &str) -> Recipe {
    let command = vec!["target/release/cairn".into(), "serve".into(), spec.into()];
    Recipe { name, command, serves: Serves::Nbd("vol"), file: None }
}

fn nbdkit(arguments: &str) -> Recipe {
    let command = words(&format!("nbdkit --foreground --unix {{socket}} {arguments}"));
    Recipe { name: "nbdkit", command, serves: Serves::Nbd(""), file: None }
}

fn qsd(name: &'static str, blockdev: &str) -> Recipe {
    let command = words(&format!(
        "qemu-storage-daemon --blockdev {blockdev} --nbd-server addr.type=unix,addr.path={{socket}} \
         --export nbd,id=e,node-name=n,name=vol,writable=on"
    ));
    Recipe { name, command, serves: Serves::Nbd("vol"), file: None }
}

fn null() -> Group {
    let recipes = vec![
        cairn("examples/null.toml"),
        nbdkit("null {size}"),
        qsd("qsd", "driver=null-co,node-name=n,size={size},read-zeroes=on"),
        ours("devices16", "examples/devices16.toml"),
    ];
    let reads = load(RandomRead, 1, 32, 4096);
    let rows = vec![
        Row::new(
            "null-rr-q32",
            "null, 4 KiB random reads, depth 32",
            reads.clone(),
            Target::TimesBest(3.0),
        )
        .beside(&["nbdkit", "qsd"]),
        Row::new(
            "null-rw-q32",
            "null, 4 KiB random writes, depth 32",
            load(RandomWrite, 1, 32, 4096),
            Target::TimesBest(3.0),
        )
        .beside(&["nbdkit", "qsd"]),
        Row {
            by_fio: true,
            ..Row::new(
                "null-mixed-q32-fio",
                "seven reads for three writes, fio's nbd engine as the client",
                load(Mixed, 1, 32, 4096),
                Target::Shown,
            )
        },
        Row::new(
            "null-rr-q1",
            "null, 4 KiB random reads, depth 1",
            load(RandomRead, 1, 1, 4096),
            Target::TimesBest(1.0),
        ),
        Row::new(
            "devices16-rr-q32",
            "16 async devices on null beside none, 4 KiB random reads, depth 32",
            reads,
            Target::Shown,
        )
        .of("devices16"),
    ];
    Group { recipes, size: GIB, filled: false, rows }
}

fn memory() -> Group {
    let recipes = vec![
        cairn("examples/memory.toml"),
        nbdkit("memory {size}"),
        ours("stripe", "bench/specs/stripe-memory.toml"),
        ours("mirror", "bench/specs/mirror-memory.toml"),
        ours("crypt", "bench/specs/crypt-memory.toml"),
        Recipe { name: "blocksize", ..nbdkit("--filter=blocksize memory {size} minblock=4k") },
    ];
    let rows = [memory_beside_nbdkit(), kinds_on_memory(), unaligned()].concat();
    Group { recipes, size: GIB, filled: true, rows }
}

fn memory_beside_nbdkit() -> Vec<Row> {
    let row = |id, title, pattern, depth, block, wanted| {
        Row::new(id, title, verified(load(pattern, 1, depth, block)), Target::TimesBest(wanted))
    };
    vec![
        row("memory-rr-q32", "memory, 4 KiB random reads, depth 32", RandomRead, 32, 4096, 3.0),
        row("memory-rw-q32", "memory, 4 KiB random writes, depth 32", RandomWrite, 32, 4096, 2.5),
        row("memory-rr-q1", "memory, 4 KiB random reads, depth 1", RandomRead, 1, 4096, 1.0),
        row("memory-rw-q1", "memory, 4 KiB random writes, depth 1", RandomWrite, 1, 4096, 1.0),
        row(
            "memory-read-64k",
            "memory, 64 KiB sequential reads, depth 16",
            SequentialRead,
            16,
            64 << 10,
            0.95,
        ),
        row(
            "memory-write-64k",
            "memory, 64 KiB sequential writes, depth 16",
            SequentialWrite,
            16,
            64 << 10,
            0.95,
        ),
        row(
            "memory-read-1m",
            "memory, 1 MiB sequential reads, depth 8",
            SequentialRead,
            8,
            1 << 20,
            0.95,
        ),
        row(
            "memory-write-1m",
            "memory, 1 MiB sequential writes, depth 8",
            SequentialWrite,
            8,
            1 << 20,
            0.95,
        ),
    ]
}

/// Returns the rows for kinds on memory disks: target 0.9 of one memory disk, or of one memory disk and the kind's own
/// cipher.
fn kinds_on_memory() -> Vec<Row> {
    let random = verified(load(RandomRead, 1, 32, 4096));
    let long = verified(load(SequentialRead, 1, 16, 64 << 10));
    let row = |id, title, load, ours| Row::new(id, title, load, Target::TimesBest(0.9)).of(ours);
    vec![
        row(
            "stripe-rr-q32",
            "a stripe of two memory disks beside one, 4 KiB random reads, depth 32",
            random.clone(),
            "stripe",
        ),
        row(
            "mirror-rr-q32",
            "a mirror of two memory disks beside one, 4 KiB random reads, depth 32",
            random.clone(),
            "mirror",
        ),
        Row {
            cipher: true,
            ..row(
                "crypt-rr-q32",
                "crypt on memory beside memory and the cipher, 4 KiB random reads, depth 32",
                random,
                "crypt",
            )
        },
        Row {
            cipher: true,
            ..row(
                "crypt-read-64k",
                "crypt on memory beside memory and the cipher, 64 KiB sequential reads, depth 16",
                long,
                "crypt",
            )
        },
    ]
}

/// Returns the rows for requests that begin and end inside blocks of 4 KiB, where a server reads before it writes.
fn unaligned() -> Vec<Row> {
    let row = |id, title, pattern| {
        let load = Load { shift: 512, ..verified(load(pattern, 1, 32, 4096)) };
        // Cairn encrypts as well, and has no other device with such blocks in memory.
        let row = Row::new(id, title, load, Target::Shown);
        Row { ours: "crypt", peers: &["blocksize"], ..row }
    };
    vec![
        row(
            "unaligned-rr-q32",
            "crypt on memory beside nbdkit's blocksize filter on memory, 4 KiB random reads at 512 B beyond a block, depth 32",
            RandomRead,
        ),
        row(
            "unaligned-rw-q32",
            "crypt on memory beside nbdkit's blocksize filter on memory, 4 KiB random writes at 512 B beyond a block, depth 32",
            RandomWrite,
        ),
    ]
}

/// Returns the group for TLS: one TCP connection within this machine for each server, with the same cipher.
fn tls() -> Group {
    let recipes = vec![
        Recipe { serves: Serves::Nbds("vol"), ..cairn("bench/specs/tls-memory.toml") },
        Recipe {
            name: "openssl",
            command: words(
                "openssl s_server -accept 127.0.0.1:{port} -tls1_3 -ciphersuites {cipher} \
                 -cert {dir}/server-cert.pem -key {dir}/server-key.pem -HTTP -quiet",
            ),
            serves: Serves::Stream,
            file: None,
        },
    ];
    let reads = Load { verify: Verify::WarmUp, ..load(SequentialRead, 1, 8, 1 << 20) };
    let row = Row::new(
        "tls-read-1m",
        "memory over TLS, 1 MiB sequential reads, depth 8",
        reads,
        Target::TimesBest(0.8),
    );
    Group { recipes, size: GIB, filled: true, rows: vec![row.beside(&["openssl"])] }
}

fn file() -> Group {
    let on = |name, file: &'static str, aio: &str| Recipe {
        file: Some(file),
        ..qsd(
            name,
            &format!(
                "driver=file,node-name=f,filename={file},cache.direct=on,aio={aio} \
                 --blockdev driver=raw,node-name=n,file=f"
            ),
        )
    };
    let recipes = vec![
        Recipe { file: Some("{dir}/d.img"), ..cairn("examples/file.toml") },
        on("qsd-io_uring", "{dir}/peer.img", "io_uring"),
        on("qsd-native", "{dir}/peer2.img", "native"),
    ];
    let row = |id, title, load, target| {
        let direct = matches!(target, Target::TimesDirect(..));
        Row { direct, ..Row::new(id, title, verified(load), target) }
    };
    // On one connection of depth 32 either of its two modes may be faster. Elsewhere io_uring is, or they differ by
    // less than 3 %.
    let (one, both): (&[_], &[_]) = (&["qsd-io_uring"], &["qsd-io_uring", "qsd-native"]);
    let rows = vec![
        row(
            "file-rr-4q32",
            "file, O_DIRECT, 4 KiB random reads, 4 connections of 32",
            load(RandomRead, 4, 32, 4096),
            Target::TimesDirect(0.95, 0.5),
        )
        .beside(one),
        row(
            "file-rw-4q32",
            "file, O_DIRECT, 4 KiB random writes, 4 connections of 32",
            load(RandomWrite, 4, 32, 4096),
            Target::TimesDirect(0.95, 0.5),
        )
        .beside(one),
        row(
            "file-rr-q32",
            "file, O_DIRECT, 4 KiB random reads, depth 32",
            load(RandomRead, 1, 32, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        )
        .beside(both),
        row(
            "file-rw-q32",
            "file, O_DIRECT, 4 KiB random writes, depth 32",
            load(RandomWrite, 1, 32, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        )
        .beside(both),
        row(
            "file-rr-q1",
            "file, O_DIRECT, 4 KiB random reads, depth 1",
            load(RandomRead, 1, 1, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        )
        .beside(one),
        row(
            "file-rw-q1",
            "file, O_DIRECT, 4 KiB random writes, depth 1",
            load(RandomWrite, 1, 1, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        )
        .beside(one),
        row(
            "file-read-1m",
            "file, O_DIRECT, 1 MiB sequential reads, depth 8",
            load(SequentialRead, 1, 8, 1 << 20),
            Target::TimesBest(0.95),
        )
        .beside(one),
        row(
            "file-write-1m",
            "file, O_DIRECT, 1 MiB sequential writes, depth 8",
            load(SequentialWrite, 1, 8, 1 << 20),
            Target::TimesBest(0.95),
        )
        .beside(one),
    ];
    Group { recipes, size: GIB, filled: true, rows }
}

/// Returns the group for attached block devices, each on a file in memory: Cairn's own, and peers through FUSE and a
/// loop device.
fn attached() -> Group {
    let recipes = vec![
        Recipe {
            command: words(
                "target/release/cairn serve bench/specs/attach-file.toml --at {dir}/control.sock",
            ),
            serves: Serves::Attached { export: "vol", control: "{dir}/control.sock" },
            file: Some("{shm}/cairn.img"),
            ..cairn("")
        },
        Recipe {
            name: "nbdfuse",
            command: words(
                "nbdfuse {shm}/nbdfuse/disk [ nbdkit --exit-with-parent file {shm}/nbdkit.img ]",
            ),
            serves: Serves::Looped { file: "{shm}/nbdfuse/disk", depth: 32 },
            file: Some("{shm}/nbdkit.img"),
        },
        Recipe {
            name: "qsd-fuse",
            command: words(
                "qemu-storage-daemon --blockdev driver=file,node-name=n,filename={shm}/qsd.img,aio=io_uring \
                 --export fuse,id=e,node-name=n,mountpoint={shm}/qsd.disk,writable=on",
            ),
            // QEMU 7.2 mixes up the bytes of writes that are in flight together.
            serves: Serves::Looped { file: "{shm}/qsd.disk", depth: 1 },
            file: Some("{shm}/qsd.img"),
        },
    ];
    let row = |id, title, load| {
        Row::new(id, title, load, Target::TimesBest(1.0)).beside(&["nbdfuse", "qsd-fuse"])
    };
    let rows = vec![
        row(
            "attach-rr-q32",
            "attached, a file in memory, 4 KiB random reads, depth 32, fio",
            load(RandomRead, 1, 32, 4096),
        ),
        row(
            "attach-rw-q32",
            "attached, a file in memory, 4 KiB random writes, depth 32, fio",
            load(RandomWrite, 1, 32, 4096),
        )
        .beside(&["nbdfuse"]),
        row(
            "attach-read-1m",
            "attached, a file in memory, 1 MiB sequential reads, depth 8, fio",
            load(SequentialRead, 1, 8, 1 << 20),
        ),
    ];
    Group { recipes, size: GIB / 2, filled: false, rows }
}
