//! One sector as a register: which of its versions a read may return.
//!
//! A version is a write with all the reads that returned it. `first` is the earliest end of any of
//! these, `last` the latest beginning. Of two versions one must come before the other if something
//! of it had ended before something of the other began. A history is linearizable exactly if no two
//! versions must each come before the other (Gibbons and Korach, "Testing shared memories", for
//! registers in which every write is unique).

/// Never, for a version that has no end yet.
const NEVER: u64 = u64::MAX;

/// A write, as one sector sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub write: u64,
    pub zero: bool,
    first: u64,
    last: u64,
    /// When the write was answered; what a later flush covers.
    completed: u64,
    fua: bool,
    /// Whether it was answered with an error: no flush has to cover it.
    failed: bool,
    /// Whether it may have had no effect.
    optional: bool,
    /// Whether a read has shown that it had one.
    shown: bool,
    /// Whether it was there after a power cut, and what was there then is one of several.
    survivor: bool,
}

/// How a write came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    /// With an error: it may have had any effect, and may have it later.
    Failed,
    /// Without an answer: it may have had any effect, and nothing later waits for it.
    Lost,
}

/// Why a sector is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// It was replaced, by that write.
    Replaced(u64),
    /// The last power cut should have left something newer.
    Undone,
    /// No such write is known here.
    Unknown,
}

impl Version {
    pub fn begun(write: u64, zero: bool, discard: bool, fua: bool, at: u64) -> Self {
        Self {
            write,
            zero,
            first: NEVER,
            last: at,
            completed: NEVER,
            fua,
            failed: false,
            optional: discard,
            shown: false,
            survivor: false,
        }
    }

    fn counts(&self) -> bool {
        self.shown || !self.optional
    }

    fn is_before(&self, other: &Self) -> bool {
        self.first < other.last
    }

    fn is_durable(&self, flushed: u64) -> bool {
        self.survivor || self.completed < flushed || (self.fua && self.completed != NEVER)
    }
}

/// The versions that a sector may have, and what is known of their order.
#[derive(Clone, Debug)]
pub(super) struct Register {
    versions: Vec<Version>,
    /// What the last power cut left no room for.
    undone: Vec<u64>,
    zero_undone: bool,
}

impl Register {
    /// A sector that was always zero.
    pub fn new() -> Self {
        let blank = Version {
            first: 0,
            completed: 0,
            survivor: true,
            ..Version::begun(0, true, false, false, 0)
        };
        Self { versions: vec![blank], undone: Vec::new(), zero_undone: false }
    }

    pub fn begin(&mut self, version: Version) {
        self.versions.push(version);
    }

    pub fn end(&mut self, write: u64, end: End, at: u64) {
        let Some(version) = self.versions.iter_mut().find(|v| v.write == write) else { return };
        match end {
            End::Answered => {
                version.first = version.first.min(at);
                version.completed = at;
            }
            End::Lost => {
                version.first = version.first.min(at);
                version.optional = true;
            }
            End::Failed => (version.optional, version.failed) = (true, true),
        }
    }

    /// A read that began at `start` and ends at `end` returned `write`.
    pub fn read(&mut self, write: u64, start: u64, end: u64) -> Result<(), Flaw> {
        let Some(n) = self.versions.iter().position(|v| v.write == write) else {
            return Err(if self.undone.contains(&write) { Flaw::Undone } else { Flaw::Unknown });
        };
        let seen = self.try_read(n, start, end)?;
        self.show(n, seen);
        Ok(())
    }

    /// Likewise zeros. If several versions could be it, nothing is learnt.
    pub fn read_zero(&mut self, start: u64, end: u64) -> Result<(), Flaw> {
        let mut found = None;
        let mut flaw = if self.zero_undone { Flaw::Undone } else { Flaw::Unknown };
        for n in (0..self.versions.len()).filter(|n| self.versions[*n].zero) {
            match self.try_read(n, start, end) {
                Ok(_) if found.is_some() => return Ok(()),
                Ok(seen) => found = Some((n, seen)),
                Err(replaced) => flaw = replaced,
            }
        }
        let (n, seen) = found.ok_or(flaw)?;
        self.show(n, seen);
        Ok(())
    }

    /// The version as it would be with that read.
    fn try_read(&self, n: usize, start: u64, end: u64) -> Result<Version, Flaw> {
        let mut seen = self.versions[n];
        seen.first = seen.first.min(end);
        seen.last = seen.last.max(start);
        let others = self.versions.iter().enumerate().filter(|(m, v)| *m != n && v.counts());
        for (_, other) in others {
            if seen.is_before(other) && other.is_before(&seen) {
                return Err(Flaw::Replaced(other.write));
            }
        }
        Ok(seen)
    }

    fn show(&mut self, n: usize, seen: Version) {
        self.versions[n] = Version { shown: true, ..seen };
        if seen.survivor && !seen.shown {
            // It was this one that the power cut left, and none of the others.
            self.versions.retain(|v| v.write == seen.write || !v.survivor);
        }
    }

    /// The power goes at `at`: left is one version, which nothing durable must come after.
    pub fn power_cut(&mut self, flushed: u64, at: u64) {
        let durable: Vec<_> =
            self.versions.iter().filter(|v| v.counts() && v.is_durable(flushed)).copied().collect();
        let survives = |v: &Version| !durable.iter().any(|d| d.write != v.write && v.is_before(d));
        let (mut left, gone): (Vec<Version>, Vec<Version>) =
            self.versions.iter().copied().partition(survives);
        self.undone = gone.iter().map(|v| v.write).collect();
        self.zero_undone = gone.iter().any(|v| v.zero);
        // All zeros are alike.
        let zero = left.iter().rposition(|v| v.zero);
        let mut n = 0;
        left.retain(|v| {
            n += 1;
            !v.zero || Some(n - 1) == zero
        });
        let several = left.len() > 1;
        for version in &mut left {
            *version = Version {
                first: at,
                last: at,
                completed: at,
                optional: several,
                shown: false,
                failed: false,
                survivor: true,
                ..*version
            };
        }
        self.versions = left;
    }

    /// The process died, and at `at` all that it had in flight has landed or never will. Only what
    /// was answered has to be there, even if a read had shown the rest.
    pub fn restarted(&mut self, at: u64) {
        for version in self.versions.iter_mut().filter(|v| v.completed == NEVER) {
            version.first = at;
            version.shown = false;
            version.completed = if version.failed { NEVER } else { at };
            version.optional = true;
            version.fua = false;
        }
    }

    /// Forgets what nothing can show any more: no read that is open began before `oldest_read`.
    pub fn forget(&mut self, flushed: u64, oldest_read: u64) {
        const ENOUGH: usize = 8;
        if self.versions.len() <= ENOUGH {
            return;
        }
        let settled: Vec<_> = self
            .versions
            .iter()
            .filter(|v| v.counts() && v.is_durable(flushed) && v.first < oldest_read)
            .copied()
            .collect();
        self.versions.retain(|v| !settled.iter().any(|d| d.write != v.write && v.is_before(d)));
    }
}
