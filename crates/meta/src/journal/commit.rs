//! Records: the changes that wait at one moment go together, and several records are in flight.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Buf, OneShot, Result, error};

use super::part::{NewPart, PART_BYTES};
use super::record::Record;
use super::{APPENDERS_MAX, INLINE_BYTES_MAX, Inner, PARTS_MAX, RECORDS_IN_FLIGHT_MAX};
use crate::ring::{Appended, RECORD_HEADER_BYTES, SECTOR_BYTES};

/// The changes of a caller that waits for their record, which has the number of the answer.
struct Waiting {
    parts: Vec<NewPart>,
    done: Rc<OneShot<Result<u64>>>,
}

/// A record in flight.
struct Flight {
    appended: Appended,
    answers: Vec<Rc<OneShot<Result<u64>>>>,
}

/// The changes on their way into the ring.
#[derive(Default)]
pub struct Commits {
    queue: RefCell<VecDeque<Waiting>>,
    flights: RefCell<VecDeque<Flight>>,
    /// Number of records that are written and not acknowledged.
    in_flight: Cell<usize>,
}

impl Commits {
    /// Whether no change waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty() && self.in_flight.get() == 0
    }

    pub fn has_queue(&self) -> bool {
        !self.queue.borrow().is_empty()
    }
}

/// The size of a record that is being put together.
#[derive(Clone, Copy, Default)]
struct Size {
    parts: usize,
    item_bytes: usize,
    payload_bytes: u64,
}

impl Size {
    fn with(self, parts: &[NewPart]) -> Self {
        parts.iter().fold(self, |Self { parts, item_bytes, payload_bytes }, new| Self {
            parts: parts + 1,
            item_bytes: item_bytes + new.part.item_bytes(),
            payload_bytes: payload_bytes + new.part.payload_bytes(),
        })
    }

    fn record_bytes(self) -> u64 {
        let front = (RECORD_HEADER_BYTES + self.item_bytes).next_multiple_of(SECTOR_BYTES);
        front as u64 + self.payload_bytes
    }
}

impl Inner {
    /// Returns the most bytes of data that a change of one part can have.
    pub fn data_max(&self) -> u64 {
        let front =
            (RECORD_HEADER_BYTES + PART_BYTES + INLINE_BYTES_MAX).next_multiple_of(SECTOR_BYTES);
        self.ring.ring.record_bytes_max() - front as u64
    }

    /// Waits until the record with these parts is acknowledged. Returns its number.
    pub async fn append(&self, parts: Vec<NewPart>) -> Result<u64> {
        self.check_append(&parts)?;
        self.changed.until(|| self.commits.queue.borrow().len() < APPENDERS_MAX).await;
        self.check_open()?;
        let done = Rc::new(OneShot::default());
        let waiting = Waiting { parts, done: done.clone() };
        self.commits.queue.borrow_mut().push_back(waiting);
        self.changed.wake();
        done.wait().await
    }

    fn check_append(&self, parts: &[NewPart]) -> Result<()> {
        let size = Size::default().with(parts);
        let most = self.ring.ring.record_bytes_max();
        let bytes = size.record_bytes();
        if parts.is_empty() || size.parts > PARTS_MAX || bytes > most {
            return Err(error!(
                Limit,
                "a change of {} parts and {bytes} bytes; a record has 1 to {PARTS_MAX} parts and at \
                 most {most} bytes",
                size.parts
            ));
        }
        let lower = parts.iter().map(|new| u32::from(new.part.lower)).max().unwrap_or(0);
        match lower < self.lowers {
            true => Ok(()),
            false => Err(error!(Invalid, "a change of lower {lower} of {}", self.lowers)),
        }
    }

    /// Puts the waiting changes into records, until the journal closes.
    pub async fn lead(self: Rc<Self>) {
        loop {
            let has_work = || self.commits.has_queue() || self.is_closing.get();
            self.changed.until(has_work).await;
            if !self.commits.has_queue() {
                break;
            }
            // Callers that are ready now join the record.
            self.env.give_way().await;
            let has_room = || {
                let in_flight = self.commits.in_flight.get();
                in_flight < RECORDS_IN_FLIGHT_MAX && self.has_room()
            };
            self.changed.until(|| self.check().is_err() || has_room()).await;
            if let Err(error) = self.check() {
                let refused = self.commits.queue.take();
                refused.into_iter().for_each(|waiting| waiting.done.set(Err(error.clone())));
            } else {
                self.send_next();
            }
            self.changed.wake();
        }
    }

    /// Sends as many of the waiting changes as fit in one record.
    fn send_next(&self) {
        let (mut parts, mut answers, mut size) = (Vec::new(), Vec::new(), Size::default());
        let mut queue = self.commits.queue.borrow_mut();
        while let Some(waiting) = queue.front() {
            let more = size.with(&waiting.parts);
            let fits =
                more.parts <= PARTS_MAX && more.record_bytes() <= self.ring.ring.record_bytes_max();
            if !fits {
                break;
            }
            size = more;
            let Some(Waiting { parts: own, done }) = queue.pop_front() else { break };
            parts.extend(own);
            answers.push(done);
        }
        drop(queue);
        let mut items = Vec::with_capacity(size.item_bytes);
        parts.iter().for_each(|new| new.part.encode(&mut items));
        let payload: Vec<Buf> = parts.iter().filter_map(|new| new.data.clone()).collect();
        match self.log.append_payload(&items, parts.len() as u32, &payload) {
            Ok(appended) => {
                let parts = parts.into_iter().map(|new| new.part);
                let bytes = Some(appended.bytes().clone());
                self.records.borrow_mut().push(Record::new(appended.head(), parts, bytes));
                self.commits.in_flight.set(self.commits.in_flight.get() + 1);
                self.commits.flights.borrow_mut().push_back(Flight { appended, answers });
            }
            Err(error) => {
                self.fail(&error);
                answers.into_iter().for_each(|done| done.set(Err(error.clone())));
            }
        }
    }

    /// Acknowledges the records in flight in their order, until the journal closes.
    pub async fn land(self: Rc<Self>) {
        loop {
            let next = || self.commits.flights.borrow_mut().pop_front();
            let is_over = || self.is_closing.get() && self.commits.is_idle();
            let flight = self.changed.until_some(|| match next() {
                Some(flight) => Some(Some(flight)),
                None => is_over().then_some(None),
            });
            let Some(Flight { appended, answers }) = flight.await else { break };
            let number = appended.head().at.number;
            let result = self.log.acknowledged(appended).await;
            self.commits.in_flight.set(self.commits.in_flight.get() - 1);
            let answer = match result {
                Ok(_) => {
                    self.records.borrow_mut().note_written(number);
                    self.last_append.set(self.env.now());
                    Ok(number)
                }
                Err(error) => {
                    self.fail(&error);
                    Err(error)
                }
            };
            answers.into_iter().for_each(|done| done.set(answer.clone()));
            self.changed.wake();
        }
    }
}
