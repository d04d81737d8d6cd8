//! Memory, semaphores and message queues that processes share: mappings of another process, and System V objects.

use std::collections::HashMap;
use std::io;

use super::descriptors::IO_URING;
use super::procfs::{gone, lossy_text, require_our_own};

/// A mapping that other processes can share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedMapping {
    /// Whether the process can write to it. Other processes may write even if this one cannot.
    pub(crate) writable: bool,
    /// Device and inode, as text: the same memory has the same text in every process.
    pub(crate) id: String,
    /// The mapped file; a removed file ends in ` (deleted)`.
    pub(crate) path: String,
}

impl SharedMapping {
    /// Whether other processes can open it by a name or a key.
    pub(crate) fn has_name(&self) -> bool {
        let path = self.path.as_str();
        match path.strip_prefix("/SYSV") {
            // A segment without a key has zeros.
            Some(key) => !key.starts_with("00000000"),
            None => path.starts_with("/dev/shm/") && !path.ends_with(" (deleted)"),
        }
    }
}

/// Shared mappings of a process; an error if its maps are hidden.
pub(crate) fn shared_mappings(pid: u32) -> io::Result<Vec<SharedMapping>> {
    require_our_own()?;
    let maps = std::fs::read(format!("/proc/{pid}/maps")).map_err(gone)?;
    let maps = String::from_utf8_lossy(&maps);
    let mut mappings: Vec<SharedMapping> = maps.lines().filter_map(shared_mapping).collect();
    mappings.dedup();
    Ok(mappings)
}

/// All mappings of a process, by a text that is the same for the same memory in every process, with whether other processes
/// see its writes.
pub(crate) fn all_mappings(pid: u32) -> io::Result<HashMap<String, bool>> {
    require_our_own()?;
    let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    let mut all = HashMap::new();
    for (access, mapping) in maps.lines().filter_map(mapping) {
        *all.entry(mapping.id).or_default() |= mapping.writable && access.ends_with('s');
    }
    Ok(all)
}

/// The memory at an address of a process, by who can use a futex there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Memory {
    /// Only this process.
    Own,
    /// Every process that maps the same file or memory, which is at this path.
    Shared(String),
}

/// The memory at an address of a process; `None` if nothing is mapped there.
pub(super) fn memory_at(pid: u32, address: u64) -> io::Result<Option<Memory>> {
    require_our_own()?;
    let maps = std::fs::read(format!("/proc/{pid}/maps")).map_err(gone)?;
    let maps = String::from_utf8_lossy(&maps);
    Ok(maps.lines().find_map(|line| memory_if_at(line, address)))
}

/// The memory of a line of `maps` if the address is in it.
fn memory_if_at(line: &str, address: u64) -> Option<Memory> {
    let mut words = line.split_whitespace();
    let (range, access) = (words.next()?, words.next()?.as_bytes());
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    if !(number(start)?..number(end)?).contains(&address) {
        return None;
    }
    let inode = words.nth(2)?;
    let path = words.collect::<Vec<_>>().join(" ");
    // A private page that cannot be written to is that of the file, and so are its futexes.
    let is_of_file = inode != "0" && access.get(1) != Some(&b'w');
    Some(match access.ends_with(b"s") || is_of_file {
        true => Memory::Shared(path),
        false => Memory::Own,
    })
}

fn shared_mapping(line: &str) -> Option<SharedMapping> {
    let (access, mapping) = mapping(line)?;
    access.ends_with('s').then_some(mapping)
}

/// Parses access and memory of `7f0a-7f0b rw-s 00000000 00:1a 1234    /dev/shm/name`, if it can be shared.
fn mapping(line: &str) -> Option<(&str, SharedMapping)> {
    let mut words = line.split_whitespace();
    let (_, access, _) = (words.next()?, words.next()?, words.next()?);
    let (device, inode) = (words.next()?, words.next()?);
    let path = words.collect::<Vec<_>>().join(" ");
    // Devices and kernel objects are judged as open files, except an io_uring: it works without a descriptor too. The first
    // System V segment has the number 0.
    let is_judged_as_file = path.starts_with("anon_inode:") && path != IO_URING;
    let memory = (inode != "0" || path.starts_with("/SYSV")) && !is_judged_as_file;
    let id = format!("{device} {inode}");
    let writable = access.as_bytes().get(1) == Some(&b'w');
    memory.then_some((access, SharedMapping { writable, id, path }))
}

/// The number of processes that have a System V segment attached, if it is one of our IPC namespace.
pub(crate) fn attached(mapping: &SharedMapping) -> Option<usize> {
    if !mapping.path.starts_with("/SYSV") {
        return None;
    }
    let id = mapping.id.split(' ').nth(1)?;
    let table = lossy_text("/proc/sysvipc/shm").ok()?;
    // key shmid perms size cpid lpid nattch …
    let lines = table.lines().map(|line| line.split_whitespace());
    let mut lines = lines.map(Iterator::collect::<Vec<_>>);
    let line = lines.find(|line| line.get(1) == Some(&id))?;
    line.get(6)?.parse().ok()
}

/// The last users of System V message queues and semaphores, with kind and number of the object; an error if these are
/// hidden.
pub(crate) fn system_v_users() -> io::Result<Vec<(u32, String)>> {
    let mut users = Vec::new();
    let rows = |name: &str| -> io::Result<Vec<Vec<i64>>> {
        let text = match lossy_text(format!("/proc/sysvipc/{name}")) {
            // A kernel without them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let row = |line: &str| {
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect()
        };
        Ok(text.lines().skip(1).filter_map(row).collect())
    };
    // key msqid perms cbytes qnum lspid lrpid …
    for row in rows("msg")? {
        if let [_, id, _, _, _, sender, receiver, ..] = row[..] {
            let pids = [sender, receiver].into_iter();
            let pids = pids.filter_map(|pid| u32::try_from(pid).ok());
            users.extend(pids.map(|pid| (pid, format!("message queue {id}"))));
        }
    }
    // key semid perms nsems …
    for row in rows("sem")? {
        let [_, id, _, count, ..] = row[..] else {
            continue;
        };
        let (Ok(set), Ok(count)) = (i32::try_from(id), i32::try_from(count)) else {
            continue;
        };
        for number in 0..count {
            // SAFETY: takes and returns plain numbers; GETPID needs no fourth argument.
            let pid = unsafe { libc::semctl(set, number, libc::GETPID) };
            let pid = u32::try_from(pid).ok().filter(|&pid| pid != 0);
            users.extend(pid.map(|pid| (pid, format!("semaphore {id}"))));
        }
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_at_an_address_is_shared_if_other_processes_can_use_a_futex_there() {
        let shared = |path: &str| Some(Memory::Shared(path.to_owned()));
        for (line, memory) in [
            (
                "7f00-7f10 rw-s 0 fe:00 3   /data/a queue",
                shared("/data/a queue"),
            ),
            (
                "7f00-7f10 r--s 0 fe:00 3   /data/queue",
                shared("/data/queue"),
            ),
            (
                "7f00-7f10 rw-s 0 00:01 9   /dev/zero (deleted)",
                shared("/dev/zero (deleted)"),
            ),
            (
                "7f00-7f10 r--p 0 fe:00 3   /data/queue",
                shared("/data/queue"),
            ),
            (
                "7f00-7f10 rw-p 0 fe:00 3   /usr/lib/x.so",
                Some(Memory::Own),
            ),
            ("7f00-7f10 rw-p 0 00:00 0", Some(Memory::Own)),
            ("7f00-7f10 rw-p 0 00:00 0   [stack]", Some(Memory::Own)),
            ("7f04-7f10 rw-s 0 fe:00 3   /data/queue", None),
            ("7e00-7f02 rw-s 0 fe:00 3   /data/queue", None),
            ("", None),
        ] {
            assert_eq!(memory_if_at(line, 0x7f02), memory, "{line}");
        }
    }

    #[test]
    fn shared_memory_is_distinguished_from_private_memory() {
        let named = shared_mapping("7f0a-7f0b rw-s 00000000 00:1a 12    /dev/shm/a b");
        let named = named.expect("shared memory");
        assert_eq!(
            (named.id.as_str(), named.path.as_str()),
            ("00:1a 12", "/dev/shm/a b")
        );
        assert!(named.has_name() && named.writable);
        let read = shared_mapping("1-2 r--s 0 fe:00 3 /data/ring").expect("shared memory");
        assert!(!read.writable);
        for (line, name) in [
            ("1-2 rw-s 0 00:01 3 /SYSV0000002a (deleted)", Some(true)),
            ("1-2 rw-s 0 00:01 0 /SYSV0000002a (deleted)", Some(true)),
            ("1-2 rw-s 0 00:01 3 /SYSV00000000 (deleted)", Some(false)),
            ("1-2 rw-s 0 00:1a 3 /dev/shm/a (deleted)", Some(false)),
            ("1-2 rw-s 0 00:01 3 /memfd:x (deleted)", Some(false)),
            ("1-2 rw-s 0 fe:00 3 /data/db-shm", Some(false)),
            ("1-2 r--s 0 fe:00 3 /usr/lib/locale/x", Some(false)),
            ("1-2 r--s 0 00:1a 3 /dev/shm/a", Some(true)),
            ("1-2 rw-p 0 fe:00 3 /usr/lib/x.so", None),
            ("1-2 rw-s 0 00:0e 9 anon_inode:[io_uring]", Some(false)),
            ("1-2 rw-s 0 00:0e 9 anon_inode:[perf_event]", None),
            ("1-2 rw-p 0 00:00 0 [heap]", None),
        ] {
            let seen = shared_mapping(line).map(|mapping| mapping.has_name());
            assert_eq!(seen, name, "{line}");
        }
    }
}
