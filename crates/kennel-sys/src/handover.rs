//! Becoming another program and staying the same process: same pid, same children, same locks, and the
//! descriptors that the next program is to have.

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::{limits, os, tree};

/// What asks a process to end waits while it becomes another program: caught by nobody, it would end it.
const HELD_BACK: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Becomes `program` with `arguments`, its own name first, in the same environment. It gets stdin, stdout and stderr,
/// `handed` under the same numbers, and nothing else that is closed at an exec. Call [`hold_signals`] before.
///
/// Returns only if that failed: then everything is as before.
pub fn exec(program: BorrowedFd<'_>, arguments: &[&OsStr], handed: &[RawFd]) -> io::Error {
    match try_exec(program, arguments, handed) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

enum Never {}

fn try_exec(program: BorrowedFd<'_>, arguments: &[&OsStr], handed: &[RawFd]) -> io::Result<Never> {
    let text = |word: &OsStr| CString::new(word.as_bytes()).map_err(io::Error::from);
    // Where the kernel would have to guess a name for it: the file itself, not its path.
    let path = CString::new(os::descriptor_path(program))?;
    let arguments: Vec<CString> = arguments
        .iter()
        .map(|word| text(word))
        .collect::<io::Result<_>>()?;
    let ended = arguments.iter().map(|word| word.as_ptr());
    let pointers: Vec<*const libc::c_char> = ended.chain([ptr::null()]).collect();
    if let Err(error) = at_exec(handed, FdFlags::empty()) {
        let _ = at_exec(handed, FdFlags::CLOEXEC);
        return Err(error);
    }
    // SAFETY: the path and every argument end in a zero, the list of arguments in a null; all outlive the call,
    // which returns only if it failed.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    let _ = at_exec(handed, FdFlags::CLOEXEC);
    Err(error)
}

/// What becomes of descriptors at an exec.
fn at_exec(fds: &[RawFd], flags: FdFlags) -> io::Result<()> {
    for &fd in fds {
        if fd <= 2 {
            let words = format!("descriptor {fd} cannot be handed over: not above stdio");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        // SAFETY: not -1; borrowed for one call, which changes nothing but the flag, and fails for one that is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl_setfd(fd, flags)?;
    }
    Ok(())
}

/// From now on signals that ask for the end wait, also across an [`exec`], until [`hear_signals`].
pub fn hold_signals() {
    mask(libc::SIG_BLOCK);
}

/// The signals that waited come now. After an [`exec`]: once somebody catches them.
pub fn hear_signals() {
    mask(libc::SIG_UNBLOCK);
}

fn mask(how: libc::c_int) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is read or added to; the former mask is not asked for.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in HELD_BACK {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut());
    }
}

/// What this room must know to go on after an [`exec`], as one word for [`resume`].
pub fn carried() -> String {
    let elders: Vec<String> = tree::elders().iter().map(u32::to_string).collect();
    let limit = limits::before().map_or_else(|| "-".to_owned(), limit_text);
    format!("elders={},limit={limit}", elders.join("."))
}

/// After an [`exec`]: goes on with what [`carried`] said before it. What it does not know it ignores.
pub fn resume(word: &str) -> io::Result<()> {
    // What was started by its file's descriptor would go by that number.
    os::set_process_name(c"kennel");
    let field = |name: &str| {
        word.split(',')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    };
    let elders = field("elders").unwrap_or_default().split('.');
    tree::remain_subreaper(elders.filter_map(|pid| pid.parse().ok()).collect())?;
    if let Some((soft, hard)) = field("limit").and_then(|limit| limit.split_once('/')) {
        limits::raised_from(soft.parse().ok(), hard.parse().ok());
    }
    Ok(())
}

fn limit_text((soft, hard): (Option<u64>, Option<u64>)) -> String {
    let number = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |it| it.to_string());
    format!("{}/{}", number(soft), number(hard))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    #[test]
    fn an_exec_that_fails_leaves_everything_as_it_was() {
        let no_program = File::open("/etc/passwd").unwrap();
        let handed = File::open("/dev/null").unwrap();
        let error = exec(
            no_program.as_fd(),
            &[OsStr::new("kennel")],
            &[handed.as_raw_fd()],
        );
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        let flags = rustix::io::fcntl_getfd(&handed).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
        for no_descriptor in [-1, 2] {
            let handed = [handed.as_raw_fd(), no_descriptor];
            let error = exec(no_program.as_fd(), &[OsStr::new("kennel")], &handed);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let flags = rustix::io::fcntl_getfd(&handed).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn signals_that_ask_for_the_end_are_held_back_and_heard_again() {
        let is_held = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find(|line| line.starts_with("SigBlk:"));
            let blocked = u64::from_str_radix(blocked.unwrap()[7..].trim(), 16).unwrap();
            blocked & (1 << (libc::SIGTERM - 1)) != 0
        };
        hold_signals();
        assert!(is_held());
        hear_signals();
        assert!(!is_held());
    }

    #[test]
    fn what_is_carried_reads_back() {
        tree::become_subreaper().unwrap();
        let word = carried();
        resume(&word).unwrap();
        assert_eq!(carried(), word);
        assert!(resume("later=1").is_ok());
    }
}
