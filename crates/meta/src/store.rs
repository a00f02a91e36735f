//! One disk's label: reading it, and writing it one update at a time.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use block::{ByteRange, Env, Error, ErrorKind, Lower, Mutex, Reservation, Result};

use crate::codec::{COPY_BYTES_MAX, Wrong};
use crate::inspect::{Inspection, inspect};
use crate::io::{all_of, step, write_all};
use crate::place::{self, AREA_BYTES, Area, DATA_START};
use crate::signature::Sought;
use crate::{Label, data_bytes};

/// What was found where a label would be.
#[derive(Debug)]
pub enum Seen {
    /// A label that counts, and in which copies it is.
    Label(Box<Label>, usize),
    /// A label that cannot be used.
    Wrong(Wrong),
    /// Something else, or nothing.
    Other(Sought),
}

impl From<Inspection> for Seen {
    fn from(Inspection { label, other, .. }: Inspection) -> Self {
        match label {
            Ok(Some((label, number))) => Self::Label(Box::new(label), number),
            Ok(None) => Self::Other(other),
            Err(wrong) => Self::Wrong(wrong),
        }
    }
}

/// A disk's label, kept. It issues requests of its own to the raw disk.
pub struct Store {
    env: Env,
    lower: Lower,
    on_disk: Rc<OnDisk>,
}

/// What is known of the label, through whichever lower it is written.
struct OnDisk {
    /// One update after the other.
    turn: Mutex,
    label: RefCell<Label>,
    /// In which copies the label that counts is; `None` if it was never written.
    active: Cell<Option<usize>>,
    /// The highest sequence that was tried, whether or not it is on the disk.
    tried: Cell<u64>,
    /// Whether what a process before left in a cache is durable.
    settled: Cell<bool>,
    /// Whether this process has written both areas.
    updated: Cell<bool>,
    /// Bytes up to the last one that is not zero, of each copy by its number; `None` before this process wrote it.
    held: [Cell<Option<usize>>; 2],
    /// Of a copy: clients' writes may wait for an update with all other buffers in their hands.
    _reserve: Reservation,
}

impl Store {
    /// Looks at a disk, changing nothing.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn look(env: &Env, lower: &Lower) -> Result<Seen> {
        Ok(inspect(env, lower).await?.into())
    }

    /// The store of a disk whose label was found in the copies `number`, or that has none yet: then the
    /// first update writes it, and its sequence does not count.
    ///
    /// # Errors
    /// `Limit` if the pool has no room for a copy that others leave alone.
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
            _reserve: env.pool().standing(COPY_BYTES_MAX)?,
        };
        Ok(Self { env: env.clone(), lower: lower.clone(), on_disk: Rc::new(on_disk) })
    }

    /// The same label of the same disk, through another lower: one that shows more of it.
    #[must_use]
    pub fn through(&self, lower: &Lower) -> Self {
        Self { env: self.env.clone(), lower: lower.clone(), on_disk: self.on_disk.clone() }
    }

    /// Whether both keep one label.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.on_disk, &other.on_disk)
    }

    /// What the label says, as it was last written.
    pub fn label(&self) -> Ref<'_, Label> {
        self.on_disk.label.borrow()
    }

    /// Changes the label, durably. Updates take turns. Who waits for one may be gone before its end: the writes of the
    /// next one must not overtake its own.
    ///
    /// # Errors
    /// What the disk says; then the label on it is either of the two. `Limit` if it does not fit.
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

    /// Writes the next generation. The caller has the turn.
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
            // What is left of a first label has its magic, whatever else: it is not taken for bytes of others.
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

    /// Fails if the copies at the end of the disk are gone. A file that was cut short would be made long again by the
    /// next update, and nothing would tell of the bytes that are lost.
    ///
    /// Before the first update of a process [`Inspection::has_lost_its_end`] decides: a power cut may have kept the
    /// copies at the end from being written.
    async fn end_is_there(&self) -> Result<()> {
        let active = self.on_disk.active.get().filter(|_| self.on_disk.updated.get());
        let Some(active) = active else { return Ok(()) };
        let back = Area::Back(self.on_disk.label.borrow().data_bytes);
        let block = u64::from(self.lower.info().block_size);
        for number in [active, 1 - active] {
            let into = self.env.pool().scratch(block as usize).await?;
            let first = ByteRange::new(back.copy(number), block).expect("a block has bytes");
            match self.lower.read(first, into).await {
                Ok(found) if found.read().iter().all(|byte| *byte == 0) => {}
                // A disk that was found to be cut short refuses the update itself; what cannot be read is written anew.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
        let words = "the end of the disk was cut off, or written over, by another program";
        Err(Error::new(ErrorKind::Faulted, words))
    }

    /// Looks at every copy, between two updates.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn inspect(&self) -> Result<Inspection> {
        let _alone = self.on_disk.turn.lock().await;
        inspect(&self.env, &self.lower).await
    }

    /// Writes all copies anew.
    ///
    /// # Errors
    /// As [`Store::update`].
    pub async fn renew(&self) -> Result<()> {
        // Each update writes one of the two numbers, in both areas.
        self.update(|_| {}).await?;
        self.update(|_| {}).await
    }

    /// Bytes of a copy up to the last one that is not zero, in either area. All of it if it cannot be read.
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

    /// Writes a copy into both areas, and zeros behind it up to `held`: of a label that was longer nothing stays, such as
    /// a key slot that was removed.
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

/// Makes zeros of what was the back area when the disk had `data_bytes` of data: since it has grown, that is data.
///
/// # Errors
/// What the disk says.
pub async fn wipe_back(env: &Env, lower: &Lower, data_bytes: u64) -> Result<()> {
    let zeros = env.pool().wait_for(AREA_BYTES as usize).await?;
    zeros.write().fill(0);
    all_of(write_all(lower, Area::Back(data_bytes).range().start(), &zeros)).await?;
    lower.flush().await
}

/// Makes both areas of a disk zeros: labels, and whatever else began or ended it.
///
/// # Errors
/// What the disk says; `NoSpace` if it is too small for a label.
pub async fn wipe(env: &Env, lower: &Lower) -> Result<()> {
    let data = data_bytes(lower.info().size)?;
    let zeros = env.pool().wait_for(AREA_BYTES as usize).await?;
    zeros.write().fill(0);
    for area in [Area::Front, Area::Back(data)] {
        all_of(write_all(lower, area.range().start(), &zeros)).await?;
    }
    // Beyond the end, as labels count it, there may be the last blocks of something else.
    let rest = DATA_START + data + AREA_BYTES;
    if let Some(rest) = ByteRange::between(rest, lower.info().size) {
        let zeros = zeros.slice(0..rest.len() as usize);
        all_of(write_all(lower, rest.start(), &zeros)).await?;
    }
    lower.flush().await
}

/// The bytes of an area.
///
/// # Errors
/// What the disk says.
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
