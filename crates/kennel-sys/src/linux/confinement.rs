//! The confinement of a process, read from `/proc`. The caller must check afterwards that the process still lives.
//!
//! Every start of a session reads this three times (the shim about itself and about the daemon, the daemon about the shim)
//! while the app waits. So it allocates little and reads nothing twice.

use std::io::{self, BufRead as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, openat, readlinkat_raw};
use rustix::io::Errno;

use super::cached_stat::CachedStat;
use super::procfs::require_our_own;
use crate::confinement::{Confinement, NAMESPACES, UNREAD_ROOT};

/// The umask bits that matter: write permissions differ between terminals and desktops (002 and 022).
const READ_OR_USE: u32 = 0o055;

/// The lines of `status` that belong to a confinement.
const FIELDS: [&str; 12] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "Umask",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
];
/// Bytes per read: the whole file, unless its process has hundreds of groups.
const CHUNK: usize = 8192;

/// Reads a confinement. `process` is a pid, or `self`. With `children`, it fails if the children would be in other
/// namespaces than the process itself, which is possible after `unshare` or `setns`. If it is compared with `other`,
/// reading stops at the first difference, and the root directory has no parent [`UNREAD_ROOT`]. The root comes last, because only its file
/// belongs to a file system that the process may have chosen.
pub(crate) fn confinement(
    process: &str,
    children: bool,
    other: Option<&Confinement>,
) -> io::Result<Confinement> {
    require_our_own()?;
    let dir = directory(process, "")?;
    let ns = openat(&dir, "ns", DIRECTORY, Mode::empty())?;
    let status = status(&dir)?;
    let mut namespaces = [0; NAMESPACES.len()];
    for (inode, kind) in namespaces.iter_mut().zip(NAMESPACES) {
        *inode = namespace(&ns, kind)?;
    }
    let read = Confinement {
        namespaces,
        label: label(&dir)?,
        ..status
    };
    if children && has_children_elsewhere(&ns, &read)? {
        return Err(io::Error::other("its children are in other namespaces"));
    }
    if other.is_some_and(|other| !read.equals_but_for_root(other)) {
        return Ok(read);
    }
    let root = CachedStat::of_link_in(&dir, "root")?;
    Ok(Confinement {
        // With the mount: a read-only bind mount of `/` has the device and inode of `/`.
        root: (root.dev, root.ino, root.mount),
        ..read
    })
}

/// Flags to open a directory below `/proc` as a base for paths.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn directory(process: &str, below: &str) -> io::Result<OwnedFd> {
    let path = format!("/proc/{process}/{below}");
    Ok(rustix::fs::open(path, DIRECTORY, Mode::empty())?)
}

/// Whether the children of a process would be in other namespaces than the process. `ns` is the directory of its
/// namespaces.
fn has_children_elsewhere(ns: &OwnedFd, own: &Confinement) -> io::Result<bool> {
    /// The link for the children's namespace, and the link for its own.
    const KINDS: [(&str, &str); 2] = [("pid_for_children", "pid"), ("time_for_children", "time")];
    for (for_children, its_own) in KINDS {
        let inode = namespace(ns, for_children)?;
        let is_own = Some(inode) == own.namespace(its_own);
        // 0: the namespace has no process yet, unless this kernel has no such link at all.
        if !is_own && (inode != 0 || namespace(&directory("self", "ns")?, for_children)? != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The inode of a namespace; 0 for a kind that this kernel does not have, or that has no process yet. Read from the text of
/// the link, `mnt:[4026531832]`, which is twice as fast as the inode of its target.
fn namespace(ns: &OwnedFd, kind: &str) -> io::Result<u64> {
    let mut buffer = [0; 64];
    let text = match readlinkat_raw(ns, kind, &mut buffer[..]) {
        Ok(length) => &buffer[..length],
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(errno.into()),
    };
    // A namespace for children has the same kind as any other.
    let kind = kind.strip_suffix("_for_children").unwrap_or(kind);
    let number = text.strip_prefix(kind.as_bytes());
    let number = number.and_then(|text| text.strip_prefix(b":[")?.strip_suffix(b"]"));
    let number = number.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The label of the security module; empty if there is no module, or one without labels. That is the same for every
/// process, so it is found out once.
fn label(dir: &OwnedFd) -> io::Result<Vec<u8>> {
    static HAS_NONE: AtomicBool = AtomicBool::new(false);
    if HAS_NONE.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    match content(dir, "attr/current") {
        Err(Errno::INVAL | Errno::NOENT | Errno::OPNOTSUPP) => {
            HAS_NONE.store(true, Ordering::Relaxed);
            Ok(Vec::new())
        }
        content => Ok(content?),
    }
}

/// The facts in `status`; namespaces, root and label are left empty.
fn status(dir: &OwnedFd) -> io::Result<Confinement> {
    let text = content(dir, "status")?;
    parse_status(&text).ok_or_else(|| {
        let words = "/proc does not show NoNewPrivs, Seccomp and the capabilities of a process";
        io::Error::new(io::ErrorKind::Unsupported, words)
    })
}

fn parse_status(text: &[u8]) -> Option<Confinement> {
    let mut fields: [Option<&str>; FIELDS.len()] = [None; FIELDS.len()];
    // Not by line number: the name of a process can contain any byte except a newline. The library's line search is fast,
    // and every start of a session waits for this.
    let mut rest = text;
    while !rest.is_empty() {
        let line = rest;
        let line = &line[..rest.skip_until(b'\n').ok()?];
        let value = |field: &&str| line.strip_prefix(field.as_bytes())?.strip_prefix(b":");
        let values = FIELDS.iter().map(value).enumerate();
        if let Some((at, value)) = values.filter_map(|(at, it)| Some((at, it?))).next() {
            fields[at] = Some(str::from_utf8(value.trim_ascii()).ok()?);
        }
    }
    let [
        ids @ ..,
        inheritable,
        permitted,
        effective,
        bounding,
        ambient,
        umask,
        privs,
        mode,
        filters,
    ] = fields;
    let set = |field: Option<&str>| u64::from_str_radix(field?, 16).ok();
    let seccomp_mode = mode?.parse().ok()?;
    let seccomp_filters = match filters {
        Some(count) => count.parse().ok()?,
        // Linux does not count filters before 5.9: there is at least one.
        None => u32::from(seccomp_mode == 2),
    };
    Some(Confinement {
        namespaces: [0; NAMESPACES.len()],
        root: UNREAD_ROOT,
        label: Vec::new(),
        ids: ids.map(|field| field.unwrap_or_default().to_owned()),
        capabilities: [
            set(inheritable)?,
            set(permitted)?,
            set(effective)?,
            set(bounding)?,
            set(ambient)?,
        ],
        hides_files: umask.map_or(Some(0), |umask| u32::from_str_radix(umask, 8).ok())?
            & READ_OR_USE,
        no_new_privs: privs? != "0",
        seccomp_mode,
        seccomp_filters,
    })
}

/// Reads a whole file. In `/proc`, a read that does not fill the buffer has reached the end.
fn content(dir: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut content = vec![0; CHUNK];
    let mut length = 0;
    loop {
        length += rustix::io::read(&file, &mut content[length..])?;
        if length < content.len() {
            content.truncate(length);
            return Ok(content);
        }
        content.resize(2 * length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tSeccomp:\t2\nUmask:\t0022\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t8 9 \nCapInh:\t0\nCapPrm:\t1f\nCapEff:\t10\nCapBnd:\tff\nCapAmb:\t1\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";

    #[test]
    fn the_status_of_a_process_is_parsed_with_any_process_name() {
        let read = parse_status(STATUS.as_bytes()).expect("a status");
        assert_eq!(read.capabilities, [0, 0x1f, 0x10, 0xff, 1]);
        assert_eq!(read.ids, ["7\t7\t7\t7", "8\t8\t8\t8", "8 9"]);
        assert!(read.no_new_privs);
        assert_eq!(read.hides_files, 0);
        for (umask, hides) in [("0002", 0), ("0027", 0o005), ("0077", 0o055)] {
            let status = STATUS.replace("0022", umask);
            assert_eq!(
                parse_status(status.as_bytes())
                    .expect("a status")
                    .hides_files,
                hides
            );
        }
        assert_eq!((read.seccomp_mode, read.seccomp_filters), (2, 3));
        let older = STATUS.replace("Seccomp_filters:\t3\n", "");
        assert_eq!(
            parse_status(older.as_bytes())
                .expect("a status")
                .seccomp_filters,
            1
        );
    }

    #[test]
    fn a_status_without_the_required_lines_is_an_error() {
        for missing in ["\nCapBnd", "\nNoNewPrivs", "\nSeccomp:"] {
            assert!(
                parse_status(STATUS.replace(missing, "\nX").as_bytes()).is_none(),
                "{missing}"
            );
        }
    }

    #[test]
    fn a_file_of_any_length_is_read_to_its_end() {
        let scope = kennel_testkit::Scope::new("content");
        let dir = OwnedFd::from(std::fs::File::open(scope.path("")).expect("a directory"));
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            std::fs::write(scope.path("status"), vec![b'x'; length]).expect("a file");
            let read = content(&dir, "status").expect("a file");
            assert_eq!(read.len(), length);
        }
    }
}
