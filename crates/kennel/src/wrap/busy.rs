//! Whether an app runs that would write over its configuration.

use std::ffi::OsStr;
use std::path::Path;

use kennel_sys::process;

/// The pid of a running `program` of ours whose home is `home`, if there is one. Another home is another
/// configuration.
pub(crate) fn running(program: &str, home: &Path) -> Option<u32> {
    process::find_running(OsStr::new(program), "HOME", home.as_os_str())
}
