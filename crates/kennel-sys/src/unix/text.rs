//! Words of the operating system (arguments, variables, paths) and their bytes.
//!
//! The bytes of a word are [`OsStr::as_encoded_bytes`](std::ffi::OsStr::as_encoded_bytes).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The word that has these bytes.
pub fn os_string(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
