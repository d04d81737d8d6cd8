//! A reference to a process, not a number.
//!
//! A [`ProcessRef`] is made of a living process, and refers to that process even after its pid is reused. If the kernel has
//! process file descriptors (Linux 5.3), it holds one: exit is an event, and a signal cannot reach another process.
//! Otherwise it compares boot id and start time.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub use crate::identity::{Identity, ParseIdentityError};
use crate::io::Handle;
use crate::kernel::features;
use crate::os;
pub use crate::os::FIX_FOR_HIDDEN_PROCESSES;
use crate::user::UserId;

/// Interval for checking a process if the kernel offers no event for its exit (rule 10).
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The identity of this process.
static OWN_IDENTITY: OnceLock<Identity> = OnceLock::new();

/// Maximum number of attempts to read a parent that changes.
const ATTEMPTS: usize = 64;

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
    /// Whether it has ended. A first thread may be a zombie while others live.
    pub(crate) fn ended(&self) -> bool {
        self.zombie && self.threads <= 1
    }
}

/// The activity of a process: see [`ProcessRef::work`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessWork {
    /// The letter of its state, such as running, sleeping or stopped.
    pub state: char,
    /// Its CPU time in clock ticks.
    pub cpu_ticks: u64,
}

/// A reference to a process that lives, or has ended since.
#[derive(Debug)]
pub struct ProcessRef {
    identity: Identity,
    handle: Option<OwnedFd>,
}

impl AsRef<ProcessRef> for ProcessRef {
    fn as_ref(&self) -> &ProcessRef {
        self
    }
}

/// The pid of a process of this user that runs `program`, or an interpreter with a script of that name, and that has this
/// value of a variable in its initial environment.
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

/// The resident memory of a process in bytes; `None` if it has none, as after its end.
pub fn resident_memory(pid: u32) -> Option<u64> {
    Some(os::resident(pid)).filter(|&bytes| bytes > 0)
}

/// The living children of a process. A snapshot that may miss some.
pub fn children(parent: u32) -> io::Result<Vec<ProcessRef>> {
    let children = os::children(parent)?.into_iter();
    Ok(children
        .filter_map(|pid| ProcessRef::open(pid).ok())
        .collect())
}

impl ProcessRef {
    /// The process that has `pid` now. `NotFound` if there is no living one; a zombie is dead.
    pub fn open(pid: u32) -> io::Result<ProcessRef> {
        if !features().pidfd {
            return ProcessRef::open_by_start(pid);
        }
        let handle = os::open_process(pid)?;
        let unique = os::unique_of(handle.as_fd(), features().pidfs)?;
        ProcessRef::identified(pid, unique, handle)
    }

    /// The process of the thread `task`. The id of a first thread is the pid of its process.
    pub fn of_thread(task: u32) -> io::Result<ProcessRef> {
        let group = |task| os::thread_group(task).ok().flatten().unwrap_or(task);
        let process = ProcessRef::open(group(task))?;
        // Checked again after the process was opened: the thread may have ended, and its id be reused (rule 6).
        match process.pid() == group(task) {
            true => Ok(process),
            false => Err(gone(task)),
        }
    }

    /// The process of a pidfd that the kernel returned. `pid` becomes 0 if we cannot see the process.
    pub(crate) fn from_handle(pid: u32, handle: OwnedFd) -> io::Result<ProcessRef> {
        let unique = os::unique_of(handle.as_fd(), features().pidfs)?;
        ProcessRef::identified(os::visible_pid(pid), unique, handle)
    }

    /// An unreaped child of this process. It may have ended, but its pid is not reused until it is reaped.
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
        // The process lives after the reading, so the facts are about it (rule 6).
        if os::exited(handle.as_fd()) {
            return Err(gone(pid));
        }
        let handle = Some(handle);
        Ok(ProcessRef { identity, handle })
    }

    fn open_by_start(pid: u32) -> io::Result<ProcessRef> {
        os::pid_of(pid)?;
        let before = os::stat(pid).map_err(|error| hidden(pid, error))?;
        wait_for_next_tick(before.start);
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

    /// This process. If neither the kernel nor `/proc` gives more than its pid, nothing can prove its identity later.
    pub fn me() -> io::Result<ProcessRef> {
        let me = ProcessRef::find_this_process()?;
        // An earlier call found the same identity, or was in the process that forked this one.
        let _ = OWN_IDENTITY.set(me.identity);
        Ok(me)
    }

    /// The identity of this process, read once.
    pub fn my_identity() -> io::Result<Identity> {
        match OWN_IDENTITY.get() {
            Some(mine) if mine.pid == std::process::id() => Ok(*mine),
            _ => Ok(ProcessRef::me()?.identity),
        }
    }

    fn find_this_process() -> io::Result<ProcessRef> {
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

    /// The parent of this process; `None` if it cannot be seen (pid 1 of a namespace, ppid 0).
    ///
    /// Call it first in `main`: if the parent ends before the call, only its adopter is seen (lesson 19). The answer is
    /// consistent: the process was the parent while it was referenced.
    pub fn parent() -> io::Result<Option<ProcessRef>> {
        let parent = || Ok(rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32));
        stable_parent(parent)
    }

    /// The parent of `child`; `None` if it cannot be seen, `NotFound` if `child` is gone.
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

    /// The living ancestors of `child`, nearest first, at most `most`. Stops at an ancestor that cannot be seen. Reads one
    /// file of `/proc` for each: a process with the reused pid of a dead parent is recognized by its start, which is after
    /// the child's.
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
                    // Without the wait of `identity_of`: an ancestor counts only if it also holds our pipe.
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

    /// The process with this identity if it is alive, else `None`, even if another process has its pid. `Unsupported` if
    /// the identity is from another pid namespace.
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

    /// Restores a reference from before an exec of this process: its identity, and its pidfd if it had one.
    pub fn taken_over(identity: Identity, handle: Option<Handle>) -> ProcessRef {
        let handle = handle.map(Handle::into_inner);
        ProcessRef { identity, handle }
    }

    /// The pid, for people and for reading `/proc`. [`is_alive`](Self::is_alive) must be true after the reading.
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// The identity, for a record.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it still runs. A zombie does not. If that is unknown, the result is `true`.
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
                // A `/proc` that hides processes of other users gives the same error. The kernel knows.
                os::pid_of(self.pid()).is_ok_and(|pid| {
                    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::PERM)
                })
            }
            Err(_) => true,
        }
    }

    /// The time since it was started, if known.
    pub fn age(&self) -> Option<Duration> {
        self.identity.start.map(os::elapsed_since)
    }

    /// The name of its program, for people, if known.
    pub fn name(&self) -> Option<String> {
        os::command_name(self.pid())
    }

    /// Its command line, for people, if known.
    pub fn command_line(&self) -> Option<Vec<String>> {
        let words = os::command_line(self.pid())?;
        self.is_alive().then_some(words)
    }

    /// Its activity; `None` if that cannot be seen. Checked afterwards, because the pid may be reused (rule 6).
    pub fn work(&self) -> Option<ProcessWork> {
        let work = os::work(self.pid())?;
        self.is_alive().then_some(work)
    }

    /// The number of the descriptor that reports its exit, for the program that this process executes.
    pub fn exit_number(&self) -> Option<i32> {
        self.exit_fd().map(|fd| fd.as_raw_fd())
    }

    /// Whether the system reports its exit as an event: see [`Exit`](crate::io::Exit). If not, check every [`POLL_INTERVAL`].
    pub fn has_exit_event(&self) -> bool {
        self.handle.is_some()
    }

    /// A descriptor that becomes readable when the process has ended. `None` if the kernel offers no such event.
    pub(crate) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
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
            pause(left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL)));
        }
        Ok(true)
    }

    /// Sends a signal to this process; `false` if it is gone, and then no process gets the signal.
    ///
    /// Without process file descriptors the identity is checked right before the call. The kernel offers no way to close
    /// the gap between the two.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        if !self.is_alive() {
            return Ok(false);
        }
        if let Some(handle) = &self.handle {
            return os::send_signal(handle.as_fd(), signal);
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "for kernels without pidfd, right after the identity was checked"
        )]
        match rustix::process::kill_process(os::pid_of(self.pid())?, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The identity of the process with `pid`. The caller makes sure that the pid is not reused meanwhile.
fn read_identity(pid: u32, unique: Option<u64>) -> Identity {
    identity_of(pid, unique, os::stat(pid).ok().map(|stat| stat.start))
}

fn identity_of(pid: u32, unique: Option<u64>, start: Option<u64>) -> Identity {
    if let (None, Some(start)) = (unique, start) {
        wait_for_next_tick(start);
    }
    Identity {
        pid,
        unique,
        boot: os::boot_id(),
        start,
        namespace: os::pid_namespace(),
    }
}

/// Reads the parent until it is the same before and after it was opened.
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
    Err(io::Error::other(
        "the parent changed on every attempt to read it",
    ))
}

/// Waits until the clock tick of a start time is over. Ticks take 10 ms, and a pid can be reused within one: a process that
/// lives after its own tick has another start time than a later process with the same pid.
fn wait_for_next_tick(start: u64) {
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

/// Converts the error for a process that `/proc` hides, as with `hidepid`: it is not gone.
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
