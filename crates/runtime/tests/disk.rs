//! Tests of file I/O: reads return written bytes, with and without the page cache, with io_uring and with threads.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use block::env::{CacheMode, DiskIo, Open};
use block::{ErrorKind, State};
use common::{Place, byte_at, each_core, filled, helper, range, write};
use runtime::Core;

const SIZE: u64 = 8 << 20;
const MIB: u64 = 1 << 20;

fn round_trip(core: &Core, open: &Open) {
    let env = core.env();
    core.block_on(async {
        let disk = env.open(open).unwrap();
        assert!(disk.facts().created);
        assert_eq!(disk.facts().size, SIZE);
        assert!(disk.facts().zeroes && disk.facts().discard && disk.facts().discard_zeroes);
        assert_eq!(byte_at(&env, &*disk, 0, 1 << 16).await, 0);
        write(&*disk, MIB, filled(&env, 2 << 20, 7), false).await;
        write(&*disk, 4 * MIB, filled(&env, 4096, 8), true).await;
        assert_eq!(byte_at(&env, &*disk, MIB, 2 << 20).await, 7);
        assert_eq!(byte_at(&env, &*disk, 4 * MIB, 4096).await, 8);
        assert!(disk.start(DiskIo::Flush).await.result.is_ok());

        let found = disk.extents(range(0, SIZE), 100).unwrap();
        assert_eq!(found.iter().map(|extent| extent.len).sum::<u64>(), SIZE);
        assert_eq!((found[0].state, found[0].len), (State::Hole, MIB));
        assert_eq!((found[1].state, found[1].len), (State::Data, 2 * MIB));
        assert_eq!(disk.extents(range(MIB, SIZE - MIB), 1).unwrap().len(), 1);

        for unmap in [false, true] {
            let range = range(MIB + u64::from(unmap) * 65536, 65536);
            assert_eq!(disk.start(DiskIo::Zero { range, unmap }).await.result.unwrap(), 65536);
            assert_eq!(byte_at(&env, &*disk, range.start(), 65536).await, 0);
        }
        let allocated = std::os::unix::fs::MetadataExt::blocks(&open.path.metadata().unwrap());
        let discarded = range(2 * MIB, MIB);
        assert!(disk.start(DiskIo::Discard { range: discarded }).await.result.is_ok());
        assert_eq!(byte_at(&env, &*disk, 2 * MIB, 1 << 20).await, 0);
        let left = std::os::unix::fs::MetadataExt::blocks(&open.path.metadata().unwrap());
        assert!(left + 2048 <= allocated, "{allocated} sectors before a discard, {left} after");
        assert_eq!(byte_at(&env, &*disk, MIB + 131_072, 4096).await, 7, "the rest stays");

        drop(disk);
        let again = env.open(open).unwrap();
        assert!(!again.facts().created);
        assert_eq!(byte_at(&env, &*again, 4 * MIB, 4096).await, 8);
    });
    assert_eq!(env.pool().used_bytes(), 0, "every buffer came back");
}

#[test]
fn file_disk_reads_back_writes_with_direct_io() {
    each_core(|core| {
        let place = Place::on_disk("direct");
        let open = place.open(SIZE, CacheMode::Direct);
        round_trip(core, &open);
        assert!(core.env().open(&open).unwrap().facts().direct);
    });
}

#[test]
fn file_disk_reads_back_writes_with_page_cache() {
    each_core(|core| {
        let place = Place::on_disk("buffered");
        round_trip(core, &place.open(SIZE, CacheMode::Buffered));
    });
}

#[test]
fn file_disk_reads_back_writes_on_tmpfs() {
    each_core(|core| {
        let place = Place::in_memory("memory");
        round_trip(core, &place.open(SIZE, CacheMode::Direct));
    });
}

/// A process may be killed during the creation of a file. Another process must never find the file without its size.
/// A file may end inside a block, if its opener agrees. Its last block reads as if it went on with zeros, and no
/// operation changes the length of the file.
#[test]
fn file_of_odd_size_keeps_its_size_and_reads_zeros_after_its_end() {
    const ODD: u64 = MIB + 1000;
    const LAST: u64 = MIB + 512;
    each_core(|core| {
        for (place, cache) in [
            (Place::on_disk("odd-direct"), CacheMode::Direct),
            (Place::on_disk("odd-buffered"), CacheMode::Buffered),
            (Place::in_memory("odd-memory"), CacheMode::Direct),
        ] {
            std::fs::write(place.path(), vec![5; ODD as usize]).unwrap();
            let open = Open { create: None, ..place.open(ODD, cache) };
            let env = core.env();
            let refused = env.open(&open).err().unwrap();
            assert!(refused.to_string().contains("has 1049576 bytes"), "{refused}");
            let open = Open { odd_size: true, ..open };
            assert_eq!(env.probe(&open).unwrap().size, ODD);
            core.block_on(async {
                let disk = env.open(&open).unwrap();
                assert_eq!((disk.facts().block_size, disk.facts().direct), (512, false));
                let read = |offset, len| {
                    let into = env.buf(len).unwrap();
                    into.write().fill(9);
                    let ticket = disk.start(DiskIo::Read { offset, into });
                    async move {
                        let outcome = ticket.await;
                        assert_eq!(outcome.result.unwrap(), len);
                        outcome.buf.unwrap().read().to_vec()
                    }
                };
                let mut last = vec![5; 488];
                last.resize(512, 0);
                assert_eq!(read(LAST, 512).await, last);
                assert_eq!(read(0, LAST as usize + 512).await[LAST as usize..], last);

                write(&*disk, LAST, filled(&env, 512, 7), true).await;
                last[..488].fill(7);
                assert_eq!(read(LAST, 512).await, last);
                write(&*disk, MIB, filled(&env, 1024, 8), false).await;
                last[..488].fill(8);
                assert_eq!(read(LAST, 512).await, last);
                assert!(disk.start(DiskIo::Flush).await.result.is_ok());

                let found = disk.extents(range(0, LAST + 512), 100).unwrap();
                assert_eq!(found.iter().map(|extent| extent.len).sum::<u64>(), LAST + 512);
                for unmap in [false, true] {
                    write(&*disk, LAST, filled(&env, 512, 7), false).await;
                    let zero = DiskIo::Zero { range: range(LAST, 512), unmap };
                    assert!(disk.start(zero).await.result.is_ok());
                    assert_eq!(read(LAST, 512).await, [0; 512]);
                }
                let discard = DiskIo::Discard { range: range(MIB, 1024) };
                assert!(disk.start(discard).await.result.is_ok());
                let outside = DiskIo::Discard { range: range(LAST, 1024) };
                assert_eq!(
                    disk.start(outside).await.result.unwrap_err().kind(),
                    ErrorKind::OutOfRange
                );
            });
            assert_eq!(place.path().metadata().unwrap().len(), ODD);
        }
    });
}

#[test]
fn created_file_appears_with_its_full_size() {
    each_core(|core| {
        let place = Place::on_disk("appears");
        let open = place.open(SIZE, CacheMode::Buffered);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let sizes = std::iter::from_fn(|| {
                    let watches = !stop.load(std::sync::atomic::Ordering::Relaxed);
                    watches.then(|| open.path.metadata().map_or(SIZE, |found| found.len()))
                });
                sizes.filter(|size| *size != SIZE).count()
            });
            for _ in 0..500 {
                assert!(core.env().open(&open).unwrap().facts().created);
                std::fs::remove_file(&open.path).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(watcher.join().unwrap(), 0, "times that the file had another size");
        });
    });
}

#[test]
fn file_disk_refuses_requests_past_end_or_misaligned() {
    each_core(|core| {
        let place = Place::on_disk("refused");
        let env = core.env();
        core.block_on(async {
            let mut open = place.open(SIZE, CacheMode::Direct);
            open.create = None;
            assert_eq!(env.open(&open).err().unwrap().kind(), ErrorKind::NotFound);
            open.create = Some(SIZE);
            let disk = env.open(&open).unwrap();
            let into = env.buf(4096).unwrap();
            let past = disk.start(DiskIo::Read { offset: SIZE - 512, into }).await;
            assert_eq!(past.result.unwrap_err().kind(), ErrorKind::OutOfRange);
            let odd = disk.start(DiskIo::Read { offset: 100, into: past.buf.unwrap() }).await;
            assert_eq!(odd.result.unwrap_err().kind(), ErrorKind::Invalid);
            drop(disk);
            open.read_only = true;
            let disk = env.open(&open).unwrap();
            let data = odd.buf.unwrap();
            let refused = disk.start(DiskIo::Write { offset: 0, data, fua: false }).await;
            assert_eq!(refused.result.unwrap_err().kind(), ErrorKind::ReadOnly);
        });
        std::fs::File::options().write(true).open(place.path()).unwrap().set_len(1000).unwrap();
        let error = env.open(&place.open(SIZE, CacheMode::Buffered)).err().unwrap();
        assert!(error.to_string().contains("1000 bytes"), "{error}");
    });
}

#[test]
fn read_fails_when_file_of_disk_was_truncated() {
    each_core(|core| {
        let place = Place::on_disk("shrunk");
        let env = core.env();
        core.block_on(async {
            let disk = env.open(&place.open(SIZE, CacheMode::Buffered)).unwrap();
            std::fs::File::options().write(true).open(place.path()).unwrap().set_len(MIB).unwrap();
            let into = env.buf(8192).unwrap();
            let outcome = disk.start(DiskIo::Read { offset: MIB - 4096, into }).await;
            let error = outcome.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("ends after 4096"), "{error}");
        });
    });
}

#[test]
fn disk_identity_is_equal_for_all_paths_of_file() {
    each_core(|core| {
        let place = Place::on_disk("identity");
        let open = place.open(MIB, CacheMode::Buffered);
        let (directory, name) = (open.path.parent().unwrap(), open.path.file_name().unwrap());
        let link = directory.join(format!("{}.link", name.display()));
        let detour = directory.join("..").join(directory.file_name().unwrap()).join(name);
        let env = core.env();
        let identity = |path: &std::path::Path| {
            env.probe(&Open { path: path.into(), ..open.clone() }).unwrap().identity
        };
        // Before the file exists, and after.
        let before = [identity(&open.path), identity(&detour)];
        let facts = env.open(&open).unwrap().facts().clone();
        std::os::unix::fs::symlink(&open.path, &link).unwrap();
        let after = [identity(&open.path), identity(&detour), identity(&link)];
        std::fs::remove_file(&link).unwrap();
        assert!(before.iter().chain(&after).all(|identity| *identity == facts.identity));
        assert!(std::path::Path::new(&facts.identity).is_absolute());
    });
}

#[test]
fn disk_continues_short_write_until_kernel_refuses_rest() {
    let place = Place::on_disk("short");
    std::fs::File::create(place.path()).unwrap().set_len(SIZE).unwrap();
    // The limit is in blocks of 512 bytes. A process that reaches it also gets a signal, which is ignored
    // here.
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$@\"";
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", script, "sh"]).arg(helper("short_write")).arg(place.path());
    let output = limited.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.ends_with(b"refused\n"), "{words}");
}

/// On tmpfs a search reads the state of each page up to the next hole: 12 ms for a GiB. A copy asks before each of its
/// steps, on the core that serves the clients.
#[test]
fn questions_about_extents_of_file_in_memory_scan_its_data_once() {
    const BYTES: u64 = 256 << 20;
    each_core(|core| {
        let (place, env) = (Place::in_memory("scan"), core.env());
        core.block_on(async {
            let disk = env.open(&place.open(BYTES, CacheMode::Buffered)).unwrap();
            for start in (0..BYTES).step_by(4 << 20) {
                write(&*disk, start, filled(&env, 4 << 20, 7), false).await;
            }
            let states = |start| disk.extents(range(start, 4096), 8).unwrap();
            let begun = std::time::Instant::now();
            assert!((0..BYTES).step_by(4096).all(|at| states(at)[0].state == State::Data));
            let took = begun.elapsed();
            assert!(took < std::time::Duration::from_secs(5), "{took:?}");
            let discard = DiskIo::Discard { range: range(MIB, 4096) };
            assert!(disk.start(discard).await.result.is_ok());
            assert_eq!(states(MIB)[0].state, State::Hole);
            assert_eq!(states(MIB + 4096)[0].state, State::Data);
        });
    });
}
