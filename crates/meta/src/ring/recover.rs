//! Recovery of a ring: the search for its records, in all copies of a redundant device below.

use std::collections::BTreeMap;

use block::seeded::{self, Bug};
use block::{Copies, Env, Result};

use super::{Head, Owner, Position, RingDevice, Root, SECTOR_BYTES, Survey, Verdict};
use crate::copies::Source;
use crate::io::step;

/// Bytes that a recovery reads at once.
const READ_BYTES: u64 = 1 << 20;

/// The result of reading a ring.
pub struct Recovered {
    /// The records that count, damage, and the positions.
    pub verdict: Verdict,
    /// The encoded items of all records that may count, by the offset of the record. No two begin at one place.
    pub items: BTreeMap<u64, Vec<u8>>,
}

/// The search for the records of a ring on a device.
struct Search<'s> {
    env: &'s Env,
    device: &'s RingDevice,
    survey: Survey,
    /// The items of each record that was found, by its offset.
    found: BTreeMap<u64, Vec<u8>>,
}

impl RingDevice {
    /// Reads the ring, and judges its records. A part that cannot be read has no records. If a redundant device below has
    /// another copy of a record that is missing or damaged, this copy counts; if the recovery `heals`, it is written over the
    /// copies that lack it, unless the ring is damaged.
    ///
    /// # Errors
    /// `Limit` without a buffer.
    pub async fn recover(&self, env: &Env, root: Root, heals: bool) -> Result<Recovered> {
        let survey = Survey::new(self.ring, root);
        let mut search = Search { env, device: self, survey, found: BTreeMap::new() };
        search.run(None).await?;
        let mut verdict = search.survey.clone().judge_for_owner();
        let mut differs = false;
        // If records move the tail, a stale copy may end more than the length of the ring before the log does.
        let may_lag = self.ring.owner == Owner::Journal && !seeded::on(Bug::LaggingRing);
        for copy in Source::numbers(&self.lower) {
            // Damage may also look like the end of the log.
            if may_lag || verdict.damage.is_some() || search.goes_on(copy, &verdict.end).await? {
                search.survey.again();
                search.run(Some(copy)).await?;
                let before =
                    std::mem::replace(&mut verdict, search.survey.clone().judge_for_owner());
                differs |= before != verdict;
            }
        }
        if differs && heals && verdict.damage.is_none() {
            search.restore(&verdict.records).await?;
        }
        Ok(Recovered { verdict, items: search.found })
    }
}

impl Search<'_> {
    /// Reads the ring, or one copy of it.
    async fn run(&mut self, only: Option<usize>) -> Result<()> {
        let step = step(&self.device.lower);
        let step = (step - step % SECTOR_BYTES) as u64;
        while let Some((place, len)) = self.survey.wanted() {
            let len = len.min(READ_BYTES).min(step) as usize;
            let into = self.env.buf(len)?;
            let read = self.device.source(place, len).read(&into, only).await;
            if read.is_err() {
                into.write().fill(0);
            }
            self.survey.feed(&into.read(), |head: &Head, items: &[u8]| {
                self.found.insert(head.at.offset, items.to_vec());
            });
        }
        Ok(())
    }

    /// Whether a copy of the ring has the record that follows the end of the log.
    async fn goes_on(&self, copy: usize, end: &Position) -> Result<bool> {
        let RingDevice { lower, ring, .. } = self.device;
        let longest = ring.record_bytes_max().min(step(lower) as u64) as usize;
        let into = self.env.buf(longest)?;
        if self.device.source(end.offset, longest).read(&into, Some(copy)).await.is_err() {
            return Ok(false);
        }
        let is_next = |head: &Head| head.at.number == end.number && head.at.opening >= end.opening;
        Ok(Head::decode(ring, &into.read()).is_ok_and(|(head, _)| is_next(&head)))
    }

    /// Writes the header and the items of records over the copies that differ. Their payload is restored when it is read.
    async fn restore(&self, records: &[Head]) -> Result<()> {
        for head in records {
            let items = self.found.get(&head.at.offset).map_or(&[][..], |items| items);
            let mut encoded = Vec::new();
            head.encode(&self.device.ring, items, &mut encoded);
            let source = self.device.source(head.at.offset, encoded.len());
            let (right, into) = (self.env.buf(encoded.len())?, self.env.buf(encoded.len())?);
            right.write().copy_from_slice(&encoded);
            let mut wrong = Copies::NONE;
            let compare = |bytes: &[u8], copies| {
                if bytes != encoded {
                    wrong = wrong.or(copies);
                }
                false
            };
            // A copy that cannot be read or written is asked again by the next opening.
            if source.until(&into, compare).await.is_ok() {
                let _ = source.restore(&right, wrong).await;
            }
        }
        Ok(())
    }
}
