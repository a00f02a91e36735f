//! Making and opening a pool: the roots, the log, and its replay.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{
    ByteRange, Env, Error, ErrorKind, Lower, Mutex, Notify, Op, Result, TaskGroup, bail, error,
};
use meta::Uuid;
use meta::io::step;
use meta::ring::{Damage, Head, Log, MustKnow, Position, Recovered, RingDevice, Root as LogRoot};

use super::commit::{Commits, SUM_BYTES, checksums};
use super::copies::{has_copies, read_right};
use super::nodes::{Lookups, Nodes};
use super::pool::{ALLOCATOR, Inner, Numbers, Pool};
use super::room::Room;
use super::step::Step;
use super::tables::{PAGE_ROWS_MAX, Tables};
use super::vdisk::Vdisk;
use crate::geometry::{AREA_BYTES, Geometry};
use crate::log::{LogItem, log_items};
use crate::map::{self, Run, RunChange, RunKind, Sums, nodes_after};
use crate::root::{Header, RootStore, Superblock, SuperblockFlags, TABLES};
use crate::rows::{
    ExtentRow, FreeRow, Row as _, SnapshotFlags, SnapshotRow, SumKind, Table, VdiskRow, VdiskState,
};
use crate::space::Space;
use crate::{BLOCK_BYTES, DESCRIPTOR_BYTES};

/// How to open a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of memory that cache nodes.
    pub cache_bytes: u64,
    /// Whether nothing is written.
    pub read_only: bool,
    /// Whether to go on without a flushed record that is missing.
    pub accept_loss: bool,
    /// Whether blocks that become free are discarded on the device, if it can do so.
    pub discard: bool,
    /// Most leaves that the folds of one checkpoint write, 1 or more; [`FOLD_LEAVES`] by default. A longer fold goes on in
    /// the next checkpoints.
    pub fold_leaves: u64,
}

/// A flushed record of the log that is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Description of the damage. The record may concern any vdisk.
    pub why: String,
    /// Names of the vdisks that records behind the missing one have changed, if those are applied.
    pub behind: Vec<String>,
}

/// Bytes of the buffer pool that an open pool reserves, for its records and writes of nodes in flight.
pub const BUFFER_BYTES: usize = 4 << 20;

/// Extents of a slab in a new pool.
const SLAB_EXTENTS: u32 = 16;

impl Pool {
    /// Makes a pool on a device. Everything on it is lost.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn make(env: &Env, lower: &Lower, pool: Uuid, geometry: Geometry) -> Result<()> {
        let now = env.wall().as_secs();
        let log_bytes = geometry.log_bytes();
        let near = ByteRange::new(0, AREA_BYTES);
        let far = ByteRange::new(geometry.far, AREA_BYTES);
        let log = ByteRange::new(geometry.extent_start(0), log_bytes);
        for range in [near, far, log].into_iter().flatten() {
            let zero = Op::WriteZeroes { range, unmap: false, fua: false };
            lower.call(zero).await.result?;
        }
        lower.flush().await?;
        let tail = Position { offset: 0, number: 1, previous: 0, opening: 1 };
        let superblock = Superblock {
            allocator: ALLOCATOR,
            pool,
            sequence: 1,
            opening: 1,
            draw: env.random("pool openings"),
            checkpoint: 1,
            log: Uuid::draw(env),
            log_extent: 0,
            log_bytes,
            log_root: LogRoot { tail, flushed: 0 },
            numbers_end: 1,
            data_blocks: 0,
            node_blocks: 0,
            free_blocks: 0,
            written_unix_s: now,
            flags: SuperblockFlags::CLOSED,
            tables: [[0; DESCRIPTOR_BYTES]; TABLES],
            unknown_read_only: 0,
        };
        RootStore::new(env, lower, geometry, ALLOCATOR).write(&superblock).await?;
        let header = Header {
            pool,
            sequence: 1,
            geometry,
            slab_extents: SLAB_EXTENTS,
            allocators: 1,
            keeper: ALLOCATOR,
            epoch: 1,
            made_unix_s: now,
            unknown_read_only: 0,
        };
        RootStore::new(env, lower, geometry, 0).write(&header).await
    }

    /// Opens the pool `uuid`, which has the sizes and places `labels` by the labels. Replays the log, and writes a
    /// checkpoint. If the device has room for further extents, the pool grows, and [`Pool::bytes`] belongs into the labels.
    ///
    /// # Errors
    /// Those of docs/formats/pool.md, "Refused states", and those of the device.
    pub async fn open(
        env: &Env,
        lower: &Lower,
        uuid: Uuid,
        labels: Geometry,
        options: Options,
    ) -> Result<(Self, Option<Lost>)> {
        let (device_bytes, bytes) = (lower.info().size, labels.bytes);
        if device_bytes < bytes {
            return Err(error!(
                Corrupt,
                "the pool has {bytes} bytes, and its device has only {device_bytes}: it is truncated"
            )
            .next("bring back the device that the pool was on"));
        }
        if !options.read_only {
            lower.flush().await?;
        }
        let headers = RootStore::new(env, lower, labels, 0);
        let header = headers.read::<Header>(uuid).await?;
        let geometry = checked_geometry(&header.root, &labels, device_bytes)?;
        let roots = RootStore::new(env, lower, geometry, ALLOCATOR);
        let superblock = roots.read::<Superblock>(uuid).await?;
        if !options.read_only {
            headers.repair(&header).await?;
            roots.repair(&superblock).await?;
        }
        let superblock = superblock.root;
        let recovered = recover(env, lower, &geometry, &superblock, !options.read_only).await?;
        let mut lost = recovered.verdict.damage.as_ref().map(lost);
        let is_read_only = options.read_only || lost.is_some() && !options.accept_loss;
        let options = Options { read_only: is_read_only, ..options };
        let grown = geometry.grown(device_bytes).filter(|_| !is_read_only);
        let geometry = match grown {
            Some(grown) => {
                let sequence = header.root.sequence + 1;
                headers.write(&Header { geometry: grown, sequence, ..header.root }).await?;
                grown
            }
            None => geometry,
        };
        let near = ByteRange::new(0, BLOCK_BYTES.into()).expect("a block has bytes");
        let doubles = !has_copies(env, lower, near).await?;
        let inner = inner(env, lower, geometry, superblock, &recovered, doubles, options)?;
        let inner = Rc::new(inner);
        inner.load_space().await?;
        let behind = inner.replay(recovered, options.accept_loss).await?;
        if let Some(lost) = &mut lost {
            lost.behind = inner.names_of(behind).await?;
        }
        if !is_read_only {
            inner.checkpoint(SuperblockFlags(0)).await?;
            inner.continue_passes().await?;
            inner.begin_keeping();
        }
        Ok((Self(inner), lost))
    }
}

/// Returns the geometry in the header. If the pool has grown, the header may have more bytes than the labels.
fn checked_geometry(header: &Header, labels: &Geometry, device_bytes: u64) -> Result<Geometry> {
    let found = header.geometry;
    let is_later = labels.grown(found.bytes) == Some(found) && found.bytes <= device_bytes;
    if found != *labels && !is_later {
        return Err(error!(
            Corrupt,
            "the label and the header of the pool differ: {labels:?} and {found:?}"
        )
        .next("check that the devices below are of one time"));
    }
    if header.unknown_read_only != 0 {
        bail!(Unsupported, "the pool has features that this Cairn does not know");
    }
    Ok(found)
}

async fn recover(
    env: &Env,
    lower: &Lower,
    geometry: &Geometry,
    superblock: &Superblock,
    heals: bool,
) -> Result<Recovered> {
    let ring = superblock.ring().map_err(|why| error!(Corrupt, "the log of the pool: {why}"))?;
    let base = geometry.extent_start(superblock.log_extent);
    if base + superblock.log_bytes > geometry.far {
        bail!(Corrupt, "the log of the pool ends behind the pool");
    }
    let device = RingDevice { lower: lower.clone(), base, ring };
    device.recover(env, superblock.log_root, heals).await
}

fn lost(damage: &Damage) -> Lost {
    Lost {
        behind: Vec::new(),
        why: match damage {
            Damage::Missing { number, flushed } => format!(
                "record {number} of the log is missing, although all up to {flushed} were flushed"
            ),
            Damage::RootLost { root, stated } => format!(
                "the newest superblock is lost: the log begins at record {stated}, and the superblock \
                 names record {root}"
            ),
        },
    }
}

/// Creates the state of an opening. Its first record follows all that were found.
fn inner(
    env: &Env,
    lower: &Lower,
    geometry: Geometry,
    superblock: Superblock,
    recovered: &Recovered,
    doubles: bool,
    options: Options,
) -> Result<Inner> {
    let verdict = &recovered.verdict;
    let opening = superblock.opening + 1;
    let tail = Position {
        offset: verdict.end.offset,
        number: verdict.highest.max(verdict.end.number - 1) + 1,
        previous: 0,
        opening,
    };
    let root = LogRoot { tail, flushed: tail.number - 1 };
    let ring = superblock.ring().map_err(|why| error!(Corrupt, "the log of the pool: {why}"))?;
    let base = geometry.extent_start(superblock.log_extent);
    let first = superblock.log_extent;
    let extents = first..first + superblock.log_bytes.div_ceil(geometry.extent_bytes);
    let discards = options.discard && lower.info().discard;
    let room = Room::new(Space::new(geometry, ALLOCATOR, extents, discards));
    let cache_nodes = (options.cache_bytes / u64::from(BLOCK_BYTES)).max(1) as usize;
    let roots = RootStore::new(env, lower, geometry, ALLOCATOR);
    let patience = roots.patience();
    let (heals, waits) = (!options.read_only, patience.clone());
    let nodes = Nodes::new(env, lower, room.clone(), cache_nodes, heals, doubles, waits);
    let tables = Tables::new(Lookups(nodes.clone()), &superblock.tables)?;
    let numbers_end = superblock.numbers_end;
    Ok(Inner {
        env: env.clone(),
        lower: lower.clone(),
        room,
        nodes,
        tables,
        _buffers: env.pool().reserve_until_drop(BUFFER_BYTES)?,
        log: Log::new(env, lower, base, ring, root, patience.clone()),
        roots,
        counted: Cell::new(superblock.checkpoint),
        newest: RefCell::new(Superblock {
            opening,
            draw: env.random("pool openings"),
            ..superblock
        }),
        commits: Commits::default(),
        numbers: Numbers { next: Cell::new(numbers_end), end: Cell::new(numbers_end) },
        applied: Cell::new(tail),
        checkpointing: Mutex::new(),
        names: Mutex::new(),
        vdisks: RefCell::default(),
        touched: RefCell::default(),
        fresh_changes: Cell::new(0),
        taken_changes: Cell::new(0),
        unflushed_bytes: Cell::new(0),
        ended: RefCell::default(),
        damage: RefCell::default(),
        on_damage: OnceCell::new(),
        data_freed: Cell::new(0),
        nodes_freed: Cell::new(0),
        undiscarded: Cell::new(0),
        opened: RefCell::default(),
        epoch: Cell::new(0),
        is_replaying: Cell::new(true),
        failure: RefCell::default(),
        is_read_only: options.read_only,
        tasks: TaskGroup::new(env),
        changes: Notify::default(),
        wants_checkpoint: Cell::new(false),
        wants_proof: Cell::new(false),
        fold_leaves_max: options.fold_leaves,
        fold_leaves: Cell::new(0),
        has_folded: Cell::new(false),
        takes_with_flush: Cell::new(false),
    })
}

/// Returns the first block of an item with changes.
fn first_block(item: &LogItem<'_>) -> Option<u64> {
    let LogItem::Changes(changes) = item else { return None };
    changes.runs.first().map(|run| run.block)
}

fn damaged(why: String) -> Error {
    error!(Corrupt, "the tables of free space of the pool are damaged: {why}")
        .next("cairn check names all damage")
}

impl Inner {
    /// Reads the tables of extents and of free blocks.
    async fn load_space(&self) -> Result<()> {
        for row in self.tables.all_of::<ExtentRow>(&[]).await? {
            self.room.with(|space| space.load_extent(&row)).map_err(damaged)?;
        }
        let mut next = Some(vec![0; Table::Free.key_bytes()]);
        while let Some(from) = next {
            let (rows, rest) = self.tables.page::<FreeRow>(&[], &from, PAGE_ROWS_MAX).await?;
            for row in rows {
                let load =
                    |space: &mut Space| space.load_free(row.extent, row.part as u32, &row.bitmap);
                self.room.with(load).map_err(damaged)?;
            }
            next = rest;
        }
        for table in [Table::Extents, Table::Free] {
            let mut nodes = map::Found::default();
            let tree = self.tables.tree(table);
            nodes_after(&Lookups(self.nodes.clone()), &tree, 0, &mut nodes).await?;
            for node in nodes.nodes {
                let load = |space: &mut Space| space.load_space_node(node.address);
                self.room.with(load).map_err(damaged)?;
            }
        }
        self.room.with(Space::loaded);
        Ok(())
    }

    /// Applies the records that count: those that were flushed, and then those whose data verify. Returns the numbers of
    /// the vdisks with changes in records behind a missing one.
    async fn replay(
        self: &Rc<Self>,
        recovered: Recovered,
        accept_loss: bool,
    ) -> Result<BTreeSet<u64>> {
        let Recovered { verdict, items: found } = recovered;
        let (mut heads, mut behind) = (verdict.records, BTreeSet::new());
        let whole = heads.len();
        if accept_loss {
            heads.extend(verdict.behind_damage);
        }
        for (index, head) in heads.into_iter().enumerate() {
            let items = found.get(&head.at.offset).expect("a recovered record has its items");
            let mut items = log_items(items, head.items)
                .map_err(|why| error!(Corrupt, "record {} of the log: {why}", head.at.number))?;
            if seeded::on(Bug::ReplayByBlock) {
                items.sort_by_key(first_block);
            }
            if head.at.number > verdict.flushed && !self.verify_data(&items).await? {
                break;
            }
            for item in items {
                if let LogItem::Changes(changes) = &item
                    && index >= whole
                {
                    behind.insert(changes.vdisk);
                }
                let replayed = self.replay_item(&head, item).await;
                // The missing record may have made the vdisk, or freed the blocks.
                let is_of_missing = |error: &Error| {
                    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt)
                };
                match replayed {
                    Err(error) if index >= whole && is_of_missing(&error) => {}
                    replayed => replayed?,
                }
            }
        }
        self.numbers.next.set(self.numbers.end.get());
        self.is_replaying.set(false);
        for vdisk in self.vdisks.borrow().values() {
            vdisk.skip_numbers();
        }
        self.room.with(Space::replayed);
        Ok(behind)
    }

    /// Returns the names of vdisks. Removed ones have none.
    async fn names_of(&self, vdisks: BTreeSet<u64>) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for vdisk in vdisks {
            let row = self.tables.get::<VdiskRow>(&vdisk.to_be_bytes()).await?;
            names.extend(row.map(|row| row.name).filter(|name| !name.is_empty()));
        }
        Ok(names)
    }

    /// Whether the data of a record are there. It was never flushed, so they may be lost.
    async fn verify_data(&self, items: &[LogItem<'_>]) -> Result<bool> {
        for item in items {
            let LogItem::Changes(changes) = item else { continue };
            for run in changes.runs.iter().filter(|run| !run.sums.is_empty()) {
                let range = self.room.range(run.address, u64::from(run.blocks))?;
                let step =
                    step(&self.lower) as u64 / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
                let mut sums = run.sums;
                let mut at = range.start();
                while at < range.end() {
                    let len = (range.end() - at).min(step);
                    let part = ByteRange::new(at, len).expect("a part has bytes");
                    let width = usize::from(SUM_BYTES);
                    let (should, rest) = sums.split_at(len as usize / BLOCK_BYTES as usize * width);
                    let into = self.env.pool().wait_for(len as usize).await?;
                    let is_right =
                        |bytes: &[u8]| checksums(bytes).flatten().eq(should.iter().copied());
                    let heals = !self.is_read_only;
                    match read_right(&self.lower, part, into, heals, is_right).await {
                        Ok(Some(_)) => (sums, at) = (rest, at + len),
                        Ok(None) | Err(_) => return Ok(false),
                    }
                }
            }
        }
        Ok(true)
    }

    async fn replay_item(self: &Rc<Self>, head: &Head, item: LogItem<'_>) -> Result<()> {
        let record = head.at.number;
        let wrong = |why: String| {
            error!(Corrupt, "record {record} of the log names {why}, which is not free")
        };
        match item {
            LogItem::Changes(changes) => {
                if changes.sum_kind != SumKind::CRC32C || changes.sum_bytes != SUM_BYTES {
                    bail!(
                        Unsupported,
                        "record {record} has checksums that this Cairn does not know"
                    );
                }
                let vdisk = self.vdisk(changes.vdisk).await?;
                for run in changes.runs {
                    let blocks = u64::from(run.blocks);
                    let kind = RunKind::from_bits(run.kind);
                    if kind.has_blocks() {
                        let take = |space: &mut Space| space.replay_take(run.address, blocks);
                        self.room.with(take).map_err(wrong)?;
                    }
                    let birth = changes.birth;
                    vdisk.is_changed.set(true);
                    let (block, address) = (run.block, run.address);
                    let run_of_map = Run { block, blocks, kind, address, birth, first: birth };
                    let change = RunChange { run: run_of_map, sums: Sums::new(run.sums) };
                    self.apply(record, vec![Step::Changed(vdisk.clone(), change)]);
                }
            }
            LogItem::Snapshot(item) => {
                let vdisk = self.vdisk(item.vdisk).await?;
                vdisk.sealed.set(item.number + 1);
                vdisk.is_changed.set(false);
                self.apply(record, vec![Step::Snapshot(vdisk, item)]);
            }
            LogItem::PutRow(table, row) => self.replay_put(record, table, row).await?,
            LogItem::RemoveRow(key) => {
                self.apply(record, vec![Step::Remove(key.table, key.key.to_vec())]);
            }
            LogItem::Numbers { vdisk: 0, end } => self.numbers.end.set(end),
            LogItem::Numbers { vdisk, end } => {
                let vdisk = self.vdisk(vdisk).await?;
                self.apply(record, vec![Step::Numbers(vdisk, end)]);
            }
            LogItem::Mark { .. } => {}
            LogItem::ForeignFree(_) | LogItem::ForeignApplied(_) => {
                bail!(Unsupported, "record {record} is of a pool with several allocators");
            }
            LogItem::Unknown(_, MustKnow::No) => {}
            LogItem::Unknown(kind, _) => {
                return Err(error!(
                    Unsupported,
                    "record {record} has an item of type {kind}, which this Cairn does not know"
                )
                .next("open the pool with a later version of Cairn"));
            }
        }
        Ok(())
    }

    async fn replay_put(self: &Rc<Self>, record: u64, table: Table, row: &[u8]) -> Result<()> {
        let bad = |why: String| error!(Corrupt, "record {record} of the log: {why}");
        match table {
            Table::Extents => {
                let row = ExtentRow::decode(row).map_err(bad)?;
                let claim = |space: &mut Space| space.replay_claim(&row);
                return self.room.with(claim).map_err(bad);
            }
            Table::Vdisks => {
                let row = VdiskRow::decode(row).map_err(bad)?;
                let known = self.tables.get::<VdiskRow>(&row.vdisk.to_be_bytes()).await?;
                if known.is_some() {
                    // In memory, because the account in the record may be an older one.
                    let vdisk: Rc<Vdisk> = self.vdisk(row.vdisk).await?;
                    if row.state != VdiskState::LIVE {
                        self.plan_leaving(&vdisk).await?;
                    }
                }
            }
            Table::Snapshots => {
                let row = SnapshotRow::decode(row).map_err(bad)?;
                if row.flags.0 & SnapshotFlags::LEAVING.0 != 0 {
                    self.vdisk(row.vdisk).await?;
                }
            }
            _ => {}
        }
        self.apply(record, vec![Step::Put(table, row.to_vec())]);
        Ok(())
    }
}
