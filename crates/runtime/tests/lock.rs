//! Tests of locks on disks: only one process may open a disk. A killed process holds its lock until its last write has
//! ended in the kernel.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use block::env::{CacheMode, DiskIo, Open};
use block::{Env, ErrorKind};
use common::{Place, byte_at, each_core, filled};
use runtime::{Config, Core, Engine};

const SIZE: u64 = 256 << 20;
const WRITE_BYTES: usize = 1 << 20;

#[test]
fn disk_lock_conflict_error_names_holding_process() {
    each_core(|core| {
        let place = Place::on_disk("conflict");
        let env = core.env();
        let mut open = place.open(1 << 20, CacheMode::Direct);
        let held = env.open(&open).unwrap();
        let refused = |open: &Open| {
            let error = env.open(open).err().expect("the disk is in use");
            assert_eq!(error.kind(), ErrorKind::InUse);
            let me = format!("process {} (", std::process::id());
            assert!(error.to_string().contains(&me), "{error}");
        };
        refused(&open);
        open.read_only = true;
        refused(&open);
        drop(held);
        let reader = env.open(&open).unwrap();
        let other = env.open(&open).unwrap();
        open.read_only = false;
        refused(&open);
        drop((reader, other));
        core.block_on(async {
            let disk = env.open(&open).unwrap();
            assert_eq!(byte_at(&env, &*disk, 0, 4096).await, 0);
        });
    });
}

#[test]
fn disk_lock_is_held_until_write_in_flight_ends() {
    let place = Place::on_disk("flying");
    let core = Core::new(Config { engine: Engine::Ring, ..Config::default() }).unwrap();
    let env = core.env();
    let open = place.open(SIZE, CacheMode::Direct);
    core.block_on(async {
        let disk = env.open(&open).unwrap();
        let data = filled(&env, 8 << 20, 1);
        let write = disk.start(DiskIo::Write { offset: 0, data, fua: true });
        drop(disk);
        assert_eq!(env.open(&open).err().unwrap().kind(), ErrorKind::InUse);
        write.await.result.unwrap();
    });
    // A process that another test is just starting holds the descriptor, too, for a moment.
    open_when_free(&env, &open);
}

fn open_when_free(env: &Env, open: &Open) -> u32 {
    let began = Instant::now();
    let mut refused = 0;
    loop {
        match env.open(open) {
            Ok(_) => return refused,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                assert!(began.elapsed() < Duration::from_secs(20), "{error}");
                refused += 1;
            }
        }
    }
}

#[test]
fn disk_lock_of_killed_process_is_held_until_writes_end() {
    let place = Place::on_disk("killed");
    let file = std::fs::File::create_new(place.path()).unwrap();
    // Allocated before, so that writes need no journal.
    for at in 0..64 {
        file.write_all_at(&vec![0; WRITE_BYTES], at * WRITE_BYTES as u64).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let mut refused = 0;
    for round in 0..8u32 {
        let mut child = Command::new(common::helper("writes_until_killed"))
            .arg(place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        let mut out = child.stdout.take().unwrap();
        while !said.windows(6).any(|words| words == b"locked") {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "the writer ended early");
            said.push(byte[0]);
        }
        std::thread::sleep(Duration::from_millis(40 + u64::from(round) * 7));
        let core = Core::new(Config::default()).unwrap();
        let open = place.open(SIZE, CacheMode::Direct);
        assert_eq!(core.env().open(&open).err().unwrap().kind(), ErrorKind::InUse);
        child.kill().unwrap();
        refused += open_when_free(&core.env(), &open);
        // The lock is ours: from here on no other write may land.
        let held = core.env().open(&open).unwrap();
        let look = || -> Vec<u8> {
            core.block_on(async {
                let mut all = Vec::new();
                for at in 0..64u64 {
                    let into = core.env().buf(WRITE_BYTES).unwrap();
                    let read = DiskIo::Read { offset: at * WRITE_BYTES as u64, into };
                    let outcome = held.start(read).await;
                    outcome.result.unwrap();
                    all.extend_from_slice(&outcome.buf.unwrap().read());
                }
                all
            })
        };
        let first = look();
        std::thread::sleep(Duration::from_millis(100));
        assert!(first == look(), "bytes changed after the lock was ours");
        child.wait().unwrap();
    }
    println!("refused {refused} times in all before the kernel let go");
}
