//! `cairn key`: lists and changes the key slots of an encrypted device in a running graph.
//!
//! The command reads the passphrases, so it can ask at its own terminal, and reads files with the rights of its user.
//! The server gets each passphrase through a pipe of the command, which it opens by its path in `/proc`. No
//! passphrase is in a request, in an argument or on a disk.

use std::io::{PipeReader, Write};
use std::os::fd::AsRawFd;

use api::{Client, routes};
use block::units::write_size;
use block::{KeySource, Wanted};
use clap::{Args, Subcommand};
use kinds::keys::{self, KeyChange, KeyRequest, KeySlot, KeySlots};
use serde::Serialize;

use super::device::nodes;
use super::{confirm, core};
use crate::complete;
use crate::exit::{Failure, Result};
use crate::names;
use crate::out::{Form, columns};
use crate::running::At;

/// Arguments of `key`.
#[derive(Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List used slots
    Ls(Target),
    /// Add a passphrase that opens the device
    Add {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        keys: Keys,
        /// Text that identifies the owner of the slot
        #[arg(long, value_name = "TEXT", default_value = "")]
        label: String,
        /// Show the steps without doing anything
        #[arg(long)]
        dry_run: bool,
    },
    /// Empty a slot: its passphrase no longer opens the device
    Rm {
        #[command(flatten)]
        target: Target,
        /// The slot's number
        slot: usize,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Show the steps without doing anything
        #[arg(long)]
        dry_run: bool,
    },
    /// Replace the passphrase of a slot
    Change {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        keys: Keys,
        /// Show the steps without doing anything
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
struct Keys {
    /// Source of a passphrase that opens the device: file:PATH, fd:N, credential:NAME or ask
    #[arg(long, value_name = "SOURCE", default_value = "ask", add = complete::key_source())]
    key: String,
    /// Source of the new passphrase
    #[arg(long, value_name = "SOURCE", default_value = "ask", add = complete::key_source())]
    new_key: String,
}

/// Parses the source of a key from the option `option`. clap would print an invalid value, which may be a passphrase.
fn source(option: &str, text: &str) -> Result<KeySource> {
    text.parse().map_err(|words| failure!(Usage, "{option}: {words}"))
}

#[derive(Args)]
struct Target {
    /// The device, after its graph if more than one runs
    #[arg(value_name = "DEVICE|GRAPH/DEVICE", add = complete::encrypted())]
    device: String,
    #[command(flatten)]
    at: At,
}

impl KeyArgs {
    /// Lists the key slots of the device, or makes the running graph change them.
    pub fn run(self, form: Form) -> Result {
        match self.verb {
            Verb::Ls(target) => target.list(form),
            Verb::Add { target, keys, label, dry_run } => {
                target.with_keys(form, &keys, dry_run, |key, new_key| {
                    let label = label.clone();
                    KeyChange::Add { key, new_key, label }
                })
            }
            Verb::Rm { target, slot, yes, dry_run } => target.remove(form, slot, yes, dry_run),
            Verb::Change { target, keys, dry_run } => {
                let change = |key, new_key| KeyChange::Change { key, new_key };
                target.with_keys(form, &keys, dry_run, change)
            }
        }
    }
}

impl Target {
    /// Returns a client of the graph with the device, and the name of the device in the graph.
    fn find(&self) -> Result<(Client, String)> {
        self.at.owner("a device", &self.device, names::resolve, nodes)
    }

    fn list(&self, form: Form) -> Result {
        let (client, device) = self.find()?;
        let slots = ask(&client, &device, KeyChange::List, false)?;
        print(form, &device, &slots)
    }

    /// Checks whether the change is possible, then reads the passphrases, and then makes the server carry out the
    /// change.
    fn with_keys(
        &self,
        form: Form,
        keys: &Keys,
        dry_run: bool,
        change: impl Fn(String, String) -> KeyChange,
    ) -> Result {
        let (key, new_key) = (source("--key", &keys.key)?, source("--new-key", &keys.new_key)?);
        let (client, device) = self.find()?;
        // A dry run does not read these sources.
        let nobody = || "file:/nowhere".to_owned();
        let would = ask(&client, &device, change(nobody(), nobody()), true)?;
        if dry_run {
            return print(form, &device, &would);
        }
        let full_name = format!("{}/{}", client.get(&routes::GRAPH)?.name, device);
        let old = Lent::of(&key, format!("passphrase for {full_name}"), false)?;
        let new = Lent::of(&new_key, format!("new passphrase for {full_name}"), true)?;
        let done = ask(&client, &device, change(old.source(), new.source()), false)?;
        print(form, &device, &done)
    }

    fn remove(&self, form: Form, slot: usize, yes: bool, dry_run: bool) -> Result {
        let change = KeyChange::Remove { slot };
        let (client, device) = self.find()?;
        let would = ask(&client, &device, change.clone(), true)?;
        if dry_run {
            return print(form, &device, &would);
        }
        let found = would.slots.iter().find(|found| found.slot == slot);
        let label = found.map_or("", |found| found.label.as_str());
        confirm(yes, &format!("remove slot {slot} ({label:?}) of {device}?"))?;
        let done = ask(&client, &device, change, false)?;
        print(form, &device, &done)
    }
}

/// A passphrase in a pipe of this process, which the server reads.
pub(super) struct Lent(PipeReader);

impl Lent {
    /// Reads the passphrase from its source, or from the operator.
    ///
    /// # Errors
    /// `Denied` with the next step for the operator.
    pub(super) fn of(source: &KeySource, prompt: String, twice: bool) -> Result<Self> {
        let core = core()?;
        let wanted = Wanted { source: source.clone(), prompt, twice, full_name: String::new() };
        let env = core.env();
        let secret = core.block_on(env.secret(&wanted))?;
        let failed = |error: std::io::Error| Failure::io(&error, "passing the key to the server");
        let (reader, mut writer) = std::io::pipe().map_err(failed)?;
        // The longest key fits into a pipe, so this write does not wait for a reader.
        writer.write_all(secret.bytes()).map_err(failed)?;
        Ok(Self(reader))
    }

    /// Returns the source from which the server reads the passphrase, as text.
    fn source(&self) -> String {
        format!("file:{}", self.path())
    }

    /// Returns the path from which the server reads the passphrase.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// The key slots of a device.
#[derive(Serialize)]
struct Shown<'s> {
    device: &'s str,
    #[serde(flatten)]
    slots: &'s KeySlots,
}

fn ask(client: &Client, device: &str, change: KeyChange, dry_run: bool) -> Result<KeySlots> {
    Ok(client.command::<keys::Keys>(device, &KeyRequest { change, dry_run })?)
}

fn print(form: Form, device: &str, slots: &KeySlots) -> Result {
    form.print(&Shown { device, slots }, || {
        let done = match slots.done.as_str() {
            "" => String::new(),
            done => format!("{}: {done}\n", device),
        };
        let row = |slot: &KeySlot| {
            let cost = format!(
                "{} with {}, {} passes",
                slot.derivation,
                write_size(slot.memory_bytes),
                slot.passes
            );
            vec![slot.slot.to_string(), slot.label.clone(), cost]
        };
        let rows: Vec<_> = slots.slots.iter().map(row).collect();
        done + &columns("><<", &rows)
    })
}
