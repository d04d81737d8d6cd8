//! What this crate asks of a platform: a folder such as `linux` provides each function of this table, with these types.
//!
//! The last column is the answer on a platform that is not served: that it is [`unsupported`], or that nothing can be seen.
//! Types, which have values only on a platform that is served, are in `unserved`.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal};

use crate::confinement::Confinement;
use crate::fs::FileId;
use crate::kernel::Features;
use crate::net::{Query, TcpSocket};
use crate::orphans::{Ended, Orphan};
use crate::process::{ProcessRef, ProcessStat, ProcessWork};

#[cfg(all(target_os = "linux", not(kennel_unserved)))]
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $type:ty = $unserved:expr;)*) => {
        $(const _: fn($($argument),*) -> $type = crate::os::$name;)*
    };
}

#[cfg(any(not(target_os = "linux"), kennel_unserved))]
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $type:ty = $unserved:expr;)*) => {
        $(
            /// Not served here.
            pub fn $name($(_: $argument),*) -> $type { $unserved }
        )*
    };
}

/// The access mode of a descriptor of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessMode {
    Read,
    Write,
}

/// A living process that took a lock.
pub(crate) struct LockOwner {
    pub(crate) process: ProcessRef,
    /// Whether a descriptor with the lock was seen. If we may not see its files, the kernel only gives a pid, which may be
    /// reused.
    pub(crate) proven: bool,
}

/// The answer of a platform that is not served.
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
pub(crate) fn unsupported<T>() -> io::Result<T> {
    let words = "kennel does not serve this platform yet";
    Err(io::Error::new(io::ErrorKind::Unsupported, words))
}

functions! {
    require_served() -> io::Result<()> = unsupported();
    probe_features() -> Features = Features::NONE;

    boot_id() -> Option<u128> = None;
    pid_namespace() -> Option<u64> = None;
    open_process(u32) -> io::Result<OwnedFd> = unsupported();
    unique_of(BorrowedFd<'_>, bool) -> io::Result<Option<u64>> = unsupported();
    exited(BorrowedFd<'_>) -> bool = false;
    wait_exit(BorrowedFd<'_>, Option<Duration>) -> io::Result<bool> = unsupported();
    send_signal(BorrowedFd<'_>, Signal) -> io::Result<bool> = unsupported();
    pid_of(u32) -> io::Result<Pid> = unsupported();
    exists(u32) -> bool = false;
    stat(u32) -> io::Result<ProcessStat> = unsupported();
    work(u32) -> Option<ProcessWork> = None;
    now_in_ticks() -> u64 = 0;
    elapsed_since(u64) -> Duration = Duration::ZERO;
    visible_pid(u32) -> u32 = 0;
    processes() -> io::Result<Vec<u32>> = unsupported();
    newest_pid() -> io::Result<u32> = unsupported();
    children(u32) -> io::Result<Vec<u32>> = unsupported();
    children_of_this_process() -> io::Result<Vec<u32>> = unsupported();
    thread_count_of_this_process() -> io::Result<usize> = unsupported();
    thread_group(u32) -> io::Result<Option<u32>> = unsupported();
    tracer_of(u32) -> io::Result<Option<u32>> = unsupported();
    session_of(u32) -> Option<u32> = None;
    user_of(u32) -> io::Result<u32> = unsupported();
    resident(u32) -> u64 = 0;
    command_name(u32) -> Option<String> = None;
    command_line(u32) -> Option<Vec<String>> = None;
    environ_value(u32, &str) -> io::Result<Option<Vec<u8>>> = unsupported();
    is_reaper(u32) -> bool = false;
    started_by_service_manager(u32) -> bool = false;
    find_orphans(Option<&str>) -> io::Result<Vec<Orphan>> = unsupported();
    end_orphans(&[Orphan], Duration) -> io::Result<Vec<Ended>> = unsupported();
    is_kennel(u32) -> bool = false;
    has_own_proc() -> bool = false;
    confinement(&str, bool, Option<&Confinement>) -> io::Result<Confinement> = unsupported();

    fd_identity(u32, u32) -> io::Result<(u64, u64)> = unsupported();
    stream_identity(u32, u32) -> Option<(u64, u64)> = None;
    holds_file(u32, &[(u64, u64)]) -> io::Result<bool> = unsupported();
    holds_file_with(u32, (u64, u64), AccessMode) -> io::Result<bool> = unsupported();

    sockets_of(u32) -> io::Result<Vec<u64>> = unsupported();
    tcp_sockets(&Query) -> io::Result<Vec<TcpSocket>> = unsupported();
    listening_in_namespace_of(u32) -> io::Result<HashSet<u64>> = unsupported();
    network_namespace_of(&str) -> io::Result<u64> = unsupported();
    peer_process(BorrowedFd<'_>) -> io::Result<OwnedFd> = unsupported();
    peer_credentials(BorrowedFd<'_>) -> io::Result<(u32, u32)> = unsupported();
    descriptors_allowed(BorrowedFd<'_>) -> io::Result<bool> = unsupported();
    allow_descriptors(BorrowedFd<'_>, bool) -> io::Result<()> = unsupported();

    pipe_size(BorrowedFd<'_>) -> Option<usize> = None;
    set_pipe_size(BorrowedFd<'_>, usize) -> bool = false;
    buffer_size(BorrowedFd<'_>) -> Option<usize> = None;
    set_buffer_size(BorrowedFd<'_>, usize) -> bool = false;
    unread_by_peer(BorrowedFd<'_>) -> Option<usize> = None;

    message_channel() -> io::Result<(OwnedFd, OwnedFd)> = unsupported();
    send(BorrowedFd<'_>, &[u8], SendFlags) -> Result<usize, Errno> = Err(Errno::NOSYS);

    is_subreaper() -> bool = false;
    set_subreaper(bool) -> io::Result<()> = unsupported();
    die_with_parent() -> io::Result<()> = unsupported();
    outlive_parent() -> io::Result<()> = unsupported();
    is_first_thread() -> bool = true;
    close_at_exec_from(u32) -> io::Result<()> = unsupported();
    set_process_name(&CStr) -> () = ();
    errno() -> i32 = 0;
    set_errno(i32) -> () = ();
    this_program() -> PathBuf = std::env::current_exe().unwrap_or_default();
    fill_random(&mut [u8]) -> io::Result<()> = unsupported();

    open_entry(BorrowedFd<'_>, &OsStr) -> Result<OwnedFd, Errno> = Err(Errno::NOSYS);
    open_dir_of_same_mount(BorrowedFd<'_>, &OsStr) -> io::Result<OwnedFd> = unsupported();
    reopen(BorrowedFd<'_>, OFlags) -> Result<OwnedFd, Errno> = Err(Errno::NOSYS);
    reopen_to_read(BorrowedFd<'_>) -> io::Result<OwnedFd> = unsupported();
    reopen_to_write(BorrowedFd<'_>) -> io::Result<OwnedFd> = unsupported();
    stdout_was_closed() -> bool = false;
    write_without_waiting(BorrowedFd<'_>, &[u8]) -> io::Result<usize> = unsupported();
    anonymous_file(&str) -> io::Result<OwnedFd> = unsupported();
    chmod_entry(BorrowedFd<'_>, Mode) -> Result<(), Errno> = Err(Errno::NOSYS);
    descriptor_path(BorrowedFd<'_>) -> String = String::new();
    exchange(BorrowedFd<'_>, &OsStr, &OsStr) -> io::Result<()> = unsupported();
    copy_attributes(BorrowedFd<'_>, BorrowedFd<'_>) -> Result<(), (String, io::Error)> =
        unsupported().map_err(|error| (String::new(), error));

    holds_lock(&ProcessRef, FileId) -> Option<bool> = None;
    holds_lock_by(&ProcessRef, u32, FileId) -> bool = false;
    holds_any_lock(&ProcessRef, &dyn Fn(FileId, &Path) -> bool) -> bool = false;
    lock_owners(FileId) -> Vec<LockOwner> = Vec::new();
    lock_holders(FileId, &dyn Fn(u32) -> bool) -> Box<dyn Iterator<Item = ProcessRef> + '_> =
        Box::new(std::iter::empty());

    in_large_pages(&mut [MaybeUninit<u8>]) -> () = ();
    release_free_memory() -> () = ();
    release_large_blocks() -> () = ();

    has_waiting_connections(&[u64]) -> bool = false;
    listens_at(&Path, &ProcessRef) -> io::Result<bool> = unsupported();
    ephemeral_ports() -> std::ops::RangeInclusive<u16> = 0..=u16::MAX;
    mount_points() -> Vec<PathBuf> = Vec::new();
}
