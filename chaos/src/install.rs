//! Replacing programs on disk as an installer does: atomically, under the same name.

use std::io::{Error, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kennel_testkit::bin;

/// The text before the build number in the program's file, and the length of that number.
const MARKER: &[u8] = b"kennel build: ";
const WIDTH: usize = 80;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Installs a build of Kennel with this number. Higher numbers are newer.
pub(crate) fn newer(path: &Path, number: u32) -> Result<()> {
    let mut program = std::fs::read(bin("kennel"))?;
    let mut places = program
        .windows(MARKER.len())
        .enumerate()
        .filter(|(at, window)| {
            *window == MARKER && program[at + MARKER.len()..].starts_with(VERSION.as_bytes())
        });
    let at = places.next().map(|(at, _)| at + MARKER.len());
    let at = at.ok_or_else(|| Error::other("the program contains no build number"))?;
    let room = &mut program[at..at + WIDTH - MARKER.len()];
    let build = format!("{VERSION}+{number}");
    room.fill(b' ');
    room[..build.len()].copy_from_slice(build.as_bytes());
    put(path, &program)
}

/// Installs the same program again: another file with the same content.
pub(crate) fn again(path: &Path) -> Result<()> {
    put(path, &std::fs::read(path)?)
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, content)?;
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(beside, path)
}
