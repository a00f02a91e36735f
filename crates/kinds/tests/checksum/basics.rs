//! Reads, writes, zeroes, failures and acceptance of a device without crashes, or with the death of the process alone.

use block::{ErrorKind, Op, State};
use kinds::checksum::{BLOCK_BYTES, Redundancy, Seed};
use meta::Uuid;
use testkit::recorded::Fails;

use crate::scene::{BLOCKS, Crash, Scene, content, in_world, run};

const MODES: [Crash; 2] = [Crash::Regions, Crash::Journal];

/// Runs a test on a new device in each mode.
fn each(test: impl AsyncFn(Scene)) {
    for crash in MODES {
        in_world(async |env| test(Scene::new(env, crash).await).await);
    }
}

fn corrupt<T: std::fmt::Debug>(result: block::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn checksum_equals_golden_values() {
    let device = Uuid(std::array::from_fn(|n| n as u8));
    let block: Vec<u8> = (0..BLOCK_BYTES).map(|n| n as u8).collect();
    let sum = |address| Seed::new(device).sum(address, &block).get();
    let mut all = [device.0.to_vec(), vec![0; 8], block.clone()].concat();
    assert_eq!(sum(0), crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &all));
    all[17] = 0x10;
    assert_eq!(sum(4096), crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &all));
    assert_eq!([sum(0), sum(4096)], [0x9bbb9253b58b9cc8, 0xb84cfa5b12b0f7bc]);
}

#[test]
fn computed_checksum_of_zero_is_stored_as_one() {
    // Changes of the last 8 bytes change a CRC linearly: solve for the CRC 0.
    let seed = Seed::new(Uuid([3; 16]));
    let mut block = vec![5; BLOCK_BYTES as usize];
    let at = block.len() - 8;
    let with = |block: &mut Vec<u8>, bits: u64| {
        block[at..].copy_from_slice(&bits.to_le_bytes());
        seed.sum(0, block).get()
    };
    let base = with(&mut block, 0);
    let mut rows: Vec<(u64, u64)> =
        (0..64).map(|bit| (with(&mut block, 1 << bit) ^ base, 1 << bit)).collect();
    let (mut left, mut bits) = (base, 0);
    for column in 0..64 {
        let pivot = rows.iter().position(|(effect, _)| effect >> column & 1 == 1).unwrap();
        let (effect, inputs) = rows.swap_remove(pivot);
        for row in rows.iter_mut().filter(|row| row.0 >> column & 1 == 1) {
            *row = (row.0 ^ effect, row.1 ^ inputs);
        }
        if left >> column & 1 == 1 {
            (left, bits) = (left ^ effect, bits ^ inputs);
        }
    }
    assert_eq!((left, with(&mut block, bits)), (0, 1));
    assert!(seed.fits(0, &block, 1.into()) && !seed.fits(0, &block, 0.into()));
}

#[test]
fn reads_return_written_and_zeroed_blocks() {
    each(async |scene| {
        assert_eq!(scene.read(0, BLOCKS).await.unwrap(), vec![0; (BLOCKS * BLOCK_BYTES) as usize]);
        scene.write(2, &[content(2, 1), content(3, 1)].concat()).await.unwrap();
        scene.write(5, &content(5, 2)).await.unwrap();
        scene.write(3, &content(3, 3)).await.unwrap();
        scene.zero(5, 2).await.unwrap();
        let expected: Vec<u8> =
            [0, 0, 1, 3, 0, 0, 0, 0].iter().zip(0..).flat_map(|(v, b)| content(b, *v)).collect();
        assert_eq!(scene.read(0, BLOCKS).await.unwrap(), expected);
        let scene = scene.reopen().await;
        assert_eq!(scene.read(0, BLOCKS).await.unwrap(), expected);
        scene.quiet().await;
        scene.core.close().await.unwrap();
        let Scene { env, disk, crash, redundancy, vault, .. } = scene;
        vault.close().await.unwrap();
        let scene = Scene::open(&env, &disk, crash, redundancy).await.unwrap();
        assert_eq!(scene.core.numbers(), Default::default());
        assert_eq!(scene.read(0, BLOCKS).await.unwrap(), expected);
        assert_eq!(scene.core.numbers().accepted, 0);
    });
}

#[test]
fn reads_report_rot_and_misplaced_blocks() {
    each(async |scene| {
        for block in 0..4 {
            scene.write(block, &content(9, 1)).await.unwrap();
        }
        scene.flush().await.unwrap();
        scene.quiet().await;
        scene.core.close().await.unwrap();
        let Scene { env, disk, crash, redundancy, vault, .. } = scene;
        vault.close().await.unwrap();
        let scene = Scene::open(&env, &disk, crash, redundancy).await.unwrap();
        scene.rot(1);
        corrupt(scene.read(1, 1).await);
        corrupt(scene.read(0, 4).await);
        assert_eq!(scene.read(2, 2).await.unwrap(), content(9, 1).repeat(2));
        assert_eq!(scene.core.numbers().damaged, 2);
        scene.rot(5);
        corrupt(scene.read(5, 1).await);
        // A block of other bytes with a checksum of its own, at a wrong address.
        scene.write(6, &content(6, 2)).await.unwrap();
        scene.flush().await.unwrap();
        let other = content(7, 3);
        scene.write(7, &other).await.unwrap();
        scene.env.sleep(std::time::Duration::from_secs(3)).await;
        scene.put(6, &other);
        corrupt(scene.read(6, 1).await);
        scene.write(1, &content(1, 4)).await.unwrap();
        assert_eq!(scene.read(1, 1).await.unwrap(), content(1, 4));
    });
}

#[test]
fn zeroed_block_has_zeros_on_disk() {
    each(async |scene| {
        scene.write(0, &content(0, 1).repeat(2)).await.unwrap();
        scene.write(2, &content(2, 1)).await.unwrap();
        scene.zero(0, 2).await.unwrap();
        scene.submit(Op::Discard { range: run(2, 1), fua: true }).await.unwrap();
        scene.core.close().await.unwrap();
        for block in 0..3 {
            assert_eq!(scene.on_disk(block), content(0, 0));
        }
        assert_eq!(scene.read(0, 3).await.unwrap(), content(0, 0).repeat(3));
    });
}

#[test]
fn swapped_blocks_of_equal_bytes_at_other_addresses_differ() {
    let seed = Seed::new(Uuid([1; 16]));
    let block = content(0, 1);
    assert!(seed.sum(0, &block) != seed.sum(4096, &block));
    assert!(seed.sum(0, &block) != Seed::new(Uuid([2; 16])).sum(0, &block));
}

#[test]
fn block_in_region_marked_at_opening_is_accepted_once() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        scene.write(0, &content(0, 1)).await.unwrap();
        let scene = scene.reopen().await;
        scene.rot(0);
        scene.rot(2);
        assert_eq!(scene.core.numbers().unverified_bytes, 2 * BLOCK_BYTES);
        let accepted = scene.read(0, 1).await.unwrap();
        assert_ne!(accepted, content(0, 1));
        assert_eq!(scene.core.numbers().accepted, 1);
        corrupt(scene.read(2, 1).await);
        scene.quiet().await;
        assert_eq!(scene.core.numbers().unverified_bytes, 0, "the scan has been through");
        assert_eq!(scene.read(0, 1).await.unwrap(), accepted);
        scene.rot(0);
        corrupt(scene.read(0, 1).await);
        assert_eq!(scene.core.numbers().accepted, 1);
        assert_eq!(scene.core.numbers().marked_bytes, 0, "a flush has cleared the region");
    });
}

#[test]
fn block_in_region_marked_at_opening_is_not_accepted_after_write() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        scene.write(6, &content(6, 1)).await.unwrap();
        let scene = scene.reopen().await;
        scene.write(6, &content(6, 2)).await.unwrap();
        assert_eq!(scene.core.numbers().unverified_bytes, BLOCK_BYTES, "the scan has not begun");
        scene.rot(6);
        corrupt(scene.read(6, 1).await);
        assert_eq!(scene.core.numbers().accepted, 0);
    });
}

#[test]
fn accepted_block_has_its_checksum_before_the_answer() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        scene.write(0, &content(0, 1)).await.unwrap();
        let scene = scene.reopen().await;
        scene.rot(0);
        let accepted = scene.read(0, 1).await.unwrap();
        // Two flips make the first bytes again, which fit no longer.
        scene.quiet().await;
        assert_eq!(scene.read(0, 1).await.unwrap(), accepted);
        scene.rot(0);
        corrupt(scene.read(0, 1).await);
    });
}

#[test]
fn journal_accepts_no_block_after_death_of_process() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Journal).await;
        scene.write(0, &content(0, 1)).await.unwrap();
        let scene = scene.reopen().await;
        assert_eq!(scene.read(0, 1).await.unwrap(), content(0, 1));
        scene.rot(0);
        corrupt(scene.read(0, 1).await);
        assert_eq!(scene.core.numbers().accepted, 0);
    });
}

#[test]
fn unverified_block_with_redundancy_above_is_left_until_it_is_written() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        scene.write(0, &content(0, 1).repeat(3)).await.unwrap();
        let mut scene = scene.reopen().await;
        scene.rot(1);
        scene.redundancy = Redundancy::Above;
        let scene = scene.reopen().await;
        corrupt(scene.read(1, 1).await);
        let found = scene.last_resort(1).await.unwrap();
        assert_eq!(found, scene.on_disk(1));
        corrupt(scene.read(1, 1).await);
        scene.quiet().await;
        let numbers = scene.core.numbers();
        assert_eq!((numbers.accepted, numbers.unverified_bytes), (0, BLOCK_BYTES));
        assert_eq!(scene.core.unverified(run(0, BLOCKS)).ranges, [(BLOCK_BYTES, BLOCK_BYTES)]);
        assert_eq!(scene.last_resort(1).await.unwrap(), found);
        scene.flush().await.unwrap();
        scene.quiet().await;
        assert_eq!(scene.core.numbers().marked_bytes, 2 * BLOCK_BYTES, "the region stays marked");
        scene.write(1, &found).await.unwrap();
        scene.flush().await.unwrap();
        scene.quiet().await;
        assert_eq!(scene.core.numbers().unverified_bytes, 0);
        assert_eq!(scene.core.numbers().marked_bytes, 0);
        assert_eq!(scene.read(1, 1).await.unwrap(), found);
        scene.rot(1);
        corrupt(scene.last_resort(1).await);
    });
}

#[test]
fn failed_write_leaves_checksum_that_fits() {
    in_world(async |env| {
        let scene = Scene::new(env, Crash::Regions).await;
        scene.write(0, &content(0, 1).repeat(2)).await.unwrap();
        scene.flush().await.unwrap();
        // The vault and the data are on one disk: the first write that fails is that of the data.
        let fail = |left| Fails { writes_left: left, ..Fails::default() };
        scene.disk.fails.set(fail(Some(0)));
        let failed = scene.write(0, &content(0, 2).repeat(2)).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Faulted, "the vault fails as well: {failed}");
        scene.disk.fails.set(fail(None));
        assert_eq!(scene.core.numbers().unverified_bytes, 2 * BLOCK_BYTES);
        let scene = scene.reopen().await;
        assert_eq!(scene.read(0, 2).await.unwrap(), content(0, 1).repeat(2));
        scene.quiet().await;
        assert_eq!(scene.core.numbers().unverified_bytes, 0);
    });
}

#[test]
fn status_reports_zeros_only_where_checksums_state_them() {
    each(async |scene| {
        scene.write(1, &content(1, 1)).await.unwrap();
        let range = run(0, 3);
        let op = scene.submit(Op::Status { range, extents: Vec::new() }).await.unwrap();
        let Op::Status { extents, .. } = op else { unreachable!() };
        let found: Vec<_> = extents.iter().map(|it| (it.len / BLOCK_BYTES, it.state)).collect();
        assert_eq!(found, [(1, State::Zero), (1, State::Data), (1, State::Zero)]);
    });
}
