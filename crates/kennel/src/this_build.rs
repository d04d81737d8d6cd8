//! Which build of Kennel this program is: its version, and a stamp if it was built with one.
//!
//! The stamp is `KENNEL_BUILD_STAMP` at build time: any number that grows from build to build, such as the time of the
//! commit. Whoever hands out several builds of one version sets it; without it the version alone counts.

use std::hint::black_box;
use std::path::PathBuf;

use kennel_core::hello::Build;

/// What the text begins with in the program's file: what was built can be told without running it.
const PREFIX: &str = "kennel build: ";
/// Of prefix and text, padded with spaces.
const WIDTH: usize = 80;

static MARKER: [u8; WIDTH] = {
    const TEXT: &str = match option_env!("KENNEL_BUILD_STAMP") {
        Some(_) => concat!(env!("CARGO_PKG_VERSION"), "+"),
        None => env!("CARGO_PKG_VERSION"),
    };
    const STAMP: &str = match option_env!("KENNEL_BUILD_STAMP") {
        Some(stamp) => stamp,
        None => "",
    };
    let mut marker = [b' '; WIDTH];
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

/// Its text, as hellos and records have it.
pub(crate) fn text() -> String {
    // As it is in the file, not as it was when this line was compiled.
    let marker = black_box(&MARKER);
    let text = String::from_utf8_lossy(&marker[PREFIX.len()..]);
    text.trim_end().to_owned()
}

/// The version alone, for people.
pub(crate) fn version() -> String {
    let text = text();
    text.split('+').next().unwrap_or_default().to_owned()
}

/// To be compared with another; `None` if it was built with a version or stamp that is none.
pub(crate) fn this() -> Option<Build> {
    text().parse().ok()
}

/// What to execute to start this very program again, whatever became of its file.
pub(crate) fn itself() -> PathBuf {
    kennel_sys::program::this_program()
}

/// Where this program is, if it is still there.
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
