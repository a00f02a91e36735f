//! The model of one sector: the versions that its bytes may have, and the check which of them a read may return.
//!
//! A version is a write, with all reads that returned its bytes. `first` is the earliest end of any of these requests,
//! `last` the latest begin. Version A must come before version B if a request of A had ended before a request of B
//! began. A history is linearizable exactly if there are no two versions of which each must come before the other
//! (Gibbons and Korach, "Testing shared memories", for registers in which every write is unique).

/// The moment of the end of a request that was not answered yet.
const NEVER: u64 = u64::MAX;

/// Number of the write that stands for the content of a sector before its first write.
pub(super) const FIRST: u64 = 0;

/// A version of a sector: a write to the sector, with the reads that returned its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub write: u64,
    pub zero: bool,
    first: u64,
    last: u64,
    /// Moment at which the write was answered. A flush that is submitted later covers the write.
    completed: u64,
    fua: bool,
    /// Whether the write failed. No flush needs to cover a failed write.
    failed: bool,
    /// Whether the write may have left the sector unchanged.
    optional: bool,
    /// Whether a read has returned the bytes of the write, so that the write did change the sector.
    shown: bool,
    /// Whether the last power cut may have left this version as the content of the sector.
    survivor: bool,
}

/// How a write ended, for the model of a sector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    /// The write failed. It may change the sector, even later.
    Failed,
    /// The write failed on a mirror that lost a member before the write's end. Bytes of the write that a read has
    /// returned may be lost with this member.
    Revoked,
    /// The reply was lost with its connection. The write may have changed the sector, but only before any request that
    /// is submitted later.
    Lost,
}

/// The reason why a sector's bytes in the reply to a read are wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// The read returned an older version: the write with this number had replaced it before the read began.
    Replaced(u64),
    /// The read returned a version that the last power cut cannot have left, because a newer version was durable.
    Undone,
    /// The read returned bytes of a write that the sector never had, or that was replaced long ago.
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

/// All versions that a sector may have, with the moments that decide their order.
#[derive(Clone, Debug)]
pub(super) struct Register {
    versions: Vec<Version>,
    /// Numbers of the writes that cannot have survived the last power cut.
    undone: Vec<u64>,
    zero_undone: bool,
}

impl Register {
    /// Creates the model of a sector before its first write. `zero`: the sector reads as zeros.
    pub fn new(zero: bool) -> Self {
        let blank = Version {
            first: 0,
            completed: 0,
            survivor: true,
            ..Version::begun(FIRST, zero, false, false, 0)
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
            End::Revoked => {
                (version.optional, version.failed) = (true, true);
                (version.first, version.shown) = (NEVER, false);
            }
        }
    }

    /// Whether the write number `write` certainly changes the sector: it is no discard, and did not fail.
    pub fn is_certain(&self, write: u64) -> bool {
        self.versions.iter().any(|v| v.write == write && !v.optional)
    }

    /// Whether a power cut may undo a write to the sector, including writes in flight.
    pub fn has_unflushed(&self, flushed: u64) -> bool {
        self.versions.iter().any(|v| !v.is_durable(flushed))
    }

    /// Whether a write to the sector is in flight, or was when its process died.
    pub fn has_in_flight(&self) -> bool {
        self.versions.iter().any(|v| v.completed == NEVER)
    }

    /// Whether an answered write has certainly replaced the first content.
    pub fn is_rewritten(&self) -> bool {
        let mut writes = self.versions.iter().filter(|v| v.write != FIRST);
        writes.any(|v| v.completed != NEVER && !v.optional)
    }

    /// Whether a write since the last power cut is durable.
    pub fn has_durable_write(&self, flushed: u64) -> bool {
        let durable = |v: &Version| !v.survivor && v.counts() && v.is_durable(flushed);
        self.versions.iter().any(durable)
    }

    /// Checks a read that lasted from moment `start` to `end` and returned the bytes of the write number `write`.
    pub fn read(&mut self, write: u64, start: u64, end: u64) -> Result<(), Flaw> {
        let Some(n) = self.versions.iter().position(|v| v.write == write) else {
            return Err(if self.undone.contains(&write) { Flaw::Undone } else { Flaw::Unknown });
        };
        let seen = self.try_read(n, start, end)?;
        self.show(n, seen);
        Ok(())
    }

    /// Checks a read that lasted from moment `start` to `end` and returned zeros. If several versions are zeros, the
    /// read says nothing about their order.
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

    /// Returns version number `n` with a read from moment `start` to `end` added. Fails if no read could return the
    /// version in that time.
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
            // The power cut left this version, so the other candidates are gone.
            self.versions.retain(|v| v.write == seen.write || !v.survivor);
        }
    }

    /// Records a power cut at the moment `at`. The sector then has one of the versions that no durable version must
    /// follow.
    pub fn power_cut(&mut self, flushed: u64, at: u64) {
        let durable: Vec<_> =
            self.versions.iter().filter(|v| v.counts() && v.is_durable(flushed)).copied().collect();
        let survives = |v: &Version| !durable.iter().any(|d| d.write != v.write && v.is_before(d));
        let (mut left, gone): (Vec<Version>, Vec<Version>) =
            self.versions.iter().copied().partition(survives);
        self.undone = gone.iter().map(|v| v.write).collect();
        self.zero_undone = gone.iter().any(|v| v.zero);
        // Versions of zeros cannot be distinguished: one is enough.
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

    /// Records that the server process was killed. At the moment `at` each of its writes in flight has changed the
    /// sector, or never will, even if a read had returned its bytes.
    pub fn restarted(&mut self, at: u64) {
        for version in self.versions.iter_mut().filter(|v| v.completed == NEVER) {
            version.first = at;
            version.shown = false;
            version.completed = if version.failed { NEVER } else { at };
            version.optional = true;
            version.fua = false;
        }
    }

    /// Removes versions that no read can return any more, because all reads in flight began after the moment
    /// `oldest_read`.
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
