//! The opening of a checksum device from its vault: its making, and the recovery of its journal.

use std::rc::Rc;

use block::env::LocalFuture;
use block::units::write_size;
use block::{
    Blocks as _, ByteRange, Emulate, Env, Error, ErrorKind, Lower, Op, Result, State, bail, error,
};
use kind::home;
use meta::journal::{self, Journal, Loss, Options};
use meta::regions::{Division, Regions};

use super::device::{Core, Mode, Parts, Redundancy, facts};
use super::journaled::Target;
use super::objects::{Crash, Objects, REGION_BYTES};
use super::sums::BLOCK_BYTES;

/// Time without writes after which the mark of a region is removed.
const CLEAR_DELAY: std::time::Duration = std::time::Duration::from_secs(5);

/// An open checksum device as its clients see it: with the blocks of its lower.
pub enum Front {
    /// The lower has blocks of 4096 bytes, too.
    Whole(Core),
    /// The lower has smaller blocks.
    Parts(Emulate<Core>),
}

impl Front {
    fn new(core: Core, env: &Env, block_size: u32) -> Result<Self> {
        match u64::from(block_size) < BLOCK_BYTES {
            true => Emulate::new(env, core, block_size).map(Self::Parts),
            false => Ok(Self::Whole(core)),
        }
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// As [`Core::submit`].
    pub async fn submit(&self, op: &mut Op) -> Result<()> {
        match self {
            Self::Whole(core) => core.submit(op).await,
            Self::Parts(parts) => parts.carry_out(op).await,
        }
    }

    /// Returns the core.
    pub fn core(&self) -> &Core {
        match self {
            Self::Whole(core) => core,
            Self::Parts(parts) => parts.below(),
        }
    }
}

/// A checksum device with an open vault.
pub struct Opened {
    /// The device; `None` before the live change that makes it is committed.
    pub front: Option<Front>,
    /// Number of records of the journal that the opening has written in place.
    pub replayed: u64,
    /// The loss of changes in the journal that the operator has accepted.
    pub loss: Option<Loss>,
}

/// The facts with which a device is opened.
#[derive(Clone)]
pub struct Opening {
    /// Name of the device in the spec.
    pub name: String,
    /// Environment of the device.
    pub env: Env,
    /// The lower with the data.
    pub data: Lower,
    /// Place of redundancy.
    pub redundancy: Redundancy,
    /// The option `crash` with which the device was made.
    pub crash: Crash,
    /// Most bytes per second of background work.
    pub speed: Option<u64>,
}

impl Opening {
    /// Opens the device in an open vault. Ends the making of a new one.
    ///
    /// # Errors
    /// `ReadOnly` if the journal of a device that cannot be written has changes; those of the vault and the journal, and of [`Core::open`].
    pub async fn open(self, opened: home::Opened) -> Result<Rc<Opened>> {
        self.open_front(opened).await.map(Rc::new)
    }

    async fn open_front(self, opened: home::Opened) -> Result<Opened> {
        let objects = Objects::open(&opened.vault, opened.owner())?;
        if opened.is_preview {
            return Ok(Opened { front: None, replayed: 0, loss: None });
        }
        if !objects.is_made().await? && !self.data.info().read_only {
            self.end_making(&opened, &objects).await?;
        }
        let (mode, recovered) = self.mode(&opened).await?;
        let journal::Opened { records: replayed, loss } = recovered;
        let Self { name, env, data, redundancy, speed, .. } = self;
        let (env_of, block_size) = (env.clone(), data.info().block_size);
        let (vault, device) = (opened.vault.clone(), opened.vault.uuid());
        let parts = Parts { name, env, data, vault, objects, mode, device, redundancy, speed };
        let core = Core::open(parts).await?;
        let front = Some(Front::new(core, &env_of, block_size)?);
        Ok(Opened { front, replayed, loss })
    }

    async fn end_making(&self, opened: &home::Opened, objects: &Objects) -> Result<()> {
        // Bytes of an earlier time are durable before their checksums are.
        self.data.flush().await?;
        let blocks = facts(self.data.info()).size / BLOCK_BYTES;
        let done = if self.has_zeros(blocks * BLOCK_BYTES).await? { blocks } else { 0 };
        objects.end_making(&opened.vault, done).await
    }

    /// Whether the lower reports its first `bytes` bytes as zeros.
    async fn has_zeros(&self, bytes: u64) -> Result<bool> {
        let mut at = 0;
        while let Some(range) = ByteRange::between(at, bytes) {
            let done = self.data.call(Op::Status { range, extents: Vec::new() }).await;
            done.result?;
            let Op::Status { extents, .. } = done.op else {
                unreachable!("a request returns with its own operation")
            };
            if extents.is_empty() || extents.iter().any(|extent| extent.state == State::Data) {
                return Ok(false);
            }
            at += extents.iter().map(|extent| extent.len).sum::<u64>();
        }
        Ok(true)
    }

    async fn mode(&self, opened: &home::Opened) -> Result<(Mode, journal::Opened)> {
        let (vault, owner, data) = (&opened.vault, opened.owner(), &self.data);
        let Some(ring) = opened.journal.as_ref().filter(|_| self.crash == Crash::Journal) else {
            return Ok((Mode::Regions(self.regions(opened).await?), journal::Opened::default()));
        };
        if data.info().read_only {
            self.check_settled(ring).await?;
            // All changes are in place, and no region was ever marked: every difference is damage.
            return Ok((Mode::Regions(self.regions(opened).await?), journal::Opened::default()));
        }
        let options = Options {
            uuid: Some(vault.uuid()),
            ring_bytes: None,
            accept_loss: opened.accepts_loss,
        };
        let target = Target::new(data, vault, owner, vault.uuid())?;
        let found = Journal::open(&self.env, ring, 0, &options, target).await;
        let (journal, recovered) = found.map_err(|error| match error.kind() {
            ErrorKind::NotFound => missing_ring(&error),
            _ => error,
        })?;
        Ok((Mode::Journal(journal), recovered))
    }

    async fn regions(&self, opened: &home::Opened) -> Result<Regions> {
        let division = Division::new(facts(self.data.info()).size, REGION_BYTES)?;
        let object = (opened.owner(), Objects::REGIONS);
        Regions::open(&self.env, &opened.vault, object, division, CLEAR_DELAY).await
    }

    /// Checks that the ring of a device that cannot be written has no changes.
    async fn check_settled(&self, ring: &Lower) -> Result<()> {
        let found = Journal::check(&self.env, ring, 0).await?;
        if found.records == 0 && !found.is_damaged {
            return Ok(());
        }
        let error = error!(
            ReadOnly,
            "the journal has {} changes that are not in place, and the disk is read-only",
            found.parts
        );
        Err(error.next("start the graph with a disk that can be written, and stop it in order"))
    }
}

/// Returns the error of a device without its journal.
fn missing_ring(error: &Error) -> Error {
    error!(Corrupt, "the journal of the device is missing ({})", error.message())
        .next("bring back the disk with the journal, which may have flushed writes: --accept-loss does not help")
}

impl Redundancy {
    /// Returns the value of the option `crash` of a device that does not set it.
    pub fn usual_crash(self) -> Crash {
        match self {
            Self::None => Crash::Journal,
            Self::Below | Self::Above => Crash::Regions,
        }
    }
}

impl Opened {
    /// Returns the device.
    ///
    /// # Errors
    /// `Stopped` before the live change that makes it is committed, when no request reaches it.
    pub fn front(&self) -> Result<&Front> {
        match &self.front {
            Some(front) => Ok(front),
            None => bail!(Stopped, "the live change is not committed yet"),
        }
    }

    /// Ends the work of the device, before its vault is closed. After an error the next opening recovers.
    pub fn finish(self: &Rc<Self>) -> LocalFuture<()> {
        let opened = self.clone();
        Box::pin(async move {
            if let Some(front) = &opened.front {
                let _ = front.core().close().await;
            }
        })
    }

    /// Describes the accepted loss.
    pub fn loss_words(&self) -> Option<String> {
        let loss = self.loss.as_ref()?;
        let bytes: u64 = loss.ranges.iter().map(|(_, range)| range.len()).sum();
        Some(format!(
            "the journal was damaged: {} records and {} of data are lost",
            loss.missing,
            write_size(bytes)
        ))
    }
}
