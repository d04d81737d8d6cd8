//! `cargo xtask unserved`: checks that the code compiles for a platform that is not served.
//!
//! `--cfg kennel_unserved` selects `unserved.rs` instead of `linux/`, so that the file which answers `Unsupported` keeps
//! the same functions without a machine of such a platform.

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

/// Checks the packages that users of such a platform build: the libraries and the program, without tests.
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
            // Other flags make other objects: with a separate directory both builds stay warm.
            .env("CARGO_TARGET_DIR", workspace.target.join("unserved")),
    )
}
