//! Strings of the operating system (arguments, variables, paths) and their bytes.
//!
//! The bytes of a string are [`OsStr::as_encoded_bytes`](std::ffi::OsStr::as_encoded_bytes).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Makes a string of bytes.
pub fn os_string(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
