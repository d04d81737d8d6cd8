//! `cargo xtask bench`: `kennel-bench`, built in release mode.

use std::process::ExitCode;

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Benchmarks to run, and their options; none: what `kennel-bench` does by itself
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
