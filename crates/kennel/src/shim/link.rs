//! A daemon as the shim's upstream: one socket (and perhaps pipes beside it), lines both ways, and Kennel's own words
//! among them.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use kennel_core::election::Work;
use kennel_sys::process::ProcessRef;
use rustix::event::epoll::EventFlags;
use rustix::net::SendFlags;

use super::lines::{Inbox, Outbox, SHORT};
use super::pipes::Pipes;
use super::watch::{self, NEWS, Watched};
use super::width::Width;
use crate::election::stuck;

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Watched<UnixStream>,
    pipes: Pipes,
    /// What came along with what was read.
    along: Vec<OwnedFd>,
    /// Of where we speak.
    width: Width,
    pub(crate) daemon: Option<ProcessRef>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    said_all: bool,
}

impl Link {
    pub(super) fn new(socket: Watched<UnixStream>, daemon: Option<ProcessRef>) -> Link {
        Link {
            socket,
            pipes: Pipes::default(),
            along: Vec::new(),
            width: Width::default(),
            daemon,
            from: Inbox::default(),
            to: Outbox::default(),
            said_all: false,
        }
    }

    /// Writes what it takes now. One that takes no more tells so when it is read.
    pub(crate) fn flush(&mut self) {
        let (socket, pipes, width) = (&*self.socket, &self.pipes, &self.width);
        let written = self
            .to
            .flush(|bytes| say(socket, pipes, width, bytes, bytes.len()));
        if written.is_err() {
            self.to.clear();
        }
        let may_turn = self.to.is_between_lines() && !self.said_all;
        if may_turn && self.pipes.speak_if_offered(&self.socket) {
            self.width = Width::default();
        }
    }

    /// Sends the beginning of a long line, before all of it has come.
    pub(crate) fn send_ahead(&mut self, from_app: &Inbox) {
        let (socket, pipes, width) = (&*self.socket, &self.pipes, &self.width);
        self.to.send_ahead(from_app, |bytes| {
            say(socket, pipes, width, bytes, from_app.len())
        });
    }

    /// Says that no more will come; answers still do.
    pub(crate) fn end_input(&mut self) {
        if !self.said_all {
            self.said_all = true;
            match self.pipes.to() {
                Some(_) => self.pipes.end(),
                None => drop(self.socket.shutdown(Shutdown::Write)),
            }
        }
    }

    /// The daemon offers pipes, or turns to them.
    pub(super) fn take_pipes(&mut self, watch: &watch::Watch) {
        self.pipes.hear(&mut self.along, watch);
        // What brings something along is read by itself: there may be more behind it.
        self.socket.tell_again();
    }

    /// Tells the kernel what is waited for: what it says, if it is listened to, and room for what waits.
    pub(super) fn want(&self, listens: bool) -> io::Result<()> {
        let waits = !self.to.is_empty();
        let when = |wanted: bool, events| wanted.then_some(events);
        let mut of_socket = EventFlags::empty();
        match self.pipes.from() {
            // It still tells of the end, once.
            Some(pipe) => {
                pipe.want(when(listens, NEWS))?;
                of_socket |= EventFlags::RDHUP | EventFlags::ET;
            }
            None if listens => of_socket |= NEWS,
            None => {}
        }
        match self.pipes.to() {
            Some(Some(pipe)) => drop(pipe.want(when(waits, EventFlags::OUT))?),
            Some(None) => {}
            // Both at once are looked at again and again, until there is nothing left to write.
            None if waits => of_socket = of_socket.difference(EventFlags::ET) | EventFlags::OUT,
            None => {}
        }
        self.socket.want(Some(of_socket)).map(drop)
    }

    /// It has gone, and may have said more than is read at once.
    pub(super) fn tell_again(&self) {
        match self.pipes.from() {
            Some(pipe) => pipe.tell_again(),
            None => self.socket.tell_again(),
        }
    }

    /// Reads what it said: how many bytes; `None` once it is gone.
    pub(crate) fn read(&mut self) -> Option<usize> {
        let read = match (self.pipes.from(), &self.pipes) {
            (Some(pipe), _) => {
                let read = self.from.read(pipe);
                pipe.was_read(&read);
                read
            }
            // In the middle of a long line it is read without, and faster: what came along is lost, and offered again.
            (None, Pipes::None) if self.from.len() == 0 => {
                let read = self.from.receive_with(&self.socket, &mut self.along);
                self.socket.was_read_of(&read, SHORT);
                read
            }
            (None, _) => {
                let read = self.from.receive(&self.socket);
                self.socket.was_read(&read);
                read
            }
        };
        match read {
            Ok(0) => None,
            Ok(count) => Some(count),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Some(0),
                _ => None,
            },
        }
    }

    /// What the daemon's process does, if that can be seen.
    pub(super) fn daemon_work(&self) -> Option<Work> {
        self.daemon.as_ref().and_then(stuck::work_of)
    }
}

/// Writes some of `all` bytes that are to be written.
fn say(
    socket: &UnixStream,
    pipes: &Pipes,
    width: &Width,
    bytes: &[u8],
    all: usize,
) -> io::Result<usize> {
    Ok(match pipes.to() {
        None => {
            width.suit(socket, all);
            rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?
        }
        Some(Some(pipe)) => {
            width.suit(pipe, all);
            rustix::io::write(pipe, bytes)?
        }
        Some(None) => return Err(io::ErrorKind::BrokenPipe.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use kennel_core::hello::Control;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::super::watch::Who;
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A link, and the daemon at its other end.
    struct Stage {
        watch: watch::Watch,
        link: Link,
        daemon: UnixStream,
    }

    impl Stage {
        fn new() -> Stage {
            let watch = watch::Watch::new().unwrap();
            let (ours, daemon) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let link = Link::new(watch.over(ours, Who::Daemon), None);
            link.want(true).unwrap();
            Stage {
                watch,
                link,
                daemon,
            }
        }

        /// Hands over the ends of two pipes; returns what the daemon keeps: to listen to, and to speak into.
        fn offer(&self) -> (std::fs::File, std::fs::File) {
            let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
            let (from_shim, its_output) = pipe_with(flags).unwrap();
            let (its_input, to_shim) = pipe_with(flags).unwrap();
            let ends = [its_input.as_fd(), its_output.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut along = SendAncillaryBuffer::new(&mut space);
            assert!(along.push(SendAncillaryMessage::ScmRights(&ends)));
            let word = [IoSlice::new(b"!pipes\n")];
            sendmsg(&self.daemon, &word, &mut along, SendFlags::empty()).unwrap();
            (from_shim.into(), to_shim.into())
        }

        /// The next line of MCP, for which it does as the shim does. Every wait is for an event.
        fn line(&mut self) -> String {
            loop {
                while let Some(line) = self.link.from.next_line() {
                    if Control::parse(line) != Some(Control::Pipes) {
                        return String::from_utf8(line.to_vec()).unwrap();
                    }
                    self.link.take_pipes(&self.watch);
                }
                self.link.flush();
                self.link.want(true).unwrap();
                let mut happened = Vec::new();
                self.watch.sleep(&mut happened, Some(DEADLINE)).unwrap();
                assert!(!happened.is_empty(), "nothing happened");
                assert!(self.link.read().is_some());
            }
        }

        /// The next thing that is heard on the socket.
        fn heard(&mut self, bytes: &[u8]) {
            let mut heard = vec![0; bytes.len()];
            self.daemon.read_exact(&mut heard).unwrap();
            assert_eq!(heard, bytes);
        }
    }

    fn read(mut pipe: &std::fs::File) -> Vec<u8> {
        let mut bytes = [0; 64];
        let count = pipe.read(&mut bytes).unwrap();
        bytes[..count].to_vec()
    }

    #[test]
    fn what_is_said_right_behind_the_offer_is_heard() {
        let mut stage = Stage::new();
        let _pipes = stage.offer();
        stage.daemon.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(stage.line(), "one");
        assert_eq!(stage.line(), "two");
    }

    #[test]
    fn both_turn_to_the_pipes_each_after_its_last_word_on_the_socket() {
        let mut stage = Stage::new();
        let (from_shim, mut to_shim) = stage.offer();
        stage.link.to.push(b"on the socket");
        stage.link.flush();
        stage.daemon.write_all(b"one\n").unwrap();
        assert_eq!(stage.line(), "one");
        stage.heard(b"on the socket\n!pipes\n");
        stage.link.to.push(b"in the pipe");
        stage.link.flush();
        assert_eq!(read(&from_shim), b"in the pipe\n");
        // Said in the pipe already, and heard after what is still on the socket.
        to_shim.write_all(b"three\n").unwrap();
        stage.daemon.write_all(b"two\n!pipes\n").unwrap();
        assert_eq!(stage.line(), "two");
        assert_eq!(stage.line(), "three");
        stage.link.end_input();
        assert_eq!(read(&from_shim), b"");
        to_shim.write_all(b"four\n").unwrap();
        assert_eq!(stage.line(), "four");
        drop(to_shim);
        assert!(stage.link.read().is_none());
    }

    #[test]
    fn a_line_that_was_begun_on_the_socket_ends_there() {
        let mut stage = Stage::new();
        let (from_shim, _to_shim) = stage.offer();
        let long = vec![b'x'; 70_000];
        stage.link.send_ahead(&Inbox::with(long.clone()));
        stage.daemon.write_all(b"one\n").unwrap();
        assert_eq!(stage.line(), "one");
        stage.link.to.recall();
        stage.link.flush();
        stage.heard(&[&long[..], b"\x18\n!pipes\n"].concat());
        stage.link.to.push(b"next");
        stage.link.flush();
        assert_eq!(read(&from_shim), b"next\n");
    }

    #[test]
    fn without_the_ends_all_goes_on_as_before_and_the_next_offer_is_taken() {
        let mut stage = Stage::new();
        stage.daemon.write_all(b"!pipes\none\n").unwrap();
        assert_eq!(stage.line(), "one");
        stage.link.to.push(b"on the socket");
        stage.link.flush();
        stage.heard(b"on the socket\n");
        let _pipes = stage.offer();
        stage.daemon.write_all(b"two\n").unwrap();
        assert_eq!(stage.line(), "two");
        stage.heard(b"!pipes\n");
    }
}
