//! A daemon as the shim's upstream: one socket (and perhaps pipes beside it), lines both ways, and Kennel's own words
//! among them.

use std::io::{self, PipeReader, Write};

use kennel_core::election::Activity;
use kennel_sys::io::{BufferSize, Handle, Interest, Reactor, Source, Stream, is_hung_up};
use kennel_sys::process::ProcessRef;

use super::origin::Origin;
use super::pipes::Pipes;
use crate::election::stuck;
use crate::lines::{Inbox, Outbox, SHORT};

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Source<Stream>,
    pipes: Pipes,
    /// What came along with what was read.
    along: Vec<Handle>,
    /// Of the channel that we write to.
    buffer: BufferSize,
    pub(crate) daemon: Option<ProcessRef>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    /// Bytes for the daemon that were dropped, because it reads no more.
    dropped: usize,
    /// Some of them were not the session's.
    dropped_asides: bool,
    said_all: bool,
}

impl Link {
    pub(super) fn new(reactor: &Reactor, socket: Stream, daemon: Option<ProcessRef>) -> Link {
        Link {
            socket: Source::new(reactor, socket, Origin::Daemon.token()),
            pipes: Pipes::default(),
            along: Vec::new(),
            buffer: BufferSize::default(),
            daemon,
            from: Inbox::default(),
            to: Outbox::default(),
            dropped: 0,
            dropped_asides: false,
            said_all: false,
        }
    }

    /// Writes what it takes now. One that takes no more tells so when it is read.
    pub(crate) fn flush(&mut self) {
        let (socket, pipes, buffer) = (&*self.socket, &self.pipes, &self.buffer);
        let written = self
            .to
            .flush(|bytes| say(socket, pipes, buffer, bytes, bytes.len()));
        if written.is_err() {
            self.dropped += self.to.len();
            self.dropped_asides |= self.to.has_asides();
            self.to.clear();
        }
        let may_turn = self.to.is_between_lines() && !self.said_all;
        if may_turn && self.pipes.speak_if_offered(&self.socket) {
            self.buffer = BufferSize::default();
        }
    }

    /// Number of the last bytes of the session that were certainly not written; 0 if that is not known.
    pub(super) fn unwritten(&self) -> usize {
        match self.dropped_asides || self.to.has_asides() {
            true => 0,
            false => self.dropped + self.to.len(),
        }
    }

    /// Sends the beginning of a long line, before all of it has come.
    pub(crate) fn send_ahead(&mut self, from_app: &Inbox) {
        let (socket, pipes, buffer) = (&*self.socket, &self.pipes, &self.buffer);
        self.to.send_ahead(from_app, |bytes| {
            say(socket, pipes, buffer, bytes, from_app.len())
        });
    }

    /// Says that no more will come; answers still do.
    pub(crate) fn end_input(&mut self) {
        if !self.said_all {
            self.said_all = true;
            match self.pipes.to() {
                Some(_) => self.pipes.end(),
                None => self.socket.end_output(),
            }
        }
    }

    /// The daemon offers pipes, or turns to them.
    pub(super) fn take_pipes(&mut self, reactor: &Reactor) {
        self.pipes.hear(&mut self.along, reactor);
    }

    /// Says what is waited for: what it writes, if it is listened to, and room for what waits.
    pub(super) fn set_interest(&self, listens: bool) -> io::Result<()> {
        let waits = !self.to.is_empty();
        let when = |wanted: bool, interest| if wanted { interest } else { Interest::NONE };
        if let Some(pipe) = self.pipes.from() {
            pipe.set_interest(when(listens, Interest::READ))?;
        }
        if let Some(Some(pipe)) = self.pipes.to() {
            pipe.set_interest(when(waits, Interest::WRITE))?;
        }
        self.socket.set_interest(Interest {
            readable: listens && self.pipes.from().is_none(),
            writable: waits && self.pipes.to().is_none(),
            ..Interest::HANGUP
        })
    }

    /// Reads what it said: how many bytes; `None` once it is gone. At most [`SHORT`] bytes if `little`.
    pub(crate) fn read(&mut self, little: bool) -> Option<usize> {
        let from_pipe = |from: &mut Inbox, pipe: &Source<PipeReader>| match little {
            true => from.read_little(pipe),
            false => from.read(pipe),
        };
        let read = match (self.pipes.from(), &self.pipes) {
            (Some(pipe), _) => match from_pipe(&mut self.from, pipe) {
                // It is gone, though another process may hold its pipe.
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && is_hung_up(&self.socket) =>
                {
                    Ok(0)
                }
                read => read,
            },
            // In the middle of a long line it is read without, and faster: what came along is lost, and offered again.
            (None, Pipes::None) if self.from.len() == 0 => {
                self.from.receive_with(&self.socket, SHORT, &mut self.along)
            }
            (None, _) if little => self.from.read_little(&self.socket),
            (None, _) => self.from.read(&self.socket),
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
    pub(super) fn daemon_work(&self) -> Option<Activity> {
        self.daemon.as_ref().and_then(stuck::work_of)
    }
}

/// Writes some of `all` bytes that are to be written.
fn say(
    socket: &Stream,
    pipes: &Pipes,
    buffer: &BufferSize,
    bytes: &[u8],
    all: usize,
) -> io::Result<usize> {
    match pipes.to() {
        None => {
            buffer.fit(socket, all);
            socket.send(bytes)
        }
        Some(Some(pipe)) => {
            buffer.fit(pipe, all);
            (&**pipe).write(bytes)
        }
        Some(None) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use kennel_core::hello::Control;
    use kennel_sys::io::Wait;
    use kennel_sys::stdio::set_nonblocking;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A link, and the daemon at its other end.
    struct Stage {
        reactor: Reactor,
        link: Link,
        daemon: UnixStream,
        /// The same, for what it passes.
        passes: Stream,
    }

    impl Stage {
        fn new() -> Stage {
            let reactor = Reactor::new().unwrap();
            let (ours, daemon) = Stream::pair().unwrap();
            let daemon = UnixStream::from(daemon);
            let passes = Stream::new(daemon.try_clone().unwrap().into()).unwrap();
            daemon.set_nonblocking(false).unwrap();
            let link = Link::new(&reactor, ours, None);
            link.set_interest(true).unwrap();
            Stage {
                reactor,
                link,
                daemon,
                passes,
            }
        }

        /// Hands over the ends of two pipes; returns what the daemon keeps: to listen to, and to speak into.
        fn offer(&self) -> (io::PipeReader, io::PipeWriter) {
            let (from_shim, its_output) = io::pipe().unwrap();
            let (its_input, to_shim) = io::pipe().unwrap();
            set_nonblocking(&from_shim).unwrap();
            set_nonblocking(&its_output).unwrap();
            set_nonblocking(&its_input).unwrap();
            set_nonblocking(&to_shim).unwrap();
            self.passes
                .send_with(b"!pipes\n", [&its_input, &its_output])
                .unwrap();
            (from_shim, to_shim)
        }

        /// The next line of MCP, for which it does as the shim does. Every wait is for an event.
        fn line(&mut self) -> String {
            loop {
                while let Some(line) = self.link.from.next_line() {
                    if Control::parse_from_daemon(line) != Some(Control::Pipes) {
                        return String::from_utf8(line.to_vec()).unwrap();
                    }
                    self.link.take_pipes(&self.reactor);
                }
                self.link.flush();
                self.link.set_interest(true).unwrap();
                let mut events = Vec::new();
                let deadline = Wait::Until(Instant::now() + DEADLINE);
                let is_over = self.reactor.wait(deadline, &mut events).unwrap();
                assert!(!is_over, "nothing happened");
                assert!(self.link.read(false).is_some());
            }
        }

        /// The next thing that is heard on the socket.
        fn heard(&mut self, bytes: &[u8]) {
            let mut heard = vec![0; bytes.len()];
            self.daemon.read_exact(&mut heard).unwrap();
            assert_eq!(heard, bytes);
        }
    }

    fn read(mut pipe: &io::PipeReader) -> Vec<u8> {
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
        assert!(stage.link.read(false).is_none());
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
