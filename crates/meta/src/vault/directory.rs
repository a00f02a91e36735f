//! The directory of a vault in memory: its objects, its free pages, and the reservations of transactions in progress.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Error, Result, bail, error};

use super::entry::{DIRECTORY, ENTRY_BYTES, Entry, ObjectKind, RUNS_MAX, Run, Slot};
use super::geometry::Geometry;
use super::page::CONTENT_BYTES;
use super::superblock::COUNT_MAX;

/// Number of directory entries in one page.
pub const SLOTS_PER_PAGE: usize = CONTENT_BYTES / ENTRY_BYTES;

/// Properties of a new object of a vault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Name of the device that the object belongs to.
    pub owner: String,
    /// Number by which the owner finds the object: owner and role together identify an object of the vault.
    pub role: u32,
    /// Kind of the object: cell, array, bitmap or log.
    pub kind: ObjectKind,
    /// Whether a crash may undo the latest changes of the object.
    pub advisory: bool,
    /// Size of each record of an array in bytes, else 0.
    pub record_bytes: u32,
    /// Length of the object: number of records of an array, number of bits of a bitmap, else bytes.
    pub length: u64,
}

/// A new or changed directory entry, with the slot and the pages that are reserved for it until its transaction ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    pub slot: usize,
    pub entry: Rc<Entry>,
    /// Pages that the creation or extension adds to the object.
    pub taken: Vec<Run>,
}

pub(super) struct Directory {
    own: Rc<Entry>,
    pages: u64,
    /// For each slot of the directory, the number of the object in the slot.
    slots: Vec<Option<u64>>,
    objects: BTreeMap<u64, (usize, Rc<Entry>)>,
    roles: BTreeMap<(String, u32), u64>,
    /// Free runs of pages: number of pages in the run, by its first page.
    free: BTreeMap<u32, u32>,
    /// Slots and roles that are reserved for new objects, and objects that a transaction in progress extends or
    /// deletes.
    held_slots: BTreeSet<usize>,
    held_roles: BTreeSet<(String, u32)>,
    held_objects: BTreeSet<u64>,
    /// Objects whose deletion is being committed.
    going: BTreeSet<u64>,
    next: u64,
    /// Whether the free pages of the vault are known. They are unknown while an opening still reads the directory.
    counted: bool,
}

impl Directory {
    /// Returns the directory of an empty vault with this geometry.
    pub fn new(geometry: &Geometry) -> Self {
        let pages = geometry.directory_pages;
        let own = Entry {
            number: DIRECTORY,
            kind: ObjectKind::Array,
            advisory: false,
            owner: String::new(),
            role: 0,
            record_bytes: ENTRY_BYTES as u32,
            length: u64::from(pages) * SLOTS_PER_PAGE as u64,
            epoch: 0,
            runs: vec![Run { first: 0, pages }],
        };
        Self {
            slots: vec![None; own.length as usize],
            own: Rc::new(own),
            pages: geometry.pages,
            objects: BTreeMap::new(),
            roles: BTreeMap::new(),
            free: BTreeMap::new(),
            held_slots: BTreeSet::new(),
            held_roles: BTreeSet::new(),
            held_objects: BTreeSet::new(),
            going: BTreeSet::new(),
            next: 1,
            counted: false,
        }
    }

    /// Returns the directory entry of the object with this number; 0 is the directory itself.
    pub fn get(&self, number: u64) -> Option<&Rc<Entry>> {
        match number {
            DIRECTORY => Some(&self.own),
            _ => self.objects.get(&number).map(|(_, entry)| entry),
        }
    }

    /// Returns the directory entry of the object with this owner and role.
    pub fn find(&self, owner: &str, role: u32) -> Option<&Rc<Entry>> {
        self.get(*self.roles.get(&(owner.to_owned(), role))?)
    }

    /// Returns the directory entries of all objects, in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Entry>> {
        self.objects.values().map(|(_, entry)| entry)
    }

    /// Returns the number of pages of the vault that belong to no object.
    pub fn free_pages(&self) -> u64 {
        self.free.values().map(|pages| u64::from(*pages)).sum()
    }

    /// Whether a transaction that deletes the object `number` is being committed.
    pub fn is_going(&self, number: u64) -> bool {
        self.going.contains(&number)
    }

    /// Records that a transaction that deletes the object `number` is being committed.
    pub fn note_going(&mut self, number: u64) {
        self.going.insert(number);
    }

    /// Reserves a slot of the directory, a role and pages for a new object with the properties `spec`, created in the
    /// epoch `epoch`.
    pub fn plan_new(&mut self, spec: &Spec, epoch: u64) -> Result<Planned> {
        Entry::check_owner(&spec.owner)?;
        let Spec { owner, role, kind, advisory, record_bytes, length } = spec.clone();
        let record = if kind == ObjectKind::Array { 1..=CONTENT_BYTES as u32 } else { 0..=0 };
        if length == 0 || length > COUNT_MAX || !record.contains(&record_bytes) {
            bail!(Invalid, "a {kind:?} of {length} records of {record_bytes} bytes is impossible");
        }
        let name = (owner.clone(), role);
        if self.roles.contains_key(&name) || self.held_roles.contains(&name) {
            bail!(InUse, "the vault has an object of {owner:?} with role {role} already");
        }
        let open = |slot: &usize| self.slots[*slot].is_none() && !self.held_slots.contains(slot);
        let slot = (0..self.slots.len()).find(open).ok_or_else(|| {
            error!(Limit, "the vault has its maximum of {} objects", self.slots.len())
        })?;
        let taken = self.take(kind.pages(record_bytes, length), RUNS_MAX)?;
        let number = self.next;
        self.next += 1;
        self.held_slots.insert(slot);
        self.held_roles.insert(name);
        let runs = taken.clone();
        let entry =
            Entry { number, kind, advisory, owner, role, record_bytes, length, epoch, runs };
        Ok(Planned { slot, entry: Rc::new(entry), taken })
    }

    /// Reserves the pages that the object `number` needs in addition for the length `length`.
    pub fn plan_growth(&mut self, number: u64, length: u64) -> Result<Planned> {
        let (slot, old) = self.hold(number)?;
        let more = (|| {
            if length <= old.length || length > COUNT_MAX {
                bail!(Invalid, "{old} cannot grow from length {} to {length}", old.length);
            }
            let more = old.kind.pages(old.record_bytes, length) - old.pages();
            self.take(more, RUNS_MAX - old.runs.len())
        })();
        let taken = more.inspect_err(|_| {
            self.held_objects.remove(&number);
        })?;
        let runs = merged(old.runs.iter().chain(&taken).copied());
        let entry = Rc::new(Entry { length, runs, ..(*old).clone() });
        Ok(Planned { slot, entry, taken })
    }

    /// Prevents other transactions from extending or deleting the object `number`. Returns the slot and the directory
    /// entry of the object.
    pub fn hold(&mut self, number: u64) -> Result<(usize, Rc<Entry>)> {
        let (slot, entry) = self.objects.get(&number).cloned().ok_or_else(|| missing(number))?;
        if !self.held_objects.insert(number) {
            bail!(InUse, "{entry} is being changed by another transaction");
        }
        Ok((slot, entry))
    }

    /// Ends [`Self::hold`] of the object `number`, when the transaction is committed or dropped.
    pub fn release(&mut self, number: u64) {
        self.held_objects.remove(&number);
        self.going.remove(&number);
    }

    /// Releases the slot, the role and the pages that were reserved for a dropped transaction.
    pub fn unplan(&mut self, planned: &Planned) {
        self.settle(planned);
        planned.taken.iter().for_each(|run| self.give(*run));
    }

    /// Ends the reservation of the slot and the role for a committed transaction, because its object has them now.
    pub fn settle(&mut self, planned: &Planned) {
        let Planned { slot, entry, .. } = planned;
        self.held_slots.remove(slot);
        self.held_roles.remove(&(entry.owner.clone(), entry.role));
        self.held_objects.remove(&entry.number);
    }

    /// Sets the content of slot `slot` of the directory.
    ///
    /// # Errors
    /// A description of the contradiction, if the content does not fit to the other slots.
    pub fn put(&mut self, slot: usize, now: Slot) -> Result<(), String> {
        if let Slot::Entry(entry) = &now {
            let inside = |run: &Run| run.end() <= self.pages;
            if !entry.runs.iter().all(inside) {
                return Err(format!("{entry} has pages beyond the vault's {} pages", self.pages));
            }
            if self.objects.get(&entry.number).is_some_and(|(at, _)| *at != slot) {
                return Err(format!("{entry} has two directory entries"));
            }
        }
        let before = self.slots[slot].take().and_then(|number| self.objects.remove(&number));
        let before = before.map(|(_, entry)| entry);
        if let Some(entry) = &before {
            self.roles.remove(&(entry.owner.clone(), entry.role));
        }
        match now {
            Slot::Unused => {}
            Slot::Gone(number) => {
                self.next = self.next.max(number + 1);
                before.iter().flat_map(|entry| &entry.runs).for_each(|run| self.give(*run));
            }
            Slot::Entry(entry) => {
                self.next = self.next.max(entry.number + 1);
                self.slots[slot] = Some(entry.number);
                self.roles.insert((entry.owner.clone(), entry.role), entry.number);
                self.objects.insert(entry.number, (slot, Rc::new(entry)));
            }
        }
        Ok(())
    }

    /// Adds the pages of the vault up to `pages` to the free ones, because the vault has grown.
    pub fn extend(&mut self, pages: u64) {
        let before = std::mem::replace(&mut self.pages, pages);
        if pages > before {
            self.give(Run { first: before as u32, pages: (pages - before) as u32 });
        }
    }

    /// Computes the free pages of the vault, after all slots were read.
    ///
    /// # Errors
    /// `Corrupt` if two objects have the same page, or a page is outside of the vault.
    pub fn count_free(&mut self) -> Result<()> {
        let mut runs: Vec<(Run, u64)> = Vec::new();
        for entry in self.all().chain([&self.own]) {
            runs.extend(entry.runs.iter().map(|run| (*run, entry.number)));
        }
        runs.sort_unstable();
        self.free.clear();
        let mut end = 0;
        for (run, number) in runs {
            if u64::from(run.first) < end || run.end() > self.pages {
                bail!(
                    Corrupt,
                    "object {number} has {} pages from page {} on; another object has one of them, \
                     or the vault ends before",
                    run.pages,
                    run.first
                );
            }
            self.note_free(end, run.first.into());
            end = run.end();
        }
        self.note_free(end, self.pages);
        self.counted = true;
        let names = self.objects.len() == self.roles.len();
        names.then_some(()).ok_or_else(|| {
            error!(Corrupt, "the vault holds two objects of one device with the same role")
        })
    }

    fn note_free(&mut self, start: u64, end: u64) {
        if start < end {
            self.free.insert(start as u32, (end - start) as u32);
        }
    }

    /// Takes `pages` free pages: from one run, if one has enough; else from the longest runs, at most `runs_max` of
    /// them.
    fn take(&mut self, pages: u64, runs_max: usize) -> Result<Vec<Run>> {
        if pages == 0 {
            return Ok(Vec::new());
        }
        let fits = self.free.iter().find(|(_, free)| u64::from(**free) >= pages);
        let chosen: Vec<(u32, u32)> = match fits {
            Some((first, free)) => vec![(*first, *free)],
            None => {
                let mut all: Vec<_> = self.free.iter().map(|(a, b)| (*a, *b)).collect();
                all.sort_unstable_by_key(|(_, pages)| std::cmp::Reverse(*pages));
                all.truncate(runs_max);
                all
            }
        };
        let room: u64 = chosen.iter().map(|(_, pages)| u64::from(*pages)).sum();
        if room < pages || runs_max == 0 {
            bail!(
                NoSpace,
                "the object needs {pages} more pages; the vault has {} free ones, {room} of them in \
                 the {RUNS_MAX} runs that an object may have; delete objects, or make a larger vault",
                self.free_pages()
            );
        }
        let mut left = pages;
        let mut taken = Vec::new();
        for (first, free) in chosen {
            let pages = left.min(free.into()) as u32;
            if pages > 0 {
                self.free.remove(&first);
                self.note_free(
                    u64::from(first) + u64::from(pages),
                    u64::from(first) + u64::from(free),
                );
                taken.push(Run { first, pages });
                left -= u64::from(pages);
            }
        }
        Ok(taken)
    }

    fn give(&mut self, run: Run) {
        if !self.counted {
            return;
        }
        let Run { mut first, mut pages } = run;
        if let Some((before, count)) = self.free.range(..first).next_back()
            && before + count == first
        {
            (first, pages) = (*before, count + pages);
        }
        if let Some(behind) = self.free.remove(&(first + pages)) {
            pages += behind;
        }
        self.free.insert(first, pages);
    }
}

/// Returns the error that the vault has no object with this number.
pub(super) fn missing(number: u64) -> Error {
    error!(NotFound, "the vault has no object {number}")
}

/// Merges each run with the next one, if the pages of the next run follow directly.
fn merged(runs: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.end() == u64::from(run.first) => last.pages += run.pages,
            _ => all.push(run),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    fn spec(role: u32, pages: u64) -> Spec {
        let length = pages * (CONTENT_BYTES / 8) as u64;
        let owner = "a".to_owned();
        Spec { owner, role, kind: ObjectKind::Array, advisory: false, record_bytes: 8, length }
    }

    fn made(directory: &mut Directory, role: u32, pages: u64) -> u64 {
        let planned = directory.plan_new(&spec(role, pages), 1).unwrap();
        directory.settle(&planned);
        directory.put(planned.slot, Slot::Entry((*planned.entry).clone())).unwrap();
        planned.entry.number
    }

    #[test]
    fn vault_directory_reuses_pages_but_not_numbers_of_deleted_objects() {
        let geometry = Geometry { bytes: 0, log_bytes: 0, pages: 100, directory_pages: 1 };
        let mut directory = Directory::new(&geometry);
        directory.count_free().unwrap();
        let numbers: Vec<u64> = (0..3).map(|role| made(&mut directory, role, 20)).collect();
        assert_eq!((directory.free_pages(), numbers[2]), (39, 3));
        assert_eq!(directory.plan_new(&spec(1, 1), 1).unwrap_err().kind(), ErrorKind::InUse);
        assert_eq!(directory.plan_new(&spec(9, 40), 1).unwrap_err().kind(), ErrorKind::NoSpace);
        let (slot, _) = directory.hold(2).unwrap();
        directory.put(slot, Slot::Gone(2)).unwrap();
        directory.release(2);
        assert_eq!(directory.free_pages(), 59);
        let scattered = made(&mut directory, 7, 50);
        assert_eq!(scattered, 4);
        assert_eq!(directory.get(scattered).unwrap().runs.len(), 2);
        directory.count_free().unwrap();
        assert_eq!(directory.free_pages(), 9);
    }

    #[test]
    fn vault_directory_unplan_releases_reserved_pages_and_roles() {
        let geometry = Geometry { bytes: 0, log_bytes: 0, pages: 100, directory_pages: 1 };
        let mut directory = Directory::new(&geometry);
        directory.count_free().unwrap();
        let number = made(&mut directory, 0, 10);
        let free = directory.free.clone();
        let new = directory.plan_new(&spec(1, 10), 1).unwrap();
        let grown = directory.plan_growth(number, 20 * 508).unwrap();
        assert!(
            directory.held_objects.contains(&number)
                && directory.plan_growth(number, 9999).is_err()
        );
        directory.unplan(&new);
        directory.unplan(&grown);
        assert_eq!(directory.free, free);
        assert!(!directory.held_objects.contains(&number));
    }
}
