//! cargo-nextest: the installed one, or one that is built below the target directory.

use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;
use crate::tools::NEXTEST;
use crate::workspace::Workspace;

#[derive(Debug)]
pub(crate) struct Nextest {
    pub(crate) path: PathBuf,
}

impl Nextest {
    /// The installed nextest, or the one that an earlier run built.
    pub(crate) fn find(workspace: &Workspace) -> Option<Nextest> {
        let path = NEXTEST.find(workspace)?;
        Some(Nextest { path })
    }

    /// The installed nextest; if there is none, builds one in `target/tools`, once.
    pub(crate) fn find_or_install(workspace: &Workspace) -> Outcome<Nextest> {
        let path = NEXTEST.find_or_install(workspace)?;
        Ok(Nextest { path })
    }

    /// Builds nextest into `target/tools`, where later runs find it.
    pub(crate) fn install(workspace: &Workspace) -> Outcome<Nextest> {
        let path = NEXTEST.install(workspace)?;
        Ok(Nextest { path })
    }

    /// `cargo nextest <subcommand>` for this workspace.
    pub(crate) fn command(&self, workspace: &Workspace, subcommand: &str) -> Command {
        let mut command = Command::new(&self.path);
        workspace.settle(&mut command);
        command.args(["nextest", subcommand]);
        command
    }
}
