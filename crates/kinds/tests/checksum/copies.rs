//! A device over copies: repair, acceptance, and the scan.

use std::time::Duration;

use block::{ErrorKind, Op, all};
use kinds::checksum::BLOCK_BYTES;

use crate::copied::{Copied, Failure, Pair};
use crate::scene::{BLOCKS, CLEAR_DELAY, Crash, REGION, content, in_world, run};

const MODES: [Crash; 2] = [Crash::Regions, Crash::Journal];

fn junk(n: u8) -> Vec<u8> {
    vec![n; BLOCK_BYTES as usize]
}

async fn quiet(pair: &Pair) {
    pair.env.sleep(4 * CLEAR_DELAY).await;
}

#[test]
fn wrong_copy_is_restored_and_reported() {
    for (crash, rotten) in MODES.into_iter().flat_map(|crash| [(crash, 0), (crash, 2)]) {
        in_world(async |env| {
            let pair = Pair::new(env, 3, crash).await;
            pair.write(4, &content(4, 1)).await;
            let pair = pair.restart(|_| {}).await;
            pair.copied.current.set(rotten);
            pair.copied.put(rotten, 4, &junk(1));
            assert_eq!(pair.read(4).await.unwrap(), content(4, 1));
            assert!(pair.copied.agree(4));
            assert_eq!(pair.copied.restored.take(), [(4, 1 << rotten)]);
            assert_eq!(pair.copied.wrong.take(), [(4, 1 << rotten)]);
            let numbers = pair.core.numbers();
            assert_eq!((numbers.repaired, numbers.accepted, numbers.damaged), (1, 0, 0));
        });
    }
}

/// A mirror takes out a member with some wrong bytes, and after an unclean stop it may be the only one in sync.
#[test]
fn copy_without_write_in_flight_at_unclean_stop_is_restored_and_not_reported() {
    for scans in [true, false] {
        in_world(async |env| {
            let pair = Pair::new(env, 2, Crash::Regions).await;
            pair.write(1, &content(1, 1)).await;
            let pair = pair.restart(|_| {}).await;
            pair.write(1, &content(1, 2)).await;
            let pair = pair.reopen(|copied| copied.put(0, 1, &content(1, 1))).await;
            if scans {
                quiet(&pair).await;
            }
            assert_eq!(pair.read(1).await.unwrap(), content(1, 2));
            assert_eq!(pair.copied.restored.take(), [(1, 0b1)]);
            assert_eq!(pair.copied.wrong.take(), []);
            // The block was verified since.
            pair.copied.put(0, 1, &junk(1));
            assert_eq!(pair.read(1).await.unwrap(), content(1, 2));
            assert_eq!(pair.copied.wrong.take(), [(1, 0b1)]);
        });
    }
}

#[test]
fn block_that_is_wrong_on_all_copies_is_damage() {
    for crash in MODES {
        in_world(async |env| {
            let pair = Pair::new(env, 2, crash).await;
            pair.write(4, &content(4, 1)).await;
            let pair = pair.restart(|_| {}).await;
            pair.copied.put(0, 4, &junk(1));
            pair.copied.put(1, 4, &junk(1));
            assert_eq!(pair.read(4).await.unwrap_err().kind(), ErrorKind::Corrupt);
            assert_eq!(pair.core.numbers().damaged, 1);
            assert_eq!(pair.copied.restored.take(), []);
        });
    }
}

/// After an unclean stop, block 0 was flushed long ago, and block 1 of its region was in flight.
#[test]
fn copies_after_unclean_stop_give_right_cold_block_and_one_hot_block() {
    let states = |copy: u64| [content(1, 1), content(1, 2), junk(0xd0 + copy as u8)];
    for (current, rotten, scans) in
        (0..2).flat_map(|c| (0..2).flat_map(move |r| [(c, r, false), (c, r, true)]))
    {
        for (first, second, posted) in
            (0..3).flat_map(|f| (0..3).flat_map(move |s| [(f, s, false), (f, s, true)]))
        {
            in_world(async |env| {
                let pair = Pair::new(env, 2, Crash::Regions).await;
                pair.write(0, &content(0, 1)).await;
                pair.write(1, &content(1, 1)).await;
                if posted {
                    pair.write(1, &content(1, 2)).await;
                }
                let change = |copied: &Copied| {
                    copied.current.set(current);
                    copied.put(rotten, 0, &junk(7));
                    copied.put(0, 1, &states(0)[first]);
                    copied.put(1, 1, &states(1)[second]);
                    copied.pending.borrow_mut().push(run(0, 2));
                };
                let pair = pair.reopen(change).await;
                if scans {
                    quiet(&pair).await;
                    assert!(pair.copied.agree(0) && pair.copied.agree(1));
                    assert_eq!(pair.core.numbers().unverified_bytes, 0);
                    assert_eq!(pair.core.numbers().marked_bytes, 0);
                }
                let what = format!("{current} {rotten} {scans} {first} {second} {posted}");
                assert_eq!(pair.read(0).await.unwrap(), content(0, 1), "{what}");
                let hot = pair.read(1).await.unwrap();
                let has_fit = [first, second].contains(&usize::from(posted));
                let expected = match has_fit {
                    true => content(1, 1 + u64::from(posted)),
                    false => states(current as u64)[[first, second][current]].clone(),
                };
                assert!(hot == expected, "{what}");
                let reads_fit = [first, second][current] == usize::from(posted);
                assert!(pair.copied.agree(1) || reads_fit && !scans, "{what}");
                assert_eq!(pair.core.numbers().accepted, u64::from(!has_fit), "{what}");
                pair.copied.current.set(1 - current);
                assert!(pair.read(1).await.unwrap() == hot, "{what}: again");
                assert_eq!(pair.core.numbers().damaged, 0, "{what}");
            });
        }
    }
}

#[test]
fn stale_copy_is_read_if_it_fits_and_never_accepted() {
    in_world(async |env| {
        let pair = Pair::new(env, 3, Crash::Regions).await;
        pair.write(0, &content(0, 1)).await;
        let change = |copied: &Copied| {
            copied.stale.set(0b100);
            copied.put(2, 0, &junk(2));
            copied.put(1, 0, &junk(1));
            copied.put(0, 0, &junk(1));
        };
        let pair = pair.reopen(change).await;
        assert_eq!(pair.read(0).await.unwrap(), junk(1));
        assert!(pair.copied.agree(0));
        let change = |copied: &Copied| {
            copied.put(0, 0, &junk(3));
            copied.put(1, 0, &junk(4));
        };
        let pair = pair.reopen(change).await;
        assert_eq!(pair.read(0).await.unwrap(), junk(1), "the stale copy fits");
        assert!(pair.copied.agree(0));
        assert_eq!(pair.core.numbers().accepted, 0);
    });
}

#[test]
fn scan_reads_all_copies_of_marked_and_pending_ranges() {
    in_world(async |env| {
        let pair = Pair::new(env, 2, Crash::Regions).await;
        for block in 0..BLOCKS {
            pair.write(block, &content(block, 1)).await;
        }
        let pair = pair.restart(|_| {}).await;
        quiet(&pair).await;
        pair.write(0, &content(0, 2)).await;
        let change = |copied: &Copied| {
            copied.put(1, 1, &junk(1));
            copied.put(1, 5, &junk(2));
            copied.put(0, 6, &junk(3));
            copied.put(1, 6, &junk(3));
            copied.put(1, 3, &junk(4));
            copied.pending.borrow_mut().push(run(5, 2));
            copied.verified.take();
        };
        let pair = pair.reopen(change).await;
        quiet(&pair).await;
        assert_eq!(pair.copied.restored.take(), [(5, 0b10), (1, 0b10)]);
        let wrong = pair.copied.wrong.take();
        assert_eq!(wrong, [(5, 0b10)], "the crash may be the reason of the difference in block 1");
        assert_eq!(pair.copied.get(1, 3), junk(4), "nothing names block 3");
        let verified = pair.copied.verified.take();
        let verdicts =
            [(run(0, REGION / BLOCK_BYTES), true), (run(5, 1), true), (run(6, 1), false)];
        assert!(verdicts.iter().all(|verdict| verified.contains(verdict)), "{verified:?}");
        assert_eq!(pair.read(6).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(pair.core.numbers().accepted, 0);
        // A member returns later.
        pair.copied.pending.replace(vec![run(3, 1)]);
        pair.core.scan().await.unwrap();
        assert_eq!(pair.copied.get(1, 3), content(3, 1));
    });
}

#[test]
fn scan_goes_on_behind_failed_range_and_reports_it() {
    in_world(async |env| {
        let pair = Pair::new(env, 2, Crash::Journal).await;
        let change = |copied: &Copied| {
            copied.pending.replace(vec![run(2, 1), run(6, 1)]);
            copied.refused.set(Some(2));
        };
        let pair = pair.restart(change).await;
        quiet(&pair).await;
        assert_eq!(pair.copied.verified.take(), [(run(2, 1), true), (run(6, 1), true)]);
        let error = pair.core.scan_failure().expect("a range was left");
        assert_eq!(error.kind(), ErrorKind::Io);
        pair.copied.refused.set(None);
        pair.core.scan().await.unwrap();
        assert!(pair.core.scan_failure().is_none());
    });
}

#[test]
fn repair_ends_before_next_write_of_block() {
    in_world(async |env| {
        let pair = Pair::new(env, 2, Crash::Regions).await;
        pair.write(0, &content(0, 1)).await;
        let pair = pair.restart(|_| {}).await;
        // The next write of the region waits for no mark.
        pair.write(0, &content(0, 3)).await;
        pair.copied.put(0, 0, &junk(1));
        let read = async {
            pair.read(0).await.unwrap();
        };
        let write = async { pair.write(0, &content(0, 2)).await };
        let both: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> =
            vec![Box::pin(read), Box::pin(write)];
        all(both).await;
        pair.env.sleep(Duration::from_millis(1)).await;
        assert!(pair.copied.agree(0));
        assert_eq!(pair.read(0).await.unwrap(), content(0, 2));
    });
}

#[test]
fn block_behind_failed_write_has_checksum_that_fits_or_is_unverified() {
    for failure in [Failure::Before, Failure::After, Failure::Torn] {
        in_world(async |env| {
            let pair = Pair::new(env, 2, Crash::Regions).await;
            pair.write(0, &[content(0, 1), content(1, 1)].concat()).await;
            pair.copied.failure.set(Some(failure));
            let new = [content(0, 2), content(1, 2)].concat();
            assert_eq!(pair.try_write(0, &new).await.unwrap_err().kind(), ErrorKind::Io);
            pair.copied.failure.set(None);
            let found = [pair.copied.get(0, 0), pair.copied.get(0, 1)];
            let in_doubt = if failure == Failure::Torn { 2 } else { 0 };
            assert_eq!(pair.core.numbers().unverified_bytes, in_doubt * BLOCK_BYTES);
            pair.core.submit(&mut Op::Flush).await.unwrap();
            quiet(&pair).await;
            assert_eq!(pair.core.numbers().marked_bytes, in_doubt * BLOCK_BYTES);
            assert_eq!(pair.read(0).await.unwrap(), found[0]);
            assert_eq!(pair.core.numbers().accepted, in_doubt / 2);
            pair.write(1, &content(1, 3)).await;
            pair.core.submit(&mut Op::Flush).await.unwrap();
            quiet(&pair).await;
            let numbers = pair.core.numbers();
            assert_eq!((numbers.unverified_bytes, numbers.marked_bytes), (0, 0));
            pair.copied.put(0, 0, &junk(1));
            pair.copied.put(1, 0, &junk(1));
            assert_eq!(pair.read(0).await.unwrap_err().kind(), ErrorKind::Corrupt);
        });
    }
}

#[test]
fn region_of_block_behind_failed_write_is_marked_at_next_opening() {
    in_world(async |env| {
        let pair = Pair::new(env, 2, Crash::Regions).await;
        pair.write(0, &content(0, 1)).await;
        pair.copied.failure.set(Some(Failure::Torn));
        pair.try_write(0, &content(0, 2)).await.unwrap_err();
        pair.copied.failure.set(None);
        let found = pair.copied.get(0, 0);
        let pair = pair.restart(|_| {}).await;
        assert_eq!(pair.read(0).await.unwrap(), found);
        assert_eq!(pair.core.numbers().accepted, 1);
    });
}

#[test]
fn copies_that_lower_cannot_verify_are_read_as_last_resort() {
    in_world(async |env| {
        let pair = Pair::new(env, 2, Crash::Regions).await;
        pair.write(0, &[content(0, 1), content(1, 1)].concat()).await;
        let change = |copied: &Copied| {
            copied.unverified.set(0b11);
            copied.put(0, 1, &junk(1));
            copied.put(1, 1, &junk(1));
        };
        let pair = pair.reopen(change).await;
        // The plain read fails before its bytes can be compared.
        assert_eq!(pair.read(0).await.unwrap_err().kind(), ErrorKind::Corrupt);
        quiet(&pair).await;
        assert_eq!(pair.core.numbers().unverified_bytes, 0);
        assert_eq!(pair.core.numbers().accepted, 1, "block 0 fits its checksum");
        pair.copied.unverified.set(0);
        assert_eq!(pair.read(0).await.unwrap(), content(0, 1));
        assert_eq!(pair.read(1).await.unwrap(), junk(1));
    });
}

#[test]
fn repair_beside_journal_is_not_undone_by_replay() {
    in_world(async |env| {
        let pair = Pair::new(env, 2, Crash::Journal).await;
        pair.write(0, &content(0, 1)).await;
        // A read waits until the record of the block is in place.
        pair.env.sleep(Duration::from_secs(3)).await;
        pair.copied.put(0, 0, &junk(1));
        assert_eq!(pair.read(0).await.unwrap(), content(0, 1));
        let pair = pair.reopen(|_| {}).await;
        assert_eq!(pair.read(0).await.unwrap(), content(0, 1));
        assert!(pair.copied.agree(0));
    });
}
