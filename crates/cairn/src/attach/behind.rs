//! The backing of an attached device: a file of a FUSE mount, or a server for the kernel's NBD client.

use std::rc::Rc;
use std::time::Duration;

use api::Means;
use attach::{Found, Name, Wanted};
use block::env::Address;
use block::{Env, Info};
use export::ExportList;
use export::fuse::{Agreed, Volume};
use export::nbd::{Export, Limits, Server};

use super::helper::{Done, HelperJob, Step};
use super::kept::Kept;
use crate::exit::{Exit, Failure, Result};
use crate::out;

/// Largest block size of a block device of this machine, in bytes: one page on every architecture.
const BLOCK_MAX_BYTES: u32 = 4096;

/// Time limit of a request on the connection of the kernel's NBD client. It is long, because the server needs no
/// protection from the kernel, and a slow device must not fail.
const KERNEL_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest wait, after a device is removed, until its backing has ended.
const FAREWELL: Duration = Duration::from_secs(5);

/// The backing of an attached device.
#[derive(Clone)]
pub enum Behind {
    /// A file of a FUSE mount.
    Fuse(Volume),
    /// An NBD server of the export, with the kernel as its only client.
    Nbd(Server),
}

/// Returns the means of an attach: `by` if the kernel supports it; without `by`, FUSE if the kernel has it, else NBD.
///
/// # Errors
/// `Unsupported` with the part that the kernel lacks.
pub fn choose(by: Option<Means>) -> Result<Means> {
    const NO_NBD: &str = "this kernel has no NBD client (no /sys/module/nbd, no /dev/nbd0)";
    match (by, attach::has_nbd()) {
        (Some(Means::Nbd), false) => {
            let why = NO_NBD.to_string();
            Err(Failure::new(Exit::Unsupported, why).next("modprobe nbd, or --by fuse"))
        }
        (Some(by), _) => Ok(by),
        (None, has_nbd) => match attach::has_fuse() {
            Ok(()) => Ok(Means::Fuse),
            Err(_) if has_nbd => Ok(Means::Nbd),
            Err(error) => Err(failure!(Unsupported, "{error}; and {NO_NBD}")
                .next("modprobe fuse, or modprobe nbd")),
        },
    }
}

impl Behind {
    /// Applies a new size of the export to the backing.
    pub fn resized(&self) {
        match self {
            Self::Fuse(volume) => volume.resized(),
            // A client asks for the size when it connects.
            Self::Nbd(_) => {}
        }
    }

    /// Begins to serve the export, and connects a block device to it. Returns the backing, the connected device, and
    /// the agreed features of a FUSE mount.
    pub async fn begin(
        by: Means,
        env: &Env,
        export: &Rc<Export>,
        name: &Name,
    ) -> Result<(Self, Done, Option<Agreed>)> {
        match by {
            Means::Fuse => {
                let channel = env.mount(&name.mount_point())?;
                let volume = Volume::serve(export, channel, out::note)?;
                let agreed = volume.agreed().await?;
                let done = step(name, Step::Connect(wanted(&export.info()))).await?;
                Ok((Self::Fuse(volume), done, Some(agreed)))
            }
            Means::Nbd => {
                let server = listen(env, export, name)?;
                let (export, wanted) = (export.name().to_owned(), wanted(&export.info()));
                match step(name, Step::ConnectNbd(export, wanted)).await {
                    Ok(done) => Ok((Self::Nbd(server), done, None)),
                    Err(failure) => {
                        server.stop(Duration::ZERO).await;
                        Err(failure)
                    }
                }
            }
        }
    }

    /// Resumes a mount that an earlier process served, after a check of its block device.
    pub fn resume(env: &Env, export: &Rc<Export>, kept: &Kept) -> Result<(Self, Found)> {
        let name = &kept.name;
        let info = export.info();
        if let Some(why) = broken_by_kill(&info) {
            fail!(Unsupported, "export {}: {why}", kept.export);
        }
        let found = attach::find(name, wanted(&info), info.data_bytes())?;
        let channel = env.take_over(&kept.to_string(), &name.mount_point(), &name.counts())?;
        let volume = Volume::resume(export, channel, kept.max_bytes, out::note)?;
        Ok((Self::Fuse(volume), found))
    }

    /// Passes the mount to the supervisor, if the mount may outlive this process and the supervisor does not hold it
    /// yet. Returns whether the supervisor holds the mount.
    pub fn fdstore_put(&self, name: &Name) -> bool {
        let Self::Fuse(volume) = self else { return false };
        if !self.may_be_held() || self.is_entrusted() {
            return self.is_entrusted();
        }
        let (name, max_bytes) = (name.clone(), volume.max_bytes());
        let kept = Kept { name, export: volume.export().name().to_owned(), max_bytes };
        volume.channel().fdstore_put(&kept.to_string()).unwrap_or_else(|error| {
            warn!("{error}");
            false
        })
    }

    /// Whether the mount may outlive this process, with the present properties of its export.
    fn may_be_held(&self) -> bool {
        matches!(self, Self::Fuse(volume)
            if volume.may_go_on() && broken_by_kill(&volume.export().info()).is_none())
    }

    /// Removes the mount from the supervisor if the mount may not outlive this process any more.
    pub fn withdraw_mortal(&self) {
        if self.is_entrusted() && !self.may_be_held() {
            self.withdraw();
        }
    }

    /// Whether the supervisor holds the mount, so that the device outlives this process.
    pub fn is_entrusted(&self) -> bool {
        matches!(self, Self::Fuse(volume) if volume.channel().fdstore_name().is_some())
    }

    /// Passes a mount that the supervisor holds to the present supervisor again.
    pub fn fdstore_put_again(&self) -> Result<()> {
        if let Self::Fuse(volume) = self
            && let Some(name) = volume.channel().fdstore_name()
        {
            volume.channel().fdstore_put(&name)?;
        }
        Ok(())
    }

    /// Removes the mount from the supervisor.
    pub fn withdraw(&self) {
        if let Self::Fuse(volume) = self
            && let Err(error) = volume.channel().fdstore_remove()
        {
            warn!("{error}");
        }
    }

    /// Waits until the backing of the device has ended.
    pub async fn ended(&self) {
        match self {
            Self::Fuse(volume) => volume.ended().await,
            Self::Nbd(server) => server.all_closed().await,
        }
    }

    /// Waits up to [`FAREWELL`] until the backing has ended, after its device was removed.
    pub async fn farewell(self, env: &Env) {
        // A process that still waits for the mount keeps it in existence, but the name is free all the same.
        let _ = env.within(FAREWELL, self.ended()).await;
        if let Self::Nbd(server) = self {
            server.stop(FAREWELL).await;
        }
    }

    /// Returns a noun for the backing in messages.
    pub fn what(&self) -> &'static str {
        match self {
            Self::Fuse(_) => "mount",
            Self::Nbd(_) => "connection",
        }
    }
}

/// Returns the properties that the block device of an export must have.
fn wanted(info: &Info) -> Wanted {
    Wanted { block_bytes: info.block_size, read_only: info.read_only }
}

/// Returns the guarantee of a device that a kill of its process would break; `None` if a kill breaks none.
fn broken_by_kill(info: &Info) -> Option<&'static str> {
    if !info.survives_process {
        return Some("its acknowledged writes do not outlive the server process");
    }
    (!info.fenced).then_some("late writes of a dead server process may overwrite newer ones")
}

/// Returns a running server of `export` at a socket that only root can reach.
fn listen(env: &Env, export: &Rc<Export>, name: &Name) -> Result<Server> {
    let unsupported = |why: String| Err(Failure::new(Exit::Unsupported, why));
    let shown = export.name();
    if !export.is_for_all() {
        return unsupported(format!(
            "the export {shown} needs a client certificate, and the kernel's NBD client has none. \
             Next: --by fuse"
        ));
    }
    let block_bytes = export.info().block_size;
    if block_bytes > BLOCK_MAX_BYTES {
        return unsupported(format!(
            "the export {shown} has blocks of {block_bytes} bytes; a block device of this machine \
             has at most {BLOCK_MAX_BYTES}"
        ));
    }
    let patience = KERNEL_PATIENCE;
    let limits = Limits { connections: 1, request: patience, slow: patience, ..Limits::default() };
    let server = Server::new(env, ExportList::new([export.clone()]), limits, out::note);
    server.serve(env.listen(&Address::Unix(name.socket()))?);
    Ok(server)
}

/// Carries out `step` for the device `name` in a helper process.
pub async fn step(name: &Name, step: Step) -> Result<Done> {
    HelperJob { name: name.to_string(), step }.run().await
}
