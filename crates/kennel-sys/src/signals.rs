//! Caught signals as an event source.
//!
//! The handler writes the signal's number into a pipe, which is async-signal-safe. The process reads the pipe later.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::Signal;

use crate::os;
use crate::stdio::set_nonblocking;

/// Maximum number of [`Signals`] in a process at the same time.
const SLOTS: usize = 16;
/// Signal numbers are 1 to 64.
const SIGNALS: usize = 65;

/// A set of caught signals. The former dispositions are restored when the last set that catches a signal is dropped.
///
/// A signal that was ignored at the start stays ignored, as `nohup` and `&` require.
#[derive(Debug)]
pub struct Signals {
    slot: usize,
    caught: Vec<Signal>,
}

impl Signals {
    /// Catches `signals` from now on.
    pub fn catch(signals: &[Signal]) -> io::Result<Signals> {
        let mut table = Table::lock();
        let slot = table.free_slot()?;
        OWNER.store(std::process::id() as i32, Ordering::SeqCst);
        let mut caught = Signals {
            slot,
            caught: Vec::new(),
        };
        for &signal in signals {
            match table.install(signal) {
                Ok(true) => {
                    caught.caught.push(signal);
                    CAUGHT_SIGNALS_OF_SLOT[slot].fetch_or(bit(signal.as_raw()), Ordering::SeqCst);
                }
                Ok(false) => {}
                Err(error) => {
                    // Dropping `caught` locks the table again.
                    drop(table);
                    return Err(error);
                }
            }
        }
        Ok(caught)
    }

    /// The next caught signal, if any. Never blocks.
    pub fn next(&self) -> Option<Signal> {
        let mut number = [0u8];
        match rustix::io::read(self.as_fd(), &mut number) {
            Ok(1) => Signal::from_named_raw(i32::from(number[0])),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    /// Readable while there is a caught signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let pipe = PIPES[self.slot].get();
        pipe.expect("a used slot has a pipe").0.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut table = Table::lock();
        CAUGHT_SIGNALS_OF_SLOT[self.slot].store(0, Ordering::SeqCst);
        for &signal in &self.caught {
            table.uninstall(signal);
        }
        // The pipe stays for the next user of the slot: a handler may be writing to it at this moment.
        while self.next().is_some() {}
        USED_SLOTS[self.slot].store(false, Ordering::SeqCst);
    }
}

static OWNER: AtomicI32 = AtomicI32::new(0);
static USED_SLOTS: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
static CAUGHT_SIGNALS_OF_SLOT: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
static WRITE_ENDS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static PIPES: [OnceLock<(OwnedFd, OwnedFd)>; SLOTS] = [const { OnceLock::new() }; SLOTS];

/// The installed and the former signal dispositions.
struct Table {
    users: [usize; SIGNALS],
    former: [Option<libc::sigaction>; SIGNALS],
}

impl Table {
    fn lock() -> std::sync::MutexGuard<'static, Table> {
        static TABLE: Mutex<Table> = Mutex::new(Table {
            users: [0; SIGNALS],
            former: [None; SIGNALS],
        });
        TABLE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free_slot(&mut self) -> io::Result<usize> {
        let slot = (0..SLOTS)
            .find(|&slot| !USED_SLOTS[slot].load(Ordering::SeqCst))
            .ok_or_else(|| io::Error::other("too many parts of this process catch signals"))?;
        if PIPES[slot].get().is_none() {
            let (reader, writer) = io::pipe()?;
            set_nonblocking(&reader)?;
            set_nonblocking(&writer)?;
            let (_, write_end) = PIPES[slot].get_or_init(|| (reader.into(), writer.into()));
            WRITE_ENDS[slot].store(write_end.as_raw_fd(), Ordering::SeqCst);
        }
        USED_SLOTS[slot].store(true, Ordering::SeqCst);
        Ok(slot)
    }

    /// Returns `false` if the signal is ignored, and stays ignored.
    fn install(&mut self, signal: Signal) -> io::Result<bool> {
        let number = signal.as_raw();
        let index = number as usize;
        if self.users[index] == 0 {
            let former = disposition(number, None)?;
            // SIGCHLD is always caught: if it is ignored, the kernel reaps children.
            if former.sa_sigaction == libc::SIG_IGN && signal != Signal::CHILD {
                return Ok(false);
            }
            disposition(number, Some(&our_action()))?;
            self.former[index] = Some(former);
        }
        self.users[index] += 1;
        Ok(true)
    }

    fn uninstall(&mut self, signal: Signal) {
        let number = signal.as_raw();
        let index = number as usize;
        self.users[index] -= 1;
        if self.users[index] > 0 {
            return;
        }
        // Another library may have replaced our handler: then its handler stays.
        let ours = disposition(number, None)
            .is_ok_and(|current| current.sa_sigaction == our_action().sa_sigaction);
        if let (true, Some(former)) = (ours, self.former[index].take()) {
            let _ = disposition(number, Some(&former));
        }
    }
}

/// Restores the default of SIGCHLD if it is not caught here. The starter may have ignored it, which survives an exec: then
/// the kernel reaps our children, their pids may be reused at any time, and waiting for them fails. Async-signal-safe.
pub(crate) fn reap_children_ourselves() {
    let current = disposition(libc::SIGCHLD, None);
    let is_caught = |it: libc::sigaction| it.sa_sigaction == our_action().sa_sigaction;
    // If it is caught here, it stays caught.
    if !current.is_ok_and(is_caught) {
        // SAFETY: setting a disposition to the default installs no code of ours.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }
}

fn our_action() -> libc::sigaction {
    // SAFETY: a sigaction contains plain numbers, and all-zero is a valid one.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = write_signal as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// Returns a signal's disposition, and replaces it if `new` is given.
fn disposition(number: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: as above.
    let mut former: libc::sigaction = unsafe { mem::zeroed() };
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or points to a whole sigaction whose handler is async-signal-safe (`write_signal`,
    // or what was installed before); `former` is written by the kernel; both outlive the call.
    match unsafe { libc::sigaction(number, new, &raw mut former) } {
        0 => Ok(former),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The handler: makes only async-signal-safe calls (getpid, write), and restores errno.
extern "C" fn write_signal(number: libc::c_int) {
    // SAFETY: getpid, write and the access to errno are async-signal-safe; the descriptors are pipes
    // that are never closed once they are in the table, and the byte outlives the call.
    unsafe {
        // Between fork and exec the child shares this pipe, and its signals are not ours.
        if libc::getpid() != OWNER.load(Ordering::SeqCst) {
            return;
        }
        let errno = os::errno();
        let byte = number as u8;
        for slot in 0..SLOTS {
            if CAUGHT_SIGNALS_OF_SLOT[slot].load(Ordering::SeqCst) & bit(number) != 0 {
                let fd = WRITE_ENDS[slot].load(Ordering::SeqCst);
                // If the pipe is full, it is readable anyway.
                libc::write(fd, (&raw const byte).cast(), 1);
            }
        }
        os::set_errno(errno);
    }
}

fn bit(number: i32) -> u64 {
    // Signal 64 has bit 0: there is no signal 0.
    1 << (number as u64 & 63)
}

/// Ignores SIGXFSZ: a write beyond the file size limit (`ulimit -f`) then fails, instead of killing the process. Executed
/// programs inherit that; the warden undoes it for the server.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no code of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Sets the disposition of every signal to the default, for a server before its exec. Otherwise signals that our starter or
/// we ignore stay ignored. Async-signal-safe.
pub(crate) fn default_dispositions() {
    for number in 1..SIGNALS as libc::c_int {
        // SAFETY: setting a disposition to the default installs no code of ours. Numbers that have none are refused.
        unsafe {
            libc::signal(number, libc::SIG_DFL);
        }
    }
}

/// Unblocks all signals in this thread and its future threads. The mask survives an exec: if the starter blocks SIGTERM,
/// this process would never get it.
pub fn unblock_all() {
    let mut none = mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is read; the former mask is not requested.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Lets SIGPIPE end this process when the reader of its output is gone, as shells expect of commands that print.
pub fn end_on_broken_pipe() {
    // SAFETY: the default action replaces what the runtime set; no handler is involved.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_signals_are_unblocked() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
            u64::from_str_radix(blocked.unwrap().trim(), 16).unwrap()
        };
        crate::handover::block_end_signals();
        assert_ne!(blocked(), 0);
        unblock_all();
        assert_eq!(blocked(), 0);
    }

    #[test]
    fn a_signal_that_cannot_be_caught_is_an_error_and_releases_the_others() {
        assert!(Signals::catch(&[Signal::USR1, Signal::KILL]).is_err());
        let default = disposition(Signal::USR1.as_raw(), None).unwrap();
        assert_eq!(default.sa_sigaction, libc::SIG_DFL);
        assert!(Signals::catch(&[Signal::USR1]).is_ok());
    }
}
