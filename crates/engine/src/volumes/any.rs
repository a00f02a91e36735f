//! The object-safe form of the volumes of a device.

use std::rc::Rc;

use block::env::LocalFuture;
use block::{
    OpenMode, OpenedVolume, Result, VolumeEntry, VolumeFacts, VolumeId, Volumes, VolumesVisitor,
};

use crate::slot::AnyDevice;

/// The volumes of a device of any type: [`Volumes`] with boxed futures.
pub trait AnyVolumes {
    /// Lists volumes: see [`Volumes::list`].
    ///
    /// # Errors
    /// As [`Volumes::list`].
    fn list(self: Rc<Self>, after: String, most: usize) -> LocalFuture<Result<Vec<VolumeEntry>>>;
    /// Returns the facts about a volume: see [`Volumes::look`].
    ///
    /// # Errors
    /// As [`Volumes::look`].
    fn look(self: Rc<Self>, name: String) -> LocalFuture<Result<Option<VolumeFacts>>>;
    /// Opens a volume: see [`Volumes::open`].
    ///
    /// # Errors
    /// As [`Volumes::open`].
    fn open(self: Rc<Self>, name: String, mode: OpenMode) -> LocalFuture<Result<Option<Opened>>>;
    /// Closes an open volume: see [`Volumes::close`].
    fn close(self: Rc<Self>, id: VolumeId) -> LocalFuture<()>;
}

/// A volume that its device has opened, with a device of any type.
pub type Opened = OpenedVolume<dyn AnyDevice>;

impl<V: Volumes> AnyVolumes for V {
    fn list(self: Rc<Self>, after: String, most: usize) -> LocalFuture<Result<Vec<VolumeEntry>>> {
        Box::pin(async move { Volumes::list(&*self, &after, most).await })
    }

    fn look(self: Rc<Self>, name: String) -> LocalFuture<Result<Option<VolumeFacts>>> {
        Box::pin(async move { Volumes::look(&*self, &name).await })
    }

    fn open(self: Rc<Self>, name: String, mode: OpenMode) -> LocalFuture<Result<Option<Opened>>> {
        Box::pin(async move {
            let opened = Volumes::open(&*self, &name, mode).await?;
            Ok(opened.map(|OpenedVolume { id, device, needs }| Opened { id, device, needs }))
        })
    }

    fn close(self: Rc<Self>, id: VolumeId) -> LocalFuture<()> {
        Box::pin(async move { Volumes::close(&*self, id).await })
    }
}

/// The visitor that returns the volumes of a device in their object-safe form.
pub(crate) struct Erase;

impl VolumesVisitor for Erase {
    type Output = Rc<dyn AnyVolumes>;

    fn visit<V: Volumes>(self, volumes: Rc<V>) -> Self::Output {
        volumes
    }
}
