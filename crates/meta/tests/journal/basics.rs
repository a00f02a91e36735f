//! Writing, reading, writing in place and limits of a journal.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, ErrorKind, TaskTracker};
use meta::Uuid;
use meta::journal::root::{ROOT_BYTES, root_checksum};
use meta::journal::{IDLE_AFTER, Journal, NewPart, Options, PARTS_MAX, Segment};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Fails, Trace};

use crate::scene::{
    BLOCK, BLOCKS, DATA_START, RING_BYTES, Scene, Target, UUID, Way, block_on, blocks_of, content,
    expected, formatted, range_of,
};

fn run(test: impl AsyncFnOnce(Rc<Disk>, Scene, Trace)) {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let disk = formatted(&world, &trace);
    block_on(&world, async {
        let scene = Scene::open(&world.env(), &disk).await.unwrap();
        trace.take();
        test(disk, scene, trace).await;
    });
}

fn in_place(disk: &Disk) -> Vec<u8> {
    disk.bytes.borrow()[DATA_START as usize..].to_vec()
}

#[test]
fn journal_change_is_read_from_ring_until_it_is_in_place() {
    run(async |disk, scene, _| {
        let number = scene.step(1).await.unwrap();
        assert_eq!(scene.read_all().await.unwrap(), expected(&[Way::Ring], 1));
        assert_eq!(in_place(&disk), expected(&[], 0), "nothing is in place");
        let block = blocks_of(1)[0];
        let found = scene.journal.find(0, range_of(block));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].newest.map(|newest| newest.record), Some(number));
        scene.journal.settle().await.unwrap();
        assert_eq!(in_place(&disk), expected(&[Way::Ring], 1));
        let in_place = Segment { range: range_of(block), newest: None };
        assert_eq!(scene.journal.find(0, range_of(block)), [in_place]);
        assert!(scene.journal.read(&found[0]).await.unwrap().is_none(), "the tail has passed it");
        assert!(scene.journal.numbers().tail > number);
    });
}

#[test]
fn journal_writes_nothing_in_place_before_flush_of_its_record() {
    run(async |_, scene, trace| {
        scene.step(1).await.unwrap();
        scene.journal.settle().await.unwrap();
        let events = trace.take();
        let at = |event: &Event| match event {
            Event::Write { at, .. } if *at as u64 >= DATA_START => 'p',
            Event::Write { .. } => 'r',
            Event::Flush { .. } => 'f',
            Event::Begun(_) | Event::Answered(_) => '?',
        };
        let order: String = events.iter().map(at).collect();
        // A record; two parts; the record that states the tail. The ring and the blocks are on one disk here.
        assert_eq!(order, "rfppfrf");
    });
}

#[test]
fn journal_puts_waiting_changes_into_one_record() {
    run(async |disk, scene, _| {
        let (scene, writes) = (Rc::new(scene), disk.writes.get());
        let numbers = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..32 {
            let (own, answers) = (scene.clone(), numbers.clone());
            scene.env.spawn("a change", async move {
                let change = NewPart::zeroes(0, range_of(0), &[]);
                let number = own.journal.append(vec![change]).await.unwrap();
                answers.borrow_mut().push(number);
            });
        }
        scene.env.sleep(Duration::from_millis(1)).await;
        let numbers = numbers.borrow();
        let records = *numbers.iter().max().unwrap();
        // The tasks of the simulator run in a random order, so the first changes may go alone.
        assert!(numbers.len() == 32 && records <= 8, "{numbers:?}");
        assert_eq!(disk.writes.get(), writes + records, "one write for each record");
    });
}

#[test]
fn journal_writes_each_byte_of_data_twice_and_little_else_at_depth_32() {
    const BYTES: u64 = 4096;
    const RING: u64 = 4 << 20;
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let start = Journal::bytes(RING);
    let disk = Disk::new(0, vec![0; (start + 32 * BYTES) as usize], &trace);
    let mut written = 0;
    block_on(&world, async {
        let lower = disk.lower();
        Journal::format(&env, &lower, 0, UUID, RING, 1).await.unwrap();
        let target = Target::new(&env, &lower, start);
        let opened = Journal::open(&env, &lower, 0, &Options::default(), target).await;
        let journal = Rc::new(opened.unwrap().0);
        trace.take();
        let running = TaskTracker::default();
        for n in 0..32 {
            let (own, env, task) = (journal.clone(), env.clone(), running.begin());
            world.env().spawn("a client", async move {
                let _task = task;
                for _ in 0..40 {
                    let data = env.buf(BYTES as usize).unwrap();
                    data.write().fill(n as u8);
                    let change = NewPart::data(0, n * BYTES, data, &[0; 8]);
                    own.append(vec![change]).await.unwrap();
                }
            });
        }
        running.ended().await;
        journal.settle().await.unwrap();
    });
    for event in trace.take() {
        if let Event::Write { data, .. } = event {
            written += data.len() as u64;
        }
    }
    let data = 32 * 40 * BYTES;
    assert!((2 * data..data * 23 / 10).contains(&written), "{written} bytes for {data}");
}

#[test]
fn journal_concurrent_syncs_share_flush() {
    run(async |disk, scene, _| {
        scene.step(1).await.unwrap();
        let flushes = disk.flushes.get();
        scene.journal.sync().await.unwrap();
        scene.journal.sync().await.unwrap();
        assert_eq!(disk.flushes.get(), flushes + 1);
        assert_eq!(scene.journal.numbers().flushed, scene.journal.numbers().written);
    });
}

#[test]
fn journal_newest_of_overlapping_changes_is_read_and_placed() {
    run(async |disk, scene, _| {
        let wide = [content(1), content(2), content(3)].concat();
        scene.journal.append(vec![scene.part(0, &wide)]).await.unwrap();
        let narrow = ByteRange::new(BLOCK, BLOCK).unwrap();
        let both = vec![scene.part(1, &content(4)), NewPart::zeroes(0, narrow, &[])];
        scene.journal.append(both).await.unwrap();
        scene.journal.append(vec![scene.part(2, &content(5))]).await.unwrap();
        let model = [content(1), vec![0; BLOCK as usize], content(5)].concat();
        let range = ByteRange::new(0, 3 * BLOCK).unwrap();
        assert_eq!(scene.read(range).await.unwrap(), model);
        scene.journal.settle().await.unwrap();
        assert_eq!(in_place(&disk)[..model.len()], model);
        assert_eq!(scene.read(range).await.unwrap(), model);
    });
}

#[test]
fn journal_hands_inline_bytes_and_kinds_to_owner() {
    run(async |_, scene, _| {
        let first = NewPart::data(0, 0, scene.buf(&content(1)), b"sums of data");
        let second = NewPart::discard(0, range_of(3), b"gone");
        scene.journal.append(vec![first, second]).await.unwrap();
        let found = scene.journal.find(0, range_of(3));
        let content = scene.journal.read(&found[0]).await.unwrap().expect("it is in the ring");
        assert!(content.data.is_none() && *content.part.inline == *b"gone");
        scene.journal.settle().await.unwrap();
        let placed = scene.target.placed.borrow();
        let mut inline: Vec<_> = placed.iter().map(|part| part.inline.to_vec()).collect();
        // Parts of different ranges are placed in any order.
        inline.sort();
        assert_eq!(inline, [b"gone".to_vec(), b"sums of data".to_vec()]);
    });
}

#[test]
fn journal_ring_of_many_laps_neither_blocks_nor_loses_a_change() {
    run(async |_, scene, _| {
        for step in 1..=200 {
            scene.step(step).await.unwrap();
            let ways = vec![Way::Ring; step as usize];
            assert_eq!(scene.read_all().await.unwrap(), expected(&ways, step), "step {step}");
        }
        let numbers = scene.journal.numbers();
        assert!(numbers.tail > 180, "{numbers:?}");
    });
}

#[test]
fn journal_full_ring_has_sector_for_record_of_tail() {
    run(async |_, scene, _| {
        let (scene, running) = (Rc::new(scene), TaskTracker::default());
        for client in 0..8_u64 {
            let (own, task) = (scene.clone(), running.begin());
            scene.env.spawn("a client", async move {
                let _task = task;
                for step in 0..20_u64 {
                    // The longest record of this ring: four of its 16 sectors.
                    let part = |n| own.part((client + n) % BLOCKS, &content(step));
                    own.journal.append(vec![part(0), part(1), part(2)]).await.unwrap();
                }
            });
        }
        running.ended().await;
        scene.journal.settle().await.unwrap();
    });
}

#[test]
fn journal_opening_flushes_first_and_between_copies_of_root() {
    run(async |disk, scene, trace| {
        scene.step(1).await.unwrap();
        drop(scene);
        let (world, _) = (SimWorld::new(2), trace.take());
        block_on(&world, async {
            let scene = Scene::open(&world.env(), &disk).await.unwrap();
            drop(scene);
        });
        let at = |event: &Event| match event {
            Event::Write { at, .. } if *at as u64 >= DATA_START => 'p',
            Event::Write { at: 0, .. } => '0',
            Event::Write { at: 4096, .. } => '1',
            Event::Flush { .. } => 'f',
            Event::Write { .. } | Event::Begun(_) | Event::Answered(_) => '?',
        };
        let order: String = trace.take().iter().map(at).collect();
        // The opening before has left slot 0 as the newest one.
        assert_eq!(order, "fppf1f0f");
    });
}

#[test]
fn idle_journal_settles_by_itself() {
    run(async |disk, scene, _| {
        scene.step(1).await.unwrap();
        scene.env.sleep(IDLE_AFTER / 2).await;
        assert_eq!(in_place(&disk), expected(&[], 0));
        scene.env.sleep(IDLE_AFTER).await;
        assert_eq!(in_place(&disk), expected(&[Way::Ring], 1));
        let writes = disk.writes.get();
        scene.env.sleep(IDLE_AFTER * 100).await;
        assert_eq!(disk.writes.get(), writes, "nothing is left to do");
    });
}

#[test]
fn journal_change_beside_ring_waits_for_durable_tail() {
    run(async |_, scene, _| {
        let number = scene.step(1).await.unwrap();
        let free = (0..BLOCKS).find(|block| !blocks_of(1).contains(block)).unwrap();
        scene.journal.until_in_place(0, range_of(free)).await.unwrap();
        assert!(scene.journal.numbers().tail <= number, "no record has this block");
        scene.journal.until_in_place(0, range_of(blocks_of(1)[0])).await.unwrap();
        assert!(scene.journal.numbers().tail > number);
    });
}

#[test]
fn journal_keeps_same_range_of_two_lowers_apart() {
    let world = SimWorld::new(1);
    let (env, disk) = (world.env(), formatted(&world, &Trace::default()));
    block_on(&world, async {
        let lower = disk.lower();
        Journal::format(&env, &lower, 0, UUID, RING_BYTES, 2).await.unwrap();
        let scene = Scene::open(&env, &disk).await.unwrap();
        let parts = [1, 0]
            .map(|lower| NewPart::data(lower, 0, scene.buf(&content(u64::from(lower) + 1)), &[]));
        scene.journal.append(parts.into()).await.unwrap();
        for lower in 0..2_u16 {
            let found = scene.journal.find(lower, range_of(0));
            let read = scene.journal.read(&found[0]).await.unwrap().expect("it is in the ring");
            assert_eq!(*read.data.unwrap().read(), content(u64::from(lower) + 1));
        }
        scene.journal.settle().await.unwrap();
        let mut lowers: Vec<_> = scene.target.placed.borrow().iter().map(|it| it.lower).collect();
        lowers.sort_unstable();
        assert_eq!(lowers, [0, 1]);
    });
}

#[test]
fn journal_refuses_change_beyond_limits() {
    run(async |_, scene, _| {
        let limit = |parts| async { scene.journal.append(parts).await.unwrap_err().kind() };
        assert_eq!(limit(Vec::new()).await, ErrorKind::Limit);
        let part = NewPart::discard(0, range_of(0), &[]);
        assert_eq!(limit(vec![part.clone(); PARTS_MAX + 1]).await, ErrorKind::Limit);
        let most = scene.journal.data_max() as usize;
        let longest = NewPart::data(0, 0, scene.buf(&vec![1; most]), &[7; 4096]);
        let mut parts = vec![part; 100];
        parts.push(longest);
        assert_eq!(limit(parts).await, ErrorKind::Limit);
        let other = NewPart::discard(1, range_of(0), &[]);
        assert_eq!(limit(vec![other]).await, ErrorKind::Invalid);
    });
}

#[test]
fn journal_with_failed_write_or_flush_refuses_everything_but_reads() {
    for fails in [
        Fails { writes_left: Some(0), ..Fails::default() },
        Fails { flushes: true, ..Fails::default() },
    ] {
        run(async |disk, scene, _| {
            scene.step(1).await.unwrap();
            disk.fails.set(fails);
            let written = scene.step(2).await;
            assert!(written.is_err() || scene.journal.sync().await.is_err());
            disk.fails.set(Fails::default());
            let faulted = |result: block::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Faulted);
            };
            faulted(scene.step(3).await.map(drop));
            faulted(scene.journal.sync().await);
            faulted(scene.journal.settle().await);
            faulted(scene.journal.until_in_place(0, range_of(0)).await);
            let steps = if written.is_ok() { 2 } else { 1 };
            assert_eq!(scene.read_all().await.unwrap(), expected(&[Way::Ring; 2], steps));
            faulted(scene.journal.close().await);
        });
    }
}

#[test]
fn journal_with_failed_write_in_place_replays_it_at_next_opening() {
    run(async |disk, scene, _| {
        scene.step(1).await.unwrap();
        scene.target.fails.set(true);
        assert_eq!(scene.journal.settle().await.unwrap_err().kind(), ErrorKind::Faulted);
        assert_eq!(scene.read_all().await.unwrap(), expected(&[Way::Ring], 1));
        assert!(scene.journal.close().await.is_err());
        let again = Scene::open(&scene.env, &disk).await.unwrap();
        assert_eq!((again.opened.records, &again.opened.loss), (1, &None));
        assert_eq!(in_place(&disk), expected(&[Way::Ring], 1));
    });
}

#[test]
fn closed_journal_is_empty_at_next_opening() {
    run(async |disk, scene, _| {
        for step in 1..=3 {
            scene.step(step).await.unwrap();
        }
        scene.journal.close().await.unwrap();
        assert_eq!(scene.step(4).await.unwrap_err().kind(), ErrorKind::Stopped);
        let again = Scene::open(&scene.env, &disk).await.unwrap();
        assert_eq!(again.opened.records, 0);
        assert_eq!(again.read_all().await.unwrap(), expected(&[Way::Ring; 3], 3));
    });
}

#[test]
fn journal_open_rejects_other_missing_and_newer_journals() {
    run(async |disk, scene, _| {
        scene.journal.close().await.unwrap();
        let env = scene.env.clone();
        let kind = |options: Options| {
            let (env, disk) = (env.clone(), disk.clone());
            async move { Scene::open_with(&env, &disk, options).await.err().map(|it| it.kind()) }
        };
        let other = Options { uuid: Some(Uuid([1; 16])), ..Options::default() };
        assert_eq!(kind(other).await, Some(ErrorKind::InUse));
        let longer = Options { ring_bytes: Some(2 * RING_BYTES), ..Options::default() };
        assert_eq!(kind(longer).await, Some(ErrorKind::Invalid));
        let whole = disk.bytes.borrow().clone();
        disk.bytes.borrow_mut()[..8192].fill(0);
        assert_eq!(kind(Options::default()).await, Some(ErrorKind::NotFound));
        disk.bytes.borrow_mut()[..8192].fill(7);
        assert_eq!(kind(Options::default()).await, Some(ErrorKind::Corrupt));
        disk.bytes.borrow_mut().clone_from(&whole);
        let mut newer = whole[..ROOT_BYTES].to_vec();
        newer[8] = 2;
        let sum = root_checksum(&newer).to_le_bytes();
        newer[16..24].copy_from_slice(&sum);
        disk.bytes.borrow_mut()[..ROOT_BYTES].copy_from_slice(&newer);
        assert_eq!(kind(Options::default()).await, Some(ErrorKind::Unsupported));
        *disk.bytes.borrow_mut() = whole;
        assert_eq!(kind(Options::default()).await, None);
        let lower = disk.lower();
        let too_long = Journal::format(&env, &lower, 0, Uuid([1; 16]), 4 * RING_BYTES, 1).await;
        assert_eq!(too_long.unwrap_err().kind(), ErrorKind::NoSpace);
    });
}
