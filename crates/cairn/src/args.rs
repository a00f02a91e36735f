//! The command line: its verbs, and the code that each verb runs.

use clap::{CommandFactory, Parser, Subcommand};

use crate::daemon::DaemonArgs;
use crate::exit::Result;
use crate::out::Form;
use crate::serve::ServeArgs;
use crate::verbs::apply::{ApplyArgs, DiffArgs};
use crate::verbs::attach::{AttachArgs, DetachArgs};
use crate::verbs::bench::BenchArgs;
use crate::verbs::check::CheckArgs;
use crate::verbs::completions::{CompletionsArgs, ManArgs};
use crate::verbs::create::CreateArgs;
use crate::verbs::device::DeviceArgs;
use crate::verbs::events::EventsArgs;
use crate::verbs::graph::GraphArgs;
use crate::verbs::import::ImportArgs;
use crate::verbs::info::InfoArgs;
use crate::verbs::job::JobArgs;
use crate::verbs::key::KeyArgs;
use crate::verbs::kinds::KindsArgs;
use crate::verbs::locate::LocateArgs;
use crate::verbs::ls::LsArgs;
use crate::verbs::repair::RepairArgs;
use crate::verbs::show::ShowArgs;
use crate::verbs::status::StatusArgs;
use crate::verbs::stop::StopArgs;
use crate::verbs::top::TopArgs;
use crate::verbs::undo::UndoArgs;
use crate::verbs::validate::ValidateArgs;
use crate::verbs::wipe::WipeArgs;

/// Composable block storage in user space.
#[derive(Parser)]
#[command(name = "cairn", version, disable_help_subcommand = true)]
pub struct Args {
    /// How results are printed
    #[arg(short = 'o', long = "output", value_enum, default_value_t, global = true)]
    form: Form,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make an empty disk: a sparse file
    Create(CreateArgs),
    /// Tell what a file or an NBD export is
    Info(InfoArgs),
    /// Serve a spec, or one raw disk, in the foreground
    Serve(ServeArgs),
    /// Find graphs on disks, and bring one up without its spec
    Import(ImportArgs),
    /// Keep many graphs, each in a process that may die and is started again
    Daemon(DaemonArgs),
    /// Close a graph that a daemon keeps, so that another machine may open it
    Stop(StopArgs),
    /// Check a spec: every fault at once, or what the user gets
    Validate(ValidateArgs),
    /// Tell what of the running graph a spec would change
    Diff(DiffArgs),
    /// Bring a graph up and keep it, or make the running one what the spec says
    Apply(ApplyArgs),
    /// Make the running graph what it was before its last change
    Undo(UndoArgs),
    /// Show a spec, or what is running, with nothing left open
    Show(ShowArgs),
    /// List what is running, and where clients reach it
    Ls(LsArgs),
    /// Tell how everything is, and what to type next
    Status(StatusArgs),
    /// Draw the graph of a spec, or of what is running
    Graph(GraphArgs),
    /// Show what every device does, each second
    Top(TopArgs),
    /// Tell where a byte of an export lies on the disks
    Locate(LocateArgs),
    /// Make an export a block device of this machine: /dev/cairn/NAME
    Attach(AttachArgs),
    /// Flush a device that was attached, and take it away
    Detach(DetachArgs),
    /// Act on members of redundant devices, while they are in use
    Device(DeviceArgs),
    /// Look after what takes long: moves of bytes, copies
    Job(JobArgs),
    /// Tell what has happened to devices
    Events(EventsArgs),
    /// Say who may open an encrypted device the next time
    Key(KeyArgs),
    /// Tell whether labels are sound, of what runs and of what is found on disks
    Check(CheckArgs),
    /// Write labels anew: of which one copy is sound, or that other disks know of
    Repair(RepairArgs),
    /// Remove the label of a disk
    Wipe(WipeArgs),
    /// List the kinds of devices, or show the manual of one
    Kinds(KindsArgs),
    /// Put the same load on NBD exports of any server
    Bench(BenchArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for every verb
    Man(ManArgs),
}

impl Args {
    /// Runs the verb of the command line.
    pub fn run(self) -> Result {
        let form = self.form;
        match self.verb {
            Verb::Create(args) => args.run(form),
            Verb::Info(args) => args.run(form),
            Verb::Serve(args) => args.run(form),
            Verb::Import(args) => args.run(form),
            Verb::Daemon(args) => args.run(form),
            Verb::Stop(args) => args.run(form),
            Verb::Validate(args) => args.run(form),
            Verb::Diff(args) => args.run(form),
            Verb::Apply(args) => args.run(form),
            Verb::Undo(args) => args.run(form),
            Verb::Show(args) => args.run(form),
            Verb::Ls(args) => args.run(form),
            Verb::Status(args) => args.run(form),
            Verb::Graph(args) => args.run(form),
            Verb::Top(args) => args.run(form),
            Verb::Locate(args) => args.run(form),
            Verb::Attach(args) => args.run(form),
            Verb::Detach(args) => args.run(form),
            Verb::Device(args) => args.run(form),
            Verb::Job(args) => args.run(form),
            Verb::Events(args) => args.run(form),
            Verb::Key(args) => args.run(form),
            Verb::Check(args) => args.run(form),
            Verb::Repair(args) => args.run(form),
            Verb::Wipe(args) => args.run(form),
            Verb::Kinds(args) => args.run(form),
            Verb::Bench(args) => args.run(form),
            Verb::Completions(args) => args.run(Self::command()),
            Verb::Man(args) => args.run(Self::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_sound_and_documented() {
        let command = Args::command();
        command.clone().debug_assert();
        let page = include_str!("../../../docs/cli.md");
        for verb in command.get_subcommands() {
            let line = format!("\ncairn {} ", verb.get_name());
            assert!(page.contains(&line), "docs/cli.md does not list {}", verb.get_name());
        }
    }
}
