//! The maps of a running mirror: the dirty regions, and the regions that each member misses. They are in the mirror's store if
//! its members have room for one, else in the labels. After each opening, and after a failure of the store, they are in the
//! labels, which name the store only once it has all maps.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use block::control::Cause;
use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{
    ByteRange, Child, Copies, Env, Error, ErrorKind, Locked, Lower, MemberState as State, Mode,
    Mutex, Op, Result, What, error,
};
use meta::regions::{self as service, Division, Marks, Writing};
use meta::vault::CopyOwner;

use super::credit::{Credit, WRITES_PER_STATE};
use super::device::{Alone, Inner};
use super::member::Member;
use super::record::{Named, Room};
use super::regions::{Bitmap, Regions};
use super::replica::{self, Watch};
use super::room::{self, StoreSizes};
use super::store::Store;
use super::superblock_writer::SuperblockWriter;

/// The maps of a mirror that writes its state to labels.
pub struct Maps {
    /// Division of the mirror into the regions of the maps in memory and in the store.
    regions: Regions,
    /// Regions that the labels or the store record as dirty, or will with the next update.
    active: RefCell<Bitmap>,
    /// Number of changes of `active` that the next state in labels must record.
    version: Cell<u64>,
    pub credit: Credit,
    /// The regions with writes; set once the mirror is made.
    used: OnceCell<service::Regions>,
    /// Time without writes after which a region is cleared (`clear_delay`).
    delay: Duration,
    /// Sizes in bytes of the members, if they have room for a store.
    lowers: Option<Vec<u64>>,
    /// Sizes of the members, as the labels record them. Earlier copies of the store may be at the ends of members of these sizes.
    rooms: RefCell<Vec<u64>>,
    /// Whether the bytes of the mirror that were in earlier rooms still have to be zeroed: the mirror has grown.
    has_grown: Cell<bool>,
    /// The store with the maps; `None` while they are in the labels.
    store: RefCell<Option<Rc<Store>>>,
    /// Lock that a task holds while it changes durable maps, or moves them.
    turn: Mutex,
}

impl Maps {
    /// Returns empty maps. `lowers` are the sizes of the members, if they have room for a store; `rooms` are those that the labels have.
    pub fn new(
        regions: Regions,
        delay: Duration,
        lowers: Option<Vec<u64>>,
        rooms: Vec<u64>,
    ) -> Self {
        let maps = Self {
            rooms: RefCell::new(rooms),
            has_grown: Cell::new(false),
            regions,
            active: RefCell::new(Bitmap::none(regions.count())),
            version: Cell::new(0),
            credit: Credit::default(),
            used: OnceCell::new(),
            delay,
            lowers,
            store: RefCell::default(),
            turn: Mutex::new(),
        };
        maps.has_grown.set(maps.grown().is_some());
        maps
    }

    /// Returns the bytes of the mirror in which earlier copies of the store may be, if it has grown over them.
    fn grown(&self) -> Option<ByteRange> {
        let rooms = self.rooms.borrow();
        let rooms = rooms.iter().filter(|_| self.lowers.is_some()).map(|lower| room::range(*lower));
        let start = rooms.clone().map(|room| room.start()).min()?;
        let end = rooms.map(|room| room.end()).max()?.min(self.regions.size());
        ByteRange::between(start, end)
    }

    /// Whether a request for `range` must wait until the bytes of earlier rooms are zeroed.
    pub fn waits_for_growth(&self, range: ByteRange) -> bool {
        self.has_grown.get() && self.grown().is_some_and(|grown| range.end() > grown.start())
    }

    /// Begins to mark regions for the mirror `mirror`.
    pub fn begin(&self, env: &Env, mirror: Weak<Inner>) {
        let (size, region_bytes) = (self.regions.size(), self.regions.region_bytes());
        let division = Division::new(size, region_bytes).expect("the mirror has regions");
        let marks = Rc::new(MirrorMarks(mirror));
        let used = service::Regions::over(env, marks, division, self.delay);
        assert!(self.used.set(used).is_ok(), "a mirror begins once");
    }

    /// Returns the regions with writes.
    pub fn used(&self) -> &service::Regions {
        self.used.get().expect("the maps of a made mirror have begun")
    }

    /// Returns the regions in which a write may be in flight or not flushed.
    pub fn unsettled(&self) -> Bitmap {
        let mut map = self.active.borrow().clone();
        self.used().used().into_iter().for_each(|region| map.insert(region as usize));
        map
    }

    /// Returns a number that rises with every change that the next state in labels must record.
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    fn changed(&self) {
        self.version.set(self.version.get() + 1);
    }

    /// Returns the store with the maps; `None` while they are in the labels.
    pub fn store(&self) -> Option<Rc<Store>> {
        self.store.borrow().clone()
    }

    /// Returns the division of the mirror into the regions of the maps in labels, for a mirror of `members` members.
    pub fn in_labels(&self, members: usize) -> Regions {
        match self.lowers {
            Some(_) => self.regions.in_labels(members),
            None => self.regions,
        }
    }

    /// Returns the dirty regions that the labels of a mirror with `members` members must record.
    pub fn active_in_labels(&self, members: usize) -> Bitmap {
        self.to_labels(self.active.borrow().clone(), members)
    }

    /// Converts a map for the labels of a mirror with `members` members. A store has the map otherwise.
    pub fn to_labels(&self, map: Bitmap, members: usize) -> Bitmap {
        let regions = self.in_labels(members);
        match self.store.borrow().is_some() {
            true => Bitmap::none(regions.count()),
            false => map.over(&self.regions, &regions),
        }
    }

    /// Returns the facts about the room on the members for the labels.
    pub fn room(&self) -> Option<Room> {
        let named = |store: &Rc<Store>| Named { vault: store.uuid(), regions: self.regions };
        let store = self.store.borrow().as_ref().map(named);
        self.lowers.as_ref().map(|_| Room { store, lowers: self.rooms.borrow().clone() })
    }

    fn put_active(&self, regions: &[u64], value: bool) {
        let mut active = self.active.borrow_mut();
        for region in regions {
            match value {
                true => active.insert(*region as usize),
                false => active.remove(*region as usize),
            }
        }
    }
}

/// The durable marks of a mirror's dirty regions.
struct MirrorMarks(Weak<Inner>);

impl MirrorMarks {
    /// Returns the mirror if it runs, and is not closing. Before a live change is committed, no region is cleared.
    fn settled(&self) -> Option<Rc<Inner>> {
        self.0.upgrade().filter(|mirror| {
            let writer = mirror.writer.as_ref();
            !mirror.tasks.is_closing() && writer.is_some_and(SuperblockWriter::is_settled)
        })
    }
}

impl Marks for MirrorMarks {
    fn mark(&self, regions: Vec<u64>) -> LocalFuture<Result<()>> {
        let mirror = self.0.upgrade();
        Box::pin(async move {
            let mirror = mirror.ok_or_else(|| error!(Stopped, "the mirror was closed"))?;
            let _one = mirror.tasks.enter();
            let writer = mirror.writer.as_ref().expect("marks belong to a writer");
            mirror.mark(writer, &regions).await
        })
    }

    fn clear(&self, regions: Vec<u64>) -> LocalFuture<Result<()>> {
        let mirror = self.0.upgrade();
        Box::pin(async move {
            let Some(mirror) = mirror else { return Ok(()) };
            let _one = mirror.tasks.enter();
            let writer = mirror.writer.as_ref().expect("marks belong to a writer");
            mirror.clear(writer, &regions).await;
            Ok(())
        })
    }

    fn failure(&self) -> Option<Error> {
        None
    }

    fn clears_now(&self) -> usize {
        let Some(mirror) = self.settled() else { return 0 };
        let maps = &mirror.writer.as_ref().expect("marks belong to a writer").maps;
        let most = maps.credit.look();
        if maps.store.borrow().is_some() { usize::MAX } else { most }
    }

    fn ahead(&self) -> u64 {
        WRITES_PER_STATE
    }

    fn flushes(&self) -> bool {
        true
    }

    fn flush(&self) -> LocalFuture<Result<()>> {
        let mirror = self.settled();
        Box::pin(async move {
            let Some(mirror) = mirror else { return Ok(()) };
            let _one = mirror.tasks.enter();
            if seeded::on(Bug::RegionUnflushed) {
                let used = mirror.writer.as_ref().expect("marks belong to a writer").maps.used();
                used.flushed(used.before_flush());
                return Ok(());
            }
            mirror.flush().await
        })
    }
}

/// The mirror, as far as the room on member `port` concerns it.
struct RoomWatch {
    mirror: Weak<Inner>,
    port: usize,
}

impl Watch for RoomWatch {
    fn late(&self, request: Child) {
        if let Some(mirror) = self.mirror.upgrade() {
            mirror.members[self.port].one_late();
            mirror.wait_for_late(self.port, request, None);
        }
    }

    fn failed(&self, error: &Error) {
        if let Some(mirror) = self.mirror.upgrade().filter(|_| !seeded::on(Bug::RoomFailsAlone)) {
            mirror.members[self.port].count_error();
            let words = Member::words_of("a write of the store", error);
            mirror.retire(self.port, Cause::Request, words);
        }
    }
}

/// The mirror as the owner of the copies of its store: the labels record which members, and so which copies, count.
struct Owner {
    mirror: Weak<Inner>,
    /// The members that took writes when the store was made.
    counting: Copies,
}

impl CopyOwner for Owner {
    fn counts(&self, copy: usize) -> bool {
        self.counting.has(copy)
    }

    fn leave(&self, copy: usize, error: Option<Error>) -> LocalFuture<Result<()>> {
        let mirror = self.mirror.upgrade();
        Box::pin(async move {
            let Some(mirror) = mirror else { return Ok(()) };
            let member = &mirror.members[copy];
            // A copy that [`Store::leave`] has left behind works. Its member may be copied by now.
            let error = error.filter(|error| {
                error.kind() != ErrorKind::Stopped || seeded::on(Bug::LeftReplicaFails)
            });
            if let Some(error) = error.filter(|_| member.takes_writes()) {
                member.count_error();
                mirror.retire(
                    copy,
                    Cause::Request,
                    Member::words_of("a write of the store", &error),
                );
            }
            mirror.remember().await?;
            match member.state() {
                State::InSync => {
                    Err(error!(Faulted, "the last member in sync has no current store"))
                }
                _ => Ok(()),
            }
        })
    }
}

impl Inner {
    /// Returns the regions that each member misses.
    fn missing(&self) -> Vec<Bitmap> {
        self.members.iter().map(Member::missing).collect()
    }

    /// Marks `regions` durably as dirty.
    async fn mark(&self, writer: &SuperblockWriter, regions: &[u64]) -> Result<()> {
        let maps = &writer.maps;
        let _turn = maps.turn.lock().await;
        maps.put_active(regions, true);
        if let Some(store) = maps.store() {
            match store.mark(regions).await {
                Ok(()) => return Ok(()),
                Err(error) => self.leave_store(maps, &error),
            }
        }
        maps.changed();
        if seeded::on(Bug::RegionMarkedLate) {
            self.remember_soon();
            return Ok(());
        }
        self.remember_maps(writer).await
    }

    /// Removes `regions` from the dirty regions.
    async fn clear(&self, writer: &SuperblockWriter, regions: &[u64]) {
        let maps = &writer.maps;
        let _turn = maps.turn.lock().await;
        maps.put_active(regions, false);
        if let Some(store) = maps.store() {
            match store.clear(regions, &self.missing()).await {
                Ok(()) => return,
                Err(error) => self.leave_store(maps, &error),
            }
        } else {
            maps.credit.spend(regions.len());
        }
        maps.changed();
        // The next request that relies on a state writes a state again, and gets the error.
        let _ = self.write_next(writer).await;
    }

    /// Records the regions that members miss, although no request relies on it: it shortens a later resync.
    pub async fn record_missing(&self, writer: &SuperblockWriter) {
        let maps = &writer.maps;
        if maps.store().is_some() {
            // An older image of a member that is copied to must be distinguishable: the maps do not change its labels.
            let _ = self.write_next(writer).await;
            let _turn = maps.turn.lock().await;
            if let Some(store) = maps.store() {
                match store.miss(&self.missing()).await {
                    Ok(()) => return,
                    Err(error) => self.leave_store(maps, &error),
                }
            }
        }
        // A member whose labels cannot be written is retired, and the next request that relies on the state gets the
        // error.
        let _ = self.write_next(writer).await;
    }

    /// Moves the maps from the store to the labels: the next state has them.
    fn leave_store(&self, maps: &Maps, error: &Error) {
        maps.changed();
        if maps.store.take().is_some() {
            self.emit(What::LabelUnwritable, None, format!("the maps are in labels now: {error}"));
        }
    }

    /// Makes sure that the state in which member `port` is the only member in sync has the regions that the others miss. The store
    /// would have them only later, and perhaps not on this member.
    pub(super) fn keep_maps_on(&self, maps: &Maps, port: usize) {
        if !seeded::on(Bug::ReplacedUnrecorded) {
            let name = self.members[port].lower.name();
            self.leave_store(maps, &error!(Stopped, "{name} has replaced the member in sync"));
        }
    }

    /// Returns the room on member `port` as a lower for the store.
    fn room_of(&self, port: usize, lower_bytes: u64) -> Lower {
        let (room, watch) = (room::range(lower_bytes), RoomWatch { mirror: self.me.clone(), port });
        replica::lower(&self.members[port].lower, port, room, &self.deadline, Rc::new(watch))
    }

    /// Spawns a task that makes a store with the maps of the mirror, if its members have room, once the state of this opening
    /// is durable in labels.
    pub fn make_store_later(&self) {
        let Some(writer) = self.writer.as_ref().filter(|writer| writer.maps.lowers.is_some())
        else {
            return;
        };
        let (me, committed) = (self.me.clone(), writer.committed());
        self.env.spawn("a mirror's store", async move {
            committed.await;
            let Some(mirror) = me.upgrade().filter(|mirror| !mirror.tasks.is_closing()) else {
                return;
            };
            let _one = mirror.tasks.enter();
            let writer = mirror.writer.as_ref().expect("it has a writer");
            mirror.zero_earlier_rooms(writer).await;
            if let Err(error) = mirror.make_store(writer).await {
                let words = format!("the maps stay in labels: {error}");
                mirror.emit(What::LabelUnwritable, None, words);
            }
        });
    }

    /// Zeros the bytes of the mirror in which earlier copies of the store may be, and records the present rooms. Requests for
    /// these bytes and for those behind wait for it. A member that cannot zero them is retired.
    async fn zero_earlier_rooms(&self, writer: &SuperblockWriter) {
        let maps = &writer.maps;
        // The maps have left the earlier store once this state is in labels.
        let is_recorded = self.remember().await.is_ok();
        if let Some(range) = maps.grown().filter(|_| is_recorded) {
            let zero = Op::WriteZeroes { range, unmap: true, fua: false };
            // A resync that has read the former bytes must not write them afterwards.
            let mut alone = Some(Alone::new(self.lock.lock(range, Mode::Exclusive).await));
            // The last member in sync keeps its bytes after an error: no client has written there.
            let _ = self.to_all(&zero, &mut alone).await;
            let _ = self.to_all(&Op::Flush, &mut None).await;
        }
        let lowers = maps.lowers.clone().expect("the members have room");
        if maps.rooms.replace(lowers) != *maps.rooms.borrow() {
            maps.changed();
            let _ = self.remember_maps(writer).await;
        }
        maps.has_grown.set(false);
        self.tasks.changed().wake();
    }

    /// Waits until `range` has the bytes of the mirror, which may have grown over earlier copies of its store.
    pub async fn after_growth(&self, range: ByteRange) {
        let waits = || self.writer.as_ref().is_some_and(|it| it.maps.waits_for_growth(range));
        if waits() {
            self.tasks.changed().until(|| !waits()).await;
        }
    }

    /// Makes a store with a copy on each member that takes writes, and moves the maps from the labels to it.
    async fn make_store(&self, writer: &SuperblockWriter) -> Result<()> {
        self.remember().await?;
        let maps = &writer.maps;
        let lowers = maps.lowers.as_ref().expect("the members have room");
        let _turn = maps.turn.lock().await;
        let count = self.members.len();
        let takes = |port: &usize| self.members[*port].takes_writes();
        let counting = (0..count).filter(takes).fold(Copies::NONE, Copies::with);
        let here = |port: usize| !self.members[port].is_absent();
        let part = |port: usize| here(port).then(|| self.room_of(port, lowers[port]));
        let parts: Vec<_> = (0..count).map(part).collect();
        let made = parts.iter().enumerate();
        let made = made.map(|(port, part)| part.clone().filter(|_| counting.has(port))).collect();
        let sizes = StoreSizes::of(lowers.iter().copied());
        let owner = Rc::new(Owner { mirror: self.me.clone(), counting });
        let store = Store::make(&self.env, made, parts, owner, sizes, &maps.regions).await?;
        let store = Rc::new(store);
        if seeded::on(Bug::StoreNamedEarly) {
            *maps.store.borrow_mut() = Some(store.clone());
            maps.changed();
            self.remember_maps(writer).await?;
        }
        let active = maps.active.borrow().clone();
        let active: Vec<_> = active.iter().map(|region| region as u64).collect();
        loop {
            let version = maps.version();
            store.miss(&self.missing()).await?;
            store.mark(&active).await?;
            self.make_current(&store).await?;
            // A member that has replaced the last member in sync has changed the maps.
            if maps.version() == version || seeded::on(Bug::ReplacedUnrecorded) {
                break;
            }
        }
        *maps.store.borrow_mut() = Some(store);
        maps.changed();
        // Without a durable state that names the store, its marks would not count.
        self.remember_maps(writer).await.inspect_err(|error| self.leave_store(maps, error))
    }

    /// Ends all changes of durable maps, and closes the store. The mirror takes no requests any more.
    pub async fn close_maps(&self) {
        let Some(writer) = &self.writer else { return };
        writer.maps.used().stop().await;
        writer.maps.has_grown.set(false);
        self.tasks.changed().wake();
        let _turn = writer.maps.turn.lock().await;
        if let Some(store) = writer.maps.store() {
            store.close().await;
        }
    }

    /// Resumes the changes of durable maps, because a close was abandoned. A store that was closed is left.
    pub fn resume_maps(&self) {
        let Some(writer) = &self.writer else { return };
        writer.maps.used().resume();
        if writer.maps.store().is_some_and(|store| store.is_closed()) {
            self.leave_store(&writer.maps, &error!(Stopped, "a close was abandoned"));
        }
    }

    /// Makes the copy of the store on each member that takes writes current.
    async fn make_current(&self, store: &Store) -> Result<()> {
        for port in 0..self.members.len() {
            if self.members[port].takes_writes() && !store.is_current(port) {
                store.rejoin(port).await?;
            }
        }
        Ok(())
    }

    /// Makes the copy of the store on member `port` current, which begins or ends to be copied to. Returns once the maps cannot
    /// move until the returned guard is dropped.
    ///
    /// # Errors
    /// Errors of the copy.
    pub async fn make_replica_current(&self, port: usize) -> Result<Option<Locked>> {
        let Some(writer) = &self.writer else { return Ok(None) };
        loop {
            let store = writer.maps.store().filter(|store| !store.is_current(port));
            if let Some(store) = store.filter(|_| !seeded::on(Bug::InSyncBeforeReplica)) {
                store.rejoin(port).await?;
            }
            let turn = writer.maps.turn.lock().await;
            let is_current = |store: Rc<Store>| store.is_current(port);
            if writer.maps.store().is_none_or(is_current) || seeded::on(Bug::InSyncBeforeReplica) {
                return Ok(Some(turn));
            }
        }
    }

    /// Makes durable that the regions of `range` are dirty, and which members miss writes to them, before the caller sends a
    /// request that changes `range` to the members. Returns the write, which the caller ends by dropping it.
    ///
    /// # Errors
    /// As [`Inner::remember`].
    pub async fn announce(&self, range: ByteRange) -> Result<Option<Writing>> {
        let Some(writer) = &self.writer else { return Ok(None) };
        writer.maps.credit.count_write();
        let writing = writer.maps.used().begin(range).await?;
        let (first, last) = self.regions.of(range);
        for member in self.members.iter().filter(|member| !member.takes_writes()) {
            member.misses_all(first, last);
        }
        if !seeded::on(Bug::RegionMarkedLate) {
            self.remember().await?;
        }
        Ok(Some(writing))
    }
}
