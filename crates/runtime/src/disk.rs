//! Operations on an open disk: their system calls, and the meaning of the kernel's results.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use block::env::{DiskIo, Open, Outcome, PathState, Storage, StorageFacts, StorageNow, Ticket};
use block::seeded::{self, Bug};
use block::{Buf, BufPool, ByteRange, Error, ErrorKind, Extent, Result, State, bail, error};
use rustix::fs::fstat;

use crate::opening::{self, Opened};
use crate::reactor::Reactor;
use crate::slab::{Held, Op, Slot};
use crate::sys;

pub(crate) const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_WRITE_BYTES: u64 = 1 << 20;

/// The state of an open disk, which the disk's operations share.
pub(crate) struct Disk {
    path: String,
    facts: StorageFacts,
    /// Present size of the disk in bytes. The disk may have grown since it was opened.
    size: Cell<u64>,
    /// Whether O_DIRECT is set now. The next field is the block size that it needs.
    direct: Cell<bool>,
    block_size: Cell<u32>,
    read_only: bool,
    inline: bool,
    /// Whether another process serves the disk's file system. A system call may then wait for that process.
    foreign: bool,
    punch: Cell<bool>,
    zero_range: Cell<bool>,
    /// Bytes that the last search for extents has found to be data, up to the end of the file or a hole. On tmpfs a
    /// search reads the state of each page up to the next hole, and a copy asks before each of its steps. A hole that
    /// another program makes in it is reported as data, which is permitted.
    data: Cell<Option<ByteRange>>,
    fault: RefCell<Option<Error>>,
}

/// The handle of an open disk that [`block::env::World::open`] returns.
pub(crate) struct OpenDisk {
    side: Rc<Reactor>,
    disk: Rc<Disk>,
    file: Rc<OwnedFd>,
    // A file description of its own, so that a search for extents moves no other file position.
    seeker: Option<OwnedFd>,
    /// Whether the disk is a regular file. Other programs can truncate a file, but not a block device.
    is_file: bool,
}

/// The next step of an operation on a disk, after a result of the kernel.
pub(crate) enum Step {
    Again,
    Done(Result<usize>),
}

/// Opens the disk that `open` describes, for the core of `side`.
pub(crate) fn open(side: Rc<Reactor>, open: &Open) -> Result<OpenDisk> {
    let Opened { file, seeker, facts, inline, foreign, punch, zero_range } = opening::open(open)?;
    let disk = Disk {
        path: open.path.display().to_string(),
        size: Cell::new(facts.size),
        direct: Cell::new(facts.direct),
        block_size: Cell::new(facts.block_size),
        facts,
        read_only: open.read_only,
        inline,
        foreign,
        punch: Cell::new(punch),
        zero_range: Cell::new(zero_range),
        data: Cell::new(None),
        fault: RefCell::new(None),
    };
    let is_file = !open.device;
    Ok(OpenDisk { side, disk: Rc::new(disk), file: Rc::new(file), seeker, is_file })
}

impl OpenDisk {
    /// Returns device and inode number of the file, if the opening has created it.
    pub(crate) fn created_file(&self) -> Option<(u64, u64)> {
        let stat = self.disk.facts.created.then(|| fstat(&self.file).ok()).flatten()?;
        Some((stat.st_dev, stat.st_ino))
    }

    fn held(&self, op: Op, buf: Option<Buf>) -> Held {
        Held { disk: Some(self.disk.clone()), buf, ..Held::new(op, self.file.clone(), None) }
    }
}

impl Storage for OpenDisk {
    fn facts(&self) -> &StorageFacts {
        &self.disk.facts
    }

    fn has_grown(&self, size: u64) {
        self.disk.size.set(size.max(self.disk.size.get()));
    }

    fn size_now(&self) -> u64 {
        let size = self.disk.size.get();
        if !self.is_file {
            return size;
        }
        fstat(&self.file).map_or(size, |now| now.st_size as u64)
    }

    fn look(&self) -> Result<StorageNow> {
        let (disk, fd) = (&self.disk, self.file.as_raw_fd());
        let now = fstat(&self.file).map_err(|error| {
            Error::os(error.raw_os_error(), format_args!("{}: reading the size (stat)", disk.path))
        })?;
        if !self.is_file {
            return Ok(StorageNow { size: disk.size.get(), place: PathState::There });
        }
        let is_there = std::fs::metadata(&disk.path)
            .is_ok_and(|there| there.dev() == now.st_dev && there.ino() == now.st_ino);
        let place = match now.st_nlink {
            0 => PathState::Deleted(format!("/proc/{}/fd/{fd}", std::process::id())),
            _ if is_there => PathState::There,
            _ => PathState::Elsewhere,
        };
        Ok(StorageNow { size: now.st_size as u64, place })
    }

    fn set_cache(&self, facts: &StorageFacts) -> Result<()> {
        let disk = &self.disk;
        if disk.direct.get() != facts.direct {
            // Set on this very file description: its lock stays, so that another
            // opener still waits for our last request.
            sys::set_flags(self.file.as_raw_fd(), libc::O_DIRECT, facts.direct)
                .map_err(|error| Error::io(&error, format_args!("{}: O_DIRECT", disk.path)))?;
        }
        disk.direct.set(facts.direct);
        disk.block_size.set(facts.block_size);
        Ok(())
    }

    fn start(&self, io: DiskIo) -> Ticket {
        let disk = &self.disk;
        let io = match io {
            DiskIo::Discard { range } => DiskIo::Discard { range: disk.inside(range) },
            DiskIo::Zero { range, unmap } => DiskIo::Zero { range: disk.inside(range), unmap },
            other => other,
        };
        if let DiskIo::Discard { range } | DiskIo::Zero { range, .. } = io {
            disk.is_no_longer_data(range);
        }
        let (op, buf) = match io {
            DiskIo::Read { offset, into } => (Op::Read { offset }, Some(into)),
            DiskIo::Write { offset, data, fua } => (Op::Write { offset, fua }, Some(data)),
            DiskIo::Flush => (Op::Flush, None),
            DiskIo::Discard { range } => (Op::Discard { range }, None),
            DiskIo::Zero { range, unmap } => match disk.zero_op(range, unmap) {
                Some(op) => (op, None),
                None => match zeros(&self.side.pool, range) {
                    Ok(buf) => (Op::ZeroWrite { range }, Some(buf)),
                    Err(error) => return Ticket::ready(Outcome::bare(Err(error))),
                },
            },
        };
        if let Err(error) = disk.admit(op, buf.as_ref()) {
            let buf = buf.filter(|_| !matches!(op, Op::ZeroWrite { .. }));
            return Ticket::ready(Outcome { result: Err(error), buf, parts: Vec::new() });
        }
        self.side.start(self.held(op, buf), Vec::new(), disk.inline)
    }

    fn extents(&self, range: ByteRange, max: usize) -> Result<Vec<Extent>> {
        let path = &self.disk.path;
        let Some(seeker) = &self.seeker else {
            bail!(
                Unsupported,
                "{path}: block status is not supported on a block device or a FUSE file system; \
                 treat all bytes as data"
            );
        };
        if range.end() > self.disk.end() {
            return Err(self.disk.outside("extents", range));
        }
        let inside = self.disk.inside(range);
        let found = self.disk.extents(seeker.as_raw_fd(), inside, max).map(|mut found| {
            let len: u64 = found.iter().map(|extent| extent.len).sum();
            if let Some(last) = found.last_mut().filter(|_| len == inside.len()) {
                // The other bytes of the last block are like the end of the file.
                last.len += range.len() - len;
            }
            found
        });
        found.map_err(|error| Error::io(&error, format_args!("{path}: extents of bytes {range}")))
    }
}

/// Returns a buffer of zeros for writes to `range`.
fn zeros(pool: &BufPool, range: ByteRange) -> Result<Buf> {
    let buf = pool.take(range.len().min(ZERO_WRITE_BYTES) as usize)?;
    buf.write().fill(0);
    Ok(buf)
}

impl Disk {
    fn extents(&self, fd: RawFd, range: ByteRange, max: usize) -> std::io::Result<Vec<Extent>> {
        let (mut at, end) = (range.start(), range.end());
        let mut found = Vec::new();
        while at < end && found.len() < max {
            let (state, to) =
                match self.data.get().filter(|data| data.start() <= at && at < data.end()) {
                    Some(data) => (State::Data, data.end()),
                    None => self.search(fd, at, end)?,
                };
            let to = to.min(end);
            found.push(Extent { len: to - at, state });
            at = to;
        }
        Ok(found)
    }

    /// Searches for the end of the hole or of the data at `at`, which may be behind `end`.
    fn search(&self, fd: RawFd, at: u64, end: u64) -> std::io::Result<(State, u64)> {
        let data = sys::seek(fd, at, libc::SEEK_DATA)?.unwrap_or(end);
        if data > at {
            return Ok((State::Hole, data));
        }
        let hole = sys::seek(fd, at, libc::SEEK_HOLE)?.unwrap_or(end);
        self.data.set(ByteRange::between(at, hole));
        // The file changed between the two calls: the remaining range is reported as data.
        Ok((State::Data, if hole > at { hole } else { end }))
    }

    /// Forgets that `range` holds data. Writes need no such step: they leave data where data were.
    fn is_no_longer_data(&self, range: ByteRange) {
        let known = self.data.get().filter(|data| !data.overlaps(range));
        self.data.set(known);
    }

    fn zero_op(&self, range: ByteRange, unmap: bool) -> Option<Op> {
        // Space that must stay allocated is never punched, whatever that costs.
        let mode = match (self.punch.get() && unmap, self.zero_range.get()) {
            (true, _) => PUNCH,
            (false, true) => ZERO_RANGE,
            (false, false) => return None,
        };
        Some(Op::Zero { range, unmap, mode })
    }

    /// Returns the end of the disk's last block. A file may end inside this block.
    fn end(&self) -> u64 {
        self.size.get().next_multiple_of(self.block_size.get().into())
    }

    /// Returns the bytes of `range` that the file has, if the range lies inside its blocks.
    fn inside(&self, range: ByteRange) -> ByteRange {
        let end = if range.end() == self.end() { self.size.get() } else { range.end() };
        ByteRange::between(range.start(), end).unwrap_or(range)
    }

    /// Returns the number of bytes that a transfer of `len` bytes at `offset` moves: fewer if the file ends inside its
    /// last block.
    pub(crate) fn moves(&self, offset: u64, len: u64) -> u64 {
        len.min(self.size.get().saturating_sub(offset))
    }

    fn outside(&self, what: &str, range: ByteRange) -> Error {
        error!(
            OutOfRange,
            "{}: {what} of {} bytes at {} ends past the disk's size of {} bytes",
            self.path,
            range.len(),
            range.start(),
            self.size.get()
        )
    }

    /// Whether the kernel may sleep when it accepts a system call on the disk's file.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Checks that the disk can carry out `op`.
    fn admit(&self, op: Op, buf: Option<&Buf>) -> Result<()> {
        let buf_range = |offset| {
            let len = buf.map_or(0, |buf| buf.len() as u64);
            ByteRange::new(offset, len).ok_or_else(|| {
                error!(
                    OutOfRange,
                    "{}: {} of {len} bytes at {offset}: the range is empty or ends past 2^64",
                    self.path,
                    op.name()
                )
            })
        };
        let range = match op {
            Op::Read { offset } | Op::Write { offset, .. } => Some(buf_range(offset)?),
            Op::Zero { range, .. } | Op::ZeroWrite { range } | Op::Discard { range } => Some(range),
            _ => None,
        };
        if self.read_only && !matches!(op, Op::Read { .. } | Op::Flush) {
            bail!(ReadOnly, "{}: {} of a disk that is open read-only", self.path, op.name());
        }
        if let Op::Flush = op
            && let Some(fault) = &*self.fault.borrow()
        {
            return Err(fault.clone());
        }
        let Some(range) = range else { return Ok(()) };
        if range.end() > self.end() {
            return Err(self.outside(op.name(), range));
        }
        // An operation without payload ends where the file ends, which may be inside a block.
        let has_payload = matches!(op, Op::Read { .. } | Op::Write { .. });
        let ends_with_file = !has_payload && range.end() == self.size.get();
        let block = self.block_size.get();
        let is_whole =
            range.is_aligned(block) || ends_with_file && range.start().is_multiple_of(block.into());
        if !is_whole {
            bail!(
                Invalid,
                "{}: {} of {} bytes at {}: both must be multiples of the block size {}",
                self.path,
                op.name(),
                range.len(),
                range.start(),
                self.block_size.get()
            );
        }
        Ok(())
    }

    /// Returns the next step of a disk operation, after the result `res` of its last system call.
    pub(crate) fn settle(&self, slot: &mut Slot, res: i32, pool: &BufPool) -> Step {
        let held = slot.held.as_mut().expect("an operation in flight is held");
        if res == -libc::EINTR || res == -libc::EAGAIN {
            return Step::Again;
        }
        let len = held.buf.as_ref().map_or(0, |buf| buf.len() as u64);
        match held.op {
            Op::Zero { range, unmap, mode } if res == -libc::EOPNOTSUPP => {
                if mode == PUNCH { &self.punch } else { &self.zero_range }.set(false);
                match self.zero_op(range, unmap) {
                    Some(op) => held.op = op,
                    None => match zeros(pool, range) {
                        Ok(buf) => {
                            held.op = Op::ZeroWrite { range };
                            held.buf = Some(buf);
                        }
                        Err(error) => return Step::Done(Err(error)),
                    },
                }
                return Step::Again;
            }
            op if res < 0 => return Step::Done(Err(self.failed(op, len, -res))),
            Op::Read { .. } | Op::Write { .. } | Op::ZeroWrite { .. } => {}
            op => return Step::Done(Ok(op.range().map_or(0, |range| range.len() as usize))),
        }
        slot.moved += res as u64;
        let len = held.op.range().map_or(len, ByteRange::len);
        let is_short_write = matches!(held.op, Op::Write { .. }) && res > 0;
        let moves = match held.op {
            Op::Read { offset } | Op::Write { offset, .. } => self.moves(offset, len),
            _ => len,
        };
        if let Op::Read { .. } = held.op
            && slot.moved == moves
            && moves < len
        {
            let buf = held.buf.as_ref().expect("a read in flight has a buffer");
            buf.slice(moves as usize..len as usize).write().fill(0);
        }
        if slot.moved == moves || seeded::on(Bug::ShortWrite) && is_short_write {
            if let Op::ZeroWrite { .. } = held.op {
                held.buf = None;
            }
            return Step::Done(Ok(len as usize));
        }
        if res > 0 {
            return Step::Again;
        }
        let words = match held.op {
            Op::Read { offset } => format!(
                "{}: read of {len} bytes at {offset} ends after {}: the disk is shorter than the \
                 {} bytes it had when it was opened",
                self.path,
                slot.moved,
                self.size.get()
            ),
            op => format!("{}: {} of {len} bytes: none was written", self.path, op.name()),
        };
        Step::Done(Err(Error::new(ErrorKind::Io, words)))
    }

    fn failed(&self, op: Op, len: u64, errno: i32) -> Error {
        let path = &self.path;
        let place = match op {
            Op::Read { offset } | Op::Write { offset, .. } => Some((len, offset)),
            _ => op.range().map(|range| (range.len(), range.start())),
        };
        let name = op.name();
        let error = match place {
            Some((len, at)) => {
                Error::os(errno, format_args!("{path}: {name} of {len} bytes at {at}"))
            }
            None => Error::os(errno, format_args!("{path}: {name}")),
        };
        // The kernel reports a lost write only once: a later flush would succeed.
        let lost = match op {
            Op::Flush => true,
            // A tmpfs writes nothing later: an error is reported at once, and no write is lost.
            Op::Write { fua: true, .. } => {
                !(self.direct.get() || self.inline) || error.kind() == ErrorKind::Io
            }
            _ => false,
        };
        if lost && self.fault.borrow().is_none() {
            *self.fault.borrow_mut() = Some(error!(
                Faulted,
                "{path}: an earlier flush failed ({error}), so unflushed writes may be lost; check \
                 the disk and open it again"
            ));
        }
        error
    }
}

impl Op {
    fn range(self) -> Option<ByteRange> {
        match self {
            Self::Zero { range, .. } | Self::ZeroWrite { range } | Self::Discard { range } => {
                Some(range)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use block::env::CacheMode;

    use super::*;
    use crate::{Config, Core, Engine};

    const SIZE: u64 = 4 << 20;

    fn with_disk(name: &str, test: impl AsyncFn(&Core, &OpenDisk)) {
        for (engine, folder) in [Engine::Ring, Engine::Threads]
            .into_iter()
            .flat_map(|engine| [(engine, "/dev/shm"), (engine, env!("CARGO_MANIFEST_DIR"))])
        {
            let path = format!("{folder}/cairn-{name}-{}", std::process::id());
            let core = Core::new(Config { engine, ..Config::default() }).unwrap();
            let (create, cache) = (Some(SIZE), CacheMode::Buffered);
            let how = Open {
                path: path.clone().into(),
                device: false,
                read_only: false,
                create,
                odd_size: false,
                cache,
            };
            let disk = open(core.side.clone(), &how).unwrap();
            std::fs::remove_file(path).unwrap();
            core.block_on(test(&core, &disk));
        }
    }

    #[test]
    fn disk_zero_writes_zeros_when_fallocate_is_unsupported() {
        with_disk("zeros", async |core, disk| {
            let env = core.env();
            let data = env.buf(SIZE as usize).unwrap();
            data.write().fill(9);
            disk.start(DiskIo::Write { offset: 0, data, fua: false }).await.result.unwrap();
            disk.disk.punch.set(false);
            disk.disk.zero_range.set(false);
            let range = ByteRange::new(512, (3 << 20) - 1024).unwrap();
            let zero = disk.start(DiskIo::Zero { range, unmap: true }).await;
            assert_eq!(zero.result.unwrap() as u64, range.len());
            assert!(zero.buf.is_none());
            let into = env.buf(SIZE as usize).unwrap();
            let read = disk.start(DiskIo::Read { offset: 0, into }).await.buf.unwrap();
            for (at, &byte) in read.read().iter().enumerate() {
                let zeroed = range.start() <= at as u64 && (at as u64) < range.end();
                assert_eq!(byte, if zeroed { 0 } else { 9 }, "byte {at}");
            }
        });
    }

    #[test]
    fn disk_zero_succeeds_when_file_system_refuses_fallocate() {
        with_disk("refused", async |_, disk| {
            let range = ByteRange::new(0, 4096).unwrap();
            for unmap in [true, false] {
                disk.disk.punch.set(true);
                disk.disk.zero_range.set(true);
                let ticket = disk.start(DiskIo::Zero { range, unmap });
                ticket.await.result.unwrap();
            }
            // A tmpfs can punch holes, but cannot zero a range.
            assert!(disk.disk.punch.get());
            assert_eq!(disk.disk.zero_range.get(), !disk.disk.inline);
        });
    }

    #[test]
    fn disk_fails_every_flush_after_failed_flush() {
        with_disk("flush", async |core, disk| {
            disk.start(DiskIo::Flush).await.result.unwrap();
            let first = disk.disk.failed(Op::Flush, 0, libc::EIO);
            assert_eq!(first.kind(), ErrorKind::Io);
            for _ in 0..2 {
                let error = disk.start(DiskIo::Flush).await.result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Faulted);
                assert!(error.to_string().contains("Input/output error"), "{error}");
            }
            let into = core.env().buf(512).unwrap();
            disk.start(DiskIo::Read { offset: 0, into }).await.result.unwrap();
        });
    }

    #[test]
    fn disk_completes_more_reads_than_queue_holds() {
        with_disk("many", async |core, disk| {
            let buf = core.env().buf(512).unwrap();
            // More than the 256 entries of the submission queue and the 4096 of the completion queue.
            let tickets: Vec<_> = (0..6000u64)
                .map(|at| disk.start(DiskIo::Read { offset: at * 512, into: buf.clone() }))
                .collect();
            for ticket in tickets {
                assert_eq!(ticket.await.result.unwrap(), 512);
            }
        });
    }
}
