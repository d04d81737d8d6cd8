//! Finds a running app that would overwrite its configuration.

use std::ffi::OsStr;
use std::path::Path;

use kennel_sys::process;

/// The pid of a running `program` of this user whose home is `home`, if there is one. With another home it has another
/// configuration.
pub(crate) fn running(program: &str, home: &Path) -> Option<u32> {
    process::find_running(OsStr::new(program), "HOME", home.as_os_str())
}
