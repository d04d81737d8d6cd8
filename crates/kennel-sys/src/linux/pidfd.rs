//! Process file descriptors.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::kernel::Features;

/// `f_type` of pidfs, whose pidfds have an inode. An anonymous pidfd has none.
const PID_FS_MAGIC: u32 = 0x5049_4446;
/// Missing in the headers of some libcs.
const SO_PEERPIDFD: libc::c_int = 77;

pub(crate) fn probe_features() -> Features {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let pidfs = own
        .as_ref()
        .is_ok_and(|fd| rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type as u32 == PID_FS_MAGIC));
    // Linux had `SO_PEERPIDFD` before pidfs.
    let peer_pidfd = pidfs || {
        let pair = std::os::unix::net::UnixStream::pair();
        pair.is_ok_and(|(ours, _theirs)| peer_process(ours.as_fd()).is_ok())
    };
    Features {
        pidfd: own.is_ok(),
        pidfs,
        peer_pidfd,
        pass_rights: true,
        sock_diag: true,
        proc_syscall: true,
    }
}

/// A descriptor for the process that has `pid` now; `NotFound` if there is no such process.
pub(crate) fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let pid = pid_of(pid)?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
        // The number of a thread that is not a process: EINVAL, on newer kernels ENOENT.
        rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT => {
            io::Error::new(io::ErrorKind::NotFound, format!("no process {pid}"))
        }
        other => other.into(),
    })
}

/// The process at the other end of a Unix socket, as the kernel recorded it when they were connected.
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, an int, into `fd`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if fd < 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: on success the kernel created a descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The inode of a pidfd, which is never reused; `None` without pidfs.
pub(crate) fn unique_of(pidfd: BorrowedFd<'_>, pidfs: bool) -> io::Result<Option<u64>> {
    let inode = || rustix::fs::fstat(pidfd).map(|stat| stat.st_ino);
    Ok(pidfs.then(inode).transpose()?)
}

/// Whether the process has ended. A zombie has; a process with a running thread has not, even if its first thread ended.
pub(crate) fn exited(pidfd: BorrowedFd<'_>) -> bool {
    // An error says nothing about the process: then it counts as alive.
    wait_exit(pidfd, Some(Duration::ZERO)).unwrap_or(false)
}

/// Blocks until the process has ended (`true`) or the time is over (`false`).
pub(crate) fn wait_exit(pidfd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec::try_from(left).unwrap_or(FOREVER));
        let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(fds[0].revents().contains(PollFlags::IN)),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

const FOREVER: Timespec = Timespec {
    tv_sec: i32::MAX as i64,
    tv_nsec: 0,
};

/// Sends `signal` to this process; `false` if it is gone.
pub(crate) fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<bool> {
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Converts a pid for system calls. Fails for 0 and negative numbers, which stand for groups.
pub(crate) fn pid_of(pid: u32) -> io::Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no process {pid}")))
}
