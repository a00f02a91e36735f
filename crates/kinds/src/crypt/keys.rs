//! Lists and changes the key slots of an open encrypted device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{
    Env, Error, ErrorKind, KeySource, Locked, Mutex, Result, Secret, StateStore, bail, error,
};

use super::open::{keep, new_slot, passphrase, unwrap, wrap, wrong};
use super::slots::{Cost, KeySlots, LABEL_BYTES_MAX, SLOTS, Slot, is_label};
use super::verbs::{self, KeyChange, KeyRequest, KeySlot, source};

/// The key slots of an open encrypted device, and the store that writes the key slots to the labels.
pub struct Keys {
    pub env: Env,
    /// Name of the graph and of the device, for messages.
    pub full_name: String,
    pub kept: Rc<dyn StateStore>,
    pub volume: RefCell<KeySlots>,
    /// Cost of the key derivation for a new key slot.
    pub cost: Cost,
    /// Lock that a command about the key slots holds while it runs: another such command is refused meanwhile.
    pub turn: Mutex,
    /// The held lock `turn`, set when the device is closed, so that no later command can change the key slots.
    pub closed: Cell<Option<Locked>>,
}

impl Keys {
    /// Carries out a command to list or change the key slots. For a dry run, only reports the result of the change.
    pub async fn carry_out(&self, request: &KeyRequest) -> Result<verbs::KeySlots> {
        let KeyRequest { change, dry_run } = request;
        let _turn = self.turn()?;
        let done = match change {
            KeyChange::List => String::new(),
            KeyChange::Add { key, new_key, label } => {
                self.add(&source(key)?, &source(new_key)?, label, *dry_run).await?
            }
            KeyChange::Remove { slot } => self.remove(*slot, *dry_run).await?,
            KeyChange::Change { key, new_key } => {
                self.change(&source(key)?, &source(new_key)?, *dry_run).await?
            }
        };
        let would = if *dry_run && !done.is_empty() { "would be " } else { "" };
        Ok(verbs::KeySlots { done: done.replace("{}", would), slots: self.list() })
    }

    /// Waits for the end of the running command about the key slots, and refuses all later commands.
    pub async fn close(&self) {
        self.closed.set(Some(self.turn.lock().await));
    }

    fn turn(&self) -> Result<Locked> {
        self.turn.try_lock().ok_or_else(|| {
            let why = "another command is changing the key slots";
            Error::new(ErrorKind::InUse, why).next("repeat the command when that one has ended")
        })
    }

    fn list(&self) -> Vec<KeySlot> {
        let volume = self.volume.borrow();
        let used =
            volume.slots.iter().enumerate().filter_map(|(n, slot)| Some((n, slot.as_ref()?)));
        used.map(|(number, slot)| report(number, slot)).collect()
    }

    async fn add(
        &self,
        key: &KeySource,
        new: &KeySource,
        label: &str,
        dry_run: bool,
    ) -> Result<String> {
        if !is_label(label) {
            bail!(
                Invalid,
                "the key slot label {label:?} has {} bytes; at most {LABEL_BYTES_MAX} are \
                 possible, and no control characters",
                label.len()
            );
        }
        let free = self.volume.borrow().slots.iter().position(Option::is_none);
        let free = free.ok_or_else(|| {
            error!(Limit, "all {SLOTS} key slots are in use").next("cairn key rm")
        })?;
        if !dry_run {
            let (volume_key, _) = self.unlock(key).await?;
            self.put(free, volume_key, new, label.to_owned()).await?;
        }
        Ok(format!("key slot {free} {{}}added"))
    }

    async fn change(&self, key: &KeySource, new: &KeySource, dry_run: bool) -> Result<String> {
        if dry_run {
            return Ok("the key slot that the passphrase opens {}changed".to_owned());
        }
        let (volume_key, number) = self.unlock(key).await?;
        let label = self.volume.borrow().slots[number].as_ref().map(|slot| slot.label.clone());
        self.put(number, volume_key, new, label.unwrap_or_default()).await?;
        Ok(format!("key slot {number} {{}}changed"))
    }

    async fn remove(&self, number: usize, dry_run: bool) -> Result<String> {
        let mut volume = self.volume.borrow().clone();
        if volume.slots.get(number).is_none_or(Option::is_none) {
            let used = self.list();
            let used: Vec<_> = used.iter().map(|slot| slot.slot.to_string()).collect();
            let why = format!("key slot {number} is not in use; in use: {}", used.join(", "));
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        volume.slots[number] = None;
        if volume.slots.iter().all(Option::is_none) {
            let error = error!(
                InUse,
                "key slot {number} is the last in use; without a key slot {} could never be opened \
                 again",
                self.full_name
            );
            return Err(error.next("add another key slot with cairn key add first"));
        }
        if !dry_run {
            self.put_volume(volume).await?;
        }
        Ok(format!("key slot {number} {{}}removed"))
    }

    /// Unwraps the volume key with the passphrase from `source`, and returns the volume key and the number of the key
    /// slot. A command that adds or changes a key slot must have a passphrase that opens a key slot.
    async fn unlock(&self, source: &KeySource) -> Result<(Secret, usize)> {
        let passphrase = self.passphrase(source).await?;
        let volume = self.volume.borrow().clone();
        let opened = unwrap(&self.env, &volume, passphrase).await?;
        opened.ok_or_else(|| wrong(&volume))
    }

    /// Reads a passphrase from a file or credential. A running server cannot ask an operator for a passphrase, and
    /// receives no descriptor.
    async fn passphrase(&self, source: &KeySource) -> Result<Secret> {
        if !matches!(source, KeySource::File(_) | KeySource::Credential(_)) {
            bail!(
                Invalid,
                "a running server reads passphrases from file: and credential: only, not from {source}"
            );
        }
        let prompt = format!("passphrase for {}", self.full_name);
        passphrase(&self.env, source, &self.full_name, prompt, false).await
    }

    async fn put(&self, number: usize, key: Secret, new: &KeySource, label: String) -> Result<()> {
        let passphrase = self.passphrase(new).await?;
        let mut volume = self.volume.borrow().clone();
        let drawn = new_slot(&self.env, self.cost, label);
        let (_, slot) = wrap(&self.env, &volume, key, passphrase, drawn).await?;
        volume.slots[number] = Some(slot);
        self.put_volume(volume).await
    }

    /// Replaces the key slots, first in the labels and then in memory. If a disk does not take the new key slots, other
    /// disks may have taken them. In that case writes the old key slots to all disks again as the newest state, so that
    /// the next start has the same key slots as this process.
    async fn put_volume(&self, volume: KeySlots) -> Result<()> {
        let before = self.volume.borrow().clone();
        let Err(error) = keep(&*self.kept, &volume).await else {
            *self.volume.borrow_mut() = volume.clone();
            return self.forget_older(&volume).await;
        };
        // This write fails again on the failing disk, but the failing disk cannot hold a newer state.
        let _ = keep(&*self.kept, &before).await;
        let why = format!("{error}; the key slots are unchanged");
        Err(Error::new(error.kind(), why)
            .next("repair the failing disk, or remove the disk and start with --degraded"))
    }

    /// Writes the new key slots once more, over the older generation of each label. That generation has the old key
    /// slots, and the volume would open with them if the newer generation were damaged.
    async fn forget_older(&self, volume: &KeySlots) -> Result<()> {
        if seeded::on(Bug::OldSlotsStay) {
            return Ok(());
        }
        keep(&*self.kept, volume).await.map_err(|error| {
            let why = format!(
                "{error}; the key slots have changed, but an older label on the failing disk may \
                 still hold the old key slots. Next: remove the failing disk, and erase the disk"
            );
            Error::new(error.kind(), why)
        })
    }
}

fn report(number: usize, slot: &Slot) -> KeySlot {
    let Cost { memory_kib, passes, lanes } = slot.cost;
    KeySlot {
        slot: number,
        label: slot.label.clone(),
        made_unix_s: slot.made_unix_s,
        derivation: "argon2id".to_owned(),
        memory_bytes: u64::from(memory_kib) << 10,
        passes,
        lanes,
    }
}
