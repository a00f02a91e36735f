//! Formats a vault; and opens a vault, which includes the choice of the newest superblock and of the current copies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{
    ByteRange, Copies, Env, Error, ErrorKind, Lower, Mutex, Notify, Op, Result, bail, error,
};

use super::checkpoint::WINDOW;
use super::commit::Commits;
use super::data::DataLower;
use super::directory::{Directory, SLOTS_PER_PAGE};
use super::geometry::{
    Geometry, LOG_BYTES_MAX, LOG_BYTES_MIN, OBJECTS_MAX, SUPERBLOCKS, record_bytes_max,
};
use super::grow::growth;
use super::page::PAGE_BYTES;
use super::records::IN_FLIGHT_MAX;
use super::replay;
use super::replicas::{CopyOwner, CopyState, Durable, Replica, Replicas};
use super::superblock::{COPIES_MAX, Epoch, Position, Superblock, Wrong};
use super::tree::{READS_MAX, Tree};
use super::{Inner, Vault};
use crate::Uuid;
use crate::copies::Source;
use crate::io::{all_of, write_all};

/// Sizes for the format of a new vault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Size of the log in bytes; if `None`, a share of the smallest disk.
    pub log_bytes: Option<u64>,
    /// Maximum number of objects that the vault can have at one time.
    pub objects: u32,
    /// Number of bytes that a copy of the vault occupies on its disk, from byte 0 on; if `None`, the size of the
    /// smallest disk.
    pub bytes: Option<u64>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { log_bytes: None, objects: 256, bytes: None }
    }
}

/// Share of the log in a disk by default: one byte in this many.
const LOG_PART: u64 = 32;

/// Largest log in bytes that a new vault gets by default.
const LOG_BYTES_USUAL: u64 = 16 << 20;

/// Number of bytes that one request zeros when a vault is formatted: few enough that a disk which really writes the
/// zeros completes the request in time.
const ROOM_STEP: u64 = 64 << 20;

/// Options for opening a vault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Size of the page cache in bytes; at least [`super::CACHE_BYTES_MIN`].
    pub cache_bytes: usize,
    /// Whether to open the vault without any write to its disks. Its log is then replayed in memory only.
    pub read_only: bool,
    /// Whether to open the vault even if a current copy is missing.
    pub may_degrade: bool,
    /// UUID that the vault on the disks must have; `None` accepts any vault.
    pub vault: Option<Uuid>,
    /// Number of bytes that each copy of the vault may occupy on its disk, from byte 0 on. If the copies have fewer, and
    /// the vault is opened for writing, it grows before the opening returns. `None`, or no more bytes than the copies
    /// have: the vault keeps its size.
    pub bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 16 << 20,
            read_only: false,
            may_degrade: false,
            vault: None,
            bytes: None,
        }
    }
}

/// The newest superblock on one copy of a vault, and the index of the slot that holds the superblock.
struct AreaContent {
    superblock: Superblock,
    slot: usize,
    /// The copies of the disk, if it is redundant, that do not have this superblock.
    wrong: Copies,
}

/// Returns the newest superblock on the disk `lower`; `None` if both slots have no superblock. Reads each slot from all copies
/// of a redundant disk: the newest superblock may be damaged on one of them, or missing after an unclean stop.
async fn look(env: &Env, lower: &Lower) -> Result<Option<AreaContent>> {
    check_disk(lower)?;
    let mut best: Option<AreaContent> = None;
    let mut damage = None;
    for (slot, at) in SUPERBLOCKS.into_iter().enumerate() {
        let into = env.pool().wait_for(PAGE_BYTES).await?;
        let source = Source::new(lower, at, PAGE_BYTES);
        let (decoded, wrong) = source.newest(&into, Superblock::decode, Superblock::age).await?;
        match decoded {
            Ok(superblock) => {
                let newer = |best: &AreaContent| best.superblock.age() < superblock.age();
                if best.as_ref().is_none_or(newer) {
                    best = Some(AreaContent { superblock, slot, wrong });
                }
            }
            Err(Wrong::NoMagic) => {}
            Err(Wrong::Damaged(why)) => damage = Some(Wrong::Damaged(why)),
            Err(newer) => return Err(unfit(ErrorKind::Unsupported, lower, newer)),
        }
    }
    match (best, damage) {
        (None, Some(damage)) => Err(unfit(ErrorKind::Corrupt, lower, damage)),
        (best, _) => Ok(best),
    }
}

fn unfit(kind: ErrorKind, lower: &Lower, why: impl std::fmt::Display) -> Error {
    Error::new(kind, why.to_string()).at(lower.name())
}

fn check_disk(lower: &Lower) -> Result<()> {
    let info = lower.info();
    if info.block_size as usize > PAGE_BYTES {
        let words = format!(
            "the disk has blocks of {} bytes; a vault needs at most {PAGE_BYTES}",
            info.block_size
        );
        return Err(unfit(ErrorKind::Unsupported, lower, words));
    }
    if info.size < SUPERBLOCKS[1] + PAGE_BYTES as u64 {
        let words = format!("the disk has {} bytes, too few for a vault", info.size);
        return Err(unfit(ErrorKind::NoSpace, lower, words));
    }
    Ok(())
}

impl Vault {
    /// Formats the disks `lowers` as a new, empty vault with one copy on each disk. The former content of the disks is
    /// lost, so the caller must make sure that it is not needed.
    ///
    /// # Errors
    /// `NoSpace` if the smallest disk is too small, or if a disk cannot store as many bytes as it reports; `Invalid`
    /// for impossible sizes or a wrong number of disks; and errors of the disks, after which some of them may have the
    /// vault.
    pub async fn format(env: &Env, lowers: &[Lower], shape: Shape) -> Result<Uuid> {
        let lowers: Vec<_> = lowers.iter().cloned().map(Some).collect();
        Self::format_some(env, &lowers, shape).await
    }

    /// Formats a vault as [`Vault::format`] does, with a copy for each element of `lowers`. A copy without a disk is left
    /// behind: [`Vault::rejoin`] makes it current later.
    ///
    /// # Errors
    /// As [`Vault::format`].
    pub async fn format_some(env: &Env, lowers: &[Option<Lower>], shape: Shape) -> Result<Uuid> {
        let count = lowers.len();
        let here = lowers.iter().enumerate();
        let lowers: Vec<_> = here.filter_map(|(n, lower)| Some((n, lower.as_ref()?))).collect();
        if lowers.is_empty() || count > COPIES_MAX {
            let words = format!("{count} disks for a vault; it takes 1 to {COPIES_MAX}");
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        if shape.objects == 0 || shape.objects > OBJECTS_MAX {
            bail!(Invalid, "{} objects in a vault; 1 to {OBJECTS_MAX} are possible", shape.objects);
        }
        lowers.iter().try_for_each(|(_, lower)| check_disk(lower))?;
        let bytes = lowers.iter().map(|(_, lower)| lower.info().size).min().unwrap_or_default();
        let bytes = bytes.min(shape.bytes.unwrap_or(bytes));
        let bytes = bytes - bytes % PAGE_BYTES as u64;
        let usual = (bytes / LOG_PART).clamp(LOG_BYTES_MIN, LOG_BYTES_USUAL.min(LOG_BYTES_MAX));
        let log_bytes = shape.log_bytes.unwrap_or(usual - usual % PAGE_BYTES as u64);
        let directory_pages = shape.objects.div_ceil(SLOTS_PER_PAGE as u32);
        let geometry = Geometry::fit(bytes, log_bytes, directory_pages)?;
        let epoch = Epoch { number: 1, draw: env.random("vault epoch") };
        let current = lowers.iter().fold(0, |all, (copy, _)| all | 1 << copy);
        let sent = |copy| if current >> copy & 1 == 1 { epoch } else { Epoch::default() };
        let superblock = Superblock {
            vault: Uuid::draw(env),
            sequence: 1,
            epoch,
            copy: 0,
            copies: count as u32,
            current,
            geometry,
            checkpoint: 0,
            root: None,
            tail: Position { offset: 0, number: 1, previous: 0, epoch: 1 },
            flushed: 0,
            sent: std::array::from_fn(sent),
            unknown_read_only: 0,
        };
        for (_, lower) in &lowers {
            take_room(lower, 0, geometry.end()).await?;
        }
        for (copy, lower) in lowers {
            let superblock = Superblock { copy: copy as u32, ..superblock.clone() };
            write_first(env, lower, Some(&superblock)).await?;
        }
        Ok(superblock.vault)
    }

    /// Opens the vault whose copy `n` is on the disk `lowers[n]`; `None` stands for a missing copy.
    ///
    /// # Errors
    /// `NotFound` if no disk has a vault; `Unsupported` if the vault needs a newer version of Cairn; `Invalid` for a
    /// disk in the wrong position; `NoSpace` for a disk that is too small for [`Options::bytes`], or that cannot store as
    /// many bytes as it reports; `Degraded` if a current copy is missing or has no superblock, unless
    /// [`Options::may_degrade`]; `Corrupt` if copies were written independently of each other (split brain), or if a
    /// necessary part of the vault is damaged on all copies.
    pub async fn open(env: &Env, lowers: Vec<Option<Lower>>, options: &Options) -> Result<Self> {
        Self::open_with(env, lowers, None, None, options).await
    }

    /// Opens a vault as [`Vault::open`] does. Its `owner` records which copies count.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub async fn open_owned(
        env: &Env,
        lowers: Vec<Option<Lower>>,
        owner: Rc<dyn CopyOwner>,
        options: &Options,
    ) -> Result<Self> {
        Self::open_with(env, lowers, None, Some(owner), options).await
    }

    /// Opens a vault as [`Vault::open`] does. The records of its log name data outside of the vault, on the lower
    /// `data`.
    ///
    /// # Errors
    /// As [`Vault::open`], and errors of `data`.
    pub async fn open_with_data(
        env: &Env,
        lowers: Vec<Option<Lower>>,
        data: Lower,
        options: &Options,
    ) -> Result<Self> {
        let place = DataLower::new(data, &lowers);
        Self::open_with(env, lowers, Some(place), None, options).await
    }

    async fn open_with(
        env: &Env,
        lowers: Vec<Option<Lower>>,
        data: Option<DataLower>,
        owner: Option<Rc<dyn CopyOwner>>,
        options: &Options,
    ) -> Result<Self> {
        let replicas = gather(env, lowers, owner, options).await?;
        let grown = growth(&replicas, options)?;
        if !options.read_only {
            // Writes of an earlier process may still be in caches of the disks; this flush makes them durable.
            let beside = data.as_ref().and_then(DataLower::start_flush);
            replicas.flush().await;
            if let Some(flush) = beside {
                flush.await.result?;
            }
        }
        let reserved_bytes = reserve(env, &replicas.geometry())?;
        let Durable { root, tail, .. } = replicas.durable.get();
        let vault = Rc::new_cyclic(|me| Inner {
            me: me.clone(),
            env: env.clone(),
            read_only: options.read_only,
            tree: Tree::new(root, options.cache_bytes),
            directory: RefCell::new(Directory::new(&replicas.geometry())),
            commits: Commits::new(tail, env.now()),
            data,
            replicas,
            checkpointing: Mutex::new(),
            checkpoint_soon: Cell::new(false),
            progress: Notify::default(),
            failed: RefCell::default(),
            reserved_bytes,
        });
        vault.recover().await?;
        if let Some(grown) = grown {
            vault.grow(grown).await?;
        }
        Ok(Self(vault))
    }
}

/// Returns the number of the newest record on the copy of the vault `vault` on `lower` alone, whether or not the copy counts;
/// `None` if another vault or none is there. Writes nothing.
///
/// # Errors
/// Errors of the disk; `Corrupt` if the superblocks of the copy are damaged.
pub async fn newest_record(env: &Env, lower: &Lower, vault: Uuid) -> Result<Option<u64>> {
    let found = look(env, lower).await?.map(|found| found.superblock);
    let Some(superblock) = found.filter(|found| found.vault == vault) else { return Ok(None) };
    let copy = Replica::new(Some(lower.clone()), CopyState::Current, None, 0);
    let replicas = Replicas::new(env, &superblock, vec![copy], None);
    let (record, flushed) = records_of(&superblock);
    replicas.note_found(0, record, flushed);
    match replay::find(&replicas).await {
        // Other copies may have the records that this one lacks.
        Err(error) if error.kind() != ErrorKind::Corrupt => Err(error),
        _ => Ok(Some(replicas.newest_record(0))),
    }
}

impl Inner {
    async fn recover(&self) -> Result<()> {
        self.read_directory().await?;
        let mut found = replay::find(&self.replicas).await?;
        self.drop_unwritten(&mut found).await?;
        if !self.read_only || seeded::on(Bug::RestoredReadOnly) {
            replay::restore(&self.replicas, &found).await?;
        }
        self.replay(&found).await?;
        self.commits.continue_at(found.end);
        self.directory.borrow_mut().count_free()?;
        if self.read_only {
            return Ok(());
        }
        // From now on, only records of the new epoch count, and every current copy has the same ones. So no number of a
        // record that the replay has dropped is in use.
        self.replicas.raise_epoch();
        let epoch = self.replicas.epoch().number;
        self.commits.continue_at(Position { epoch, ..found.end });
        if seeded::on(Bug::OpenedBeforeCheckpoint) {
            return Ok(());
        }
        self.checkpoint(true).await
    }

    async fn read_directory(&self) -> Result<()> {
        for page in 0..u64::from(self.replicas.geometry().directory_pages) {
            self.tree.ensure(&self.replicas, page).await?;
            let first = page as usize * SLOTS_PER_PAGE;
            (first..first + SLOTS_PER_PAGE).try_for_each(|slot| self.note_slot(slot))?;
        }
        Ok(())
    }
}

/// Returns the bytes of the buffer pool that an open vault with a log of `log_bytes` bytes reserves.
pub fn standing_bytes(log_bytes: u64) -> usize {
    let record = (record_bytes_max(log_bytes) as usize).next_power_of_two();
    IN_FLIGHT_MAX * record + (WINDOW + 1 + READS_MAX + COPIES_MAX) * PAGE_BYTES
}

/// Reserves the buffers for the records in flight, and for the pages that are read and written at the same time. So a
/// commit never waits for buffers that are held by requests which wait for this commit.
fn reserve(env: &Env, geometry: &Geometry) -> Result<usize> {
    let bytes = standing_bytes(geometry.log_bytes);
    if env.pool().reserve(bytes) {
        return Ok(bytes);
    }
    Err(error!(Limit, "a vault needs {bytes} bytes of buffers, and the pool has too few free"))
}

/// Fills the bytes from `start` to `end` of a disk with allocated zeros. So the file system of a sparse file has room for all
/// that the vault will write, even if the file system becomes full later; changes that free space can then still be
/// committed.
pub(super) async fn take_room(lower: &Lower, start: u64, end: u64) -> Result<()> {
    let mut at = start;
    while let Some(range) = ByteRange::between(at, end.min(at + ROOM_STEP)) {
        at = range.end();
        let zeroed = lower.call(Op::WriteZeroes { range, unmap: false, fua: false }).await.result;
        let Err(error) = zeroed else { continue };
        if error.kind() != ErrorKind::NoSpace {
            return Err(error);
        }
        // The allocated space has no use any more. An error of this discard would matter less than the error below.
        let range = ByteRange::between(start, at).expect("zeroed ranges have bytes");
        let _ = lower.call(Op::Discard { range, fua: false }).await;
        let bytes = end - start;
        return Err(error!(NoSpace, "no room for the {bytes} new bytes of a vault: {error}")
            .next("free some space on the disk"));
    }
    Ok(())
}

/// Zeros the second superblock slot on a copy of a vault, and writes `superblock` (or zeros) to the first slot.
pub(super) async fn write_first(
    env: &Env,
    lower: &Lower,
    superblock: Option<&Superblock>,
) -> Result<()> {
    let buf = env.pool().wait_for(PAGE_BYTES).await?;
    buf.write().fill(0);
    all_of(write_all(lower, SUPERBLOCKS[1], &buf)).await?;
    let buf = env.pool().wait_for(PAGE_BYTES).await?;
    buf.write().copy_from_slice(&superblock.map_or([0; PAGE_BYTES], Superblock::encode));
    all_of(write_all(lower, SUPERBLOCKS[0], &buf)).await?;
    lower.flush().await
}

/// Reads the superblocks on all copies of a vault, chooses the newest, and returns the copies with their states.
async fn gather(
    env: &Env,
    lowers: Vec<Option<Lower>>,
    owner: Option<Rc<dyn CopyOwner>>,
    options: &Options,
) -> Result<Replicas> {
    let is_counted = |copy: usize| owner.as_ref().is_none_or(|owner| owner.counts(copy));
    let mut seen = Vec::new();
    let mut trouble = Vec::new();
    for (copy, lower) in lowers.iter().enumerate() {
        seen.push(match lower.as_ref().filter(|_| is_counted(copy)) {
            None => None,
            Some(lower) => match look(env, lower).await {
                Ok(seen) => seen,
                // A copy of a newer version of Cairn is an error; a damaged copy counts as missing.
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => {
                    trouble.push(format!("copy {copy}: {error}"));
                    None
                }
            },
        });
    }
    let newest = newest(&seen).ok_or_else(|| {
        let kind = if trouble.is_empty() { ErrorKind::NotFound } else { ErrorKind::Corrupt };
        let words = ["no disk has a vault".to_owned()];
        let words: Vec<_> = words.into_iter().chain(trouble.iter().cloned()).collect();
        Error::new(kind, words.join("; "))
    })?;
    check_newest(&newest, &lowers, options)?;
    for (copy, seen) in seen.iter().enumerate() {
        if let Some(seen) = seen {
            check_copy(&newest, copy, &seen.superblock)?;
        }
    }
    let current = |copy: usize| newest.current >> copy & 1 == 1;
    let missing: Vec<_> = (0..newest.copies as usize)
        .filter(|copy| current(*copy) && seen.get(*copy).is_none_or(Option::is_none))
        .collect();
    let nobody = (0..lowers.len()).all(|copy| !current(copy) || missing.contains(&copy));
    if nobody || (!missing.is_empty() && !options.may_degrade) {
        bail!(
            Degraded,
            "copies {missing:?} of the vault are current and missing: bring {}{}{}",
            if nobody { "one of these copies" } else { "these copies, or open the vault degraded" },
            if trouble.is_empty() { "" } else { "; " },
            trouble.join("; ")
        );
    }
    if !options.read_only || seeded::on(Bug::RestoredReadOnly) {
        for (lower, seen) in lowers.iter().zip(&seen) {
            if let (Some(lower), Some(seen)) = (lower, seen) {
                restore(env, lower, seen).await?;
            }
        }
    }
    let here = |(copy, (lower, seen)): (usize, (Option<Lower>, Option<AreaContent>))| {
        let counts = current(copy) && seen.is_some();
        let standing = if counts { CopyState::Current } else { CopyState::Behind };
        let room_end = seen.as_ref().map_or(0, |seen| seen.superblock.geometry.end());
        Replica::new(lower, standing, seen.map(|seen| seen.slot), room_end)
    };
    let records = seen.iter().map(|seen| seen.as_ref().map(|seen| &seen.superblock));
    let records: Vec<_> = records.map(|own| own.map_or((0, 0), records_of)).collect();
    let members = lowers.into_iter().zip(seen).enumerate().map(here).collect();
    let replicas = Replicas::new(env, &newest, members, owner);
    for (copy, (record, flushed)) in records.into_iter().enumerate() {
        replicas.note_found(copy, record, flushed);
    }
    Ok(replicas)
}

/// Returns the newest record that a copy with this superblock had, and the flushed number.
fn records_of(superblock: &Superblock) -> (u64, u64) {
    let before_tail = superblock.tail.number.saturating_sub(1);
    (before_tail.max(superblock.flushed), superblock.flushed)
}

/// Writes a superblock over the copies of its disk that do not have it.
async fn restore(env: &Env, lower: &Lower, seen: &AreaContent) -> Result<()> {
    let buf = env.pool().wait_for(PAGE_BYTES).await?;
    buf.write().copy_from_slice(&seen.superblock.encode());
    // A copy that cannot be written is asked again by the next opening.
    let _ = Source::new(lower, SUPERBLOCKS[seen.slot], PAGE_BYTES).restore(&buf, seen.wrong).await;
    Ok(())
}

fn newest(seen: &[Option<AreaContent>]) -> Option<Superblock> {
    let all = seen.iter().flatten().map(|seen| &seen.superblock);
    all.max_by_key(|superblock| superblock.age()).cloned()
}

fn check_newest(newest: &Superblock, lowers: &[Option<Lower>], options: &Options) -> Result<()> {
    let is = newest.vault;
    if let Some(should) = options.vault.filter(|should| *should != is) {
        bail!(Invalid, "the disks hold the vault {is}, not {should}");
    }
    if newest.copies as usize != lowers.len() {
        bail!(Invalid, "the vault has {} copies; {} disks are named", newest.copies, lowers.len());
    }
    if newest.unknown_read_only != 0 && !options.read_only {
        let bits = newest.unknown_read_only;
        bail!(
            Unsupported,
            "this Cairn can only read a vault with features {bits:#x}: open the vault read-only"
        );
    }
    for lower in lowers.iter().flatten() {
        if lower.info().size < newest.geometry.bytes {
            let (is, should) = (lower.info().size, newest.geometry.bytes);
            let words = format!(
                "the disk has {is} bytes; a copy of the vault has {should}: give it a larger disk"
            );
            return Err(unfit(ErrorKind::Corrupt, lower, words));
        }
    }
    Ok(())
}

/// Checks that the superblock `own` of a copy agrees with the newest superblock of the vault.
fn check_copy(newest: &Superblock, copy: usize, own: &Superblock) -> Result<()> {
    if own.vault != newest.vault || own.copies != newest.copies || own.copy as usize != copy {
        bail!(
            Invalid,
            "the disk for copy {copy} of vault {} holds copy {} of vault {}",
            newest.vault,
            own.copy,
            own.vault
        );
    }
    let sent = newest.sent[copy];
    let ahead = own.epoch.number > sent.number;
    if ahead || (own.epoch.number == sent.number && own.epoch.draw != sent.draw) {
        bail!(
            Corrupt,
            "split brain: copy {copy} of the vault was written without the other copies: it has \
             epoch {}, the others last sent epoch {}; open this copy alone, or format it",
            own.epoch.number,
            sent.number
        );
    }
    // A crash, or an absence of the copy, may have left it smaller.
    if !newest.geometry.extends(&own.geometry) {
        bail!(Corrupt, "copy {copy} of the vault differs in its sizes from the other copies");
    }
    Ok(())
}
