//! Iterates over the entries of a trace.

use std::io::{ErrorKind as IoErrorKind, Read};

use block::{Error, Result, error};

use super::entry::{Entry, Header, SLOT_BYTES, Slot};

/// A reader of a trace file, up to its end or to the first slot that is no part of a trace.
pub struct Reader<R> {
    from: R,
    /// Number of the next slot of the trace file to read.
    next: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Returns a reader of the trace in `from`, after reading its header. `from` should be buffered, because it is read
    /// 64 bytes at a time.
    ///
    /// # Errors
    /// `Corrupt` if `from` holds no trace, or a trace of an unknown version; errors of reading.
    pub fn new(from: R) -> Result<Self> {
        let mut reader = Self { from, next: 0, ended: false };
        let slot = reader.slot()?;
        let header = Header::parse(&slot.unwrap_or([0; SLOT_BYTES]));
        header.map_err(|why| error!(Corrupt, "the file is not a trace: {why}"))?;
        Ok(reader)
    }

    /// Reads the next slot. Returns `None` at the end of the trace file; an incomplete slot counts as the end.
    fn slot(&mut self) -> Result<Option<Slot>> {
        let mut slot = [0; SLOT_BYTES];
        self.next += 1;
        match self.from.read_exact(&mut slot) {
            Ok(()) => Ok(Some(slot)),
            Err(error) if error.kind() == IoErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(Error::io(&error, "reading the trace")),
        }
    }

    fn entry(&mut self) -> Result<Option<Entry>> {
        let at = self.next;
        let Some(slot) = self.slot()? else { return Ok(None) };
        Entry::parse(&slot).map_err(|why| error!(Corrupt, "slot {at} of the trace: {why}"))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.ended {
            return None;
        }
        let entry = self.entry();
        self.ended = !matches!(entry, Ok(Some(_)));
        entry.transpose()
    }
}
