//! The workspace as cargo reports it: its root, its target directory, its programs.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::Outcome;

#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// The target directory: `CARGO_TARGET_DIR`, else the configured one, else `target/`.
    pub(crate) target: PathBuf,
    /// The names of all binary targets, which tests find beside themselves.
    pub(crate) programs: Vec<String>,
}

impl Workspace {
    pub(crate) fn load() -> Outcome<Workspace> {
        let output = plain_cargo()
            .args(["metadata", "--no-deps", "--format-version=1"])
            .stderr(std::process::Stdio::inherit())
            .output()
            .map_err(|error| format!("cannot run cargo: {error}; start xtask as `cargo xtask`"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata failed: {}", output.status).into());
        }
        Workspace::from_metadata(&serde_json::from_slice(&output.stdout)?).ok_or_else(|| {
            "cargo metadata lacks a field that xtask reads: is cargo too new?".into()
        })
    }

    fn from_metadata(metadata: &Value) -> Option<Workspace> {
        let mut programs = Vec::new();
        for package in metadata["packages"].as_array()? {
            for target in package["targets"].as_array()? {
                if target["kind"].as_array()?.iter().any(|kind| kind == "bin") {
                    programs.push(target["name"].as_str()?.to_owned());
                }
            }
        }
        Some(Workspace {
            root: metadata["workspace_root"].as_str()?.into(),
            target: metadata["target_directory"].as_str()?.into(),
            programs,
        })
    }

    /// Cargo, run in the workspace's root with its target directory.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = plain_cargo();
        self.settle(&mut cargo);
        cargo
    }

    /// Gives a command the directory and environment of [`Workspace::cargo`].
    pub(crate) fn settle(&self, command: &mut Command) {
        // Absolute: a relative path would be wrong in another directory.
        command
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target);
    }
}

/// The profile for release ([`dist`](crate::dist)) and for the instruction count.
pub(crate) const DIST: &str = "dist";

/// The cargo that started us, so that all tasks use the same toolchain.
fn plain_cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_the_binary_targets_of_all_packages() {
        let metadata = serde_json::json!({
            "workspace_root": "/src", "target_directory": "/src/target", "packages": [
                { "targets": [{ "kind": ["lib"], "name": "a" }, { "kind": ["bin"], "name": "b" }] },
                { "targets": [{ "kind": ["bin"], "name": "c" }, { "kind": ["test"], "name": "d" }] },
            ],
        });
        let workspace = Workspace::from_metadata(&metadata).expect("complete metadata");
        assert_eq!(workspace.programs, ["b", "c"]);
    }

    /// The lines of a table in the workspace's `Cargo.toml`.
    fn table(name: &str) -> Vec<String> {
        let xtask = std::env::var("CARGO_MANIFEST_DIR").expect("set for every test");
        let text =
            std::fs::read_to_string(format!("{xtask}/../Cargo.toml")).expect("the workspace");
        let (_, rest) = text
            .split_once(&format!("\n[{name}]\n"))
            .unwrap_or_else(|| panic!("no table {name}"));
        let lines = rest.lines().take_while(|line| !line.starts_with('['));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn only_the_dist_profile_has_link_time_optimization() {
        let has = |profile: &str, line: &str| {
            let table = table(&format!("profile.{profile}"));
            table.iter().any(|it| it == line)
        };
        assert!(has(DIST, "lto = \"fat\""));
        assert!(has(DIST, "codegen-units = 1"));
        assert!(has("release", "lto = \"off\""));
        let readme =
            std::env::var("CARGO_MANIFEST_DIR").expect("set for every test") + "/../README.md";
        let readme = std::fs::read_to_string(readme).expect("README.md");
        assert!(readme.contains("cargo xtask install"));
    }

    #[test]
    fn metadata_without_a_needed_field_is_refused() {
        let metadata = serde_json::json!({ "workspace_root": "/src", "packages": [] });
        assert!(Workspace::from_metadata(&metadata).is_none());
    }
}
