//! Mistakes that nobody planned: cargo-mutants makes them in the lines that changed, and runs the tests of their packages.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use crate::Outcome;
use crate::nextest::Nextest;
use crate::report::succeeds;
use crate::tools::MUTANTS;
use crate::workspace::Workspace;

/// Makes mistakes in the lines that differ from the commit `base`, one at a time, and says which of them no test noticed.
pub(super) fn run(workspace: &Workspace, base: &str, options: &[String]) -> Outcome<ExitCode> {
    let mutants = MUTANTS.find_or_install(workspace)?;
    let place = workspace.target.join("mutants");
    std::fs::create_dir_all(&place)?;
    let diff = place.join("in-diff.patch");
    let changes = Command::new("git")
        .current_dir(&workspace.root)
        .args(["diff", "--no-ext-diff", "--merge-base", base, "--", "*.rs"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !changes.status.success() {
        return Err(format!("git shows no changes since {base}").into());
    }
    if changes.stdout.is_empty() {
        println!("no line of Rust has changed since {base}");
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::write(&diff, changes.stdout)?;
    // It runs `cargo nextest`, which may be ours.
    let nextest = Nextest::find_or_install(workspace)?.path;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = nextest.parent().map(PathBuf::from).into_iter();
    let path = std::env::join_paths(dirs.chain(std::env::split_paths(&path)))?;
    let mut command = Command::new(mutants);
    command
        .current_dir(&workspace.root)
        .env("PATH", path)
        // It builds in a copy of the workspace, below the temporary directory.
        .env_remove("CARGO_TARGET_DIR")
        .arg("mutants")
        .arg("--in-diff")
        .arg(&diff)
        .arg("--output")
        .arg(&place)
        .args(options);
    Ok(match succeeds(&mut command)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
