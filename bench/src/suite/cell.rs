//! What is measured: each cell is one load on several servers.

use std::time::Duration;

use bench::load::{Load, Pattern};

use crate::server::{Recipe, words};

/// A load on several servers, ours first.
pub struct Cell {
    /// A short name.
    pub id: &'static str,
    /// In words.
    pub title: &'static str,
    /// The servers.
    pub recipes: Vec<Recipe>,
    /// Bytes of the device.
    pub size: u64,
    /// Whether it is filled, and reads are compared.
    pub verify: bool,
    /// The load.
    pub load: Load,
    /// fio's io_uring engine beside the servers, straight on the file.
    pub direct: bool,
    /// Whether fio's nbd engine is the client, instead of our own: a second opinion. Processor time
    /// is the client's then.
    pub by_fio: bool,
    /// What our figure is held to.
    pub target: Target,
}

/// What our figure is held to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// So many times the best peer.
    TimesBest(f64),
    /// So many times fio on the file itself, with at most this share of the best peer's processor
    /// time for each request.
    TimesDirect(f64, f64),
    /// So many times the best peer that uses O_DIRECT, at this share of its processor time.
    TimesBestAtCpu(f64, f64),
    /// Shown, held to nothing.
    Shown,
}

const GIB: u64 = 1 << 30;

fn cairn(example: &str) -> Recipe {
    serve("cairn", &format!("examples/{example}.toml"))
}

fn serve(name: &'static str, spec: &str) -> Recipe {
    Recipe {
        name,
        command: vec!["target/release/cairn".into(), "serve".into(), spec.into()],
        export: "vol",
        file: None,
    }
}

fn nbdkit(name: &'static str, arguments: &str) -> Recipe {
    let command = words(&format!("nbdkit --foreground --unix {{socket}} {arguments}"));
    Recipe { name, command, export: "", file: None }
}

fn qsd(name: &'static str, blockdev: &str) -> Recipe {
    let command = words(&format!(
        "qemu-storage-daemon --blockdev {blockdev} --nbd-server addr.type=unix,addr.path={{socket}} \
         --export nbd,id=e,node-name=n,name=vol,writable=on"
    ));
    Recipe { name, command, export: "vol", file: None }
}

fn null() -> Vec<Recipe> {
    vec![
        cairn("null"),
        nbdkit("nbdkit", "null {size}"),
        qsd("qsd", "driver=null-co,node-name=n,size={size},read-zeroes=on"),
    ]
}

fn memory() -> Vec<Recipe> {
    vec![cairn("memory"), nbdkit("nbdkit", "memory {size}")]
}

/// A graph of ours, and the same without the kind that is looked at.
fn with_and_without(with: &str, without: &str) -> Vec<Recipe> {
    vec![serve("cairn", with), serve("plain", without)]
}

fn on_file() -> Vec<Recipe> {
    let file = |name, aio: &str| Recipe {
        file: Some("peer.img"),
        ..qsd(
            name,
            &format!(
                "driver=file,node-name=f,filename={{dir}}/peer.img,cache.direct=on,aio={aio} \
                 --blockdev driver=raw,node-name=n,file=f"
            ),
        )
    };
    vec![
        Recipe { file: Some("d.img"), ..cairn("file") },
        file("qsd-io_uring", "io_uring"),
        Recipe { file: Some("peer2.img"), ..file("qsd-native", "native") }.on("peer2.img"),
    ]
}

impl Recipe {
    /// The same on another file.
    fn on(mut self, file: &str) -> Self {
        for word in &mut self.command {
            *word = word.replace("peer.img", file);
        }
        self
    }
}

fn load(pattern: Pattern, connections: u32, depth: u32, block: u32) -> Load {
    Load {
        pattern,
        connections,
        depth,
        block,
        warm_up: Duration::from_millis(150),
        time: Duration::from_secs(1),
        span: None,
        verify: false,
        structured: false,
    }
}

/// Everything that is measured over NBD.
pub fn all() -> Vec<Cell> {
    use Pattern::{RandomRead, RandomWrite, SequentialRead, SequentialWrite};
    let cell = |id, title, recipes, load, target| Cell {
        id,
        title,
        recipes,
        size: GIB,
        verify: false,
        load,
        direct: false,
        by_fio: false,
        target,
    };
    let held = |cell: Cell| Cell { verify: true, load: Load { verify: true, ..cell.load }, ..cell };
    let on_disk = |id, title, load, target| Cell {
        direct: matches!(target, Target::TimesDirect(..)),
        ..held(cell(id, title, on_file(), load, target))
    };
    vec![
        cell(
            "null-rr-q32",
            "null, 4 KiB random reads, depth 32",
            null(),
            load(RandomRead, 1, 32, 4096),
            Target::TimesBest(3.0),
        ),
        cell(
            "null-rw-q32",
            "null, 4 KiB random writes, depth 32",
            null(),
            load(RandomWrite, 1, 32, 4096),
            Target::TimesBest(3.0),
        ),
        Cell {
            by_fio: true,
            ..cell(
                "null-rr-q32-fio",
                "the same reads, fio's nbd engine as the client",
                null()[..2].to_vec(),
                load(RandomRead, 1, 32, 4096),
                Target::Shown,
            )
        },
        Cell {
            by_fio: true,
            ..cell(
                "null-rw-q32-fio",
                "the same writes, fio's nbd engine as the client",
                null()[..2].to_vec(),
                load(RandomWrite, 1, 32, 4096),
                Target::Shown,
            )
        },
        cell(
            "null-rr-q1",
            "null, 4 KiB random reads, depth 1",
            null(),
            load(RandomRead, 1, 1, 4096),
            Target::TimesBest(1.0),
        ),
        held(cell(
            "memory-rr-q32",
            "memory, 4 KiB random reads, depth 32",
            memory(),
            load(RandomRead, 1, 32, 4096),
            Target::TimesBest(3.0),
        )),
        held(cell(
            "memory-rw-q32",
            "memory, 4 KiB random writes, depth 32",
            memory(),
            load(RandomWrite, 1, 32, 4096),
            Target::TimesBest(2.5),
        )),
        held(cell(
            "memory-rr-q1",
            "memory, 4 KiB random reads, depth 1",
            memory(),
            load(RandomRead, 1, 1, 4096),
            Target::TimesBest(1.0),
        )),
        held(cell(
            "memory-rw-q1",
            "memory, 4 KiB random writes, depth 1",
            memory(),
            load(RandomWrite, 1, 1, 4096),
            Target::TimesBest(1.0),
        )),
        held(cell(
            "memory-read-64k",
            "memory, 64 KiB sequential reads, depth 16",
            memory(),
            load(SequentialRead, 1, 16, 64 << 10),
            Target::TimesBest(0.95),
        )),
        held(cell(
            "memory-write-64k",
            "memory, 64 KiB sequential writes, depth 16",
            memory(),
            load(SequentialWrite, 1, 16, 64 << 10),
            Target::TimesBest(0.95),
        )),
        held(cell(
            "memory-read-1m",
            "memory, 1 MiB sequential reads, depth 8",
            memory(),
            load(SequentialRead, 1, 8, 1 << 20),
            Target::TimesBest(0.95),
        )),
        held(cell(
            "memory-write-1m",
            "memory, 1 MiB sequential writes, depth 8",
            memory(),
            load(SequentialWrite, 1, 8, 1 << 20),
            Target::TimesBest(0.95),
        )),
        on_disk(
            "file-rr-4q32",
            "file, O_DIRECT, 4 KiB random reads, 4 connections of 32",
            load(RandomRead, 4, 32, 4096),
            Target::TimesDirect(0.95, 0.5),
        ),
        on_disk(
            "file-rw-4q32",
            "file, O_DIRECT, 4 KiB random writes, 4 connections of 32",
            load(RandomWrite, 4, 32, 4096),
            Target::TimesDirect(0.95, 0.5),
        ),
        on_disk(
            "file-rr-q32",
            "file, O_DIRECT, 4 KiB random reads, depth 32",
            load(RandomRead, 1, 32, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        ),
        on_disk(
            "file-rw-q32",
            "file, O_DIRECT, 4 KiB random writes, depth 32",
            load(RandomWrite, 1, 32, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        ),
        on_disk(
            "file-rr-q1",
            "file, O_DIRECT, 4 KiB random reads, depth 1",
            load(RandomRead, 1, 1, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        ),
        on_disk(
            "file-rw-q1",
            "file, O_DIRECT, 4 KiB random writes, depth 1",
            load(RandomWrite, 1, 1, 4096),
            Target::TimesBestAtCpu(1.0, 0.5),
        ),
        on_disk(
            "file-read-1m",
            "file, O_DIRECT, 1 MiB sequential reads, depth 8",
            load(SequentialRead, 1, 8, 1 << 20),
            Target::TimesBest(0.95),
        ),
        on_disk(
            "file-write-1m",
            "file, O_DIRECT, 1 MiB sequential writes, depth 8",
            load(SequentialWrite, 1, 8, 1 << 20),
            Target::TimesBest(0.95),
        ),
        held(cell(
            "stripe-rr-q32",
            "a stripe of two memory disks beside one, 4 KiB random reads, depth 32",
            with_and_without("bench/specs/stripe-memory.toml", "examples/memory.toml"),
            load(RandomRead, 1, 32, 4096),
            Target::TimesBest(0.9),
        )),
        held(cell(
            "mirror-rr-q32",
            "a mirror of two memory disks beside one, 4 KiB random reads, depth 32",
            with_and_without("bench/specs/mirror-memory.toml", "examples/memory.toml"),
            load(RandomRead, 1, 32, 4096),
            Target::TimesBest(0.9),
        )),
        Cell {
            size: 16 * GIB,
            ..cell(
                "tables16-rr-q32",
                "16 tables on null beside none, 4 KiB random reads, depth 32",
                with_and_without("examples/tables16.toml", "examples/null.toml"),
                load(RandomRead, 1, 32, 4096),
                Target::Shown,
            )
        },
        cell(
            "hooks16-rr-q32",
            "16 hooks on null beside none, 4 KiB random reads, depth 32",
            with_and_without("examples/hooks16.toml", "examples/null.toml"),
            load(RandomRead, 1, 32, 4096),
            Target::Shown,
        ),
        cell(
            "devices16-rr-q32",
            "16 async devices on null beside none, 4 KiB random reads, depth 32",
            with_and_without("examples/devices16.toml", "examples/null.toml"),
            load(RandomRead, 1, 32, 4096),
            Target::Shown,
        ),
    ]
}
