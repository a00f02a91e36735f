//! A model of two allocators in one pool, with the records and rows of the format: they claim slabs, move vdisks between each
//! other, free blocks in each other's extents, die, and go on when the catalogue is lost.
//!
//! A log is a list of encoded records. A power cut keeps all that are flushed and a prefix of the others; the death of one
//! allocator keeps all. Messages are delayed, repeated and lost.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pool::Address;
use pool::extent::{Content, ExtentHeader};
use pool::log::{Changes, ForeignFree, LogItem, RowKey, Run, log_items};
use pool::rows::{
    ExtentRow, ExtentState, PeerRow, PlaceKind, Row, SlabRow, SumKind, Table, VdiskRow,
};
use sim::draw::Stream;

use crate::samples;

/// Blocks of an extent; the first one has the header.
const EXTENT_BLOCKS: u32 = 6;
const SLAB_EXTENTS: u64 = 2;
const SLABS: u64 = 12;
const VDISKS: u64 = 5;
const BLOCKS: u64 = 6;
const ALLOCATORS: [u32; 2] = [1, 2];

/// Rules that an allocator may break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// It applies a foreign free again that comes again.
    AppliesTwice,
    /// It sends a foreign free before the record is proven.
    SendsEarly,
    /// It uses an extent without a look whether another allocator keeps the catalogue now.
    TrustsOldClaim,
    /// It gives a vdisk away before its changes are flushed.
    GivesUnflushed,
    /// It counts a vdisk that it has given away.
    IgnoresEpoch,
}

#[derive(Clone, Default)]
struct Log {
    records: Vec<Vec<u8>>,
    counts: Vec<u32>,
    flushed: usize,
}

/// All that is durable, or may be after a power cut.
#[derive(Clone, Default)]
struct Disk {
    logs: BTreeMap<u32, Log>,
    extents: BTreeMap<u64, Vec<u8>>,
    /// Allocator that keeps the catalogue, and its epoch, as the header of the pool has them.
    keeper: u32,
    epoch: u64,
}

impl Disk {
    fn header(&self, extent: u64) -> Option<ExtentHeader> {
        let block = self.extents.get(&extent)?;
        Some(ExtentHeader::decode(block, samples::POOL, extent).unwrap())
    }
}

/// A vdisk as its owner has it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Vdisk {
    epoch: u64,
    map: BTreeMap<u64, Address>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Free(u32, ForeignFree),
    /// Allocator `.0` has applied those of `.1` up to `.2`.
    Confirm(u32, u32, u64),
}

/// An allocator that runs: all of it comes from its log.
#[derive(Default)]
struct Allocator {
    number: u32,
    extents: BTreeMap<u64, ExtentRow>,
    used: BTreeSet<Address>,
    vdisks: BTreeMap<u64, Vdisk>,
    peers: BTreeMap<u32, PeerRow>,
    /// Foreign frees that are not confirmed, with their records.
    outgoing: BTreeMap<u64, (ForeignFree, usize)>,
    /// Freed blocks with the records that freed them: not used again before these are flushed.
    waiting: BTreeMap<Address, usize>,
    /// Number of its records up to the one with the newest foreign free that it has applied.
    applied_by: usize,
    /// Extents of claimed slabs that are not in use, with the epoch of the claim. Not in the log.
    spare: Vec<(u64, u64)>,
    /// The extent with a written header that is not in use yet, and the epoch of its claim.
    opening: Option<(u64, u64)>,
    /// The claimed slabs, if it keeps the catalogue.
    catalogue: Option<BTreeMap<u64, SlabRow>>,
}

fn address(extent: u64, offset: u32) -> Address {
    Address::new(extent, offset).unwrap()
}

fn row_bytes(row: &impl Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    row.encode(&mut bytes);
    bytes
}

fn vdisk_bytes(vdisk: u64, owner: u32, epoch: u64) -> Vec<u8> {
    row_bytes(&VdiskRow { vdisk, owner, epoch, ..samples::vdisk_row() })
}

fn changes(vdisk: u64, map: &[(u64, Address)]) -> LogItem<'static> {
    let run = |(block, address): &(u64, Address)| Run {
        block: *block,
        kind: 0,
        address: *address,
        blocks: 1,
        origin: 0,
        stored: 0,
        sums: &[0; 4],
    };
    let runs = map.iter().map(run).collect();
    LogItem::Changes(Changes { vdisk, birth: 1, sum_kind: SumKind::CRC32C, sum_bytes: 4, runs })
}

impl Allocator {
    fn recover(number: u32, disk: &Disk) -> Self {
        let mut it = Self { number, ..Self::default() };
        if let Some(log) = disk.logs.get(&number) {
            for (n, (record, count)) in log.records.iter().zip(&log.counts).enumerate() {
                it.apply(record, *count, n + 1);
            }
            it.waiting.clear();
        }
        let catalogue = it.catalogue.take().unwrap_or_default();
        it.catalogue = (disk.keeper == number).then_some(catalogue);
        // Its slabs are those of its extents.
        let own: BTreeSet<u64> = it.extents.keys().map(|extent| extent / SLAB_EXTENTS).collect();
        for extent in own.iter().flat_map(|slab| slab * SLAB_EXTENTS..(slab + 1) * SLAB_EXTENTS) {
            if !it.extents.contains_key(&extent) {
                let of_slab =
                    |(other, _): &(&u64, _)| **other / SLAB_EXTENTS == extent / SLAB_EXTENTS;
                let (first, _) = it.extents.iter().find(of_slab).unwrap();
                it.spare.push((extent, disk.header(*first).unwrap().epoch));
            }
        }
        it
    }

    /// Writes a record. It takes effect at once; it is durable after a flush.
    fn log(&mut self, disk: &mut Disk, items: &[LogItem<'_>]) {
        let mut record = Vec::new();
        items.iter().for_each(|item| item.encode(&mut record));
        let log = disk.logs.entry(self.number).or_default();
        log.records.push(record.clone());
        log.counts.push(items.len() as u32);
        self.apply(&record, items.len() as u32, disk.logs[&self.number].records.len());
    }

    fn apply(&mut self, record: &[u8], count: u32, n: usize) {
        for item in log_items(record, count).unwrap() {
            match item {
                LogItem::PutRow(Table::Extents, row) => {
                    let row = ExtentRow::decode(row).unwrap();
                    self.extents.insert(row.extent, row);
                }
                LogItem::PutRow(Table::Vdisks, row) => {
                    let row = VdiskRow::decode(row).unwrap();
                    assert_eq!(row.owner, self.number);
                    self.vdisks.entry(row.vdisk).or_default().epoch = row.epoch;
                }
                LogItem::RemoveRow(RowKey { table: Table::Vdisks, key }) => {
                    let vdisk = u64::from_be_bytes(key.try_into().unwrap());
                    self.vdisks.remove(&vdisk);
                }
                LogItem::PutRow(Table::Peers, row) => {
                    let row = PeerRow::decode(row).unwrap();
                    self.outgoing.retain(|number, _| *number > row.confirmed);
                    self.peers.insert(row.peer as u32, row);
                }
                LogItem::PutRow(Table::Slabs, row) => {
                    let row = SlabRow::decode(row).unwrap();
                    self.catalogue.get_or_insert_default().insert(row.slab, row);
                }
                LogItem::Changes(changes) => self.apply_changes(&changes, n),
                LogItem::ForeignFree(free) => {
                    self.peer(free.peer).sent = free.number;
                    self.outgoing.insert(free.number, (free, n));
                }
                LogItem::ForeignApplied(free) => {
                    self.peer(free.peer).applied = free.number;
                    self.applied_by = n;
                    self.free(free.address, n);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn apply_changes(&mut self, changes: &Changes<'_>, n: usize) {
        for run in &changes.runs {
            let vdisk = self.vdisks.get_mut(&changes.vdisk).expect("the row comes first");
            let before = vdisk.map.insert(run.block, run.address);
            if self.extents.contains_key(&run.address.extent()) {
                self.waiting.remove(&run.address);
                self.used.insert(run.address);
            }
            if let Some(before) =
                before.filter(|before| self.extents.contains_key(&before.extent()))
            {
                self.free(before, n);
            }
        }
    }

    fn free(&mut self, address: Address, n: usize) {
        assert!(self.used.remove(&address), "{address:?} is freed twice");
        self.waiting.insert(address, n);
    }

    fn peer(&mut self, peer: u32) -> &mut PeerRow {
        let row = PeerRow { peer: peer.into(), sent: 0, confirmed: 0, applied: 0 };
        self.peers.entry(peer).or_insert(row)
    }

    /// Returns a block for data.
    fn take(&mut self, flushed: usize) -> Option<Address> {
        self.waiting.retain(|_, record| *record > flushed);
        let all = self
            .extents
            .keys()
            .flat_map(|extent| (1..EXTENT_BLOCKS).map(|offset| address(*extent, offset)));
        let is_free = |it: &Address| !self.used.contains(it) && !self.waiting.contains_key(it);
        all.into_iter().find(is_free)
    }
}

/// The pool, its allocators, and the messages on their way.
struct Pool {
    disk: Disk,
    live: BTreeMap<u32, Allocator>,
    messages: Vec<Message>,
    /// A vdisk that moves, with its old and its new owner: the new owner has not flushed its row.
    moving: Option<(u64, u32, u32)>,
    draw: Rc<Stream>,
    fault: Fault,
}

impl Pool {
    fn new(seed: u64, fault: Fault) -> Self {
        let disk = Disk { keeper: 1, epoch: 1, ..Disk::default() };
        let live = ALLOCATORS.map(|number| (number, Allocator::recover(number, &disk)));
        let draw = Rc::new(Stream::new(seed, "allocators", 0));
        let mut pool =
            Self { disk, live: live.into(), messages: Vec::new(), moving: None, draw, fault };
        for vdisk in 1..=VDISKS {
            let owner = ALLOCATORS[vdisk as usize % 2];
            pool.log(owner, &[LogItem::PutRow(Table::Vdisks, &vdisk_bytes(vdisk, owner, 1))]);
        }
        for number in ALLOCATORS {
            pool.flush(number);
        }
        pool
    }

    fn it(&mut self, number: u32) -> &mut Allocator {
        self.live.get_mut(&number).unwrap()
    }

    fn log(&mut self, number: u32, items: &[LogItem<'_>]) {
        let Self { disk, live, .. } = self;
        live.get_mut(&number).unwrap().log(disk, items);
    }

    fn flush(&mut self, number: u32) {
        let log = self.disk.logs.get_mut(&number).unwrap();
        log.flushed = log.records.len();
        if let Some((_, _, to)) = self.moving
            && to == number
        {
            self.finish_move();
        }
    }

    fn flushed(&self, number: u32) -> usize {
        self.disk.logs[&number].flushed
    }

    /// The allocator claims a slab, if the catalogue is there.
    fn claim(&mut self, number: u32) {
        let (keeper, epoch) = (self.disk.keeper, self.disk.epoch);
        let draw = self.draw.clone();
        let Some(catalogue) = &self.it(keeper).catalogue else { return };
        let free: Vec<u64> = (0..SLABS).filter(|slab| !catalogue.contains_key(slab)).collect();
        if free.is_empty() {
            return;
        }
        let slab = draw.pick(&free);
        let row = SlabRow { slab, owner: number, epoch, generation: 1 };
        self.log(keeper, &[LogItem::PutRow(Table::Slabs, &row_bytes(&row))]);
        self.flush(keeper);
        let extents = slab * SLAB_EXTENTS..(slab + 1) * SLAB_EXTENTS;
        self.it(number).spare.extend(extents.map(|extent| (extent, epoch)));
    }

    /// The first half of the use of a new extent: its header is written and flushed.
    fn write_header(&mut self, number: u32) {
        let it = self.it(number);
        if it.opening.is_some() {
            return;
        }
        let Some((extent, epoch)) = it.spare.pop() else { return self.claim(number) };
        it.opening = Some((extent, epoch));
        let header = ExtentHeader {
            content: Content::DATA,
            owner: number,
            extent,
            generation: 1,
            epoch,
            ..samples::extent_header()
        };
        // Of two headers, that of the newer claim counts.
        if self.disk.header(extent).is_none_or(|before| before.epoch <= epoch) {
            self.disk.extents.insert(extent, header.encode().to_vec());
        }
    }

    /// The second half: if the catalogue is still the one of the claim, the extent is used.
    fn open_extent(&mut self, number: u32) {
        let (now, fault) = (self.disk.epoch, self.fault);
        let Some((extent, epoch)) = self.it(number).opening.take() else { return };
        // A slab that is in use already is no claim that a new catalogue may lack.
        let slab = extent / SLAB_EXTENTS;
        let is_known = self.it(number).extents.keys().any(|other| other / SLAB_EXTENTS == slab);
        if epoch != now && !is_known && fault != Fault::TrustsOldClaim {
            let owns = |header: ExtentHeader| (header.owner, header.epoch) == (number, epoch);
            if self.disk.header(extent).is_some_and(owns) {
                self.disk.extents.remove(&extent);
            }
            return self.it(number).spare.retain(|(other, _)| other / SLAB_EXTENTS != slab);
        }
        let row = ExtentRow {
            extent,
            state: ExtentState::OPEN,
            content: Content::DATA,
            place_kind: PlaceKind::DEVICE,
            owner: number,
            generation: 1,
            free_blocks: 0,
            frontier: EXTENT_BLOCKS,
            place: extent,
            object: [0; 16],
        };
        self.log(number, &[LogItem::PutRow(Table::Extents, &row_bytes(&row))]);
        self.flush(number);
    }

    /// The allocator writes a block of one of its vdisks.
    fn write(&mut self, number: u32) {
        let (draw, moving, flushed) = (self.draw.clone(), self.moving, self.flushed(number));
        let it = self.it(number);
        let is_still = |vdisk: &u64| moving.is_none_or(|(moving, ..)| moving != *vdisk);
        let own: Vec<u64> = it.vdisks.keys().copied().filter(is_still).collect();
        if own.is_empty() {
            return;
        }
        let (vdisk, block) = (draw.pick(&own), draw.below(BLOCKS));
        let Some(to) = it.take(flushed) else { return self.write_header(number) };
        let mut items = vec![changes(vdisk, &[(block, to)])];
        let before = it.vdisks[&vdisk].map.get(&block).copied();
        if let Some(before) = before.filter(|before| !it.extents.contains_key(&before.extent())) {
            let peer = 3 - number;
            let next = it.peer(peer).sent + 1;
            let free = ForeignFree { peer, number: next, address: before, blocks: 1 };
            items.push(LogItem::ForeignFree(free));
        }
        self.log(number, &items);
    }

    /// The first half of a move: the new owner has the row and the map in its log.
    fn begin_move(&mut self) {
        let from = self.draw.pick(&ALLOCATORS);
        let to = 3 - from;
        let own: Vec<u64> = self.it(from).vdisks.keys().copied().collect();
        if self.moving.is_some() || own.is_empty() {
            return;
        }
        if self.fault != Fault::GivesUnflushed {
            self.flush(from);
        }
        let vdisk = self.draw.pick(&own);
        let Vdisk { epoch, map } = self.it(from).vdisks[&vdisk].clone();
        let map: Vec<_> = map.into_iter().collect();
        let row = vdisk_bytes(vdisk, to, epoch + 1);
        let mut items = vec![LogItem::PutRow(Table::Vdisks, &row)];
        items.extend((!map.is_empty()).then(|| changes(vdisk, &map)));
        self.log(to, &items);
        self.moving = Some((vdisk, from, to));
    }

    /// The second half: the new owner has flushed, so the old one removes its row.
    fn finish_move(&mut self) {
        let Some((vdisk, from, _)) = self.moving.take() else { return };
        let key = vdisk.to_be_bytes();
        self.log(from, &[LogItem::RemoveRow(RowKey { table: Table::Vdisks, key: &key })]);
    }

    /// Sends all foreign frees that are proven and not confirmed.
    fn send(&mut self, number: u32) {
        let proven = match self.fault {
            Fault::SendsEarly => usize::MAX,
            _ => self.flushed(number),
        };
        let frees = self.it(number).outgoing.values();
        let sent: Vec<Message> = frees
            .filter(|(_, record)| *record <= proven)
            .map(|(free, _)| Message::Free(number, *free))
            .collect();
        self.messages.extend(sent);
    }

    /// Delivers, repeats or loses one message.
    fn deliver(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let n = self.draw.below(self.messages.len() as u64) as usize;
        let message = match self.draw.below(4) {
            0 => self.messages[n],
            _ => self.messages.swap_remove(n),
        };
        if self.draw.below(8) == 0 {
            return;
        }
        match message {
            Message::Free(from, free) => self.receive(from, free),
            Message::Confirm(from, to, number) => {
                let row = self.it(to).peer(from).clone();
                if number > row.confirmed {
                    let row = PeerRow { confirmed: number, ..row };
                    self.log(to, &[LogItem::PutRow(Table::Peers, &row_bytes(&row))]);
                }
            }
        }
    }

    fn receive(&mut self, from: u32, free: ForeignFree) {
        let (to, fault) = (free.peer, self.fault);
        let flushed = self.flushed(to);
        let it = self.it(to);
        let applied = it.peer(from).applied;
        let is_again = fault == Fault::AppliesTwice && it.used.contains(&free.address);
        if free.number == applied + 1 || free.number <= applied && is_again {
            let number = free.number.max(applied);
            let mine = ForeignFree { peer: from, number, ..free };
            self.log(to, &[LogItem::ForeignApplied(mine)]);
        } else if free.number <= applied && it.applied_by <= flushed {
            self.messages.push(Message::Confirm(to, from, applied));
        }
    }

    /// Another allocator keeps the catalogue from now on, which is lost. It raises the epoch before it reads the headers.
    fn lose_catalogue(&mut self) {
        let keeper = 3 - self.disk.keeper;
        self.it(3 - keeper).catalogue = None;
        (self.disk.keeper, self.disk.epoch) = (keeper, self.disk.epoch + 1);
        let mut slabs = BTreeMap::new();
        for extent in 0..SLABS * SLAB_EXTENTS {
            if let Some(ExtentHeader { owner, epoch, .. }) = self.disk.header(extent) {
                let slab = extent / SLAB_EXTENTS;
                let row = SlabRow { slab, owner, epoch, generation: 1 };
                let newer = |before: &SlabRow| before.epoch >= epoch;
                if !slabs.get(&slab).is_some_and(newer) {
                    slabs.insert(slab, row);
                }
            }
        }
        self.it(keeper).catalogue = Some(BTreeMap::new());
        for row in slabs.values() {
            self.log(keeper, &[LogItem::PutRow(Table::Slabs, &row_bytes(row))]);
        }
        self.flush(keeper);
    }

    /// One allocator dies and comes back. Its written records stay.
    fn die(&mut self, number: u32) {
        // Written records stay, so an unfinished move goes on. An opening flushes first.
        if let Some((.., to)) = self.moving {
            self.flush(to);
        }
        self.flush(number);
        self.live.insert(number, Allocator::recover(number, &self.disk));
        self.settle_rows();
    }

    /// Both keep a prefix of the records that are not flushed.
    fn cut_power(&mut self) {
        for log in self.disk.logs.values_mut() {
            let lost = log.records.len() - log.flushed;
            let kept = log.flushed + self.draw.below(lost as u64 + 1) as usize;
            log.records.truncate(kept);
            log.counts.truncate(kept);
            log.flushed = kept;
        }
        self.messages.clear();
        self.moving = None;
        for number in ALLOCATORS {
            self.live.insert(number, Allocator::recover(number, &self.disk));
        }
        self.settle_rows();
    }

    /// Removes the rows of vdisks that another allocator has with a higher epoch.
    fn settle_rows(&mut self) {
        if self.fault == Fault::IgnoresEpoch || self.moving.is_some() {
            return;
        }
        for vdisk in 1..=VDISKS {
            let epoch = |number: u32| self.live[&number].vdisks.get(&vdisk).map(|it| it.epoch);
            let (one, two) = (epoch(1), epoch(2));
            if one.is_some() && two.is_some() {
                let old = if one < two { 1 } else { 2 };
                let key = vdisk.to_be_bytes();
                self.log(old, &[LogItem::RemoveRow(RowKey { table: Table::Vdisks, key: &key })]);
            }
        }
    }

    /// Returns all blocks that vdisks use, of each vdisk by the row with the highest epoch.
    fn reachable(&self) -> Result<BTreeMap<Address, u64>, String> {
        let mut all = BTreeMap::new();
        for vdisk in 1..=VDISKS {
            let rows: Vec<_> = self.live.values().filter_map(|it| it.vdisks.get(&vdisk)).collect();
            if rows.len() > 1 && self.moving.is_none() {
                return Err(format!("vdisk {vdisk} has two owners"));
            }
            let newest = rows.into_iter().max_by_key(|it| it.epoch);
            let newest = newest.ok_or_else(|| format!("vdisk {vdisk} has no owner"))?;
            for address in newest.map.values() {
                if let Some(other) = all.insert(*address, vdisk) {
                    return Err(format!("{address:?} is in vdisks {other} and {vdisk}"));
                }
            }
        }
        Ok(all)
    }

    /// Checks that no block has two users, and that no user's block is free.
    fn check(&self) -> Result<(), String> {
        let mut owners = BTreeMap::new();
        for it in self.live.values() {
            for extent in it.extents.keys() {
                if let Some(other) = owners.insert(*extent, it.number) {
                    return Err(format!("extent {extent} is of {other} and {}", it.number));
                }
            }
        }
        for (address, vdisk) in self.reachable()? {
            let owner = owners.get(&address.extent()).ok_or("an extent without owner")?;
            if !self.live[owner].used.contains(&address) {
                return Err(format!("{address:?} of vdisk {vdisk} is free"));
            }
        }
        Ok(())
    }

    fn step(&mut self) {
        let number = self.draw.pick(&ALLOCATORS);
        match self.draw.below(64) {
            0..28 => self.write(number),
            28..36 => self.flush(number),
            36..40 => self.begin_move(),
            40..44 => self.send(number),
            44..54 => self.deliver(),
            54..59 => self.open_extent(number),
            59 => self.lose_catalogue(),
            60..62 => self.die(number),
            _ => self.cut_power(),
        }
    }

    /// Lets all messages arrive, and checks that no block is lost.
    fn end(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            for number in ALLOCATORS {
                self.flush(number);
                self.send(number);
            }
            (0..40).for_each(|_| self.deliver());
            self.check()?;
        }
        if self.live.values().any(|it| !it.outgoing.is_empty()) {
            return Err("a foreign free is never confirmed".to_owned());
        }
        let used: BTreeSet<Address> = self.live.values().flat_map(|it| it.used.clone()).collect();
        let reachable: BTreeSet<Address> = self.reachable()?.into_keys().collect();
        match used == reachable {
            true => Ok(()),
            false => Err(format!("in use by no vdisk: {:?}", used.difference(&reachable))),
        }
    }
}

/// Runs the model. Returns the first violation, with its seed.
fn run(seeds: u64, fault: Fault) -> Result<(), String> {
    for seed in 0..seeds {
        let mut pool = Pool::new(seed, fault);
        for step in 0..400 {
            pool.step();
            pool.check().map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
        }
        pool.end().map_err(|why| format!("seed {seed}, at the end: {why}"))?;
    }
    Ok(())
}

#[test]
fn two_allocators_use_each_block_once_and_lose_none() {
    let seeds = std::env::var("N").map_or(200, |n| n.parse().unwrap());
    run(seeds, Fault::None).unwrap();
}

#[test]
fn model_of_two_allocators_finds_each_broken_rule() {
    for fault in [
        Fault::AppliesTwice,
        Fault::SendsEarly,
        Fault::TrustsOldClaim,
        Fault::GivesUnflushed,
        Fault::IgnoresEpoch,
    ] {
        let found = std::panic::catch_unwind(|| run(2000, fault));
        assert!(!matches!(found, Ok(Ok(()))), "{fault:?} is not found");
    }
}
