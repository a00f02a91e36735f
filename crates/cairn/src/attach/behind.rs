//! What stands behind a device: the file of a mount, or a server for the kernel's NBD client.

use std::rc::Rc;
use std::time::Duration;

use api::Means;
use attach::{Found, Name, Wanted};
use block::env::Address;
use block::{Env, Info};
use export::ExportList;
use export::fuse::{Agreed, Volume};
use export::nbd::{Export, Limits, Server};

use super::hands::{Done, Job, Step};
use super::kept::Kept;
use crate::exit::{Exit, Failure, Result};
use crate::out;

/// The largest block of a device: a page, everywhere.
const BLOCK_MAX_BYTES: u32 = 4096;

/// The kernel is no client to be protected from, and a device that is late is not lost.
const KERNEL_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// After the device is gone, for what stood behind it to be gone too.
const FAREWELL: Duration = Duration::from_secs(5);

/// What stands behind a device.
#[derive(Clone)]
pub enum Behind {
    /// A file of a mount.
    Fuse(Volume),
    /// A server of this export alone, for the kernel alone.
    Nbd(Server),
}

/// How an export is attached if nobody says, or whether it can be as somebody says.
///
/// # Errors
/// `Unsupported` with what the kernel lacks.
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
            Err(error) => {
                let why = format!("{error}; and {NO_NBD}");
                Err(Failure::new(Exit::Unsupported, why).next("modprobe fuse, or modprobe nbd"))
            }
        },
    }
}

impl Behind {
    /// The export has another size now.
    pub fn resized(&self) {
        match self {
            Self::Fuse(volume) => volume.resized(),
            // Whoever connects asks for it.
            Self::Nbd(_) => {}
        }
    }

    /// Serves the export and makes a device of it. Answers the device, and what a mount has agreed on.
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
                let info = export.info();
                let (block_bytes, read_only) = (info.block_size, info.read_only);
                let done = step(name, Step::Connect { block_bytes, read_only }).await?;
                Ok((Self::Fuse(volume), done, Some(agreed)))
            }
            Means::Nbd => {
                let server = listen(env, export, name)?;
                let info = export.info();
                let (block_bytes, read_only) = (info.block_size, info.read_only);
                let export = export.name().to_owned();
                match step(name, Step::ConnectNbd { export, block_bytes, read_only }).await {
                    Ok(done) => Ok((Self::Nbd(server), done, None)),
                    Err(failure) => {
                        server.stop(Duration::ZERO).await;
                        Err(failure)
                    }
                }
            }
        }
    }

    /// Goes on with a mount that a process before this one has served; its device is looked at first.
    pub fn resume(env: &Env, export: &Rc<Export>, kept: &Kept) -> Result<(Self, Found)> {
        let name = &kept.name;
        let info = export.info();
        if let Some(why) = broken_by_kill(&info) {
            return Err(Failure::new(Exit::Unsupported, format!("{}: {why}", kept.export)));
        }
        let wanted = Wanted { block_bytes: info.block_size, read_only: info.read_only };
        let found = attach::find(name, wanted, info.size)?;
        let channel = env.take_over(&kept.to_string(), &name.mount_point(), &name.counts())?;
        let volume = Volume::resume(export, channel, kept.max_bytes, out::note)?;
        Ok((Self::Fuse(volume), found))
    }

    /// Has it held for the next process, should this one be killed, if it may be and is not yet; whether it
    /// is.
    pub fn entrust(&self, name: &Name) -> bool {
        let Self::Fuse(volume) = self else { return false };
        if !self.may_be_held() || self.is_entrusted() {
            return self.is_entrusted();
        }
        let (name, max_bytes) = (name.clone(), volume.max_bytes());
        let kept = Kept { name, export: volume.export().name().to_owned(), max_bytes };
        volume.channel().entrust(&kept.to_string()).unwrap_or_else(|error| {
            out::note(&format!("warning: {error}"));
            false
        })
    }

    /// Whether it may outlive this process, as its export is now.
    fn may_be_held(&self) -> bool {
        matches!(self, Self::Fuse(volume)
            if volume.may_go_on() && broken_by_kill(&volume.export().info()).is_none())
    }

    /// It is not to be held any more, unless it may be.
    pub fn withdraw_mortal(&self) {
        if self.is_entrusted() && !self.may_be_held() {
            self.withdraw();
        }
    }

    /// Whether it outlives this process.
    pub fn is_entrusted(&self) -> bool {
        matches!(self, Self::Fuse(volume) if volume.channel().entrusted().is_some())
    }

    /// Has what is held held once more, by whoever does so now.
    pub fn entrust_again(&self) -> Result<()> {
        if let Self::Fuse(volume) = self
            && let Some(name) = volume.channel().entrusted()
        {
            volume.channel().entrust(&name)?;
        }
        Ok(())
    }

    /// It is not to be held any more.
    pub fn withdraw(&self) {
        if let Self::Fuse(volume) = self
            && let Err(error) = volume.channel().withdraw()
        {
            out::note(&format!("warning: {error}"));
        }
    }

    /// Ends when the device has nothing behind it any more.
    pub async fn ended(&self) {
        match self {
            Self::Fuse(volume) => volume.ended().await,
            Self::Nbd(server) => server.all_closed().await,
        }
    }

    /// After its device is gone: waits until everything is.
    pub async fn farewell(self, env: &Env) {
        // What still waits for it keeps it: the name is free all the same.
        let _ = env.within(FAREWELL, self.ended()).await;
        if let Self::Nbd(server) = self {
            server.stop(FAREWELL).await;
        }
    }

    /// What somebody has ended if it ended by itself.
    pub fn what(&self) -> &'static str {
        match self {
            Self::Fuse(_) => "mount",
            Self::Nbd(_) => "connection",
        }
    }
}

/// Which promise of a device a kill of its process would break.
fn broken_by_kill(info: &Info) -> Option<&'static str> {
    if !info.survives_process {
        return Some("what was answered does not outlive its process");
    }
    (!info.fenced).then_some("what a dead process has sent may land on what is written later")
}

/// A server that only root can reach.
fn listen(env: &Env, export: &Rc<Export>, name: &Name) -> Result<Server> {
    let unsupported = |why: String| Err(Failure::new(Exit::Unsupported, why));
    let shown = export.name();
    if !export.is_for_all() {
        return unsupported(format!(
            "{shown} is for clients that show a certificate, and the kernel's NBD client shows none. \
             Next: --by fuse"
        ));
    }
    let block_bytes = export.info().block_size;
    if block_bytes > BLOCK_MAX_BYTES {
        return unsupported(format!(
            "{shown}: blocks of {block_bytes} bytes; a block device of this machine needs blocks of at \
             most {BLOCK_MAX_BYTES}"
        ));
    }
    let limits = Limits { connections: 1, request: KERNEL_PATIENCE, ..Limits::default() };
    let server = Server::new(env, ExportList::new([export.clone()]), limits, out::note);
    server.serve(env.listen(&Address::Unix(name.socket()))?);
    Ok(server)
}

/// Has a step done by a process of its own.
pub async fn step(name: &Name, step: Step) -> Result<Done> {
    Job { name: name.to_string(), step }.run().await
}
