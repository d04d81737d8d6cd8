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

    use super::{Never, unsupported};

    /// Not known.
    pub const SYSTEM_DIRECTORIES: &[&str] = &[];
    /// Not known.
    pub const SHARED_DIRECTORIES: &[&str] = &[];

    pub(crate) fn open_entry(_: BorrowedFd<'_>, _: &OsStr) -> io::Result<OwnedFd> {
        unsupported()
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

/// Variables that must not travel on.
pub mod env {
    use std::ffi::OsString;

    pub use crate::switch::switch;

    /// What [`take`] found.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Taken {
        /// The variable's value.
        pub value: OsString,
        /// Whether it is out of the environment now. Here it never is.
        pub scrubbed: bool,
    }

    /// Reads a variable; here it stays in the environment.
    pub fn take(name: &str) -> Option<Taken> {
        let value = std::env::var_os(name)?;
        let scrubbed = false;
        Some(Taken { value, scrubbed })
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

/// How many descriptors this process may have.
pub mod limits {
    /// Nothing is raised here.
    pub fn raise_descriptors() -> bool {
        false
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

/// Caught signals.
pub mod signals {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd};

    use super::{Never, unsupported};
    use crate::Signal;

    /// Nothing is changed here.
    pub fn end_with_the_reader() {}
    /// Nothing is changed here.
    pub fn unblock_all() {}

    /// A set of caught signals.
    #[derive(Debug)]
    pub struct Signals(Never);

    impl Signals {
        /// Unsupported.
        pub fn catch(_signals: &[Signal]) -> io::Result<Signals> {
            unsupported()
        }
        /// The next signal that came.
        pub fn next(&self) -> Option<Signal> {
            match self.0 {}
        }
    }

    impl AsFd for Signals {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
    }
}

/// The user's meeting place.
pub mod runtime_dir {
    use std::ffi::{OsStr, OsString};
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::path::Path;

    use super::{Never, unsupported};
    use crate::fs::FileFacts;

    /// Why there is no runtime directory: the platform is not served.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    pub struct DirError(#[from] io::Error);

    /// An open directory that passed the gate.
    #[derive(Debug)]
    pub struct RuntimeDir(Never);

    /// While it lives, the directory is held.
    #[derive(Debug)]
    pub enum Hold {}

    impl RuntimeDir {
        /// The open directory.
        pub fn handle(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
        /// The facts of an entry.
        pub fn facts_of(&self, _: impl AsRef<OsStr>) -> Result<Option<FileFacts>, DirError> {
            match self.0 {}
        }
        /// Unsupported.
        pub fn of_user() -> Result<RuntimeDir, DirError> {
            Ok(unsupported()?)
        }
        /// Unsupported.
        pub fn find_of_user() -> Result<Option<RuntimeDir>, DirError> {
            Ok(unsupported()?)
        }
        /// Unsupported.
        pub fn xdg(_app: &str) -> Result<RuntimeDir, DirError> {
            Ok(unsupported()?)
        }
        /// A directory inside it.
        pub fn subdir(&self, _name: impl AsRef<OsStr>) -> Result<RuntimeDir, DirError> {
            match self.0 {}
        }
        /// A directory inside it, if there is one.
        pub fn existing_subdir(
            &self,
            _name: impl AsRef<OsStr>,
        ) -> Result<Option<RuntimeDir>, DirError> {
            match self.0 {}
        }
        /// Where it is.
        pub fn path(&self) -> &Path {
            match self.0 {}
        }
        /// What is in it.
        pub fn entries(&self) -> Result<Vec<OsString>, DirError> {
            match self.0 {}
        }
        /// Puts a file into its place.
        pub fn write_whole(
            &self,
            _name: impl AsRef<OsStr>,
            _content: &[u8],
        ) -> Result<(), DirError> {
            match self.0 {}
        }
        /// The content of a file.
        pub fn read_small(
            &self,
            _name: impl AsRef<OsStr>,
            _max: usize,
        ) -> Result<Option<Vec<u8>>, DirError> {
            match self.0 {}
        }
        /// Removes a file.
        pub fn unlink(&self, _name: impl AsRef<OsStr>) -> Result<bool, DirError> {
            match self.0 {}
        }
        /// Holds it.
        pub fn hold(&self) -> Result<Hold, DirError> {
            match self.0 {}
        }
        /// Removes an empty directory inside it.
        pub fn remove_subdir_if_empty(&self, _name: impl AsRef<OsStr>) -> Result<bool, DirError> {
            match self.0 {}
        }
    }
}

/// Locks that say who holds them.
pub mod lock {
    use std::ffi::OsStr;
    use std::fmt;
    use std::io;
    use std::path::{Path, PathBuf};

    use super::process::{Identity, ProcessRef};
    use super::runtime_dir::RuntimeDir;
    use super::{Never, unsupported};

    /// How a lock is shared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Mode {
        /// One holder.
        Exclusive,
        /// Any number of holders.
        Shared,
    }

    /// A lock that is held.
    #[derive(Debug)]
    pub struct Lock(Never);

    /// A process that holds a lock.
    #[derive(Debug)]
    pub struct Holder {
        /// The process.
        pub process: ProcessRef,
        /// What it calls itself.
        pub name: Option<String>,
        /// When it took the lock.
        pub since: Option<u64>,
    }

    impl fmt::Display for Holder {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "pid {}", self.process.pid())
        }
    }

    /// Who holds a lock, as its file says.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Record {
        /// The process.
        pub identity: Identity,
        /// What it calls itself.
        pub name: String,
        /// When it took the lock.
        pub since: u64,
    }

    impl Record {
        /// Unsupported.
        pub fn of_me(_name: &str) -> io::Result<Record> {
            unsupported()
        }
    }

    /// Why a lock could not be had.
    #[derive(Debug, thiserror::Error)]
    pub enum LockError {
        /// Somebody holds it.
        #[error("{path} is held")]
        Held {
            /// The lock's file.
            path: PathBuf,
            /// Who.
            holder: Option<Box<Holder>>,
        },
        /// The system said no.
        #[error("cannot {what} the lock file {path}: {source}")]
        Io {
            /// The lock's file.
            path: PathBuf,
            /// What was being done.
            what: &'static str,
            /// What the system said.
            source: io::Error,
        },
    }

    impl Lock {
        /// The number of its descriptor.
        pub fn descriptor(&self) -> u32 {
            match self.0 {}
        }
        /// Needs a [`RuntimeDir`], of which there is none.
        pub fn acquire(
            dir: &RuntimeDir,
            name: impl AsRef<OsStr>,
            _mode: Mode,
        ) -> Result<Lock, LockError> {
            refused(&dir.path().join(name.as_ref()))
        }
        /// Needs a [`RuntimeDir`], of which there is none.
        pub fn try_acquire(
            dir: &RuntimeDir,
            name: impl AsRef<OsStr>,
            _mode: Mode,
        ) -> Result<Option<Lock>, LockError> {
            refused(&dir.path().join(name.as_ref()))
        }
        /// Writes down who holds it.
        pub fn write_record(&self, _record: &Record) -> Result<(), LockError> {
            match self.0 {}
        }
        /// Removes its file.
        pub fn remove(self, _dir: &RuntimeDir) -> Result<(), LockError> {
            match self.0 {}
        }
        /// Where its file is.
        pub fn path(&self) -> &Path {
            match self.0 {}
        }
    }

    /// What a look at a lock says.
    #[derive(Debug)]
    pub enum Probe {
        /// Nobody holds it.
        Free,
        /// Somebody does, or it cannot be told.
        Held {
            /// Who.
            by: Option<Holder>,
        },
    }

    impl Probe {
        /// Who holds it, in words.
        pub fn by_whom(&self, _path: &Path) -> Option<String> {
            match self {
                Probe::Free => None,
                Probe::Held { .. } => Some("a process whose pid is unknown".to_owned()),
            }
        }
    }

    /// What cannot be looked at is held.
    pub fn probe(_dir: &RuntimeDir, _name: impl AsRef<OsStr>) -> Probe {
        Probe::Held { by: None }
    }

    /// A whole directory, against everyone.
    #[derive(Debug)]
    pub struct SeizedDir(Never);

    /// Unsupported.
    pub fn seize(dir: &RuntimeDir) -> Result<SeizedDir, LockError> {
        refused(dir.path())
    }

    /// Nobody that could be seen.
    pub fn holders(
        _dir: &RuntimeDir,
        _name: impl AsRef<OsStr>,
        _may_be: impl Fn(u32) -> bool,
    ) -> Vec<ProcessRef> {
        Vec::new()
    }

    /// Nobody is seen to hold anything.
    pub fn is_held_by(
        _dir: &RuntimeDir,
        _name: impl AsRef<OsStr>,
        _process: &ProcessRef,
        _first: Option<u32>,
    ) -> bool {
        false
    }

    /// Nobody is seen to hold anything.
    pub fn is_dir_held_by(_dir: &RuntimeDir, _process: &ProcessRef) -> bool {
        false
    }

    fn refused<T>(path: &Path) -> Result<T, LockError> {
        unsupported().map_err(|source| LockError::Io {
            path: path.to_owned(),
            what: "take",
            source,
        })
    }

    /// Locks of servers that came before.
    pub mod legacy {
        use std::path::Path;

        use super::{Lock, LockError, Probe, refused};

        /// Unsupported.
        pub fn hold(path: impl AsRef<Path>) -> Result<Option<Lock>, LockError> {
            refused(path.as_ref())
        }
        /// Unsupported.
        pub fn seize(path: impl AsRef<Path>) -> Result<Option<Lock>, LockError> {
            refused(path.as_ref())
        }
        /// What cannot be looked at is held.
        pub fn probe(_path: impl AsRef<Path>) -> Probe {
            Probe::Held { by: None }
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
