//! Values that people write, read the same way in flags, variables and `servers.toml`: switches, and names of
//! variables. [`crate::duration`] parses durations, and [`crate::timers::value`] reads a flag or its variable.

use std::ffi::{OsStr, OsString};

use kennel_sys::env::switch;
use kennel_sys::text::os_string;

/// A switch in the environment; `default` if it is not set. An invalid value is ignored with a warning that ends with
/// `means`.
pub(crate) fn variable_switch(name: &str, default: bool, means: &str) -> bool {
    let (on, warning) = judge(name, std::env::var_os(name).as_deref(), default, means);
    if let Some(warning) = warning {
        crate::warn(&warning);
    }
    on
}

fn judge(name: &str, value: Option<&OsStr>, default: bool, means: &str) -> (bool, Option<String>) {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return (default, None);
    };
    match switch(value) {
        Some(on) => (on, None),
        None => {
            let words = "is neither on (1, true, yes, on) nor off (0, false, no, off)";
            let warning = format!("{name} is ignored, so {means}: {value:?} {words}");
            (default, Some(warning))
        }
    }
}

/// Whether `KENNEL_OFF` turns Kennel off.
pub(crate) fn kennel_is_off() -> bool {
    variable_switch("KENNEL_OFF", false, "Kennel stays enabled")
}

/// Names of variables, separated by commas; an empty text has none.
pub(crate) fn names(text: &OsStr) -> Result<Vec<OsString>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let parts = text.as_encoded_bytes().split(|&byte| byte == b',');
    let names = parts.map(|part| name(&os_string(part)));
    names.collect()
}

/// The name of a variable.
pub(crate) fn name(text: &OsStr) -> Result<OsString, String> {
    let is_odd = |byte: &u8| *byte == b'=' || byte.is_ascii_whitespace() || byte.is_ascii_control();
    match text.is_empty() || text.as_encoded_bytes().iter().any(is_odd) {
        false => Ok(text.to_owned()),
        true => Err(format!(
            "{text:?} is not the name of a variable; separate names by commas, as in HOME,LANG"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_invalid_switch_is_ignored_with_a_warning() {
        let judge = |value: &str| judge("KENNEL_X", Some(OsStr::new(value)), false, "it stays off");
        for on in ["1", "true", "YES", "on"] {
            assert_eq!(judge(on), (true, None), "{on}");
        }
        for off in ["0", "false", "No", "off", ""] {
            assert_eq!(judge(off), (false, None), "{off}");
        }
        for odd in ["maybe", "2", " 1", "garbage"] {
            let (on, warning) = judge(odd);
            assert!(!on, "{odd}");
            let warning = warning.expect(odd);
            assert!(
                warning.contains("KENNEL_X is ignored, so it stays off"),
                "{warning}"
            );
            assert!(warning.contains(odd), "{warning}");
        }
    }

    #[test]
    fn names_are_separated_by_commas_and_have_no_spaces() {
        let names = |text: &str| names(OsStr::new(text));
        assert_eq!(names("A,B_1"), Ok(vec!["A".into(), "B_1".into()]));
        assert_eq!(names(""), Ok(Vec::new()));
        for odd in ["A B", "A=1", "A,,B", "A, B", "A,", "A\n"] {
            let error = names(odd).expect_err(odd);
            assert!(error.contains("separate names by commas"), "{error}");
        }
    }
}
