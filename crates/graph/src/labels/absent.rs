//! A disk that is not there: it answers only errors.

use block::{Device, Error, ErrorKind, Health, Info, Report, Request, Result};

/// The reason in each of its errors.
const MISSING: &str = "the disk is not there";

/// The device in place of a disk that its graph remembers and no path leads to.
pub struct Absent {
    info: Info,
    name: String,
}

impl Absent {
    /// A disk of which only the name and the facts are known.
    pub fn new(name: &str, info: Info) -> Self {
        Self { info, name: name.to_owned() }
    }
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
