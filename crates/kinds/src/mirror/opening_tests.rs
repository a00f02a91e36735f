//! Tests of the mirror's decision at its start: which members are in sync, and which regions it resyncs, given the
//! records in the members' labels.

use block::{Error, ErrorKind, StoredState};

use super::*;

fn generation(incarnation: u64, events: u64) -> Generation {
    Generation { incarnation, events }
}

/// Returns the regions of a mirror with ten regions of 4 KiB.
fn regions() -> Regions {
    Regions::new(40 << 10, 4 << 10).unwrap()
}

fn map(set: &[usize]) -> Bitmap {
    let mut map = Bitmap::none(10);
    set.iter().for_each(|region| map.insert(*region));
    map
}

/// Returns a mirror's record. Each of `members` has a name, a state, the newest record known to be on the member, and
/// the newest record sent to the member. Region 1 is dirty if `active`. Members that are not in sync miss region 2.
fn record(
    at: Generation,
    active: bool,
    members: &[(&str, MemberState, Generation, Generation)],
) -> Record {
    let member = |(name, state, known, sent): &(&str, MemberState, Generation, Generation)| Known {
        name: (*name).to_owned(),
        state: *state,
        known: *known,
        sent: *sent,
        missing: if *state == IN { map(&[]) } else { map(&[2]) },
        refilled: false,
        content: Content::Stale,
    };
    let members = members.iter().map(member).collect();
    let active = if active { map(&[1]) } else { map(&[]) };
    let scrubbed = Scrubbed::default();
    Record {
        generation: at,
        regions: regions(),
        scrubbed,
        active,
        flush_failed: false,
        members,
        room: None,
    }
}

fn found(record: Option<&Record>) -> Found {
    let state = record.map(kept);
    Found {
        labelled: true,
        present: true,
        fresh: false,
        clean: true,
        everywhere: record.is_some(),
        oldest: state.clone(),
        state,
        closed: None,
    }
}

fn kept(record: &Record) -> StoredState {
    StoredState { sequence: record.generation.events, bytes: record.encode() }
}

const IN: MemberState = MemberState::InSync;
const STALE: MemberState = MemberState::Stale;
const FAILED: MemberState = MemberState::Failed;

struct Case {
    found: Vec<Found>,
    regions: Regions,
    created: bool,
    trust: Option<usize>,
    trusted_now: bool,
    may_degrade: bool,
}

impl Case {
    fn new(found: Vec<Found>) -> Self {
        Self {
            found,
            regions: regions(),
            created: false,
            trust: None,
            trusted_now: false,
            may_degrade: false,
        }
    }

    /// Returns the states of the members after the mirror has opened, or the message of the refusal.
    fn decide(&self) -> Result<Vec<MemberState>, String> {
        self.decision().map(|decision| decision.states)
    }

    /// Returns the regions that the resync must copy to each member.
    fn missing(&self) -> Vec<Bitmap> {
        self.decision().unwrap().missing
    }

    fn decision(&self) -> Result<Decision, String> {
        self.members(None).decide().map_err(|error| error.to_string())
    }

    fn members(&self, stored: Option<StoredMaps>) -> Members<'_> {
        Members {
            names: ["a", "b", "c"][..self.found.len()].to_vec(),
            found: self.found.iter().collect(),
            regions: self.regions,
            stored,
            created: self.created,
            spares: 0,
            trust: self.trust,
            trusted_now: self.trusted_now,
            may_degrade: self.may_degrade,
        }
    }
}

/// Returns the record that the labels of both members have: record 5 of the mirror's first opening.
fn both(active: bool) -> Record {
    let before = generation(1, 4);
    let now = generation(1, 5);
    record(now, active, &[("a", IN, before, now), ("b", IN, before, now)])
}

#[test]
fn mirror_opening_ignores_first_record_on_stale_member_alone() {
    let (never, now) = (Generation::default(), generation(1, 1));
    let first = record(now, false, &[("a", IN, never, now), ("b", STALE, never, now)]);
    let fresh = |record| Found { fresh: true, ..found(record) };
    let mut case = Case::new(vec![fresh(None), fresh(Some(&first))]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]), "a crash cut the first start short");
    case.found[1].fresh = false;
    let words = case.decide().unwrap_err();
    assert!(words.contains("no member with every write is present"), "{words}");
}

#[test]
fn mirror_opening_finds_new_members_in_sync_only_if_created_empty() {
    let fresh = Found { fresh: true, ..found(None) };
    let mut case = Case::new(vec![fresh.clone(), fresh.clone()]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]), "what was on them before is anybody's guess");
    case.created = true;
    assert_eq!(case.decide(), Ok(vec![IN, IN]));
    case.found[0] = found(None);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]), "the other one has nothing that could count");
    case.found = vec![fresh, found(None)];
    assert_eq!(case.decide(), Ok(vec![STALE, IN]));
    case.found[0] = found(None);
    assert!(case.decide().unwrap_err().contains("trust = a or b"));
    case.trust = Some(1);
    assert_eq!(case.decide(), Ok(vec![STALE, IN]));
    case.trust = None;
    case.found =
        vec![Found { fresh: true, ..found(None) }, Found { present: false, ..found(None) }];
    assert!(case.decide().is_err(), "what is away may have more");
}

#[test]
fn mirror_opening_finds_members_in_sync_after_clean_close() {
    let case = Case::new(vec![found(Some(&both(true))), found(Some(&both(true)))]);
    assert_eq!(case.decide(), Ok(vec![IN, IN]));
}

#[test]
fn mirror_opening_resyncs_dirty_regions_from_one_member_after_crash() {
    for (active, expected) in [(true, [IN, STALE]), (false, [IN, IN])] {
        let open = Found { clean: false, ..found(Some(&both(active))) };
        let mut case = Case::new(vec![open.clone(), open]);
        assert_eq!(case.decide(), Ok(expected.to_vec()));
        case.trust = Some(1);
        let expected = if active { [STALE, IN] } else { [IN, IN] };
        assert_eq!(case.decide(), Ok(expected.to_vec()));
    }
}

#[test]
fn mirror_opening_rejects_unclean_image_as_resync_source() {
    let closed = found(Some(&both(true)));
    let image = Found { clean: false, ..closed.clone() };
    assert_eq!(Case::new(vec![image.clone(), closed.clone()]).decide(), Ok(vec![STALE, IN]));
    assert_eq!(Case::new(vec![closed, image]).decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_resyncs_failed_member_despite_own_in_sync_record() {
    let newest = record(
        generation(1, 6),
        true,
        &[
            ("a", IN, generation(1, 5), generation(1, 6)),
            ("b", FAILED, generation(1, 5), generation(1, 5)),
        ],
    );
    let mut case = Case::new(vec![found(Some(&newest)), found(Some(&both(true)))]);
    assert_eq!(case.decide(), Ok(vec![IN, FAILED]));
    // Without the other one it must not serve, not even if the operator permits a degraded opening.
    case.found[0] = Found { present: false, ..found(None) };
    case.found[1] = found(Some(&newest));
    case.may_degrade = true;
    assert!(
        case.decide()
            .unwrap_err()
            .contains("no member with every write is present; such members: a")
    );
    case.trust = Some(1);
    assert!(case.decide().unwrap_err().contains("no member with every write is present"));
    case.trusted_now = true;
    assert_eq!(case.decide(), Ok(vec![STALE, IN]));
}

#[test]
fn mirror_opening_rejects_trusted_stale_member_in_split_brain() {
    // c failed; then a and b went on, each without the other.
    let (before, failed) = (generation(1, 5), generation(1, 4));
    let alone = |incarnation, me: &str| {
        let now = generation(incarnation, 7);
        let it = |name| if name == me { (IN, before, now) } else { (STALE, before, before) };
        let (a, b) = (it("a"), it("b"));
        record(
            now,
            true,
            &[("a", a.0, a.1, a.2), ("b", b.0, b.1, b.2), ("c", FAILED, failed, failed)],
        )
    };
    let before_both = record(
        generation(1, 4),
        true,
        &[("a", IN, failed, failed), ("b", IN, failed, failed), ("c", IN, failed, failed)],
    );
    let states = [&alone(2, "a"), &alone(3, "b"), &before_both];
    let mut case = Case::new(states.map(|state| found(Some(state))).to_vec());
    case.trust = Some(2);
    assert!(case.decide().unwrap_err().contains("written independently"));
    for half in [0, 1] {
        case.trust = Some(half);
        assert_eq!(case.decide().unwrap()[half], IN);
    }
    (case.trust, case.trusted_now) = (Some(2), true);
    assert_eq!(case.decide(), Ok(vec![STALE, STALE, IN]));
}

#[test]
fn mirror_opening_rejects_trusted_stale_member_after_failed_flush() {
    let now = generation(2, 7);
    let newest = record(
        now,
        true,
        &[("a", IN, now, now), ("b", FAILED, generation(1, 5), generation(1, 5))],
    );
    let newest = Record { flush_failed: true, ..newest };
    let mut case = Case::new(vec![found(Some(&newest)), found(Some(&both(true)))]);
    case.trust = Some(1);
    assert!(case.decide().unwrap_err().contains("a flush failed"));
    case.trust = Some(0);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

/// The trusted member may have writes of its own that the divided one lacks.
#[test]
fn mirror_opening_counts_no_member_as_divided_after_trust() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let mut newest = record(now, true, &[("a", IN, before, now), ("b", STALE, before, now)]);
    newest.members[1].content = Content::Divided;
    let mut case = Case::new(vec![found(Some(&newest)), found(Some(&newest))]);
    assert_eq!(case.decision().unwrap().content, [Content::Stale, Content::Divided]);
    newest.flush_failed = true;
    case.found = vec![found(Some(&newest)), found(Some(&newest))];
    case.trust = Some(0);
    assert_eq!(case.decision().unwrap().content, [Content::Stale; 2]);
}

#[test]
fn mirror_opening_refuses_trust_while_in_sync_member_is_absent() {
    let away = Found { present: false, ..found(None) };
    let mut case = Case::new(vec![found(Some(&both(true))), away]);
    case.trust = Some(0);
    assert!(case.decide().unwrap_err().contains("a member in sync is absent: b"));
    case.may_degrade = true;
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_without_in_sync_member_needs_degraded_permission() {
    let away = Found { present: false, ..found(None) };
    let mut case = Case::new(vec![found(Some(&both(true))), away]);
    assert!(case.decide().unwrap_err().contains("a member in sync is absent: b"));
    case.may_degrade = true;
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_accepts_record_that_reached_one_member() {
    let next = record(
        generation(2, 6),
        false,
        &[
            ("a", IN, generation(1, 5), generation(2, 6)),
            ("b", IN, generation(1, 5), generation(2, 6)),
        ],
    );
    let case = Case::new(vec![found(Some(&next)), found(Some(&both(true)))]);
    assert_eq!(case.decide(), Ok(vec![IN, IN]));
}

#[test]
fn mirror_opening_marks_older_image_of_member_as_stale() {
    let older = record(
        generation(1, 3),
        true,
        &[
            ("a", IN, generation(1, 2), generation(1, 3)),
            ("b", IN, generation(1, 2), generation(1, 3)),
        ],
    );
    let case = Case::new(vec![found(Some(&both(true))), found(Some(&older))]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_refuses_split_brain_without_trust() {
    let alone = |incarnation, events, me: &str| {
        let (now, before) = (generation(incarnation, events), generation(1, 5));
        let (a, b) = if me == "a" { (IN, STALE) } else { (STALE, IN) };
        let sent = |name| if name == me { now } else { before };
        record(now, true, &[("a", a, before, sent("a")), ("b", b, before, sent("b"))])
    };
    // By separate openings; and with one half going on in the opening in which both began.
    for (a, b) in [((2, 6), (3, 6)), ((2, 9), (3, 6)), ((1, 7), (3, 9)), ((1, 7), (3, 6))] {
        let (a, b) = (alone(a.0, a.1, "a"), alone(b.0, b.1, "b"));
        let mut case = Case::new(vec![found(Some(&a)), found(Some(&b))]);
        case.may_degrade = true;
        assert!(case.decide().unwrap_err().contains("written independently"), "{a:?} {b:?}");
        case.trust = Some(0);
        assert_eq!(case.decide(), Ok(vec![IN, STALE]));
        case.trust = Some(1);
        assert_eq!(case.decide(), Ok(vec![STALE, IN]));
    }
}

#[test]
fn mirror_opening_ignores_lone_record_if_other_members_have_writes() {
    // a's last state reached no other member; then b and c went on without a, and c was copied from b.
    let (before, heard, last) = (generation(1, 4), generation(1, 5), generation(1, 6));
    let of_a = record(
        last,
        true,
        &[("a", IN, heard, last), ("b", IN, heard, last), ("c", FAILED, before, before)],
    );
    let now = generation(2, 8);
    let newest = record(
        now,
        true,
        &[("a", STALE, before, heard), ("b", IN, heard, now), ("c", IN, heard, now)],
    );
    let states = [&of_a, &newest, &newest];
    let case = Case::new(states.map(|state| found(Some(state))).to_vec());
    assert_eq!(case.decide(), Ok(vec![STALE, IN, IN]));
}

#[test]
fn mirror_opening_ignores_lone_record_after_later_member_failure() {
    // a's last state reached no other member; b went on without a, and c was copied from b before b failed.
    let (before, heard, last) = (generation(1, 4), generation(1, 5), generation(1, 6));
    let of_a = record(
        last,
        true,
        &[("a", STALE, heard, last), ("b", IN, heard, last), ("c", FAILED, before, before)],
    );
    let state = |incarnation, events, b| {
        let (now, earlier) = (generation(incarnation, events), generation(incarnation, events - 1));
        let of_b = if b == IN { now } else { earlier };
        record(
            now,
            true,
            &[("a", STALE, before, heard), ("b", b, earlier, of_b), ("c", IN, earlier, now)],
        )
    };
    let newest = state(2, 9, FAILED);
    let case = |of_b| Case::new([&of_a, &of_b, &newest].map(|it| found(Some(it))).to_vec());
    assert_eq!(case(state(2, 8, IN)).decide(), Ok(vec![STALE, FAILED, IN]));
    let words = case(state(3, 8, IN)).decide().unwrap_err();
    assert!(words.contains("written independently"), "b went on apart from c as well: {words}");
}

#[test]
fn mirror_opening_prefers_degraded_member_over_unserved_records() {
    // b has the states of three openings that never served; then a was opened alone, and acknowledged writes.
    let before = generation(1, 9);
    let of_b = record(
        generation(4, 12),
        false,
        &[("a", IN, before, generation(4, 12)), ("b", IN, generation(3, 11), generation(4, 12))],
    );
    let alone = record(
        generation(5, 11),
        true,
        &[("a", IN, generation(5, 10), generation(5, 11)), ("b", STALE, before, before)],
    );
    let case = Case::new(vec![found(Some(&alone)), found(Some(&of_b))]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_marks_older_image_of_degraded_member_as_stale() {
    let older = record(
        generation(2, 6),
        true,
        &[
            ("a", FAILED, generation(1, 5), generation(1, 5)),
            ("b", IN, generation(2, 5), generation(2, 6)),
        ],
    );
    let now = generation(4, 20);
    let newest =
        record(now, true, &[("a", IN, generation(4, 19), now), ("b", IN, generation(4, 19), now)]);
    let case = Case::new(vec![found(Some(&newest)), found(Some(&older))]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_resyncs_returning_member_from_degraded_member() {
    let alone = record(
        generation(2, 7),
        true,
        &[
            ("a", IN, generation(2, 6), generation(2, 7)),
            ("b", STALE, generation(1, 5), generation(1, 5)),
        ],
    );
    let case = Case::new(vec![found(Some(&alone)), found(Some(&both(true)))]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_resyncs_new_member() {
    let fresh = Found { fresh: true, ..found(None) };
    let case = Case::new(vec![found(Some(&both(true))), found(Some(&both(true))), fresh]);
    assert_eq!(case.decide(), Ok(vec![IN, IN, STALE]));
}

#[test]
fn mirror_opening_needs_trust_after_flush_failed_on_all_members() {
    let failed = Record { flush_failed: true, ..both(true) };
    let mut case = Case::new(vec![found(Some(&failed)), found(Some(&failed))]);
    assert!(case.decide().unwrap_err().contains("a flush failed"));
    case.trust = Some(1);
    assert_eq!(case.decide(), Ok(vec![STALE, IN]));
}

#[test]
fn mirror_opening_refuses_mirror_record_of_unknown_version() {
    let mut odd = found(Some(&both(true)));
    odd.state.as_mut().unwrap().bytes[0] = 9;
    let case = Case::new(vec![odd, found(Some(&both(true)))]);
    assert!(case.decide().unwrap_err().contains("version 9"));
}

#[test]
fn mirror_opening_refuses_trust_in_absent_member() {
    let mut case = Case::new(vec![found(None), Found { present: false, ..found(None) }]);
    case.trust = Some(1);
    assert!(case.decide().unwrap_err().contains("member b is absent"));
    case.trust = Some(0);
    assert!(case.decide().unwrap_err().contains("member b is absent, and may have writes"));
    case.trusted_now = true;
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
}

#[test]
fn mirror_opening_resyncs_only_dirty_regions_after_crash() {
    let open = Found { clean: false, ..found(Some(&both(true))) };
    let case = Case::new(vec![open.clone(), open]);
    assert_eq!(case.missing(), [map(&[]), map(&[1])]);
}

#[test]
fn mirror_opening_resyncs_missed_regions_of_returning_member() {
    // It left with the fifth state, when region 1 may have been dirty.
    let now = generation(2, 9);
    let mut newest = record(
        now,
        true,
        &[("a", IN, generation(2, 8), now), ("b", STALE, generation(1, 5), generation(1, 5))],
    );
    newest.active = map(&[7]);
    let mut case = Case::new(vec![found(Some(&newest)), found(Some(&both(true)))]);
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
    assert_eq!(case.missing(), [map(&[]), map(&[1, 2, 7])]);
    // While it is away, it goes on missing writes.
    case.found[1].present = false;
    assert_eq!(case.missing()[1], map(&[2, 7]));
    // The regions in its own record count, too.
    let mut itself = both(true);
    itself.members[1] = Known { state: STALE, missing: map(&[9]), ..itself.members[1].clone() };
    case.found[1] = found(Some(&itself));
    assert_eq!(case.missing()[1], map(&[1, 2, 7, 9]));
}

#[test]
fn mirror_opening_resyncs_all_regions_of_unexpected_member() {
    let now = generation(2, 9);
    let newest = record(
        now,
        false,
        &[("a", IN, generation(2, 8), now), ("b", STALE, generation(1, 5), generation(1, 5))],
    );
    // An older image of the member.
    let mut older = both(true);
    older.generation = generation(1, 4);
    let mut case = Case::new(vec![found(Some(&newest)), found(Some(&older))]);
    assert_eq!(case.missing(), [map(&[]), Bitmap::all(10)]);
    // A blank disk under the member's name.
    case.found[1] = found(None);
    assert_eq!(case.missing(), [map(&[]), Bitmap::all(10)]);
    // One of several disks with an older record.
    let oldest = |record| Found {
        everywhere: false,
        oldest: Some(kept(record)),
        ..found(Some(&both(true)))
    };
    case.found[1] = oldest(&older);
    assert_eq!(case.missing(), [map(&[]), Bitmap::all(10)]);
    // The last record reached only some of several disks. The regions of both records count.
    let mut last = both(true);
    last.active = map(&[5]);
    case.found[1] = oldest(&last);
    assert_eq!(case.missing(), [map(&[]), map(&[1, 2, 5])]);
    // The operator had to trust one member.
    case.found = vec![found(Some(&newest)), found(Some(&both(true)))];
    case.found[0].present = false;
    (case.trust, case.trusted_now) = (Some(1), true);
    case.may_degrade = true;
    assert_eq!(case.decide(), Ok(vec![STALE, IN]));
    assert_eq!(case.missing(), [Bitmap::all(10), map(&[])]);
}

#[test]
fn mirror_opening_ignores_trust_in_failed_member() {
    let newest = record(
        generation(1, 6),
        true,
        &[
            ("a", IN, generation(1, 5), generation(1, 6)),
            ("b", FAILED, generation(1, 5), generation(1, 5)),
        ],
    );
    let mut case = Case::new(vec![found(Some(&newest)), found(Some(&both(true)))]);
    case.trust = Some(1);
    assert_eq!(case.decide(), Ok(vec![IN, FAILED]));
}

#[test]
fn mirror_opening_resyncs_grown_part_of_mirror() {
    let mut case = Case::new(vec![found(Some(&both(false))), found(Some(&both(false)))]);
    case.regions = Regions::new(41 << 10, 4 << 10).unwrap();
    assert_eq!(case.decide(), Ok(vec![IN, STALE]));
    assert_eq!(case.missing()[1].iter().collect::<Vec<_>>(), [10]);
    case.regions = Regions::new(30 << 10, 8 << 10).unwrap();
    assert_eq!(case.decide(), Ok(vec![IN, IN]));
}

#[test]
fn mirror_opening_marks_member_with_older_disk_below_as_stale() {
    let (known, sent) = (generation(1, 4), generation(1, 5));
    let members = [("a", IN, known, sent), ("b", IN, known, sent)];
    let [before, last, now] = [generation(1, 3), known, sent].map(|at| record(at, false, &members));
    let mut case = Case::new(vec![found(Some(&now)), found(Some(&now))]);
    let oldest = |record| Found { everywhere: false, oldest: record, ..found(Some(&now)) };
    // The last state reached only some of the disks.
    case.found[1] = oldest(Some(kept(&last)));
    assert_eq!(case.decide().unwrap(), [IN, IN]);
    assert_eq!(case.decision().unwrap().torn, [1]);
    // One of the disks is an older image, or was labelled later.
    for older in [Some(kept(&before)), None] {
        case.found[1] = oldest(older);
        assert_eq!(case.decide().unwrap(), [IN, STALE]);
        assert_eq!(case.missing()[1], Bitmap::all(10));
        assert_eq!(case.decision().unwrap().torn, [0; 0]);
    }
}

/// Returns the record `newest` with its maps in a store instead.
fn stored(newest: &Record) -> Record {
    let members = newest.members.iter();
    let members = members.map(|known| Known { missing: map(&[]), ..known.clone() }).collect();
    let store = Named { vault: meta::Uuid([3; 16]), regions: regions() };
    let lowers = vec![2 << 20; newest.members.len()];
    let room = Some(Room { store: Some(store), lowers });
    Record { active: map(&[]), members, room, ..newest.clone() }
}

#[test]
fn mirror_opening_counts_replicas_of_present_members_in_sync_alone() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let newest = record(
        now,
        true,
        &[("a", IN, before, now), ("b", STALE, before, now), ("c", IN, now, now)],
    );
    let newest = stored(&newest);
    let mut case = Case::new(vec![found(Some(&newest)); 3]);
    case.may_degrade = true;
    let replicas = |case: &Case| case.members(None).replicas().unwrap().unwrap();
    assert_eq!(replicas(&case).counting, [Some(0), None, Some(2)]);
    assert_eq!(replicas(&case).names, ["a", "b", "c"]);
    case.found[2] = Found { present: false, ..found(None) };
    assert_eq!(replicas(&case).counting, [Some(0), None, None]);
    let in_labels = Case::new(vec![found(Some(&both(true))); 2]);
    assert_eq!(in_labels.members(None).replicas().unwrap(), None);
}

#[test]
fn mirror_opening_copies_regions_of_maps_in_store() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let newest = record(
        now,
        true,
        &[("a", IN, before, now), ("b", STALE, before, now), ("c", IN, now, now)],
    );
    let newest = stored(&newest);
    let missing = |name: &str, set: &[usize]| (name.to_owned(), map(set));
    let maps = StoredMaps {
        newest: Vec::new(),
        regions: regions(),
        active: map(&[4]),
        missing: vec![missing("a", &[]), missing("b", &[7]), missing("c", &[9])],
    };
    let mut case = Case::new(vec![found(Some(&newest)); 3]);
    let decision = |case: &Case| case.members(Some(maps.clone())).decide().unwrap();
    assert_eq!(decision(&case).missing, [map(&[]), map(&[4, 7]), map(&[])]);
    case.found.iter_mut().for_each(|found| found.clean = false);
    // After a crash, members in sync may differ in dirty regions.
    assert_eq!(decision(&case).states, [IN, STALE, STALE]);
    assert_eq!(decision(&case).missing, [map(&[]), map(&[4, 7]), map(&[4])]);
}

#[test]
fn mirror_opening_finds_recorded_rooms_by_names_of_members() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let members = [("c", IN, before, now), ("x", IN, before, now), ("a", IN, before, now)];
    let mut newest = stored(&record(now, false, &members));
    newest.room.as_mut().unwrap().lowers = vec![3 << 20, 9 << 20, 2 << 20];
    let case = Case::new(vec![found(Some(&newest)); 3]);
    assert_eq!(case.members(None).rooms().unwrap(), [Some(2 << 20), None, Some(3 << 20)]);
    let in_labels = Case::new(vec![found(Some(&both(true))); 2]);
    assert_eq!(in_labels.members(None).rooms().unwrap(), [None, None]);
}

#[test]
fn mirror_opening_takes_divided_member_if_no_member_in_sync_is_present() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let mut newest = record(now, true, &[("a", IN, before, now), ("b", STALE, before, now)]);
    let without_source = |newest: &Record, may_degrade: bool| {
        let mut case = Case::new(vec![found(None), found(Some(newest))]);
        (case.found[0].present, case.may_degrade) = (false, may_degrade);
        case
    };
    let refused = without_source(&newest, true).decide().unwrap_err();
    assert!(refused.contains("no member with every write"), "{refused}");
    newest.members[1].content = Content::Divided;
    let refused = without_source(&newest, false).decide().unwrap_err();
    assert!(refused.contains("a member in sync is absent: a"), "{refused}");
    let opened = without_source(&newest, true);
    assert_eq!(opened.decide().unwrap(), [STALE, IN]);
    // It differs from the absent member in the dirty region and in those that it missed.
    assert_eq!(opened.missing(), [map(&[1, 2]), map(&[])]);
    // A member that lacks the newest record may have missed writes.
    let older = record(before, true, &[("a", IN, before, now), ("b", STALE, before, now)]);
    let mut case = without_source(&newest, true);
    case.found[1].oldest = Some(kept(&older));
    assert!(case.decide().is_err());
}

#[test]
fn mirror_opening_recognizes_older_image_by_its_replica() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let newest = stored(&record(now, false, &[("a", IN, before, now), ("b", IN, before, now)]));
    let mut case = Case::new(vec![found(Some(&newest)); 2]);
    let maps = |first: Option<u64>, second: Option<u64>| StoredMaps {
        newest: vec![("a".to_owned(), first), ("b".to_owned(), second)],
        regions: regions(),
        active: map(&[4]),
        missing: vec![("a".to_owned(), map(&[])), ("b".to_owned(), map(&[]))],
    };
    let decision = |case: &Case, maps: StoredMaps| case.members(Some(maps)).decide().unwrap();
    let outdated = decision(&case, maps(None, Some(7)));
    assert_eq!(outdated.states, [STALE, IN]);
    assert_eq!((outdated.missing[0].len(), outdated.content[0]), (10, Content::Empty));
    // Both have all flushed records: the member with the newest one is the source after a crash.
    case.found.iter_mut().for_each(|found| found.clean = false);
    assert_eq!(decision(&case, maps(Some(7), Some(7))).states, [IN, STALE]);
    let behind = decision(&case, maps(Some(6), Some(7)));
    assert_eq!((behind.states, behind.missing[0].clone()), (vec![STALE, IN], map(&[4])));
}

/// A disk that loses a write of the store takes the proof from the other member, which may have the only right bytes.
#[test]
fn mirror_opening_keeps_copy_of_member_with_older_state_if_store_is_lost() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    for (state, content) in
        [(IN, Content::Stale), (STALE, Content::Stale), (STALE, Content::Divided)]
    {
        let mut newest = record(now, false, &[("a", IN, before, now), ("b", state, before, now)]);
        newest.members[1].content = content;
        let older = stored(&Record { generation: before, ..newest.clone() });
        let decision = |older: &Record, copy: &[(&str, Option<u64>)]| {
            let case = Case::new(vec![found(Some(&stored(&newest))), found(Some(older))]);
            let newest = copy.iter().map(|(name, newest)| ((*name).to_owned(), *newest)).collect();
            let maps = StoredMaps { newest, regions: regions(), active: map(&[]), missing: vec![] };
            let decision = case.members(Some(maps)).decide().unwrap();
            (decision.states[1], decision.missing[1].len(), decision.content[1])
        };
        assert_eq!(decision(&older, &[]), (STALE, 10, Content::Stale));
        // Its copy of the store shows that it is an older image, or its label does.
        assert_eq!(decision(&older, &[("b", None)]), (STALE, 10, Content::Empty));
        let image = Record { generation: generation(1, 3), ..older };
        assert_eq!(decision(&image, &[]), (STALE, 10, Content::Empty));
    }
}

/// Made anew, the metadata of a member accepts any bytes.
#[test]
fn mirror_opening_copies_everything_to_member_with_damaged_metadata() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let newest = record(now, false, &[("a", IN, before, now), ("b", IN, before, now)]);
    for (kind, regions, content) in
        [(ErrorKind::Corrupt, 10, Content::Empty), (ErrorKind::Io, 0, Content::Stale)]
    {
        let closed = Some(Error::new(kind, "its vault"));
        let gone = Found { present: false, closed, ..found(Some(&newest)) };
        let case = Case { may_degrade: true, ..Case::new(vec![found(Some(&newest)), gone]) };
        let decision = case.decision().unwrap();
        assert_eq!((decision.missing[1].len(), decision.content[1]), (regions, content));
    }
}

#[test]
fn mirror_opening_reads_store_that_newest_state_has_left() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let newest = record(now, false, &[("a", IN, before, now), ("b", IN, before, now)]);
    let named =
        stored(&record(before, false, &[("a", IN, before, before), ("b", IN, before, before)]));
    let case = Case::new(vec![found(Some(&newest)), found(Some(&named))]);
    let replicas = case.members(None).replicas().unwrap().unwrap();
    assert!(!replicas.is_named);
    assert_eq!((replicas.counting, replicas.others), (vec![Some(0), None], vec![(1, 1)]));
    // The state was not sent to the member: it took no writes any more.
    let newest = record(now, false, &[("a", IN, before, now), ("b", FAILED, before, before)]);
    let case = Case::new(vec![found(Some(&newest)), found(Some(&named))]);
    assert_eq!(case.members(None).replicas().unwrap(), None);
}

#[test]
fn mirror_opening_copies_member_with_older_state_unless_its_replica_is_current() {
    let (before, now) = (generation(1, 4), generation(1, 5));
    let all = |state| record(now, false, &[("a", IN, before, now), ("b", state, before, now)]);
    let named = |state| stored(&all(state));
    let older = record(before, false, &[("a", IN, before, before), ("b", IN, before, before)]);
    let case =
        |newest: &Record, older: &Record| Case::new(vec![found(Some(newest)), found(Some(older))]);
    let decision = |case: &Case, newest: &[(&str, Option<u64>)]| {
        let newest = newest.iter().map(|(name, record)| ((*name).to_owned(), *record)).collect();
        let missing = vec![("a".to_owned(), map(&[])), ("b".to_owned(), map(&[]))];
        let maps = StoredMaps { newest, regions: regions(), active: map(&[]), missing };
        let decision = case.members(Some(maps)).decide().unwrap();
        (decision.states[1], decision.missing[1].len())
    };
    for (newest, older) in [(named(IN), older.clone()), (all(IN), stored(&older))] {
        let case = case(&newest, &older);
        assert_eq!(decision(&case, &[("a", Some(7))]), (STALE, 10), "it has no copy");
        assert_eq!(decision(&case, &[("a", Some(7)), ("b", None)]), (STALE, 10));
        // The record 8 of the other copy is not flushed.
        assert_eq!(decision(&case, &[("a", Some(8)), ("b", Some(7))]), (IN, 0));
    }
    let copied = case(&named(STALE), &older);
    assert_eq!(decision(&copied, &[("a", Some(7))]), (STALE, 10));
    assert_eq!(decision(&copied, &[("a", Some(8)), ("b", Some(7))]), (STALE, 0));
    // No member in sync has the newest state, so no copy shows that the member is older.
    let newest = record(now, false, &[("a", STALE, before, now), ("b", IN, before, now)]);
    let alone = case(&newest, &stored(&older));
    assert_eq!(decision(&alone, &[]), (IN, 0));
    // The maps were in labels all the time.
    let in_labels = case(&all(IN), &older);
    assert_eq!(decision(&in_labels, &[]), (IN, 0));
}
