//! A configuration is replaced whole or not at all, where it really is, as it was allowed to be read.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid};

use super::quoted;
use super::walk::{self, Spot};

/// The longest configuration that is read.
const MAX_BYTES: u64 = 64 << 20;

/// A configuration as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Where it really is, behind links of dotfiles.
    pub(crate) spot: Spot,
    pub(crate) text: String,
}

impl Source {
    /// Its path without links.
    pub(crate) fn real(&self) -> &Path {
        &self.spot.real
    }
}

/// Reads a configuration.
pub(crate) fn read(path: &Path) -> Result<Source, String> {
    let spot = walk::find(path)?;
    let bytes = content(&spot).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("more than {MAX_BYTES} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        format!("line {line}: not UTF-8")
    })?;
    Ok(Source { spot, text })
}

/// The file's bytes. It was a regular file a moment ago: should it be something else by now, nobody waits for it.
fn content(spot: &Spot) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(spot.dir(), spot.name(), flags, Mode::empty())?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(
            "not a regular file, as a configuration is",
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether it could be written, with what to do if not.
pub(crate) fn writable(spot: &Spot) -> Result<(), String> {
    let stat = spot.stat().map_err(|error| error.to_string())?;
    let may_write = |name: &OsStr| {
        rustix::fs::accessat(
            spot.dir(),
            name,
            rustix::fs::Access::WRITE_OK,
            AtFlags::empty(),
        )
    };
    // Nothing is closed to root; a file that nobody may write was made so on purpose all the same.
    if may_write(spot.name()).is_err() || stat.st_mode & 0o222 == 0 {
        return Err(format!(
            "it is read-only; `chmod u+w {}` first, if it is meant to change",
            quoted(&spot.real)
        ));
    }
    // Which names mean the same file to its user, and which are snapshots to be kept, only the user knows.
    if stat.st_nlink > 1 {
        let (path, aside) = (quoted(&spot.real), format!("{}.new", spot.real.display()));
        let aside = quoted(Path::new(&aside));
        return Err(format!(
            "it has {} names (hard links), and replacing it would leave the others as they are; `cp -p {path} {aside} && \
             mv {aside} {path}` makes it a file of its own, if that is meant",
            stat.st_nlink
        ));
    }
    match may_write(OsStr::new(".")) {
        Ok(()) => Ok(()),
        Err(_) => Err(format!(
            "its directory is read-only, so that it cannot be replaced whole; `chmod u+w {}` first",
            quoted(spot.real.parent().unwrap_or(Path::new("/")))
        )),
    }
}

/// Puts `new` in the place of what was read, unless somebody changed it meanwhile.
pub(crate) fn replace(source: &Source, new: &str) -> Result<(), String> {
    let spot = &source.spot;
    writable(spot)?;
    let aside = aside(spot.name(), std::process::id());
    let done = put(source, new, &aside);
    if !matches!(done, Ok(true)) {
        let _ = rustix::fs::unlinkat(spot.dir(), &aside, AtFlags::empty());
    }
    match done {
        Ok(true) => Ok(()),
        Ok(false) => Err("it was changed meanwhile; run the command again".to_owned()),
        Err(error) => Err(format!("cannot be written: {error}")),
    }
}

fn put(source: &Source, new: &str, aside: &OsStr) -> io::Result<bool> {
    let spot = &source.spot;
    let stat = spot.stat()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(spot.dir(), aside, flags, Mode::RUSR | Mode::WUSR)?;
    // Held until it has its final name: [`sweep`] removes only what nobody holds.
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let mut file = File::from(file);
    file.write_all(new.as_bytes())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || content(spot)? != source.text.as_bytes()
    {
        return Ok(false);
    }
    // Only root can give it back to another owner; who cannot is its owner already, or may not write it.
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _ = rustix::fs::fchown(&file, Some(owner.0), Some(owner.1));
    rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    file.sync_all()?;
    rustix::fs::renameat(spot.dir(), aside, spot.dir(), spot.name())?;
    sync_directory(spot);
    Ok(true)
}

/// Without it, the former file may be back after a loss of power. Not every file system can do it, and the file is there.
fn sync_directory(spot: &Spot) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(spot.dir(), ".", flags, Mode::empty());
    let _ = dir.map(|dir| rustix::fs::fsync(&dir));
}

/// What the file is called until it is whole.
fn aside(name: &OsStr, pid: u32) -> OsString {
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(format!(".kennel-{pid}"));
    aside
}

/// Removes what a killed `wrap` or `unwrap` left beside a file: it may hold what the file holds.
pub(crate) fn sweep(spot: &Spot) -> io::Result<()> {
    let owner = spot.stat()?.st_uid;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(spot.dir(), ".", flags, Mode::empty())?;
    let prefix = [b".", spot.name().as_bytes(), b".kennel-"].concat();
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        let pid = name.strip_prefix(prefix.as_slice());
        if pid.is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit)) {
            let _ = remove_abandoned(spot, &OsString::from_vec(name), owner);
        }
    }
    Ok(())
}

fn remove_abandoned(spot: &Spot, name: &OsStr, owner: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(spot.dir(), name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    let us = rustix::process::geteuid().as_raw();
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && [us, owner].contains(&stat.st_uid);
    // Whoever writes it holds it.
    if ours && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        rustix::fs::unlinkat(spot.dir(), name, AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn a_file_that_changed_since_it_was_read_is_not_written_over() {
        let scope = Scope::new("write");
        let path = scope.path("mcp.json");
        std::fs::write(&path, "one").unwrap();
        let source = read(&path).unwrap();
        std::fs::write(&path, "two").unwrap();
        let error = replace(&source, "three").unwrap_err();
        assert!(error.contains("changed meanwhile"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        let source = read(&path).unwrap();
        replace(&source, "three").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
        let left = std::fs::read_dir(scope.dir()).unwrap();
        let left = left.filter(|entry| {
            entry
                .as_ref()
                .is_ok_and(|entry| entry.file_name() != "home")
        });
        assert_eq!(left.count(), 1);
    }
}
