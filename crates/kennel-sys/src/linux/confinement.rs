//! A process's confinement, as `/proc` tells it. Whoever reads about another process verifies it afterwards.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, makedev, openat, readlinkat, statx};
use rustix::io::Errno;

use super::procfs::require_our_own;
use crate::confinement::Confinement;

/// Every kind the kernel has. `time` counts: a process in another time namespace writes down other start times.
const NAMESPACES: [&str; 8] = ["mnt", "pid", "net", "user", "ipc", "uts", "cgroup", "time"];
/// No file that is read here is longer.
const LONGEST: usize = 8192;

/// `process` is a pid, or `self`.
pub(crate) fn confinement(process: &str) -> io::Result<Confinement> {
    require_our_own()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(format!("/proc/{process}"), flags, Mode::empty())?;
    let ns = openat(&dir, "ns", flags, Mode::empty())?;
    // The mount as well: a read-only bind of `/` has the device and inode of `/`.
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let root = statx(&dir, "root/.", AtFlags::empty(), wanted)?;
    let status = status(&dir)?;
    Ok(Confinement {
        namespaces: NAMESPACES
            .iter()
            .map(|kind| namespace(&ns, kind))
            .collect::<io::Result<_>>()?,
        root: (
            makedev(root.stx_dev_major, root.stx_dev_minor),
            root.stx_ino,
            root.stx_mnt_id,
        ),
        label: label(&dir)?,
        ..status
    })
}

/// A link's text and not its target's inode: that is cheaper by half, and says the same.
fn namespace(ns: &OwnedFd, kind: &str) -> io::Result<String> {
    match readlinkat(ns, kind, Vec::with_capacity(32)) {
        Ok(text) => Ok(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        Err(Errno::NOENT) => Ok("-".to_owned()),
        Err(errno) => Err(errno.into()),
    }
}

fn label(dir: &OwnedFd) -> io::Result<Vec<u8>> {
    match content(dir, "attr/current") {
        // No security module, or one without labels.
        Err(Errno::INVAL | Errno::NOENT | Errno::OPNOTSUPP) => Ok(Vec::new()),
        content => Ok(content?),
    }
}

/// What `status` says; namespaces, root and label are left empty.
fn status(dir: &OwnedFd) -> io::Result<Confinement> {
    let text = content(dir, "status")?;
    parse_status(&String::from_utf8_lossy(&text)).ok_or_else(|| {
        let words = "/proc says neither NoNewPrivs nor the capabilities of a process";
        io::Error::new(io::ErrorKind::Unsupported, words)
    })
}

fn parse_status(text: &str) -> Option<Confinement> {
    // Not by position: a name of a process can hold anything but a newline.
    let field = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim())
    };
    let number = |name| field(name).map_or(Some(0), |value| value.parse::<u32>().ok());
    let set = |name| u64::from_str_radix(field(name)?, 16).ok();
    let seccomp_mode = number("Seccomp")?;
    // Before Linux 5.9 nobody counts filters: one at least.
    let uncounted = u32::from(seccomp_mode == 2 && field("Seccomp_filters").is_none());
    Some(Confinement {
        namespaces: Vec::new(),
        root: (0, 0, 0),
        label: Vec::new(),
        ids: ["Uid", "Gid", "Groups"].map(|name| field(name).unwrap_or_default().to_owned()),
        capabilities: [
            set("CapInh")?,
            set("CapPrm")?,
            set("CapEff")?,
            set("CapBnd")?,
            set("CapAmb")?,
        ],
        no_new_privs: field("NoNewPrivs")? != "0",
        seccomp_mode,
        seccomp_filters: number("Seccomp_filters")?.max(uncounted),
    })
}

fn content(dir: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut content = Vec::with_capacity(LONGEST);
    rustix::io::read(&file, rustix::buffer::spare_capacity(&mut content))?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tSeccomp:\t2\nUmask:\t0022\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t8 9 \nCapInh:\t0\nCapPrm:\t1f\nCapEff:\t10\nCapBnd:\tff\nCapAmb:\t1\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";

    #[test]
    fn the_status_of_a_process_is_read_whatever_its_name_is() {
        let read = parse_status(STATUS).expect("a status");
        assert_eq!(read.capabilities, [0, 0x1f, 0x10, 0xff, 1]);
        assert_eq!(read.ids, ["7\t7\t7\t7", "8\t8\t8\t8", "8 9"]);
        assert!(read.no_new_privs);
        assert_eq!((read.seccomp_mode, read.seccomp_filters), (2, 3));
        let older = STATUS.replace("Seccomp_filters:\t3\n", "");
        assert_eq!(parse_status(&older).expect("a status").seccomp_filters, 1);
    }

    #[test]
    fn a_status_without_what_counts_is_no_status() {
        for missing in ["CapBnd", "NoNewPrivs"] {
            assert!(
                parse_status(&STATUS.replace(missing, "X")).is_none(),
                "{missing}"
            );
        }
    }
}
