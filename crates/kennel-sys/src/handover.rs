//! Executing another program in the same process: it keeps the pid, the children, the locks, and the descriptors that are
//! handed over.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::{limits, os, tree};

/// The signals that ask a process to end. They are blocked across the exec, because the new program has no handlers at
/// first.
const END_SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// A command that runs exactly this open file, even if its path was replaced, and is shown as `shown`.
pub fn command_of(program: &File, shown: &str) -> Command {
    let mut command = Command::new(os::descriptor_path(program.as_fd()));
    command.arg0(shown);
    command
}

/// A file in memory without a name, for state that is handed over. `title` is shown in lists of descriptors.
pub fn state_file(title: &str) -> io::Result<File> {
    os::anonymous_file(title).map(File::from)
}

/// Executes `program` with `arguments`, the first of which is its name, in the same environment. It gets stdin, stdout,
/// stderr and `handed`, under the same numbers. Call [`block_end_signals`] before.
///
/// Returns only if that fails: then everything is as before.
pub fn exec(program: &File, arguments: &[&OsStr], handed: &[RawFd]) -> io::Error {
    match try_exec(program.as_fd(), arguments, handed) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

enum Never {}

fn try_exec(program: BorrowedFd<'_>, arguments: &[&OsStr], handed: &[RawFd]) -> io::Result<Never> {
    let text = |word: &OsStr| CString::new(word.as_bytes()).map_err(io::Error::from);
    // The path of the descriptor, so that exactly this file is executed.
    let path = CString::new(os::descriptor_path(program))?;
    let arguments: Vec<CString> = arguments
        .iter()
        .map(|word| text(word))
        .collect::<io::Result<_>>()?;
    let ended = arguments.iter().map(|word| word.as_ptr());
    let pointers: Vec<*const libc::c_char> = ended.chain([ptr::null()]).collect();
    if let Err(error) = set_descriptor_flags(handed, FdFlags::empty()) {
        let _ = set_descriptor_flags(handed, FdFlags::CLOEXEC);
        return Err(error);
    }
    // SAFETY: the path and every argument end in a zero, the list of arguments in a null; all outlive the call,
    // which returns only if it failed.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    let _ = set_descriptor_flags(handed, FdFlags::CLOEXEC);
    Err(error)
}

/// Sets the flags of descriptors, which decide what an exec does with them.
fn set_descriptor_flags(fds: &[RawFd], flags: FdFlags) -> io::Result<()> {
    for &fd in fds {
        if fd <= 2 {
            let words = format!("descriptor {fd} cannot be handed over: not above stdio");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        // SAFETY: not -1; borrowed for one call, which changes only the flag, and fails for a number that is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl_setfd(fd, flags)?;
    }
    Ok(())
}

/// Blocks the signals that ask for the end, also across an [`exec`], until [`unblock_end_signals`].
pub fn block_end_signals() {
    mask(libc::SIG_BLOCK);
}

/// Unblocks these signals. After an [`exec`], call it once they are caught.
pub fn unblock_end_signals() {
    mask(libc::SIG_UNBLOCK);
}

fn mask(how: libc::c_int) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is read or changed; the former mask is not requested.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in END_SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut());
    }
}

/// The state of this crate to keep across an [`exec`], as one argument for [`restore`].
pub fn state() -> String {
    let children: Vec<String> = tree::children_before_exec()
        .iter()
        .map(u32::to_string)
        .collect();
    let limit = limits::original_limit().map_or_else(|| "-".to_owned(), limit_text);
    format!("elders={},limit={limit}", children.join("."))
}

/// Restores the state of [`state`] after an [`exec`]. Ignores fields that it does not know.
pub fn restore(word: &str) -> io::Result<()> {
    // A program that was started by a descriptor would be shown as its number.
    os::set_process_name(c"kennel");
    let field = |name: &str| {
        word.split(',')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    };
    let children = field("elders").unwrap_or_default().split('.');
    tree::remain_subreaper(children.filter_map(|pid| pid.parse().ok()).collect())?;
    if let Some((soft, hard)) = field("limit").and_then(|limit| limit.split_once('/')) {
        limits::record_original(soft.parse().ok(), hard.parse().ok());
    }
    Ok(())
}

fn limit_text((soft, hard): (Option<u64>, Option<u64>)) -> String {
    let number = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |it| it.to_string());
    format!("{}/{}", number(soft), number(hard))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_exec_that_fails_leaves_everything_as_it_was() {
        let no_program = File::open("/etc/passwd").unwrap();
        let handed = File::open("/dev/null").unwrap();
        let error = exec(&no_program, &[OsStr::new("kennel")], &[handed.as_raw_fd()]);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        let flags = rustix::io::fcntl_getfd(&handed).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
        for no_descriptor in [-1, 2] {
            let handed = [handed.as_raw_fd(), no_descriptor];
            let error = exec(&no_program, &[OsStr::new("kennel")], &handed);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let flags = rustix::io::fcntl_getfd(&handed).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn signals_that_ask_for_the_end_are_blocked_and_unblocked() {
        let is_held = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find(|line| line.starts_with("SigBlk:"));
            let blocked = u64::from_str_radix(blocked.unwrap()[7..].trim(), 16).unwrap();
            blocked & (1 << (libc::SIGTERM - 1)) != 0
        };
        block_end_signals();
        assert!(is_held());
        unblock_end_signals();
        assert!(!is_held());
    }

    #[test]
    fn carried_state_can_be_read_back() {
        tree::become_subreaper().unwrap();
        let word = state();
        restore(&word).unwrap();
        assert_eq!(state(), word);
        assert!(restore("later=1").is_ok());
    }
}
