//! Tests of the shutdown of a core: it frees no memory that the kernel may still write to.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use block::env::{Address, CacheMode, DiskIo};
use block::{BufPool, ErrorKind};
use common::{Place, filled};
use runtime::{Config, Core, Engine};

const READS: u64 = 48;
const READ_BYTES: usize = 1 << 20;

fn core(engine: Engine) -> Core {
    Core::new(Config { engine, ..Config::default() }).unwrap()
}

#[test]
fn core_drop_waits_for_reads_in_flight() {
    for engine in [Engine::Ring, Engine::Threads] {
        let place = Place::on_disk("drain");
        let file = std::fs::File::create_new(place.path()).unwrap();
        for at in 0..READS {
            file.write_all_at(&vec![5; READ_BYTES], at * READ_BYTES as u64).unwrap();
        }
        file.sync_all().unwrap();
        let core = core(engine);
        let env = core.env();
        let disk = env.open(&place.open(1, CacheMode::Direct)).unwrap();
        let bufs: Vec<_> = (0..READS).map(|_| filled(&env, READ_BYTES, 0xee)).collect();
        let tickets: Vec<_> = (0..READS)
            .map(|at| {
                let into = bufs[at as usize].clone();
                disk.start(DiskIo::Read { offset: at * READ_BYTES as u64, into })
            })
            .collect();
        // Half of the reads are abandoned: the kernel fills their buffers all the same, and then leaves them
        // alone.
        let mut tickets = tickets.into_iter();
        let kept: Vec<_> = tickets.by_ref().take(READS as usize / 2).collect();
        drop(tickets);
        core.block_on(async {});
        drop(core);
        for buf in &bufs {
            assert!(buf.read().iter().all(|&byte| byte == 5), "a read had not ended");
            buf.write().fill(6);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(bufs.iter().all(|buf| buf.read().iter().all(|&byte| byte == 6)));
        drop(kept);
        drop(bufs);
        assert_eq!(env.pool().used_bytes(), 0);
    }
}

#[test]
fn core_shutdown_cancels_waiting_socket_operations() {
    for engine in [Engine::Ring, Engine::Threads] {
        let place = Place::on_disk("down.sock");
        let core = core(engine);
        let env = core.env();
        let at = Address::Unix(place.path());
        let (client, server) = core.block_on(async {
            let listener = env.listen(&at).unwrap();
            let client = env.connect(&at).await.unwrap();
            let accepted = listener.accept().await.unwrap();
            let waiting = env.clone();
            env.spawn("waits for good", async move {
                let _listener = listener;
                let _ = waiting.connect(&Address::Tcp("127.0.0.1".into(), 1)).await;
                waiting.sleep(Duration::from_secs(3600)).await;
            });
            (client, accepted)
        });
        let pending = server.recv(env.buf(64).unwrap());
        core.block_on(async {});
        core.shutdown(Duration::from_secs(5)).unwrap();
        drop(pending);
        assert_eq!(env.pool().used_bytes(), 0);
        // After shutdown nothing is begun, and the caller gets an error.
        let late = client.recv(env.buf(64).unwrap());
        let core = Core::new(Config::default()).unwrap();
        let outcome = core.block_on(late);
        assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::Stopped);
    }
}

#[test]
fn core_shutdown_reports_worker_job_that_does_not_end() {
    let core = core(Engine::Auto);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let job = core.env().work(move || assert!(ended.recv().is_err()));
    let error = core.shutdown(Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().starts_with("1 jobs of worker threads"), "{error}");
    drop(end);
    drop(job);
}

#[test]
fn core_shutdown_reports_unfinished_write_and_keeps_write_buffer() {
    for engine in [Engine::Ring, Engine::Threads] {
        let place = Place::on_disk("lost");
        let core = core(engine);
        let env = core.env();
        let disk = env.open(&place.open(64 << 20, CacheMode::Direct)).unwrap();
        let data = filled(&env, 32 << 20, 1);
        let write = disk.start(DiskIo::Write { offset: 0, data, fua: true });
        core.block_on(async {});
        let pool: BufPool = env.pool().clone();
        let error = core.shutdown(Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("1 write"), "{error}");
        drop(write);
        assert_eq!(pool.used_bytes(), 32 << 20, "the kernel may still use it");
    }
}
