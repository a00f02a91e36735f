//! A process for `tests/disk.rs`, which limits its files to 1 MiB.

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::PathBuf;

use block::env::{CacheMode, DiskIo, Open};
use common::{each_core, filled};

const LIMIT: u64 = 1 << 20;

fn main() {
    let path = PathBuf::from(std::env::args().nth(1).expect("the path of a file"));
    each_core(|core| {
        let (device, read_only, create) = (false, false, None);
        let cache = CacheMode::Buffered;
        let open = Open { path: path.clone(), device, read_only, create, odd_size: false, cache };
        let env = core.env();
        core.block_on(async {
            let disk = env.open(&open).unwrap();
            let data = filled(&env, 65536, 7);
            let below = DiskIo::Write { offset: LIMIT - 65536, data: data.clone(), fua: false };
            assert_eq!(disk.start(below).await.result.unwrap(), 65536);
            // The system writes the first half only.
            let across = DiskIo::Write { offset: LIMIT - 32768, data, fua: false };
            let answer = disk.start(across).await.result;
            assert!(answer.is_err(), "{answer:?}");
        });
    });
    println!("refused");
}
