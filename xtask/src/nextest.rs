//! cargo-nextest: the one on this machine, or one of our own below the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::workspace::Workspace;

/// What is installed where none is found. Any version that `.config/nextest.toml` accepts serves.
const VERSION: &str = "0.9.143";

#[derive(Debug)]
pub(crate) struct Nextest {
    pub(crate) path: PathBuf,
}

impl Nextest {
    /// The machine's nextest, or the one that an earlier run built.
    pub(crate) fn find(workspace: &Workspace) -> Option<Nextest> {
        let path = find(&workspace.target.join("tools"))?;
        Some(Nextest { path })
    }

    /// The machine's nextest; where there is none, it is built once and kept in `target/tools`.
    pub(crate) fn find_or_install(workspace: &Workspace) -> Outcome<Nextest> {
        Nextest::find(workspace).map_or_else(|| Nextest::install(workspace), Ok)
    }

    /// Builds nextest into `target/tools`, where later runs find it.
    pub(crate) fn install(workspace: &Workspace) -> Outcome<Nextest> {
        let tools = workspace.target.join("tools");
        println!(
            "cargo-nextest is not installed: building {VERSION} into {}, once",
            tools.display()
        );
        let status = workspace
            .cargo()
            .args([
                "install",
                "cargo-nextest",
                "--locked",
                "--version",
                VERSION,
                "--root",
            ])
            .arg(&tools)
            // Its objects are of no further use: let cargo build it in a temporary directory.
            .env_remove("CARGO_TARGET_DIR")
            .status()?;
        match find(&tools) {
            Some(path) if status.success() => Ok(Nextest { path }),
            _ => Err("cannot install cargo-nextest; see https://nexte.st/docs/installation for other ways to get it".into()),
        }
    }

    /// `cargo nextest <subcommand>` for this workspace.
    pub(crate) fn command(&self, workspace: &Workspace, subcommand: &str) -> Command {
        let mut command = Command::new(&self.path);
        workspace.settle(&mut command);
        command.args(["nextest", subcommand]);
        command
    }
}

/// Where cargo itself would find the subcommand, then our own place.
fn find(tools: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    std::env::split_paths(&path)
        .chain(cargo_home.map(|home| home.join("bin")))
        .chain([tools.join("bin")])
        .map(|dir| dir.join("cargo-nextest"))
        .find(|candidate| candidate.is_file())
}
