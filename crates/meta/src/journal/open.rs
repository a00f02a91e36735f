//! Making and opening of a journal, with the replay.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{Buf, ByteRange, Env, Error, Lower, Notify, Patience, Result, TaskGroup, bail, error};

use super::commit::Commits;
use super::part::Part;
use super::placer::Placer;
use super::record::{Record, Records, Stored, read_data};
use super::root::Root;
use super::slots::{RING_START, Slots, check_device};
use super::{
    InPlace, Inner, Journal, KEPT_BYTES_MAX, LOWERS_MAX, PLACE_BYTES_MAX, RECORDS_IN_FLIGHT_MAX,
};
use crate::Uuid;
use crate::ring::{
    Damage, Head, Log, MustKnow, Owner, Position, Recovered, Ring, RingDevice, Root as RingRoot,
};

/// Options for opening a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// UUID that the journal must have; `None` accepts any.
    pub uuid: Option<Uuid>,
    /// Length in bytes that the ring must have; `None` accepts any.
    pub ring_bytes: Option<u64>,
    /// Whether to open a damaged journal. Flushed changes are lost then.
    pub accept_loss: bool,
}

/// The result of an opening.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Number of records with parts that were written in place.
    pub records: u64,
    /// The loss that was accepted.
    pub loss: Option<Loss>,
}

/// The flushed changes that are lost with a damaged journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loss {
    /// Number of missing records. Their ranges are unknown: any byte may be older than the last flush.
    pub missing: u64,
    /// Ranges with damaged payload, with their lower. They may have any older content.
    pub ranges: Vec<(u16, ByteRange)>,
}

/// A replay of the records of a ring.
struct Replay<'r> {
    env: &'r Env,
    ring: &'r RingDevice,
    root: &'r Root,
    placer: &'r Rc<Placer>,
    accept_loss: bool,
    opened: Opened,
}

/// The payload of a record: the data of each part, if it has any.
type Payload = Vec<Option<Buf>>;

fn refused(why: std::fmt::Arguments<'_>, lower: &Lower) -> Error {
    let error = error!(Corrupt, "the journal is damaged: {why}").at(lower.name());
    error.next("restore the disk with the journal, or open with --accept-loss")
}

impl Replay<'_> {
    /// Writes the records in place, in their order. The first one above the flushed number that does not verify ends the
    /// log.
    async fn run(&mut self, recovered: &Recovered) -> Result<()> {
        let placed = self.place(recovered).await;
        // After an error, too, no write may be left that another opening could not see.
        let ended = self.placer.ended().await;
        placed.and(ended)?;
        self.placer.flush().await
    }

    async fn place(&mut self, recovered: &Recovered) -> Result<()> {
        let verdict = &recovered.verdict;
        if let Some(Damage::Missing { number, flushed }) = verdict.damage {
            self.note_missing(number, flushed, verdict.behind_damage.len() as u64)?;
        }
        for head in verdict.records.iter().chain(&verdict.behind_damage) {
            let items = recovered.items.get(&head.at.offset).map_or(&[][..], |items| items);
            let record = self.decode(head, items)?;
            let is_flushed = head.at.number <= verdict.flushed;
            let Some(payload) = self.load(&record, is_flushed).await? else { break };
            self.opened.records += u64::from(!record.parts.is_empty());
            for (Stored { part, .. }, data) in record.parts.into_iter().zip(payload) {
                let has_all = data.is_some() || part.payload_bytes() == 0;
                if has_all {
                    self.placer.room(part.payload_bytes()).await;
                    self.placer.place(part, data)?;
                }
            }
        }
        Ok(())
    }

    fn note_missing(&mut self, number: u64, flushed: u64, found: u64) -> Result<()> {
        if !self.accept_loss {
            let why = format_args!(
                "record {number} is missing, although all up to {flushed} were flushed"
            );
            return Err(refused(why, &self.ring.lower));
        }
        let missing = (flushed + 1).saturating_sub(number + found);
        self.loss().missing = missing;
        Ok(())
    }

    fn loss(&mut self) -> &mut Loss {
        self.opened.loss.get_or_insert_default()
    }

    fn decode(&self, head: &Head, items: &[u8]) -> Result<Record> {
        let number = head.at.number;
        let unknown = |why: String| {
            error!(Unsupported, "record {number} of the journal: {why}")
                .at(self.ring.lower.name())
                .next("open the device with the Cairn that wrote it last")
        };
        if head.unknown_flags() != MustKnow::No {
            return Err(unknown(format!("unknown flags {:#x}", head.flags)));
        }
        let parts = Part::decode_all(head, items, self.root.lowers).map_err(unknown)?;
        Ok(Record::new(head, parts, None))
    }

    /// Reads and verifies the payload of a record. Returns `None` if the log ends before it.
    async fn load(&mut self, record: &Record, is_flushed: bool) -> Result<Option<Payload>> {
        let mut payload = Vec::new();
        for stored in &record.parts {
            let read = read_data(self.env.pool(), self.ring, stored, true).await?;
            let (part, range) = (&stored.part, stored.part.range);
            let data = match read {
                Some(data) => data,
                None if !is_flushed && seeded::on(Bug::PayloadUnverified) => {
                    self.read_unverified(stored).await?
                }
                None if !is_flushed => return Ok(None),
                None if self.accept_loss => {
                    self.loss().ranges.push((part.lower, range));
                    None
                }
                None => {
                    let number = record.number;
                    let why = format_args!(
                        "the payload of record {number} for the range {range} is wrong, although the \
                         record was flushed"
                    );
                    return Err(refused(why, &self.ring.lower));
                }
            };
            payload.push(data);
        }
        Ok(Some(payload))
    }

    async fn read_unverified(&self, stored: &Stored) -> Result<Option<Buf>> {
        let into = self.env.buf(stored.part.payload_bytes() as usize)?;
        self.ring.read(stored.offset, &into, |_| true).await;
        Ok(Some(into.slice(0..stored.part.range.len() as usize)))
    }
}

impl Journal {
    /// Returns the bytes of a journal with a ring of `ring_bytes` bytes.
    pub fn bytes(ring_bytes: u64) -> u64 {
        RING_START + ring_bytes
    }

    /// Returns the bytes of the buffer pool that an open journal with a ring of `ring_bytes` bytes reserves: for its records
    /// in flight and in memory, and for its writes in place.
    pub fn standing_bytes(ring_bytes: u64) -> usize {
        let longest = (Ring::record_bytes_max_of(ring_bytes) as usize).next_power_of_two();
        let kept = KEPT_BYTES_MAX.min(2 * ring_bytes as usize);
        let placed = (2 * PLACE_BYTES_MAX).min(2 * ring_bytes) as usize;
        (RECORDS_IN_FLIGHT_MAX + 2) * longest + kept + placed
    }

    /// Makes a journal with a ring of `ring_bytes` bytes at byte `base` of a device, for changes of `lowers` devices.
    ///
    /// # Errors
    /// `Invalid` for an impossible length or number of lowers; `Unsupported` for a device with blocks above 4096
    /// bytes; `NoSpace` if the device is too small; errors of the device.
    pub async fn format(
        env: &Env,
        lower: &Lower,
        base: u64,
        uuid: Uuid,
        ring_bytes: u64,
        lowers: u32,
    ) -> Result<()> {
        let ring = Ring::new(uuid, ring_bytes, Owner::Journal);
        let ring = ring.map_err(|why| error!(Invalid, "{why}"))?;
        if !(1..=LOWERS_MAX).contains(&lowers) {
            bail!(Invalid, "a journal for {lowers} lowers; 1 to {LOWERS_MAX} are possible");
        }
        check_device(lower, base, ring_bytes)?;
        let slots = Slots::new(env, lower, base);
        slots.zero(ring_bytes).await?;
        let tail = Position { offset: 0, number: 1, previous: 0, opening: 1 };
        slots.write(&Root { ring, sequence: 1, tail, lowers, unknown_read_only: 0 }, 0).await
    }

    /// Opens the journal at byte `base` of a device: writes the changes in its ring in place, and begins a new opening.
    ///
    /// # Errors
    /// `NotFound` without a root; `InUse` for a journal with another uuid; `Invalid` for one with another length;
    /// `Unsupported` for one of a newer version; `Corrupt` for a damaged one, unless [`Options::accept_loss`]; `Limit` if
    /// the pool lacks buffers; errors of the device and of `target`.
    pub async fn open(
        env: &Env,
        lower: &Lower,
        base: u64,
        options: &Options,
        target: Rc<dyn InPlace>,
    ) -> Result<(Self, Opened)> {
        let slots = Slots::new(env, lower, base);
        let found = slots.read().await?;
        let (root, slot) = found.newest(lower.name())?;
        check_root(&root, options, lower)?;
        check_device(lower, base, root.ring.bytes())?;
        let buffers = env.pool().reserve_until_drop(Self::standing_bytes(root.ring.bytes()))?;
        slots.restore(&found, slot).await?;
        // Writes of an earlier process may still be in caches. A record that is found now must not vanish later.
        lower.flush().await?;
        let ring = RingDevice { lower: lower.clone(), base: base + RING_START, ring: root.ring };
        let placer = Placer::new(env, target);
        let recovered = ring.recover(env, ring_root(&root), true).await?;
        let mut replay = Replay {
            env,
            ring: &ring,
            root: &root,
            placer: &placer,
            accept_loss: options.accept_loss,
            opened: Opened::default(),
        };
        replay.run(&recovered).await?;
        let opened = replay.opened;
        let root = next_root(&root, &recovered);
        slots.write(&root, 1 - slot).await?;
        let patience = Patience::new(env, lower);
        patience.set(true);
        let log = Log::new(env, lower, ring.base, ring.ring, ring_root(&root), patience.clone());
        let inner = Rc::new(Inner {
            env: env.clone(),
            ring,
            log,
            lowers: root.lowers,
            patience,
            placer,
            records: RefCell::new(Records::default()),
            commits: Commits::default(),
            in_place: Cell::new(root.tail.number - 1),
            wanted: Cell::new(0),
            last_append: Cell::new(env.now()),
            is_closing: Cell::new(false),
            failure: RefCell::default(),
            changed: Notify::default(),
            _buffers: buffers,
        });
        let tasks = TaskGroup::new(env);
        tasks.spawn("the writer of a journal", inner.clone().lead());
        tasks.spawn("records of a journal", inner.clone().land());
        tasks.spawn("the pass of a journal", inner.clone().keep());
        Ok((Self { inner, tasks }, opened))
    }
}

/// Returns the state of the ring behind a root.
pub(super) fn ring_root(root: &Root) -> RingRoot {
    RingRoot { tail: root.tail, flushed: root.tail.number - 1 }
}

/// Returns the root of the opening that follows a recovery: behind everything that was found.
fn next_root(root: &Root, recovered: &Recovered) -> Root {
    let verdict = &recovered.verdict;
    let tail = Position {
        offset: verdict.end.offset,
        number: verdict.highest.max(verdict.end.number - 1) + 1,
        previous: 0,
        opening: root.tail.opening + 1,
    };
    Root { sequence: root.sequence + 1, tail, ..*root }
}

fn check_root(root: &Root, options: &Options, lower: &Lower) -> Result<()> {
    let (uuid, bytes) = (root.ring.uuid(), root.ring.bytes());
    if let Some(expected) = options.uuid.filter(|expected| *expected != uuid) {
        let error = error!(InUse, "the journal {uuid} belongs to another device, not {expected}");
        return Err(error.at(lower.name()).next("check that the disks are in their places"));
    }
    if let Some(expected) = options.ring_bytes.filter(|expected| *expected != bytes) {
        let error = error!(Invalid, "the ring has {bytes} bytes, and {expected} are expected");
        return Err(error.at(lower.name()).next("check that the disks are in their places"));
    }
    if root.unknown_read_only != 0 {
        let bits = root.unknown_read_only;
        let error = error!(Unsupported, "a journal with unknown features (bits {bits:#x})");
        return Err(error.at(lower.name()).next("open it with the Cairn that wrote it last"));
    }
    Ok(())
}
