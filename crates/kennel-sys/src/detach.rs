//! Starting a process that is nobody's: out of our session and process group, and no child of ours.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts `command` in a session of its own and orphaned at once, so that neither a signal to our group
/// nor a walk over our children reaches it. It inherits its stdio as `command` has it, `handed` under the
/// same numbers, and nothing else. Returns when it runs.
///
/// Not even if we are a subreaper: for this moment we are none. Below another one it becomes that one's child.
pub fn spawn(mut command: Command, handed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let handed: Vec<RawFd> = handed.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: between fork and exec only system calls are made. The second fork happens in a child with
    // one thread; its parent ends at once, without running anything that was registered to run at exit.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            match libc::fork() {
                -1 => return Err(io::Error::last_os_error()),
                0 => {}
                _ => libc::_exit(0),
            }
            crate::tree::close_at_exec_from(3)?;
            for &fd in &handed {
                let fd = BorrowedFd::borrow_raw(fd);
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    let reaps = matches!(rustix::process::child_subreaper(), Ok(Some(_)));
    if reaps {
        rustix::process::set_child_subreaper(None)?;
    }
    // What std waits for is the pipe that closes at the grandchild's exec; what it holds is the child.
    let waited = command.spawn().map(|mut child| child.wait());
    if reaps {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    match waited? {
        // Whoever ignores SIGCHLD has nobody to wait for.
        Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(error),
        _ => Ok(()),
    }
}

/// For what was started so: takes ownership of a descriptor that was handed to it, by its number, and
/// hands it no further. For each number once, and for no other.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    crate::tree::adopt(fd)
}
