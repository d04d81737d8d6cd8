//! Relations of a process with others: its thread group, who traces it, its pid namespace, and whether its control group is frozen.

use std::io;
use std::os::unix::fs::MetadataExt;

use super::procfs::{gone, processes, require_our_own};

/// A line of `/proc/<pid>/status`, behind its name.
fn status(pid: u32, name: &str) -> io::Result<Option<String>> {
    require_our_own()?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(gone)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.map(|value| value.trim().to_owned()))
}

fn number(pid: u32, name: &str) -> io::Result<Option<u32>> {
    let number = status(pid, name)?.and_then(|value| value.parse().ok());
    Ok(number.filter(|&number| number != 0))
}

/// The process that a thread belongs to.
pub(crate) fn thread_group(task: u32) -> io::Result<Option<u32>> {
    number(task, "Tgid:")
}

/// The process that traces this one, such as a debugger; an error where that cannot be seen.
pub(crate) fn tracer_of(pid: u32) -> io::Result<Option<u32>> {
    number(pid, "TracerPid:")
}

/// Every process that is traced: the tracer, and the traced one.
pub(crate) fn traced() -> Vec<(u32, u32)> {
    let pids = processes().unwrap_or_default().into_iter();
    let traced = pids.filter_map(|pid| {
        // The kernel names the thread that traces.
        let tracer = tracer_of(pid).ok()??;
        let process = thread_group(tracer).ok().flatten();
        Some((process.unwrap_or(tracer), pid))
    });
    traced.collect()
}

/// The pid namespace whose init a process is, if it is one below ours.
pub(crate) fn namespace_of_init(pid: u32) -> Option<u64> {
    // Its numbers from our namespace down to its own.
    let numbers = status(pid, "NSpid:").ok()??;
    let is_init = is_init_below(&numbers);
    is_init.then(|| namespace_of(pid).ok()).flatten()
}

fn is_init_below(numbers: &str) -> bool {
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    numbers.len() > 1 && numbers.last() == Some(&"1")
}

fn namespace_of(pid: u32) -> io::Result<u64> {
    Ok(std::fs::metadata(format!("/proc/{pid}/ns/pid"))?.ino())
}

/// Processes in a pid namespace.
pub(crate) fn processes_in(namespace: u64) -> Vec<u32> {
    let mut pids = processes().unwrap_or_default();
    pids.retain(|&pid| namespace_of(pid).is_ok_and(|theirs| theirs == namespace));
    pids
}

/// Where control groups are mounted, the line of `/proc/<pid>/cgroup` that names the group, and the file and line there that
/// say that it is frozen.
const FREEZERS: [(&str, &str, &str, &str); 3] = [
    ("/sys/fs/cgroup", "::", "cgroup.events", "frozen 1"),
    ("/sys/fs/cgroup/unified", "::", "cgroup.events", "frozen 1"),
    (
        "/sys/fs/cgroup/freezer",
        ":freezer:",
        "freezer.state",
        "FROZEN",
    ),
];

/// Whether the control group of a process is frozen.
pub(crate) fn is_frozen(pid: u32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    FREEZERS.iter().any(|(root, name, file, frozen)| {
        let groups = groups.lines().filter_map(|line| line.split_once(name));
        let mut states = groups.map(|(_, group)| {
            std::fs::read_to_string(format!("{root}{group}/{file}")).unwrap_or_default()
        });
        states.any(|state| state.lines().any(|line| line == *frozen))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leads_to_its_process() {
        let me = std::process::id();
        let task = std::thread::spawn(move || {
            let task = rustix::thread::gettid().as_raw_nonzero().get();
            let task = u32::try_from(task).expect("positive");
            (task, thread_group(task).expect("our own"))
        });
        let (task, group) = task.join().expect("no panic");
        assert_ne!(task, me);
        assert_eq!(group, Some(me));
        assert_eq!(thread_group(me).expect("our own"), Some(me));
        assert_eq!(tracer_of(me).expect("our own"), None);
        assert!(!is_frozen(me));
    }

    #[test]
    fn an_init_is_the_first_of_a_namespace_below_ours() {
        assert!(is_init_below("4711\t1"));
        assert!(is_init_below("4711\t20\t1"));
        assert!(!is_init_below("1"), "our own init");
        assert!(!is_init_below("4711"));
        assert!(!is_init_below("4711\t2"));
        assert_eq!(namespace_of_init(std::process::id()), None);
    }
}
