//! Reading `/proc`. The caller must check afterwards that the process still lives, because its pid may be reused.

use std::ffi::OsStr;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::fs::FileType;

use super::cached_stat::CachedStat;
use super::descriptors::{Descriptor, IO_URING, descriptors, inode, registered_files};
use crate::backend::AccessMode;
use crate::process::ProcessStat;

/// Maximum number of attempts to read about a process that the kernel knows.
pub(super) const ATTEMPTS: usize = 8;
/// Time between two attempts, in which the kernel may free memory.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

pub(crate) fn stat(pid: u32) -> io::Result<ProcessStat> {
    require_our_own()?;
    let text = stat_text(
        || short_text(&format!("/proc/{pid}/stat")).map_err(gone),
        || exists(pid),
    )?;
    parse_stat(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads until `/proc` agrees with the kernel. "No such file" does not prove that a process is gone: `/proc` also returns
/// it for a living process if there is no memory for an inode. A process that `/proc` hides from us stays "not found".
fn stat_text(
    read: impl Fn() -> io::Result<String>,
    exists: impl Fn() -> bool,
) -> io::Result<String> {
    for _ in 1..ATTEMPTS {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && exists() => {
                crate::events::sleep(&[], &[], Some(PAUSE))?;
            }
            other => return other,
        }
    }
    read()
}

/// Whether the kernel knows a process with this pid, zombies included.
pub(crate) fn exists(pid: u32) -> bool {
    super::pid_of(pid)
        .is_ok_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// The text of a generated file shorter than a page, in one read. `std::fs::read` would need six system calls.
pub(crate) fn short_text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&short(path)?).into_owned())
}

/// The text of a generated file, with invalid UTF-8 replaced. The kernel truncates process names after 15 bytes, which may
/// split a character, and paths may have any bytes.
pub(crate) fn lossy_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn short(path: &str) -> io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::with_capacity(4096);
    rustix::io::read(&file, spare_capacity(&mut bytes))?;
    Ok(bytes)
}

fn parse_stat(text: &str) -> Option<ProcessStat> {
    // The command may contain spaces and parentheses: the fields start after the last one.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
    Some(ProcessStat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        stopped: matches!(*fields.first()?, "T" | "t"),
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        terminal: *fields.get(4)? != "0",
        threads: fields.get(17)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// Converts ESRCH, the error of reading about a process that is ending, to "not found".
pub(super) fn gone(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::ESRCH) {
        io::ErrorKind::NotFound.into()
    } else {
        error
    }
}

/// Fails if `/proc` is missing or shows another pid namespace, in which our pids mean other processes.
pub(super) fn require_our_own() -> io::Result<()> {
    static OURS: OnceLock<bool> = OnceLock::new();
    let ours = *OURS.get_or_init(|| {
        let told = std::fs::read_link("/proc/self").ok();
        told.is_some_and(|pid| pid.as_os_str() == std::process::id().to_string().as_str())
    });
    if ours {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "/proc is not mounted, or belongs to another pid namespace",
        ))
    }
}

/// Whether `/proc` shows our pid namespace.
pub(crate) fn has_own_proc() -> bool {
    require_our_own().is_ok()
}

/// A pid, if `/proc` shows our pid namespace; else 0, which is no process.
pub(crate) fn visible_pid(pid: u32) -> u32 {
    match require_our_own() {
        Ok(()) => pid,
        Err(_) => 0,
    }
}

pub(crate) fn boot_id() -> Option<u128> {
    static BOOT_ID: OnceLock<Option<u128>> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        let text = short_text("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    })
}

/// Our pid namespace. A pid is valid only within one.
pub(crate) fn pid_namespace() -> Option<u64> {
    static NAMESPACE: OnceLock<Option<u64>> = OnceLock::new();
    *NAMESPACE.get_or_init(|| Some(std::fs::metadata("/proc/self/ns/pid").ok()?.ino()))
}

/// Whether a process runs the same program file as this one.
fn runs_our_program(pid: u32) -> bool {
    let program = |pid: &str| {
        let file = CachedStat::behind(format!("/proc/{pid}/exe"));
        file.ok().map(|file| file.identity())
    };
    let theirs = program(&pid.to_string());
    theirs.is_some() && theirs == program("self")
}

/// The name of a process: that of its program, or the one that it set.
pub(crate) fn command_name(pid: u32) -> Option<String> {
    require_our_own().ok()?;
    let name = short(&format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// The command line of a process; `None` if it is hidden or the process is a kernel thread.
pub(crate) fn command_line(pid: u32) -> Option<Vec<String>> {
    require_our_own().ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line
        .strip_suffix(&[0])
        .unwrap_or(&line)
        .split(|&byte| byte == 0);
    let words: Vec<String> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    (!line.is_empty()).then_some(words)
}

/// Whether a process is Kennel: this program or another build of it.
pub(crate) fn is_kennel(pid: u32) -> bool {
    let name = lossy_text(format!("/proc/{pid}/comm")).unwrap_or_default();
    runs_our_program(pid)
        || ["kennel", "kennel-warden", "kennel-start", "kennel-daemon"].contains(&name.trim_end())
}

/// The real uid of a process. An error if it cannot be seen.
pub(crate) fn user_of(pid: u32) -> io::Result<u32> {
    require_our_own()?;
    let status = lossy_text(format!("/proc/{pid}/status")).map_err(gone)?;
    let mut lines = status.lines();
    let uids = lines.find_map(|line| line.strip_prefix("Uid:"));
    let uid = uids.and_then(|uids| uids.split_whitespace().next()?.parse().ok());
    uid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The resident memory of a process in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let pages = lossy_text(format!("/proc/{pid}/statm"));
    let pages = pages
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// The time since a process was started.
pub(crate) fn age(pid: u32) -> Duration {
    elapsed_since(stat(pid).map_or(u64::MAX, |stat| stat.start))
}

/// The time since a moment in clock ticks, the unit of a process's start.
pub(crate) fn elapsed_since(ticks: u64) -> Duration {
    let ticks = now_in_ticks().saturating_sub(ticks);
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// The session of a process; 0 if its leader is outside our pid namespace.
pub(crate) fn session_of(pid: u32) -> Option<u32> {
    // SAFETY: takes and returns plain numbers. (Not rustix's: its pids cannot be 0.)
    let session = unsafe { libc::getsid(i32::try_from(pid).ok()?) };
    u32::try_from(session).ok()
}

/// The current time on the clock of process starts, in its unit.
pub(crate) fn now_in_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

/// The pids of all visible processes.
pub(crate) fn processes() -> io::Result<Vec<u32>> {
    require_our_own()?;
    Ok(std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

/// The pid that the kernel gave last in our pid namespace.
pub(crate) fn newest_pid() -> io::Result<u32> {
    require_our_own()?;
    // 0.00 0.00 0.00 1/123 4711
    let text = short_text("/proc/loadavg")?;
    let pid = text.split_whitespace().next_back();
    pid.and_then(|pid| pid.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The children of this process, of all its threads. A snapshot that may miss some.
pub(crate) fn children_of_this_process() -> io::Result<Vec<u32>> {
    children(std::process::id())
}

/// The children of a process, of all its threads. A snapshot that may miss some.
pub(crate) fn children(parent: u32) -> io::Result<Vec<u32>> {
    require_our_own()?;
    let mut children = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{parent}/task"))? {
        match lossy_text(task?.path().join("children")) {
            Ok(text) => children.extend(
                text.split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            ),
            // A thread that just ended has no children. A kernel without this file: search all processes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return children_by_search(parent);
            }
            Err(_) => {}
        }
    }
    Ok(children)
}

fn children_by_search(parent: u32) -> io::Result<Vec<u32>> {
    let is_child = |&pid: &u32| stat(pid).is_ok_and(|stat| stat.parent == parent);
    Ok(processes()?.into_iter().filter(is_child).collect())
}

/// The path to start this program again: its descriptor in `/proc`, which works even if its file was replaced or removed;
/// without `/proc`, the path that it was started with.
pub(crate) fn this_program() -> PathBuf {
    const SELF_EXE: &str = "/proc/self/exe";
    // The link also works for a removed file.
    if rustix::fs::stat(SELF_EXE).is_ok() {
        return SELF_EXE.into();
    }
    let path = OsStr::from_bytes(rustix::param::linux_execfn().to_bytes());
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

pub(crate) fn thread_count_of_this_process() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// The file behind a descriptor of another process, as (device, inode).
pub(crate) fn fd_identity(pid: u32, fd: u32) -> io::Result<(u64, u64)> {
    require_our_own()?;
    let file = CachedStat::behind(format!("/proc/{pid}/fd/{fd}")).map_err(gone)?;
    Ok(file.identity())
}

/// The same, if the descriptor is a pipe or a socket.
pub(crate) fn stream_identity(pid: u32, fd: u32) -> Option<(u64, u64)> {
    require_our_own().ok()?;
    let file = CachedStat::behind(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let is_stream = matches!(file.file_type(), FileType::Fifo | FileType::Socket);
    is_stream.then(|| file.identity())
}

/// Whether a process has any of `files` open; an error if its descriptors cannot be read.
pub(crate) fn holds_file(pid: u32, files: &[(u64, u64)]) -> io::Result<bool> {
    for descriptor in descriptors(pid)? {
        // The descriptor was closed since the listing.
        let Ok(file) = CachedStat::behind(descriptor.path()) else {
            continue;
        };
        if files.contains(&file.identity()) || is_registered(descriptor, &file, files) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a descriptor is an io_uring that has one of these pipes or sockets registered.
fn is_registered(ring: Descriptor, file: &CachedStat, files: &[(u64, u64)]) -> bool {
    let is_ring = file.has_no_type()
        && std::fs::read_link(ring.path()).is_ok_and(|link| link.as_os_str() == IO_URING);
    if !is_ring {
        return false;
    }
    let kept = registered_files(ring).unwrap_or_default();
    let inodes = |kind| kept.iter().filter_map(move |link| inode(link, kind));
    let mut inodes = inodes("pipe").chain(inodes("socket"));
    inodes.any(|inode| files.iter().any(|(_, known)| *known == inode))
}

/// Whether a process has `file` open for `access`; an error if its descriptors cannot be read.
pub(crate) fn holds_file_with(pid: u32, file: (u64, u64), access: AccessMode) -> io::Result<bool> {
    // The mode of the link shows the access mode of the descriptor.
    let bit = match access {
        AccessMode::Read => 0o400,
        AccessMode::Write => 0o200,
    };
    for path in descriptors(pid)?.into_iter().map(Descriptor::path) {
        // Of the link itself, which is a file of `/proc`.
        let Ok(link) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if link.mode() & bit != 0
            && CachedStat::behind(&path).is_ok_and(|open| open.identity() == file)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The inodes of the open sockets of a process, including those in an io_uring; an error if its descriptors cannot be read.
pub(crate) fn sockets_of(pid: u32) -> io::Result<Vec<u64>> {
    let mut sockets = Vec::new();
    for descriptor in descriptors(pid)? {
        // The descriptor was closed since the listing.
        let Ok(target) = std::fs::read_link(descriptor.path()) else {
            continue;
        };
        match target.to_str() {
            Some(IO_URING) => {
                let kept = registered_files(descriptor)?;
                sockets.extend(kept.iter().filter_map(|link| inode(link, "socket")));
            }
            Some(link) => sockets.extend(inode(link, "socket")),
            None => {}
        }
    }
    Ok(sockets)
}

/// The value of a variable in the initial environment of a process, `None` if it is not set; an error if the environment
/// cannot be read.
pub(crate) fn environ_value(pid: u32, name: &str) -> io::Result<Option<Vec<u8>>> {
    let environ = environ(pid)?;
    let value = |entry: &[u8]| {
        let rest = entry.strip_prefix(name.as_bytes())?;
        Some(rest.strip_prefix(b"=")?.to_vec())
    };
    Ok(environ.split(|&byte| byte == 0).find_map(value))
}

/// Whether the initial environment of a process contains `pair` (`NAME=value`).
pub(crate) fn environ_has(pid: u32, pair: &str) -> bool {
    environ(pid).is_ok_and(|environ| {
        environ
            .split(|&byte| byte == 0)
            .any(|entry| entry == pair.as_bytes())
    })
}

/// The initial environment of a process. If its first thread has ended, the kernel shows an empty one for that thread: then
/// it is read from another thread.
fn environ(pid: u32) -> io::Result<Vec<u8>> {
    require_our_own()?;
    let first = std::fs::read(format!("/proc/{pid}/environ")).map_err(gone);
    let first_has_ended = || stat(pid).is_ok_and(|stat| stat.zombie && stat.threads > 1);
    if first.as_ref().is_ok_and(|it| !it.is_empty()) || !first_has_ended() {
        return first;
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)?;
    // A thread that ended since the listing has an empty one too.
    let mut others = tasks.filter_map(|task| std::fs::read(task.ok()?.path().join("environ")).ok());
    others.find(|it| !it.is_empty()).map_or(first, Ok)
}

/// The ports that the kernel assigns to outgoing connections: `ip_local_port_range`.
pub fn ephemeral_ports() -> RangeInclusive<u16> {
    /// The default of Linux.
    const DEFAULT_PORTS: RangeInclusive<u16> = 32768..=60999;
    let text = short_text("/proc/sys/net/ipv4/ip_local_port_range");
    let range = |text: String| {
        let mut numbers = text.split_whitespace().map(str::parse);
        Some(numbers.next()?.ok()?..=numbers.next()?.ok()?)
    };
    text.ok().and_then(range).unwrap_or(DEFAULT_PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let line = "77 (a) Z 1 (b)) S 42 77 70 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 991 0 0";
        let stat = parse_stat(line).expect("a well-formed line");
        assert_eq!(
            stat,
            ProcessStat {
                zombie: false,
                stopped: false,
                parent: 42,
                session: 70,
                terminal: false,
                threads: 3,
                start: 991
            }
        );
    }

    #[test]
    fn reading_a_living_process_that_proc_misses_is_retried() {
        let asked = std::cell::Cell::new(0);
        let found_after = |misses: usize| {
            asked.set(0);
            let read = || {
                asked.set(asked.get() + 1);
                match asked.get() <= misses {
                    true => Err(io::Error::from_raw_os_error(libc::ENOENT)),
                    false => Ok("1 (init) S".to_owned()),
                }
            };
            stat_text(read, || true).is_ok()
        };
        assert!(found_after(0));
        assert!(
            found_after(1),
            "it lives, and /proc finds it the second time"
        );
        assert!(found_after(ATTEMPTS - 1));
        assert!(!found_after(usize::MAX), "always hidden: it gives up");
        asked.set(0);
        let gone = stat_text(
            || {
                asked.set(asked.get() + 1);
                Err(io::ErrorKind::NotFound.into())
            },
            || false,
        );
        assert_eq!(
            gone.map_err(|error| error.kind()),
            Err(io::ErrorKind::NotFound)
        );
        assert_eq!(
            asked.get(),
            1,
            "reading a process that is gone is not retried"
        );
    }

    #[test]
    fn the_kernel_knows_living_processes_only() {
        assert!(exists(std::process::id()));
        assert!(exists(1));
        assert!(!exists(0));
        assert!(!exists(i32::MAX as u32));
    }

    #[test]
    fn the_environment_of_a_process_whose_first_thread_has_ended_is_read() {
        const NAME: &str = "KENNEL_TEST_WITHOUT_FIRST_THREAD";
        extern "C" fn end_this_thread(_: libc::c_int) {
            // SAFETY: ends the thread that got the signal, and no other.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        if std::env::var_os(NAME).is_some() {
            let pid = std::process::id();
            // SAFETY: the handler makes one system call. The first thread waits for this one, which does not end.
            unsafe {
                let handler = end_this_thread as extern "C" fn(libc::c_int);
                libc::signal(libc::SIGUSR2, handler as libc::sighandler_t);
                libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGUSR2);
            }
            loop {
                std::thread::park();
            }
        }
        let test = "linux::procfs::tests::the_environment_of_a_process_whose_first_thread_has_ended_is_read";
        let mut child = std::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", test, "--include-ignored"])
            .env(NAME, "a value")
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("this program");
        let pid = child.id();
        kennel_testkit::wait_for("its first thread to end", || {
            let stat = stat(pid).ok()?;
            (stat.zombie && stat.threads > 1).then_some(())
        });
        let value = environ_value(pid, NAME);
        let has = environ_has(pid, &format!("{NAME}=a value"));
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert_eq!(value.expect("it can be read"), Some(b"a value".to_vec()));
        assert!(has);
    }

    #[test]
    fn our_own_start_is_in_the_past() {
        let stat = stat(std::process::id()).expect("we are here");
        assert!(stat.start <= now_in_ticks());
        assert!(!stat.ended());
    }
}
