//! `chaosdisk`: serves simulated disks over NBD, and lets them fail on command.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use block::env::Address;
use chaosdisk::{DiskSpec, Shelf, ask, serve};
use clap::{Parser, Subcommand};
use runtime::{Config, Core};

/// Simulated disks over NBD, which lose unflushed data on command.
#[derive(Parser)]
#[command(name = "chaosdisk", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve disks until `ctl SOCKET quit`; prints a line when clients can connect
    Serve {
        /// The unix socket of the exports
        #[arg(long)]
        socket: PathBuf,
        /// The unix socket for `ctl`
        #[arg(long)]
        control: PathBuf,
        /// Seed for delays and power cuts
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// NAME=SIZE or NAME=SIZE,PROFILE: 4kn, 512n, 512e, not-atomic, protected, liar
        #[arg(required = true)]
        disks: Vec<DiskSpec>,
    },
    /// Send one command to a running chaosdisk
    Ctl {
        /// The control socket of that chaosdisk
        socket: PathBuf,
        /// powercut [POLICY] [stay] | eio DISK VERB [COUNT] | stall DISK TIME | hang DISK |
        /// release DISK | rot DISK OFFSET | counts | quit
        #[arg(required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().verb {
        Verb::Serve { socket, control, seed, disks } => run(socket, control, seed, &disks),
        Verb::Ctl { socket, command } => match ask(&socket, &command.join(" ")) {
            Ok(Ok(answer)) => {
                println!("{answer}");
                Ok(())
            }
            Ok(Err(words)) => Err(words),
            Err(error) => Err(format!("{}: {error}", socket.display())),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("error: {words}");
            ExitCode::FAILURE
        }
    }
}

fn run(socket: PathBuf, control: PathBuf, seed: u64, disks: &[DiskSpec]) -> Result<(), String> {
    let core = Core::new(Config::default()).map_err(|error| error.to_string())?;
    let env = core.env();
    let serving = async {
        let shelf = Shelf::open(&env, seed, disks, socket)?;
        let listener = env.listen(&Address::Unix(control))?;
        println!("{} disks, seed {seed}", disks.len());
        serve(&env, &shelf, listener).await
    };
    core.block_on(serving).map_err(|error| error.to_string())
}
