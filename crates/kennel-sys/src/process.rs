//! A process as a reference, not a number.
//!
//! A [`ProcessRef`] is made of a process that lives, and goes on meaning that one whatever becomes
//! of its pid. Where the kernel has process file descriptors (Linux 5.3) it holds one: exit is an
//! event, a signal cannot reach anybody else. Without them it falls back to boot id and start time.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub use crate::identity::{Identity, ParseIdentityError};
use crate::kernel::features;
use crate::os;
use crate::user::UserId;

/// How often a process is looked at where the kernel offers no event for its exit (rule 10).
pub const SWEEP: Duration = Duration::from_millis(100);

/// Who this process was found to be.
static MINE: OnceLock<Identity> = OnceLock::new();

/// How often a race against the process table is run before it is called lost.
const ATTEMPTS: usize = 64;

/// Programs that adopt processes of others below pid 1: a user's session, or a container's init.
const REAPERS: [&str; 6] = [
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
];

/// Whether a process is known to adopt what others leave behind. Any other parent in another session may have left the one
/// in which it started the child, or adopt its own services, as a supervisor does.
pub(crate) fn is_reaper(pid: u32) -> bool {
    pid == 1 || REAPERS.contains(&os::command_name(pid).unwrap_or_default().as_str())
}

/// The state of a process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) zombie: bool,
    /// Stopped by a signal or by a debugger.
    pub(crate) stopped: bool,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    /// Whether it has a controlling terminal.
    pub(crate) terminal: bool,
    pub(crate) threads: u32,
    pub(crate) start: u64,
}

impl ProcessStat {
    /// Ended, as far as the letter can tell: a first thread may be `Z` while others live.
    pub(crate) fn ended(&self) -> bool {
        self.zombie && self.threads <= 1
    }
}

/// A reference to one process, living or dead since.
#[derive(Debug)]
pub struct ProcessRef {
    identity: Identity,
    handle: Option<OwnedFd>,
}

/// The pid of a process of this user that runs `program`, or an interpreter with a script of that name, and that was started
/// with this value of a variable.
pub fn find_running(program: &OsStr, variable: &str, value: &OsStr) -> Option<u32> {
    let us = UserId::current().number();
    let is_called = |pid: u32| {
        let words = os::command_line(pid).unwrap_or_default();
        let mut words = words.iter().take(2);
        words.any(|word| Path::new(word).file_name() == Some(program))
    };
    let has_value = |pid: u32| {
        let found = os::environ_value(pid, variable).ok().flatten();
        found.is_some_and(|found| found == value.as_encoded_bytes())
    };
    let mut pids = os::processes().ok()?.into_iter();
    pids.find(|&pid| {
        os::user_of(pid).is_ok_and(|user| user == us) && is_called(pid) && has_value(pid)
    })
}

/// Bytes of memory that a process has; `None` if it has none, as when it ended.
pub fn resident_memory(pid: u32) -> Option<u64> {
    Some(os::resident(pid)).filter(|&bytes| bytes > 0)
}

/// The children of a process that live; a snapshot that may miss some.
pub fn children(parent: u32) -> io::Result<Vec<ProcessRef>> {
    let children = os::children(parent)?.into_iter();
    Ok(children
        .filter_map(|pid| ProcessRef::open(pid).ok())
        .collect())
}

impl ProcessRef {
    /// The process that has `pid` now. `NotFound` if no living one has: a zombie is dead.
    pub fn open(pid: u32) -> io::Result<ProcessRef> {
        if !features().pidfd {
            return ProcessRef::open_by_start(pid);
        }
        let handle = os::open_process(pid)?;
        let unique = os::unique_of(handle.as_fd(), features().pidfs)?;
        ProcessRef::identified(pid, unique, handle)
    }

    /// The process that `task` is a thread of. A number of a process is that of its first thread.
    pub fn of_thread(task: u32) -> io::Result<ProcessRef> {
        let group = |task| os::thread_group(task).ok().flatten().unwrap_or(task);
        let process = ProcessRef::open(group(task))?;
        // Asked again behind the reference: the thread may have ended, and its number be used again (rule 6).
        match process.pid() == group(task) {
            true => Ok(process),
            false => Err(gone(task)),
        }
    }

    /// The process behind a descriptor the kernel made, and its pid, which is 0 where we cannot see it.
    pub(crate) fn from_handle(pid: u32, handle: OwnedFd) -> io::Result<ProcessRef> {
        let unique = os::unique_of(handle.as_fd(), features().pidfs)?;
        ProcessRef::identified(os::seen_in_proc(pid), unique, handle)
    }

    /// A child of this process that nobody has reaped yet. It may have ended already; until it is
    /// reaped, its pid is its own.
    pub(crate) fn of_child(pid: u32) -> io::Result<ProcessRef> {
        let (handle, unique) = if features().pidfd {
            let handle = os::open_process(pid)?;
            let unique = os::unique_of(handle.as_fd(), features().pidfs)?;
            (Some(handle), unique)
        } else {
            (None, None)
        };
        let identity = read_identity(pid, unique);
        Ok(ProcessRef { identity, handle })
    }

    fn identified(pid: u32, unique: Option<u64>, handle: OwnedFd) -> io::Result<ProcessRef> {
        let identity = read_identity(pid, unique);
        // Alive after the reading: so the reading was about this one (rule 6).
        if os::exited(handle.as_fd()) {
            return Err(gone(pid));
        }
        let handle = Some(handle);
        Ok(ProcessRef { identity, handle })
    }

    fn open_by_start(pid: u32) -> io::Result<ProcessRef> {
        os::pid_of(pid)?;
        let before = os::stat(pid).map_err(|error| hidden(pid, error))?;
        let_the_tick_pass(before.start);
        let after = os::stat(pid)?;
        if after.ended() || after.start != before.start {
            return Err(gone(pid));
        }
        Ok(ProcessRef {
            identity: Identity {
                pid,
                unique: None,
                boot: os::boot_id(),
                start: Some(after.start),
                namespace: os::pid_namespace(),
            },
            handle: None,
        })
    }

    /// This process. Where neither the kernel nor `/proc` can say more than its pid, nobody will be
    /// able to prove later that it is the one.
    pub fn me() -> io::Result<ProcessRef> {
        let me = ProcessRef::look_at_me()?;
        // Whoever set it before found the same, or was the process that this one is a copy of.
        let _ = MINE.set(me.identity);
        Ok(me)
    }

    /// Who this process is. Looked up once.
    pub fn my_identity() -> io::Result<Identity> {
        match MINE.get() {
            Some(mine) if mine.pid == std::process::id() => Ok(*mine),
            _ => Ok(ProcessRef::me()?.identity),
        }
    }

    fn look_at_me() -> io::Result<ProcessRef> {
        let pid = std::process::id();
        match ProcessRef::open(pid) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(ProcessRef {
                identity: Identity {
                    pid,
                    unique: None,
                    boot: os::boot_id(),
                    start: None,
                    namespace: os::pid_namespace(),
                },
                handle: None,
            }),
            other => other,
        }
    }

    /// The parent of this process; `None` if it has none to see (pid 1 of a namespace, ppid 0).
    ///
    /// Call it first thing in `main`: a parent that ends before the call cannot be told from one
    /// that never was (lesson 19). The answer is stable: it was the parent while it was referenced.
    pub fn parent() -> io::Result<Option<ProcessRef>> {
        let parent = || Ok(rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32));
        stable_parent(parent)
    }

    /// The parent of `child`; `None` if it has none to see, `NotFound` if `child` is gone.
    pub fn parent_of(child: &ProcessRef) -> io::Result<Option<ProcessRef>> {
        stable_parent(|| {
            let stat = os::stat(child.pid())?;
            if child.is_alive() {
                Ok(stat.parent)
            } else {
                Err(gone(child.pid()))
            }
        })
    }

    /// The living ancestors of `child`, nearest first, `most` of them at most. An ancestor that cannot be seen ends the
    /// search. Costs one reading of `/proc` each: a process that got the pid of a dead parent is told by its start, which
    /// is after the child's.
    pub(crate) fn ancestors_of(child: &ProcessRef, most: usize) -> Vec<Identity> {
        let mut ancestors = Vec::new();
        let Ok(mut below) = os::stat(child.pid()) else {
            return ancestors;
        };
        if !child.is_alive() {
            return ancestors;
        }
        while ancestors.len() < most && below.parent != 0 {
            let pid = below.parent;
            match os::stat(pid) {
                Ok(stat) if !stat.ended() && stat.start <= below.start => {
                    // Not the wait of `identity_of`: an ancestor also has to hold our pipe before it counts.
                    ancestors.push(Identity {
                        pid,
                        unique: None,
                        boot: os::boot_id(),
                        start: Some(stat.start),
                        namespace: os::pid_namespace(),
                    });
                    below = stat;
                }
                _ => break,
            }
        }
        ancestors
    }

    /// The process that was written down, if it is still alive; `None` if it is gone, whoever has its
    /// pid now. `Unsupported` if it was written down in another pid namespace: from here it cannot be told.
    pub fn find(identity: &Identity) -> io::Result<Option<ProcessRef>> {
        if let (Some(theirs), Some(ours)) = (identity.namespace, os::pid_namespace())
            && theirs != ours
        {
            let words = format!("process {} is in another pid namespace", identity.pid);
            return Err(io::Error::new(io::ErrorKind::Unsupported, words));
        }
        match ProcessRef::open(identity.pid) {
            Ok(process) if process.identity.same_process(identity) => Ok(Some(process)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A reference that was made before this process became another program: whom it meant, and the
    /// descriptor of [`exit_fd`](Self::exit_fd) if it had one.
    pub fn taken_over(identity: Identity, handle: Option<OwnedFd>) -> ProcessRef {
        ProcessRef { identity, handle }
    }

    /// Its pid: for people, and for reading `/proc`, after which [`is_alive`](Self::is_alive) tells whether the reading counts.
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// Who it is, to be written down.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it still runs. A zombie does not; where the answer cannot be had, it does.
    pub fn is_alive(&self) -> bool {
        match &self.handle {
            Some(handle) => !os::exited(handle.as_fd()),
            None => self.looks_alive(),
        }
    }

    fn looks_alive(&self) -> bool {
        match os::stat(self.pid()) {
            Ok(stat) => !stat.ended() && Some(stat.start) == self.identity.start,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A /proc that hides other users' processes says the same: the kernel has the last word.
                os::pid_of(self.pid()).is_ok_and(|pid| {
                    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::PERM)
                })
            }
            Err(_) => true,
        }
    }

    /// How long ago it was started; `None` where that cannot be told.
    pub fn age(&self) -> Option<Duration> {
        self.identity.start.map(os::since)
    }

    /// What its program calls itself, for people; `None` where that cannot be told.
    pub fn name(&self) -> Option<String> {
        os::command_name(self.pid())
    }

    /// What it was started as, for people; `None` where that cannot be told.
    pub fn command_line(&self) -> Option<Vec<String>> {
        let words = os::command_line(self.pid())?;
        self.is_alive().then_some(words)
    }

    /// Readable once the process has ended: for an event loop. `None` where the kernel offers no
    /// such event; look every [`SWEEP`] then.
    pub fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.handle.as_ref().map(|handle| handle.as_fd())
    }

    /// Blocks until it has ended (`true`) or the time is over (`false`).
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        if let Some(handle) = &self.handle {
            return os::wait_exit(handle.as_fd(), timeout);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.is_alive() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            pause(left.map_or(SWEEP, |left| left.min(SWEEP)));
        }
        Ok(true)
    }

    /// Sends a signal to this very process; `false` if it is gone, and then nobody got it.
    ///
    /// Without process file descriptors the identity is checked right before the call; between the
    /// two lies a moment the kernel gives no means against.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        if !self.is_alive() {
            return Ok(false);
        }
        if let Some(handle) = &self.handle {
            return os::send_signal(handle.as_fd(), signal);
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place for kernels without pidfd, right behind the check of the identity"
        )]
        match rustix::process::kill_process(os::pid_of(self.pid())?, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// What can be said about `pid`. The caller makes sure that it stays with one process meanwhile.
fn read_identity(pid: u32, unique: Option<u64>) -> Identity {
    identity_of(pid, unique, os::stat(pid).ok().map(|stat| stat.start))
}

fn identity_of(pid: u32, unique: Option<u64>, start: Option<u64>) -> Identity {
    if let (None, Some(start)) = (unique, start) {
        let_the_tick_pass(start);
    }
    Identity {
        pid,
        unique,
        boot: os::boot_id(),
        start,
        namespace: os::pid_namespace(),
    }
}

/// Asks for a parent until the one that was referenced is still the answer afterwards.
fn stable_parent(parent: impl Fn() -> io::Result<u32>) -> io::Result<Option<ProcessRef>> {
    for _ in 0..ATTEMPTS {
        let pid = parent()?;
        if pid == 0 {
            return Ok(None);
        }
        match ProcessRef::open(pid) {
            Ok(process) if parent()? == pid => return Ok(Some(process)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("the parent changed with every look at it"))
}

/// Start times are counted in ticks of 10 ms, and a pid can be used twice within one. A process that
/// was seen alive after its own tick had passed cannot share it with a later bearer of its pid.
fn let_the_tick_pass(start: u64) {
    while os::now_in_ticks() <= start {
        pause(Duration::from_millis(1));
    }
}

fn pause(time: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "only where the kernel has neither pidfs nor an exit event (rule 10 names these)"
    )]
    std::thread::sleep(time);
}

/// A process that the kernel knows and `/proc` does not show, as with `hidepid`, is not gone: ambiguous means alive.
fn hidden(pid: u32, error: io::Error) -> io::Error {
    match error.kind() == io::ErrorKind::NotFound && os::exists(pid) {
        true => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("process {pid} exists, but /proc does not show it"),
        ),
        false => error,
    }
}

fn gone(pid: u32) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("process {pid} is gone"))
}
