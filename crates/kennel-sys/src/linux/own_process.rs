//! Acts of a process on itself.

use std::ffi::CStr;
use std::io;

use rustix::process::Signal;

/// Whether orphans below this process become its children instead of init's.
pub(crate) fn is_subreaper() -> bool {
    matches!(rustix::process::child_subreaper(), Ok(Some(_)))
}

/// Says whether orphans below this process become its children instead of init's.
pub(crate) fn set_subreaper(on: bool) -> io::Result<()> {
    let this = on.then(rustix::process::getpid);
    Ok(rustix::process::set_child_subreaper(this)?)
}

/// Has this process killed when its parent ends. For a child that is about to become another program.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(
        Signal::KILL,
    ))?)
}

/// Gives this process the name that `ps` and `top` show, where that can be done.
pub(crate) fn set_process_name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// The error number of the last system call of this thread. Async-signal-safe.
pub(crate) fn errno() -> i32 {
    // SAFETY: the address is valid for the life of this thread, and nobody else uses it.
    unsafe { *libc::__errno_location() }
}

/// Sets the error number of this thread. Async-signal-safe.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Says that this platform is served.
pub(crate) fn require_served() -> io::Result<()> {
    Ok(())
}

/// Marks every descriptor from `first` on to be closed at exec.
pub(crate) fn close_at_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: marks descriptors close-on-exec; closes none that is in use before the exec.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    // Before Linux 5.11 there is no such call; every descriptor of ours is close-on-exec from its birth.
    let known = result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF);
    known.then_some(()).ok_or_else(io::Error::last_os_error)
}
