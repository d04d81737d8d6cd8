//! Finds out what the threads of another process wait for. An idle server waits for events, without a time limit, in one
//! of a few system calls. A thread in another call may be working.

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, socket_timeout};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use super::descriptors::inode;
use super::procfs::{exists, gone, require_our_own, short_text};
use super::shared_memory::{Memory, memory_at};
use crate::kernel::features;

/// Kernel functions in which a thread waits without a time limit, by their name in `wchan`: for pipe input, and for a
/// child. `poll`, `epoll` and `futex` use the same function with a time limit and without.
const UNLIMITED_WAITS: [&str; 3] = ["pipe_read", "anon_pipe_read", "do_wait"];
/// Stack addresses of 32-bit programs are below this. They have other system call numbers.
const END_OF_32_BITS: u64 = 1 << 32;
/// `FUTEX_PRIVATE_FLAG`: only threads of the same process use the futex, wherever it is.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const FUTEX_PRIVATE: u64 = 0x80;
const MAY_WAKE: &str = "sleeps, and may wake up by itself";

/// The event that a thread waits for.
#[derive(Debug)]
pub(crate) enum Wait {
    /// An event without a time limit, in a call that idle servers use.
    Event,
    /// Something else, or nothing: text that completes "pid 4711 …".
    Other(String),
    /// It cannot be seen, because of this error.
    Unseen(io::Error),
}

impl Wait {
    fn other(words: &str) -> Wait {
        Wait::Other(words.to_owned())
    }
}

/// A thread in `/proc`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    process: u32,
    thread: u32,
}

impl Task {
    pub(super) fn path(self, name: &str) -> String {
        format!("/proc/{}/task/{}/{name}", self.process, self.thread)
    }

    fn text(self, name: &str) -> io::Result<String> {
        short_text(&self.path(name)).map_err(gone)
    }

    pub(super) fn is_zombie(self) -> bool {
        let stat = self.text("stat").unwrap_or_default();
        matches!(state(&stat), "Z" | "X")
    }

    /// Whether an error means that the thread has ended since it was listed.
    pub(super) fn has_ended(self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::NotFound && !exists(self.thread)
    }
}

/// The threads of a process.
pub(super) fn tasks(process: u32) -> io::Result<Vec<Task>> {
    require_our_own()?;
    let mut tasks = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{process}/task")).map_err(gone)? {
        let name = entry.map_err(gone)?.file_name();
        let thread = name.to_str().and_then(|thread| thread.parse().ok());
        tasks.extend(thread.map(|thread| Task { process, thread }));
    }
    Ok(tasks)
}

/// The waits of all threads of a process, except those that have ended.
pub(crate) fn waits(pid: u32) -> io::Result<Vec<Wait>> {
    let tasks = tasks(pid)?.into_iter();
    let waits = tasks.filter_map(|task| match wait_of(task) {
        Err(error) if task.has_ended(&error) => None,
        Err(error) => Some(Wait::Unseen(error)),
        Ok(wait) => wait,
    });
    Ok(waits.collect())
}

fn wait_of(task: Task) -> io::Result<Option<Wait>> {
    let stat = task.text("stat")?;
    let wait = match state(&stat) {
        "Z" | "X" => return Ok(None),
        "S" => return blocked(task).map(Some),
        "R" => Wait::other("runs, or waits for a CPU"),
        "D" => Wait::other("waits for a disk, or in another call that is not interrupted"),
        "T" | "t" => Wait::other("is stopped, and may be continued"),
        state => Wait::Other(format!("is in state {state}")),
    };
    Ok(Some(wait))
}

/// The letter of a thread's state.
fn state(stat: &str) -> &str {
    // The command may contain parentheses: the state follows the last one.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().next().unwrap_or_default()
}

/// The wait of a thread in interruptible sleep.
fn blocked(task: Task) -> io::Result<Wait> {
    let shown = match features().proc_syscall {
        true => task.text("syscall"),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    };
    let hidden = match shown {
        Ok(text) => {
            let read = |fd| wait_to_read(task, fd);
            let futex = |address| wait_at_futex(task, address);
            return Ok(parse_syscall(&text, read, futex));
        }
        Err(error) if task.has_ended(&error) => return Err(error),
        Err(error) => error,
    };
    // Yama denies the call to all processes but ancestors and root (`ptrace_scope` 1), but not the name of the kernel
    // function.
    match task.text("wchan") {
        Ok(function) if UNLIMITED_WAITS.contains(&function.as_str()) => Ok(Wait::Event),
        _ => Ok(Wait::Unseen(hidden)),
    }
}

/// The wait of a thread that reads a descriptor.
fn wait_to_read(task: Task, fd: u64) -> Wait {
    let link = match std::fs::read_link(task.path(&format!("fd/{fd}"))).map_err(gone) {
        Ok(link) => link.to_string_lossy().into_owned(),
        Err(error) => return Wait::Unseen(error),
    };
    if inode(&link, "pipe").is_some() || link == "anon_inode:[eventfd]" {
        return Wait::Event;
    }
    let Some(socket) = inode(&link, "socket") else {
        return Wait::Other(format!("waits to read {link}"));
    };
    match receive_limit(task, fd, socket) {
        Ok(None) => Wait::Event,
        Ok(Some(_)) => Wait::other(MAY_WAKE),
        Err(error) => Wait::Unseen(error),
    }
}

/// The wait of a thread at a futex that is not private to its process. In memory of its own, as at the end of another thread,
/// only the process and the kernel wake it. In shared memory any process can that maps it for a moment, which nobody sees: a
/// worker may wait there for jobs.
fn wait_at_futex(task: Task, address: u64) -> Wait {
    match memory_at(task.process, address) {
        Ok(Some(Memory::Own)) => Wait::Event,
        Ok(Some(Memory::Shared(path))) => {
            Wait::Other(format!("waits at a futex in shared memory ({path})"))
        }
        Ok(None) => Wait::Unseen(io::ErrorKind::NotFound.into()),
        Err(error) => Wait::Unseen(error),
    }
}

/// The receive timeout of a socket. No file shows it: it is read through a copy of the descriptor.
fn receive_limit(task: Task, fd: u64, socket: u64) -> io::Result<Option<Duration>> {
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    if !features().pidfd {
        return Err(unsupported());
    }
    let process = super::open_process(task.process)?;
    let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    let copy = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?;
    // A thread may have its own table, in which the number means another file.
    if rustix::fs::fstat(&copy)?.st_ino != socket {
        return Err(unsupported());
    }
    Ok(socket_timeout(&copy, Timeout::Recv)?)
}

/// Parses a line of `/proc/<pid>/syscall`: the number of the call, six arguments, and two addresses, first that of the
/// stack. `read` says what a reader of a descriptor waits for, `futex` what a thread waits for at the address of a futex that
/// other processes may use.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn parse_syscall(line: &str, read: impl Fn(u64) -> Wait, futex: impl Fn(u64) -> Wait) -> Wait {
    let mut words = line.split_whitespace();
    let number = words.next().unwrap_or_default();
    let words: Option<Vec<u64>> = words
        .map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    let (number, arguments, stack) = match (number.parse::<libc::c_long>(), words.as_deref()) {
        (Ok(number), Some([arguments @ .., stack, _])) if arguments.len() == 6 => {
            (number, arguments, *stack)
        }
        (Ok(-1), _) => return Wait::other("waits outside of a system call"),
        _ if number == "running" => return Wait::other("runs, or waits for a CPU"),
        _ => return Wait::Unseen(io::ErrorKind::InvalidData.into()),
    };
    if stack < END_OF_32_BITS {
        return Wait::other("is a 32-bit program, whose system calls are not known");
    }
    // The address of a time, or an `int` of milliseconds, which is negative without a limit.
    let unless = |limited: bool| match limited {
        true => Wait::other(MAY_WAKE),
        false => Wait::Event,
    };
    let time = |at: usize| unless(arguments[at] != 0);
    let milliseconds = |at: usize| unless(arguments[at] & (1 << 31) == 0);
    match number {
        // FUTEX_WAIT and FUTEX_WAIT_BITSET, private or shared, with either clock.
        libc::SYS_futex if matches!(arguments[1] & 0x7f, 0 | 9) => match time(3) {
            Wait::Event if arguments[1] & FUTEX_PRIVATE == 0 => futex(arguments[0]),
            wait => wait,
        },
        libc::SYS_ppoll => time(2),
        libc::SYS_pselect6 => time(4),
        libc::SYS_epoll_pwait2 => time(3),
        libc::SYS_epoll_pwait => milliseconds(3),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => milliseconds(2),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => milliseconds(3),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => time(4),
        libc::SYS_wait4 | libc::SYS_waitid => Wait::Event,
        libc::SYS_read | libc::SYS_readv => read(arguments[0]),
        libc::SYS_recvfrom | libc::SYS_recvmsg => read(arguments[0]),
        libc::SYS_rt_sigtimedwait if arguments[2] != 0 => Wait::other(MAY_WAKE),
        number => Wait::Other(describe_call(number)),
    }
}

/// Other platforms have other system call numbers.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn parse_syscall(_line: &str, _read: impl Fn(u64) -> Wait, _futex: impl Fn(u64) -> Wait) -> Wait {
    Wait::Unseen(io::ErrorKind::Unsupported.into())
}

/// Describes a system call that idle servers do not use.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn describe_call(number: libc::c_long) -> String {
    let words = match number {
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => MAY_WAKE,
        // A call with a time limit that was interrupted, as by closing a laptop. A `poll` without a limit looks the same.
        libc::SYS_restart_syscall => MAY_WAKE,
        libc::SYS_openat | libc::SYS_openat2 => "waits for a file to be opened, as a named pipe",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => "waits for a file to be opened, as a named pipe",
        libc::SYS_fcntl | libc::SYS_flock => "waits for a lock",
        libc::SYS_semop | libc::SYS_semtimedop => "waits at a System V semaphore",
        libc::SYS_msgsnd | libc::SYS_msgrcv => "waits at a System V message queue",
        libc::SYS_rt_sigsuspend | libc::SYS_rt_sigtimedwait => "waits for a signal",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pause => "waits for a signal",
        libc::SYS_io_uring_enter => "waits for an io_uring, perhaps with a time limit",
        _ => return format!("is in system call {number}, in which servers do not wait for events"),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a wait; empty for an event.
    fn words(wait: Wait) -> String {
        match wait {
            Wait::Event => String::new(),
            Wait::Other(words) => words,
            Wait::Unseen(error) => format!("unseen: {error}"),
        }
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn only_waits_for_events_without_a_time_limit_count_as_idle() {
        let read = |fd| match fd {
            3 => Wait::Event,
            _ => Wait::other("reads something else"),
        };
        let futex = |address| match address {
            1 => Wait::Event,
            _ => Wait::other("waits at a shared futex"),
        };
        let in_call = |number: libc::c_long, arguments: [u64; 6]| {
            let arguments: Vec<String> = arguments.iter().map(|it| format!("{it:#x}")).collect();
            let arguments = arguments.join(" ");
            words(parse_syscall(
                &format!("{number} {arguments} 0x7ffc00000000 0x400000\n"),
                read,
                futex,
            ))
        };
        const ENDLESS: u64 = 0xffff_ffff;
        for (number, arguments, expected) in [
            (libc::SYS_futex, [1, 0x189, 0, 0, 0, 0], ""),
            (libc::SYS_futex, [1, 0x80, 0, 0, 9, 9], ""),
            (libc::SYS_futex, [1, 0x189, 0, 0x7f00, 0, 0], "sleeps"),
            (libc::SYS_futex, [1, 0, 0, 0, 0, 0], ""),
            (libc::SYS_futex, [2, 0, 0, 0, 0, 0], "shared futex"),
            (libc::SYS_futex, [2, 0x109, 0, 0, 0, 0], "shared futex"),
            (libc::SYS_futex, [2, 0x80, 0, 0, 0, 0], ""),
            (libc::SYS_futex, [2, 0, 0, 0x7f00, 0, 0], "sleeps"),
            (libc::SYS_futex_waitv, [1, 1, 0, 0, 0, 0], "system call"),
            // FUTEX_LOCK_PI
            (libc::SYS_futex, [1, 0x86, 0, 0, 0, 0], "system call"),
            (libc::SYS_ppoll, [0, 0, 0, 9, 9, 9], ""),
            (libc::SYS_ppoll, [0, 0, 0x7f00, 0, 0, 0], "sleeps"),
            (libc::SYS_pselect6, [9, 9, 9, 9, 0, 9], ""),
            (libc::SYS_pselect6, [0, 0, 0, 0, 0x7f00, 0], "sleeps"),
            (libc::SYS_epoll_pwait, [3, 9, 9, ENDLESS, 0, 8], ""),
            (libc::SYS_epoll_pwait, [3, 9, 9, u64::MAX, 0, 8], ""),
            (libc::SYS_epoll_pwait, [3, 9, 9, 1000, 0, 8], "sleeps"),
            (libc::SYS_epoll_pwait2, [3, 9, 9, 0, 0, 8], ""),
            (libc::SYS_epoll_pwait2, [3, 9, 9, 0x7f00, 0, 8], "sleeps"),
            (libc::SYS_wait4, [9, 9, 9, 9, 9, 9], ""),
            (libc::SYS_waitid, [9, 9, 9, 9, 9, 9], ""),
            (libc::SYS_read, [3, 9, 9, 9, 9, 9], ""),
            (libc::SYS_readv, [3, 9, 9, 9, 9, 9], ""),
            (libc::SYS_recvfrom, [3, 9, 9, 9, 9, 9], ""),
            (libc::SYS_recvmsg, [3, 9, 9, 9, 9, 9], ""),
            (libc::SYS_read, [4, 9, 9, 9, 9, 9], "something else"),
            (libc::SYS_recvmmsg, [3, 9, 9, 9, 9, 9], "system call"),
            (libc::SYS_write, [3, 9, 9, 9, 9, 9], "system call"),
            (libc::SYS_openat, [0; 6], "opened"),
            (libc::SYS_openat2, [0; 6], "opened"),
            (libc::SYS_fcntl, [0; 6], "lock"),
            (libc::SYS_flock, [0; 6], "lock"),
            (libc::SYS_semop, [0; 6], "System V semaphore"),
            (libc::SYS_msgrcv, [0; 6], "System V message queue"),
            (libc::SYS_nanosleep, [0; 6], "sleeps"),
            (libc::SYS_clock_nanosleep, [0; 6], "sleeps"),
            (libc::SYS_restart_syscall, [0; 6], "sleeps"),
            (libc::SYS_rt_sigtimedwait, [0; 6], "signal"),
            (libc::SYS_rt_sigtimedwait, [0, 0, 9, 0, 0, 0], "sleeps"),
            (libc::SYS_rt_sigsuspend, [0; 6], "signal"),
            (libc::SYS_io_uring_enter, [0; 6], "io_uring"),
            (libc::SYS_io_getevents, [0; 6], "system call"),
        ] {
            let words = in_call(number, arguments);
            let agrees = words.contains(expected) && words.is_empty() == expected.is_empty();
            assert!(agrees, "call {number} {arguments:x?}: {words}");
        }
        let line = |line: &str| words(parse_syscall(line, read, futex));
        assert!(line("running\n").contains("runs"));
        assert!(line("-1 0x7ffc00000000 0x400000\n").contains("outside"));
        let small = format!(
            "{} 0x3 0x0 0x0 0x0 0x0 0x0 0xffb3c0d8 0xf7f00000",
            libc::SYS_read
        );
        assert!(line(&small).contains("32-bit"));
        for broken in ["", "x", "0", "0 0x3", "0 3 0 0 0 0 0 0x7ffc00000000 0x4"] {
            assert!(line(broken).contains("unseen"), "{broken}");
        }
    }

    #[test]
    fn a_reader_waits_for_an_event_at_a_pipe_or_at_a_socket_without_a_time_limit() {
        use std::os::fd::AsRawFd;
        let me = std::process::id();
        let task = Task {
            process: me,
            thread: me,
        };
        let read = |file: &dyn AsRawFd| {
            let fd = u64::try_from(file.as_raw_fd()).expect("an open descriptor");
            words(wait_to_read(task, fd))
        };
        let (reader, _writer) = io::pipe().expect("a pipe");
        assert_eq!(read(&reader), "");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(read(&socket), "");
        let limit = Some(Duration::from_secs(1000));
        socket.set_read_timeout(limit).expect("our own socket");
        assert_eq!(read(&socket), MAY_WAKE);
        let file = std::fs::File::open("/proc/self/mounts").expect("it is there");
        assert!(read(&file).contains("waits to read /proc"));
        assert!(words(wait_to_read(task, 1 << 20)).contains("unseen"));
    }

    #[test]
    fn a_wait_at_a_futex_in_shared_memory_is_a_doubt() {
        use std::os::fd::AsFd;

        use rustix::mm::{MapFlags, ProtFlags};
        let me = std::process::id();
        let task = Task {
            process: me,
            thread: me,
        };
        let scope = kennel_testkit::Scope::new("futex");
        let path = scope.path("queue");
        let mut options = std::fs::File::options();
        let options = options.read(true).write(true).create_new(true);
        let file = options.open(&path).expect("a new file");
        file.set_len(4096).expect("our own file");
        let mapped = |access, flags| {
            // SAFETY: a new mapping at an address that the kernel chooses, which nothing reads or writes.
            let at = unsafe {
                rustix::mm::mmap(std::ptr::null_mut(), 4096, access, flags, file.as_fd(), 0)
            };
            at.expect("a mapping").addr() as u64
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // A private mapping that is only read has the same futexes as the file.
        for (access, flags, is_shared) in [
            (both, MapFlags::SHARED, true),
            (ProtFlags::READ, MapFlags::SHARED, true),
            (ProtFlags::READ, MapFlags::PRIVATE, true),
            (both, MapFlags::PRIVATE, false),
        ] {
            let at = mapped(access, flags);
            for address in [at, at + 4092] {
                let words = words(wait_at_futex(task, address));
                let named = words.contains(path.to_str().expect("plain text"));
                assert_eq!(named, is_shared, "{access:?} {flags:?}: {words}");
                assert_eq!(words.is_empty(), !is_shared, "{words}");
            }
        }
        let on_the_stack = 0_u32;
        let on_the_stack = (&raw const on_the_stack).addr() as u64;
        assert_eq!(words(wait_at_futex(task, on_the_stack)), "");
        assert!(
            words(wait_at_futex(task, 0)).contains("unseen"),
            "no memory"
        );
    }

    #[test]
    fn every_thread_of_a_process_is_checked() {
        use std::process::{Command, Stdio};
        let start = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            let command = command.args(&words[1..]).stdin(Stdio::piped());
            command.spawn().expect("it is installed")
        };
        let all = |pid: u32| -> Vec<String> {
            let waits = waits(pid).expect("our own child");
            waits.into_iter().map(words).collect()
        };
        let mut sleeper = start(&["sleep", "1000"]);
        let mut reader = start(&["cat"]);
        // Until both are in the call that they stay in.
        while all(sleeper.id()) != [MAY_WAKE] || all(reader.id()) != [""] {
            std::thread::yield_now();
        }
        for child in [&mut sleeper, &mut reader] {
            child.kill().expect("our own child");
            while !all(child.id()).is_empty() {
                std::thread::yield_now();
            }
            child.wait().expect("our own child");
            assert!(waits(child.id()).is_err(), "it is gone");
        }
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = ended.recv_timeout(std::time::Duration::from_secs(1000));
        });
        let me = std::process::id();
        while !all(me).iter().any(|wait| wait == MAY_WAKE) {
            std::thread::yield_now();
        }
        assert!(all(me).iter().any(|wait| wait.contains("runs")), "we do");
        drop(end);
        thread.join().expect("no panic");
    }
}
