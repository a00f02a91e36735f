//! Reads and updates the label of one disk.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use block::{ByteRange, Env, Error, ErrorKind, Lower, Mutex, Reservation, Result};

use crate::codec::{COPY_BYTES_MAX, Wrong};
use crate::inspect::{Inspection, inspect};
use crate::io::{all_of, step, write_all};
use crate::place::{self, AREA_BYTES, Area, DATA_START};
use crate::signature::ForeignContent;
use crate::{Label, data_bytes};

/// The content of the label areas of a disk.
#[derive(Debug)]
pub enum AreaContent {
    /// The newest label in the label areas, and the number of the copies that hold it.
    Label(Box<Label>, usize),
    /// A label that this version of Cairn cannot use, with the reason.
    Wrong(Wrong),
    /// The disk has no label, but this content; the disk may also be blank or too small for a label.
    Other(ForeignContent),
}

impl From<Inspection> for AreaContent {
    fn from(Inspection { label, other, .. }: Inspection) -> Self {
        match label {
            Ok(Some((label, number))) => Self::Label(Box::new(label), number),
            Ok(None) => Self::Other(other),
            Err(wrong) => Self::Wrong(wrong),
        }
    }
}

/// The label of an open disk, with a copy in memory. The store writes the label through its own requests to the raw
/// disk.
pub struct Store {
    env: Env,
    lower: Lower,
    on_disk: Rc<OnDisk>,
}

/// The state of one disk's label, shared by all [`Store`]s of that disk.
struct OnDisk {
    /// Lock that permits one update of the label at a time.
    turn: Mutex,
    label: RefCell<Label>,
    /// Number of the copies with the newest label; `None` before the first label is written.
    active: Cell<Option<usize>>,
    /// Highest sequence of an update that was started, whether or not it reached the disk.
    tried: Cell<u64>,
    /// Whether this process has flushed the disk, so that an earlier process's writes in the disk's cache are durable.
    settled: Cell<bool>,
    /// Whether this process has updated the label in both label areas.
    updated: Cell<bool>,
    /// For each copy number, the number of bytes up to the last nonzero byte on the disk; `None` before this process
    /// writes it.
    held: [Cell<Option<usize>>; 2],
    /// Reserved buffer bytes for one copy. Writes of clients may hold all other buffers while they wait for an update.
    _reserve: Reservation,
}

impl Store {
    /// Bytes of the buffer pool that an open label reserves, so that every update of the label finds a buffer.
    pub const STANDING_BYTES: usize = COPY_BYTES_MAX;

    /// Reads the label areas of the disk `lower`. Writes nothing.
    ///
    /// # Errors
    /// Errors of the disk.
    pub async fn look(env: &Env, lower: &Lower) -> Result<AreaContent> {
        Ok(inspect(env, lower).await?.into())
    }

    /// Returns the store for the label of the disk `lower`. `label` was read from the copies with the number `number`.
    /// `None` means that the disk has no label yet: then the first update writes it, with a new sequence.
    ///
    /// # Errors
    /// `Limit` if the pool has no room for a reserved copy.
    pub fn new(env: &Env, lower: &Lower, label: Label, number: Option<usize>) -> Result<Self> {
        let tried = number.map_or(0, |_| label.sequence);
        let on_disk = OnDisk {
            turn: Mutex::new(),
            label: RefCell::new(label),
            active: Cell::new(number),
            tried: Cell::new(tried),
            settled: Cell::new(false),
            updated: Cell::new(false),
            held: Default::default(),
            _reserve: env.pool().reserve_until_drop(Self::STANDING_BYTES)?,
        };
        Ok(Self { env: env.clone(), lower: lower.clone(), on_disk: Rc::new(on_disk) })
    }

    /// Returns a store for the same label through another lower, which shows more bytes of the same disk.
    #[must_use]
    pub fn through(&self, lower: &Lower) -> Self {
        Self { env: self.env.clone(), lower: lower.clone(), on_disk: self.on_disk.clone() }
    }

    /// Whether both stores are for the label of the same disk.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.on_disk, &other.on_disk)
    }

    /// Returns the label that this store has last written to the disk, or with which the store was made.
    pub fn label(&self) -> Ref<'_, Label> {
        self.on_disk.label.borrow()
    }

    /// Applies `change` to the label, and writes the label to the disk durably. Updates run one at a time. If the
    /// caller drops the future, the update still runs to its end, so that writes of the next update cannot overtake it.
    ///
    /// # Errors
    /// Errors of the disk: then the disk has either the old label or the new one. `Limit` if the changed label does not
    /// fit.
    pub async fn update(&self, change: impl FnOnce(&mut Label)) -> Result<()> {
        let alone = self.on_disk.turn.lock().await;
        let mut next = self.on_disk.label.borrow().clone();
        change(&mut next);
        next.sequence = self.on_disk.tried.get() + 1;
        next.written_unix_s = self.env.wall().as_secs();
        let copy = next.encode()?;
        self.on_disk.tried.set(next.sequence);
        let store = self.through(&self.lower);
        let put = async move {
            let written = store.put(next, &copy).await;
            drop(alone);
            written
        };
        self.env.run_to_end("a label", put).await
    }

    /// Writes `next`, encoded as `copy`, to the copies that do not hold the current label. The caller holds the lock.
    async fn put(&self, next: Label, copy: &[u8]) -> Result<()> {
        if !self.on_disk.settled.get() {
            self.lower.flush().await?;
            self.on_disk.settled.set(true);
        }
        self.end_is_there().await?;
        let number = self.on_disk.active.get().map_or(0, place::next_copy);
        let held = match self.on_disk.held[number].get() {
            Some(held) => held,
            None => self.held(number, next.data_bytes).await?,
        };
        self.on_disk.held[number].set(Some(held.max(copy.len())));
        if self.on_disk.active.get().is_none() {
            // A first label begins with a write of its magic number alone. If a power cut tears the write of the rest,
            // the magic shows that the damaged bytes are a label.
            let head = copy.len().min(self.lower.info().block_size as usize);
            self.write(&copy[..head], head, number, next.data_bytes).await?;
            self.lower.flush().await?;
        }
        self.write(copy, held, number, next.data_bytes).await?;
        self.lower.flush().await?;
        self.on_disk.held[number].set(Some(copy.len()));
        self.on_disk.active.set(Some(number));
        self.on_disk.updated.set(true);
        *self.on_disk.label.borrow_mut() = next;
        Ok(())
    }

    /// Returns an error if both copies of the label at the end of the disk are zeros. In that case a file was
    /// truncated, and the next update would extend the file again and hide that its data are lost.
    ///
    /// Before the first update of this process, [`Inspection::has_lost_its_end`] decides instead: a power cut may have
    /// torn an earlier update at the end of the disk.
    async fn end_is_there(&self) -> Result<()> {
        let active = self.on_disk.active.get().filter(|_| self.on_disk.updated.get());
        let Some(active) = active else { return Ok(()) };
        let back = Area::Back(self.on_disk.label.borrow().data_bytes);
        let block = u64::from(self.lower.info().block_size);
        for number in [active, 1 - active] {
            let into = self.env.pool().scratch(block as usize).await?;
            let first = ByteRange::new(back.copy(number), block).expect("a block has bytes");
            match self.lower.read(first, into).await {
                Ok(found) if block::is_zero(&found.read()) => {}
                // If the disk was truncated and not extended, the write of the update fails. Copies that cannot be read
                // are rewritten.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
        let words = "another program truncated the disk, or overwrote the label at its end";
        Err(Error::new(ErrorKind::Faulted, words))
    }

    /// Reads every copy of the label on the disk, while no update runs.
    ///
    /// # Errors
    /// Errors of the disk.
    pub async fn inspect(&self) -> Result<Inspection> {
        let _alone = self.on_disk.turn.lock().await;
        inspect(&self.env, &self.lower).await
    }

    /// Rewrites all copies of the label on the disk.
    ///
    /// # Errors
    /// As [`Store::update`].
    pub async fn renew(&self) -> Result<()> {
        // Each update writes one of the two copy numbers, in both label areas.
        self.update(|_| {}).await?;
        self.update(|_| {}).await
    }

    /// Returns the number of bytes up to the last nonzero byte of copy `number` in either label area; the maximum
    /// length of a copy if it cannot be read.
    async fn held(&self, number: usize, data_bytes: u64) -> Result<usize> {
        let step = step(&self.lower).min(COPY_BYTES_MAX);
        let mut held = 0;
        for area in [Area::Front, Area::Back(data_bytes)] {
            for from in (0..COPY_BYTES_MAX).step_by(step) {
                let len = step.min(COPY_BYTES_MAX - from);
                let into = self.env.pool().scratch(len).await?;
                let part = ByteRange::new(area.copy(number) + from as u64, len as u64);
                let Ok(found) = self.lower.read(part.expect("a part has bytes"), into).await else {
                    return Ok(COPY_BYTES_MAX);
                };
                let last = found.read().iter().rposition(|byte| *byte != 0);
                held = last.map_or(held, |last| held.max(from + last + 1));
            }
        }
        Ok(held)
    }

    /// Writes a copy of the label into both label areas, and zeros after the copy up to `held` bytes. So no bytes of a
    /// longer, older label remain, such as a removed key slot of an encrypted device.
    async fn write(&self, copy: &[u8], held: usize, number: usize, data_bytes: u64) -> Result<()> {
        let block = self.lower.info().block_size as usize;
        let len = copy.len().max(held).next_multiple_of(block);
        let data = self.env.pool().scratch(len).await?;
        {
            let mut bytes = data.write();
            bytes[..copy.len()].copy_from_slice(copy);
            bytes[copy.len()..].fill(0);
        }
        let mut begun = Vec::new();
        for area in [Area::Front, Area::Back(data_bytes)] {
            begun.extend(write_all(&self.lower, area.copy(number), &data));
        }
        all_of(begun).await
    }
}

/// Zeros the back label area at the former end of a disk that has been enlarged and had `data_bytes` bytes of data
/// before: the bytes of this area are data now.
///
/// # Errors
/// Errors of the disk.
pub async fn wipe_back(env: &Env, lower: &Lower, data_bytes: u64) -> Result<()> {
    let zeros = env.pool().wait_for(AREA_BYTES as usize).await?;
    zeros.write().fill(0);
    all_of(write_all(lower, Area::Back(data_bytes).range().start(), &zeros)).await?;
    lower.flush().await
}

/// Zeros both label areas of a disk, whatever they contain.
///
/// # Errors
/// Errors of the disk; `NoSpace` if the disk is too small for a label.
pub async fn wipe(env: &Env, lower: &Lower) -> Result<()> {
    let data = data_bytes(lower.info().size)?;
    let zeros = env.pool().wait_for(AREA_BYTES as usize).await?;
    zeros.write().fill(0);
    for area in [Area::Front, Area::Back(data)] {
        all_of(write_all(lower, area.range().start(), &zeros)).await?;
    }
    // After the end that labels assume, the disk may have a few blocks with metadata of another format.
    let rest = DATA_START + data + AREA_BYTES;
    if let Some(rest) = ByteRange::between(rest, lower.info().size) {
        let zeros = zeros.slice(0..rest.len() as usize);
        all_of(write_all(lower, rest.start(), &zeros)).await?;
    }
    lower.flush().await
}

/// Reads all bytes of a label area of a disk.
///
/// # Errors
/// Errors of the disk.
pub(crate) async fn read_area(env: &Env, lower: &Lower, area: Area) -> Result<Vec<u8>> {
    let range = area.range();
    let step = step(lower).min(AREA_BYTES as usize);
    let mut bytes = Vec::with_capacity(AREA_BYTES as usize);
    while bytes.len() < AREA_BYTES as usize {
        let len = step.min(AREA_BYTES as usize - bytes.len());
        let part = ByteRange::new(range.start() + bytes.len() as u64, len as u64);
        let into = env.pool().wait_for(len).await?;
        let read = lower.read(part.expect("a part has bytes"), into).await?;
        bytes.extend_from_slice(&read.read());
    }
    Ok(bytes)
}
