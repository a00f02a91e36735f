//! The command line: its verbs, and the code that each verb runs.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::daemon::DaemonArgs;
use crate::exit::Result;
use crate::out::Form;
use crate::running::Named;
use crate::serve::ServeArgs;
use crate::verbs::{
    apply, attach, bench, check, completions, create, device, events, graph, import, info, job,
    key, kinds, locate, ls, man, repair, show, status, stop, top, undo, validate, vdisk, wipe,
};

/// Composable block storage in user space.
#[derive(Parser)]
#[command(name = "cairn", version)]
pub struct Args {
    /// Form of printed results
    #[arg(short = 'o', long = "output", value_enum, default_value_t, global = true)]
    form: Form,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create an empty disk: a sparse file
    Create(create::CreateArgs),
    /// Show the facts of a file, a block device or an NBD export
    Info(info::InfoArgs),
    /// Serve a spec, or one raw disk, in the foreground
    Serve(ServeArgs),
    /// Find graphs on disks, and serve one without its spec
    Import(import::ImportArgs),
    /// Serve many graphs, each in its own worker process, and restart workers that die
    Daemon(DaemonArgs),
    /// Close a graph of a daemon, so that another machine may open it
    Stop(stop::StopArgs),
    /// Check a spec: show every fault at once, or the resulting graph
    Validate(validate::ValidateArgs),
    /// Show the changes that a spec would make to the running graph
    Diff(apply::DiffArgs),
    /// Bring up a graph under a daemon, or change the running one to match the spec
    Apply(apply::ApplyArgs),
    /// Undo the last change of the running graph
    Undo(undo::UndoArgs),
    /// Show a spec, or the running graphs, with every default filled in
    Show(show::ShowArgs),
    /// List running graphs, and their addresses for clients
    Ls(Named),
    /// Report the state of every graph, and the next command to type
    Status(status::StatusArgs),
    /// Draw the graph of a spec, or the running graphs
    Graph(graph::GraphArgs),
    /// Show rates of every device, each second
    Top(top::TopArgs),
    /// Show where a byte of an export lies on the disks
    Locate(locate::LocateArgs),
    /// Attach an export as a block device of this machine: /dev/cairn/NAME
    Attach(attach::AttachArgs),
    /// Flush an attached device, and remove it
    Detach(attach::DetachArgs),
    /// Fail, resync, add or remove members of redundant devices, and resize disks, while they are in use
    Device(device::DeviceArgs),
    /// Create, snapshot, clone, resize and remove virtual disks of pools
    Vdisk(vdisk::VdiskArgs),
    /// List, watch and control long jobs: migrations, resyncs
    Job(job::JobArgs),
    /// Show events of devices
    Events(events::EventsArgs),
    /// Manage the key slots of an encrypted device
    Key(key::KeyArgs),
    /// Check the labels of running graphs and of disks
    Check(check::CheckArgs),
    /// Rewrite labels from their sound copy, or from the labels of other disks
    Repair(repair::RepairArgs),
    /// Remove the label of a disk
    Wipe(wipe::WipeArgs),
    /// List the kinds of devices, or show the manual of one
    Kinds(kinds::KindsArgs),
    /// Measure NBD exports of any server under the same load
    Bench(bench::BenchArgs),
    /// Print the script that completes words of this program in a shell
    Completions(completions::CompletionsArgs),
    /// Print a manual page, or write all pages
    Man(man::ManArgs),
}

impl Args {
    /// Parses the command line of this process. Also returns the words of its verb: `device fail`; `None` if the
    /// process runs a shell command, because it ends with the status of that command. Ends the process after a request
    /// for help, or if the command line is wrong.
    pub fn read() -> (Self, Option<String>) {
        let mut command = Self::command();
        let matches = command.get_matches_mut();
        let args = Self::from_arg_matches(&matches);
        let args = args.unwrap_or_else(|error| error.format(&mut command).exit());
        let (mut words, mut level) = (Vec::new(), &matches);
        while let Some((word, below)) = level.subcommand() {
            words.push(word);
            level = below;
        }
        let runs_command = level.try_contains_id("run").unwrap_or(false);
        (args, (!runs_command).then(|| words.join(" ")))
    }

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
            Verb::Ls(at) => ls::run(&at.at(), form),
            Verb::Status(args) => args.run(form),
            Verb::Graph(args) => args.run(form),
            Verb::Top(args) => args.run(form),
            Verb::Locate(args) => args.run(form),
            Verb::Attach(args) => args.run(form),
            Verb::Detach(args) => args.run(form),
            Verb::Device(args) => args.run(form),
            Verb::Vdisk(args) => args.run(form),
            Verb::Job(args) => args.run(form),
            Verb::Events(args) => args.run(form),
            Verb::Key(args) => args.run(form),
            Verb::Check(args) => args.run(form),
            Verb::Repair(args) => args.run(form),
            Verb::Wipe(args) => args.run(form),
            Verb::Kinds(args) => args.run(form),
            Verb::Bench(args) => args.run(form),
            Verb::Completions(args) => args.run(),
            Verb::Man(args) => args.run(Self::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_document_lists_every_command() {
        let command = Args::command();
        command.clone().debug_assert();
        let page = include_str!("../../../docs/cli.md");
        for verb in command.get_subcommands() {
            let line = format!("\ncairn {} ", verb.get_name());
            assert!(page.contains(&line), "docs/cli.md does not list {}", verb.get_name());
        }
    }

    /// Returns the command for `path`, the words of a verb.
    fn verb(path: &str) -> clap::Command {
        let mut command = Args::command();
        command.build();
        path.split(' ').fold(command, |above, word| {
            above.find_subcommand(word).unwrap_or_else(|| panic!("no verb {path}")).clone()
        })
    }

    #[test]
    fn verbs_have_options_that_cli_page_promises() {
        const CHANGING: &str = "create serve import stop apply undo attach detach repair wipe";
        const DEVICE: &str = "fail resync scrub insert replace remove resize";
        const JOB: &str = "pause resume cancel";
        const LIVE: &str = "ls status show graph top locate attach detach events";
        let words = |words: &str, before: &str| {
            words.split(' ').map(|word| format!("{before}{word}")).collect::<Vec<_>>()
        };
        let keys = words("add rm change", "key ");
        let (device, job) = (words(DEVICE, "device "), words(JOB, "job "));
        let vdisk = words("create snap clone keep label resize rm", "vdisk ");
        let changing = words(CHANGING, "");
        for path in [&changing, &keys, &device, &job, &vdisk].into_iter().flatten() {
            assert!(has(path, "dry-run"), "{path} has no --dry-run");
        }
        for path in words(LIVE, "").iter().chain(&device).chain(&job).chain(&keys).chain(&vdisk) {
            assert!(has(path, "at"), "{path} has no --at");
        }
        for path in ["stop", "wipe", "repair", "device fail", "device remove", "key rm", "vdisk rm"]
        {
            assert!(has(path, "yes"), "{path} has no --yes");
        }
    }

    fn has(path: &str, option: &str) -> bool {
        let is_it = |argument: &clap::Arg| {
            let names = argument.get_long_and_visible_aliases();
            names.is_some_and(|names| names.contains(&option))
        };
        verb(path).get_arguments().any(is_it)
    }
}
