//! Opens the vault of a remap device, or creates the vault on new disks.

use std::cell::Cell;

use block::units::write_size;
use block::{Env, Error, ErrorKind, Lower, Result, bail, error};
use meta::Uuid;
use meta::alloc::{Allocator, Policy};
use meta::vault::{Options, Shape, Vault};

use super::layout::{Layout, VaultSize};
use super::record::Record;
use crate::kept::{Kept, Start};

/// Role of the map of blocks among the objects of the vault. The bitmap of data blocks in use has the next role.
const ROLE: u32 = 0;

/// Owner of the objects in the vault. The owner is not the name of the device, which may change in the spec. A vault
/// belongs to only one remap device.
const OWNER: &str = "remap";

/// Most objects in the vault: the map, the bitmap, and objects of later versions.
const OBJECTS: u32 = 8;

/// The parameters with which a remap device opens its vault and the map of blocks in it.
pub struct Opening {
    pub env: Env,
    pub data: Lower,
    /// The lower with the vault; `vault_size` has the most bytes of that lower that the vault uses.
    pub meta: Lower,
    pub vault_size: VaultSize,
    pub kept: Kept,
    /// Whether packing is paused, according to the state in the labels.
    pub kept_paused: Cell<bool>,
    pub policy: Policy,
    pub cache_bytes: usize,
    pub read_only: bool,
}

/// Access to the vault of a remap device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Opening and using the vault writes nothing.
    ReadOnly,
    /// Opening and using the vault writes, as far as the lowers permit.
    Full,
}

/// The open vault of a remap device, and the map of blocks in it.
pub struct Map {
    pub vault: Vault,
    pub blocks: Allocator,
}

impl Opening {
    /// Returns the state of the device in the labels; `None` if the device is new.
    ///
    /// # Errors
    /// `NotFound` if disks that are not new have no state of the device, `Corrupt` if the state is damaged, `Invalid`
    /// if the spec differs from the state.
    pub fn found(&self, wanted: &Layout) -> Result<Option<Record>> {
        let state = match self.kept.start() {
            Start::State(state) => state,
            Start::New if self.read_only => {
                let words = "the disks below are new and read-only, so no map can be made";
                return Err(Error::new(ErrorKind::ReadOnly, words));
            }
            Start::New => return Ok(None),
            Start::Absent => {
                bail!(NotFound, "the disk with the state of the remap device is absent")
            }
            Start::Foreign => {
                let error = error!(
                    NotFound,
                    "the disks below have no map of blocks, but are not new: the bytes on these \
                     disks were not written through this remap device"
                );
                let next = "label the disks anew with --wipe, if all their bytes may be lost";
                return Err(error.next(next));
            }
        };
        let wrong = |why| error!(Corrupt, "the state of the remap in the label is damaged: {why}");
        let record = Record::decode(state).map_err(wrong)?;
        check(&record.layout, wanted, self.data.info().size)?;
        Ok(Some(record))
    }

    /// Creates the vault for the map of a new device, and returns its UUID. Erases the former content of the lower
    /// where the vault is created.
    ///
    /// # Errors
    /// Errors of creating the vault on the disks.
    pub async fn format(&self, layout: &Layout) -> Result<Uuid> {
        let VaultSize { bytes, log_bytes } = self.vault_size;
        let shape = Shape { log_bytes: Some(log_bytes), objects: OBJECTS, bytes: Some(bytes) };
        let made = Vault::format(&self.env, std::slice::from_ref(&self.meta), shape).await?;
        let vault = self.vault(made, Access::Full).await?;
        let mut transaction = vault.begin();
        Allocator::create(&mut transaction, OWNER, ROLE, layout.blocks, layout.places)?;
        vault.commit(transaction).await?;
        vault.close().await?;
        Ok(made)
    }

    /// Opens the vault `uuid` of the device, and the map of blocks in it.
    ///
    /// # Errors
    /// `Corrupt` if the lower has no vault with this UUID; errors of opening the vault.
    pub async fn open(&self, uuid: Uuid, access: Access) -> Result<Map> {
        let vault = self.vault(uuid, access).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                error!(
                    Corrupt,
                    "the map of blocks is missing on {}, although the labels record the map. Next: \
                     bring back the disk with the map",
                    self.meta.name()
                )
            }
            _ => error,
        })?;
        let blocks = Allocator::open(&vault, OWNER, ROLE, self.policy)?;
        Ok(Map { vault, blocks })
    }

    async fn vault(&self, uuid: Uuid, access: Access) -> Result<Vault> {
        let options = Options {
            cache_bytes: self.cache_bytes,
            read_only: self.read_only || access == Access::ReadOnly,
            may_degrade: false,
            vault: Some(uuid),
            bytes: None,
        };
        let copies = vec![Some(self.meta.clone())];
        Vault::open_with_data(&self.env, copies, self.data.clone(), &options).await
    }
}

/// Checks that `wanted`, the layout that the spec describes, agrees with `made`, the layout in the labels, and that a
/// lower of `data_bytes` bytes contains all data blocks. The lower may have grown since the device was created.
fn check(made: &Layout, wanted: &Layout, data_bytes: u64) -> Result<()> {
    let differs = |option: &str, was: u64, is: u64| {
        let was = write_size(was);
        Err(error!(
            Invalid,
            "the remap device was made with {option} = \"{was}\", but the spec has {}",
            write_size(is)
        )
        .next(format!("set {option} = \"{was}\"")))
    };
    if made.block_bytes != wanted.block_bytes {
        return differs("block", made.block_bytes, wanted.block_bytes);
    }
    if made.blocks != wanted.blocks {
        return differs("size", made.size(), wanted.size());
    }
    if (made.start == 0) != (wanted.start == 0) {
        let (was, next) = match made.start {
            0 => ("on a second device", "name the second device in \"meta\""),
            _ => ("in front of the blocks", "remove \"meta\""),
        };
        return Err(error!(Invalid, "the remap device was made with the map {was}").next(next));
    }
    let end = made.places(made.places - 1, 1).end();
    if end > data_bytes {
        bail!(Invalid, "the physical blocks end at {end}; the lower device has {data_bytes} bytes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use block::Info;

    use super::*;

    #[test]
    fn remap_opening_accepts_grown_disk_and_rejects_shrunk_disk() {
        let disk = |bytes: u64| Info::disk(bytes, 512);
        let (made, _) = Layout::new(4096, 100, &disk(1 << 30), false);
        let (wanted, _) = Layout::new(4096, 100, &disk(1 << 40), false);
        assert_ne!(made.start, wanted.start, "its map would have been a larger one");
        check(&made, &wanted, 1 << 40).unwrap();
        check(&made, &made, 1 << 30).unwrap();
        let error = check(&made, &made, (1 << 30) - 4096).unwrap_err();
        assert!(error.to_string().contains("the lower device has"), "{error}");
        let (apart, _) = Layout::new(4096, 100, &disk(1 << 30), true);
        let error = check(&made, &apart, 1 << 30).unwrap_err();
        assert!(error.to_string().ends_with("remove \"meta\""), "{error}");
    }
}
