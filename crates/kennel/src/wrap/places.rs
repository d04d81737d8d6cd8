//! Finds the configurations of the user.

use std::path::{Path, PathBuf};

use super::clients::{Base, CLIENTS, Client, ConfigPath, Shape};
use crate::names::WORK_TREES;

/// A configuration that exists.
#[derive(Debug, Clone)]
pub(crate) struct FoundConfig {
    pub(crate) client: Option<&'static Client>,
    pub(crate) path: PathBuf,
    /// `None` if only its content shows the format.
    pub(crate) shape: Option<Shape>,
    /// Whether it belongs to a project.
    pub(crate) project: bool,
}

impl FoundConfig {
    /// Whether it belongs to a project and is under version control: other people use it too.
    pub(crate) fn is_in_a_repository(&self) -> bool {
        let mut dirs = self.path.ancestors().skip(1);
        let is_work_tree = |dir: &Path| WORK_TREES.iter().any(|name| dir.join(name).exists());
        self.project && dirs.any(is_work_tree)
    }
}

/// The directories that the paths of configurations are relative to.
#[derive(Debug, Clone)]
pub(crate) struct Bases {
    pub(crate) system: System,
    pub(crate) home: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) variable: fn(&str) -> Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "one of them runs this; a test looks at all")
)]
pub(crate) enum System {
    Linux,
    MacOs,
    Windows,
}

impl Bases {
    pub(crate) fn of_user() -> Option<Bases> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Some(Bases {
            system: System::Linux,
            home: home.filter(|home| home.is_absolute())?,
            project: std::env::current_dir().ok()?,
            variable: |name| {
                let path = std::env::var_os(name).map(PathBuf::from);
                path.filter(|path| path.is_absolute())
            },
        })
    }

    fn config(&self) -> PathBuf {
        let named = (self.variable)("XDG_CONFIG_HOME");
        named.unwrap_or_else(|| self.home.join(".config"))
    }

    fn app_data(&self) -> PathBuf {
        match self.system {
            System::Linux => self.config(),
            System::MacOs => self.home.join("Library/Application Support"),
            System::Windows => {
                (self.variable)("APPDATA").unwrap_or_else(|| self.home.join("AppData/Roaming"))
            }
        }
    }

    fn path(&self, place: &ConfigPath) -> Option<PathBuf> {
        let base = match place.base {
            Base::Home => self.home.clone(),
            Base::Config => self.config(),
            Base::AppData => self.app_data(),
            Base::ConfigOrAppData if self.system == System::Windows => self.app_data(),
            Base::ConfigOrAppData => self.config(),
            Base::Variable(name, otherwise) => {
                (self.variable)(name).unwrap_or_else(|| self.home.join(otherwise))
            }
            Base::FileInVariable(name) => return (self.variable)(name),
            Base::Project => self.project.clone(),
        };
        Some(base.join(place.path))
    }

    /// The configurations of all apps, or of the named ones, each once.
    pub(crate) fn find(&self, named: &[String]) -> Vec<FoundConfig> {
        let mut found: Vec<FoundConfig> = Vec::new();
        let chosen = |client: &&Client| named.is_empty() || named.iter().any(|id| id == client.id);
        for client in CLIENTS.iter().filter(chosen) {
            for place in client.files {
                for path in self
                    .path(place)
                    .map(|path| matching(&path))
                    .unwrap_or_default()
                {
                    if found.iter().any(|other| other.path == path) {
                        continue;
                    }
                    found.push(FoundConfig {
                        client: Some(client),
                        path,
                        shape: Some(place.shape),
                        project: place.base == Base::Project,
                    });
                }
            }
        }
        found
    }
}

/// The regular files that a path stands for: a `*` at the beginning of a part matches anything.
fn matching(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in path.components() {
        let text = part.as_os_str().to_string_lossy();
        found = match text.strip_prefix('*') {
            Some(ending) => found.iter().flat_map(|dir| inside(dir, ending)).collect(),
            None => found.iter().map(|dir| dir.join(part)).collect(),
        };
    }
    found.retain(|file| file.is_file());
    found
}

/// The entries of a directory whose names have this ending.
fn inside(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_its_files_on_every_system() {
        for (system, desktop) in [
            (
                System::Linux,
                "/home/a/.config/Claude/claude_desktop_config.json",
            ),
            (
                System::MacOs,
                "/home/a/Library/Application Support/Claude/claude_desktop_config.json",
            ),
            (
                System::Windows,
                "/home/a/AppData/Roaming/Claude/claude_desktop_config.json",
            ),
        ] {
            let bases = Bases {
                system,
                home: "/home/a".into(),
                project: "/work".into(),
                variable: |_| None,
            };
            let paths = |client: &Client| -> Vec<PathBuf> {
                client
                    .files
                    .iter()
                    .filter_map(|place| bases.path(place))
                    .collect()
            };
            let of = |id| paths(CLIENTS.iter().find(|client| client.id == id).unwrap());
            assert_eq!(of("claude-desktop"), [PathBuf::from(desktop)]);
            assert_eq!(of("claude-code")[0], Path::new("/home/a/.claude.json"));
            assert_eq!(of("codex")[0], Path::new("/home/a/.codex/config.toml"));
            assert!(CLIENTS.iter().all(|client| !paths(client).is_empty()));
        }
    }
}
