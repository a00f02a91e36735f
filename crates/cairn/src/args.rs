//! The command line: what may be typed, and which verb it means.

use clap::{Parser, Subcommand};

use crate::exit::Result;
use crate::out::Form;
use crate::serve::ServeArgs;

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
    /// Serve a spec, or one raw disk, in the foreground
    Serve(ServeArgs),
}

impl Args {
    /// Does what was typed.
    pub fn run(self) -> Result {
        match self.verb {
            Verb::Serve(args) => args.run(),
        }
    }
}
