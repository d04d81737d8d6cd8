//! `cargo xtask deny`: licences, sources, bans and known vulnerabilities of the dependencies, by `deny.toml`.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::Outcome;
use crate::report::succeeds;
use crate::tools::DENY;
use crate::workspace::Workspace;

pub(crate) fn run() -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    let deny = DENY.find_or_install(&workspace)?;
    let mut passed = succeeds(
        command(&deny, &workspace).args(["--locked", "check", "licenses", "bans", "sources"]),
    )?;
    // Apart: everything else needs no network.
    match succeeds(command(&deny, &workspace).args(["fetch", "db"]))? {
        true => {
            let check = ["--locked", "check", "--disable-fetch", "advisories"];
            passed &= succeeds(command(&deny, &workspace).args(check))?;
        }
        false => println!(
            "NOT CHECKED: known vulnerabilities and unmaintained crates: the database of RustSec cannot be reached"
        ),
    }
    Ok(match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// `cargo deny` for this workspace.
fn command(deny: &Path, workspace: &Workspace) -> Command {
    let mut command = Command::new(deny);
    workspace.settle(&mut command);
    command
}
