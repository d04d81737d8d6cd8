//! `cargo xtask bench`: `kennel-bench`, built in release mode.

use std::process::ExitCode;

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench                      all of them, with a table and PASS or FAIL for each bound
  cargo xtask bench --quick              all of them, too short to judge by
  cargo xtask bench round-trip --json    one of them, for a program
  cargo xtask bench -- --help            which there are, and what they measure";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A benchmark and its options; none: all of them
    #[arg(
        value_name = "NAME",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    names: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    // Beside the benchmark itself: the programs it measures.
    let programs = ["kennel-bench", "kennel-testkit", "notes", "kennel"];
    let packages = programs.iter().flat_map(|program| ["--package", program]);
    let built = succeeds(
        workspace
            .cargo()
            .args(["build", "--release", "--bins"])
            .args(packages),
    )?;
    let run = ["run", "--release", "--package", "kennel-bench", "--"];
    let passed = built && succeeds(workspace.cargo().args(run).args(&args.names))?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
