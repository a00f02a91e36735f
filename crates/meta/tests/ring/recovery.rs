//! Recovery of rings that are damaged, full, or have moving tails and payload.

use meta::ring::{
    Damage, Full, Head, MustKnow, Owner, Position, RECORD_HEADER_BYTES, Root, SECTOR_BYTES, items,
};
use proptest::prelude::*;

use crate::scene::{Log, RING_BYTES, item_of, numbers, recover, survey};

#[test]
fn log_recovery_reports_missing_record_up_to_flushed_number() {
    let mut log = Log::new(Owner::PoolLog);
    for _ in 0..4 {
        log.append(2).unwrap();
        log.flush();
    }
    log.append(1).unwrap();
    log.flush();
    let whole = log.recover();
    assert_eq!((numbers(&whole.records), whole.flushed), (vec![1, 2, 3, 4, 5], 4));
    for head in &log.heads {
        for byte in [0, 8, 40, 300, RECORD_HEADER_BYTES, head.length as usize - 1] {
            let mut image = log.image.clone();
            image[head.at.offset as usize + byte] ^= 1;
            let verdict = recover(log.ring, log.root, &image);
            let number = head.at.number;
            let before: Vec<_> = (1..number).collect();
            assert_eq!(numbers(&verdict.records), before, "byte {byte} of record {number}");
            // The last record is flushed, but nothing states it: its damage is the end of the log.
            let damage = (number < 5).then_some(Damage::Missing { number, flushed: 4 });
            assert_eq!(verdict.damage, damage, "byte {byte} of record {number}");
            let behind: Vec<_> = (number + 1..=4).collect();
            assert_eq!(numbers(&verdict.behind_damage), behind, "byte {byte} of record {number}");
        }
    }
}

#[test]
fn log_recovery_counts_flushed_number_of_root() {
    let mut log = Log::new(Owner::PoolLog);
    log.append(1).unwrap();
    log.append(1).unwrap();
    log.flush();
    log.root.flushed = log.flushed;
    assert_eq!(log.recover().damage, None);
    log.image[SECTOR_BYTES + 50] ^= 1;
    assert_eq!(log.recover().damage, Some(Damage::Missing { number: 2, flushed: 2 }));
}

#[test]
fn log_recovery_ignores_flushed_number_of_earlier_opening() {
    let mut log = Log::new(Owner::PoolLog);
    log.append(1).unwrap();
    // A record of this opening, far behind, with a high flushed number.
    let at = Position { offset: 8 * 4096, number: 90, previous: 5, opening: 1 };
    let mut bytes = Vec::new();
    Head::empty(at, 1, 89).encode(&log.ring, &[], &mut bytes);
    log.put(at.offset, &bytes);
    log.flush();
    assert_eq!(log.recover().damage, Some(Damage::Missing { number: 2, flushed: 89 }));
    log.root.tail = Position { opening: 2, ..log.room.next() };
    log.root.flushed = 1;
    let verdict = log.recover();
    assert_eq!((verdict.damage, verdict.flushed, verdict.records.len()), (None, 1, 0));
}

#[test]
fn log_recovery_rejects_record_of_earlier_opening_with_matching_link() {
    let mut log = Log::new(Owner::PoolLog);
    log.opening = 5;
    let first = log.append(1).unwrap();
    log.flush();
    for (opening, count) in [(4, 1), (5, 2), (6, 2)] {
        let mut image = log.image.clone();
        let mut bytes = Vec::new();
        Head::empty(Position { opening, ..first.next() }, 1, 1).encode(&log.ring, &[], &mut bytes);
        image[SECTOR_BYTES..2 * SECTOR_BYTES].copy_from_slice(&bytes);
        assert_eq!(recover(log.ring, log.root, &image).records.len(), count, "opening {opening}");
    }
}

#[test]
fn log_recovery_reports_root_older_than_tail_of_record() {
    let mut log = Log::new(Owner::PoolLog);
    for _ in 0..3 {
        log.append(1).unwrap();
    }
    let older = log.root;
    log.checkpoint(3);
    log.append(1).unwrap();
    log.flush();
    assert_eq!(log.recover().damage, None);
    let verdict = recover(log.ring, older, &log.image);
    assert_eq!(verdict.damage, Some(Damage::RootLost { root: 1, stated: 3 }));
}

#[test]
fn full_log_refuses_record_until_tail_moves() {
    let mut log = Log::new(Owner::PoolLog);
    for _ in 0..8 {
        log.append(2).unwrap();
    }
    assert_eq!(log.append(1), Err(Full { needed: 4096, free: 0 }));
    log.flush();
    assert_eq!(numbers(&log.recover().records), (1..=8).collect::<Vec<_>>());
    log.checkpoint(3);
    assert_eq!(log.append(5 - 1).map(|head| head.at.number), Ok(9));
    assert!(log.append(1).is_err());
    log.flush();
    let verdict = log.recover();
    assert_eq!(numbers(&verdict.records), (3..=9).collect::<Vec<_>>());
    assert_eq!(verdict.end, log.room.next());
}

#[test]
fn log_record_across_end_of_ring_is_recovered() {
    let mut log = Log::new(Owner::PoolLog);
    for _ in 0..5 {
        log.append(3).unwrap();
    }
    log.checkpoint(5);
    let head = log.append(4).unwrap();
    assert_eq!(log.ring.parts(head.at.offset, head.bytes()), [(61440, 4096), (0, 3 * 4096)]);
    log.flush();
    for portion in 1..=16 {
        let verdict = survey(log.ring, log.root, &log.image, portion * SECTOR_BYTES).judge();
        assert_eq!(numbers(&verdict.records), [5, 6]);
    }
    log.image[2 * SECTOR_BYTES] ^= 1;
    assert_eq!(numbers(&log.recover().records), [5], "its end is torn");
}

#[test]
fn journal_recovery_begins_at_tail_that_record_states() {
    let mut log = Log::new(Owner::Journal);
    let payload = vec![0xee; 2 * SECTOR_BYTES];
    for number in 1..=5 {
        log.append_with(&item_of(1, 0), &payload, 1).map(|head| head.at.number).unwrap();
        assert_eq!(log.heads.len(), number);
    }
    // Records 1 to 3 are in place. Record 6 states it, and record 7 takes the space of record 1.
    log.flush();
    log.append_with(&item_of(1, 0), &[], 4).unwrap();
    log.flush();
    log.room.trim(log.heads[3].at.offset);
    assert_eq!(log.ring.place(log.room.next().offset), 0);
    log.append_with(&item_of(1, 0), &[], 4).unwrap();
    log.flush();
    let verdict = survey(log.ring, log.root, &log.image, 4096).judge_with_moving_tail();
    assert_eq!((numbers(&verdict.records), verdict.damage), (vec![4, 5, 6, 7], None));
    assert_eq!(verdict.end, log.room.next());
}

#[test]
fn journal_recovery_finds_record_in_overwritten_payload_of_earlier_record() {
    let mut log = Log::new(Owner::Journal);
    log.append_with(&item_of(1, 0), &vec![1; 3 * SECTOR_BYTES], 1).unwrap();
    for _ in 0..3 {
        log.append_with(&item_of(1, 0), &vec![1; 3 * SECTOR_BYTES], 1).unwrap();
    }
    log.flush();
    // The tail moves to record 4 by a record that wraps around: it lies on the header of record 1, the next ones lie
    // in its former payload.
    log.room.trim(log.heads[3].at.offset);
    for _ in 0..3 {
        log.append_with(&item_of(1, 0), &[], 4).unwrap();
        log.flush();
    }
    let verdict = survey(log.ring, log.root, &log.image, RING_BYTES as usize);
    let verdict = verdict.judge_with_moving_tail();
    assert_eq!((numbers(&verdict.records), verdict.damage), (vec![4, 5, 6, 7], None));
}

#[test]
fn journal_recovery_ignores_record_in_payload() {
    let mut log = Log::new(Owner::Journal);
    // A client that knows the ring's identity writes a record with a high flushed number and tail.
    let at = Position { offset: 4096, number: 50, previous: 0, opening: 1 };
    let mut forged = Vec::new();
    Head::empty(at, 40, 49).encode(&log.ring, &[], &mut forged);
    log.append_with(&item_of(1, 0), &forged, 1).unwrap();
    log.flush();
    let verdict = survey(log.ring, log.root, &log.image, 4096).judge_with_moving_tail();
    assert_eq!((numbers(&verdict.records), verdict.damage), (vec![1], None));
    assert_eq!((verdict.flushed, verdict.highest), (0, 1));
}

#[test]
fn log_survey_calls_back_with_items_of_each_candidate() {
    let mut log = Log::new(Owner::PoolLog);
    log.append(1).unwrap();
    log.append(3).unwrap();
    log.flush();
    let mut found = Vec::new();
    let mut survey = meta::ring::Survey::new(log.ring, log.root);
    while let Some((place, len)) = survey.wanted() {
        let (place, len) = (place as usize, len.min(4096) as usize);
        survey.feed(&log.image[place..place + len], |head, bytes| {
            found.push((head.at.number, items(bytes, head.items).unwrap()[0].content.len()));
        });
    }
    assert_eq!(found, [(1, 400), (2, 2 * 4096 + 400)]);
}

#[test]
fn unknown_flag_of_record_states_its_rule() {
    let at = Position { offset: 0, number: 1, previous: 0, opening: 1 };
    let rule = |flags| Head { flags, ..Head::empty(at, 1, 0) }.unknown_flags();
    assert_eq!(rule(0x000f), MustKnow::No);
    assert_eq!(rule(0x0010), MustKnow::ToWrite);
    assert_eq!(rule(0x0110), MustKnow::ToOpen);
}

proptest! {
    #[test]
    fn log_survey_of_any_bytes_ends_with_records_in_order(
        seed in proptest::collection::vec((0_usize..16, 0_usize..4096, any::<u8>()), 0..12),
        portions in 1_usize..20,
    ) {
        let mut log = Log::new(Owner::PoolLog);
        for sectors in [1, 2, 3, 1, 4] {
            log.append(sectors).unwrap();
            log.flush();
        }
        for (sector, byte, value) in seed {
            log.image[sector * SECTOR_BYTES + byte] = value;
        }
        let one = survey(log.ring, log.root, &log.image, RING_BYTES as usize).judge();
        let many = survey(log.ring, log.root, &log.image, portions * SECTOR_BYTES).judge();
        prop_assert_eq!(&one, &many);
        let whole: Vec<_> = (1..=one.records.len() as u64).collect();
        prop_assert_eq!(numbers(&one.records), whole);
    }

    #[test]
    fn log_recovery_takes_any_root_without_panic(
        offset in 0_u64..1 << 40, number in 1_u64..1 << 40, opening in 1_u64..9, flushed in 0_u64..1 << 40,
    ) {
        let mut log = Log::new(Owner::PoolLog);
        log.append(2).unwrap();
        log.flush();
        let tail = Position { offset: offset * 4096, number, previous: 0, opening };
        let verdict = recover(log.ring, Root { tail, flushed }, &log.image);
        prop_assert_eq!(verdict.damage.is_some(), flushed >= verdict.end.number);
    }
}
