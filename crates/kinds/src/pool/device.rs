//! Carries out the commands of a pool, and opens its volumes.

use std::rc::Rc;
use std::time::Duration;

use ::pool::BLOCK_BYTES;
use ::pool::live::{self, Blocks, ListedSnapshot, ListedVdisk, Pool, VersionId};
use ::pool::name::{Label, SnapshotRef, VdiskName, VersionName};
use block::control::state::{Check, Checked};
use block::control::{Command, Reply, VerbInfo, volume};
use block::env::LocalFuture;
use block::units::{format_duration, format_size};
use block::{
    Device, Handover, Health, Info, NO_SPACE_MAX, Op, OpenMode, OpenedVolume, Report, Request,
    Result, SpaceUse, VolumeEntry, VolumeFacts, VolumeId, Volumes, VolumesVisitor, What,
};

use super::VERBS;
use super::home::PoolHome;
use super::verbs::{
    CloneArgs, CloneOf, CountData, DataCount, DataFrom, Keep, KeepArgs, ListSnapshots, ListVdisks,
    PAGE_MAX, RollBack, RolledBack, SetLabel, SetQuota, SetTaking, Snapshot, SnapshotArgs,
    SnapshotPage, SnapshotView, Snapshots, SnapshotsFrom, Taking, TakingArgs, Thinned, VdiskView,
    Vdisks, VdisksAfter,
};
use super::volume::{Volume, info, version_of};

/// A device that holds the versions of a pool. It has no bytes of its own.
pub struct PoolDevice {
    home: PoolHome,
    info: Info,
}

impl PoolDevice {
    /// Creates the device of a pool that is open, or that its opening opens.
    pub fn new(home: PoolHome) -> Self {
        let info = Info { size: 0, ..info(home.lower().info(), 0, home.is_read_only()) };
        Self { home, info }
    }

    async fn carry_out(&self, command: &Command) -> Result<Reply> {
        let pool = self.home.pool().await?;
        if command.is::<Check>() {
            return pool.check().await.map(|checked| Reply::of::<Check>(report_of(checked)));
        }
        if let Some(args) = command.args::<Snapshot>() {
            let numbers = snapshot(pool, args).await?;
            return Ok(Reply::of::<Snapshot>(Snapshots { numbers }));
        }
        if let Some(VdisksAfter { after, most }) = command.args::<ListVdisks>() {
            let vdisks = pool.vdisks(after, (*most).min(PAGE_MAX)).await?;
            let vdisks = vdisks.into_iter().map(vdisk_view).collect();
            return Ok(Reply::of::<ListVdisks>(Vdisks { vdisks }));
        }
        if let Some(SnapshotsFrom { vdisk, from, most }) = command.args::<ListSnapshots>() {
            let most = (*most).min(PAGE_MAX);
            let snapshots = pool.snapshots(&VdiskName::parse(vdisk)?, *from, most).await?;
            let snapshots = snapshots.into_iter().map(snapshot_view).collect();
            return Ok(Reply::of::<ListSnapshots>(SnapshotPage { snapshots }));
        }
        if let Some(DataFrom { version, from_bytes }) = command.args::<CountData>() {
            let block = from_bytes / u64::from(BLOCK_BYTES);
            let counted = pool.count_data(&VersionName::parse(version)?, block).await?;
            return Ok(Reply::of::<CountData>(DataCount {
                own_bytes: bytes(counted.own),
                inherited_bytes: bytes(counted.inherited),
                next_bytes: counted.next.map(bytes),
            }));
        }
        if let Some(args) = command.args::<volume::Remove>() {
            let name = VersionName::parse(&args.name)?;
            let dependants = match args.dry_run {
                true => pool.check_remove(&name).await?,
                false => pool.remove(&name).await?,
            };
            if !args.dry_run {
                pool.flush().await?;
                let words = match dependants {
                    0 => String::new(),
                    1 => "one clone depends on it".to_owned(),
                    count => format!("{count} clones depend on it"),
                };
                self.home.emit(What::VdiskRemoved, &args.name, words);
            }
            return Ok(Reply::of::<volume::Remove>(volume::Removed { dependants }));
        }
        if let Some(args) = command.args::<Keep>() {
            let removed = keep(pool, args).await?;
            return Ok(Reply::of::<Keep>(Thinned { removed }));
        }
        if let Some(args) = command.args::<RollBack>() {
            let to = VersionName::parse(&args.to)?;
            if args.dry_run {
                pool.check_rollback(&to).await?;
                return Ok(Reply::of::<RollBack>(RolledBack { taken: None }));
            }
            let taken = pool.roll_back(&to).await?;
            pool.flush().await?;
            self.home.emit(What::VdiskRolledBack, &to.vdisk.to_string(), format!("to {to}"));
            return Ok(Reply::of::<RollBack>(RolledBack { taken }));
        }
        // A flush may take snapshots, so a dry run has none.
        let is_dry_run;
        if let Some(args) = command.args::<volume::Create>() {
            is_dry_run = args.dry_run;
            let name = VdiskName::parse_new(&args.name)?;
            match args.dry_run {
                true => pool.check_create(&name, args.size_bytes).await?,
                false => drop(pool.create(&name, args.size_bytes).await?),
            }
        } else if let Some(args) = command.args::<volume::Resize>() {
            is_dry_run = args.dry_run;
            let name = VdiskName::parse(&args.name)?;
            match args.dry_run {
                true => pool.check_resize(&name, args.size_bytes).await?,
                false => pool.resize(&name, args.size_bytes).await?,
            }
        } else if let Some(args) = command.args::<CloneOf>() {
            is_dry_run = args.dry_run;
            clone(pool, args).await?;
        } else if let Some(args) = command.args::<SetTaking>() {
            is_dry_run = args.dry_run;
            set_taking(pool, args).await?;
        } else if let Some(args) = command.args::<SetQuota>() {
            is_dry_run = args.dry_run;
            let name = VdiskName::parse(&args.vdisk)?;
            match args.dry_run {
                true => pool.check_set_quota(&name, args.quota_bytes).await?,
                false => pool.set_quota(&name, args.quota_bytes).await?,
            }
        } else if let Some(args) = command.args::<SetLabel>() {
            is_dry_run = args.dry_run;
            let name = VersionName::parse(&args.snapshot)?;
            let label = args.label.as_deref().map(Label::parse).transpose()?;
            match args.dry_run {
                true => pool.check_label(&name, label.as_ref()).await?,
                false => pool.set_label(&name, label).await?,
            }
        } else {
            return Err(command.unknown_to("a pool"));
        }
        if !is_dry_run {
            pool.flush().await?;
            self.emit_created(command);
        }
        command.done(Ok(())).await
    }
}

impl PoolDevice {
    /// Reports the vdisks that a command has created.
    fn emit_created(&self, command: &Command) {
        let emit = |name, words| self.home.emit(What::VdiskCreated, name, words);
        if let Some(args) = command.args::<volume::Create>() {
            emit(&args.name, format_size(args.size_bytes));
        } else if let Some(CloneArgs { of, names, .. }) = command.args::<CloneOf>() {
            match &names[..] {
                [] => {}
                [name] => emit(name, format!("clone of {of}")),
                [first, others @ ..] => {
                    emit(first, format!("clone of {of}, and {} more", others.len()));
                }
            }
        }
    }
}

/// Returns the report of a check for people.
fn report_of(checked: live::Checked) -> Checked {
    let live::Checked { vdisks, damage, copies, lost, leaked } = checked;
    let mut wrong = damage;
    let range = |(first, count): Blocks, words: &str| {
        format!("{count} blocks at block {} of extent {} {words}", first.offset(), first.extent())
    };
    wrong.extend(lost.into_iter().map(|blocks| range(blocks, "are in use, and free to others")));
    let is_damaged = !wrong.is_empty();
    wrong.extend(copies);
    let leaked = leaked.unwrap_or_default().into_iter();
    wrong.extend(leaked.map(|blocks| range(blocks, "belong to no virtual disk, and are not free")));
    let health = match (is_damaged, wrong.is_empty()) {
        (true, _) => Health::Failed,
        (false, false) => Health::Degraded,
        (false, true) => Health::Ok,
    };
    Checked { health, summary: format!("the maps of {vdisks} virtual disks"), wrong }
}

fn vdisk_view(listed: ListedVdisk) -> VdiskView {
    let taking = match listed.taking {
        live::Taking::ByCommand => Taking::ByCommand,
        live::Taking::Every(time) => Taking::EveryUs(time.as_micros() as u64),
        live::Taking::WithFlush => Taking::WithFlush,
        live::Taking::WithWrite => Taking::WithWrite,
    };
    let account = listed.account;
    VdiskView {
        name: listed.name,
        size_bytes: listed.size_bytes,
        origin: listed.origin,
        made_unix_s: listed.made_unix_s,
        taking,
        keep_last: listed.keep.last,
        keep_interval_s: listed.keep.interval_s,
        own_bytes: bytes(account.head),
        unfound_bytes: bytes(account.unfound),
        snapshot_bytes: bytes(account.dead),
        map_bytes: bytes(account.nodes),
        quota_bytes: listed.quota_bytes,
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks * u64::from(BLOCK_BYTES)
}

async fn set_taking(pool: &Pool, args: &TakingArgs) -> Result<()> {
    let name = VdiskName::parse(&args.vdisk)?;
    let taking = match args.taking {
        Taking::ByCommand => live::Taking::ByCommand,
        Taking::EveryUs(us) => live::Taking::Every(Duration::from_micros(us)),
        Taking::WithFlush => live::Taking::WithFlush,
        Taking::WithWrite => live::Taking::WithWrite,
    };
    match args.dry_run {
        true => pool.check_snapshot(&[name], None).await,
        false => pool.set_taking(&name, taking).await,
    }
}

/// Carries out a rule for snapshots, and returns the number of removed ones.
async fn keep(pool: &Pool, args: &KeepArgs) -> Result<u64> {
    let name = VdiskName::parse(&args.vdisk)?;
    let rule = live::Keep { last: args.last, interval_s: args.interval_s };
    if args.dry_run {
        return pool.check_keep(&name, rule).await;
    }
    let removed = pool.keep(&name, rule, !args.once).await?;
    pool.flush().await?;
    Ok(removed)
}

fn snapshot_view(listed: ListedSnapshot) -> SnapshotView {
    let ListedSnapshot { number, label, size_bytes, taken_unix_us, holds, alone_blocks } = listed;
    let alone_bytes = bytes(alone_blocks);
    SnapshotView { number, label, size_bytes, taken_unix_us, clones: holds, alone_bytes }
}

async fn snapshot(pool: &Pool, args: &SnapshotArgs) -> Result<Vec<u64>> {
    let names = args.vdisks.iter().map(|name| VdiskName::parse(name));
    let names: Vec<VdiskName> = names.collect::<Result<_>>()?;
    let label = args.label.as_deref().map(Label::parse).transpose()?;
    if args.dry_run {
        pool.check_snapshot(&names, label.as_ref()).await?;
        return Ok(Vec::new());
    }
    let numbers = pool.snapshot(&names, label).await?;
    if !args.is_async {
        pool.flush().await?;
    }
    Ok(numbers)
}

/// Makes clones of a snapshot, or of a new snapshot of a vdisk. Makes none if a name is taken.
async fn clone(pool: &Pool, args: &CloneArgs) -> Result<()> {
    let mut origin = VersionName::parse(&args.of)?;
    let names = args.names.iter().map(|name| VdiskName::parse(name));
    let names: Vec<VdiskName> = names.collect::<Result<_>>()?;
    for name in &names {
        pool.check_free(name).await?;
    }
    if origin.snapshot.is_none() {
        let vdisk = std::slice::from_ref(&origin.vdisk);
        if args.dry_run {
            return pool.check_snapshot(vdisk, None).await;
        }
        let number = pool.snapshot(vdisk, None).await?[0];
        origin.snapshot = Some(SnapshotRef::Number(number));
    } else if let Some(name) = names.first() {
        pool.check_clone(&origin, name).await?;
    }
    for name in names.iter().filter(|_| !args.dry_run) {
        pool.clone_of(&origin, name).await?;
    }
    Ok(())
}

/// Returns the report of a device over the pool of `home`.
pub fn report(home: &PoolHome) -> Report {
    let mut report = Report { counters: vec![("open", home.held())], ..Report::default() };
    if let Some(pool) = home.now() {
        report.counters.push(("failed", pool.undiscarded()));
        let usage = pool.usage();
        let taken_bytes = usage.data_bytes + usage.node_bytes;
        report.room = Some(SpaceUse { taken_bytes, of_bytes: taken_bytes + usage.free_bytes });
        if pool.waiting_below() > 0 {
            report.health = Health::Limited;
            report.summary = "the device below has no space: writes wait".to_owned();
            let time = format_duration(NO_SPACE_MAX);
            report.next = Some(format!("make space below within {time}, or the pool fails"));
        }
        if usage.free_bytes == 0 {
            report.health = Health::Limited;
            report.summary = "no block is free: writes wait, then fail".to_owned();
            report.next = Some("remove snapshots or vdisks, or discard unused bytes".to_owned());
        }
    }
    if let Some(loss) = home.accepted_loss() {
        report.health = Health::Degraded;
        report.summary = loss;
        report.next = Some("check the files of those virtual disks".to_owned());
    }
    let damage = home.now().map(Pool::damage).unwrap_or_default();
    if let Some(first) = damage.first() {
        report.health = Health::Degraded;
        let count = damage.len();
        report.summary = match count {
            1 => format!("the map of {first}"),
            _ => format!("the maps of {count} virtual disks are damaged: {first}"),
        };
        report.next =
            Some("stop the graph: cairn check then names the ranges to restore".to_owned());
    }
    if let Some(error) = home.failure() {
        report.health = Health::Failed;
        report.summary = format!("the pool takes no changes any more: {error}");
        report.next = Some("stop and start the graph when its disks work again".to_owned());
    }
    report
}

impl Device for PoolDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        assert!(matches!(request.op, Op::Flush), "a device without bytes gets flushes only");
        self.home.pool().await?.flush().await
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        Box::pin(async move { self.carry_out(&command).await })
    }

    fn volumes<V: VolumesVisitor>(self: Rc<Self>, visitor: V) -> Option<V::Output> {
        Some(visitor.visit(self))
    }

    fn report(&self) -> Report {
        report(&self.home)
    }

    fn close(&self) -> LocalFuture<Handover> {
        let home = self.home.clone();
        Box::pin(async move {
            home.close().await;
            None
        })
    }
}

impl PoolDevice {
    /// Returns the snapshot from which an open would make the clone `name`; `None` if the name asks for no clone.
    async fn origin(&self, name: &VersionName) -> Result<Option<(VersionName, VersionId)>> {
        if name.snapshot.is_some() {
            return Ok(None);
        }
        let Some((vdisk, snapshot)) = name.vdisk.origin() else { return Ok(None) };
        let origin = VersionName { vdisk, snapshot: Some(snapshot) };
        let id = self.home.for_reading().await?.find(&origin).await?;
        Ok(id.map(|id| (origin, id)))
    }
}

impl Volumes for PoolDevice {
    type Volume = Volume;

    async fn list(&self, after: &str, most: usize) -> Result<Vec<VolumeEntry>> {
        let listed = self.home.for_reading().await?.list(after, most).await?;
        let read_only = self.home.is_read_only();
        let entries = listed.into_iter().map(|it| VolumeEntry {
            name: it.name,
            size_bytes: it.size_bytes,
            read_only: it.is_snapshot || read_only,
        });
        Ok(entries.collect())
    }

    async fn look(&self, name: &str) -> Result<Option<VolumeFacts>> {
        let name = VersionName::parse(name)?;
        if let Some(id) = self.home.for_reading().await?.find(&name).await? {
            return self.home.volume_facts(id).await.map(Some);
        }
        let Some((_, id)) = self.origin(&name).await? else { return Ok(None) };
        let snapshot = self.home.facts(id).await?;
        let info = Info { read_only: self.home.is_read_only(), ..snapshot };
        Ok(Some(VolumeFacts { id: None, info }))
    }

    async fn open(&self, name: &str, mode: OpenMode) -> Result<Option<OpenedVolume<Volume>>> {
        let name = VersionName::parse(name)?;
        let found = self.home.for_reading().await?.find(&name).await?;
        let id = match (found, mode) {
            (Some(id), _) => id,
            (None, OpenMode::Existing) => return Ok(None),
            (None, OpenMode::OrCreate) => {
                let Some((origin, _)) = self.origin(&name).await? else { return Ok(None) };
                self.home.pool().await?.clone_of(&origin, &name.vdisk).await?
            }
        };
        Volume::open(&self.home, id).await.map(Some)
    }

    async fn close(&self, id: VolumeId) {
        self.home.release(version_of(id));
    }
}
