//! Caught signals as something to poll.
//!
//! A handler does the only thing a handler may: it writes the signal's number into a pipe. Whoever
//! caught it reads it from there, in its own time.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::Signal;

use crate::os;
use crate::stdio::set_nonblocking;

/// How many parts of one process may listen at the same time.
const SLOTS: usize = 16;
/// Signals are counted from 1 to 64.
const SIGNALS: usize = 65;

/// A set of caught signals; their former dispositions return when the last one who caught them is dropped.
///
/// A signal that was ignored when we came stays ignored: `nohup` and `&` mean it.
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
                    WANTED[slot].fetch_or(bit(signal.as_raw()), Ordering::SeqCst);
                }
                Ok(false) => {}
                Err(error) => {
                    // Dropping what was caught so far takes the table again.
                    drop(table);
                    return Err(error);
                }
            }
        }
        Ok(caught)
    }

    /// The next signal that came, if one did. Never blocks.
    pub fn next(&self) -> Option<Signal> {
        let mut number = [0u8];
        match rustix::io::read(self.as_fd(), &mut number) {
            Ok(1) => Signal::from_named_raw(i32::from(number[0])),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    /// Readable while a caught signal waits to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let pipe = PIPES[self.slot].get();
        pipe.expect("a slot in use has its pipe").0.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut table = Table::lock();
        WANTED[self.slot].store(0, Ordering::SeqCst);
        for &signal in &self.caught {
            table.uninstall(signal);
        }
        // The pipe stays for the slot's next user: a handler may be writing to it at this moment.
        while self.next().is_some() {}
        TAKEN[self.slot].store(false, Ordering::SeqCst);
    }
}

static OWNER: AtomicI32 = AtomicI32::new(0);
static TAKEN: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
static WANTED: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
static WRITE_ENDS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static PIPES: [OnceLock<(OwnedFd, OwnedFd)>; SLOTS] = [const { OnceLock::new() }; SLOTS];

/// Which dispositions are ours, and what they replaced.
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
            .find(|&slot| !TAKEN[slot].load(Ordering::SeqCst))
            .ok_or_else(|| io::Error::other("too many parts of this process catch signals"))?;
        if PIPES[slot].get().is_none() {
            let (reader, writer) = io::pipe()?;
            set_nonblocking(&reader)?;
            set_nonblocking(&writer)?;
            let (_, write_end) = PIPES[slot].get_or_init(|| (reader.into(), writer.into()));
            WRITE_ENDS[slot].store(write_end.as_raw_fd(), Ordering::SeqCst);
        }
        TAKEN[slot].store(true, Ordering::SeqCst);
        Ok(slot)
    }

    /// `false` if the signal is ignored, and stays so.
    fn install(&mut self, signal: Signal) -> io::Result<bool> {
        let number = signal.as_raw();
        let index = number as usize;
        if self.users[index] == 0 {
            let former = disposition(number, None)?;
            // Ignored, its children would be reaped by nobody's hand: SIGCHLD is always caught.
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
        // Somebody may have put a handler of theirs over ours since: then it is theirs to keep.
        let ours = disposition(number, None)
            .is_ok_and(|current| current.sa_sigaction == our_action().sa_sigaction);
        if let (true, Some(former)) = (ours, self.former[index].take()) {
            let _ = disposition(number, Some(&former));
        }
    }
}

/// Whoever started us may have ignored SIGCHLD, which survives an exec: then the kernel reaps our
/// children, their pids are given away under our hands, and waiting for them fails. Async-signal-safe.
pub(crate) fn reap_children_ourselves() {
    let current = disposition(libc::SIGCHLD, None);
    let is_caught = |it: libc::sigaction| it.sa_sigaction == our_action().sa_sigaction;
    // Who catches it goes on hearing of it.
    if !current.is_ok_and(is_caught) {
        // SAFETY: setting a disposition to the default installs no code of ours.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }
}

fn our_action() -> libc::sigaction {
    // SAFETY: a sigaction is plain numbers, and all-zero is a valid one.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// Reads a signal's disposition, and replaces it if there is a new one.
fn disposition(number: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: as above.
    let mut former: libc::sigaction = unsafe { mem::zeroed() };
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or points to a whole sigaction whose handler is async-signal-safe (`note`,
    // or what was installed before); `former` is written by the kernel; both outlive the call.
    match unsafe { libc::sigaction(number, new, &raw mut former) } {
        0 => Ok(former),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The handler: async-signal-safe calls only (getpid, write), errno kept.
extern "C" fn note(number: libc::c_int) {
    // SAFETY: getpid, write and the access to errno are async-signal-safe; the descriptors are pipes
    // that are never closed once they are in the table, and the byte outlives the call.
    unsafe {
        // Between a fork and its exec the child shares this pipe: its signals are not ours.
        if libc::getpid() != OWNER.load(Ordering::SeqCst) {
            return;
        }
        let errno = os::errno();
        let byte = number as u8;
        for slot in 0..SLOTS {
            if WANTED[slot].load(Ordering::SeqCst) & bit(number) != 0 {
                let fd = WRITE_ENDS[slot].load(Ordering::SeqCst);
                // A full pipe holds news enough.
                libc::write(fd, (&raw const byte).cast(), 1);
            }
        }
        os::set_errno(errno);
    }
}

fn bit(number: i32) -> u64 {
    // Signal 64 shares its bit with none: there is no signal 0.
    1 << (number as u64 & 63)
}

/// A file that may not grow any more (`ulimit -f`) is an error to whoever writes it from now on, and not the end of this
/// process. What is executed inherits that; the warden undoes it for the server.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no code of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Sets the disposition of every signal to the default: for a server, before it is executed. What our starter ignored,
/// and what we ignore, survives an exec otherwise. Async-signal-safe.
pub(crate) fn default_dispositions() {
    for number in 1..SIGNALS as libc::c_int {
        // SAFETY: setting a disposition to the default installs no code of ours. Numbers that have none are refused.
        unsafe {
            libc::signal(number, libc::SIG_DFL);
        }
    }
}

/// Unblocks all signals in this thread, and in those that it starts from now on. A mask survives an exec: a starter that
/// blocks SIGTERM would make this process deaf to it.
pub fn unblock_all() {
    let mut none = mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is read; the former mask is not asked for.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// For commands that print and end: whoever closes our output ends us, as every shell expects.
pub fn end_with_the_reader() {
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
        crate::handover::hold_signals();
        assert_ne!(blocked(), 0);
        unblock_all();
        assert_eq!(blocked(), 0);
    }

    #[test]
    fn a_signal_that_cannot_be_caught_is_an_error_and_lets_go_of_the_others() {
        assert!(Signals::catch(&[Signal::USR1, Signal::KILL]).is_err());
        let default = disposition(Signal::USR1.as_raw(), None).unwrap();
        assert_eq!(default.sa_sigaction, libc::SIG_DFL);
        assert!(Signals::catch(&[Signal::USR1]).is_ok());
    }
}
