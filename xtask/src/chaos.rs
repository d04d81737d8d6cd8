//! `cargo xtask chaos`: `kennel-chaos`, with the programs it needs built beside it.

use std::process::ExitCode;

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

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
    /// Options of `kennel-chaos`: --seed, --minutes, --world, --worlds, --here, --verbose, --keep
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    let programs = ["kennel-chaos", "kennel-testkit", "kennel"];
    let packages = programs.iter().flat_map(|program| ["--package", program]);
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--bins"]).args(packages);
    let mut chaos = std::process::Command::new(workspace.target.join("debug/kennel-chaos"));
    chaos.args(&args.options);
    let held = succeeds(&mut build)? && succeeds(&mut chaos)?;
    Ok(if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
