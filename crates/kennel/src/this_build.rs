//! The build of this program: its version, and a stamp if it was built with one.
//!
//! The stamp is `KENNEL_BUILD_STAMP` at build time: a number that grows from build to build, such as the time of the
//! commit. Set it to hand out several builds of one version; without it only the version counts.

use std::hint::black_box;
use std::path::PathBuf;

use kennel_core::hello::Build;

/// Marker in the executable by which its build is read without running it.
const PREFIX: &str = "kennel build: ";
/// Bytes of prefix and text, padded with spaces.
const MARKER_LENGTH: usize = 80;

/// Prefix and text of this build.
static MARKER: [u8; MARKER_LENGTH] = {
    const TEXT: &str = match option_env!("KENNEL_BUILD_STAMP") {
        Some(_) => concat!(env!("CARGO_PKG_VERSION"), "+"),
        None => env!("CARGO_PKG_VERSION"),
    };
    const STAMP: &str = match option_env!("KENNEL_BUILD_STAMP") {
        Some(stamp) => stamp,
        None => "",
    };
    let mut marker = [b' '; MARKER_LENGTH];
    let parts = [PREFIX.as_bytes(), TEXT.as_bytes(), STAMP.as_bytes()];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut byte = 0;
        while byte < parts[part].len() {
            marker[at] = parts[part][byte];
            (byte, at) = (byte + 1, at + 1);
        }
        part += 1;
    }
    marker
};

/// The text of this build, as hellos and records contain it.
pub(crate) fn text() -> String {
    // Reads it from the loaded file at run time, so that the compiler cannot inline a copy.
    let marker = black_box(&MARKER);
    let text = String::from_utf8_lossy(&marker[PREFIX.len()..]);
    text.trim_end().to_owned()
}

/// The version alone, for people.
pub(crate) fn version() -> String {
    let text = text();
    text.split('+').next().unwrap_or_default().to_owned()
}

/// This build, to be compared with another; `None` if its version or stamp is invalid.
pub(crate) fn this() -> Option<Build> {
    text().parse().ok()
}

/// The path to execute to start this program again, even if its file was replaced.
pub(crate) fn itself() -> PathBuf {
    kennel_sys::program::this_program()
}

/// The path of this program's file, if it still exists.
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.is_file().then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_has_the_version_it_was_built_as() {
        assert_eq!(version(), env!("CARGO_PKG_VERSION"));
        assert_eq!(this().map(|build| build.to_string()), Some(text()));
    }
}
