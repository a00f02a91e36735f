//! Volumes that a device holds. They are found, opened and closed by name, and no spec names them.

use std::rc::Rc;

use crate::{Device, Info, Needs, Result};

/// Longest name of a volume in its device, in bytes.
pub const VOLUME_NAME_MAX_BYTES: usize = 255;

/// The volumes of a device, such as the virtual disks of a pool.
///
/// An open volume is a device beside the device that holds it: over the same lowers, with a reserve of its own for its
/// requests. A flush of the device that holds volumes makes the acknowledged writes to all of its volumes durable, open
/// or closed. Its [`Device::close`] is called when all of its volumes are closed.
///
/// Steps on different volumes may run at the same time. The caller runs one step at a time for each name, and runs no
/// step while the device is closed or replaced. The device may wait for its lowers in each step.
#[allow(async_fn_in_trait, reason = "one core drives each graph; its futures are not Send")]
pub trait Volumes: 'static {
    /// The device of an open volume.
    type Volume: Device;

    /// Lists up to `most` volumes with names after `after`, in the order of the bytes of their names. Opens and creates
    /// nothing. The page is shorter than `most` only if no further volumes follow.
    ///
    /// # Errors
    /// The error of a read from a lower.
    async fn list(&self, after: &str, most: usize) -> Result<Vec<VolumeEntry>>;

    /// Returns the facts about the volume called `name`; `None` if the device has no such volume. If an open with
    /// [`OpenMode::OrCreate`] would create the volume, returns the facts that it would have, without an identity. Opens
    /// and creates nothing.
    ///
    /// # Errors
    /// [`crate::Reason::VolumeGone`] for the name of a removed volume; `Invalid` for an invalid name; the error of a
    /// read from a lower.
    async fn look(&self, name: &str) -> Result<Option<VolumeFacts>>;

    /// Opens the volume called `name`; returns `None` if the device has no such volume. With [`OpenMode::OrCreate`],
    /// first creates the volume if its name asks for that, such as the clone `gold@v1+job`.
    ///
    /// While a live change makes the device anew, the change opens its volumes with [`OpenMode::Existing`]. Such an
    /// open writes nothing to lowers before the change is committed ([`crate::StateStore::committed`]).
    ///
    /// # Errors
    /// As [`Volumes::look`]; `NoSpace` if a volume cannot be created.
    async fn open(&self, name: &str, mode: OpenMode) -> Result<Option<OpenedVolume<Self::Volume>>>;

    /// Closes an open volume. Its device has no requests in flight and gets no further ones, and its [`Device::close`]
    /// has ended. A volume whose name was opened twice is closed twice. If the future is dropped, the volume stays open.
    async fn close(&self, id: VolumeId);
}

/// Identity of a volume, which it keeps for ever. A volume that is created under the name of a removed one has another
/// identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VolumeId(pub [u8; 24]);

/// Whether the open of a volume may create it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The open creates nothing.
    Existing,
    /// The open creates a volume that does not exist, if the name asks for that.
    OrCreate,
}

/// A volume in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeEntry {
    /// Name of the volume.
    pub name: String,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Whether the volume refuses writes.
    pub read_only: bool,
}

/// Facts about a volume, open or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeFacts {
    /// Identity of the volume; `None` if an open would create the volume.
    pub id: Option<VolumeId>,
    /// Size, block size and abilities of the volume's device.
    pub info: Info,
}

/// A volume that its device has opened.
pub struct OpenedVolume<D: ?Sized> {
    /// Identity of the volume.
    pub id: VolumeId,
    /// The device of the volume. It sends its requests to handles of the lowers of the device that holds it.
    pub device: Rc<D>,
    /// The resources that one request to the volume may need.
    pub needs: Needs,
}

/// A function that gets the volumes of a device in their own type ([`Device::volumes`]).
pub trait VolumesVisitor {
    /// The result of the function.
    type Output;

    /// Calls the function with the volumes of a device.
    fn visit<V: Volumes>(self, volumes: Rc<V>) -> Self::Output;
}
