//! A block that differs from its checksum: repair from a copy that fits, or acceptance, or an error.

use block::control::Command;
use block::control::copies::{Numbers as CopyNumbers, Wrong};
use block::seeded::{self, Bug};
use block::{Buf, ByteRange, COPIES_MAX, Copies, Error, Mode as LockMode, Op, Result, What, error};

use super::device::{Inner, Mode, Redundancy};
use super::sums::{BLOCK_BYTES, Sum, ZEROS, range_of};

/// The reason for which a block is settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// A read of the block.
    Read {
        /// Whether all other copies of the device above have failed.
        last_resort: bool,
    },
    /// The scan.
    Scan,
}

/// The copies of a settled block that have the same right bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// All copies that the device below has shown.
    All,
    /// Perhaps not all: a copy could not be read or restored, or newer bytes are in the journal.
    Some,
}

/// The copies of a block, compared with its checksum.
struct Survey {
    /// Whether a copy fits; its bytes are in the caller's buffer then.
    is_right: bool,
    /// The copies that differ.
    wrong: Copies,
    /// The error of a copy that could not be read.
    error: Option<Error>,
}

impl Inner {
    /// Finds the right bytes of a block that differed from its checksum, and writes them into `into`. Restores wrong copies.
    ///
    /// # Errors
    /// `Corrupt` if no copy fits, and the block may not be accepted for `asker`; errors of the lower and the vault.
    pub async fn settle(&self, block: u64, into: &Buf, asker: Asker) -> Result<Copied> {
        let range = range_of(block);
        let mut alone = Some(self.lock.lock(range, LockMode::Exclusive).await);
        if self.read_newest(block, into).await? {
            return Ok(Copied::Some);
        }
        let mut stored = [ZEROS];
        self.sums.get(block, &mut stored).await?;
        let survey = self.survey(range, stored[0], into).await?;
        if survey.is_right {
            // A power cut may have lost writes on one disk and not on another. Such differences are no fault of a disk.
            let is_fault = !self.is_unverified(block) || seeded::on(Bug::CrashCounted);
            self.note_fit(range);
            if seeded::on(Bug::RestoredUnlocked) {
                alone = None;
                self.env.give_way().await;
            }
            let is_restored = self.restore(range, into, survey.wrong).await;
            if is_fault {
                self.report_wrong(range, survey.wrong).await;
            }
            drop(alone);
            return Ok(match is_restored && survey.error.is_none() {
                true => Copied::All,
                false => Copied::Some,
            });
        }
        if self.is_unverified(block) {
            // The accepted bytes were written to all copies.
            return self.accept(block, into, asker).await.map(|()| Copied::All);
        }
        Err(survey.error.unwrap_or_else(|| self.damage(range)))
    }

    /// Reads each copy of a block, and compares it with the checksum. The first one that fits goes into `into`; if none does,
    /// `into` has the bytes of any.
    async fn survey(&self, range: ByteRange, stored: Sum, into: &Buf) -> Result<Survey> {
        let count = self.data.info().copies.clamp(1, COPIES_MAX);
        let mut survey = Survey { is_right: false, wrong: Copies::NONE, error: None };
        let mut other = None;
        for n in 0..count as usize {
            if survey.is_right && other.is_none() {
                other = Some(self.env.pool().scratch(BLOCK_BYTES as usize).await?);
            }
            let to = match &other {
                Some(other) => other,
                None => into,
            };
            match self.read_copy(range, to, Copies::all_but(n)).await {
                // A member is out, or has no such copy of this range.
                Ok(read) if count > 1 && !read.has(n) => {}
                Ok(_) if self.sums.compare(range, to, &[stored]) == 0 => survey.is_right = true,
                Ok(_) => survey.wrong = survey.wrong.with(n),
                Err(error) => survey.error = Some(error),
            }
            if n == 0 && !survey.is_right && seeded::on(Bug::AcceptedFirstCopy) {
                break;
            }
        }
        if survey.error.is_some() && !survey.is_right {
            // Devices below that verify may have the right bytes, and no checksum for them.
            let read = self.read_from(range, into, Copies::NONE, true).await;
            survey.is_right = read.is_ok() && self.sums.compare(range, into, &[stored]) == 0;
        }
        Ok(survey)
    }

    /// Reads a block from a copy that is not in `avoid`, if there is one. Returns `avoid` with the copies that were read.
    async fn read_copy(&self, range: ByteRange, into: &Buf, avoid: Copies) -> Result<Copies> {
        self.read_from(range, into, avoid, false).await
    }

    async fn read_from(
        &self,
        range: ByteRange,
        into: &Buf,
        avoid: Copies,
        last_resort: bool,
    ) -> Result<Copies> {
        let read = Op::Read { range, into: into.clone(), avoid, last_resort };
        let done = self.data.call(read).await;
        let copies = match done.result {
            Ok(()) => done.copies(),
            Err(error) => return Err(error),
        };
        let found = done.into_buf()?;
        if !found.same(into) {
            into.write().copy_from_slice(&found.read());
        }
        Ok(copies)
    }

    /// Writes the right bytes of a block to the copies that differ. Returns whether no copy differs any more. A failure changes
    /// nothing: the next read tries again.
    async fn restore(&self, range: ByteRange, data: &Buf, wrong: Copies) -> bool {
        if wrong == Copies::NONE || self.info.read_only {
            return wrong == Copies::NONE;
        }
        if let Mode::Journal(journal) = &self.mode
            && journal.until_in_place(0, range).await.is_err()
        {
            return false;
        }
        // The buffer goes back to the reader, which may change it while a copy is still written.
        let Ok(own) = self.env.pool().scratch(BLOCK_BYTES as usize).await else { return false };
        own.write().copy_from_slice(&data.read());
        let is_restored = self.data.call(Op::restore(range, own, wrong)).await.result.is_ok();
        if is_restored {
            self.count(|counts| counts.repaired += u64::from(wrong.0.count_ones()));
            self.emit(What::RangeRewritten, range.to_string());
        }
        is_restored
    }

    /// Reports to the device below that these copies of a block had wrong bytes.
    async fn report_wrong(&self, range: ByteRange, wrong: Copies) {
        if wrong != Copies::NONE && self.redundancy == Redundancy::Below {
            let command = Command::new::<Wrong>(CopyNumbers { copies: wrong.0 }).at(range);
            // A lower that does not count wrong bytes serves them all the same.
            let _ = self.data.control::<Wrong>(command).await;
        }
    }

    /// Accepts an unverified block as it is, if `asker` may have it. Its bytes are in `into` then.
    async fn accept(&self, block: u64, into: &Buf, asker: Asker) -> Result<()> {
        let range = range_of(block);
        match (self.redundancy, asker) {
            (Redundancy::Above, Asker::Read { last_resort: true }) => {
                return self.read_from(range, into, Copies::NONE, true).await.map(drop);
            }
            (Redundancy::Above, _) if !seeded::on(Bug::AcceptedAtOnce) => {
                return Err(error!(Corrupt, "{range} is unverified since an unclean stop")
                    .at(self.data.name()));
            }
            _ => {}
        }
        let from = match seeded::on(Bug::AcceptedStale) {
            true => Copies::all_but(self.data.info().copies as usize - 1),
            // Without copies to avoid, a redundant device reads a current copy.
            false => Copies::NONE,
        };
        // All copies were asked for bytes that fit, so this is a last resort.
        self.read_from(range, into, from, true).await?;
        if self.info.read_only {
            return Ok(());
        }
        let own = self.env.pool().scratch(BLOCK_BYTES as usize).await?;
        own.write().copy_from_slice(&into.read());
        let mut sums = [ZEROS];
        self.sums.compute(range, &own, &mut sums);
        let _writing = match &self.mode {
            Mode::Regions(regions) => Some(regions.begin(range).await?),
            Mode::Journal(_) => None,
        };
        if self.redundancy == Redundancy::Below {
            self.data.call(Op::write(range, own)).await.result?;
        }
        if !seeded::on(Bug::AcceptedUnposted) {
            self.sums.post(block, &sums).await?;
        }
        self.note_fit(range);
        self.count(|counts| counts.accepted += 1);
        Ok(())
    }

    /// Counts and reports a damaged block. Returns the error for its reader.
    fn damage(&self, range: ByteRange) -> Error {
        self.count(|counts| counts.damaged += 1);
        let words = format!("{range} differs from its checksum on every copy");
        self.emit(What::RangeUnreadable, words);
        error!(Corrupt, "{range} differs from its checksum on every copy")
            .at(self.data.name())
            .next("write the range again, or restore it from a backup")
    }
}
