//! `cargo xtask sim`: `kennel-sim`, built and run.

use std::process::ExitCode;

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

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
    /// Options of `kennel-sim`: --seed, --schedules, --first, --verbose
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--package", "kennel-sim", "--bins"]);
    let mut sim = std::process::Command::new(workspace.target.join("debug/kennel-sim"));
    sim.args(&args.options);
    let held = succeeds(&mut build)? && succeeds(&mut sim)?;
    Ok(if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
