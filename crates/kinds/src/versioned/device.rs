//! Carries out the requests and commands of a versioned device.

use std::cell::OnceCell;
use std::rc::Rc;

use ::pool::live::Pool;
use ::pool::name::VersionName;
use block::control::state::Check;
use block::control::{Command, Reply, Resolved, VerbInfo, volume as volumes};
use block::env::LocalFuture;
use block::{
    ByteRange, Device, Handover, Info, OpenMode, OpenedVolume, Report, Request, Result,
    VolumeEntry, VolumeFacts, VolumeId, Volumes, VolumesVisitor, error,
};

use super::{VERBS, only_vdisk, other_size};
use crate::pool::home::PoolHome;
use crate::pool::verbs::{
    CountData, DataFrom, Keep, KeepArgs, LabelArgs, ListSnapshots, QuotaArgs, SetLabel, SetQuota,
    SetTaking, Snapshot, SnapshotArgs, SnapshotsFrom, TakingArgs,
};
use crate::pool::volume::{Volume, info, version_of};
use crate::pool::{PoolDevice, report};

/// A device whose bytes are those of the only vdisk of a pool. Its volumes are the snapshots of the vdisk, and their
/// clones.
pub struct Versioned {
    home: PoolHome,
    /// The pool, whose names begin with that of the only vdisk.
    pool: Rc<PoolDevice>,
    info: Info,
    /// The vdisk, once the pool is open.
    head: OnceCell<Rc<Volume>>,
}

impl Versioned {
    /// Creates the device over a pool that is open, or that its opening opens.
    ///
    /// # Errors
    /// `Invalid` if the vdisk has another size; those of the device.
    pub async fn open(home: PoolHome, size: u64) -> Result<Self> {
        if let Some(pool) = home.now_for_reading() {
            let is = pool.size(find(pool).await?).await?;
            if is != size {
                return Err(other_size(is));
            }
        }
        let info = info(home.lower().info(), size, home.is_read_only());
        let pool = Rc::new(PoolDevice::new(home.clone()));
        Ok(Self { home, pool, info, head: OnceCell::new() })
    }

    /// Waits until the pool is open, and returns the device of the vdisk.
    async fn head(&self) -> Result<&Rc<Volume>> {
        if self.head.get().is_none() {
            let id = find(self.home.pool().await?).await?;
            let opened = Volume::open(&self.home, id).await?;
            if self.head.set(opened.device).is_err() {
                // Another request has opened it meanwhile.
                self.home.release(id);
            }
        }
        Ok(self.head.get().expect("the vdisk is open"))
    }
}

/// Returns the identity of the only vdisk.
async fn find(pool: &Pool) -> Result<::pool::live::VersionId> {
    let name = VersionName { vdisk: only_vdisk(), snapshot: None };
    let found = pool.find(&name).await?;
    found.ok_or_else(|| {
        error!(Corrupt, "the pool is not that of a versioned device: it has no {name}")
    })
}

/// Returns the name of a vdisk in the pool: the only one for an empty name, or the clone `name`.
fn vdisk(name: &str) -> String {
    if name.is_empty() { only_vdisk().to_string() } else { in_pool(name) }
}

/// Returns the name in the pool of the volume `name`.
fn in_pool(name: &str) -> String {
    format!("{}@{name}", only_vdisk())
}

impl Device for Versioned {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.head().await?.submit(request).await
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        self.head().await?.resolve(range).await
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        VERBS
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        let command = if command.is::<Check>() {
            command
        } else if let Some(args) = command.args::<Snapshot>() {
            let vdisks = args.vdisks.iter().map(|name| vdisk(name)).collect();
            Command::new::<Snapshot>(SnapshotArgs { vdisks, ..args.clone() })
        } else if let Some(args) = command.args::<SetTaking>() {
            let vdisk = vdisk(&args.vdisk);
            Command::new::<SetTaking>(TakingArgs { vdisk, ..args.clone() })
        } else if let Some(args) = command.args::<Keep>() {
            Command::new::<Keep>(KeepArgs { vdisk: vdisk(&args.vdisk), ..args.clone() })
        } else if let Some(args) = command.args::<SetQuota>() {
            let vdisk = vdisk(&args.vdisk);
            Command::new::<SetQuota>(QuotaArgs { vdisk, ..args.clone() })
        } else if let Some(args) = command.args::<SetLabel>() {
            let snapshot = in_pool(&args.snapshot);
            Command::new::<SetLabel>(LabelArgs { snapshot, ..args.clone() })
        } else if let Some(volumes::Name { name, dry_run }) = command.args::<volumes::Remove>() {
            Command::new::<volumes::Remove>(volumes::Name {
                name: in_pool(name),
                dry_run: *dry_run,
            })
        } else if let Some(args) = command.args::<ListSnapshots>() {
            let vdisk = vdisk(&args.vdisk);
            Command::new::<ListSnapshots>(SnapshotsFrom { vdisk, ..args.clone() })
        } else if let Some(args) = command.args::<CountData>() {
            let version = vdisk(&args.version);
            Command::new::<CountData>(DataFrom { version, ..args.clone() })
        } else {
            return Box::pin(std::future::ready(Err(command.unknown_to("a versioned device"))));
        };
        self.pool.clone().control(command)
    }

    fn volumes<V: VolumesVisitor>(self: Rc<Self>, visitor: V) -> Option<V::Output> {
        Some(visitor.visit(self))
    }

    fn report(&self) -> Report {
        report(&self.home)
    }

    fn close(&self) -> LocalFuture<Handover> {
        Device::close(&*self.pool)
    }
}

impl Volumes for Versioned {
    type Volume = Volume;

    async fn list(&self, after: &str, most: usize) -> Result<Vec<VolumeEntry>> {
        let mut listed = self.pool.list(&in_pool(after), most).await?;
        let prefix = in_pool("");
        listed.iter_mut().for_each(|it| it.name = it.name.replacen(&prefix, "", 1));
        Ok(listed)
    }

    async fn look(&self, name: &str) -> Result<Option<VolumeFacts>> {
        self.pool.look(&in_pool(name)).await
    }

    async fn open(&self, name: &str, mode: OpenMode) -> Result<Option<OpenedVolume<Volume>>> {
        self.pool.open(&in_pool(name), mode).await
    }

    async fn close(&self, id: VolumeId) {
        self.home.release(version_of(id));
    }
}
