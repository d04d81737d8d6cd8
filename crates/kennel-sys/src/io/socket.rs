//! Non-blocking Unix sockets between a daemon and its clients.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SocketAddrUnix, SocketFlags, SocketType};

use super::{Handle, Waitable};
use crate::os;
use crate::passing::{self, Passing};
use crate::runtime_dir::RuntimeDir;
use crate::user::UserId;

/// Backlog of the listener: a thousand shims may connect at once.
const BACKLOG: i32 = 4096;
/// Maximum number of descriptors in one message (`SCM_MAX_FD`).
const MAX_DESCRIPTORS: usize = 253;

/// A connected, non-blocking socket. An untrusted peer has no reason to pass descriptors, and closing one can take as
/// long as its sender likes. So they are refused, or closed by another thread if the kernel cannot refuse them.
#[derive(Debug)]
pub struct Stream {
    /// `None` once it is closed.
    stream: Option<UnixStream>,
    passing: Cell<Passing>,
}

impl Stream {
    /// Wraps a connected socket, and refuses descriptors.
    pub fn new(socket: Handle) -> io::Result<Stream> {
        let stream = UnixStream::from(socket.into_inner());
        stream.set_nonblocking(true)?;
        Ok(Stream {
            passing: Cell::new(passing::refuse(&stream)),
            stream: Some(stream),
        })
    }

    /// Connects without waiting, and refuses descriptors. `WouldBlock` if the listener's queue is full; `std` would wait,
    /// for a stopped process for ever.
    pub fn connect(path: &Path) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let passing = passing::refuse(&socket);
        let address = SocketAddrUnix::new(path)?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Stream {
            stream: Some(socket.into()),
            passing: Cell::new(passing),
        })
    }

    /// A socket pair: one end for this process, which trusts the peer, and one for a process that it starts.
    pub fn pair() -> io::Result<(Stream, Handle)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = Stream {
            stream: Some(ours),
            passing: Cell::new(Passing::Allowed),
        };
        Ok((ours, Handle::new(theirs)))
    }

    fn stream(&self) -> &UnixStream {
        self.stream.as_ref().expect("open until it is dropped")
    }

    /// Whether the peer can pass descriptors.
    pub fn passing(&self) -> Passing {
        self.passing.get()
    }

    /// Accepts descriptors from the peer, which is trusted.
    pub fn allow_passing(&self) {
        passing::allow(self);
        self.passing.set(Passing::Allowed);
    }

    /// All bytes sent before descriptors were refused are received: no descriptor can arrive any more.
    pub fn is_drained(&self) {
        if self.passing.get() == Passing::RefusedFromNow {
            self.passing.set(Passing::Refused);
        }
    }

    /// Sends as many bytes as possible without waiting.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(os::send(self.as_fd(), bytes, SendFlags::DONTWAIT)?)
    }

    /// Sends a short message with two descriptors.
    pub fn send_with(&self, bytes: &[u8], along: [&dyn Waitable; 2]) -> io::Result<usize> {
        let ends = along.map(|handle| handle.as_fd());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        message.push(SendAncillaryMessage::ScmRights(&ends));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(sendmsg(self, &[IoSlice::new(bytes)], &mut message, flags)?)
    }

    /// Receives available bytes, once; 0 at the end.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (_, count) = rustix::net::recv(self, bytes, RecvFlags::empty())?;
        Ok(count)
    }

    /// The same into the spare capacity of `bytes`. `recv` takes less time in the kernel than `read`.
    pub(super) fn receive_into_spare(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let room = spare_capacity(bytes);
        let (_, count) = rustix::net::recv(self, room, RecvFlags::empty())?;
        Ok(count)
    }

    /// Receives available bytes, once, with all descriptors that come with them.
    pub fn receive_with(&self, bytes: &mut [u8], along: &mut Vec<Handle>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut came = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(bytes)];
        let received = recvmsg(self, &mut room, &mut came, RecvFlags::CMSG_CLOEXEC);
        for message in came.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                along.extend(descriptors.map(Handle::new));
            }
        }
        Ok(received?.bytes)
    }

    /// Receives available bytes without removing them from the socket.
    pub fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (_, count) = rustix::net::recv(self, bytes, RecvFlags::PEEK)?;
        Ok(count)
    }

    /// Waits until input is available, or room for output if `sends`; or until `or` is readable. `false` if this takes
    /// longer than `most`.
    pub fn wait(&self, sends: bool, or: Option<&dyn Waitable>, most: Duration) -> io::Result<bool> {
        let mut what = PollFlags::IN;
        what.set(PollFlags::OUT, sends);
        let ours = PollFd::from_borrowed_fd(self.as_fd(), what);
        // Without `or`, this socket takes its place.
        let other = or.map_or(self.as_fd(), |other| other.as_fd());
        let mut polled = [ours, PollFd::from_borrowed_fd(other, PollFlags::IN)];
        let polled = &mut polled[..1 + usize::from(or.is_some())];
        let most = Timespec::try_from(most).unwrap_or_default();
        match poll(polled, Some(&most)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Ends the output.
    pub fn end_output(&self) {
        let _ = self.stream().shutdown(Shutdown::Write);
    }

    /// Whether a process of this user created the other end.
    pub fn is_of_our_user(&self) -> bool {
        let peer = os::peer_credentials(self.as_fd());
        peer.is_ok_and(|(_, uid)| uid == UserId::current().number())
    }

    /// The path of the listening socket at the other end, if it has one.
    pub fn peer_path(&self) -> Option<PathBuf> {
        let address = self.stream().peer_addr().ok()?;
        address.as_pathname().map(Path::to_owned)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else {
            return;
        };
        match self.passing.get() {
            Passing::Refused | Passing::Allowed => drop(stream),
            Passing::RefusedFromNow | Passing::Possible => passing::close(stream.into()),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }
}

/// A non-blocking listener for clients.
#[derive(Debug)]
pub struct Listener(UnixListener);

impl Listener {
    /// Listens at `path` in `dir`. Sessions compare the path that the kernel reports with the directory, so the socket is
    /// bound by its path. Afterwards, the directory is checked for the socket.
    pub fn bind(dir: &RuntimeDir, path: &Path) -> io::Result<Listener> {
        let socket = bound_at(path)?;
        set_mode(dir, path.file_name().unwrap_or_default())?;
        rustix::net::listen(&socket, BACKLOG)?;
        Listener::new(Handle::new(socket))
    }

    /// Wraps a listening socket.
    pub fn new(socket: Handle) -> io::Result<Listener> {
        // An earlier build may not have set this.
        passing::refuse(&socket);
        let listener = UnixListener::from(socket.into_inner());
        listener.set_nonblocking(true)?;
        Ok(Listener(listener))
    }

    /// Accepts the next connection.
    pub fn accept(&self) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(&self.0, flags)?;
        Ok(Stream {
            passing: Cell::new(passing::refuse(&socket)),
            stream: Some(socket.into()),
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Gives the socket's owner the permissions that an unusual umask removed. Follows no link.
fn set_mode(dir: &RuntimeDir, name: &OsStr) -> io::Result<()> {
    let file = os::open_entry(dir.handle(), name)?;
    let facts = crate::fs::FileFacts::from(rustix::fs::fstat(&file)?);
    if !facts.is_socket() {
        return Err(io::Error::other("it is not a socket"));
    }
    Ok(os::chmod_entry(file.as_fd(), Mode::RUSR | Mode::WUSR)?)
}

/// Binds a socket whose file other users can never open: the file gets the mode of the socket.
fn bound_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Set before the first connection: accepted sockets inherit it.
    passing::refuse(&socket);
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn rule_9_a_socket_is_closed_to_others_from_its_first_moment_on() {
        let scope = Scope::new("socket");
        rustix::process::umask(rustix::fs::Mode::empty());
        let path = scope.path("socket");
        let _socket = bound_at(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn rule_9_no_socket_is_used_that_is_not_in_the_judged_directory_and_no_link_is_followed() {
        let scope = Scope::new("socket-elsewhere");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let dir = RuntimeDir::ensure(scope.path("dir")).unwrap();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o377));
        let path = dir.path().join("good.sock");
        let listens = Listener::bind(&dir, &path).map(drop);
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        listens.unwrap();
        assert_eq!(mode(&path), 0o600);
        let precious = scope.path("precious");
        std::fs::write(&precious, "").unwrap();
        std::fs::set_permissions(&precious, PermissionsExt::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join("link.sock")).unwrap();
        set_mode(&dir, "link.sock".as_ref()).unwrap_err();
        assert_eq!(mode(&precious), 0o644);
        // Another directory is where this one was.
        std::fs::rename(dir.path(), scope.path("moved")).unwrap();
        std::fs::create_dir(scope.path("dir")).unwrap();
        Listener::bind(&dir, &dir.path().join("other.sock")).unwrap_err();
    }
}
