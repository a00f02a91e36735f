//! A process for `tests/lock.rs` to kill: it locks a file and keeps many writes to it in flight.

#[path = "../tests/common/mod.rs"]
mod common;

use block::env::{CacheMode, DiskIo, Open};
use common::filled;
use runtime::{Config, Core, Engine};

const WRITE_BYTES: usize = 1 << 20;

fn main() {
    let path = std::env::args_os().nth(1).expect("the test says which file");
    let core = Core::new(Config { engine: Engine::Ring, ..Config::default() }).unwrap();
    let env = core.env();
    let open = Open {
        path: path.into(),
        device: false,
        read_only: false,
        create: None,
        odd_size: false,
        cache: CacheMode::Direct,
    };
    let disk = env.open(&open).unwrap();
    println!("locked");
    core.block_on(async {
        for round in 1u8.. {
            let writes: Vec<_> = (0..64u64)
                .map(|at| {
                    let data = filled(&env, WRITE_BYTES, round.max(1));
                    disk.start(DiskIo::Write { offset: at * WRITE_BYTES as u64, data, fua: false })
                })
                .collect();
            for write in writes {
                write.await.result.unwrap();
            }
        }
    });
}
