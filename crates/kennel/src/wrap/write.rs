//! A configuration is replaced whole or not at all, where it really is, as it was allowed to be read.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid};

use super::attributes;
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

/// The file's bytes.
fn content(spot: &Spot) -> io::Result<Vec<u8>> {
    bytes_at(spot, spot.name())
}

fn bytes_at(spot: &Spot, name: &OsStr) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open(spot, name)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file. It was one a moment ago: should it be something else by now, nobody waits for it.
fn open(spot: &Spot, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(spot.dir(), name, flags, Mode::empty())?;
    let file = File::from(file);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(
            "not a regular file, as a configuration is",
        )),
    }
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
    let failed = |error: io::Error| format!("cannot be written: {error}");
    let aside = aside(spot.name(), std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(spot.dir(), &aside, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(file.map_err(|errno| failed(errno.into()))?);
    // Held until it has its final name: [`sweep`] removes only what nobody holds.
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let done = fill(&file, source, new).and_then(|()| put(source, &file, &aside).map_err(failed));
    // The former file, or ours. What an app saved is neither.
    if done == Ok(true) || is_at(spot, &aside, &file) {
        let _ = rustix::fs::unlinkat(spot.dir(), &aside, AtFlags::empty());
    }
    match done? {
        true => {
            sync_directory(spot);
            Ok(())
        }
        false => Err("it was changed meanwhile; run the command again".to_owned()),
    }
}

/// Writes the new file: with the owner, the attributes and the mode of the one that was read.
fn fill(mut file: &File, source: &Source, new: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot be written: {error}");
    let spot = &source.spot;
    let old = open(spot, spot.name()).map_err(failed)?;
    let stat = rustix::fs::fstat(&old).map_err(|errno| failed(errno.into()))?;
    file.write_all(new.as_bytes()).map_err(failed)?;
    // Only root can give it back to another owner; who cannot is its owner already, or may not write it.
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _ = rustix::fs::fchown(file, Some(owner.0), Some(owner.1));
    // Before the mode, whose group bits mean the mask where there is an access control list.
    attributes::copy(old.as_fd(), file.as_fd())?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777))
        .map_err(|errno| failed(errno.into()))?;
    file.sync_all().map_err(failed)
}

/// Gives the new file its name; false if what has that name is not what was read.
fn put(source: &Source, file: &File, aside: &OsStr) -> io::Result<bool> {
    let spot = &source.spot;
    if content(spot)? != source.text.as_bytes() {
        return Ok(false);
    }
    match exchange(source, file, aside) {
        Err(error) if cannot_exchange(&error) => {
            rustix::fs::renameat(spot.dir(), aside, spot.dir(), spot.name())?;
            Ok(true)
        }
        done => done,
    }
}

/// Swaps the new file with the former one and looks at what came out: an app may have saved it in the last moment. If so,
/// swaps them back.
fn exchange(source: &Source, file: &File, aside: &OsStr) -> io::Result<bool> {
    let spot = &source.spot;
    let (dir, name) = (spot.dir(), spot.name());
    let swap = || rustix::fs::renameat_with(dir, aside, dir, name, RenameFlags::EXCHANGE);
    swap()?;
    if bytes_at(spot, aside).is_ok_and(|bytes| bytes == source.text.as_bytes()) {
        return Ok(true);
    }
    swap()?;
    if !is_at(spot, aside, file) {
        // The app saved once more, in between: that is the newest.
        swap()?;
    }
    Ok(false)
}

/// Whether an error says that the file system, or the kernel, cannot exchange two files.
fn cannot_exchange(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    use rustix::io::Errno;
    matches!(errno, Some(Errno::NOSYS | Errno::INVAL | Errno::NOTSUP))
}

/// Whether that name in the directory is this file's.
fn is_at(spot: &Spot, name: &OsStr, file: &File) -> bool {
    let there = rustix::fs::statat(spot.dir(), name, AtFlags::SYMLINK_NOFOLLOW);
    let ours = rustix::fs::fstat(file);
    matches!((there, ours), (Ok(there), Ok(ours)) if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino))
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
    #[test]
    fn what_an_app_saves_in_the_last_moment_is_put_back() {
        let scope = Scope::new("write");
        let path = scope.path("mcp.json");
        std::fs::write(&path, "one").unwrap();
        let source = read(&path).unwrap();
        let aside = OsStr::new(".aside");
        let ours = || {
            std::fs::write(scope.path(".aside"), "three").unwrap();
            File::open(scope.path(".aside")).unwrap()
        };
        // After the comparison, which is not part of this.
        std::fs::write(&path, "two").unwrap();
        assert!(!exchange(&source, &ours(), aside).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(!exchange(&source, &ours(), aside).unwrap());
        assert!(path.is_symlink());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "one").unwrap();
        assert!(exchange(&source, &ours(), aside).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
    }

    #[test]
    fn an_access_control_list_and_other_attributes_go_along_and_open_nothing_to_the_group() {
        use std::os::unix::fs::PermissionsExt;
        /// Version 2; then tag, rights and id: the owner rw, uid 65534 rw, the group nothing, the mask rw, others nothing.
        const LIST: [u32; 11] = [
            2, 0x6_0001, !0, 0x6_0002, 65534, 0x0_0004, !0, 0x6_0010, !0, 0x0_0020, !0,
        ];
        let list: Vec<u8> = LIST.iter().flat_map(|word| word.to_le_bytes()).collect();
        let flags = rustix::fs::XattrFlags::empty();
        let of = |path: &Path, name: &str| {
            let mut value = vec![0; 256];
            let length = rustix::fs::getxattr(path, name, &mut value[..]);
            length.ok().map(|length| value[..length].to_vec())
        };
        let acl = "system.posix_acl_access";
        let scope = Scope::new("write");
        let path = scope.path("mcp.json");
        std::fs::write(&path, "one").unwrap();
        rustix::fs::setxattr(&path, acl, &list, flags).unwrap();
        rustix::fs::setxattr(&path, "user.mark", b"mine", flags).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o660, "the mask");
        replace(&read(&path).unwrap(), "two").unwrap();
        assert_eq!(mode(&path), 0o660);
        assert_eq!(of(&path, acl), Some(list.clone()));
        assert_eq!(of(&path, "user.mark").as_deref(), Some(&b"mine"[..]));

        // What its directory gives to new files is not given to this one.
        let plain = scope.path("plain.json");
        std::fs::write(&plain, "one").unwrap();
        std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o640)).unwrap();
        rustix::fs::setxattr(scope.dir(), "system.posix_acl_default", &list, flags).unwrap();
        replace(&read(&plain).unwrap(), "two").unwrap();
        assert_eq!((mode(&plain), of(&plain, acl)), (0o640, None));
    }
}
