//! The device that stands in for an absent disk. It fails every request with an error.

use block::{Device, Error, ErrorKind, Health, Info, Report, Request, Result};

/// The message of the error of every request to an absent disk.
const MISSING: &str = "the disk is absent";

/// The device that takes the place of a labelled disk that labels of the graph name and that was not found.
pub struct Absent {
    pub info: Info,
    pub name: String,
}

impl Device for Absent {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, _: &mut Request) -> Result<()> {
        Err(Error::new(ErrorKind::Io, MISSING).at(&self.name))
    }

    fn report(&self) -> Report {
        let (health, summary) = (Health::Failed, MISSING.to_owned());
        Report { health, summary, ..Report::default() }
    }
}
