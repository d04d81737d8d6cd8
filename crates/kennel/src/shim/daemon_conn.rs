//! The connection to a daemon as upstream: one socket, perhaps pipes beside it, with lines of the session and control
//! messages in both directions.

use std::io::{self, PipeReader, Write};

use kennel_core::election::Activity;
use kennel_sys::io::{BufferSize, Handle, Interest, Reactor, Source, Stream, is_hung_up};
use kennel_sys::process::ProcessRef;

use super::event_source::EventSource;
use super::pipes::Pipes;
use crate::election::stuck;
use crate::lines::{Inbox, Outbox, SMALL_READ};

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct DaemonConn {
    socket: Source<Stream>,
    pipes: Pipes,
    /// Handles passed with the bytes that were read.
    received: Vec<Handle>,
    /// Buffer size of the socket or pipe that we write to.
    buffer: BufferSize,
    pub(crate) daemon: Option<ProcessRef>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    /// Bytes for the daemon that were dropped because it no longer reads.
    dropped_bytes: usize,
    /// Some of those were not the session's.
    dropped_control_lines: bool,
    input_ended: bool,
}

impl DaemonConn {
    pub(super) fn new(reactor: &Reactor, socket: Stream, daemon: Option<ProcessRef>) -> DaemonConn {
        DaemonConn {
            socket: Source::new(reactor, socket, EventSource::Daemon.token()),
            pipes: Pipes::default(),
            received: Vec::new(),
            buffer: BufferSize::default(),
            daemon,
            from: Inbox::default(),
            to: Outbox::default(),
            dropped_bytes: 0,
            dropped_control_lines: false,
            input_ended: false,
        }
    }

    /// Writes queued bytes until the write would block. A closed peer is noticed on read.
    pub(crate) fn flush(&mut self) {
        let (socket, pipes, buffer) = (&*self.socket, &self.pipes, &self.buffer);
        let written = self
            .to
            .flush(|bytes| write_some(socket, pipes, buffer, bytes, bytes.len()));
        if written.is_err() {
            self.dropped_bytes += self.to.len();
            self.dropped_control_lines |= self.to.has_control_lines();
            self.to.clear();
        }
        let may_switch = self.to.is_between_lines() && !self.input_ended;
        if may_switch && self.pipes.switch_if_offered(&self.socket) {
            self.buffer = BufferSize::default();
        }
    }

    /// Number of the last bytes of the session that were certainly not written; 0 if that is not known.
    pub(super) fn unwritten(&self) -> usize {
        match self.dropped_control_lines || self.to.has_control_lines() {
            true => 0,
            false => self.dropped_bytes + self.to.len(),
        }
    }

    /// Sends the beginning of a long line before its end was read.
    pub(crate) fn send_ahead(&mut self, from_app: &Inbox) {
        let (socket, pipes, buffer) = (&*self.socket, &self.pipes, &self.buffer);
        self.to.send_ahead(from_app, |bytes| {
            write_some(socket, pipes, buffer, bytes, from_app.len())
        });
    }

    /// Closes the sending half; responses still arrive.
    pub(crate) fn end_input(&mut self) {
        if !self.input_ended {
            self.input_ended = true;
            match self.pipes.writer() {
                Some(_) => self.pipes.close_writer(),
                None => self.socket.end_output(),
            }
        }
    }

    /// Handles `!pipes`: the daemon offers pipes, or uses them from now on.
    pub(super) fn take_pipes(&mut self, reactor: &Reactor) {
        self.pipes.handle_message(&mut self.received, reactor);
    }

    /// Updates the poll interest: input if `reads`, and output if bytes are queued.
    pub(super) fn set_interest(&self, reads: bool) -> io::Result<()> {
        let has_queued = !self.to.is_empty();
        let when = |wanted: bool, interest| if wanted { interest } else { Interest::NONE };
        if let Some(pipe) = self.pipes.reader() {
            pipe.set_interest(when(reads, Interest::READ))?;
        }
        if let Some(Some(pipe)) = self.pipes.writer() {
            pipe.set_interest(when(has_queued, Interest::WRITE))?;
        }
        self.socket.set_interest(Interest {
            readable: reads && self.pipes.reader().is_none(),
            writable: has_queued && self.pipes.writer().is_none(),
            ..Interest::HANGUP
        })
    }

    /// Reads once: the number of bytes, or `None` once the daemon is gone. At most [`SMALL_READ`] bytes if `is_small`.
    pub(crate) fn read(&mut self, is_small: bool) -> Option<usize> {
        let from_pipe = |from: &mut Inbox, pipe: &Source<PipeReader>| match is_small {
            true => from.read_small(pipe),
            false => from.read(pipe),
        };
        let read = match (self.pipes.reader(), &self.pipes) {
            (Some(pipe), _) => match from_pipe(&mut self.from, pipe) {
                // The daemon is gone, though another process may have its pipe open.
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && is_hung_up(&self.socket) =>
                {
                    Ok(0)
                }
                read => read,
            },
            // In a long line, a plain read is faster: handles passed with it are lost, and offered again.
            (None, Pipes::None) if self.from.len() == 0 => {
                self.from
                    .receive_with(&self.socket, SMALL_READ, &mut self.received)
            }
            (None, _) if is_small => self.from.read_small(&self.socket),
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

    /// The activity of the daemon's process, if it can be read.
    pub(super) fn daemon_work(&self) -> Option<Activity> {
        self.daemon.as_ref().and_then(stuck::activity_of)
    }
}

/// Writes some bytes of `all` bytes to be written, to the socket or the pipe.
fn write_some(
    socket: &Stream,
    pipes: &Pipes,
    buffer: &BufferSize,
    bytes: &[u8],
    all: usize,
) -> io::Result<usize> {
    match pipes.writer() {
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

    /// A connection, and the daemon at its other end.
    struct Stage {
        reactor: Reactor,
        conn: DaemonConn,
        daemon: UnixStream,
        /// The daemon's socket again, to pass descriptors.
        passing_socket: Stream,
    }

    impl Stage {
        fn new() -> Stage {
            let reactor = Reactor::new().unwrap();
            let (ours, daemon) = Stream::pair().unwrap();
            let daemon = UnixStream::from(daemon);
            let passing_socket = Stream::new(daemon.try_clone().unwrap().into()).unwrap();
            daemon.set_nonblocking(false).unwrap();
            let conn = DaemonConn::new(&reactor, ours, None);
            conn.set_interest(true).unwrap();
            Stage {
                reactor,
                conn,
                daemon,
                passing_socket,
            }
        }

        /// Passes the ends of two pipes; returns the daemon's ends: to read from, and to write to.
        fn offer(&self) -> (io::PipeReader, io::PipeWriter) {
            let (from_shim, its_output) = io::pipe().unwrap();
            let (its_input, to_shim) = io::pipe().unwrap();
            set_nonblocking(&from_shim).unwrap();
            set_nonblocking(&its_output).unwrap();
            set_nonblocking(&its_input).unwrap();
            set_nonblocking(&to_shim).unwrap();
            self.passing_socket
                .send_with(b"!pipes\n", [&its_input, &its_output])
                .unwrap();
            (from_shim, to_shim)
        }

        /// The next line of MCP, read as the shim does. Every wait is for an event.
        fn line(&mut self) -> String {
            loop {
                while let Some(line) = self.conn.from.next_line() {
                    if Control::parse_from_daemon(line) != Some(Control::Pipes) {
                        return String::from_utf8(line.to_vec()).unwrap();
                    }
                    self.conn.take_pipes(&self.reactor);
                }
                self.conn.flush();
                self.conn.set_interest(true).unwrap();
                let mut events = Vec::new();
                let deadline = Wait::Until(Instant::now() + DEADLINE);
                let is_over = self.reactor.wait(deadline, &mut events).unwrap();
                assert!(!is_over, "nothing happened");
                assert!(self.conn.read(false).is_some());
            }
        }

        /// Expects these bytes on the socket.
        fn expect_bytes(&mut self, bytes: &[u8]) {
            let mut received_bytes = vec![0; bytes.len()];
            self.daemon.read_exact(&mut received_bytes).unwrap();
            assert_eq!(received_bytes, bytes);
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
        stage.conn.to.push(b"on the socket");
        stage.conn.flush();
        stage.daemon.write_all(b"one\n").unwrap();
        assert_eq!(stage.line(), "one");
        stage.expect_bytes(b"on the socket\n!pipes\n");
        stage.conn.to.push(b"in the pipe");
        stage.conn.flush();
        assert_eq!(read(&from_shim), b"in the pipe\n");
        // Written to the pipe first, and read after the bytes that are still on the socket.
        to_shim.write_all(b"three\n").unwrap();
        stage.daemon.write_all(b"two\n!pipes\n").unwrap();
        assert_eq!(stage.line(), "two");
        assert_eq!(stage.line(), "three");
        stage.conn.end_input();
        assert_eq!(read(&from_shim), b"");
        to_shim.write_all(b"four\n").unwrap();
        assert_eq!(stage.line(), "four");
        drop(to_shim);
        assert!(stage.conn.read(false).is_none());
    }

    #[test]
    fn a_line_that_was_begun_on_the_socket_ends_there() {
        let mut stage = Stage::new();
        let (from_shim, _to_shim) = stage.offer();
        let long = vec![b'x'; 70_000];
        stage.conn.send_ahead(&Inbox::with(long.clone()));
        stage.daemon.write_all(b"one\n").unwrap();
        assert_eq!(stage.line(), "one");
        stage.conn.to.abort_partial_line();
        stage.conn.flush();
        stage.expect_bytes(&[&long[..], b"\x18\n!pipes\n"].concat());
        stage.conn.to.push(b"next");
        stage.conn.flush();
        assert_eq!(read(&from_shim), b"next\n");
    }

    #[test]
    fn without_the_ends_all_goes_on_as_before_and_the_next_offer_is_taken() {
        let mut stage = Stage::new();
        stage.daemon.write_all(b"!pipes\none\n").unwrap();
        assert_eq!(stage.line(), "one");
        stage.conn.to.push(b"on the socket");
        stage.conn.flush();
        stage.expect_bytes(b"on the socket\n");
        let _pipes = stage.offer();
        stage.daemon.write_all(b"two\n").unwrap();
        assert_eq!(stage.line(), "two");
        stage.expect_bytes(b"!pipes\n");
    }
}
