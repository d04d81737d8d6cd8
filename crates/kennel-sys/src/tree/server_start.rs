//! The start of a server by its warden: a fork, and an exec in the child.
//!
//! The warden does not wait for the exec. The child may be stopped before it (SIGSTOP), or its program may be on a file
//! system that does not answer, while the process that the warden serves dies. So the result arrives through a pipe, which
//! the warden polls with everything else. `std::process::Command::spawn` would block until then.

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::COOKIE;
use super::mark::{Terms, TreeMark};
use crate::detached::Detached;
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::signals::default_dispositions;

/// The names that `ps` shows: of a warden, and of its child until the exec.
pub(super) const WARDEN_NAME: &CStr = c"kennel-warden";
pub(super) const START_NAME: &CStr = c"kennel-start";

/// The exit code of a child that could not execute the server. The warden reports the error number instead.
const NOT_EXECUTED: i32 = 127;

/// A child that is to become the server.
#[derive(Debug)]
pub(super) struct ServerStart {
    pid: Pid,
    identity: Option<Identity>,
    /// Closed by the exec; carries an error number if that fails.
    result: OwnedFd,
}

impl ServerStart {
    /// Forks the child. It becomes the leader of a new session, inherits the standard streams and no other descriptors,
    /// and executes `server`. This process must have one thread.
    pub(super) fn fork(
        server: &[OsString],
        cookie: &str,
        policy: Detached,
    ) -> io::Result<ServerStart> {
        let mut command = Command::new(&server[0]);
        command.args(&server[1..]);
        let warden = rustix::process::getpid();
        let (result, told) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The child has its name from its first moment on: if it is stopped then, nothing else tells it from the warden.
        os::set_process_name(START_NAME);
        // SAFETY: this process has one thread, so no lock is held by another one, and the child may use memory. The child
        // does not return from this block.
        let pid = unsafe {
            match libc::fork() {
                0 => {
                    let error = execute(&mut command, warden, cookie, policy);
                    let errno = error.raw_os_error().unwrap_or(libc::ENOENT);
                    // If the warden is gone, nobody needs the number.
                    let _ = rustix::io::write(&told, &errno.to_ne_bytes());
                    libc::_exit(NOT_EXECUTED)
                }
                pid => pid,
            }
        };
        let failed = io::Error::last_os_error();
        os::set_process_name(WARDEN_NAME);
        // -1 is no pid.
        let pid = u32::try_from(pid).map_err(|_| failed)?;
        let identity = ProcessRef::open(pid).ok();
        Ok(ServerStart {
            pid: os::pid_of(pid)?,
            identity: identity.map(|process| *process.identity()),
            result,
        })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// The identity of the child; `None` if it had ended before that was read.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Whether the server was executed; `None` while that is open. A child that is killed before its exec counts as a
    /// server that has ended.
    pub(super) fn result(&self) -> Option<Result<(), i32>> {
        let mut errno = [0; 4];
        loop {
            return match rustix::io::read(&self.result, &mut errno) {
                Ok(0) => Some(Ok(())),
                Ok(_) => Some(Err(i32::from_ne_bytes(errno))),
                Err(rustix::io::Errno::AGAIN) => None,
                Err(rustix::io::Errno::INTR) => continue,
                Err(other) => Some(Err(other.raw_os_error())),
            };
        }
    }
}

impl AsFd for ServerStart {
    /// Readable once the result is known.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.result.as_fd()
    }
}

/// Becomes the server, in the child. Returns the error if that fails.
///
/// # Safety
/// This process has one thread, which changes the environment.
unsafe fn execute(command: &mut Command, warden: Pid, cookie: &str, policy: Detached) -> io::Error {
    // SAFETY: passed on to the caller.
    match unsafe { prepare(warden, cookie, policy) } {
        // `command` has no variables, so those of this process are used, as they are.
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

/// # Safety
/// As of [`execute`].
unsafe fn prepare(warden: Pid, cookie: &str, policy: Detached) -> io::Result<()> {
    // First: even a stopped child then dies with the warden.
    os::die_with_parent()?;
    if rustix::process::getppid() != Some(warden) {
        // The warden was killed before the line above, so the death signal was missed.
        return Err(io::ErrorKind::NotFound.into());
    }
    rustix::process::setsid()?;
    // It leads a session, so its pid is the number of the session.
    let session = std::process::id();
    let mark = TreeMark {
        cookie: cookie.to_owned(),
        terms: Some(Terms { policy, session }),
    };
    let names = std::env::vars_os().map(|(name, _)| name);
    let ours = names.filter(|name| name.as_encoded_bytes().starts_with(b"KENNEL_"));
    // SAFETY: the caller has one thread.
    #[expect(clippy::disallowed_methods, reason = "no other thread can read them")]
    unsafe {
        for name in ours.collect::<Vec<_>>() {
            std::env::remove_var(name);
        }
        std::env::set_var(COOKIE, mark.to_string());
    }
    default_dispositions();
    os::close_at_exec_from(3)
}

/// The error number that a shell would report if the server could not be started. The system reports "permission denied" if
/// one directory of the PATH is closed to us; that counts as "not found" unless the program is in one of them.
pub(super) fn shell_errno(program: &OsStr, errno: i32) -> i32 {
    let bare_name = !program.as_encoded_bytes().contains(&b'/');
    let on_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).exists())
    };
    if errno == libc::EACCES && bare_name && !on_path() {
        return libc::ENOENT;
    }
    errno
}
