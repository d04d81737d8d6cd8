//! The backend of a platform that is not served yet. Each function returns `Unsupported`, or that nothing can be seen, so
//! no process, tree, lock or runtime directory is ever created.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal};

use crate::confinement::Confinement;
use crate::io::{Event, Interest, Token, Wait};
use crate::kernel::Features;
use crate::net::{Query, TcpSocket};
use crate::orphans::{Ended, Orphan};
use crate::process::{ProcessRef, ProcessStat, ProcessWork};

fn unsupported<T>() -> io::Result<T> {
    let words = "kennel does not serve this platform yet";
    Err(io::Error::new(io::ErrorKind::Unsupported, words))
}

/// A type without values.
#[derive(Debug, Clone, Copy)]
enum Never {}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $type:ty = $answer:expr;)*) => {
        $(pub(crate) fn $name($(_: $argument),*) -> $type { $answer })*
    };
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
    since(u64) -> Duration = Duration::ZERO;
    visible_pid(u32) -> u32 = 0;
    processes() -> io::Result<Vec<u32>> = unsupported();
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
    holds_file_with(u32, (u64, u64), Access) -> io::Result<bool> = unsupported();

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
}

/// Not supported.
pub fn listens_at(_: &Path, _: &ProcessRef) -> io::Result<bool> {
    unsupported()
}

/// The ports are unknown.
pub fn ephemeral_ports() -> std::ops::RangeInclusive<u16> {
    0..=u16::MAX
}

/// The mount points are unknown.
pub fn mount_points() -> Vec<PathBuf> {
    Vec::new()
}

/// The remedy if the processes of this machine cannot be seen.
pub const FIX_FOR_HIDDEN_PROCESSES: &str = "use a platform that kennel serves";
/// Unknown on this platform.
pub const SYSTEM_DIRECTORIES: &[&str] = &[];
/// Unknown on this platform.
pub const SHARED_DIRECTORIES: &[&str] = &[];

/// The access mode of a descriptor of another process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The facts about an orphan.
#[derive(Debug)]
pub(crate) struct OrphanFacts;

/// Connections of sockets.
#[derive(Debug)]
pub(crate) struct Connections(Never);

impl Connections {
    pub(crate) fn now() -> io::Result<Connections> {
        unsupported()
    }
    pub(crate) fn unix_peer_of(&self, _: u64) -> Option<u64> {
        match self.0 {}
    }
    pub(crate) fn has_peer_outside(&self, _: &[u64], _: &HashSet<u64>) -> bool {
        match self.0 {}
    }
}

/// Unix sockets: none can be seen.
pub(crate) struct Sockets;

/// A Unix socket.
pub(crate) struct UnixSocket {
    pub(crate) listening: bool,
    pub(crate) unread: bool,
}

impl Sockets {
    pub(crate) fn all() -> Sockets {
        Sockets
    }
    pub(crate) fn get(&self, _: u64) -> Option<UnixSocket> {
        None
    }
}

/// A search for children, which finds none.
#[derive(Debug, Default)]
pub(crate) struct ChildSearch;

impl ChildSearch {
    pub(crate) fn step(&mut self) -> Vec<u32> {
        Vec::new()
    }
    pub(crate) fn is_complete(&self) -> bool {
        true
    }
}

macro_rules! wakers {
    ($($(#[$doc:meta])* $name:ident::$make:ident($($made_of:ty)?), $method:ident($($argument:ty)?);)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name(Never);

            impl $name {
                /// Not supported.
                pub fn $make($(_: $made_of)?) -> io::Result<$name> {
                    unsupported()
                }
                /// There is no value to call this on.
                pub fn $method(&self $(, _: $argument)?) {
                    match self.0 {}
                }
            }

            impl AsFd for $name {
                fn as_fd(&self) -> BorrowedFd<'_> {
                    match self.0 {}
                }
            }
        )*
    };
}

wakers! {
    /// Wakes a blocked thread from another thread.
    Waker::new(), wake();
    /// Changes of the files in a directory, as an event.
    DirChanges::watch(&Path), clear();
}

impl Waker {
    /// Makes it unreadable again.
    pub fn clear(&self) {
        match self.0 {}
    }
}

/// The state of a reactor: none.
#[derive(Debug)]
pub(crate) struct Poller(Never);

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        unsupported()
    }
    pub(crate) fn add(&self, _: BorrowedFd<'_>, _: Token, _: Interest) -> io::Result<bool> {
        match self.0 {}
    }
    pub(crate) fn change(&self, _: BorrowedFd<'_>, _: Token, _: Interest) -> io::Result<()> {
        match self.0 {}
    }
    pub(crate) fn remove(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        match self.0 {}
    }
    pub(crate) fn cancel_alarm(&self) {
        match self.0 {}
    }
    pub(crate) fn wait(&self, _: Wait, _: &mut Vec<Event>) -> io::Result<bool> {
        match self.0 {}
    }
}

/// The holders of a lock: none can be seen.
pub(crate) mod file_locks {
    use std::path::Path;

    use crate::fs::FileId;
    use crate::process::ProcessRef;

    /// A living process that took a lock.
    pub(crate) struct LockOwner {
        pub(crate) process: ProcessRef,
        pub(crate) proven: bool,
    }

    functions! {
        holds(&ProcessRef, FileId) -> Option<bool> = None;
        holds_by(&ProcessRef, u32, FileId) -> bool = false;
        holds_any(&ProcessRef, impl Fn(FileId, &Path) -> bool) -> bool = false;
        owners_of(FileId) -> Vec<LockOwner> = Vec::new();
        holders(FileId, impl Fn(u32) -> bool) -> impl Iterator<Item = ProcessRef> =
            std::iter::empty();
    }
}

/// Memory hints, which do nothing here.
pub mod memory {
    /// Does nothing.
    pub fn in_large_pages(_: &mut [std::mem::MaybeUninit<u8>]) {}

    /// Does nothing.
    pub fn release_free_memory() {}

    /// Does nothing.
    pub fn release_large_blocks() {}
}
