//! `cairn attach` and `cairn detach`: an export as a block device of this machine.

use api::{AttachRequest, Attached, Client, DetachRequest, Means, routes};
use attach::{Claim, Name};
use clap::Args;

use crate::attach::{must_be_root, print};
use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::out::{self, Form};
use crate::running::At;
use crate::serve::attach_uri;

/// Arguments of `attach`.
#[derive(Args)]
pub struct AttachArgs {
    /// An export of a running graph, or the NBD URI of an export of any server
    #[arg(value_name = "EXPORT|URI", add = complete::export())]
    export: String,
    /// The name of the device in /dev/cairn; by default the name of the export
    #[arg(long)]
    name: Option<String>,
    /// Means: fuse (a FUSE mount and a loop device), or nbd (the kernel's own NBD client); by default fuse
    /// if /dev/fuse exists
    #[arg(long, value_name = "fuse|nbd", value_parser = means, add = complete::means())]
    by: Option<Means>,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

fn means(text: &str) -> std::result::Result<Means, String> {
    match text {
        "fuse" => Ok(Means::Fuse),
        "nbd" => Ok(Means::Nbd),
        _ => Err("use fuse or nbd".to_owned()),
    }
}

/// Arguments of `detach`.
#[derive(Args)]
pub struct DetachArgs {
    /// The name of the device in /dev/cairn, or of its export
    #[arg(add = complete::attached())]
    name: String,
    /// Show the steps without doing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
}

impl AttachArgs {
    /// Makes the running graph with that export attach it. For a URI, this process serves and attaches the export.
    pub fn run(self, form: Form) -> Result {
        let Self { export, name, by, dry_run, at } = self;
        let request = AttachRequest { export, name, by, dry_run };
        if request.export.contains("://") {
            return attach_uri(form, &request);
        }
        let (client, export) = match at.owner_of_export(&request.export) {
            Err(failure) if failure.code == Exit::NotFound.code() && must_be_root(None).is_ok() => {
                return Err(of_others(failure, &request.export));
            }
            owner => owner?,
        };
        print(form, &client.ask(&routes::ATTACH, &AttachRequest { export, ..request })?)
    }
}

/// Adds to `failure`, of a command that root runs, that another user may serve the export. Then the command needs the
/// URI.
fn of_others(failure: Failure, export: &str) -> Failure {
    let why = format!(
        "{}; or, if another user serves the export, cairn attach \
         'nbd+unix:///{export}?socket=SOCKET' with the socket that cairn ls of that user shows",
        failure
    );
    failure.reworded(why)
}

impl DetachArgs {
    /// Makes the process that attached the device detach it. If that process has ended, removes the parts of the
    /// device itself.
    pub fn run(self, form: Form) -> Result {
        let name = self.name.strip_prefix("/dev/cairn/").unwrap_or(&self.name).to_owned();
        let has = |client: &Client| {
            let is_it = |one: &Attached| one.name == name || one.export == name;
            client.get(&routes::STATUS).is_ok_and(|status| status.attached.iter().any(is_it))
        };
        let client = match self.at.one_that(&format!("has attached {name}"), has) {
            Err(failure) if failure.code == Exit::NotFound.code() => {
                return self.clear(&name, failure);
            }
            client => client?,
        };
        let detached =
            client.ask(&routes::DETACH, &DetachRequest { name, dry_run: self.dry_run })?;
        let would = if self.dry_run { "would be " } else { "" };
        form.print(&detached, || format!("{}  {would}detached\n", detached.path))
    }

    /// Removes the parts of the device `name`, or of the device of this export, that an ended process left. Returns
    /// `failure` if there are none.
    fn clear(&self, name: &str, failure: Failure) -> Result {
        let name = Name::of_export(name)?;
        if !attach::is_left(&name) {
            return Err(not_attached(&name, failure));
        }
        must_be_root(None)?;
        let path = name.link().display().to_string();
        let claim = Claim::take(&name)?;
        if self.dry_run {
            out::print(&format!("would remove {path}, whose server process has ended\n"))?;
        } else {
            attach::clear(claim.name())?;
            let users = still_used(&name).map(|users| format!("  {users}\n")).unwrap_or_default();
            out::print(&format!("{path}  removed; its server process has ended\n{users}"))?;
        }
        Ok(Exit::Ok)
    }
}

fn not_attached(name: &Name, failure: Failure) -> Failure {
    match still_used(name) {
        Some(users) => {
            let why = format!("no running graph has attached {name}; {users}");
            failure.reworded(why)
        }
        None => failure,
    }
}

/// Returns a text about the processes that still have the removed device open; `None` if there are none.
fn still_used(name: &Name) -> Option<String> {
    attach::still_used(name).map(|users| format!("the device behind {name} {users}"))
}
