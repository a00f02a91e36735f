//! Location of one byte of an export on the disks.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;

use block::{ByteRange, Error, ErrorKind, Result};

use crate::running::{Export, Graph};

/// Maximum number of places of one byte, counted over all devices on the way down.
const PLACES_MAX: usize = 4096;

/// One byte of a device or disk, as a step of the way from an export down to the disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// Name of the device or disk.
    pub name: String,
    /// Name of the kind of the device or disk.
    pub kind: &'static str,
    /// Offset of the byte in the device.
    pub offset: u64,
    /// Bytes of the label before the data, if this is a labelled disk; else 0.
    pub label_bytes: u64,
    /// A word for how the device above transforms the byte on the way to this one; may be empty.
    pub how: Cow<'static, str>,
    /// The same byte in the lowers of this device: several bytes if the device keeps copies.
    pub below: Vec<Located>,
}

impl Graph {
    /// Returns the way of the byte at `offset` of an export down to the disks.
    ///
    /// # Errors
    /// `OutOfRange` if `offset` is past the end of the export; `Limit` if the byte is in more than 4096 places.
    pub async fn locate(&self, export: &Export, offset: u64) -> Result<Located> {
        if offset >= export.info.size {
            let (name, size) = (&export.name, export.info.size);
            let words = format!("{name} has {size} bytes; byte {offset} is not one of them");
            return Err(Error::new(ErrorKind::OutOfRange, words));
        }
        self.locate_in(export.member, offset, "".into(), &mut 0).await
    }

    /// Returns the way of one byte of a member. `places` counts the places found so far; their number doubles with each
    /// mirror of two partitions of one device.
    fn locate_in<'g>(
        &'g self,
        member: usize,
        offset: u64,
        how: Cow<'static, str>,
        places: &'g mut usize,
    ) -> Pin<Box<dyn Future<Output = Result<Located>> + 'g>> {
        Box::pin(async move {
            *places += 1;
            if *places > PLACES_MAX {
                let words = format!("the byte is in more than {PLACES_MAX} places of the graph");
                return Err(Error::new(ErrorKind::Limit, words));
            }
            let member = &self.members()[member];
            let byte = ByteRange::new(offset, 1).expect("one byte inside a device");
            let mut below = Vec::new();
            for place in self.resolve(member, byte, PLACES_MAX).await? {
                let (lower, at) = (member.lowers[place.lower], place.range.start());
                below.push(self.locate_in(lower, at, place.how, places).await?);
            }
            let (name, kind, label_bytes) =
                (member.name.clone(), member.kind.name, member.label_bytes());
            Ok(Located { name, kind, offset, label_bytes, how, below })
        })
    }
}
