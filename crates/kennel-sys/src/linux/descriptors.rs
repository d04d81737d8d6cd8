//! Descriptor tables of another process. Its threads may have separate tables, and a file may stay open in an io_uring
//! after its descriptor was closed.

use std::io;

use super::procfs::{ATTEMPTS, PAUSE, gone, lossy_text, require_our_own, stat};

/// Target of the link of a descriptor that is an io_uring.
pub(crate) const IO_URING: &str = "anon_inode:[io_uring]";

/// A descriptor in the table of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) task: u32,
    pub(crate) fd: u32,
}

impl Descriptor {
    pub(super) fn path(self) -> String {
        format!("/proc/{}/fd/{}", self.task, self.fd)
    }

    /// Whether it is open, and its link has this target.
    pub(super) fn leads_to(self, target: &str) -> bool {
        std::fs::read_link(self.path()).is_ok_and(|link| link.as_os_str() == target)
    }

    /// The text of its `fdinfo`.
    pub(super) fn info(self) -> io::Result<String> {
        lossy_text(format!("/proc/{}/fdinfo/{}", self.task, self.fd))
    }
}

/// Every descriptor of a process; an error if one of its tables cannot be read.
pub(super) fn descriptors(pid: u32) -> io::Result<Vec<Descriptor>> {
    require_our_own()?;
    let tasks = tasks_with_tables(pid)?;
    let mut all = Vec::new();
    for &task in &tasks {
        let entries = match std::fs::read_dir(format!("/proc/{task}/fd")).map_err(gone) {
            // A thread that ended since the listing.
            Err(error) if task != pid && error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let name = entry.map_err(gone)?.file_name();
            let fd = name.to_str().and_then(|fd| fd.parse().ok());
            all.extend(fd.map(|fd| Descriptor { task, fd }));
        }
    }
    Ok(all)
}

/// The threads whose tables make up the descriptors of a process: the first one, unless it has ended, and one for each
/// separate table.
fn tasks_with_tables(pid: u32) -> io::Result<Vec<u32>> {
    let stat = stat(pid)?;
    if stat.threads <= 1 {
        return Ok(vec![pid]);
    }
    // A first thread that has ended has an empty table.
    let mut tasks: Vec<u32> = (!stat.zombie).then_some(pid).into_iter().collect();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)? {
        let name = entry.map_err(gone)?.file_name();
        let Some(task) = name.to_str().and_then(|task| task.parse().ok()) else {
            continue;
        };
        if task != pid && !tasks.iter().any(|&known| share_table(known, task)) {
            tasks.push(task);
        }
    }
    Ok(tasks)
}

/// Whether the kernel reports that two threads share a table. Without an answer both are read.
fn share_table(one: u32, other: u32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: compares by numbers alone; the last two arguments are not used for tables.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) };
    order == 0
}

/// Files registered with an io_uring, in the form of descriptor links; an error if the kernel does not show them.
pub(crate) fn registered_files(ring: Descriptor) -> io::Result<Vec<String>> {
    for attempt in 1..=ATTEMPTS {
        match listed_files(&ring.info().map_err(gone)?) {
            // While the ring is busy, the kernel leaves out the list or the whole section.
            Some((count, files)) if count == 0 || !files.is_empty() || attempt == ATTEMPTS => {
                return Ok(files);
            }
            _ => crate::events::sleep(&[], &[], Some(PAUSE))?,
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Size of the table behind `UserFiles:`, and the files in the lines that follow: `    0: socket:[1234]`.
fn listed_files(info: &str) -> Option<(usize, Vec<String>)> {
    let mut lines = info.lines();
    let count = lines.find_map(|line| line.strip_prefix("UserFiles:"))?;
    let files = lines.map_while(|line| line.strip_prefix(' ')?.split_once(": "));
    let files = files.map(|(_, file)| file.to_owned());
    let files = files.filter(|file| file != "<none>");
    Some((count.trim().parse().ok()?, files.collect()))
}

/// The inode in `socket:[1234]`, or of another kind.
pub(super) fn inode(link: &str, kind: &str) -> Option<u64> {
    let number = link.strip_prefix(kind)?.strip_prefix(":[")?;
    number.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc;

    use super::super::procfs::{holds_file, sockets_of};
    use super::*;

    /// Device and inode of a descriptor of the calling thread.
    fn identity(file: &impl AsRawFd) -> (u64, u64) {
        let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        let meta = std::fs::metadata(path).expect("an own descriptor");
        (meta.dev(), meta.ino())
    }

    fn is_seen(socket: (u64, u64)) -> (bool, bool) {
        let me = std::process::id();
        let sockets = sockets_of(me).expect("our own");
        let held = holds_file(me, &[socket]).expect("our own");
        (sockets.contains(&socket.1), held)
    }

    #[test]
    fn a_socket_in_the_table_of_one_thread_is_seen() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: gives this thread a copy of the table; descriptors of other threads do not change.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            tell.send(identity(&listener)).expect("the test listens");
            let _ = ended.recv();
        });
        let socket = told.recv().expect("the thread has a socket");
        assert_eq!(is_seen(socket), (true, true));
        drop(end);
        thread.join().expect("no panic");
        assert_eq!(is_seen(socket), (false, false));
    }

    #[test]
    fn a_socket_that_only_an_io_uring_keeps_is_seen() {
        let mut parameters = [0u8; 120];
        // SAFETY: writes 120 bytes, the size of `struct io_uring_params`, through a pointer to a local array.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
        assert!(ring >= 0, "io_uring: {}", io::Error::last_os_error());
        // SAFETY: a new descriptor that has no other owner.
        let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (socket, number) = (identity(&listener), listener.as_raw_fd());
        const REGISTER_FILES: libc::c_uint = 2;
        let call = libc::SYS_io_uring_register;
        // SAFETY: reads one descriptor through a pointer to a local variable.
        let done =
            unsafe { libc::syscall(call, ring.as_raw_fd(), REGISTER_FILES, &raw const number, 1) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        drop(listener);
        assert_eq!(is_seen(socket), (true, true));
        drop(ring);
    }

    #[test]
    fn files_of_a_ring_are_listed_whole_or_not_at_all() {
        let info = "SqMask:\t0x3\nUserFiles:\t4\n    0: socket:[7]\n    2: <none>\n    3: /tmp/a: b\nUserBufs:\t1\n    0: 1/2\n";
        let files = ["socket:[7]", "/tmp/a: b"].map(str::to_owned).to_vec();
        assert_eq!(listed_files(info), Some((4, files)));
        assert_eq!(
            listed_files("UserFiles:\t0\nUserBufs:\t0\n"),
            Some((0, vec![]))
        );
        assert_eq!(listed_files("pos:\t0\n"), None, "the ring is busy");
        assert_eq!(inode("socket:[7]", "socket"), Some(7));
        assert_eq!(inode("pipe:[7]", "socket"), None);
    }
}
