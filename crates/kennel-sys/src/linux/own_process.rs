//! Settings of this process.

use std::ffi::CStr;
use std::io;

use rustix::process::Signal;

/// Whether orphans below this process become its children instead of init's.
pub(crate) fn is_subreaper() -> bool {
    matches!(rustix::process::child_subreaper(), Ok(Some(_)))
}

/// Sets whether orphans below this process become its children instead of init's.
pub(crate) fn set_subreaper(on: bool) -> io::Result<()> {
    let this = on.then(rustix::process::getpid);
    Ok(rustix::process::set_child_subreaper(this)?)
}

/// Makes the kernel kill this process when the thread that forked it ends. For a child between fork and exec.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(
        Signal::KILL,
    ))?)
}

/// Undoes [`die_with_parent`], which survives an exec.
pub(crate) fn outlive_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(None)?)
}

/// Whether this is the first thread of this process, which ends with it.
pub(crate) fn is_first_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Sets the name that `ps` and `top` show. Errors are ignored.
pub(crate) fn set_process_name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// The error number of the last system call of this thread. Async-signal-safe.
pub(crate) fn errno() -> i32 {
    // SAFETY: the address is valid for the life of this thread, which alone uses it.
    unsafe { *libc::__errno_location() }
}

/// Sets the error number of this thread. Async-signal-safe.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Whether this platform is served: it is.
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
    // Linux before 5.11 has no such call; every descriptor that we open is close-on-exec from the start.
    let known = result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF);
    known.then_some(()).ok_or_else(io::Error::last_os_error)
}
