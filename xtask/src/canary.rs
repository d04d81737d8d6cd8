//! After the tests: checks that the secret in their environment was not written to any file.
//!
//! Each test checks its own directories before it removes them (`kennel_testkit::Canary`). This checks the rest: the output
//! of the tests, the directories of a real Kennel, and running processes.

use std::path::{Path, PathBuf};

use kennel_testkit::{CANARY, Canary};

use crate::workspace::Workspace;

/// Whether the run's canary was found nowhere; otherwise prints where.
pub(crate) fn is_nowhere(canary: &Canary, workspace: &Workspace) -> bool {
    let mut places = vec![printed(&workspace.root)];
    places.extend(std::env::home_dir().iter().flat_map(|home| kennels(home)));
    places.extend(temporary());
    told(canary, &places)
}

/// Whether the canary was not found in `place`; otherwise prints where.
pub(crate) fn is_not_below(canary: &Canary, place: &Path) -> bool {
    told(canary, &[place.to_owned()])
}

/// The directory where nextest keeps the output of this workspace's tests.
pub(crate) fn printed(root: &Path) -> PathBuf {
    root.join("target/nextest")
}

fn told(canary: &Canary, places: &[PathBuf]) -> bool {
    let files = places.iter().flat_map(|place| canary.below(place));
    let mut found: Vec<String> = files.map(|path| path.display().to_string()).collect();
    found.extend(canary.among_arguments());
    for place in &found {
        println!("the value of {CANARY} is in {place}");
    }
    if found.is_empty() {
        println!("the value of {CANARY} is in no file and in no arguments");
    }
    found.is_empty()
}

/// The directories of Kennel for a user with this home.
fn kennels(home: &Path) -> [PathBuf; 3] {
    [".config", ".local/state", ".local/share"].map(|dir| home.join(dir).join("kennel"))
}

/// Temporary files and runtime directories that tests or Kennel may have left.
fn temporary() -> Vec<PathBuf> {
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kennel") || name.starts_with("kt-")
    };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dirs = [std::env::temp_dir(), "/tmp".into()].into_iter();
    let entries = dirs.chain(runtime).flat_map(std::fs::read_dir).flatten();
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(ours)
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn a_file_with_the_value_is_reported() {
        let scope = Scope::new("canary");
        let canary = Canary::fresh();
        let log = scope.path("home/log");
        std::fs::write(&log, "nothing").expect("a small file");
        assert!(is_not_below(&canary, scope.dir()));
        std::fs::write(&log, canary.value()).expect("a small file");
        assert!(!is_not_below(&canary, scope.dir()));
    }
}
