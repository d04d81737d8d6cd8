//! `cargo xtask bench`: `kennel-bench`, built in release mode.

use std::process::ExitCode;

use crate::report::succeeds;
use crate::workspace::Workspace;
use crate::{Outcome, testbed};

/// The benchmark that needs more than what is built here.
const PEERS: &str = "peers";

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench                      all but `peers`, with a table and PASS or FAIL for each bound
  cargo xtask bench --quick              the same, too short to judge by
  cargo xtask bench peers                beside others who do this; installs them first, which takes minutes
  cargo xtask bench round-trip --json    one of them, for a program
  cargo xtask bench -- --help            which there are, and what they measure";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A benchmark and its options; none: all of them but `peers`
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
    let mut run = workspace.cargo();
    run.args(["run", "--release", "--package", "kennel-bench", "--"])
        .args(&args.names);
    if built && args.names.first().is_some_and(|name| name == PEERS) {
        let bed = match std::env::var_os(testbed::VARIABLE) {
            Some(bed) => bed.into(),
            None => testbed::install(&workspace)?.ok_or("the peers need npm and python3")?,
        };
        run.env(testbed::VARIABLE, bed);
        run.env(testbed::PEERS_VARIABLE, testbed::install_peers(&workspace)?);
    }
    let passed = built && succeeds(&mut run)?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
