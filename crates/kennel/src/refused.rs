//! Directories in the runtime directory that are not used, because their mode, owner or kind is wrong. Only their own
//! content is affected: commands list the others and name these on stderr.

use kennel_sys::runtime_dir::{DirError, RuntimeDir};

/// The names of Kennel's directories, and whether each contains directories.
const DIRECTORIES: [(&str, bool); 5] = [
    ("daemons", true),
    ("guards", true),
    ("stores", true),
    ("solo", false),
    ("trees", false),
];

/// All refused directories, with what to do about each. Creates nothing.
pub(crate) fn all() -> Vec<DirError> {
    let mut refused = Vec::new();
    let Ok(Some(user)) = RuntimeDir::find_of_user() else {
        return refused;
    };
    for (name, nested) in DIRECTORIES {
        let dir = match user.existing_subdir(name) {
            Ok(dir) => dir.filter(|_| nested),
            Err(error) => {
                refused.push(error);
                continue;
            }
        };
        let names = dir.as_ref().map(RuntimeDir::entries).and_then(Result::ok);
        for name in names.unwrap_or_default() {
            let own = dir.as_ref().map(|dir| dir.existing_subdir(name));
            refused.extend(own.and_then(Result::err));
        }
    }
    refused
}

/// Warns about them on stderr.
pub(crate) fn warn_all() {
    for error in all() {
        crate::warn(&format!("skipped: {error}"));
    }
}
