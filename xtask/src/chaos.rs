//! `cargo xtask chaos`: builds and runs `kennel-chaos`.

use std::process::ExitCode;

use crate::Outcome;
use crate::program::{self, Options};

const EXAMPLES: &str = "\
Examples:
  cargo xtask chaos --minutes 30                    a fresh seed, for half an hour
  cargo xtask chaos --seed 42 --minutes 5           the schedule of an earlier run
  cargo xtask chaos --seed 42 --world 3 --worlds 1 --verbose
                                                    one world of it, with every step
  cargo xtask chaos --here                          as root too, among the machine's other processes
  cargo xtask chaos --help                          all of its options";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    program::run("kennel-chaos", &["kennel-testkit", "kennel"], &args.options)
}
