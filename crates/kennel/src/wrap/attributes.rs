//! Extended attributes of a configuration, its access control list among them: the file that replaces it has the same.

use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// The access control list. With one, the group bits of a file's mode are its mask, not the rights of its group.
const ACL: &str = "system.posix_acl_access";
/// No list of names and no value is longer in Linux (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const MAX_BYTES: usize = 64 << 10;

/// Gives `new` the attributes of `old`. An error names the one that could not be copied, and what to do.
pub(super) fn copy(old: BorrowedFd<'_>, new: BorrowedFd<'_>) -> Result<(), String> {
    let names = list(old).map_err(|errno| failed("a list of attributes", errno))?;
    // A directory may give every new file a list of its own.
    if !names.iter().any(|name| name == ACL) {
        match rustix::fs::fremovexattr(new, ACL) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(failed(ACL, errno)),
        }
    }
    for name in names {
        let copied = value(old, &name).and_then(|value| {
            if self::value(new, &name).is_ok_and(|other| other == value) {
                return Ok(());
            }
            rustix::fs::fsetxattr(new, &*name, &value, XattrFlags::empty())
        });
        match copied {
            Ok(()) => {}
            // Labels are the system's: it gave the new file the one for its directory.
            Err(_) if name.starts_with("security.") => {}
            Err(errno) => return Err(failed(&name, errno)),
        }
    }
    Ok(())
}

fn list(file: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut names = vec![0; MAX_BYTES];
    let length = match rustix::fs::flistxattr(file, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let names = names[..length].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| Errno::ILSEQ);
    names.map(text).collect()
}

fn value(file: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; MAX_BYTES];
    let length = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

fn failed(name: &str, errno: Errno) -> String {
    format!(
        "it has {name}, which a new file in its place cannot be given ({}); remove that first (`setfacl -b`, `setfattr -x`), or \
         edit the file yourself",
        std::io::Error::from(errno)
    )
}
