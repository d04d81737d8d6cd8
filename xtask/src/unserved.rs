//! `cargo xtask unserved`: the code still compiles for a platform Kennel does not serve yet.
//!
//! `--cfg kennel_unserved` chooses `unserved.rs` where `linux/` would be chosen, so that the file that answers `Unsupported`
//! keeps the same functions without a machine of that platform.

use std::process::ExitCode;

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

pub(crate) fn run() -> Outcome<ExitCode> {
    let compiles = compiles(&Workspace::load()?)?;
    Ok(if compiles {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What users of an unserved platform build: the libraries and the program, without the tests.
pub(crate) fn compiles(workspace: &Workspace) -> Outcome<bool> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    succeeds(
        workspace
            .cargo()
            .args([
                "check",
                "-p",
                "kennel-sys",
                "-p",
                "kennel-guard",
                "-p",
                "kennel",
            ])
            .env(
                "RUSTFLAGS",
                format!("{flags} --cfg kennel_unserved -D warnings"),
            )
            // Other flags are other objects: a directory of its own keeps both builds warm.
            .env("CARGO_TARGET_DIR", workspace.target.join("unserved")),
    )
}
