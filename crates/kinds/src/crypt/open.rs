//! Opens the volume of an encrypted device with its key source, or creates a new volume.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use block::{
    Env, Error, ErrorKind, Event, Handover, KeySource, Result, Secret, StateStore, Wanted, What,
    error,
};

use super::slots::{Cost, KeySlots, Slot};
use super::wrap::{self, NewSlot};
use super::xts::KEY_BYTES;

/// Number of times that an operator may type the passphrase before the device fails to open.
const TRIES: usize = 3;

/// The key source of an encrypted device that is being opened.
pub struct KeyOpener {
    pub env: Env,
    /// Name of the graph and of the device: `home/safe`.
    pub full_name: String,
    pub source: KeySource,
    /// Cost of the key derivation for a new key slot.
    pub cost: Cost,
}

impl KeyOpener {
    /// Reads the volume key of a device without key slots: the source holds the raw key.
    ///
    /// # Errors
    /// `Denied` if the key does not have [`KEY_BYTES`] bytes.
    pub async fn raw(&self) -> Result<Secret> {
        if let Some(key) = self.left()?.filter(|key| key.bytes().len() == KEY_BYTES) {
            return Ok(key);
        }
        let (source, prompt) = (self.source.clone(), format!("key for {}", self.full_name));
        let wanted = Wanted { source, prompt, twice: false, full_name: self.full_name.clone() };
        let key = self.env.secret(&wanted).await?;
        match key.bytes().len() {
            KEY_BYTES => {
                self.leave(&key)?;
                Ok(key)
            }
            other => Err(denied(format!(
                "key {}: the key has {other} bytes; plain = true needs exactly {KEY_BYTES} raw bytes",
                self.source
            ))
            .next(format!("make a key with head -c {KEY_BYTES} /dev/urandom"))),
        }
    }

    /// Returns the key slots in the labels beneath the device, and the volume key. A passphrase unwraps the volume key,
    /// unless the previous device or process has handed over the key. If the disks are new, creates the volume key and
    /// the first key slot.
    ///
    /// If `may_write` and a disk lacks the current key slots, writes the key slots to the labels of all disks. Without
    /// this write, a removed passphrase would still open a disk that was absent during the removal, and no passphrase
    /// would open a disk that was labelled later.
    ///
    /// # Errors
    /// `Denied` if the passphrase opens no key slot; `NotFound` if the disk with the key slots is missing; `Corrupt` if
    /// the state in the labels is no valid set of key slots; errors of the first write of new key slots. If the disks
    /// are not new and have no key slots, an error with the reason `CryptNoSlots`. A failed write of the current key
    /// slots to a disk that lacks them is only reported as an event: the volume opens all the same.
    pub async fn open(
        &self,
        kept: &dyn StateStore,
        unit: u32,
        may_write: bool,
    ) -> Result<(KeySlots, Rc<Secret>)> {
        let found = kept.found(0);
        match &found.state {
            // A missing disk below does not matter: a mirror works without it.
            Some(state) => {
                let opened = self.opened(&state.bytes, handed_over(kept)).await?;
                self.leave(&opened.1)?;
                if may_write
                    && !found.everywhere
                    && let Err(error) = keep(kept, &opened.0).await
                {
                    // Other disks have the slots. A mirror below notices the failing disk by itself.
                    self.emit(format!("the key slots could not be written to every disk: {error}"));
                }
                Ok(opened)
            }
            None if !found.present => {
                let why = "the disk with the key slots is absent";
                Err(Error::new(ErrorKind::NotFound, why))
            }
            None if found.fresh => {
                let New { volume, key } = match prepared(kept) {
                    Some(new) => new,
                    None => self.new_volume(unit).await?,
                };
                keep(kept, &volume).await?;
                self.leave(&key)?;
                Ok((volume, key))
            }
            None => {
                let error = error!(
                    Reason::CryptNoSlots,
                    "the disks below have no key slots, but are not new: the bytes on these disks \
                     were not written through this crypt device"
                );
                Err(error.next("label the disks anew with --wipe, if all their bytes may be lost"))
            }
        }
    }

    /// Does the slow part of opening a device, and changes nothing. [`KeyOpener::open`] gets the result as the handed-over
    /// state.
    ///
    /// # Errors
    /// As [`KeyOpener::open`].
    pub async fn prepare(&self, kept: &dyn StateStore, unit: u32) -> Result<Handover> {
        let found = kept.found(0);
        match &found.state {
            Some(state) => {
                let (_, key) = self.opened(&state.bytes, None).await?;
                Ok(Some(key))
            }
            None if found.fresh && found.present => Ok(Some(Rc::new(self.new_volume(unit).await?))),
            // `open` reports why the volume does not open.
            None => Ok(None),
        }
    }

    /// Parses the key slots `slots`, and returns them with the volume key. The key is `known` or the key that the last
    /// process kept, if it is the key of this volume; else the key that a passphrase unwraps.
    async fn opened(
        &self,
        slots: &[u8],
        known: Option<Rc<Secret>>,
    ) -> Result<(KeySlots, Rc<Secret>)> {
        let volume = KeySlots::parse(slots)
            .map_err(|error| error!(Corrupt, "the key slots in the label are damaged: {error}"))?;
        let known = match known {
            Some(key) => Some(key),
            None => self.left()?.map(Rc::new),
        };
        match known.filter(|key| wrap::is_key(&volume, key)) {
            Some(key) => Ok((volume, key)),
            None => {
                let (volume, key) = self.unlock(volume).await?;
                Ok((volume, Rc::new(key)))
            }
        }
    }

    fn emit(&self, words: String) {
        let device = self.full_name.rsplit('/').next().unwrap_or_default().to_owned();
        self.env.emit(Event { what: What::LabelUnwritable, device, member: None, words });
    }

    /// Whether the key source can supply the key only once: an operator types the key, or a descriptor is read.
    fn is_by_hand(&self) -> bool {
        matches!(self.source, KeySource::Ask | KeySource::Fd(_))
    }

    /// Returns the key that the last process kept for this device, if the key source cannot supply the key again.
    fn left(&self) -> Result<Option<Secret>> {
        if self.is_by_hand() { self.env.kept_secret(&self.full_name) } else { Ok(None) }
    }

    /// Keeps the key for the next process, if the key source cannot supply the key again.
    fn leave(&self, key: &Secret) -> Result<()> {
        if self.is_by_hand() { self.env.keep_secret(&self.full_name, key) } else { Ok(()) }
    }

    async fn unlock(&self, volume: KeySlots) -> Result<(KeySlots, Secret)> {
        let tries = if self.source == KeySource::Ask { TRIES } else { 1 };
        let mut prompt = format!("passphrase for {}", self.full_name);
        for _ in 0..tries {
            let passphrase =
                passphrase(&self.env, &self.source, &self.full_name, prompt, false).await?;
            if let Some((key, _)) = unwrap(&self.env, &volume, passphrase).await? {
                return Ok((volume, key));
            }
            prompt = format!("wrong passphrase; passphrase for {}", self.full_name);
        }
        Err(wrong(&volume))
    }

    /// Creates a volume with a random volume key and one key slot, and writes nothing to a disk.
    async fn new_volume(&self, unit: u32) -> Result<New> {
        let prompt = format!("new passphrase for {}", self.full_name);
        let passphrase = passphrase(&self.env, &self.source, &self.full_name, prompt, true).await?;
        let mut key = Secret::zeroed(KEY_BYTES)?;
        self.env.random_secret(key.bytes_mut());
        let mut volume_id = [0; 16];
        self.env.random_secret(&mut volume_id);
        let mut volume = wrap::new_volume(unit, volume_id, &key);
        let new = new_slot(&self.env, self.cost, String::new());
        let (key, slot) = wrap(&self.env, &volume, key, passphrase, new).await?;
        volume.slots[0] = Some(slot);
        Ok(New { volume, key: Rc::new(key) })
    }
}

/// The key slots and the volume key of a new volume that is on no disk yet.
#[derive(Clone)]
struct New {
    volume: KeySlots,
    key: Rc<Secret>,
}

/// Returns the new volume that [`KeyOpener::prepare`] has made.
fn prepared(kept: &dyn StateStore) -> Option<New> {
    let new = kept.handed_over()?.downcast::<New>().ok()?;
    Some((*new).clone())
}

/// Returns the volume key that the replaced device or [`KeyOpener::prepare`] has handed over; `None` if no key was handed
/// over. With this key, no operator is asked for a passphrase and no key is derived.
pub fn handed_over(kept: &dyn StateStore) -> Option<Rc<Secret>> {
    kept.handed_over()?.downcast().ok()
}

fn denied(words: impl Into<String>) -> Error {
    Error::new(ErrorKind::Denied, words)
}

/// Returns the error for a passphrase that opens no key slot.
pub fn wrong(volume: &KeySlots) -> Error {
    let count = volume.slots.iter().flatten().count();
    let used = if count == 1 {
        "one slot is in use".to_owned()
    } else {
        format!("{count} slots are in use")
    };
    denied(format!("no key slot opens with this passphrase; {used}")).next(
        "check that the passphrase is that of this device; of a file, all bytes count except a \
         newline at the end",
    )
}

/// Writes the key slots to the labels of the device's disks, durably.
///
/// # Errors
/// Errors of the writes to the labels.
pub async fn keep(kept: &dyn StateStore, volume: &KeySlots) -> Result<()> {
    let mut answers = kept.write(&[0], volume.encode()).await;
    answers.pop().map_or(Ok(()), |(_, answer)| answer)
}

/// Reads a passphrase from its source. A newline at the end is no part of the passphrase, unless an operator types the
/// passphrase.
///
/// # Errors
/// `Denied` if the passphrase is empty; errors of the key source.
pub async fn passphrase(
    env: &Env,
    source: &KeySource,
    full_name: &str,
    prompt: String,
    twice: bool,
) -> Result<Secret> {
    let wanted = Wanted { source: source.clone(), prompt, twice, full_name: full_name.to_owned() };
    let secret = env.secret(&wanted).await?.without_newline();
    if secret.bytes().is_empty() {
        let why = format!("key {source}: the passphrase is empty");
        return Err(denied(why).next("write a passphrase into the key source"));
    }
    Ok(secret)
}

/// Draws the salt and the nonce of a new key slot, and returns them with its cost and label.
pub fn new_slot(env: &Env, cost: Cost, label: String) -> NewSlot {
    let (mut salt, mut nonce) = ([0; 32], [0; 12]);
    env.random_secret(&mut salt);
    env.random_secret(&mut nonce);
    NewSlot { cost, salt, nonce, made_unix_s: env.wall().as_secs(), label }
}

/// Runs [`wrap::unwrap`] on a worker thread.
///
/// # Errors
/// As [`wrap::unwrap`].
pub async fn unwrap(
    env: &Env,
    volume: &KeySlots,
    passphrase: Secret,
) -> Result<Option<(Secret, usize)>> {
    let volume = volume.clone();
    elsewhere(env, move || wrap::unwrap(&volume, &passphrase)).await
}

/// Runs [`wrap::wrap`] on a worker thread, and returns the volume key together with the slot.
///
/// # Errors
/// As [`wrap::wrap`].
pub async fn wrap(
    env: &Env,
    volume: &KeySlots,
    key: Secret,
    passphrase: Secret,
    new: NewSlot,
) -> Result<(Secret, Slot)> {
    let volume = volume.clone();
    elsewhere(env, move || {
        let slot = wrap::wrap(&volume, &key, &passphrase, new)?;
        Ok((key, slot))
    })
    .await
}

async fn elsewhere<T: Send + 'static>(env: &Env, job: impl FnOnce() -> T + Send + 'static) -> T {
    let answer = Arc::new(Mutex::new(None));
    let tell = answer.clone();
    env.work(move || {
        let done = job();
        *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    })
    .await;
    let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
    answer.take().expect("a finished job has a result")
}
