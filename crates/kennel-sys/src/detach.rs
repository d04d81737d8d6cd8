//! Starts detached processes, which are outside our session and process group and are no children of this process. Adopts
//! inherited descriptors.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::fs::FileType;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use crate::io::{Handle, Waitable};
use crate::os;
use crate::tree::Awaited;

/// Starts `command` in a new session and orphans it at once, so that neither a signal to our group nor a walk over our
/// descendants reaches it. It inherits the stdio of `command` and `handed`, under the same numbers, and no other
/// descriptors. Returns when it runs.
///
/// Works in a subreaper too, which is none during the call. Below another subreaper it becomes a child of that one.
pub fn spawn(mut command: Command, handed: &[&dyn Waitable]) -> io::Result<()> {
    let number = |handle: &&dyn Waitable| handle.as_fd().as_raw_fd();
    let handed: Vec<RawFd> = handed.iter().map(number).collect();
    // SAFETY: between fork and exec only system calls are made. The second fork happens in a child with one thread; its
    // parent ends at once, without running exit handlers.
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
    // `spawn` waits for the grandchild's exec, which closes a pipe; the child that it returns is the intermediate process.
    let waited = Awaited::spawn(&mut command).map(|(mut child, _awaited)| child.wait());
    if reaps {
        os::set_subreaper(true)?;
    }
    match waited? {
        // If SIGCHLD is ignored, the child was reaped already.
        Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(error),
        _ => Ok(()),
    }
}

/// The number of a descriptor as an argument for the program that inherits it.
pub fn number_of(handed: &impl Waitable) -> String {
    handed.as_fd().as_raw_fd().to_string()
}

/// The expected kind of an inherited descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, in memory or on a disk.
    File,
    /// A directory.
    Directory,
    /// An end of a pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A process (pidfd).
    Process,
}

/// The descriptors that this process has adopted.
static ADOPTED_DESCRIPTORS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes ownership of a descriptor that this process inherited through an exec, by its number, and makes it close-on-exec.
///
/// Fails unless the number is above stdio, open, of the expected kind, inherited, and not adopted before. A descriptor is
/// inherited if it is not close-on-exec, because all descriptors that this program opens are. So a descriptor with another
/// owner is never adopted.
pub fn adopt(fd: i32, kind: Kind) -> io::Result<Handle> {
    let refused = |why: &str| {
        let words = format!("descriptor {fd} was not handed over: {why}");
        io::Error::new(io::ErrorKind::InvalidInput, words)
    };
    if fd <= 2 {
        return Err(refused("not above stdin, stdout and stderr"));
    }
    // SAFETY: not -1; borrowed for calls that do not take ownership, and that fail for a number that is not open.
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
        // pidfds have no file type before Linux 6.9, and are regular files since.
        Kind::Process => matches!(found, FileType::Unknown | FileType::RegularFile),
    };
    if !fits {
        return Err(refused(&format!("not a {kind:?} but a {found:?}")));
    }
    let mut adopted = ADOPTED_DESCRIPTORS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if !adopted.insert(fd) {
        return Err(refused("adopted before"));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: open, inherited (all descriptors that this program opens are close-on-exec), and not adopted before: this is
    // its owner.
    Ok(Handle::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A descriptor as after an exec: open, without an owner, not close-on-exec.
    fn inherited(fd: impl Into<OwnedFd>) -> RawFd {
        let fd: OwnedFd = fd.into();
        fcntl_setfd(&fd, FdFlags::empty()).unwrap();
        std::os::fd::IntoRawFd::into_raw_fd(fd)
    }

    #[test]
    #[ignore = "needs a process without other tests: cargo xtask test"]
    fn only_inherited_descriptors_are_adopted_and_only_once() {
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
        assert_eq!(number_of(&adopted), pipe.to_string());
        assert!(fcntl_getfd(&adopted).unwrap().contains(FdFlags::CLOEXEC));
        assert!(refused(pipe, Kind::Pipe).contains("opened by this program"));
        // Nor after the flag was removed again.
        fcntl_setfd(&adopted, FdFlags::empty()).unwrap();
        assert!(refused(pipe, Kind::Pipe).contains("adopted before"));
    }

    #[test]
    fn each_kind_is_distinguished_from_the_others() {
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
