//! Relations of a process with others: thread group, tracer, adoption, namespaces, and frozen control groups.

use std::io;
use std::os::unix::fs::MetadataExt;

use super::procfs::{command_name, environ_has, gone, lossy_text, processes, require_our_own};
use super::waits::tasks;

/// The value of a line in `/proc/<pid>/status`.
pub(super) fn status(pid: u32, name: &str) -> io::Result<Option<String>> {
    require_our_own()?;
    let text = lossy_text(format!("/proc/{pid}/status")).map_err(gone)?;
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

/// The process that traces this one, such as a debugger; an error if that cannot be seen.
pub(crate) fn tracer_of(pid: u32) -> io::Result<Option<u32>> {
    number(pid, "TracerPid:")
}

/// All traced processes, as (tracer, traced).
pub(crate) fn traced() -> Vec<(u32, u32)> {
    let pids = processes().unwrap_or_default().into_iter();
    let traced = pids.filter_map(|pid| {
        // The kernel gives the id of the tracing thread.
        let tracer = tracer_of(pid).ok()??;
        let process = thread_group(tracer).ok().flatten();
        Some((process.unwrap_or(tracer), pid))
    });
    traced.collect()
}

/// Programs besides pid 1 that adopt orphaned processes: a user's session manager, or a container's init.
const REAPERS: [&str; 6] = [
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
];

/// Whether a process is known to adopt orphaned processes. Any other parent in another session may have left the session in
/// which it started the child, or adopt its own services, as a supervisor does.
pub(crate) fn is_reaper(pid: u32) -> bool {
    pid == 1 || REAPERS.contains(&command_name(pid).unwrap_or_default().as_str())
}

/// Whether the service manager started a process, rather than adopted it: systemd sets this variable for what it starts. Read
/// from the environment of the process itself, since a launcher in between may have changed ours.
pub(crate) fn started_by_service_manager(pid: u32) -> bool {
    environ_has(pid, &format!("SYSTEMD_EXEC_PID={pid}"))
}

/// The pid namespace of which a process is the init, if it is below ours.
pub(crate) fn namespace_of_init(pid: u32) -> Option<u64> {
    // Its pids from our namespace down to its own.
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

/// The processes in a pid namespace.
pub(crate) fn processes_in(namespace: u64) -> Vec<u32> {
    let mut pids = processes().unwrap_or_default();
    pids.retain(|&pid| namespace_of(pid).is_ok_and(|theirs| theirs == namespace));
    pids
}

/// Namespaces that end with their last process, and with them devices, mounts, processes, ids or semaphores.
const NAMESPACES: [(&str, &str); 5] = [
    ("net", "network"),
    ("mnt", "mount"),
    ("pid", "pid"),
    ("user", "user"),
    ("ipc", "IPC"),
];

/// The kind of a namespace that differs from ours for a thread of a process. An error if that cannot be seen.
pub(crate) fn foreign_namespace(pid: u32) -> io::Result<Option<&'static str>> {
    let tasks = tasks(pid)?;
    for (file, kind) in NAMESPACES {
        let ours = match std::fs::read_link(format!("/proc/self/ns/{file}")) {
            // A kernel without such namespaces.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            ours => ours?,
        };
        for task in &tasks {
            match std::fs::read_link(task.path(&format!("ns/{file}"))).map_err(gone) {
                Ok(theirs) if theirs == ours => {}
                Ok(_) => return Ok(Some(kind)),
                Err(error) if task.has_ended(&error) => {}
                // A thread that has ended but was not reaped, such as a first thread, has no namespaces.
                Err(error) if error.kind() == io::ErrorKind::NotFound && task.is_zombie() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// For each version of control groups: the mount points, the controller that names the group in `/proc/<pid>/cgroup` (none
/// in version 2), the file with the frozen state, and its line for "not frozen".
const FREEZERS: [(&[&str], &str, &str, &str); 2] = [
    (
        &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        "",
        "cgroup.events",
        "frozen 0",
    ),
    (
        &["/sys/fs/cgroup/freezer"],
        "freezer",
        "freezer.state",
        "THAWED",
    ),
];

/// The group of a controller in the text of `/proc/<pid>/cgroup`: `4:freezer:/group`.
fn group_of<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let mut controllers = fields.next()?.split(',');
        controllers
            .any(|it| it == controller)
            .then(|| fields.next())?
    })
}

/// Whether a control group is `other` or an ancestor of it.
fn is_or_contains(group: &str, other: &str) -> bool {
    let below = other.strip_prefix(group.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Whether the control group of a process is frozen; an error if that cannot be seen.
pub(crate) fn is_frozen(pid: u32) -> io::Result<bool> {
    require_our_own()?;
    let groups = |pid: &str| lossy_text(format!("/proc/{pid}/cgroup")).map_err(gone);
    let theirs = match groups(&pid.to_string()) {
        // A kernel without control groups.
        Err(error) if error.kind() == io::ErrorKind::NotFound && groups("self").is_err() => {
            return Ok(false);
        }
        theirs => theirs?,
    };
    let ours = groups("self")?;
    for (roots, controller, file, running) in FREEZERS {
        // Freezing a group freezes its descendants too. We run, so neither our group nor an ancestor of it is frozen.
        let ours = group_of(&ours, controller).unwrap_or_default();
        let group = group_of(&theirs, controller).filter(|theirs| !is_or_contains(theirs, ours));
        let Some(group) = group else {
            continue;
        };
        let states = roots.iter().map(|root| format!("{root}{group}/{file}"));
        let state = states.map(lossy_text).find_map(Result::ok);
        let state = state.ok_or(io::ErrorKind::NotFound)?;
        if !state.lines().any(|line| line == running) {
            return Ok(true);
        }
    }
    Ok(false)
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
        assert!(!is_frozen(me).expect("our own"));
        assert_eq!(foreign_namespace(me).expect("our own"), None);
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

    #[test]
    fn groups_are_found_by_their_controller_and_compared_by_whole_names() {
        let groups = "7:freezer,devices:/a/0::b\n1:name=systemd:/x\n0::/user:1\n";
        assert_eq!(group_of(groups, "freezer"), Some("/a/0::b"));
        assert_eq!(group_of(groups, ""), Some("/user:1"));
        assert_eq!(group_of("1:name=systemd:/x\n", "freezer"), None);
        for (group, other) in [
            ("/", "/"),
            ("/", ""),
            ("/", "/a"),
            ("/a", "/a"),
            ("/a", "/a/b"),
        ] {
            assert!(is_or_contains(group, other), "{group} {other}");
        }
        for (group, other) in [("/a", "/"), ("/a", "/ab"), ("/a/b", "/a"), ("/..", "/")] {
            assert!(!is_or_contains(group, other), "{group} {other}");
        }
    }
}
