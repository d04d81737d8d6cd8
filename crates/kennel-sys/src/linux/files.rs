//! File operations that only Linux has in this form.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, Mode, OFlags, RenameFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use crate::fs::DIRECTORY;

/// Directories of the system. No program keeps its state directly in them.
pub const SYSTEM_DIRECTORIES: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr",
];
/// Directories in which many programs keep their state.
pub const SHARED_DIRECTORIES: &[&str] = &[
    "/run/user",
    "/usr/local",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/spool",
    "/var/tmp",
];

/// The access control list. With one, the group bits of a file's mode are its mask, not the rights of its group.
const ACL: &str = "system.posix_acl_access";
/// Maximum length of a list of names and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// Opens a directory entry of any type, only to identify it and to open it again. Does not follow a link.
pub(crate) fn open_entry(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// A path to the open file of a descriptor, even if it was renamed or removed.
pub(crate) fn descriptor_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens the file of a descriptor again.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    rustix::fs::open(descriptor_path(fd), flags, Mode::empty())
}

/// A file in memory without a name.
pub(crate) fn anonymous_file(title: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create(title, MemfdFlags::CLOEXEC)?)
}

/// Changes the mode of the file that [`open_entry`] opened.
pub(crate) fn chmod_entry(entry: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(descriptor_path(entry), mode)
}

/// Opens a directory in `dir`; fails with `XDEV` if it is a mount point. A kernel that cannot report that (before Linux
/// 5.6, or behind a filter) still reports another device.
pub(crate) fn open_dir_of_same_mount(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let (mode, resolve) = (Mode::empty(), ResolveFlags::NO_XDEV);
    match rustix::fs::openat2(dir, name, DIRECTORY, mode, resolve) {
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {}
        opened => return Ok(opened?),
    }
    let below = rustix::fs::openat(dir, name, DIRECTORY, mode)?;
    let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
    match device(below.as_fd())? == device(dir)? {
        true => Ok(below),
        false => Err(Errno::XDEV.into()),
    }
}

/// Exchanges the names of two files in a directory. `Unsupported` if the file system or the kernel cannot do that.
pub(crate) fn exchange(dir: BorrowedFd<'_>, one: &OsStr, other: &OsStr) -> io::Result<()> {
    match rustix::fs::renameat_with(dir, one, dir, other, RenameFlags::EXCHANGE) {
        Err(Errno::NOSYS | Errno::INVAL | Errno::NOTSUP) => Err(io::ErrorKind::Unsupported.into()),
        done => Ok(done?),
    }
}

/// Copies the extended attributes of `old` to `new`. An error has the name of the attribute that could not be copied.
pub(crate) fn copy_attributes(
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
) -> Result<(), (String, io::Error)> {
    let failed = |name: &str, errno: Errno| (name.to_owned(), errno.into());
    let names = attributes(old).map_err(|errno| failed("a list of attributes", errno))?;
    // A directory may give each new file an access control list.
    if !names.iter().any(|name| name == ACL) {
        match rustix::fs::fremovexattr(new, ACL) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(failed(ACL, errno)),
        }
    }
    for name in names {
        let copied = attribute(old, &name).and_then(|value| {
            if attribute(new, &name).is_ok_and(|other| other == value) {
                return Ok(());
            }
            rustix::fs::fsetxattr(new, &*name, &value, XattrFlags::empty())
        });
        match copied {
            Ok(()) => {}
            // Security labels are set by the system: the new file has the one for its directory.
            Err(_) if name.starts_with("security.") => {}
            Err(errno) => return Err(failed(&name, errno)),
        }
    }
    Ok(())
}

/// The names of a file's extended attributes.
fn attributes(file: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut names = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = match rustix::fs::flistxattr(file, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let names = names[..length].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| Errno::ILSEQ);
    names.map(text).collect()
}

fn attribute(file: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

/// The mount points; empty if they cannot be read.
pub fn mount_points() -> Vec<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|&byte| byte == b'\n');
    let points = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    points.map(|point| unescaped(point).into()).collect()
}

/// Replaces escapes such as `\040`, which the kernel writes for blanks.
fn unescaped(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let number = tail.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_mount_point_is_read_as_its_path() {
        assert_eq!(unescaped(b"/a\\040b\\134c\\x"), "/a b\\c\\x");
    }
}
