//! `cairn device`: changes members of devices in a running graph, and the size of disks.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;

use api::{
    Client, DeviceStatus, DiskChange, DiskRequest, Member, MemberRequest, MemberState,
    ResizeRequest, routes,
};
use block::units::parse_size;
use clap::{Args, Subcommand};

use super::scrub::ScrubArgs;
use super::{LOOK, confirm, progress};
use crate::complete;
use crate::exit::{Exit, Result};
use crate::names::{self, Path};
use crate::out::Form;
use crate::place;
use crate::running::At;

/// Arguments of `device`.
#[derive(Args)]
pub struct DeviceArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Fail a member: its device neither reads nor writes it from then on
    Fail {
        #[command(flatten)]
        target: Target,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Bring a member in sync: copy to it from members in sync
    Resync {
        #[command(flatten)]
        target: Target,
        /// Watch until the member is in sync; the resync continues after Ctrl-C
        #[arg(long)]
        wait: bool,
    },
    /// Read and compare all copies of a device, and report or repair differences
    Scrub(ScrubArgs),
    /// Add a disk as a member
    Insert(DiskArgs),
    /// Replace a member by a disk
    Replace(DiskArgs),
    /// Remove a member
    Remove {
        #[command(flatten)]
        target: Target,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Let the graph use all of a disk that has grown, or extend its file first
    Resize {
        /// The disk, by its name in the spec; `disk` for a served file or device without a spec
        #[arg(add = complete::disk())]
        disk: String,
        /// New size of the file of the disk: 20GiB; by default the present size of the disk
        #[arg(value_parser = size)]
        size: Option<u64>,
        /// Show the steps without doing anything
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        at: At,
    },
}

#[derive(Args)]
struct DiskArgs {
    #[command(flatten)]
    target: Target,
    /// The disk: a block device, or a file
    path: PathBuf,
    /// Label the disk even if it is not empty: its content is lost
    #[arg(long)]
    wipe: bool,
    /// Watch until the member is in sync, also without a terminal; the resync continues after Ctrl-C
    #[arg(long)]
    wait: bool,
}

#[derive(Args)]
struct Target {
    /// The member, after its device or its graph, or alone if only one member has this name
    #[arg(value_name = "DEVICE/MEMBER|GRAPH/MEMBER", add = complete::member())]
    member: Name,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

/// Parses the size of a disk, which is above zero.
fn size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("the size of a disk must be above 0".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Returns the paths of all disks and devices of the graph of a client.
pub fn nodes(client: &Client) -> Vec<Path> {
    let graph = client.get(&routes::GRAPH).ok().into_iter();
    graph.flat_map(|graph| graph.nodes).map(|node| vec![node.name]).collect()
}

/// Returns the paths of the graph's devices for which `has` is true.
pub fn devices(client: &Client, has: impl Fn(&DeviceStatus) -> bool) -> Vec<Path> {
    let status = client.get(&routes::STATUS).ok().into_iter();
    let devices = status.flat_map(|status| status.devices).filter(has);
    devices.map(|device| vec![device.name]).collect()
}

/// Returns the status of the graph's device for which `is_it` is true.
pub fn find(client: &Client, is_it: impl Fn(&DeviceStatus) -> bool) -> Result<DeviceStatus> {
    let found = client.get(&routes::STATUS)?.devices.into_iter().find(is_it);
    found.ok_or_else(|| failure!(NotFound, "the device was removed from the graph meanwhile"))
}

/// Returns the paths of all members in the graph of a client.
fn members(client: &Client) -> Vec<Path> {
    let status = client.get(&routes::STATUS).ok().into_iter();
    let devices = status.flat_map(|status| status.devices);
    let paths = devices.flat_map(|device| {
        let path = move |member: Member| vec![device.name.clone(), member.name];
        device.members.into_iter().map(path)
    });
    paths.collect()
}

/// The name of a member, after that of its device or graph: `pair/b`. `of` is empty for the name of a member alone.
#[derive(Clone)]
struct Name {
    of: String,
    member: String,
}

impl Name {
    fn request(&self, dry_run: bool) -> MemberRequest {
        let Self { of, member } = self.clone();
        MemberRequest { of, member, dry_run }
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once('/').unwrap_or(("", text)) {
            ("", _) if text.contains('/') => Err("a member is needed, as in pair/b".to_owned()),
            (_, "") => Err("a member is needed, as in pair/b".to_owned()),
            (of, member) => Ok(Self { of: of.to_owned(), member: member.to_owned() }),
        }
    }
}

impl DeviceArgs {
    /// Makes the running graph carry out the verb of `cairn device`.
    pub fn run(self, form: Form) -> Result {
        match self.verb {
            Verb::Fail { target, yes } => target.fail(form, yes),
            Verb::Resync { target, wait } => target.resync(form, wait),
            Verb::Scrub(args) => args.run(form),
            Verb::Insert(args) => args.run(form, DiskChange::Insert),
            Verb::Replace(args) => args.run(form, DiskChange::Replace),
            Verb::Remove { target, yes } => target.remove(form, yes),
            Verb::Resize { disk, size, dry_run, at } => {
                let (client, disk) = at.owner("a disk", &disk, names::resolve, nodes)?;
                let request = ResizeRequest { disk, size_bytes: size, dry_run };
                super::apply::print(form, &client.ask(&routes::RESIZE, &request)?, dry_run)
            }
        }
    }
}

impl DiskArgs {
    fn run(self, form: Form, change: impl FnOnce(PathBuf) -> DiskChange) -> Result {
        let Self { target, path, wipe, wait } = self;
        let change = change(path);
        let is_new = matches!(change, DiskChange::Insert(_));
        let (client, name) = if is_new { target.resolve_new()? } else { target.resolve()? };
        let applied = client.ask(&routes::DISK, &target.disk_request(name, change, wipe)?)?;
        super::apply::print(form, &applied, target.dry_run)?;
        if target.dry_run || !(wait || std::io::stderr().is_terminal()) {
            return Ok(Exit::Ok);
        }
        let member = &target.member.member;
        let has = |device: &DeviceStatus| device.members.iter().any(|one| one.name == *member);
        // The name may be that of a disk beneath a member.
        let Ok(device) = find(&client, has) else { return Ok(Exit::Ok) };
        let device = target.watch(&client, device)?;
        target.judge(&device)
    }
}

impl Target {
    fn remove(&self, form: Form, yes: bool) -> Result {
        let (client, name) = self.resolve()?;
        // This only reads the state of the member.
        let device = client.ask(&routes::FAIL, &name.request(true))?;
        let request = self.disk_request(name, DiskChange::Remove, false)?;
        if !self.dry_run {
            // A change that would be refused is reported before the question.
            client.ask(&routes::DISK, &DiskRequest { dry_run: true, ..request.clone() })?;
            let Member { name: member, state, .. } = self.find(&device)?;
            confirm(yes, &format!("remove the member {member} ({state}) of {}?", device.name))?;
        }
        let applied = client.ask(&routes::DISK, &request)?;
        super::apply::print(form, &applied, self.dry_run)
    }

    fn disk_request(&self, name: Name, change: DiskChange, wipe: bool) -> Result<DiskRequest> {
        let Name { of, member } = name;
        let directory = place::here()?;
        Ok(DiskRequest { of, member, change, directory, wipe, dry_run: self.dry_run })
    }

    /// Fails if the member is not in sync in this status of its device.
    fn judge(&self, device: &DeviceStatus) -> Result {
        let member = self.find(device)?;
        if member.state == MemberState::InSync {
            return Ok(Exit::Ok);
        }
        Err(failure!(Io, "the member {} is {}: {}", member.name, member.state, member.detail))
    }

    /// Returns a client of the graph with the member, and the name of the member in the graph.
    fn resolve(&self) -> Result<(Client, Name)> {
        let Name { of, member } = &self.member;
        let word = if of.is_empty() { member.clone() } else { format!("{of}/{member}") };
        let (client, name) = self.at.owner("a member", &word, names::resolve, members)?;
        // If only one graph runs, it gets an unknown name as it is.
        let name = name.parse().ok().filter(|name: &Name| !name.of.is_empty());
        let name = name.unwrap_or_else(|| self.member.clone());
        if name.of.is_empty() {
            let paths: Vec<_> = members(&client).iter().map(|path| path.join("/")).collect();
            let names = paths.iter().map(String::as_str);
            let known = names::listed(names, "the graph has none", "members:");
            fail!(NotFound, "no member {member}; {known}");
        }
        Ok((client, name))
    }

    /// Returns a client of the graph with the device that gets a new member, and the name of the new member in the
    /// graph.
    fn resolve_new(&self) -> Result<(Client, Name)> {
        let Name { of, member } = &self.member;
        if of.is_empty() {
            fail!(Usage, "the device of the new member {member} is needed, as in pair/{member}");
        }
        let with_members = |client: &Client| devices(client, |device| !device.members.is_empty());
        let sort = "a device with members";
        let (client, of) = self.at.owner(sort, of, names::resolve_or_only, with_members)?;
        Ok((client, Name { of, member: member.clone() }))
    }

    /// Shows the progress of the resync of the member until the resync has ended. The server carries out the resync,
    /// so it continues if this process ends.
    fn watch(&self, client: &Client, mut device: DeviceStatus) -> Result<DeviceStatus> {
        let Some(copied) = self.find(&device)?.progress else { return Ok(device) };
        let whose = format!("{}/{}", client.get(&routes::GRAPH)?.name, device.name);
        let bar = progress::bar("resync", &whose, copied.all_bytes);
        loop {
            let member = self.find(&device)?;
            if member.state != MemberState::Copying {
                bar.finish_and_clear();
                return Ok(device);
            }
            if let Some(progress) = member.progress {
                bar.set_position(progress.done_bytes);
            }
            std::thread::sleep(LOOK);
            device = find(client, |one| one.name == device.name)?;
        }
    }

    /// Returns the status of the member from that of its device.
    fn find<'a>(&self, device: &'a DeviceStatus) -> Result<&'a Member> {
        let member = &self.member.member;
        device
            .members
            .iter()
            .find(|one| one.name == *member)
            .ok_or_else(|| failure!(NotFound, "{} no longer has a member {member}", device.name))
    }

    /// Prints the state of the member; in a dry run, also the effect that the command would have.
    fn print(&self, form: Form, device: &DeviceStatus, would: &str) -> Result {
        let member = self.find(device)?;
        let line = format!("{}/{}  {}", device.name, member.name, member.state);
        let would = if self.dry_run { format!("; would {would}") } else { String::new() };
        form.print(device, || format!("{line}{would}\n"))
    }

    fn fail(&self, form: Form, yes: bool) -> Result {
        let (client, name) = self.resolve()?;
        let before = client.ask(&routes::FAIL, &name.request(true))?;
        if self.dry_run {
            return self.print(form, &before, "fail the member");
        }
        let Member { name: member, state, .. } = self.find(&before)?;
        confirm(yes, &format!("fail the member {member} ({state}) of {}?", before.name))?;
        let device = client.ask(&routes::FAIL, &name.request(false))?;
        self.print(form, &device, "")
    }

    fn resync(&self, form: Form, wait: bool) -> Result {
        let (client, name) = self.resolve()?;
        let before = client.ask(&routes::RESYNC, &name.request(true))?;
        // A resync that runs already is watched like one that this command begins. It may have ended just now.
        let state = self.find(&before)?.state;
        let has_begun = wait && matches!(state, MemberState::Copying | MemberState::InSync);
        let device = match self.dry_run || has_begun {
            true => before,
            false => client.ask(&routes::RESYNC, &name.request(false))?,
        };
        if !wait || self.dry_run {
            return self.print(form, &device, "resync the member from members in sync");
        }
        let device = self.watch(&client, device)?;
        self.print(form, &device, "")?;
        self.judge(&device)
    }
}
