//! The attached exports of this process, from attach to detach.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use api::{Attached, GraphView, Means, Problem};
use attach::{Claim, Found, Name, Release};
use block::Env;
use block::Notify;
use block::OpenMode;
use block::units::format_duration;
use export::nbd::Export;
use export::{Catalog, GraphCatalog};

use super::behind::{Behind, choose, step};
use super::helper::Step;
use super::kept::{EXPORT_MAX_BYTES, Kept};
use super::notes;
use crate::exit::{Exit, Failure, Result};
use crate::names;
use crate::out;

const _: () = assert!(
    attach::NAME_MAX_BYTES == graph::spec::NAME_MAX_BYTES,
    "the longest export name must be a valid name of an attached device"
);

/// Longest wait, at the start of the process, until a mount that cannot be resumed is removed.
const CLEAR: Duration = Duration::from_secs(10);

/// Longest wait, at the start of the process, until a device has grown to the size of its export.
const GROW: Duration = Duration::from_secs(10);

/// The exports that this process has attached as block devices of this machine.
pub struct Attachments {
    env: Env,
    catalog: GraphCatalog,
    all: RefCell<Vec<Rc<One>>>,
    /// Names of the exports that are being attached now.
    busy: RefCell<Vec<String>>,
    /// Whether no further export may be attached, because the process stops.
    ending: Cell<bool>,
    waiting: Notify,
}

/// An attached block device of this machine.
struct One {
    // Fields are dropped in this order, so the name is released last.
    behind: Behind,
    view: Attached,
    /// Whether the device is being detached now.
    leaving: Cell<bool>,
    claim: Claim,
    /// Size of the export, in bytes.
    size: Cell<u64>,
    /// Whether the supervisor holds the mount of the device, so that the device outlives this process. The value is
    /// that of the last note to the operator.
    held: Cell<bool>,
}

impl Attachments {
    /// Creates a set without attached devices.
    pub fn new(env: &Env, catalog: &GraphCatalog) -> Self {
        Self {
            env: env.clone(),
            catalog: catalog.clone(),
            all: RefCell::default(),
            busy: RefCell::default(),
            ending: Cell::new(false),
            waiting: Notify::default(),
        }
    }

    /// Returns the views of the attached devices, for users.
    pub fn views(&self) -> Vec<Attached> {
        self.all.borrow().iter().map(|one| one.view()).collect()
    }

    /// Adds the path of its block device to each attached export of the view.
    pub fn show(&self, view: &mut GraphView) {
        let all = self.all.borrow();
        for export in &mut view.exports {
            let found = all.iter().find(|one| one.view.export == export.name);
            export.attached = found.map(|one| one.view.path.clone());
        }
    }

    /// Returns the path of a device that would not outlive this process, or the name of an export that is being
    /// attached; `None` if there is neither.
    pub fn mortal(&self) -> Option<String> {
        let all = self.all.borrow();
        let mortal = all.iter().find(|one| !one.behind.is_entrusted());
        let busy = || self.busy.borrow().first().cloned();
        mortal.map(|one| one.view.path.clone()).or_else(busy)
    }

    /// Passes the mounts of all devices that outlive this process to the present supervisor again.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn fdstore_put_again(&self) -> Result<()> {
        self.all.borrow().iter().try_for_each(|one| one.behind.fdstore_put_again())
    }

    /// Returns the path of the block device of `export`; `None` if the export is not attached.
    pub fn of(&self, export: &str) -> Option<String> {
        let all = self.all.borrow();
        all.iter().find(|one| one.view.export == export).map(|one| one.view.path.clone())
    }

    /// Removes from the supervisor the mounts of devices that may not outlive this process any more, because their
    /// exports have changed. After a kill such a device could lose acknowledged writes. [`Attachments::adapt`] reports
    /// the removal.
    pub fn withdraw_mortal(&self) {
        self.all.borrow().iter().for_each(|one| one.behind.withdraw_mortal());
    }

    /// Adapts the devices to their exports after a live change. Each device gets the size of its export. Its mount is
    /// held by the supervisor if the device may outlive a kill of this process. Returns notes for the operator: a
    /// device that could not be resized, and a changed effect of a kill.
    pub async fn adapt(&self) -> Vec<String> {
        let all = self.all.borrow().clone();
        let mut notes = Vec::new();
        for one in all {
            notes.extend(one.hold_or_not());
            let export = self.catalog.get(&one.view.export);
            let Some(size) = export.map(|export| export.info().data_bytes()) else { continue };
            if one.size.replace(size) == size {
                continue;
            }
            one.behind.resized();
            if let Err(failure) = step(one.claim.name(), Step::Resize).await {
                notes.push(keeps_its_size(&one.view.path, &failure.to_string()));
            }
        }
        notes
    }

    /// Attaches an export as a block device of this machine.
    ///
    /// # Errors
    /// `Denied` without root, `NotFound`, `InUse`, and errors of the steps. After an error the steps have been
    /// reverted.
    pub async fn attach(
        &self,
        export: &str,
        name: Option<&str>,
        by: Option<Means>,
        dry_run: bool,
    ) -> Result<Attached> {
        must_be_root(None)?;
        let by = choose(by)?;
        let name = name.map_or_else(|| Name::of_export(export), str::parse)?;
        self.must_be_free(export)?;
        self.busy.borrow_mut().push(export.to_owned());
        let _busy = Busy { all: self, export: export.to_owned() };
        if dry_run {
            self.must_exist(export).await?;
            let _claim = Claim::take(&name)?;
            return Ok(unattached(&name, export));
        }
        let export = self.find(export, OpenMode::OrCreate).await?;
        let claim = Claim::take(&name)?;
        let view = unattached(&name, export.name());
        step(&name, Step::Prepare).await?;
        match self.connect(by, &export, &name, view).await {
            Ok((behind, view)) => {
                self.add(behind, view.clone(), claim, export.info().data_bytes());
                Ok(view)
            }
            Err(failure) => {
                // Only the first failure is reported.
                let _ = step(&name, Step::Clear).await;
                Err(failure)
            }
        }
    }

    fn add(&self, behind: Behind, view: Attached, claim: Claim, size: u64) {
        let (size, held) = (Cell::new(size), Cell::new(behind.is_entrusted()));
        let one = Rc::new(One { behind, view, leaving: Cell::new(false), claim, size, held });
        self.all.borrow_mut().push(one.clone());
        self.watch(&one);
    }

    /// Resumes the devices of an earlier process whose mounts the supervisor holds. A device is removed if its export
    /// does not exist any more, or has changed. Each device is reported in the log.
    pub async fn resume(&self) {
        let all = self.env.inherited().into_iter().filter(|text| Kept::is_meant(text));
        for text in all {
            let Ok(kept) = text.parse::<Kept>() else {
                warn!("this version of Cairn cannot resume the mount {text:?}");
                self.fdstore_remove(&text);
                continue;
            };
            let path = kept.name.link().display().to_string();
            match self.resume_one(&kept).await {
                Ok(view) => {
                    note!("{path} -> {}  resumed", view.device.unwrap_or_default());
                }
                Err(failure) => {
                    note!("{path}: {}; the device returns I/O errors, and is removed", failure)
                }
            }
        }
    }

    async fn resume_one(&self, kept: &Kept) -> Result<Attached> {
        match self.take_up(kept).await {
            Ok((view, is_smaller)) => {
                if is_smaller {
                    self.grow(kept).await;
                }
                Ok(view)
            }
            Err(failure) => {
                self.let_go(kept, failure.code == Exit::InUse.code()).await;
                Err(failure)
            }
        }
    }

    /// Grows the device to the size of its export, which the previous process did not do. If that fails, the device
    /// has its old size.
    async fn grow(&self, kept: &Kept) {
        let why = match self.env.within(GROW, step(&kept.name, Step::Resize)).await {
            Some(Ok(_)) => return,
            Some(Err(failure)) => failure.to_string(),
            None => format!("the resize did not end within {}", format_duration(GROW)),
        };
        out::note(&keeps_its_size(&kept.name.link().display().to_string(), &why));
    }

    /// Takes over a mount from the supervisor. Returns the view of its device, and whether the device is smaller than
    /// its export.
    async fn take_up(&self, kept: &Kept) -> Result<(Attached, bool)> {
        self.must_be_free(&kept.export)?;
        let export = self.find(&kept.export, OpenMode::Existing).await?;
        let claim = Claim::take(&kept.name)?;
        let (behind, found) = Behind::resume(&self.env, &export, kept)?;
        let Found { connected, is_smaller } = found;
        let view = unattached(&kept.name, &kept.export);
        let notes = notes::of(&behind, &view.path, connected.direct, true);
        let device = Some(connected.device.display().to_string());
        let view = Attached { device, has_resend: true, notes, ..view };
        self.add(behind, view.clone(), claim, export.info().data_bytes());
        Ok((view, is_smaller))
    }

    /// Removes a mount that cannot be resumed, and its device. If another process uses the name now (`is_of_others`),
    /// only the descriptor of the mount is closed.
    async fn let_go(&self, kept: &Kept, is_of_others: bool) {
        let name = &kept.name;
        self.fdstore_remove(&kept.to_string());
        if is_of_others {
            return;
        }
        let Ok(_claim) = Claim::take(name) else { return };
        let path = name.link().display().to_string();
        match self.env.within(CLEAR, step(name, Step::Clear)).await {
            Some(Ok(_)) => {}
            Some(Err(failure)) => {
                warn!("removing the device {path}: {}", failure)
            }
            None => {
                warn!("{path} is not removed after {}: its mount is in use", format_duration(CLEAR))
            }
        }
    }

    /// Makes the supervisor close the descriptor of a mount. No other process has the mount open, so its unanswered
    /// requests fail.
    fn fdstore_remove(&self, text: &str) {
        if let Err(error) = self.env.fdstore_remove(text) {
            warn!("{error}");
        }
    }

    /// Opens the export or volume called `name`.
    async fn find(&self, name: &str, mode: OpenMode) -> Result<Rc<Export>> {
        let found = self.catalog.find(name, mode).await?;
        found.ok_or_else(|| self.unknown(name))
    }

    /// Fails if there is no export or volume called `name`. Opens and creates nothing.
    async fn must_exist(&self, name: &str) -> Result<()> {
        let looked = self.catalog.look(name).await?;
        looked.map(drop).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Failure {
        let exports = self.catalog.exports();
        let names: Vec<_> = exports.iter().map(|export| export.name()).collect();
        failure!(NotFound, "no export {name:?} here; the exports: {}", names.join(", "))
    }

    /// Fails if the export called `name` is attached, is being attached, or cannot be attached.
    fn must_be_free(&self, name: &str) -> Result<()> {
        if self.ending.get() {
            return Err(block::env::stopped().into());
        }
        if self.busy.borrow().iter().any(|busy| busy == name) {
            let why = format!("the export {name} is already being attached");
            return Err(Failure::new(Exit::InUse, why));
        }
        if !Kept::fits(name) {
            fail!(
                Unsupported,
                "the name {name:?} cannot be attached: such a name has at most {EXPORT_MAX_BYTES} \
                 bytes of ASCII, without a blank or a colon"
            );
        }
        let all = self.all.borrow();
        if let Some(one) = all.iter().find(|one| one.view.export == name) {
            // The page cache of each of two devices would miss the writes of the other.
            fail!(InUse, "the export {name} is already attached as {}", one.view.path);
        }
        Ok(())
    }

    async fn connect(
        &self,
        by: Means,
        export: &Rc<Export>,
        name: &Name,
        view: Attached,
    ) -> Result<(Behind, Attached)> {
        let (behind, done, agreed) = Behind::begin(by, &self.env, export, name).await?;
        let kept = behind.fdstore_put(name);
        let direct = done.connected.as_ref().is_some_and(|connected| connected.direct);
        let notes = notes::of(&behind, &view.path, direct, kept);
        let device = done.connected.map(|connected| connected.device.display().to_string());
        let has_resend = agreed.is_some_and(|agreed| agreed.has_resend);
        Ok((behind, Attached { device, has_resend, notes, ..view }))
    }

    /// Logs a warning if the mount or the server behind a device ends while the device is attached.
    fn watch(&self, one: &Rc<One>) {
        let (behind, one) = (one.behind.clone(), Rc::downgrade(one));
        self.env.spawn("watch of an attached device", async move {
            behind.ended().await;
            if let Some(one) = one.upgrade().filter(|one| !one.leaving.get()) {
                one.behind.withdraw();
                let path = &one.view.path;
                note!(
                    "{path}: the {} of the device ended without cairn detach; the device returns \
                     I/O errors. Next: cairn detach {}",
                    one.behind.what(),
                    one.view.name
                );
            }
        });
    }

    /// Returns the device with this name or path, or else the device of the export with this name.
    fn named(&self, name: &str) -> Result<Rc<One>> {
        let all = self.all.borrow();
        let by_name = |one: &&Rc<One>| one.view.name == name || one.view.path == name;
        let of_export = |one: &&Rc<One>| one.view.export == name;
        let found = all.iter().find(by_name).or_else(|| all.iter().find(of_export));
        found.cloned().ok_or_else(|| {
            let names = all.iter().map(|one| one.view.name.as_str());
            let known = names::listed(names, "no device is attached", "attached devices:");
            failure!(NotFound, "{name} is not attached; {known}")
        })
    }

    /// Flushes a device, and removes it. With `dry_run`, only checks that it could be removed.
    ///
    /// # Errors
    /// `NotFound`; `InUse` with the users of the device, which then stays attached; `Io` if the device was removed
    /// without a flush.
    pub async fn detach(&self, name: &str, dry_run: bool) -> Result<Attached> {
        let one = self.named(name)?;
        if dry_run {
            step(one.claim.name(), Step::CheckUnused).await?;
        } else {
            let unflushed = one.release(Duration::ZERO, false).await?;
            self.forget(one.clone()).await;
            if let Some(problem) = unflushed {
                return Err(problem.into());
            }
        }
        Ok(one.view.clone())
    }

    async fn forget(&self, one: Rc<One>) {
        self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, &one));
        self.waiting.wake();
        let behind = one.behind.clone();
        drop(one);
        behind.farewell(&self.env).await;
    }

    /// Waits until no device is attached.
    pub async fn emptied(&self) {
        self.waiting.until(|| self.all.borrow().is_empty()).await;
    }

    /// Removes all devices. Waits up to `limit` until they are not in use.
    ///
    /// # Errors
    /// The devices that are still in use after `limit`, and those that could not be flushed.
    pub async fn end(&self, limit: Duration) -> Result<(), String> {
        let deadline = self.env.now().after(limit);
        self.ending.set(true);
        let idle = self.waiting.until(|| self.busy.borrow().is_empty());
        // An attach that is not finished by then is cleaned up when the name is claimed next.
        let _ = self.env.within(limit, idle).await;
        let mut behind = Vec::new();
        let all = self.all.borrow().clone();
        for one in all {
            let mut released = one.release(Duration::ZERO, false).await;
            if let Err(failure) = &released {
                let patience = deadline.since(self.env.now());
                if failure.code == Exit::InUse.code() {
                    let wait = format_duration(patience);
                    let until = "until the device is no longer in use";
                    note!("{failure}; waiting up to {wait} {until}");
                }
                released = one.release(patience, true).await;
            }
            match released {
                Ok(unflushed) => {
                    behind.extend(unflushed.map(|problem| problem.message));
                    self.forget(one).await;
                }
                Err(failure) => behind.push(format!(
                    "{}. The device returns I/O errors now; its unwritten data are lost",
                    failure
                )),
            }
        }
        if behind.is_empty() {
            return Ok(());
        }
        Err(behind.join("; "))
    }
}

/// Returns the view of an export before it is attached.
fn unattached(name: &Name, export: &str) -> Attached {
    let path = name.link().display().to_string();
    let (name, export) = (name.to_string(), export.to_owned());
    Attached { name, export, path, device: None, has_resend: false, notes: Vec::new() }
}

fn keeps_its_size(path: &str, why: &str) -> String {
    format!("warning: the device {path} keeps its old size: {why}")
}

/// Guard that marks an export as being attached, until it is dropped.
struct Busy<'a> {
    all: &'a Attachments,
    export: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.all.busy.borrow_mut().retain(|busy| *busy != self.export);
        self.all.waiting.wake();
    }
}

impl One {
    /// Returns the present view of the device, for users.
    fn view(&self) -> Attached {
        let mut view = self.view.clone();
        if let Some(first) = view.notes.first_mut() {
            *first = notes::after_kill(&view.path, self.behind.is_entrusted());
        }
        view
    }

    /// Passes the mount of the device to the supervisor if the device may outlive a kill of this process; otherwise
    /// removes it from the supervisor. If that is a change, returns a note about the effect of a kill.
    fn hold_or_not(&self) -> Option<String> {
        if self.leaving.get() {
            return None;
        }
        self.behind.withdraw_mortal();
        let held = self.behind.fdstore_put(self.claim.name());
        (self.held.replace(held) != held).then(|| notes::after_kill(&self.view.path, held))
    }

    /// Flushes and removes the device, once it is not in use. After `patience` a device in use is an error; with
    /// `give_up` its mount ends all the same. Returns the reason if the device could not be flushed.
    async fn release(&self, patience: Duration, give_up: bool) -> Result<Option<Problem>> {
        self.leaving.set(true);
        let released = step(self.claim.name(), Step::Release(Release { patience, give_up })).await;
        let leaves = released.is_ok() || give_up;
        self.leaving.set(leaves);
        if leaves {
            self.behind.withdraw();
        }
        Ok(released?.unflushed)
    }
}

/// Checks that this process may attach devices. `uri` is the export's URI, for the command that root can run instead.
///
/// # Errors
/// `Denied` with the next step.
pub fn must_be_root(uri: Option<&str>) -> Result<()> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok(());
    }
    let uri = uri.map_or_else(|| "URI".to_owned(), |uri| format!("'{uri}'"));
    Err(failure!(
        Denied,
        "attaching needs root, and process {} runs as user {}: only root may mount and make block \
         devices",
        std::process::id(),
        user.as_raw()
    )
    .next(format!("serve as root, or sudo cairn attach {uri}")))
}
