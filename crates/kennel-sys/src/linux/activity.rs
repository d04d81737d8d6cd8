//! Work that another process does: CPU time, bytes read and written, and calls that it is blocked in.

use std::io;
use std::time::Duration;

use super::procfs::require_our_own;

/// CPU time of a process, of all its threads and of the children that it waited for.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let own = process_clock(pid)?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    // Fields 16 and 17 of proc(5): user and system time of waited-for children, in ticks.
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let children = ticks(13)? + ticks(14)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(own + Duration::from_millis(children * 1000 / per_second))
}

/// CPU time of a process, in nanoseconds: `stat` counts in ticks of 10 ms.
fn process_clock(pid: u32) -> Option<Duration> {
    let pid = i32::try_from(pid).ok()?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: writes one number through a pointer to a local variable.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec` through a pointer to a local variable.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// Bytes that a process read and wrote so far, from and to anything; an error where that is hidden.
pub(crate) fn transferred_bytes(pid: u32) -> io::Result<(u64, u64)> {
    require_our_own()?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let count = |name: &str| {
        let count = text.lines().find_map(|line| line.strip_prefix(name));
        let count = count.and_then(|count| count.trim().parse().ok());
        count.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    };
    Ok((count("rchar:")?, count("wchar:")?))
}

/// Whether a thread of a process is in uninterruptible sleep (state D): it waits for a disk or a file server, midway in a call.
pub(crate) fn waits_for_device(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The command may hold parentheses of its own: the state is behind the last one.
        stat.rsplit(')')
            .next()
            .is_some_and(|fields| fields.starts_with(" D"))
    })
}

/// A call on a System V semaphore or message queue that a thread of a process is blocked in, where the kernel shows it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn blocked_on_system_v(pid: u32) -> Option<&'static str> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        let text = std::fs::read_to_string(task.path().join("syscall")).ok()?;
        let number: libc::c_long = text.split(' ').next()?.parse().ok()?;
        match number {
            libc::SYS_semop | libc::SYS_semtimedop => Some("semaphore"),
            libc::SYS_msgsnd | libc::SYS_msgrcv => Some("message queue"),
            _ => None,
        }
    })
}

/// Other platforms number their calls in other ways.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn blocked_on_system_v(_pid: u32) -> Option<&'static str> {
    None
}

/// Whether the first thread of a process waits for at most a time: a job may go on then. Other threads that do are timers of
/// servers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn sleeps(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let mut words = call.split_whitespace();
    let number: Option<libc::c_long> = words.next().and_then(|word| word.parse().ok());
    let arguments: Vec<u64> = words
        .map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    // The address of a time, or an `int` of milliseconds, which is negative if there is no end.
    let time = |at: usize| arguments.get(at).is_some_and(|&time| time != 0);
    let milliseconds = |at: usize| arguments.get(at).is_some_and(|time| time & (1 << 31) == 0);
    match number {
        Some(libc::SYS_nanosleep | libc::SYS_clock_nanosleep) => true,
        // A call with a time that was interrupted, as by a laptop's lid. A `poll` without one looks the same.
        Some(libc::SYS_restart_syscall) => true,
        Some(libc::SYS_ppoll | libc::SYS_rt_sigtimedwait) => time(2),
        Some(libc::SYS_futex | libc::SYS_epoll_pwait2) => time(3),
        Some(libc::SYS_pselect6) => time(4),
        Some(libc::SYS_epoll_pwait) => milliseconds(3),
        #[cfg(target_arch = "x86_64")]
        Some(libc::SYS_poll) => milliseconds(2),
        #[cfg(target_arch = "x86_64")]
        Some(libc::SYS_epoll_wait) => milliseconds(3),
        #[cfg(target_arch = "x86_64")]
        Some(libc::SYS_select) => time(4),
        _ => false,
    }
}

/// Other platforms number their calls in other ways.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn sleeps(_pid: u32) -> bool {
    false
}

/// Whether a process has POSIX timers. The kernel does not show which of them run.
pub(crate) fn has_timers(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/timers")).is_ok_and(|timers| !timers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_transferred_bytes_grow_with_work() {
        let me = std::process::id();
        let (cpu, bytes) = (cpu_time(me), transferred_bytes(me));
        let cpu = cpu.expect("our own CPU time");
        let (read, written) = bytes.expect("our own bytes");
        let mut sum = 0u64;
        while cpu_time(me).expect("our own CPU time") < cpu + Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        let mut file = tempfile();
        io::Write::write_all(&mut file, &[0; 8192]).expect("a writable file");
        io::Seek::rewind(&mut file).expect("a file");
        io::Read::read_exact(&mut file, &mut [0; 8192]).expect("a readable file");
        let now = transferred_bytes(me).expect("our own bytes");
        assert!(now.0 >= read + 8192 && now.1 >= written + 8192, "{now:?}");
        assert_eq!(blocked_on_system_v(me), None);
    }

    #[test]
    fn a_process_that_waits_for_a_time_is_told_from_one_that_waits_for_events() {
        use std::process::{Command, Stdio};
        let start = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            let command = command.args(&words[1..]).stdin(Stdio::piped());
            command.spawn().expect("it is installed")
        };
        let call = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
            text.unwrap_or_default()
                .split(' ')
                .next()
                .map(str::to_owned)
        };
        let mut sleeper = start(&["sleep", "1000"]);
        let mut reader = start(&["cat"]);
        let read = libc::SYS_read.to_string();
        // Until both are in the call that they stay in.
        while !sleeps(sleeper.id()) || call(reader.id()).as_deref() != Some(&read) {
            std::thread::yield_now();
        }
        assert!(!sleeps(reader.id()));
        for child in [&mut sleeper, &mut reader] {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
    }

    fn tempfile() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("test", flags).expect("a memfd");
        file.into()
    }
}
