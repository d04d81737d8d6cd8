//! Activity of another process: CPU time, bytes read and written, and timers.

use std::io;
use std::time::Duration;

use super::procfs::{gone, lossy_text, require_our_own, short_text};
use super::relations::status;
use crate::process::ProcessWork;

/// CPU time of a process: of all its threads and of the children that it waited for. An error if it cannot be read.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    require_our_own()?;
    let own = process_clock(pid)?;
    let stat = short_text(&format!("/proc/{pid}/stat")).map_err(gone)?;
    let children = ticks_of_children(&stat).ok_or(io::ErrorKind::InvalidData)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(own + Duration::from_millis(children * 1000 / per_second))
}

/// User and system time of waited-for children, in ticks: fields 16 and 17 of proc(5).
fn ticks_of_children(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(ticks(13)? + ticks(14)?)
}

/// CPU time of a process, in nanoseconds: `stat` counts in ticks of 10 ms.
fn process_clock(pid: u32) -> io::Result<Duration> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
    let pid = i32::try_from(pid).map_err(invalid)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: writes one number through a pointer to a local variable.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        error => return Err(gone(io::Error::from_raw_os_error(error))),
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec` through a pointer to a local variable.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let nanos = u32::try_from(time.tv_nsec).map_err(invalid)?;
    let seconds = u64::try_from(time.tv_sec).map_err(invalid)?;
    Ok(Duration::new(seconds, nanos))
}

/// Bytes that a process read and wrote so far, through any descriptor; an error if they are hidden.
pub(crate) fn transferred_bytes(pid: u32) -> io::Result<(u64, u64)> {
    require_our_own()?;
    let text = lossy_text(format!("/proc/{pid}/io")).map_err(gone)?;
    let count = |name: &str| {
        let count = text.lines().find_map(|line| line.strip_prefix(name));
        let count = count.and_then(|count| count.trim().parse().ok());
        count.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    };
    Ok((count("rchar:")?, count("wchar:")?))
}

/// Whether a process has POSIX timers. The kernel does not show which of them run.
pub(crate) fn has_timers(pid: u32) -> io::Result<bool> {
    require_our_own()?;
    let timers = std::fs::read(format!("/proc/{pid}/timers")).map_err(gone);
    timers.map(|timers| !timers.is_empty())
}

/// Whether a process catches SIGALRM, the signal of a timer that the kernel does not show (`alarm`, `setitimer`).
pub(crate) fn catches_alarm(pid: u32) -> io::Result<bool> {
    let caught = status(pid, "SigCgt:")?.and_then(|set| u64::from_str_radix(&set, 16).ok());
    let caught = caught.ok_or(io::ErrorKind::InvalidData)?;
    Ok(caught & ALARM != 0)
}

/// SIGALRM in a set of signals, as `/proc` shows one.
pub(super) const ALARM: u64 = 1 << (libc::SIGALRM - 1);

/// The state letter and CPU time of a process.
pub(crate) fn work(pid: u32) -> Option<ProcessWork> {
    parse_work(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_work(stat: &str) -> Option<ProcessWork> {
    // The command may hold spaces and parentheses: the fields start behind the last one.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let user: u64 = fields.get(11)?.parse().ok()?;
    let system: u64 = fields.get(12)?.parse().ok()?;
    Some(ProcessWork {
        state: fields.first()?.chars().next()?,
        cpu_ticks: user + system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let line = "77 (a) Z 1 (b)) T 42 77 70 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 3 0 991 0 0";
        let work = ProcessWork {
            state: 'T',
            cpu_ticks: 42,
        };
        assert_eq!(parse_work(line), Some(work));
    }

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
    }

    #[test]
    fn timers_and_a_caught_alarm_are_seen_and_a_process_that_is_gone_is_an_error() {
        use std::process::{Command, Stdio};
        let mut child = Command::new("sh")
            .args(["-c", "trap : ALRM; exec >&-; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell is installed");
        let mut output = child.stdout.take().expect("it has a stdout");
        io::Read::read_to_end(&mut output, &mut Vec::new()).expect("it closes its stdout");
        let (pid, me) = (child.id(), std::process::id());
        assert!(catches_alarm(pid).expect("our own child"));
        assert!(!has_timers(pid).expect("our own child"));
        assert!(!catches_alarm(me).expect("this process"));
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        assert!(catches_alarm(pid).is_err() && has_timers(pid).is_err());
        assert!(cpu_time(pid).is_err() && transferred_bytes(pid).is_err());
    }

    fn tempfile() -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("test", flags).expect("a memfd");
        file.into()
    }
}
