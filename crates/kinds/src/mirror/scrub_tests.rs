//! Tests of the scrubs of `mirror`.

use std::time::Duration;

use block::control::copies::{Action, Scrub};
use block::control::member::{Fail, Name, Resync, Stale};
use block::{ByteRange, Difference, ErrorKind, Health, MemberState, Op};
use kind::Value;
use sim::{Faults, Profile};

use super::tests::{MIB, Pair};

impl Pair {
    /// Begins a scrub of the mirror by command. Returns the report of the scrub.
    fn scrub(&self) -> block::Scrub {
        self.ask::<Scrub>(Action::default());
        self.report().scrub.unwrap()
    }

    /// Begins a scrub that repairs differences, and waits until it has ended. Returns the report of the scrub.
    fn repair(&self, trust: Option<usize>) -> block::Scrub {
        let trust = trust.map(|member| self.running().names[member].clone());
        self.ask::<Scrub>(Action { repair: true, trust, ..Action::default() });
        self.ended()
    }

    /// Waits until the running scrub has ended. Returns the report of the scrub.
    fn ended(&self) -> block::Scrub {
        self.pass(Duration::from_secs(5));
        let scrub = self.report().scrub.unwrap();
        assert!(scrub.progress.is_none(), "{scrub:?}");
        scrub
    }

    /// Creates a mirror over `count` labelled disks, and writes to all its bytes.
    fn written(count: usize, size: u64) -> Self {
        Self::of(count, size, true, &[]).filled(size)
    }

    /// Writes to all bytes of a new mirror.
    fn filled(self, size: u64) -> Self {
        let pair = self;
        pair.pass(Duration::from_secs(5));
        for part in 0..size / MIB {
            pair.send(pair.long_write_of(part * MIB, MIB, 7));
        }
        pair.send(Op::Flush);
        // No region is dirty any more, so a power cut leads to no resync.
        pair.pass(Duration::from_secs(60));
        pair
    }
}

/// Bits flip on both disks. A scrub finds every damaged block and changes none.
#[test]
fn scrub_reports_bit_rot_and_changes_no_copy() {
    let pair = Pair::written(2, 8 * MIB);
    let rotten = [0, MIB + 513, 5 * MIB - 1, 8 * MIB - 512];
    for (n, at) in rotten.into_iter().enumerate() {
        assert!(pair.disks[n % 2].rot(at));
    }
    let all = ByteRange::new(0, 8 * MIB).unwrap();
    let before: Vec<_> = pair.disks.iter().map(|disk| disk.peek(all)).collect();
    let begun = pair.scrub();
    assert!(begun.progress.is_some() && !begun.is_repairing, "{begun:?}");
    let scrub = pair.ended();
    assert_eq!((scrub.differing_blocks, scrub.repaired_blocks, scrub.unreadable), (4, 0, 0));
    let differences = rotten.map(|at| {
        let (start_bytes, len_bytes) = (at / 512 * 512, 512);
        Difference { start_bytes, len_bytes, outvoted: Vec::new() }
    });
    assert_eq!(scrub.differences, differences);
    assert!(scrub.ended_unix_s.is_some());
    assert!(pair.disks.iter().zip(&before).all(|(disk, before)| disk.peek(all) == *before));
    let report = pair.report();
    assert_eq!(report.health, Health::Degraded);
    assert_eq!(report.summary, "2 of 2 members in sync, but they differ in 4 blocks");
    assert!(report.next.unwrap().contains("--repair --trust"));
}

/// Bits flip on both disks. One repair makes every damaged block alike, and changes no other block.
#[test]
fn repair_gives_all_copies_bytes_of_trusted_member() {
    let pair = Pair::written(2, 8 * MIB);
    for at in [MIB + 513, 5 * MIB - 1] {
        assert!(pair.disks[0].rot(at));
    }
    pair.scrub();
    assert_eq!(pair.ended().differing_blocks, 2);
    let write = pair.client().send(pair.write_of(3 * MIB, 8));
    let scrub = pair.repair(Some(1));
    pair.world.block_on(write).unwrap().result.unwrap();
    assert_eq!((scrub.differing_blocks, scrub.repaired_blocks), (0, 2));
    assert!(pair.is_alike());
    let rotten = ByteRange::new(MIB, MIB).unwrap();
    assert!(pair.disks[0].peek(rotten).iter().all(|byte| *byte == 7), "the trusted bytes");
    let report = pair.report();
    assert_eq!((report.health, report.next), (Health::Ok, None));
}

#[test]
fn repair_writes_whole_blocks_to_member_with_larger_blocks() {
    let pair = Pair::with_profiles(&[Profile::Native512, Profile::Native4k], MIB, true, &[]);
    let pair = pair.filled(MIB);
    assert!(pair.disks[1].rot(513));
    let scrub = pair.repair(Some(0));
    assert_eq!((scrub.block_bytes, scrub.repaired_blocks), (4096, 1));
    assert!(pair.is_alike());
    assert_eq!(pair.report().health, Health::Ok);
}

#[test]
fn repair_without_majority_needs_trusted_member() {
    let pair = Pair::written(2, MIB);
    assert!(pair.disks[0].rot(512));
    let ask = |action: Action| pair.try_ask::<Scrub>(action).unwrap_err();
    let repair = Action { repair: true, ..Action::default() };
    let error = ask(repair.clone());
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("needs 3"), "{error}");
    let unknown = Action { trust: Some("nobody".to_owned()), ..repair.clone() };
    assert_eq!(ask(unknown).kind(), ErrorKind::NotFound);
    let second = Some(pair.running().names[1].clone());
    assert_eq!(
        ask(Action { trust: second.clone(), ..Action::default() }).kind(),
        ErrorKind::Invalid
    );
    pair.fail();
    assert_eq!(ask(Action { trust: second, ..repair }).kind(), ErrorKind::InUse);
    assert!(pair.report().scrub.unwrap().progress.is_none());
}

#[test]
fn repair_follows_majority_and_leaves_blocks_without_one() {
    let pair = Pair::written(3, 2 * MIB);
    assert!(pair.disks[1].rot(512));
    // The same block has three contents.
    assert!(pair.disks[0].rot(MIB) && pair.disks[2].rot(MIB + 1));
    pair.scrub();
    let outvoted: Vec<_> = pair.ended().differences.into_iter().map(|one| one.outvoted).collect();
    assert_eq!(outvoted, [vec![pair.running().names[1].clone()], vec![]]);
    let scrub = pair.repair(None);
    assert_eq!((scrub.differing_blocks, scrub.repaired_blocks), (1, 1));
    assert!(pair.disks[1].peek(ByteRange::new(512, 512).unwrap()).iter().all(|byte| *byte == 7));
    let contents = |disk: usize| pair.disks[disk].peek(ByteRange::new(MIB, 512).unwrap());
    assert!(contents(0) != contents(1) && contents(1) != contents(2) && contents(0) != contents(2));
    assert_eq!(pair.report().health, Health::Degraded);
    assert_eq!(pair.repair(Some(1)).differing_blocks, 0);
    assert!(pair.is_alike());
}

#[test]
fn differences_count_until_scrub_finds_none() {
    let mut pair = Pair::written(2, 4 * MIB);
    assert!(pair.disks[1].rot(3 * MIB));
    pair.scrub();
    assert_eq!(pair.ended().differing_blocks, 1);
    pair.power_cut();
    pair.pass(Duration::from_secs(5));
    assert_eq!(pair.report().health, Health::Degraded, "{:?}", pair.report());
    let damaged = pair.report().scrub.unwrap();
    assert_eq!((damaged.differing_blocks, damaged.differences), (1, Vec::new()));
    // A stopped scrub has not compared the rest of the mirror.
    pair.scrub();
    pair.ask::<Scrub>(Action { stop: true, ..Action::default() });
    assert_eq!(pair.ended().differing_blocks, 1);
    // A client overwrites the damaged block.
    pair.send(pair.long_write_of(3 * MIB, MIB, 9));
    pair.scrub();
    assert_eq!(pair.ended().differing_blocks, 0);
    assert_eq!(pair.report().health, Health::Ok);
}

#[test]
fn interrupted_repair_continues_as_repair() {
    let mut pair = Pair::written(2, 64 * MIB);
    assert!(pair.disks[0].rot(63 * MIB));
    let second = Some(pair.running().names[1].clone());
    pair.ask::<Scrub>(Action { repair: true, trust: second, ..Action::default() });
    let done = |pair: &Pair| pair.report().scrub.unwrap().progress.unwrap().done_bytes;
    while done(&pair) < 40 * MIB {
        pair.pass(Duration::from_micros(100));
    }
    pair.power_cut();
    assert!(pair.report().scrub.unwrap().is_repairing);
    let scrub = pair.ended();
    assert_eq!((scrub.differing_blocks, scrub.repaired_blocks), (0, 1));
    assert!(pair.is_alike());
}

/// While a scrub reads a member, the member is failed by command and comes back in sync without a missed write.
#[test]
fn scrub_ignores_reads_of_member_failed_during_scrub() {
    let pair = Pair::labelled(MIB, &[]);
    pair.send(pair.long_write_of(0, MIB, 7));
    pair.send(Op::Flush);
    // No region is dirty any more, so the copy has nothing to do.
    pair.pass(Duration::from_secs(60));
    let first = pair.running().names[0].clone();
    pair.disks[0].set_faults(Faults { stall: 1_000_000, ..Faults::default() });
    pair.scrub();
    pair.pass(Duration::from_millis(1));
    pair.disks[0].set_faults(Faults::default());
    let all = ByteRange::new(0, MIB).unwrap();
    pair.disks[0].garble_reads(all);
    pair.ask::<Fail>(Name { member: first.clone() });
    pair.ask::<Resync>(Stale { member: Some(first) });
    while pair.report().members[0].state != MemberState::InSync {
        pair.pass(Duration::from_micros(10));
    }
    assert_eq!(pair.report().scrub.unwrap().progress.unwrap().done_bytes, 0, "it is still read");
    pair.pass(Duration::from_secs(30));
    assert!(pair.is_alike() && pair.disks[1].peek(all).iter().all(|byte| *byte == 7));
    assert_eq!(pair.report().scrub.unwrap().differing_blocks, 0);
}

#[test]
fn scrub_rewrites_unreadable_ranges() {
    let pair = Pair::labelled(8 * MIB, &[]);
    pair.send(pair.long_write_of(0, MIB, 7));
    let faults = Faults { read_error: 300_000, ..Faults::default() };
    pair.disks[1].set_faults(faults);
    pair.scrub();
    pair.pass(Duration::from_secs(5));
    pair.disks[1].set_faults(Faults::default());
    let scrub = pair.report().scrub.unwrap();
    assert!(
        scrub.progress.is_none() && scrub.unreadable > 0 && scrub.differing_blocks == 0,
        "{scrub:?}"
    );
    assert_eq!(pair.second().state, MemberState::InSync);
    let repaired = ("repaired", scrub.unreadable);
    assert!(pair.report().counters.contains(&repaired));
}

#[test]
fn scrub_begins_when_due_and_resumes_after_stop() {
    let month = Duration::from_secs(30 * 86_400);
    let mut pair = Pair::labelled(64 * MIB, &[("scrub", Value::Duration(month))]);
    let scrub = |pair: &Pair| pair.report().scrub.unwrap();
    let first = scrub(&pair).ended_unix_s.expect("the members are new");
    pair.pass(month - Duration::from_secs(60));
    assert_eq!(scrub(&pair).ended_unix_s, Some(first));
    pair.pass(Duration::from_secs(120));
    let second = scrub(&pair).ended_unix_s.unwrap();
    assert!(second >= first + month.as_secs());
    pair.scrub();
    while scrub(&pair).progress.is_some_and(|progress| progress.done_bytes < 40 * MIB) {
        pair.pass(Duration::from_micros(100));
    }
    pair.power_cut();
    let now = scrub(&pair);
    assert_eq!(now.ended_unix_s, Some(second));
    assert!(now.progress.is_some_and(|progress| progress.done_bytes >= 32 * MIB), "{now:?}");
    pair.pass(Duration::from_secs(60));
    assert!(scrub(&pair).ended_unix_s.unwrap() > second);
}
