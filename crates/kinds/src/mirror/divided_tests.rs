//! Tests of mirrors whose source fails while the other members are copied after an unclean stop.

use std::time::Duration;

use block::control::member::{Fail, Name, Resync, Stale};
use block::{MemberState, Op};
use kind::Value;
use sim::{CutPolicy, Faults, SimWorld};

use super::tests::{MIB, Pair};

const KIB: u64 = 1 << 10;

/// A fault rate of every operation.
const ALWAYS: u32 = 1_000_000;

fn failing() -> Faults {
    Faults { write_error: ALWAYS, ..Faults::default() }
}

fn unreadable() -> Faults {
    Faults { read_error: ALWAYS, ..Faults::default() }
}

/// A byte in the last region that is copied.
const AT: u64 = 320 * KIB;

/// Creates a mirror after a power cut during a write: the first member is the source and has a 9 at [`AT`], the second one has
/// a 0 there and is copied slowly.
fn divided() -> Pair {
    let mut pair = Pair::labelled(8 * MIB, &options());
    // The first write marks the region of the second one, too.
    pair.write(0, 9);
    pair.write(AT, 9);
    pair.power_cut();
    assert_eq!(states(&pair), [MemberState::InSync, MemberState::Copying]);
    pair
}

fn options() -> [(&'static str, Value); 3] {
    let timeout = Value::Duration(Duration::from_millis(100));
    [("region", Value::Size(64 * KIB)), ("speed", Value::Size(64 * KIB)), ("timeout", timeout)]
}

fn states(pair: &Pair) -> Vec<MemberState> {
    pair.report().members.iter().map(|member| member.state).collect()
}

fn is_replaced(pair: &Pair) {
    assert_eq!(states(pair), [MemberState::Failed, MemberState::InSync]);
}

#[test]
fn divided_member_replaces_source_that_fails_write() {
    let pair = divided();
    pair.disks[0].set_faults(failing());
    pair.write(4 * MIB, 7);
    is_replaced(&pair);
    assert_eq!(pair.read(4 * MIB), 7);
}

#[test]
fn divided_member_replaces_source_that_fails_flush() {
    let pair = divided();
    pair.write(4 * MIB, 7);
    pair.disks[0].set_faults(Faults { flush_error: ALWAYS, ..Faults::default() });
    pair.send(Op::Flush);
    is_replaced(&pair);
    assert_eq!(pair.read(4 * MIB), 7);
}

#[test]
fn divided_member_replaces_source_that_does_not_answer() {
    for is_write in [true, false] {
        let pair = divided();
        pair.disks[0].set_faults(Faults { hang: ALWAYS, ..Faults::default() });
        if is_write {
            pair.write(4 * MIB, 7);
            pair.write(4 * MIB, 8);
        }
        assert_eq!(pair.read(4 * MIB), if is_write { 8 } else { 0 });
        is_replaced(&pair);
    }
}

/// Once a client has read a write that was in flight at the power cut, it must not read the bytes before that write.
#[test]
fn bytes_that_client_has_read_stay_when_source_fails() {
    let pair = divided();
    assert_eq!(pair.read(AT), 9);
    pair.disks[0].set_faults(failing());
    pair.write(4 * MIB, 7);
    is_replaced(&pair);
    assert_eq!(pair.read(AT), 9);
}

#[test]
fn blocks_that_source_cannot_read_are_read_from_divided_member() {
    let pair = divided();
    pair.disks[0].set_faults(unreadable());
    assert_eq!(pair.read(AT), 0);
    pair.disks[0].set_faults(Faults::default());
    assert_eq!(pair.read(AT), 0, "the source has got the bytes that the client has read");
    pair.disks[0].set_faults(unreadable());
    (0..20).for_each(|n| assert_eq!(pair.read(2 * MIB + n * 64 * KIB), 0));
    is_replaced(&pair);
}

#[test]
fn former_source_gets_regions_in_which_divided_member_differed() {
    let pair = divided();
    pair.disks[0].set_faults(failing());
    pair.write(4 * MIB, 7);
    pair.disks[0].set_faults(Faults::default());
    pair.ask::<Resync>(Stale { member: Some(pair.report().members[0].name.clone()) });
    while states(&pair) != [MemberState::InSync; 2] {
        pair.pass(Duration::from_millis(10));
    }
    assert_eq!(pair.read(AT), 0);
    assert!(pair.is_alike());
}

/// The state that records the failed source is in labels before the next change of the store.
#[test]
fn former_source_gets_differing_regions_after_power_cut() {
    let clear_delay = ("clear_delay", Value::Duration(Duration::from_millis(50)));
    let options = [&options()[..], &[clear_delay]].concat();
    let mut pair = Pair::with_room(&SimWorld::new(1), 2, 8 * MIB, &options);
    pair.until(|second| second.state == MemberState::InSync);
    pair.write(0, 9);
    pair.write(AT, 9);
    pair.power_cut();
    // The maps are in a store again, and no region is dirty any more.
    pair.pass(Duration::from_secs(1));
    assert_eq!(states(&pair), [MemberState::InSync, MemberState::Copying]);
    pair.ask::<Fail>(Name { member: pair.report().members[0].name.clone() });
    is_replaced(&pair);
    pair.pass(Duration::from_millis(100));
    pair.cut(&[CutPolicy::KeepAll]);
    pair.start();
    while states(&pair) != [MemberState::InSync; 2] {
        pair.pass(Duration::from_millis(10));
    }
    assert!(pair.is_alike());
}

#[test]
fn source_without_divided_member_returns_its_errors() {
    let pair = divided();
    pair.fail();
    pair.resync();
    pair.disks[0].set_faults(failing());
    let refused = pair.client().send(pair.write_of(4 * MIB, 7));
    assert!(pair.world.block_on(refused).unwrap().result.is_err());
    assert_eq!(states(&pair)[0], MemberState::InSync);
}
