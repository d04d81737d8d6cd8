//! Finds programs as a shell does: by path, or by name in the directories of `PATH`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use kennel_sys::fs::FileFacts;

/// The paths at which a shell looks for a program. Relative ones are below `cwd`; an empty `cwd` is the directory of this
/// process.
pub(crate) fn candidates(name: &OsStr, cwd: &Path, path: &OsStr) -> Vec<PathBuf> {
    match name.as_encoded_bytes().contains(&b'/') {
        true => vec![cwd.join(name)],
        false => std::env::split_paths(path)
            .map(|dir| cwd.join(dir).join(name))
            .collect(),
    }
}

/// The path of a program: one with a directory in its name is not checked, any other must be executable.
pub(crate) fn find(name: &OsStr, cwd: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(cwd.join(name));
    }
    let mut candidates = candidates(name, cwd, path?).into_iter();
    candidates.find(|path| is_executable(path))
}

/// Whether this is a file with execute permission.
pub(crate) fn is_executable(path: &Path) -> bool {
    FileFacts::at(path).is_ok_and(|facts| facts.is_file() && facts.is_executable())
}
