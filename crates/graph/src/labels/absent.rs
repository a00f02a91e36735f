//! A disk that is not there: it answers only errors.

use block::{Device, Error, ErrorKind, Health, Info, Report, Request, Result};

/// What stands for a disk that its graph remembers and that nobody has found.
pub struct Absent {
    info: Info,
    name: String,
    why: &'static str,
    next: Option<&'static str>,
}

impl Absent {
    /// A disk of which only its name and its facts are known.
    pub fn new(name: &str, info: Info) -> Self {
        Self { info, name: name.to_owned(), why: "the disk is not there", next: None }
    }

    /// What stands for an export that cannot be served any more.
    pub fn lost(name: &str, info: Info) -> Self {
        let why = "a change has failed, and so has the way back";
        Self { info, name: name.to_owned(), why, next: Some("start again") }
    }
}

impl Device for Absent {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, _: &mut Request) -> Result<()> {
        let error = Error::new(ErrorKind::Io, self.why).at(&self.name);
        Err(match self.next {
            Some(next) => error.next(next),
            None => error,
        })
    }

    fn report(&self) -> Report {
        let (health, summary) = (Health::Failed, self.why.to_owned());
        let next = self.next.map(str::to_owned);
        Report { health, summary, next, ..Report::default() }
    }
}
