//! `cargo xtask sim`: builds and runs `kennel-sim`.

use std::process::ExitCode;

use crate::Outcome;
use crate::program::{self, Options};

const EXAMPLES: &str = "\
Examples:
  cargo xtask sim                                   a hundred thousand schedules of a fresh seed
  cargo xtask sim --seed 42 --schedules 1000        the first thousand of an earlier run
  cargo xtask sim --seed 42 --first 17 --schedules 1 --verbose
                                                    one of them, with every event
  cargo xtask sim --help                            all of its options";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) options: Options,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    program::run("kennel-sim", &[], &args.options)
}
