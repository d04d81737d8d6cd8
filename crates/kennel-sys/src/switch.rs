//! Parsing on/off values.

use std::ffi::OsStr;

/// Parses an on/off value: `1`, `true`, `yes` and `on` are on, `0`, `false`, `no` and `off` are off, in any case; `None`
/// for anything else.
pub fn switch(value: &OsStr) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    match value {
        _ if is(["1", "true", "yes", "on"]) => Some(true),
        _ if is(["0", "false", "no", "off"]) => Some(false),
        _ => None,
    }
}
