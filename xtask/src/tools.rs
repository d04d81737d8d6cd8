//! Programs of cargo that chores need: those of this machine, or pinned ones, built once into `target/tools`.

use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::workspace::Workspace;

/// A subcommand of cargo, as `cargo install` names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    name: &'static str,
    /// What is built where none is found.
    version: &'static str,
    /// Where other ways to get it are described.
    page: &'static str,
}

/// Any version that `.config/nextest.toml` accepts serves.
pub(crate) const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    version: "0.9.143",
    page: "https://nexte.st/docs/installation",
};

/// Checks `deny.toml`.
pub(crate) const DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    page: "https://embarkstudios.github.io/cargo-deny",
};

/// Makes mistakes in the code that changed.
pub(crate) const MUTANTS: Tool = Tool {
    name: "cargo-mutants",
    version: "27.1.0",
    page: "https://mutants.rs/installation.html",
};

impl Tool {
    /// The machine's program, or the one that an earlier run built.
    pub(crate) fn find(self, workspace: &Workspace) -> Option<PathBuf> {
        self.find_in(&workspace.target.join("tools"))
    }

    /// The machine's program. Where there is none, it is built once and kept in `target/tools`.
    pub(crate) fn find_or_install(self, workspace: &Workspace) -> Outcome<PathBuf> {
        self.find(workspace)
            .map_or_else(|| self.install(workspace), Ok)
    }

    /// Builds the program into `target/tools`, where later runs find it.
    pub(crate) fn install(self, workspace: &Workspace) -> Outcome<PathBuf> {
        let Tool {
            name,
            version,
            page,
        } = self;
        let tools = workspace.target.join("tools");
        println!(
            "{name} is not installed: building {version} into {}, once",
            tools.display()
        );
        let mut cargo = workspace.cargo();
        cargo
            .args(["install", name, "--locked", "--version", version, "--root"])
            .arg(&tools)
            // Its objects are of no further use: let cargo build it in a temporary directory.
            .env_remove("CARGO_TARGET_DIR");
        let status = cargo.status()?;
        match self.find_in(&tools) {
            Some(path) if status.success() => Ok(path),
            _ => Err(format!("cannot install {name}; see {page} for other ways to get it").into()),
        }
    }

    /// Where cargo itself would find the subcommand, then our own place.
    fn find_in(self, tools: &Path) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let cargo_home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
        std::env::split_paths(&path)
            .chain(cargo_home.map(|home| home.join("bin")))
            .chain([tools.join("bin")])
            .map(|dir| dir.join(self.name))
            .find(|candidate| candidate.is_file())
    }
}
