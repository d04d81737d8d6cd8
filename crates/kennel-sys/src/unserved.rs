//! A platform that is not served yet: the functions that the rest of the crate asks of one kernel. Each answers
//! `Unsupported`, or that nothing can be seen; so no process, tree, lock or runtime directory is ever made. Nothing here
//! pretends.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal};

use crate::confinement::Confinement;
use crate::kernel::Features;
use crate::net::{Query, Row};
use crate::process::{ProcessRef, ProcessStat};

fn unsupported<T>() -> io::Result<T> {
    let words = "kennel does not serve this platform yet";
    Err(io::Error::new(io::ErrorKind::Unsupported, words))
}

/// Of this type there is no value.
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
    now_in_ticks() -> u64 = 0;
    since(u64) -> Duration = Duration::ZERO;
    seen_in_proc(u32) -> u32 = 0;
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
    environ_has(u32, &str) -> bool = false;
    is_kennel(u32) -> bool = false;
    has_own_proc() -> bool = false;
    confinement(&str, bool, Option<&Confinement>) -> io::Result<Confinement> = unsupported();

    fd_identity(u32, u32) -> io::Result<(u64, u64)> = unsupported();
    stream_identity(u32, u32) -> Option<(u64, u64)> = None;
    holds_file(u32, &[(u64, u64)]) -> io::Result<bool> = unsupported();
    holds_file_with(u32, (u64, u64), Access) -> io::Result<bool> = unsupported();

    sockets_of(u32) -> io::Result<Vec<u64>> = unsupported();
    tcp_sockets(&Query) -> io::Result<Vec<Row>> = unsupported();
    listening_in_namespace_of(u32) -> io::Result<HashSet<u64>> = unsupported();
    network_namespace_of(&str) -> io::Result<u64> = unsupported();
    peer_process(BorrowedFd<'_>) -> io::Result<OwnedFd> = unsupported();
    peer_credentials(BorrowedFd<'_>) -> io::Result<(u32, u32)> = unsupported();
    may_pass_descriptors(BorrowedFd<'_>) -> io::Result<bool> = unsupported();
    let_pass_descriptors(BorrowedFd<'_>, bool) -> io::Result<()> = unsupported();

    message_channel() -> io::Result<(OwnedFd, OwnedFd)> = unsupported();
    send(BorrowedFd<'_>, &[u8], SendFlags) -> Result<usize, Errno> = Err(Errno::NOSYS);

    is_subreaper() -> bool = false;
    set_subreaper(bool) -> io::Result<()> = unsupported();
    die_with_parent() -> io::Result<()> = unsupported();
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
    write_without_waiting(BorrowedFd<'_>, &[u8]) -> io::Result<usize> = unsupported();
    chmod_entry(BorrowedFd<'_>, Mode) -> Result<(), Errno> = Err(Errno::NOSYS);
    descriptor_path(BorrowedFd<'_>) -> String = String::new();
    exchange(BorrowedFd<'_>, &OsStr, &OsStr) -> io::Result<()> = unsupported();
    copy_attributes(BorrowedFd<'_>, BorrowedFd<'_>) -> Result<(), (String, io::Error)> =
        unsupported().map_err(|error| (String::new(), error));
}

/// Unsupported.
pub fn listens_at(_: &Path, _: &ProcessRef) -> io::Result<bool> {
    unsupported()
}

/// Not known.
pub fn ephemeral_ports() -> std::ops::RangeInclusive<u16> {
    0..=u16::MAX
}

/// Not known.
pub fn mount_points() -> Vec<PathBuf> {
    Vec::new()
}

/// Not known.
pub const SYSTEM_DIRECTORIES: &[&str] = &[];
/// Not known.
pub const SHARED_DIRECTORIES: &[&str] = &[];

/// What a descriptor of another process is used for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Sockets and their peers.
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

/// Unix sockets: none that could be seen.
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

macro_rules! wakers {
    ($($(#[$doc:meta])* $name:ident::$make:ident($($made_of:ty)?), $method:ident($($argument:ty)?);)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name(Never);

            impl $name {
                /// Unsupported.
                pub fn $make($(_: $made_of)?) -> io::Result<$name> {
                    unsupported()
                }
                /// There is none to do this.
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
    /// Wakes a sleeper from another thread.
    Bell::new(), ring();
    /// Wakes a sleeper when it is time.
    Alarm::new(), set(Option<Duration>);
    /// Changes of the files in a directory.
    DirChanges::watch(&Path), clear();
}

impl Bell {
    /// Silences it.
    pub fn quiet(&self) {
        match self.0 {}
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        match self.0 {}
    }
}

/// Who holds a lock: nobody that could be seen.
pub(crate) mod file_locks {
    use std::path::Path;

    use crate::fs::FileId;
    use crate::process::ProcessRef;

    /// A living process that took a lock.
    pub(crate) struct Taker {
        pub(crate) process: ProcessRef,
        pub(crate) proven: bool,
    }

    functions! {
        holds(&ProcessRef, FileId) -> Option<bool> = None;
        holds_by(&ProcessRef, u32, FileId) -> bool = false;
        holds_any(&ProcessRef, impl Fn(FileId, &Path) -> bool) -> bool = false;
        takers(FileId) -> Vec<Taker> = Vec::new();
        heirs(FileId, impl Fn(u32) -> bool) -> impl Iterator<Item = ProcessRef> =
            std::iter::empty();
    }
}

/// Memory for what is long.
pub mod memory {
    /// Nothing is asked for here.
    pub fn in_large_pages(_: &mut [std::mem::MaybeUninit<u8>]) {}

    /// Does nothing.
    pub fn give_back_free() {}

    /// Does nothing.
    pub fn return_large() {}
}

/// Servers nobody can talk to any more.
pub mod orphans {
    use std::io;
    use std::time::Duration;

    use super::unsupported;
    use crate::process::ProcessRef;

    /// A server nobody can talk to.
    #[derive(Debug)]
    pub struct Orphan {
        /// The server.
        pub process: ProcessRef,
        /// What is below it.
        pub below: Vec<ProcessRef>,
        /// What proves it.
        pub evidence: Evidence,
        /// Reasons to spare it.
        pub doubts: Vec<String>,
        /// Whether root sees more.
        pub hidden: bool,
        /// What it was started as.
        pub command: Vec<String>,
        /// Its memory in bytes.
        pub memory: u64,
        /// How long ago it was started.
        pub age: Duration,
        /// Whose it is.
        pub user: Option<u32>,
    }

    /// What proves that nobody can talk to a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Evidence {
        /// Who adopted it.
        pub adopted_by: u32,
        /// Nobody can write to its stdin.
        pub no_writer: bool,
        /// Nobody can read its stdout.
        pub no_reader: bool,
    }

    /// What was done.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Ended {
        /// Gone.
        pub gone: usize,
        /// Left.
        pub left: usize,
    }

    impl Orphan {
        /// There is no orphan here.
        pub fn is_certain(&self) -> bool {
            false
        }
    }

    /// Unsupported.
    pub fn end(_orphans: &[Orphan], _after_term: Duration) -> io::Result<Vec<Ended>> {
        unsupported()
    }
    /// Unsupported.
    pub fn find(_only: Option<&str>) -> io::Result<Vec<Orphan>> {
        unsupported()
    }
}
