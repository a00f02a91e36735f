//! Verification of a closed journal, without writes.

use block::{Env, Lower, Result};

use super::Journal;
use super::open::ring_root;
use super::part::Part;
use super::record::{Record, read_data};
use super::root::Wrong;
use super::slots::{RING_START, Slots, check_device};
use crate::ring::{Damage, RingDevice};

/// Maximum number of faults that a check of a journal describes; further faults are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Result of the verification of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Number of records that an opening would write in place.
    pub records: u64,
    /// Number of the parts in these records.
    pub parts: u64,
    /// Descriptions of the first [`FINDINGS_MAX`] faults.
    pub wrong: Vec<String>,
    /// Number of all faults, including those that are not described.
    pub count: u64,
    /// Whether flushed changes are lost, so that an opening is refused unless it accepts the loss.
    pub is_damaged: bool,
}

impl Findings {
    fn note(&mut self, words: String) {
        self.count += 1;
        if self.wrong.len() < FINDINGS_MAX {
            self.wrong.push(words);
        }
    }

    fn note_damage(&mut self, words: String) {
        self.is_damaged = true;
        self.note(words);
    }
}

impl Journal {
    /// Verifies the roots, records and payload of a journal that is not open. Writes nothing.
    ///
    /// # Errors
    /// As [`Journal::open`] if there is no root or a newer version; `Limit` if the pool lacks buffers.
    pub async fn check(env: &Env, lower: &Lower, base: u64) -> Result<Findings> {
        let mut findings = Findings::default();
        let found = Slots::new(env, lower, base).read().await?;
        let (root, _) = found.newest(lower.name())?;
        for (slot, content) in found.slots.iter().enumerate() {
            if let Err(wrong @ (Wrong::Zeros | Wrong::NoMagic | Wrong::Damaged(_))) = content {
                findings.note(format!("slot {slot} of the root: {wrong}; the other slot counts"));
            }
        }
        check_device(lower, base, root.ring.bytes())?;
        let ring = RingDevice { lower: lower.clone(), base: base + RING_START, ring: root.ring };
        let recovered = ring.recover(env, ring_root(&root), false).await?;
        let verdict = &recovered.verdict;
        if let Some(Damage::Missing { number, flushed }) = verdict.damage {
            findings.note_damage(format!(
                "record {number} is missing, although all up to {flushed} were flushed"
            ));
        }
        for head in verdict.records.iter().chain(&verdict.behind_damage) {
            let items = recovered.items.get(&head.at.offset).map_or(&[][..], |items| items);
            let number = head.at.number;
            let parts = match Part::decode_all(head, items, root.lowers) {
                Ok(parts) => parts,
                Err(why) => {
                    findings.note_damage(format!("record {number}: {why}"));
                    continue;
                }
            };
            let record = Record::new(head, parts, None);
            for stored in &record.parts {
                if read_data(env.pool(), &ring, stored, false).await?.is_some() {
                    continue;
                }
                if number > verdict.flushed {
                    // The log ends here: a power cut has lost payload that was never flushed.
                    return Ok(findings);
                }
                let range = stored.part.range;
                findings.note_damage(format!("record {number}: wrong payload of range {range}"));
            }
            findings.records += u64::from(!record.parts.is_empty());
            findings.parts += record.parts.len() as u64;
        }
        Ok(findings)
    }
}
