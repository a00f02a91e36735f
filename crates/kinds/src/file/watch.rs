//! Detects changes by other programs to the file of an open disk: truncation, deletion, replacement.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use block::env::{Place, Storage};
use block::seeded::{self, Bug};
use block::units::format_size;
use block::{Error, ErrorKind, Health, Mono, What};

/// Time between two checks of a file in use.
const INTERVAL: Duration = Duration::from_secs(1);

/// A watch for changes that other programs make to the open file of a disk: truncation, a move, or deletion.
pub struct Watch {
    next: Cell<Mono>,
    turn: Cell<Mono>,
    place: RefCell<Place>,
    /// The error of all further requests, set when a check finds the file truncated: bytes are lost, and a write would
    /// hide the loss.
    fault: RefCell<Option<Error>>,
}

/// A change of the file of a disk that a check has found, as an event for the operator.
pub struct Seen {
    pub what: What,
    pub words: String,
}

impl Watch {
    /// Returns the watch of a file that was opened at `now`.
    pub fn new(now: Mono) -> Self {
        Self {
            next: Cell::new(now.after(INTERVAL)),
            turn: Cell::new(now),
            place: RefCell::new(Place::There),
            fault: RefCell::default(),
        }
    }

    /// Whether [`INTERVAL`] has passed since the last check of the file.
    pub fn is_due(&self, now: Mono) -> bool {
        now >= self.next.get()
    }

    /// Whether this call is the first in the present turn of the reactor. All calls in one turn have the same `now`.
    pub fn is_new_turn(&self, now: Mono) -> bool {
        self.turn.replace(now) != now
    }

    /// Returns an error if a check has found the file truncated. From then on the disk refuses all requests.
    pub fn fault(&self) -> Option<Error> {
        self.fault.borrow().clone()
    }

    /// Checks the file `storage`, which had `opened_bytes` bytes when it was opened. Returns the changes since the last
    /// check.
    pub fn look(&self, storage: &dyn Storage, opened_bytes: u64, now: Mono) -> Vec<Seen> {
        self.next.set(now.after(INTERVAL));
        // This check failed, and the next check will find any change.
        let Ok(found) = storage.look() else { return Vec::new() };
        let mut seen = Vec::new();
        let is_cut = found.size < opened_bytes && !seeded::on(Bug::CutUnnoticed);
        if is_cut && self.fault.borrow().is_none() {
            let words = format!(
                "another program truncated the file from {} to {}: the disk is out of service",
                format_size(opened_bytes),
                format_size(found.size)
            );
            *self.fault.borrow_mut() = Some(Error::new(ErrorKind::Faulted, words.clone()));
            seen.push(Seen { what: What::DiskCut, words });
        }
        let before = self.place.replace(found.place);
        if before != *self.place.borrow() {
            let what = match &*self.place.borrow() {
                Place::There => return seen,
                Place::Elsewhere => What::DiskMoved,
                Place::Deleted(_) => What::DiskDeleted,
            };
            seen.push(Seen { what, words: self.report().1 });
        }
        seen
    }

    /// Returns the health of the disk with this file, and a description with the next step.
    pub fn report(&self) -> (Health, String) {
        if let Some(fault) = &*self.fault.borrow() {
            let words = format!(
                "{}. Next: stop the graph; restore the file from a backup, or extend the file and \
                 resync it from other members",
                fault.message()
            );
            return (Health::Failed, words);
        }
        match &*self.place.borrow() {
            Place::There => (Health::Ok, String::new()),
            Place::Elsewhere => {
                let words = "the file was moved: its path has no or another file at the next start";
                (Health::Ok, words.to_owned())
            }
            Place::Deleted(path) => {
                let words = format!(
                    "the file was deleted, and its data are lost when this process ends. Next: \
                     stop all writes and save the data: cp --sparse=always {path} NEW"
                );
                (Health::Degraded, words)
            }
        }
    }
}
