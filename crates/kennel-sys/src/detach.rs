//! Starting a process that is nobody's: out of our session and process group, and no child of ours.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::fs::FileType;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use crate::os;
use crate::tree::Awaited;

/// Starts `command` in a session of its own and orphaned at once, so that neither a signal to our group
/// nor a walk over our children reaches it. It inherits its stdio as `command` has it, `handed` under the
/// same numbers, and nothing else. Returns when it runs.
///
/// Not even if we are a subreaper: for this moment we are none. Below another one it becomes that one's child.
pub fn spawn(mut command: Command, handed: &[impl AsFd]) -> io::Result<()> {
    let number = |handle: &_| AsFd::as_fd(handle).as_raw_fd();
    let handed: Vec<RawFd> = handed.iter().map(number).collect();
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
            os::close_at_exec_from(3)?;
            for &fd in &handed {
                let fd = BorrowedFd::borrow_raw(fd);
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    let reaps = os::is_subreaper();
    if reaps {
        os::set_subreaper(false)?;
    }
    // What std waits for is the pipe that closes at the grandchild's exec; what it holds is the child.
    let waited = Awaited::spawn(&mut command).map(|(mut child, _awaited)| child.wait());
    if reaps {
        os::set_subreaper(true)?;
    }
    match waited? {
        // Whoever ignores SIGCHLD has nobody to wait for.
        Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(error),
        _ => Ok(()),
    }
}

/// The word by which a program that is handed this descriptor knows it.
pub fn number_of(handed: &impl AsFd) -> String {
    handed.as_fd().as_raw_fd().to_string()
}

/// What a descriptor that was handed over must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, in memory or on a disk.
    File,
    /// A directory.
    Directory,
    /// One end of a pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A process (pidfd).
    Process,
}

/// The numbers that were adopted in this process.
static ADOPTED: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes ownership of a descriptor that the program before an exec handed to this process, by its number, and hands
/// it no further.
///
/// An error, and nothing is owned, unless the number is above stdio, open, of the expected kind, inherited, and
/// adopted for the first time. Inherited is what an exec left open: nothing that is opened here is (all of it is
/// close-on-exec from its start), so no number is adopted that somebody else owns.
pub fn adopt(fd: RawFd, kind: Kind) -> io::Result<OwnedFd> {
    let refused = |why: &str| {
        let words = format!("descriptor {fd} was not handed over: {why}");
        io::Error::new(io::ErrorKind::InvalidInput, words)
    };
    if fd <= 2 {
        return Err(refused("not above stdin, stdout and stderr"));
    }
    // SAFETY: not -1; borrowed for calls that own nothing, and that fail for a number that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfd(borrowed).map_err(|error| refused(&error.to_string()))?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(refused("opened by this program"));
    }
    let found = FileType::from_raw_mode(rustix::fs::fstat(borrowed)?.st_mode);
    let fits = match kind {
        Kind::File => found == FileType::RegularFile,
        Kind::Directory => found == FileType::Directory,
        Kind::Pipe => found == FileType::Fifo,
        Kind::Socket => found == FileType::Socket,
        // Without a type of its own before Linux 6.9, a regular file since.
        Kind::Process => matches!(found, FileType::Unknown | FileType::RegularFile),
    };
    if !fits {
        return Err(refused(&format!("not a {kind:?} but a {found:?}")));
    }
    let mut adopted = ADOPTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !adopted.insert(fd) {
        return Err(refused("adopted before"));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: open, inherited (nothing opened here lacks close-on-exec), and adopted by nobody else: this is its owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A descriptor as an exec leaves it: open, owned by nobody, not close-on-exec.
    fn inherited(fd: impl Into<OwnedFd>) -> RawFd {
        let fd: OwnedFd = fd.into();
        fcntl_setfd(&fd, FdFlags::empty()).unwrap();
        std::os::fd::IntoRawFd::into_raw_fd(fd)
    }

    #[test]
    fn only_what_was_handed_over_is_adopted_and_only_once() {
        let ours = File::open("/dev/null").unwrap();
        let refused = |fd, kind| adopt(fd, kind).unwrap_err().to_string();
        for fd in [-1, 0, 1, 2] {
            assert!(refused(fd, Kind::File).contains("not above stdin"), "{fd}");
        }
        assert!(refused(RawFd::MAX, Kind::File).contains("was not handed over"));
        assert!(refused(ours.as_raw_fd(), Kind::File).contains("opened by this program"));

        let (end, _other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let pipe = inherited(end);
        assert!(refused(pipe, Kind::Socket).contains("not a Socket but a Fifo"));
        let adopted = adopt(pipe, Kind::Pipe).unwrap();
        assert_eq!(adopted.as_raw_fd(), pipe);
        assert!(fcntl_getfd(&adopted).unwrap().contains(FdFlags::CLOEXEC));
        assert!(refused(pipe, Kind::Pipe).contains("opened by this program"));
        // Nor where somebody took the flag away again.
        fcntl_setfd(&adopted, FdFlags::empty()).unwrap();
        assert!(refused(pipe, Kind::Pipe).contains("adopted before"));
    }

    #[test]
    fn each_kind_is_told_from_the_others() {
        let directory = File::open("/").unwrap();
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let process = crate::process::ProcessRef::me().unwrap();
        let mut handed = vec![
            (inherited(directory), Kind::Directory),
            (inherited(socket), Kind::Socket),
            (inherited(File::open("/proc/self/exe").unwrap()), Kind::File),
        ];
        if let Some(handle) = process.exit_fd() {
            handed.push((
                inherited(handle.try_clone_to_owned().unwrap()),
                Kind::Process,
            ));
        }
        for (fd, kind) in handed {
            assert!(adopt(fd, Kind::Pipe).is_err(), "{kind:?}");
            assert!(adopt(fd, kind).is_ok(), "{kind:?}");
        }
    }
}
