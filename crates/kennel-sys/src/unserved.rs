//! A platform that is not served yet. The types and functions are those of `linux`; whatever would make
//! one of the types answers `Unsupported`. So no value of them ever exists, which the compiler knows:
//! what is done with such a value needs no code. Nothing here pretends.

use std::io;

/// Of this type there is no value.
#[derive(Debug, Clone, Copy)]
enum Never {}

fn unsupported<T>() -> io::Result<T> {
    let words = "kennel does not serve this platform yet";
    Err(io::Error::new(io::ErrorKind::Unsupported, words))
}

/// What the modules for all Unix systems ask of one kernel.
pub(crate) mod os {
    use std::ffi::OsStr;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::path::{Path, PathBuf};

    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;

    use super::{Never, unsupported};

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

        pub(crate) fn holds(_: &ProcessRef, _: FileId) -> Option<bool> {
            None
        }
        pub(crate) fn holds_by(_: &ProcessRef, _: u32, _: FileId) -> bool {
            false
        }
        pub(crate) fn holds_any(_: &ProcessRef, _: impl Fn(FileId, &Path) -> bool) -> bool {
            false
        }
        pub(crate) fn takers(_: FileId) -> Vec<Taker> {
            Vec::new()
        }
        pub(crate) fn heirs(
            _: FileId,
            _: impl Fn(u32) -> bool,
        ) -> impl Iterator<Item = ProcessRef> {
            std::iter::empty()
        }
    }

    /// Not known.
    pub const SYSTEM_DIRECTORIES: &[&str] = &[];
    /// Not known.
    pub const SHARED_DIRECTORIES: &[&str] = &[];

    pub(crate) fn require_served() -> io::Result<()> {
        unsupported()
    }
    pub(crate) fn thread_count_of_this_process() -> io::Result<usize> {
        unsupported()
    }
    pub(crate) fn errno() -> i32 {
        0
    }
    pub(crate) fn set_errno(_: i32) {}
    pub(crate) fn open_entry(_: BorrowedFd<'_>, _: &OsStr) -> Result<OwnedFd, Errno> {
        Err(Errno::NOSYS)
    }
    pub(crate) fn reopen(_: BorrowedFd<'_>, _: OFlags) -> Result<OwnedFd, Errno> {
        Err(Errno::NOSYS)
    }
    pub(crate) fn chmod_entry(_: BorrowedFd<'_>, _: Mode) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }
    pub(crate) fn open_dir_of_same_mount(_: BorrowedFd<'_>, _: &OsStr) -> io::Result<OwnedFd> {
        unsupported()
    }
    pub(crate) fn exchange(_: BorrowedFd<'_>, _: &OsStr, _: &OsStr) -> io::Result<()> {
        unsupported()
    }
    pub(crate) fn copy_attributes(
        _: BorrowedFd<'_>,
        _: BorrowedFd<'_>,
    ) -> Result<(), (String, io::Error)> {
        unsupported().map_err(|error| (String::new(), error))
    }
    /// Not known.
    pub fn mount_points() -> Vec<PathBuf> {
        Vec::new()
    }
    pub(crate) fn reopen_to_read(_: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        unsupported()
    }
    pub(crate) fn reopen_to_write(_: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        unsupported()
    }
    pub(crate) fn write_without_waiting(_: BorrowedFd<'_>, _: &[u8]) -> io::Result<usize> {
        unsupported()
    }
    pub(crate) fn fill_random(_: &mut [u8]) -> io::Result<()> {
        unsupported()
    }
    pub(crate) fn this_program() -> PathBuf {
        std::env::current_exe().unwrap_or_default()
    }

    /// Changes of the files in a directory.
    #[derive(Debug)]
    pub struct DirChanges(Never);

    impl DirChanges {
        /// Unsupported.
        pub fn watch(_: &Path) -> io::Result<DirChanges> {
            unsupported()
        }
        /// Forgets the changes so far.
        pub fn clear(&self) {
            match self.0 {}
        }
    }

    impl AsFd for DirChanges {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
    }
}

/// What keeps a process from doing what other processes of its user can do.
pub mod confinement {
    use std::io;

    use super::process::ProcessRef;
    use super::{Never, unsupported};

    /// The facts about one process.
    #[derive(Debug, Clone)]
    pub struct Confinement(Never);

    impl PartialEq for Confinement {
        fn eq(&self, _: &Confinement) -> bool {
            match self.0 {}
        }
    }

    impl Eq for Confinement {}

    impl Confinement {
        /// The confinement of a process.
        pub fn of(_: &ProcessRef, _: &Confinement) -> io::Result<Confinement> {
            unsupported()
        }

        /// The same, and what it starts has it too.
        pub fn of_it_and_its_children(_: &ProcessRef, _: &Confinement) -> io::Result<Confinement> {
            unsupported()
        }

        /// The confinement of this process.
        pub fn of_this_process() -> io::Result<Confinement> {
            unsupported()
        }

        /// Whether it has restrictions that cannot be compared with another's.
        pub fn is_filtered(&self) -> bool {
            match self.0 {}
        }

        /// Whether it can do all that a process with `other`'s confinement can.
        pub fn is_as_free_as(&self, _: &Confinement) -> bool {
            match self.0 {}
        }

        /// The facts as text.
        pub fn facts(&self) -> Vec<String> {
            match self.0 {}
        }

        /// The inode of a namespace.
        pub fn namespace(&self, _: &str) -> Option<u64> {
            match self.0 {}
        }
    }
}

/// Descriptors that a peer passes.
pub mod passing {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};

    /// Whether a peer can pass descriptors to a socket.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Passing {
        /// It cannot, and never could.
        Refused,
        /// It cannot from now on.
        RefusedFromNow,
        /// It can.
        Possible,
    }

    /// Refuses nothing here.
    pub fn refuse(_: impl AsFd) -> Passing {
        Passing::Possible
    }

    /// Does nothing.
    pub fn allow(_: impl AsFd) -> io::Result<()> {
        Ok(())
    }

    /// Closes a connection.
    pub fn close(socket: OwnedFd) {
        drop(socket);
    }

    /// Closes descriptors.
    pub fn close_elsewhere(descriptors: Vec<OwnedFd>) {
        drop(descriptors);
    }
}

/// Memory for what is long.
pub mod memory {
    /// Nothing is asked for here.
    pub fn in_large_pages(_: &mut [std::mem::MaybeUninit<u8>]) {}

    /// Does nothing.
    pub fn give_back_free() {}
}

/// Servers nobody can talk to any more.
pub mod orphans {
    use std::io;
    use std::time::Duration;

    use super::process::ProcessRef;
    use super::unsupported;

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

/// Becoming another program and staying the same process.
pub mod handover {
    use std::ffi::OsStr;
    use std::io;
    use std::os::fd::{BorrowedFd, RawFd};

    use super::unsupported;

    /// Unsupported.
    pub fn exec(_program: BorrowedFd<'_>, _arguments: &[&OsStr], _handed: &[RawFd]) -> io::Error {
        match unsupported() {
            Err(error) => error,
            Ok(()) => io::ErrorKind::Unsupported.into(),
        }
    }
    /// Nothing waits here.
    pub fn hold_signals() {}
    /// Nothing waits here.
    pub fn hear_signals() {}
    /// Nothing to carry.
    pub fn carried() -> String {
        String::new()
    }
    /// Unsupported.
    pub fn resume(_word: &str) -> io::Result<()> {
        unsupported()
    }
}

/// Starting a process that is nobody's.
pub mod detach {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd, RawFd};
    use std::process::Command;

    use super::unsupported;

    /// Unsupported.
    pub fn spawn(_command: Command, _handed: &[impl AsFd]) -> io::Result<()> {
        unsupported()
    }
    /// Nothing is handed over here.
    pub fn number_of(_handed: &impl AsFd) -> String {
        String::new()
    }
    /// What a descriptor must be.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Kind {
        /// A regular file.
        File,
        /// A directory.
        Directory,
        /// One end of a pipe.
        Pipe,
        /// A socket.
        Socket,
        /// A process.
        Process,
    }

    /// Unsupported.
    pub fn adopt(_fd: RawFd, _kind: Kind) -> io::Result<OwnedFd> {
        unsupported()
    }
}

/// A process as a reference.
pub mod process {
    use std::ffi::OsStr;
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use super::{Never, unsupported};
    use crate::Signal;
    pub use crate::identity::{Identity, ParseIdentityError};

    /// Unknown here.
    pub fn find_running(_: &OsStr, _: &str, _: &OsStr) -> Option<u32> {
        None
    }
    /// Unknown here.
    pub fn resident_memory(_: u32) -> Option<u64> {
        None
    }
    /// Unsupported.
    pub fn children(_: u32) -> io::Result<Vec<ProcessRef>> {
        unsupported()
    }

    /// A reference to one process.
    #[derive(Debug)]
    pub struct ProcessRef(Never);

    impl ProcessRef {
        /// Unsupported.
        pub fn open(_pid: u32) -> io::Result<ProcessRef> {
            unsupported()
        }
        /// Unsupported.
        pub fn of_thread(_task: u32) -> io::Result<ProcessRef> {
            unsupported()
        }
        /// Unsupported.
        pub fn me() -> io::Result<ProcessRef> {
            unsupported()
        }
        /// Unsupported.
        pub fn my_identity() -> io::Result<Identity> {
            unsupported()
        }
        /// Unsupported.
        pub fn parent() -> io::Result<Option<ProcessRef>> {
            unsupported()
        }
        /// Unsupported.
        pub fn parent_of(_child: &ProcessRef) -> io::Result<Option<ProcessRef>> {
            unsupported()
        }
        /// Unsupported.
        pub fn find(_identity: &Identity) -> io::Result<Option<ProcessRef>> {
            unsupported()
        }
        /// Its pid.
        pub fn pid(&self) -> u32 {
            match self.0 {}
        }
        /// Who it is.
        pub fn identity(&self) -> &Identity {
            match self.0 {}
        }
        /// Whether it still runs.
        pub fn is_alive(&self) -> bool {
            match self.0 {}
        }
        /// How long ago it was started.
        pub fn age(&self) -> Option<Duration> {
            match self.0 {}
        }
        /// What its program calls itself.
        pub fn name(&self) -> Option<String> {
            match self.0 {}
        }
        /// What it was started as.
        pub fn command_line(&self) -> Option<Vec<String>> {
            match self.0 {}
        }
        /// Readable once it has ended.
        pub fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
            match self.0 {}
        }
        /// Blocks until it has ended.
        pub fn wait(&self, _timeout: Option<Duration>) -> io::Result<bool> {
            match self.0 {}
        }
        /// Sends it a signal.
        pub fn signal(&self, _signal: Signal) -> io::Result<bool> {
            match self.0 {}
        }
    }
}

/// Who started us.
pub mod starter {
    use std::ffi::OsStr;
    use std::io;

    use super::process::ProcessRef;
    use super::unsupported;

    /// Why a process is watched.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Role {
        /// It is our parent.
        Parent,
        /// It is the app behind the launchers.
        App,
        /// It made the socket that is our stdin.
        StdinPeer,
    }

    /// A process whose end is our end.
    #[derive(Debug)]
    pub struct Watched {
        /// Why it is watched.
        pub role: Role,
        /// The process.
        pub process: ProcessRef,
    }

    /// Who is watched.
    #[derive(Debug)]
    pub struct Origin(Vec<Watched>);

    impl std::ops::Deref for Origin {
        type Target = [Watched];

        fn deref(&self) -> &[Watched] {
            &self.0
        }
    }

    impl Origin {
        /// Nobody is watched, so nobody is above.
        pub fn record_ancestors(&mut self) {}
        /// Nobody is watched, so nobody ends.
        pub fn outlive_ended(&mut self) -> Result<(), Role> {
            Ok(())
        }
    }

    /// What a look at our origin found.
    #[derive(Debug)]
    pub enum Starter {
        /// Watch these.
        Watch(Origin),
        /// Gone already.
        Gone(Role),
        /// Nobody to watch.
        Nobody,
    }

    /// Unsupported.
    pub fn capture() -> io::Result<Starter> {
        unsupported()
    }

    /// Whether the switch leaves the watch on.
    pub fn watch_enabled(_switch: Option<&OsStr>) -> bool {
        true
    }
}

/// Sleeping until something happens.
pub mod events {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
    use std::time::Duration;

    use super::process::ProcessRef;
    use super::{Never, unsupported};

    /// Unsupported.
    pub fn sleep(
        _fds: &[BorrowedFd<'_>],
        _processes: &[&ProcessRef],
        _timeout: Option<Duration>,
    ) -> io::Result<()> {
        unsupported()
    }

    /// What can wake a sleeper.
    pub trait Source: AsFd {}

    impl<T: AsFd> Source for T {}

    /// Unsupported.
    pub fn wait(
        _sources: &[&dyn Source],
        _processes: &[&ProcessRef],
        _timeout: Option<Duration>,
    ) -> io::Result<()> {
        unsupported()
    }

    /// Unknown here.
    pub fn is_readable(_source: &dyn Source) -> bool {
        false
    }

    /// Wakes a sleeper.
    #[derive(Debug)]
    pub struct Bell(Never);

    impl Bell {
        /// Unsupported.
        pub fn new() -> io::Result<Bell> {
            unsupported()
        }
        /// Wakes whoever sleeps on it.
        pub fn ring(&self) {
            match self.0 {}
        }
        /// Silences it.
        pub fn quiet(&self) {
            match self.0 {}
        }
    }

    impl AsFd for Bell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
    }

    /// Wakes a sleeper when it is time.
    #[derive(Debug)]
    pub struct Alarm(Never);

    impl Alarm {
        /// Unsupported.
        pub fn new() -> io::Result<Alarm> {
            unsupported()
        }
        /// Rings after this time.
        pub fn set(&self, _after: Option<Duration>) {
            match self.0 {}
        }
    }

    impl AsFd for Alarm {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
    }

    impl AsRawFd for Alarm {
        fn as_raw_fd(&self) -> RawFd {
            match self.0 {}
        }
    }
}

/// Who listens on a port, and who is connected to it.
pub mod net {
    use std::io;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::time::Duration;

    use super::process::ProcessRef;
    use super::unsupported;

    /// A socket that takes connections.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Listener {
        /// Where it listens.
        pub address: SocketAddr,
        /// The socket's inode.
        pub inode: u64,
        /// Whose it is.
        pub uid: u32,
    }

    /// An established connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Connection {
        /// The address that was connected to.
        pub local: SocketAddr,
        /// Where it came from.
        pub peer: SocketAddr,
        /// The inode of its socket.
        pub inode: u64,
        /// The inode of the peer's socket.
        pub peer_inode: Option<u64>,
    }

    /// A connection that ended a moment ago.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Closed {
        /// The address that was connected to.
        pub address: SocketAddr,
        /// How long ago it closed.
        pub ago: Duration,
        /// Whether the client remembers it.
        pub by_client: bool,
    }

    /// Unsupported.
    pub fn listeners() -> io::Result<Vec<Listener>> {
        unsupported()
    }

    /// Unsupported.
    pub fn connections(_ports: &[u16]) -> io::Result<Vec<Connection>> {
        unsupported()
    }

    /// Unsupported.
    pub fn closed(_ports: &[u16]) -> io::Result<Vec<Closed>> {
        unsupported()
    }

    /// Nobody listens.
    pub fn reached(_all: &[Listener], _address: SocketAddr, _as_client: bool) -> Vec<&Listener> {
        Vec::new()
    }

    /// Unsupported.
    pub fn holders(_inodes: &[u64]) -> io::Result<Vec<ProcessRef>> {
        unsupported()
    }

    /// Unsupported.
    pub fn listens_at(_path: &Path, _process: &ProcessRef) -> io::Result<bool> {
        unsupported()
    }

    /// Unsupported.
    pub fn sockets_of(_process: &ProcessRef) -> io::Result<Vec<u64>> {
        unsupported()
    }

    /// Unsupported.
    pub fn unix_connections_wait(_process: &ProcessRef) -> io::Result<bool> {
        unsupported()
    }
}

/// One server with all its descendants.
pub mod tree {
    use std::ffi::OsString;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::path::PathBuf;
    use std::time::Duration;

    use super::process::{Identity, ProcessRef};
    use super::{Never, unsupported};
    pub use crate::detached::{Detached, Reason, UnknownDetached};

    /// How long each rung of the stop ladder lasts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ladder {
        /// After stdin was closed.
        pub after_eof: Duration,
        /// After SIGTERM.
        pub after_term: Duration,
    }

    /// What to start, and how.
    #[derive(Debug)]
    pub struct Launch<'a> {
        /// The server.
        pub server: Vec<OsString>,
        /// The warden.
        pub warden: Vec<OsString>,
        /// The server's stdio.
        pub stdio: [OwnedFd; 3],
        /// The environment.
        pub env: Option<Vec<(OsString, OsString)>>,
        /// The working directory.
        pub cwd: Option<PathBuf>,
        /// How the tree is ended.
        pub ladder: Ladder,
        /// Which detached services outlive the tree.
        pub detached: Detached,
        /// The directory for its record.
        pub records: Option<BorrowedFd<'a>>,
    }

    impl Launch<'_> {
        /// Unsupported.
        pub fn start(self) -> io::Result<Tree> {
            unsupported()
        }
        /// Unsupported.
        pub fn start_recorded(self) -> io::Result<Tree> {
            unsupported()
        }
    }

    /// A server under its warden.
    #[derive(Debug)]
    pub struct Tree(Never);

    /// What a warden reports.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Report {
        /// The server runs.
        Started {
            /// The direct child.
            pid: u32,
            /// Who that is.
            identity: Option<Identity>,
        },
        /// The server could not be started.
        Refused(i32),
        /// The record could not be written.
        NotRecorded(i32),
        /// The direct child ended.
        Exited(Exit),
        /// Nothing is left.
        Empty,
    }

    /// How the direct child ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Exit {
        /// With this code.
        Code(i32),
        /// By this signal.
        Signal(i32),
    }

    impl Tree {
        /// Reaps the warden.
        pub fn reap(&self) -> io::Result<()> {
            match self.0 {}
        }
        /// Unsupported.
        pub fn taken_over(_control: OwnedFd, _warden: u32) -> io::Result<Tree> {
            unsupported()
        }
        /// The warden.
        pub fn warden(&self) -> &ProcessRef {
            match self.0 {}
        }
        /// Asks for the ladder.
        pub fn stop(&self) -> io::Result<()> {
            match self.0 {}
        }
        /// The next report.
        pub fn next_report(&self) -> io::Result<Option<Report>> {
            match self.0 {}
        }
        /// Blocks until the warden has ended.
        pub fn wait(&mut self) -> io::Result<()> {
            match self.0 {}
        }
        /// The process of this server that is stopped.
        pub fn stopped(&self) -> io::Result<Option<Stopped>> {
            match self.0 {}
        }
        /// Whether the warden has ended.
        pub fn ended(&mut self) -> io::Result<bool> {
            match self.0 {}
        }
    }

    impl AsFd for Tree {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
    }

    /// Unsupported.
    pub fn become_subreaper() -> io::Result<()> {
        unsupported()
    }

    /// Unsupported.
    pub fn find_leftovers(_dir: impl AsFd) -> io::Result<Vec<ProcessRef>> {
        unsupported()
    }

    /// Unsupported.
    pub fn end_strays(_known: &[u32], _records: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        unsupported()
    }

    /// Nobody is kept.
    pub fn reap_kept(_known: &[u32]) {}

    /// A detached service that outlived its tree.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Kept {
        /// The service.
        pub identity: Identity,
        /// Why it was kept.
        pub reason: Reason,
        /// The name of its program.
        pub command: String,
        /// When its tree ended.
        pub since: u64,
        /// The cookie of its tree.
        pub tree: Option<String>,
    }

    impl Kept {
        /// Nobody is.
        pub fn is_confirmed(&self) -> bool {
            false
        }
        /// Unsupported.
        pub fn process_to_end(&self) -> io::Result<Option<ProcessRef>> {
            unsupported()
        }
    }

    /// Unsupported.
    pub fn kept(_dir: impl AsFd) -> io::Result<Vec<Kept>> {
        unsupported()
    }

    /// Unsupported.
    pub fn end_kept(_dir: impl AsFd, _service: &Kept, _after_term: Duration) -> io::Result<bool> {
        unsupported()
    }

    /// Unsupported.
    pub fn below(_root: &ProcessRef) -> io::Result<Vec<ProcessRef>> {
        unsupported()
    }

    /// A process tree that is on record.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Recorded {
        /// Whom its warden serves.
        pub served: Identity,
        /// The warden.
        pub warden: Identity,
        /// The pid of its first process.
        pub first: u32,
    }

    /// Unsupported.
    pub fn recorded(_dir: impl AsFd) -> io::Result<Vec<Recorded>> {
        unsupported()
    }

    /// Who is below whom: nobody can be looked at.
    #[derive(Debug)]
    pub struct Families(());

    impl Families {
        /// Unsupported.
        pub fn now() -> io::Result<Families> {
            unsupported()
        }

        /// Nobody.
        pub fn children(&self, _pid: u32) -> Vec<u32> {
            Vec::new()
        }

        /// The process alone.
        pub fn of(&self, pid: u32) -> Vec<u32> {
            vec![pid]
        }
    }

    /// A process of a server that is stopped.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Stopped {
        /// Its pid.
        pub pid: u32,
        /// The debugger that traces it, if one does.
        pub tracer: Option<u32>,
    }

    /// Nobody.
    pub fn stopped(_tops: &[u32], _families: &Families) -> Option<Stopped> {
        None
    }

    /// No warden here: 1, as for anything that failed.
    pub fn warden_main(_arguments: impl IntoIterator<Item = OsString>) -> u8 {
        1
    }
}
