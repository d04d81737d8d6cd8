//! The far end of another process's stdin and stdout: whether any process has it open, as the kernel counts. No descriptor
//! table is read, so a hidden table cannot mislead.

use std::collections::HashMap;
use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use super::cached_stat::open_pipe;
use super::descriptors::Descriptor;
use super::net::LISTEN;
use super::procfs::require_our_own;
use super::sock_diag::{SockDiag, UnixAnswer, u32_at, unix_request};

/// The state of the far end of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FarEnd {
    /// A process has it open, or that is unknown.
    Held,
    /// No process has it open.
    Abandoned,
}

/// A pipe or socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Pipe(u64),
    Socket(u64),
}

/// The pipe or socket of a descriptor; `None` if it is another kind of file or a named pipe.
pub(crate) fn channel(pid: u32, fd: u32) -> io::Result<Option<Channel>> {
    require_our_own()?;
    let link = std::fs::read_link(first(pid, fd).path())?;
    let link = link.to_string_lossy();
    let inode = |kind: &str| link.strip_prefix(kind)?.strip_suffix(']')?.parse().ok();
    let pipe = inode("pipe:[").map(Channel::Pipe);
    Ok(pipe.or_else(|| inode("socket:[").map(Channel::Socket)))
}

/// Whether a process can write to the stdin of `pid`.
pub(crate) fn writers(pid: u32, channel: Channel, sockets: &Sockets) -> FarEnd {
    match channel {
        Channel::Pipe(inode) => pipe_end(first(pid, 0), inode, OFlags::RDONLY, PollFlags::HUP),
        Channel::Socket(inode) => sockets.end(inode, RECEIVE_SHUT),
    }
}

/// Whether a process can read the stdout of `pid`.
pub(crate) fn readers(pid: u32, channel: Channel, sockets: &Sockets) -> FarEnd {
    match channel {
        Channel::Pipe(inode) => pipe_end(first(pid, 1), inode, OFlags::WRONLY, PollFlags::ERR),
        Channel::Socket(inode) => sockets.end(inode, SEND_SHUT),
    }
}

/// A descriptor in the table of a process's first thread.
fn first(pid: u32, fd: u32) -> Descriptor {
    Descriptor { task: pid, fd }
}

/// Whether a process has the other end of a pipe open, for reading or for writing.
pub(crate) fn pipe_far_end(at: Descriptor, inode: u64, reads: bool) -> FarEnd {
    match reads {
        true => pipe_end(at, inode, OFlags::RDONLY, PollFlags::HUP),
        false => pipe_end(at, inode, OFlags::WRONLY, PollFlags::ERR),
    }
}

/// Whether a pipe has unread data. If that cannot be seen, it counts as unread.
pub(crate) fn has_unread_input(at: Descriptor, inode: u64) -> bool {
    events(at, inode, OFlags::RDONLY, PollFlags::IN)
        .is_none_or(|events| events.contains(PollFlags::IN))
}

fn pipe_end(at: Descriptor, inode: u64, access: OFlags, lonely: PollFlags) -> FarEnd {
    match events(at, inode, access, PollFlags::empty()) {
        Some(events) if events.contains(lonely) => FarEnd::Abandoned,
        _ => FarEnd::Held,
    }
}

/// Opens the same end once more, for a moment, and polls it. An additional reader of a pipe that has one, or an additional
/// writer, disturbs no process.
fn events(at: Descriptor, inode: u64, access: OFlags, asked: PollFlags) -> Option<PollFlags> {
    let end = open_pipe(at.path(), inode, access).ok()?;
    let mut fds = [PollFd::new(&end, asked)];
    poll(&mut fds, Some(&rustix::time::Timespec::default())).ok()?;
    Some(fds[0].revents())
}

/// `RCV_SHUTDOWN` and `SEND_SHUTDOWN` of the kernel.
const RECEIVE_SHUT: u8 = 1;
const SEND_SHUT: u8 = 2;

/// The Unix sockets of our network namespace.
#[derive(Debug, Default)]
pub(crate) struct Sockets(HashMap<u64, UnixSocket>);

/// State of one Unix socket, as `sock_diag` reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    /// Directions that are shut down. A socket whose far end was closed is shut down in both.
    shut: u8,
    pub(crate) listening: bool,
    /// Bound to a path or an abstract name, so other processes can reach it.
    pub(crate) named: bool,
    /// Inode of the socket it is connected to.
    pub(crate) peer: Option<u64>,
    /// Whether it has unread data.
    pub(crate) unread: bool,
}

impl UnixSocket {
    /// Whether both directions are shut down.
    pub(crate) fn closed(&self) -> bool {
        self.shut & RECEIVE_SHUT != 0 && self.shut & SEND_SHUT != 0
    }
}

/// Whether one of these sockets listens, and connections are in its queue.
pub(crate) fn has_waiting_connections(inodes: &[u64]) -> bool {
    let all = Sockets::all();
    let mut sockets = inodes.iter().filter_map(|inode| all.get(*inode));
    sockets.any(|socket| socket.listening && socket.unread)
}

const NAME: u16 = 0;
const PEER: u16 = 2;
const QUEUES: u16 = 4;
const SHUTDOWN: u16 = 6;
/// `UDIAG_SHOW_NAME`, `UDIAG_SHOW_PEER` and `UDIAG_SHOW_RQLEN`.
const SHOW_NAME_PEER_AND_QUEUES: u32 = 1 | 4 | 16;

impl Sockets {
    /// Lists all of them; empty if the kernel does not answer.
    pub(crate) fn all() -> Sockets {
        Sockets::query_kernel().unwrap_or_default()
    }

    /// State of the socket with this inode; `None` if it is not a Unix socket of our network namespace.
    pub(crate) fn get(&self, inode: u64) -> Option<UnixSocket> {
        self.0.get(&inode).copied()
    }

    fn end(&self, inode: u64, shut: u8) -> FarEnd {
        match self.0.get(&inode) {
            Some(socket) if socket.shut & shut != 0 => FarEnd::Abandoned,
            _ => FarEnd::Held,
        }
    }

    fn query_kernel() -> io::Result<Sockets> {
        let mut sockets = HashMap::new();
        let request = unix_request(u32::MAX, SHOW_NAME_PEER_AND_QUEUES);
        SockDiag::open()?.request(&request, |answer| sockets.extend(unix_socket(answer)))?;
        Ok(Sockets(sockets))
    }
}

/// A socket with its inode; `None` if the kernel does not say which directions are shut down.
fn unix_socket(answer: &[u8]) -> Option<(u64, UnixSocket)> {
    let answer = UnixAnswer::read(answer)?;
    let mut socket = UnixSocket {
        listening: answer.state == LISTEN,
        ..UnixSocket::default()
    };
    let mut shut = None;
    for (kind, value) in answer.attributes() {
        match kind {
            NAME => socket.named = true,
            PEER => socket.peer = u32_at(value, 0).map(u64::from),
            QUEUES => socket.unread = u32_at(value, 0).is_some_and(|bytes| bytes > 0),
            SHUTDOWN => shut = value.first().copied(),
            _ => {}
        }
    }
    socket.shut = shut?;
    Some((answer.inode, socket))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inode(fd: i32) -> u64 {
        let path = format!("/proc/self/fd/{fd}");
        std::fs::metadata(path).expect("an own descriptor").ino()
    }

    #[test]
    fn a_socket_is_abandoned_when_its_far_end_is_closed_and_not_before() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let inode = inode(ours.as_raw_fd());
        let both = || {
            let sockets = Sockets::all();
            (
                sockets.end(inode, RECEIVE_SHUT),
                sockets.end(inode, SEND_SHUT),
            )
        };
        assert_eq!(both(), (FarEnd::Held, FarEnd::Held));
        let unread = || {
            Sockets::all()
                .get(inode)
                .is_some_and(|socket| socket.unread)
        };
        assert!(!unread());
        io::Write::write_all(&mut &theirs, b"x").expect("a line to it");
        assert!(unread());
        theirs.shutdown(std::net::Shutdown::Write).expect("half");
        assert_eq!(both(), (FarEnd::Abandoned, FarEnd::Held));
        drop(theirs);
        assert_eq!(both(), (FarEnd::Abandoned, FarEnd::Abandoned));
        let sockets = Sockets::all();
        assert_eq!(sockets.end(1, RECEIVE_SHUT), FarEnd::Held, "unknown");
    }

    #[test]
    fn a_pipe_is_abandoned_when_its_far_end_is_closed_and_not_before() {
        let me = std::process::id();
        let look = |fd: i32, access, lonely| {
            let fd = u32::try_from(fd).expect("a descriptor");
            let Ok(Some(Channel::Pipe(inode))) = channel(me, fd) else {
                panic!("a pipe");
            };
            pipe_end(first(me, fd), inode, access, lonely)
        };
        let (reader, writer) = io::pipe().expect("a pipe");
        let input = |fd| look(fd, OFlags::RDONLY, PollFlags::HUP);
        assert_eq!(input(reader.as_raw_fd()), FarEnd::Held);
        drop(writer);
        assert_eq!(input(reader.as_raw_fd()), FarEnd::Abandoned);
        let (reader, writer) = io::pipe().expect("a pipe");
        let output = |fd| look(fd, OFlags::WRONLY, PollFlags::ERR);
        assert_eq!(output(writer.as_raw_fd()), FarEnd::Held);
        drop(reader);
        assert_eq!(output(writer.as_raw_fd()), FarEnd::Abandoned);
    }
}
