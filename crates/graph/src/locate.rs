//! Search for the places of one byte of an export on the disks.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;

use block::answers::LocateStep;
use block::{ByteRange, Result, bail};

use engine::AnyDevice;

use crate::running::{Export, Graph, Member, resolved};

/// Maximum number of places at which [`Graph::locate`] finds one byte, counted over all devices below the export.
const PLACES_MAX: usize = 4096;

impl Graph {
    /// Returns the device that holds the byte at `offset` of an export, and below it the places of that byte in each
    /// lower, down to the disks.
    ///
    /// # Errors
    /// `OutOfRange` if `offset` is past the end of the export; `Limit` if the byte is in more than 4096 places.
    pub async fn locate(&self, export: &Export, offset: u64) -> Result<LocateStep> {
        if offset >= export.info.size {
            let (name, size) = (&export.name, export.info.size);
            bail!(OutOfRange, "export {name} has {size} bytes; byte {offset} is past the end");
        }
        self.locate_in(export.member, offset, "".into(), &mut 0).await
    }

    /// Returns the places of the byte at `offset` of a member, as [`Graph::locate`] does for an export.
    ///
    /// # Errors
    /// As [`Graph::locate`].
    pub(crate) async fn locate_member(&self, member: usize, offset: u64) -> Result<LocateStep> {
        let Member { name, info, .. } = &self.members()[member];
        if offset >= info.size {
            bail!(OutOfRange, "{name} has {} bytes; byte {offset} is past the end", info.size);
        }
        self.locate_in(member, offset, "".into(), &mut 0).await
    }

    /// Returns the place of the byte at `offset` of the volume `name`, whose device is `volume`, and the places of that
    /// byte in the lowers of the device that holds the volume.
    pub(crate) async fn locate_volume(
        &self,
        name: &str,
        holder: &Member,
        volume: &dyn AnyDevice,
        offset: u64,
    ) -> Result<LocateStep> {
        let byte = ByteRange::new(offset, 1).expect("one byte inside a volume");
        let (mut below, mut places) = (Vec::new(), 1);
        for place in resolved(volume, byte, PLACES_MAX).await? {
            let (lower, at) = (holder.lowers[place.lower], place.range.start());
            below.push(self.locate_in(lower, at, place.how, &mut places).await?);
        }
        Ok(LocateStep {
            name: name.to_owned(),
            kind: holder.kind.name.to_owned(),
            offset_bytes: offset,
            label_bytes: 0,
            path: None,
            path_offset_bytes: None,
            how: String::new(),
            below,
        })
    }

    /// Returns the place of the byte at `offset` of a member, and the places of that byte below. `how` describes the
    /// step from the upper device to this member. `places` counts the places found so far: each mirror of two
    /// partitions of one device doubles their number.
    fn locate_in<'g>(
        &'g self,
        member: usize,
        offset: u64,
        how: Cow<'static, str>,
        places: &'g mut usize,
    ) -> Pin<Box<dyn Future<Output = Result<LocateStep>> + 'g>> {
        Box::pin(async move {
            *places += 1;
            if *places > PLACES_MAX {
                bail!(Limit, "the byte is in more than {PLACES_MAX} places of the graph");
            }
            let member = &self.members()[member];
            let byte = ByteRange::new(offset, 1).expect("one byte inside a device");
            let mut below = Vec::new();
            for place in self.resolve(member, byte, PLACES_MAX).await? {
                let (lower, at) = (self.holding(member)[place.lower], place.range.start());
                below.push(self.locate_in(lower, at, place.how, places).await?);
            }
            Ok(LocateStep {
                name: member.name.clone(),
                kind: member.kind.name.to_owned(),
                offset_bytes: offset,
                label_bytes: member.label_bytes(),
                path: None,
                path_offset_bytes: None,
                how: how.into_owned(),
                below,
            })
        })
    }
}
