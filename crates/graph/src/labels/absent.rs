//! The device in the place of an absent disk, or of a device that did not open. It fails every request with an error.

use block::{Device, Error, ErrorKind, Health, Info, Report, Request, Result};

/// The device that takes the place of a labelled disk that labels of the graph name and that was not found, or of a device
/// that the graph goes on without.
pub struct Absent {
    info: Info,
    why: Error,
}

impl Absent {
    /// Returns the device for an absent disk.
    pub fn disk(name: &str, info: Info) -> Self {
        Self { info, why: Self::missing(name) }
    }

    /// Returns the device for one that did not open, with the error `why`.
    pub fn device(info: Info, why: Error) -> Self {
        Self { info, why }
    }

    /// Returns the error of every request to an absent disk.
    pub fn missing(name: &str) -> Error {
        Error::new(ErrorKind::Io, "the disk is absent").at(name)
    }
}

impl Device for Absent {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, _: &mut Request) -> Result<()> {
        Err(self.why.clone())
    }

    fn report(&self) -> Report {
        let (health, summary) = (Health::Failed, self.why.message().to_owned());
        Report { health, summary, ..Report::default() }
    }
}
