//! The decision how a mirror opens, from the labels of its members: which members are in sync, which regions are copied
//! to which member, and when the mirror must not open. The code is pure: it does no I/O.

use block::seeded::{self, Bug};
use block::{ByteRange, Error, ErrorKind, Found, Reason, Result, error};

use super::record::{Content, Generation, Known, MemberState, Named, Record, Room};
use super::regions::{Bitmap, Regions};
use super::scrub::Scrubbed;
use super::store::StoredMaps;

/// Next step for the operator if the labels cannot decide which member has the right bytes: to choose the member.
const TRUST: &str = "trust = MEMBER in the spec, or cairn import --trust MEMBER";

/// The members of a mirror that is being opened, and the facts that decide how it opens.
pub struct Members<'m> {
    /// Names of the members, by port.
    pub names: Vec<&'m str>,
    /// State of the mirror in the labels beneath each member, and facts about the disks beneath the member, by port.
    pub found: Vec<&'m Found>,
    /// Regions of the mirror's bitmaps.
    pub regions: Regions,
    /// The maps in the store of [`Members::replicas`]; `None` if there is none, or if only the states of members and the
    /// errors of the decision count.
    pub stored: Option<StoredMaps>,
    /// Whether this start created every disk beneath all members.
    pub created: bool,
    /// Number of spares in the spec. At the first start the last members become spares.
    pub spares: usize,
    /// Port of the member that the operator trusts: its bytes count.
    pub trust: Option<usize>,
    /// Whether `trust` is from a command at this start. Otherwise `trust` is from the spec, which may be older than the
    /// labels.
    pub trusted_now: bool,
    /// Whether the operator permits that the mirror opens without all members.
    pub may_degrade: bool,
}

/// The decision how a mirror opens: the states of its members, and the facts that the first state of the mirror
/// records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// State of each member, by port. A stale member that is present must be resynced.
    pub states: Vec<MemberState>,
    /// For each member, the regions in which it differs from the members in sync.
    pub missing: Vec<Bitmap>,
    /// For each member, the last generation of the mirror's state that is known to be in the member's labels, and the
    /// last generation that was sent to these labels; `None` if the state was read from them.
    known: Vec<(Generation, Option<Generation>)>,
    /// For each member, whether all its bytes were copied from other members while another member was absent:
    /// [`Known::refilled`].
    pub refilled: Vec<bool>,
    /// The bytes on each member that is not in sync.
    pub content: Vec<Content>,
    /// Number of the newest state of the mirror in the labels; 0 without a state.
    pub events: u64,
    /// End of the last scrub, and position of an interrupted scrub, from the newest state.
    pub scrubbed: Scrubbed,
    /// Ports of the members that have their last state on some of their disks only.
    pub torn: Vec<usize>,
}

impl Decision {
    /// Returns for each member the last generation that is known to be in its labels, and the last one that was sent to
    /// these labels, as the opening `incarnation` records them before its first state.
    ///
    /// A member whose state was read has exactly that state, and gets all later ones from this opening. So the state
    /// counts as sent by this opening: a later opening without the member then knows where its history ends
    /// ([`Members::generation`]).
    pub fn known_by(&self, incarnation: u64) -> Vec<(Generation, Generation)> {
        let read = |known: Generation| Generation { incarnation, events: known.events };
        let all = self.known.iter();
        all.map(|(known, sent)| (*known, sent.unwrap_or_else(|| read(*known)))).collect()
    }
}

/// The replicas of the store that the newest state of a mirror names, or that was left with this state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replicas {
    /// Whether the newest state names the store. Else its maps do not count, but the numbers of its records show which members
    /// are older images.
    pub is_named: bool,
    /// The store.
    pub store: Named,
    /// Names of the members when the state was written, in the order of the replicas.
    pub names: Vec<String>,
    /// Sizes in bytes of these members. The room is at their end.
    pub lowers: Vec<u64>,
    /// For each replica, the port of its member, if the replica counts.
    pub counting: Vec<Option<usize>>,
    /// The other replicas of present members that took writes when the newest state was written, with their ports.
    pub others: Vec<(usize, usize)>,
}

impl Members<'_> {
    /// Returns the replicas of the store with the maps of the mirror. Only those of present members in sync count, whatever
    /// the store itself records. Returns `None` if the maps are in labels and no member may have been left with a state that
    /// names a store, or if all bytes are copied in any case.
    ///
    /// # Errors
    /// As [`Members::decide`].
    pub fn replicas(&self) -> Result<Option<Replicas>> {
        let records = self.records()?;
        let Some((newest, None)) = self.served(&records) else { return Ok(None) };
        let is_named = newest.store().is_some();
        let naming = if is_named { Some(newest) } else { self.naming_left(newest, &records) };
        let Some(naming) = naming else { return Ok(None) };
        let Some(Room { store: Some(store), lowers }) = &naming.room else { return Ok(None) };
        let names: Vec<String> = naming.members.iter().map(|member| member.name.clone()).collect();
        let divided = self.stand_in(newest, &records);
        let has_newest = |n: usize| records[n].as_ref() == Some(newest);
        // A replica proves nothing about its own member, so a store that was left counts on members with the newest state.
        let counts = |n: &usize| {
            let is_current = self.is_current(*n, newest, &records) || divided == Some(*n);
            is_current && (is_named || has_newest(*n))
        };
        let took_writes = |n: &usize| self.found[*n].present && self.took_writes(*n, newest);
        let port = |name: &String| self.names.iter().position(|one| one == name);
        let counting: Vec<_> = names.iter().map(|name| port(name).filter(counts)).collect();
        let other = |(copy, name)| Some((copy, port(name).filter(took_writes)?));
        let others = names.iter().enumerate().filter_map(other);
        let others = others.filter(|(copy, _)| counting[*copy].is_none()).collect();
        let lowers = lowers.clone();
        Ok(Some(Replicas { is_named, store: *store, counting, others, names, lowers }))
    }

    /// Returns the newest state of a present member that names a store although `newest`, which was sent to the member, does
    /// not. The store is intact, unless all members have `newest`: only then a mirror makes the next store over it.
    fn naming_left<'r>(
        &self,
        newest: &Record,
        records: &'r [Option<Record>],
    ) -> Option<&'r Record> {
        if seeded::on(Bug::LeftStoreUnread) {
            return None;
        }
        let left = |n: &usize| self.found[*n].present && self.took_writes(*n, newest);
        let left = (0..records.len()).filter(left).filter_map(|n| records[n].as_ref());
        let left = left.filter(|own| own.store().is_some());
        left.max_by_key(|own| own.generation.events)
    }

    /// Whether member `n` took writes when `newest` was written: the state was sent to it.
    fn took_writes(&self, n: usize, newest: &Record) -> bool {
        let known = newest.member(self.names[n]);
        known.is_some_and(|known| known.sent == newest.generation)
    }

    /// Returns for each member the size that the newest state has for it, with a copy of the mirror's store at its end; `None` for
    /// a member without one, or that the state does not have.
    ///
    /// # Errors
    /// As [`Members::decide`].
    pub fn rooms(&self) -> Result<Vec<Option<u64>>> {
        let records = self.records()?;
        let newest = self.served(&records).map(|(newest, _)| newest);
        let room = |name: &&str| {
            let newest = newest?;
            let at = newest.members.iter().position(|member| member.name == *name)?;
            Some(newest.room.as_ref()?.lowers[at])
        };
        Ok(self.names.iter().map(room).collect())
    }

    /// Returns the newest record and a member that has diverged from it, as [`Members::newest`] does; `None` if no request
    /// was served.
    fn served<'r>(&self, records: &'r [Option<Record>]) -> Option<(&'r Record, Option<usize>)> {
        // An interrupted first start may have left the first state on only some members. No request was served then.
        let nothing_served = self.found.iter().all(|found| found.fresh);
        self.newest(records).filter(|_| !nothing_served)
    }

    /// Decides how the mirror opens, from the states in the labels of its members.
    ///
    /// # Errors
    /// The reason why the mirror must not open, with a next step.
    pub fn decide(&self) -> Result<Decision> {
        let records = self.records()?;
        let Some((newest, apart)) = self.served(&records) else { return self.first() };
        let mut states: Vec<_> =
            (0..self.names.len()).map(|n| self.state(n, newest, records[n].as_ref())).collect();
        let mut missing: Vec<_> =
            (0..self.names.len()).map(|n| self.missing(n, newest, records[n].as_ref())).collect();
        if let Some(n) = self.stand_in(newest, &records) {
            let differing = missing[n].clone();
            states[n] = MemberState::InSync;
            missing.iter_mut().for_each(|map| map.unite(&differing));
        }
        let word = self.word(newest, apart, &states, &records)?;
        let mut content: Vec<_> =
            (0..self.names.len()).map(|n| self.content(n, newest, records[n].as_ref())).collect();
        if word.is_none() {
            for n in self.divided(newest, &records, &mut states, &mut missing) {
                content[n] = Content::Divided;
            }
        } else {
            // The trusted member may have writes that a divided member lacks.
            let divided = content.iter_mut().filter(|it| **it == Content::Divided);
            divided.for_each(|it| *it = Content::Stale);
        }
        self.take_the_word(word, &mut states, &mut missing);
        let in_sync = states.iter().zip(&mut missing);
        in_sync.filter(|(it, _)| **it == MemberState::InSync).for_each(|(_, map)| map.clear());
        let generation = |n: usize| self.generation(n, newest, records[n].as_ref());
        Ok(Decision {
            states,
            missing,
            known: (0..self.names.len()).map(generation).collect(),
            refilled: self.refilled(newest, &records, word),
            content,
            events: newest.generation.events,
            scrubbed: newest.scrubbed_of(&self.regions, &self.names),
            torn: (0..self.names.len()).filter(|n| self.is_torn(*n, newest, &records)).collect(),
        })
    }

    fn records(&self) -> Result<Vec<Option<Record>>> {
        let record = |(name, found): (&&str, &&Found)| {
            let Some(state) = &found.state else { return Ok(None) };
            Record::decode(&state.bytes).map(Some).map_err(|why| {
                error!(Corrupt, "the mirror's record in the label of {name} is damaged: {why}")
            })
        };
        self.names.iter().zip(&self.found).map(record).collect()
    }

    /// Decides for members without a usable state of the mirror: all members are new, or the operator must choose the
    /// member whose bytes count.
    fn first(&self) -> Result<Decision> {
        let count = self.names.len();
        let source = self.source()?;
        let all_new = self.found.iter().all(|found| found.fresh);
        let equal = self.created && all_new && self.trust.is_none();
        let equal = |n| equal && n + self.spares < count;
        let state =
            |n| if equal(n) || n == source { MemberState::InSync } else { MemberState::Stale };
        let missing = |n| match state(n) {
            MemberState::InSync => Bitmap::none(self.regions.count()),
            MemberState::Stale | MemberState::Failed => self.everything(),
        };
        Ok(Decision {
            states: (0..count).map(state).collect(),
            missing: (0..count).map(missing).collect(),
            known: vec![(Generation::default(), Some(Generation::default())); count],
            refilled: vec![false; count],
            content: vec![Content::Empty; count],
            events: 0,
            scrubbed: Scrubbed::default(),
            torn: Vec::new(),
        })
    }

    /// Returns the port of the member whose bytes count if no member has a usable state of the mirror.
    fn source(&self) -> Result<usize> {
        if let Some(trusted) = self.trust {
            let name = self.names[trusted];
            let absent = (0..self.names.len()).find(|n| !self.found[*n].present);
            return match absent {
                _ if !self.found[trusted].present => Err(error!(
                    Reason::MirrorMemberMissing,
                    "trust = {name} selects the authoritative member, but member {name} is absent"
                )
                .next("bring the member back, or trust a member that is present")),
                Some(absent) if !self.trusted_now && !seeded::on(Bug::TrustOverLabels) => {
                    let absent = self.names[absent];
                    Err(error!(
                        Reason::MirrorMemberMissing,
                        "member {absent} is absent, and may have writes that {name} missed"
                    )
                    .next(format!(
                        "bring the absent member back; or cairn import --trust {name}, and those \
                         writes are lost"
                    )))
                }
                _ => Ok(trusted),
            };
        }
        let mut old = (0..self.names.len()).filter(|n| !self.found[*n].fresh);
        match (old.next(), old.next()) {
            (None, _) => Ok(0),
            // Blank members have no bytes that could count.
            (Some(only), None) if self.found[only].present => Ok(only),
            _ => {
                let words = "cannot tell whether these members are identical: they were used \
                             before without a state of the mirror";
                let members = self.names.join(" or ");
                Err(Error::because(Reason::MirrorUnknown, words)
                    .next(format!("choose the member whose bytes count: trust = {members}")))
            }
        }
    }

    /// Returns whether member `n` is in sync, stale or failed, according to the newest record and to its own record.
    fn state(&self, n: usize, newest: &Record, own: Option<&Record>) -> MemberState {
        if self.found[n].present && seeded::on(Bug::StaleServes) {
            return MemberState::InSync;
        }
        let Some(known) = newest.member(self.names[n]) else { return MemberState::Stale };
        if known.state != MemberState::InSync || !self.found[n].present {
            return known.state;
        }
        let has_it = |own: &Record| *own == *newest || known.should_have(own.generation);
        // Every disk beneath a member must have the record, because one disk may be an older image.
        let has_state = own.is_some_and(has_it) && self.oldest(n).as_ref().is_some_and(has_it);
        match has_state && !self.is_outdated(n, newest, own) {
            true => MemberState::InSync,
            false => MemberState::Stale,
        }
    }

    /// Whether member `n` is present and in sync, according to the newest record and to its own record.
    fn is_current(&self, n: usize, newest: &Record, records: &[Option<Record>]) -> bool {
        let state = self.state(n, newest, records[n].as_ref());
        self.found[n].present && state == MemberState::InSync
    }

    /// Returns the divided member that takes the place of the members in sync if none of them is present: it has all
    /// acknowledged writes according to the newest record, which is on all its disks.
    fn stand_in(&self, newest: &Record, records: &[Option<Record>]) -> Option<usize> {
        let mut all = 0..self.names.len();
        if all.clone().any(|n| self.is_current(n, newest, records))
            || seeded::on(Bug::DividedRefused)
        {
            return None;
        }
        all.find(|n| {
            let known = newest.member(self.names[*n]);
            let is_divided = known.is_some_and(|known| known.content == Content::Divided);
            let has_newest = [records[*n].as_ref(), self.oldest(*n).as_ref()] == [Some(newest); 2];
            self.found[*n].present && is_divided && has_newest
        })
    }

    /// Returns the regions that must be copied to member `n` before it is in sync, unless the operator's `trust`
    /// decides.
    fn missing(&self, n: usize, newest: &Record, own: Option<&Record>) -> Bitmap {
        let Some(known) = newest.member(self.names[n]) else { return self.everything() };
        let found = self.found[n];
        if found.present && seeded::on(Bug::MapIgnored) {
            return Bitmap::none(self.regions.count());
        }
        let says = |record: &Record, map: &Bitmap| map.over(&record.regions, &self.regions);
        let mut map = self.missed(newest, known);
        map.unite(&self.active(newest));
        map.unite(&self.grown(newest));
        if self.is_damaged(n) {
            return self.everything();
        }
        if !found.present {
            // The own record of an absent member counts when it comes back.
            return map;
        }
        let Some(counting) = self.counting(n, newest, own) else { return self.everything() };
        // The maps of an older state in a store are parts of the newest maps.
        for own in counting {
            map.unite(&says(&own, &own.active));
            if let Some(itself) = own.member(self.names[n]) {
                map.unite(&says(&own, &itself.missing));
            }
        }
        map
    }

    /// Returns the dirty regions according to the newest record, or to the store that it names.
    fn active(&self, newest: &Record) -> Bitmap {
        match self.stored.as_ref().filter(|_| newest.store().is_some()) {
            Some(stored) => stored.active.over(&stored.regions, &self.regions),
            None => newest.active.over(&newest.regions, &self.regions),
        }
    }

    /// Returns the regions that the member `known` misses according to the newest record, or to the store that it names.
    fn missed(&self, newest: &Record, known: &Known) -> Bitmap {
        let Some(stored) = self.stored.as_ref().filter(|_| newest.store().is_some()) else {
            return known.missing.over(&newest.regions, &self.regions);
        };
        let map = stored.missing.iter().find(|(name, _)| *name == known.name);
        map.map_or_else(|| self.everything(), |(_, map)| map.over(&stored.regions, &self.regions))
    }

    /// Returns the bytes on member `n` if it is not in sync, according to the newest record and to its own record. An absent
    /// member misses the writes from this opening on.
    fn content(&self, n: usize, newest: &Record, own: Option<&Record>) -> Content {
        if seeded::on(Bug::ContentForgotten) {
            return Content::Stale;
        }
        let known = newest.member(self.names[n]);
        match known.map_or(Content::Empty, |known| known.content) {
            Content::Empty => Content::Empty,
            _ if self.is_damaged(n) => Content::Empty,
            _ if !self.found[n].present => Content::Stale,
            content if self.counting(n, newest, own).is_some() => content,
            // Beneath a verifier, its bytes may be the only right ones: a fault of the other disk can take the proof.
            _ if self.permitted(n, newest, own).is_some()
                && self.lacks_proof(n, newest, own)
                && !seeded::on(Bug::UnprovenEmptied) =>
            {
                Content::Stale
            }
            _ => Content::Empty,
        }
    }

    /// Returns the records of [`Members::permitted`], unless the copy of the store on member `n` shows an older image, or a proof
    /// by that copy is missing.
    fn counting(&self, n: usize, newest: &Record, own: Option<&Record>) -> Option<[Record; 2]> {
        self.permitted(n, newest, own).filter(|_| !self.is_outdated(n, newest, own))
    }

    /// Returns the newest and the oldest own record on the disks beneath member `n`, if all these disks have a record, and the
    /// newest record permits each in these labels. They differ after a write of the record that reached only some disks.
    fn permitted(&self, n: usize, newest: &Record, own: Option<&Record>) -> Option<[Record; 2]> {
        let known = newest.member(self.names[n])?;
        let all = [own?.clone(), self.oldest(n)?];
        all.iter().all(|own| known.should_have(own.generation)).then_some(all)
    }

    /// Whether only some disks beneath member `n` have its last record, and the others one that counts, too.
    fn is_torn(&self, n: usize, newest: &Record, records: &[Option<Record>]) -> bool {
        let found = self.found[n];
        let is_alike = found.everywhere || !found.present;
        !is_alike && self.counting(n, newest, records[n].as_ref()).is_some()
    }

    /// Returns the oldest own record on the disks beneath member `n`; `None` if a disk has none.
    fn oldest(&self, n: usize) -> Option<Record> {
        let oldest = self.found[n].oldest.as_ref()?;
        Record::decode(&oldest.bytes).ok()
    }

    /// Returns the newest record on the copy of the store on member `n`; `None` if the copy does not count.
    fn newest_stored(&self, n: usize) -> Option<Option<u64>> {
        let mut all = self.stored.iter().flat_map(|stored| &stored.newest);
        all.find(|(name, _)| name == self.names[n]).map(|(_, newest)| *newest)
    }

    /// Whether member `n` counts as an older image, although its labels do not show that: its copy of the store lacks flushed
    /// records, or its copy is missing and it needs a proof.
    fn is_outdated(&self, n: usize, newest: &Record, own: Option<&Record>) -> bool {
        if self.stored.is_none() || seeded::on(Bug::OldStoreCounts) {
            return false;
        }
        match self.newest_stored(n) {
            Some(copy) => copy.is_none(),
            None => self.lacks_proof(n, newest, own),
        }
    }

    /// Whether member `n` must prove by its copy of the store that it is no older image, and has no copy that counts. A member
    /// that took writes and has the state before the newest one may be an image from any time between the two states. It needs a
    /// proof if a member in sync has the newest state.
    fn lacks_proof(&self, n: usize, newest: &Record, own: Option<&Record>) -> bool {
        if self.stored.is_none() || self.newest_stored(n).is_some() {
            return false;
        }
        let names_store = |own: &Record| newest.store().is_some() || own.store().is_some();
        let is_older = own.is_some_and(|own| own != newest && names_store(own));
        let must_prove = is_older && self.took_writes(n, newest);
        must_prove
            && !seeded::on(Bug::OlderStateUnproven)
            && (0..self.names.len()).any(|other| self.holds_in_sync(other, newest))
    }

    /// Whether member `n` is present and in sync, and has `newest`.
    fn holds_in_sync(&self, n: usize, newest: &Record) -> bool {
        let own = self.found[n].state.as_ref().and_then(|it| Record::decode(&it.bytes).ok());
        let has_newest = own.as_ref() == Some(newest) && self.newest_stored(n) != Some(None);
        let known = newest.member(self.names[n]);
        let is_in_sync = known.is_some_and(|known| known.state == MemberState::InSync);
        has_newest && is_in_sync && self.found[n].present
    }

    /// Whether the state of a device beneath member `n` is damaged. Once it is made anew, none of its bytes count.
    fn is_damaged(&self, n: usize) -> bool {
        let closed = self.found[n].closed.as_ref();
        closed.is_some_and(|why| why.kind() == ErrorKind::Corrupt) && !seeded::on(Bug::DamagedKept)
    }

    fn everything(&self) -> Bitmap {
        Bitmap::all(self.regions.count())
    }

    /// Returns the regions by which the mirror has grown since the newest record. Members may differ in these regions.
    fn grown(&self, newest: &Record) -> Bitmap {
        let mut map = Bitmap::none(self.regions.count());
        if let Some(range) = ByteRange::between(newest.regions.size(), self.regions.size()) {
            let (first, last) = self.regions.of(range);
            (first..=last).for_each(|region| map.insert(region));
        }
        map
    }

    /// Returns the newest record: the record with the highest number from which no member has diverged. If members have
    /// diverged from every record, returns the record with the highest number, and a member that has diverged from it.
    fn newest<'r>(&self, records: &'r [Option<Record>]) -> Option<(&'r Record, Option<usize>)> {
        let mut all: Vec<&Record> = records.iter().flatten().collect();
        all.sort_by_key(|record| std::cmp::Reverse(record.generation.events));
        let apart =
            |newest: &Record| (0..records.len()).find(|n| self.is_apart(*n, newest, records));
        let counts = all.iter().find(|record| apart(record).is_none());
        match counts {
            Some(newest) => Some((newest, None)),
            None => all.first().map(|highest| (*highest, apart(highest))),
        }
    }

    fn apart(&self, other: usize) -> Error {
        error!(
            Reason::MirrorSplitBrain,
            "split brain: {} and the other members were written independently", self.names[other]
        )
        .next(format!("{TRUST}; writes that only the other members have are lost"))
    }

    /// Returns the trusted member if the labels do not decide which member has the right bytes; `None` if the labels
    /// decide.
    ///
    /// `trust` in a spec may be older than the labels. Such a `trust` is used only after a split brain or a failed
    /// flush, and only for a member that missed no writes according to its side of the split brain. To trust a member
    /// that missed writes, the operator must give a command at this start.
    ///
    /// # Errors
    /// The reason why the mirror must not open, unless a trusted member overrules it.
    fn word(
        &self,
        newest: &Record,
        apart: Option<usize>,
        states: &[MemberState],
        records: &[Option<Record>],
    ) -> Result<Option<usize>> {
        let present = |n: &usize| self.found[*n].present;
        let commanded = self
            .trust
            .filter(present)
            .filter(|_| self.trusted_now || seeded::on(Bug::TrustOverLabels));
        let is_current =
            |n: &usize| states[*n] == MemberState::InSync || self.is_apart(*n, newest, records);
        let chosen = commanded.or(self.trust.filter(present).filter(is_current));
        if let Some(other) = apart {
            return chosen.ok_or_else(|| self.apart(other)).map(Some);
        }
        let after_flush = match newest.flush_failed {
            true => Some(chosen.ok_or_else(flush_failed)?),
            false => None,
        };
        match self.absence(newest, states) {
            None => Ok(after_flush),
            Some(objection) => commanded.ok_or(objection).map(Some),
        }
    }

    /// Returns the reason why the mirror must not open without its absent members, if there is one.
    fn absence(&self, newest: &Record, states: &[MemberState]) -> Option<Error> {
        let in_sync = |n: &usize| states[*n] == MemberState::InSync;
        let (here, gone): (Vec<_>, Vec<_>) =
            (0..self.names.len()).filter(in_sync).partition(|n| self.found[*n].present);
        let missing = newest.members.iter().filter(|member| {
            let named = self.names.iter().any(|name| *name == member.name);
            member.state == MemberState::InSync && !named
        });
        let gone: Vec<&str> = gone
            .iter()
            .map(|n| self.names[*n])
            .chain(missing.map(|member| member.name.as_str()))
            .collect();
        if here.is_empty() {
            let had = if gone.is_empty() { "none".to_owned() } else { gone.join(", ") };
            let mut words = format!("no member with every write is present; such members: {had}");
            if let Some((name, why)) = self.closed_of(&gone) {
                words += &format!("; {name} cannot be opened: {}", in_words(why));
            }
            let next = "bring one of those members back; or cairn import --trust MEMBER, and the \
                        writes that MEMBER missed are lost";
            return Some(Error::because(Reason::MirrorNoCurrentMember, words).next(next));
        }
        if gone.is_empty() || self.may_degrade {
            return None;
        }
        if let Some((name, why)) = self.closed_of(&gone) {
            let words = format!("member {name} cannot be opened: {}", in_words(why));
            let next = format!(
                "use --degraded to open the mirror without it, and then cairn device replace {name} PATH"
            );
            return Some(Error::because(Reason::MirrorMemberMissing, words).next(next));
        }
        let words = format!("a member in sync is absent: {}", gone.join(", "));
        Some(Error::because(Reason::MirrorMemberMissing, words).next(
            "bring the member back, or use --degraded to open the mirror without the absent member",
        ))
    }

    /// Returns the first of the members `names` with a device that did not open, and the error.
    fn closed_of(&self, names: &[&str]) -> Option<(&str, &Error)> {
        let mut all = self.names.iter().zip(&self.found).filter(|(name, _)| names.contains(name));
        all.find_map(|(name, found)| Some((*name, found.closed.as_ref()?)))
    }

    /// Whether member `n` has diverged: clients may have got acknowledgements for requests that the member has, and
    /// that the members in sync according to the newest record lack.
    ///
    /// The member has not diverged if the history of the newest record contains the own record of the member, or if the
    /// newest record lists a later state in the labels of the member; then the member is an older image. The member has
    /// not diverged either if another member proves that, as in [`Members::shows_unanswered`].
    fn is_apart(&self, n: usize, newest: &Record, records: &[Option<Record>]) -> bool {
        let Some(own) = &records[n] else { return false };
        if own == newest {
            return false;
        }
        if let Some(known) = newest.member(self.names[n])
            && (known.may_have(own.generation) || own.generation.events < known.known.events)
        {
            return false;
        }
        !(0..records.len())
            .any(|other| other != n && self.shows_unanswered(other, n, newest, own, records))
    }

    /// Whether member `other` proves that no request was acknowledged after the writing of those states on member `n`
    /// that are not in the history of the newest record.
    ///
    /// The mirror acknowledges a request only when its present state is on all members that the state lists as in sync.
    /// A listed member has not had the state if its own record belongs to the history of the newest record: with the
    /// state, its own record would differ. A member to which all bytes were copied since proves nothing. Nor does a
    /// member that is known to have had a later state than the last state that was sent to `n` according to the newest
    /// record.
    fn shows_unanswered(
        &self,
        other: usize,
        n: usize,
        newest: &Record,
        own: &Record,
        records: &[Option<Record>],
    ) -> bool {
        let name = self.names[other];
        let (Some(theirs), Some(thought), Some(known)) =
            (&records[other], own.member(name), newest.member(name))
        else {
            return false;
        };
        let in_sync =
            |record: &Record| record.member(name).is_some_and(|it| it.state == MemberState::InSync);
        let leads_on = known.may_have(theirs.generation);
        let has_all = (in_sync(newest) || in_sync(theirs))
            && theirs.generation.events >= thought.known.events;
        let sent = newest.member(self.names[n]).map(|it| it.sent.events);
        let has_missed = sent.is_none_or(|sent| thought.known.events <= sent);
        in_sync(own)
            && leads_on
            && (has_all || has_missed)
            && (!known.refilled || seeded::on(Bug::RefilledProves))
    }

    /// Returns the [`Known::refilled`] of each member: whether a resync copies all bytes to the member after this
    /// opening, or did so after an earlier opening and at no opening since were all members present.
    fn refilled(
        &self,
        newest: &Record,
        records: &[Option<Record>],
        word: Option<usize>,
    ) -> Vec<bool> {
        let all_are_here = self.found.iter().all(|found| found.present);
        let was = |n: usize| newest.member(self.names[n]).is_some_and(|it| it.refilled);
        let is_now = |n: usize| {
            let has_state = self.counting(n, newest, records[n].as_ref()).is_some();
            self.found[n].present && (!has_state || word.is_some_and(|trusted| trusted != n))
        };
        (0..self.names.len()).map(|n| !all_are_here && (was(n) || is_now(n))).collect()
    }

    /// Makes one member in sync the source of the regions in which members in sync may differ: the dirty regions after
    /// a crash, and the regions by which the mirror has grown. Prefers a source with the newest record, because a
    /// member with an older record may be an image from before the newest record. Returns the other members in sync.
    fn divided(
        &self,
        newest: &Record,
        records: &[Option<Record>],
        states: &mut [MemberState],
        missing: &mut [Bitmap],
    ) -> Vec<usize> {
        let here = |n: &usize| self.found[*n].present;
        let in_sync: Vec<usize> =
            (0..states.len()).filter(|n| states[*n] == MemberState::InSync).filter(here).collect();
        let mut map = self.grown(newest);
        if in_sync.iter().any(|n| !self.found[*n].clean) {
            map.unite(&self.active(newest));
            let states = in_sync.iter().filter_map(|n| records[*n].as_ref());
            states.for_each(|it| map.unite(&it.active.over(&it.regions, &self.regions)));
        }
        if map.is_empty() || in_sync.len() < 2 || seeded::on(Bug::CrashUnreconciled) {
            return Vec::new();
        }
        // A member may be an image from before the newest record of the labels, or from before the newest one of the store.
        let stored = in_sync.iter().filter_map(|n| self.newest_stored(*n)?).max();
        let stored = stored.filter(|_| newest.store().is_some());
        let has_newest_stored = |n: &usize| {
            stored.is_none_or(|newest| self.newest_stored(*n) == Some(Some(newest)))
                || seeded::on(Bug::OldStoreCounts)
        };
        let has_newest = |n: &usize| records[*n].as_ref() == Some(newest) && has_newest_stored(n);
        // Nothing was written to a member after its clean close. Any other member might be an image that was taken
        // while the mirror ran.
        let is_final =
            |n: &usize| self.found[*n].clean && has_newest(n) && !seeded::on(Bug::ImageIsSource);
        let one = |is_it: &dyn Fn(&usize) -> bool| in_sync.iter().copied().find(is_it);
        let best = one(&is_final).or_else(|| one(&has_newest)).unwrap_or(in_sync[0]);
        let source = self.trust.filter(|n| in_sync.contains(n)).unwrap_or(best);
        let others: Vec<usize> = in_sync.into_iter().filter(|n| *n != source).collect();
        for n in &others {
            (states[*n], missing[*n]) = (MemberState::Stale, map.clone());
        }
        others
    }

    /// Applies the operator's decision, which overrules the labels: a resync copies all bytes from the trusted member
    /// to all others. Marks absent members as stale, because they miss the writes from this opening on.
    fn take_the_word(
        &self,
        word: Option<usize>,
        states: &mut [MemberState],
        missing: &mut [Bitmap],
    ) {
        for (state, found) in states.iter_mut().zip(&self.found) {
            if !found.present && *state == MemberState::InSync {
                *state = MemberState::Stale;
            }
        }
        if let Some(trusted) = word.filter(|n| self.found[*n].present) {
            states.fill(MemberState::Stale);
            states[trusted] = MemberState::InSync;
            missing.fill(self.everything());
        }
    }

    /// Returns the generation of the mirror's state that is known to be in the labels of member `n`, and the last
    /// generation that was sent to these labels; `None` if the state of the member was read.
    ///
    /// A member without a state may have every state of the opening that sent it one, up to the newest record: these states are
    /// the history of the newest record. So a later state on this member, which only a crash kept from the other
    /// members, can be proven unanswered ([`Members::shows_unanswered`]).
    fn generation(
        &self,
        n: usize,
        newest: &Record,
        own: Option<&Record>,
    ) -> (Generation, Option<Generation>) {
        match (own, newest.member(self.names[n])) {
            (Some(own), _) => (own.generation, None),
            (None, Some(known)) if known.sent.incarnation == newest.generation.incarnation => {
                (known.known, Some(newest.generation))
            }
            (None, Some(known)) => (known.known, Some(known.sent)),
            (None, None) => (Generation::default(), Some(Generation::default())),
        }
    }
}

/// Returns an error with its place, without its next step.
pub fn in_words(error: &Error) -> String {
    let place = error.place().map_or(String::new(), |place| format!("{place}: "));
    format!("{place}{}", error.message())
}

fn flush_failed() -> Error {
    let words = "a flush failed on every member before the mirror was closed, so writes before \
                 that flush may be lost";
    Error::because(Reason::MirrorFlushFailed, words)
        .next(format!("{TRUST}, to accept the bytes of MEMBER"))
}

impl Known {
    /// Whether the state with generation `own` may be in the labels of the member according to the record with these
    /// facts. An older state of the same opening of the mirror may be in these labels too.
    fn may_have(&self, own: Generation) -> bool {
        own == self.known
            || own.incarnation == self.sent.incarnation && own.events <= self.sent.events
    }

    /// Whether the state with generation `own` may be in the labels of the member, and is not older than the state that
    /// is known to be in these labels.
    fn should_have(&self, own: Generation) -> bool {
        let later =
            self.known.incarnation != self.sent.incarnation || own.events >= self.known.events;
        self.may_have(own) && (own == self.known || later)
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "opening_model.rs"]
mod model;
