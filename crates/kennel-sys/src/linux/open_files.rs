//! Descriptors of another process, with the facts that the kernel shows about each.

use std::collections::HashMap;
use std::io;

use rustix::fs::FileType;

use super::activity::ALARM;
use super::cached_stat::CachedStat;
use super::descriptors::{Descriptor, descriptors};
use super::procfs::lossy_text;

/// A descriptor of another process.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: u32,
    /// Its place in `/proc`.
    pub(crate) descriptor: Descriptor,
    /// Target of its link in `/proc`: a path, or a kind and a number. The same file has the same text in every process,
    /// except for hard links and mounts.
    pub(crate) link: String,
    pub(crate) kind: FileKind,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Files on which it holds a lock, as `/proc/locks` names them.
    pub(crate) locks: Vec<String>,
    /// Whether it has a lease: the kernel notifies the holder before another process opens the file.
    pub(crate) lease: bool,
    /// Number of an eventfd, the same in every process that shares it.
    pub(crate) event: Option<u64>,
    /// Whether it is a running timerfd, or a signalfd for SIGALRM.
    pub(crate) armed: bool,
    /// Number of a file in its file system.
    pub(crate) inode: Option<u64>,
    /// The user who owns a regular file.
    pub(crate) owner: Option<u32>,
    /// State of a regular file, to be compared with a later one.
    pub(crate) stamp: Option<FileStamp>,
    /// The living process that a pidfd refers to.
    pub(crate) watched: Option<u32>,
    /// Descriptors in an epoll instance, by their numbers when they were added.
    pub(crate) polled: Vec<u32>,
}

/// Size and time of the last change of a file, and the position of a descriptor in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) size: u64,
    /// Seconds and nanoseconds.
    pub(crate) changed: (i64, u32),
    pub(crate) position: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// An unnamed pipe, by its inode.
    Pipe(u64),
    /// A pipe with a name: other processes can open it at any time.
    NamedPipe,
    /// A socket, by its inode.
    Socket(u64),
    Regular,
    /// A generated file, as in `/proc` and `/sys`: a process can wait for it to change.
    KernelFile,
    /// A POSIX message queue: other processes can open it by its name.
    MessageQueue,
    Directory,
    /// A device, by its major and minor number.
    Device(u32, u32),
    /// An object of the kernel without a name in a file system, such as an epoll instance.
    Kernel(String),
    /// Could not be examined.
    Unknown,
}

/// Every descriptor of a process; an error if its table cannot be read.
pub(crate) fn open_files(pid: u32) -> io::Result<Vec<OpenFile>> {
    let links = open_links(pid)?.into_iter();
    Ok(links
        .filter_map(|(descriptor, link)| open_file(descriptor, link))
        .collect())
}

/// Every descriptor of a process with its link's target. Touches no file system but `/proc`.
pub(crate) fn open_links(pid: u32) -> io::Result<Vec<(Descriptor, String)>> {
    let all = descriptors(pid)?.into_iter();
    // Skip descriptors that were closed since the listing.
    let links = all.filter_map(|descriptor| {
        let link = std::fs::read_link(descriptor.path()).ok()?;
        Some((descriptor, link.to_string_lossy().into_owned()))
    });
    Ok(links.collect())
}

/// Whether a descriptor is open only for reading.
pub(crate) fn reads_only(descriptor: Descriptor) -> bool {
    access(&descriptor.info().unwrap_or_default()) == Some((true, false))
}

/// Whether a descriptor may be open for reading; `true` if that cannot be seen.
pub(crate) fn may_read(descriptor: Descriptor) -> bool {
    access(&descriptor.info().unwrap_or_default()).is_none_or(|(reads, _)| reads)
}

/// Number of an eventfd, the same in every process that shares it.
pub(crate) fn event_number(descriptor: Descriptor) -> Option<u64> {
    number(&descriptor.info().ok()?, EVENT_NUMBER)
}

/// Number of a file in its file system, from Linux 5.14 on. Touches no file system but `/proc`.
pub(crate) fn inode_number(descriptor: Descriptor) -> Option<u64> {
    number(&descriptor.info().ok()?, INODE_NUMBER)
}

/// The living process, or thread of one, that a pidfd refers to.
pub(crate) fn pidfd_target(descriptor: Descriptor) -> Option<u32> {
    target(&descriptor.info().ok()?)
}

/// The numbers of the files that an inotify instance watches.
pub(crate) fn watched_inodes(descriptor: Descriptor) -> Vec<u64> {
    watched(&descriptor.info().unwrap_or_default()).collect()
}

/// Waiters for locks: the pids that are blocked, by the file as `/proc/locks` names it.
pub(crate) fn blocked_locks() -> io::Result<HashMap<String, Vec<u32>>> {
    let text = match lossy_text("/proc/locks") {
        // A kernel without file locks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let mut blocked: HashMap<String, Vec<u32>> = HashMap::new();
    // 1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:1234 0 EOF
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, "->", _, _, _, pid, file, ..] = words[..] {
            let pid = pid.parse().unwrap_or(0);
            blocked.entry(file.to_owned()).or_default().push(pid);
        }
    }
    Ok(blocked)
}

fn open_file(descriptor: Descriptor, link: String) -> Option<OpenFile> {
    let info = match descriptor.info() {
        Ok(info) => info,
        // Hidden, unless it was closed since the listing.
        Err(_) if std::fs::read_link(descriptor.path()).is_ok() => String::new(),
        Err(_) => return None,
    };
    // A descriptor that cannot be read counts as both.
    let (reads, writes) = access(&info).unwrap_or((true, true));
    let (kind, file) = kind(descriptor, &link);
    let file = file.filter(|_| kind == FileKind::Regular);
    Some(OpenFile {
        fd: descriptor.fd,
        descriptor,
        stamp: file.and_then(|file| stamp(&file, &info)),
        owner: file.map(|file| file.owner),
        event: number(&info, EVENT_NUMBER),
        armed: is_armed(&info),
        polled: polled(&info).collect(),
        inode: number(&info, INODE_NUMBER),
        lease: locks(&info).any(|(kind, _)| kind == "LEASE"),
        watched: target(&info),
        kind,
        link,
        reads,
        writes,
        locks: locks(&info).map(|(_, file)| file.to_owned()).collect(),
    })
}

fn stamp(file: &CachedStat, info: &str) -> Option<FileStamp> {
    Some(FileStamp {
        size: file.size,
        changed: file.changed,
        position: number(info, "pos:")?,
    })
}

/// A number that is not negative, after a word at the start of a line.
fn number(info: &str, name: &str) -> Option<u64> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The process or thread in the `fdinfo` of a pidfd: `Pid:  4711`. It is -1 once that has ended, and 0 in a pid namespace
/// that we cannot see.
fn target(info: &str) -> Option<u32> {
    let pid = u32::try_from(number(info, "Pid:")?).ok()?;
    (pid != 0).then_some(pid)
}

/// Files in the `fdinfo` of an inotify instance: `inotify wd:1 ino:9e7e sdev:800013 mask:8 …`, in base 16.
fn watched(info: &str) -> impl Iterator<Item = u64> {
    let lines = info.lines().filter(|line| line.starts_with("inotify "));
    lines.filter_map(|line| {
        let inode = line.split(' ').find_map(|word| word.strip_prefix("ino:"))?;
        u64::from_str_radix(inode, 16).ok()
    })
}

/// The line with the number of an eventfd.
const EVENT_NUMBER: &str = "eventfd-id:";

/// The line with the inode number of a file.
const INODE_NUMBER: &str = "ino:";

/// Whether a timerfd has time left (`it_value: (3599, 0)`), or a signalfd waits for SIGALRM (`sigmask: 0000000000002000`).
fn is_armed(info: &str) -> bool {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let signals = |set: &str| u64::from_str_radix(set.trim(), 16).unwrap_or(u64::MAX);
    field("it_value:").is_some_and(|left| left.trim() != "(0, 0)")
        || field("sigmask:").is_some_and(|set| signals(set) & ALARM != 0)
}

/// Descriptors in an epoll instance: `tfd:        4 events:       19 data: …`.
fn polled(info: &str) -> impl Iterator<Item = u32> {
    let lines = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok())
}

/// Size that the kernel shows of every POSIX message queue.
const MESSAGE_QUEUE_SIZE: u64 = 80;

/// Whether a file is a POSIX message queue; for `stat` it is a regular file. Not by `statfs`, which is a request to the
/// file system. A queue that was opened by name is shown at the top of its file system; one that was opened by path is on a
/// mount of the process.
fn is_message_queue(task: u32, file: &CachedStat, link: &str) -> bool {
    let is_without_disk = rustix::fs::major(file.dev) == 0;
    if !is_without_disk || file.size != MESSAGE_QUEUE_SIZE {
        return false;
    }
    let is_at_top = link.rfind('/') == Some(0);
    is_at_top || {
        let mounts = lossy_text(format!("/proc/{task}/mountinfo"));
        is_on_message_queues(&mounts.unwrap_or_default(), file.dev)
    }
}

/// Types of file systems with generated files.
const KERNEL_FILES: [&str; 18] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "tracefs",
    "debugfs",
    "securityfs",
    "configfs",
    "bpf",
    "selinuxfs",
    "smackfs",
    "resctrl",
    "efivarfs",
    "pstore",
    "binfmt_misc",
    "fusectl",
    "rpc_pipefs",
    "nfsd",
];

/// Whether a file is generated by the kernel, as in `/proc`. By the mounts of the process, not by `statfs`, which is a
/// request to the file system.
fn is_generated(task: u32, file: &CachedStat) -> io::Result<bool> {
    if rustix::fs::major(file.dev) != 0 {
        return Ok(false);
    }
    let mounts = lossy_text(format!("/proc/{task}/mountinfo"))?;
    Ok(types_of(&mounts, file.dev).any(|kind| KERNEL_FILES.contains(&kind)))
}

/// Whether a device is one of POSIX message queues.
fn is_on_message_queues(mounts: &str, dev: u64) -> bool {
    types_of(mounts, dev).any(|kind| kind == "mqueue")
}

/// The types of the mounts of a device: `mqueue` for `36 26 0:20 / /dev/mqueue rw - mqueue mqueue rw`.
fn types_of(mounts: &str, dev: u64) -> impl Iterator<Item = &str> {
    let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    mounts.lines().filter_map(move |line| {
        let is_its = line.split(' ').nth(2) == Some(&*device);
        let (_, rest) = line.split_once(" - ").filter(|_| is_its)?;
        rest.split(' ').next()
    })
}

/// The kind of an open file, with the metadata of the file if it has a path.
fn kind(descriptor: Descriptor, link: &str) -> (FileKind, Option<CachedStat>) {
    let inode = |kind: &str| link.strip_prefix(kind)?.strip_suffix(']')?.parse().ok();
    if let Some(inode) = inode("pipe:[") {
        return (FileKind::Pipe(inode), None);
    }
    if let Some(inode) = inode("socket:[") {
        return (FileKind::Socket(inode), None);
    }
    if !link.starts_with('/') {
        let name = link.strip_prefix("anon_inode:").unwrap_or(link);
        let name = name.trim_matches(['[', ']']).to_owned();
        return (FileKind::Kernel(name), None);
    }
    let Ok(file) = CachedStat::behind(descriptor.path()) else {
        return (FileKind::Unknown, None);
    };
    let kind = match file.file_type() {
        FileType::Fifo => FileKind::NamedPipe,
        FileType::Directory => FileKind::Directory,
        FileType::RegularFile if is_message_queue(descriptor.task, &file, link) => {
            FileKind::MessageQueue
        }
        FileType::RegularFile => match is_generated(descriptor.task, &file) {
            Ok(true) => FileKind::KernelFile,
            Ok(false) => FileKind::Regular,
            Err(_) => FileKind::Unknown,
        },
        FileType::CharacterDevice | FileType::BlockDevice => {
            FileKind::Device(file.device.0, file.device.1)
        }
        _ => FileKind::Unknown,
    };
    (kind, Some(file))
}

/// Whether a descriptor reads and whether it writes.
fn access(info: &str) -> Option<(bool, bool)> {
    let mut lines = info.lines();
    let flags = lines.find_map(|line| line.strip_prefix("flags:"))?;
    match u32::from_str_radix(flags.trim(), 8).ok()? & 3 {
        0 => Some((true, false)),
        1 => Some((false, true)),
        _ => Some((true, true)),
    }
}

/// Kinds and files of the `lock:` lines: `lock:  1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`.
fn locks(info: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = info.lines().filter_map(|line| line.strip_prefix("lock:"));
    lines.filter_map(|lock| {
        let mut words = lock.split_whitespace();
        Some((words.nth(1)?, words.nth(3)?))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn mine(fd: i32) -> OpenFile {
        let files = open_files(std::process::id()).expect("our own table");
        let mut files = files.into_iter();
        files
            .find(|file| u32::try_from(fd) == Ok(file.fd))
            .expect("an own descriptor")
    }

    #[test]
    fn message_queues_are_recognized_by_their_mount() {
        let mounts = "25 1 254:0 / / rw - ext4 /dev/vda rw\n36 26 0:20 / /dev/mqueue rw shared:7 - mqueue mqueue rw\n37 26 0:21 / /dev/shm rw - tmpfs mqueue rw\n";
        let dev = rustix::fs::makedev;
        assert!(is_on_message_queues(mounts, dev(0, 20)));
        assert!(!is_on_message_queues(mounts, dev(0, 21)));
        assert!(!is_on_message_queues(mounts, dev(0, 2)));
    }

    #[test]
    fn the_process_of_a_pidfd_and_the_files_of_an_inotify_instance_are_read() {
        assert_eq!(target("pos:\t0\nPid:\t4711\nNSpid:\t4711\n"), Some(4711));
        for gone in ["Pid:\t-1\n", "Pid:\t0\n", "pos:\t0\n"] {
            assert_eq!(target(gone), None, "{gone}");
        }
        let info =
            "pos:\t0\ninotify wd:2 ino:1f sdev:3 mask:8\ninotify wd:1 ino:9e7e sdev:3 mask:8\n";
        assert_eq!(watched(info).collect::<Vec<_>>(), [0x1f, 0x9e7e]);
    }

    #[test]
    fn kinds_directions_and_locks_of_descriptors_are_seen() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let (reader, writer) = (mine(reader.as_raw_fd()), mine(writer.as_raw_fd()));
        assert_eq!((reader.reads, reader.writes), (true, false));
        assert_eq!((writer.reads, writer.writes), (false, true));
        assert!(matches!(reader.kind, FileKind::Pipe(_)) && reader.link == writer.link);

        let null = std::fs::File::open("/dev/null").expect("it is there");
        assert_eq!(mine(null.as_raw_fd()).kind, FileKind::Device(1, 3));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(matches!(mine(socket.as_raw_fd()).kind, FileKind::Socket(_)));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let event = event.expect("an eventfd");
        assert_eq!(
            mine(event.as_raw_fd()).kind,
            FileKind::Kernel("eventfd".to_owned())
        );

        let program = std::env::current_exe().expect("a running program");
        let program = std::fs::File::open(program).expect("readable");
        assert!(mine(program.as_raw_fd()).locks.is_empty());
        program.lock_shared().expect("nobody else locks it");
        let locked = mine(program.as_raw_fd());
        assert_eq!((locked.kind, locked.locks.len()), (FileKind::Regular, 1));
    }
}
