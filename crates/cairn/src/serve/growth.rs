//! Growth of the file of a disk.

use std::fs::File;

use api::{ChangeLine, ResizeRequest};
use block::units::format_exact;
use graph::spec::{Planned, Role};

use crate::exit::{Exit, Failure, Result};

/// A planned growth of the file of a disk.
pub(super) struct Growth {
    path: String,
    wanted_bytes: u64,
}

/// The file of a disk after its growth.
pub(super) struct Grown<'g> {
    growth: &'g Growth,
    file: File,
    had_bytes: u64,
}

impl Grown<'_> {
    /// Restores the previous size of the file after a change that failed, unless the file was resized again since.
    pub fn take_back(self) {
        let has = self.file.metadata().map(|metadata| metadata.len());
        if has.is_ok_and(|has| has == self.growth.wanted_bytes) {
            // A file that is too large does no harm.
            let _ = self.file.set_len(self.had_bytes);
        }
    }
}

impl Growth {
    /// Returns the growth that a request asks for; `None` if the request has no size.
    ///
    /// # Errors
    /// `NotFound` if the graph has no disk of that name; `Unsupported` if the disk is not a file, or would shrink;
    /// `Usage` if a labelled disk would grow by less than the size of a label.
    pub fn of(planned: &Planned, request: &ResizeRequest) -> Result<Option<Self>> {
        let name = &request.disk;
        let disks = planned.nodes.iter().filter(|node| node.role == Role::Disk);
        let names: Vec<&str> = disks.clone().map(|node| node.name.as_str()).collect();
        let Some(disk) = disks.into_iter().find(|node| node.name == *name) else {
            let why = format!("no disk {name:?} in {}; disks: {}", planned.name, names.join(", "));
            return Err(Failure::new(Exit::NotFound, why));
        };
        let Some(wanted_bytes) = request.size_bytes else { return Ok(None) };
        let Some(path) = disk.path().filter(|_| disk.kind.made_size().is_some()) else {
            let why = format!("the disk {name} is not a file, so Cairn cannot change its size");
            return Err(Failure::new(Exit::Unsupported, why)
                .next(format!("enlarge the disk outside Cairn, then cairn device resize {name}")));
        };
        let around = if disk.labelled { 2 * doctor::AREA_BYTES } else { 0 };
        let is_bytes = disk.info.data_bytes() + around;
        let (is, would) = (format_exact(is_bytes), format_exact(wanted_bytes));
        if wanted_bytes < is_bytes {
            let why = format!("{name} would shrink from {is} to {would}, and lose its last bytes");
            return Err(Failure::new(Exit::Unsupported, why));
        }
        if disk.labelled && wanted_bytes < is_bytes + doctor::AREA_BYTES {
            fail!(Usage, "the labelled disk {name} has {is}, and grows by 1 MiB at least");
        }
        Ok(Some(Self { path: path.to_owned(), wanted_bytes }))
    }

    /// Sets the file to its new size. Returns `None`, and changes nothing, if the file has that size or more.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn make(&self) -> Result<Option<Grown<'_>>> {
        let grow = || {
            let file = File::options().write(true).open(&self.path)?;
            let had_bytes = file.metadata()?.len();
            if had_bytes >= self.wanted_bytes {
                return Ok(None);
            }
            file.set_len(self.wanted_bytes)?;
            Ok(Some(Grown { growth: self, file, had_bytes }))
        };
        Ok(grow().map_err(|error| block::Error::size(&error, &self.path, self.wanted_bytes))?)
    }

    /// Returns the line about the growth in the list of changes.
    pub fn line(&self, disk: &str) -> ChangeLine {
        let words = format!("{} to {}", self.path, format_exact(self.wanted_bytes));
        ChangeLine { verb: "grow".to_owned(), name: disk.to_owned(), words }
    }
}
