//! A device with a home: passes requests to the device of the kind, and adds the report, the check and the close of its
//! objects.

use std::rc::Rc;

use block::control::state::{Check, Checked};
use block::control::{Command, Reply, Resolved, Verb as _, VerbInfo};
use block::env::LocalFuture;
use block::{ByteRange, Device, Handover, Health, Info, Report, Request, Result, VolumesVisitor};

use super::Home;

/// The verbs of a device with objects whose kind has no other.
pub const VERBS: &[&VerbInfo] = &[Check::INFO];

/// A device of a kind with objects. If the kind has verbs, it lists [`Check`] among them.
pub struct Homed<D, T: 'static> {
    device: Rc<D>,
    home: Home<T>,
}

impl<T: 'static> Home<T> {
    /// Returns `device` with the report, the check and the close of its objects.
    pub fn device<D: Device>(&self, device: D) -> Rc<Homed<D, T>> {
        Rc::new(Homed { device: Rc::new(device), home: self.clone() })
    }

    /// Checks all pages of the vault.
    ///
    /// # Errors
    /// As [`Home::get`]; errors of the disks.
    pub async fn check(&self) -> Result<Checked> {
        let findings = self.vault().await?.check().await?;
        let health = match (findings.count, findings.repairable) {
            (0, _) => Health::Ok,
            (_, true) => Health::Degraded,
            (_, false) => Health::Failed,
        };
        let summary = format!("{} pages of metadata", findings.pages);
        Ok(Checked { health, summary, wrong: findings.wrong })
    }
}

impl<D: Device, T: 'static> Device for Homed<D, T> {
    fn info(&self) -> &Info {
        self.device.info()
    }

    fn submit(&self, request: &mut Request) -> impl Future<Output = Result<()>> {
        self.device.submit(request)
    }

    fn resolve(&self, range: ByteRange) -> impl Future<Output = Result<Resolved>> {
        self.device.resolve(range)
    }

    fn verbs(&self) -> &'static [&'static VerbInfo] {
        match self.device.verbs() {
            [] => VERBS,
            own => own,
        }
    }

    fn control(self: Rc<Self>, command: Command) -> LocalFuture<Result<Reply>> {
        if !command.is::<Check>() {
            return self.device.clone().control(command);
        }
        Box::pin(async move { self.home.check().await.map(Reply::of::<Check>) })
    }

    fn volumes<V: VolumesVisitor>(self: Rc<Self>, visitor: V) -> Option<V::Output> {
        self.device.clone().volumes(visitor)
    }

    fn report(&self) -> Report {
        let mut report = self.device.report();
        if let Some(error) = self.home.replaced() {
            report.health = report.health.max(Health::Degraded);
            report.summary = format!("the metadata were made anew at this start: {error}");
        }
        if let Some(error) = self.home.failure() {
            report.health = Health::Failed;
            report.summary = format!("the metadata cannot be changed any more: {error}");
            report.next = Some("stop and start the graph when its disks work again".to_owned());
        }
        report
    }

    fn holders(&self) -> Vec<usize> {
        self.device.holders()
    }

    fn share(&self) -> Handover {
        self.device.share()
    }

    fn close(&self) -> LocalFuture<Handover> {
        let (device, home) = (self.device.clone(), self.home.clone());
        Box::pin(async move {
            let handover = device.close().await;
            home.close().await;
            handover
        })
    }
}
