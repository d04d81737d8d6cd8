//! Directories in the runtime directory that are not used, because their mode, owner or kind is not as it must be. One of
//! them hides what is in it and nothing else: commands list the others, and name it on stderr.

use kennel_sys::runtime_dir::{DirError, RuntimeDir};

/// The directories of Kennel's, and whether there is a directory for each key or process in them.
const DIRECTORIES: [(&str, bool); 5] = [
    ("daemons", true),
    ("guards", true),
    ("stores", true),
    ("solo", false),
    ("trees", false),
];

/// All that is refused now, with what to do about each. Creates nothing.
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

/// Names them on stderr.
pub(crate) fn tell() {
    for error in all() {
        crate::warn(&format!("skipped: {error}"));
    }
}
