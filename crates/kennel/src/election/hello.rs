//! Exchanges hellos with a daemon. Reads exactly the daemon's hello: the bytes after it belong to the session.

use std::io;
use std::time::{Duration, Instant};

use kennel_core::election::DaemonReply;
use kennel_core::hello::{ClientHello, Control, MAX_HELLO};
use kennel_sys::events::{Waker, is_readable};
use kennel_sys::io::{Input, Stream};

use super::SentHandshake;
use super::stuck::{StuckCheck, Watch};

/// Interval at which a daemon that does not answer is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The result of waiting for a daemon's reply.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(DaemonReply),
    /// It does not answer; the check is not [`StuckCheck::Undecided`].
    Silent(StuckCheck),
    /// The election was cancelled.
    Abandoned,
}

/// A message to a daemon and the part of the reply that was received. The bytes after the reply stay in the socket.
#[derive(Debug)]
pub(super) struct PendingReply {
    message: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    handshake_at: Option<usize>,
}

impl PendingReply {
    /// A hello, followed by the session's handshake if there is one: a daemon that accepts this client answers both, any
    /// other process ignores both.
    pub(super) fn hello(hello: &ClientHello, handshake: Option<&[u8]>) -> PendingReply {
        let mut asked = PendingReply::new(hello.line());
        if let Some(handshake) = handshake {
            asked.handshake_at = Some(asked.message.len());
            asked.message.extend_from_slice(handshake);
            asked.message.push(b'\n');
        }
        asked
    }

    /// A ping on a connection that is used for nothing else.
    pub(super) fn ping() -> PendingReply {
        PendingReply::new(Control::Ping.line())
    }

    fn new(mut message: Vec<u8>) -> PendingReply {
        message.push(b'\n');
        PendingReply {
            message,
            sent: 0,
            received: Vec::new(),
            handshake_at: None,
        }
    }

    /// The handshake that was sent with the hello.
    pub(super) fn greeted(&self) -> Option<SentHandshake> {
        let at = self.handshake_at?;
        Some(SentHandshake {
            line: self.message[at..self.message.len() - 1].to_vec(),
            unsent: self.message[self.sent.max(at)..].to_vec(),
        })
    }

    /// Waits for the reply; checks meanwhile whether the daemon is stuck.
    pub(super) fn answer(
        &mut self,
        socket: &Stream,
        watch: &mut Watch,
        abandoned: &Waker,
    ) -> io::Result<Answer> {
        loop {
            if let Some(answer) = self.exchange(socket)? {
                return Ok(answer);
            }
            let happened = socket.wait(self.has_unsent_bytes(), Some(abandoned), CHECK_INTERVAL)?;
            if happened && is_readable(abandoned) {
                return Ok(Answer::Abandoned);
            }
            if !happened {
                match watch.check() {
                    StuckCheck::Undecided => {}
                    check => return Ok(Answer::Silent(check)),
                }
            }
        }
    }

    /// Waits for the reply for at most `limit`.
    pub(super) fn answer_within(
        &mut self,
        socket: &Stream,
        limit: Duration,
    ) -> io::Result<Option<Answer>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = self.exchange(socket)? {
                return Ok(Some(answer));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !socket.wait(self.has_unsent_bytes(), None, left)? {
                return Ok(None);
            }
        }
    }

    /// Sends as much as the socket takes without waiting.
    pub(super) fn send_available(&mut self, socket: &Stream) -> io::Result<()> {
        match send(socket, &self.message[self.sent..])? {
            Some(sent) => self.sent += sent,
            // It closed the connection; it may have sent the reason before.
            None => self.sent = self.message.len(),
        }
        Ok(())
    }

    /// Sends and receives without waiting. Returns the reply once it is complete.
    fn exchange(&mut self, socket: &Stream) -> io::Result<Option<Answer>> {
        self.send_available(socket)?;
        while let Some(line) = receive_line(socket, &mut self.received)? {
            let Line::Complete(line) = line else {
                return Ok(Some(Answer::Reply(DaemonReply::Closed)));
            };
            if let Some(reply) = DaemonReply::parse(&line) {
                return Ok(Some(Answer::Reply(reply)));
            }
        }
        Ok(None)
    }

    fn has_unsent_bytes(&self) -> bool {
        self.sent < self.message.len()
    }
}

/// Sends bytes and returns how many were taken; `None` if the connection is closed.
fn send(socket: &Stream, bytes: &[u8]) -> io::Result<Option<usize>> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, WouldBlock};
    if bytes.is_empty() {
        return Ok(Some(0));
    }
    match socket.send(bytes) {
        Ok(sent) => Ok(Some(sent)),
        Err(error) => match error.kind() {
            WouldBlock | Interrupted => Ok(Some(0)),
            BrokenPipe | ConnectionReset => Ok(None),
            _ => Err(error),
        },
    }
}

enum Line {
    Complete(Vec<u8>),
    /// The connection is closed, or the line is too long.
    End,
}

/// Receives the next line without its newline; `None` until it is complete. Peeks before it reads, because the bytes after
/// the newline belong to the session.
fn receive_line(socket: &Stream, received: &mut Vec<u8>) -> io::Result<Option<Line>> {
    let mut chunk = [0; 4096];
    loop {
        let peeked = match socket.peek(&mut chunk) {
            Ok(0) => return Ok(Some(Line::End)),
            Ok(peeked) => peeked,
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset => return Ok(Some(Line::End)),
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            },
        };
        let newline = chunk[..peeked].iter().position(|&byte| byte == b'\n');
        let wanted = newline.map_or(peeked, |at| at + 1);
        let taken = socket.read_once(&mut chunk[..wanted])?;
        received.extend_from_slice(&chunk[..taken]);
        if received.last() == Some(&b'\n') {
            received.pop();
            return Ok(Some(Line::Complete(std::mem::take(received))));
        }
        if received.len() > MAX_HELLO {
            return Ok(Some(Line::End));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixStream;

    use kennel_core::hello::{DaemonHello, PROTOCOL, Spec, Text};
    use kennel_sys::process::ProcessRef;

    use super::*;
    use crate::election::stuck::Patience;

    fn hello(env: Vec<(Text, Text)>) -> ClientHello {
        ClientHello {
            version: "0".into(),
            protocol: PROTOCOL,
            pid: 1,
            identity: String::new(),
            app: None,
            session: "cafe".into(),
            spec: Spec {
                command: Vec::new(),
                cwd: Text::from(&b"/"[..]),
                ladder: (1, 1),
                cache: true,
                in_turn: false,
                hibernate: None,
                replace: true,
                detached: None,
            },
            env: env.into(),
            shares: kennel_core::hello::Shares::default(),
            build: String::new(),
            program: Text::from(&b""[..]),
            pipes: false,
            key: None,
        }
    }

    /// The answer of a daemon whose side of the connection `daemon` plays, and the shim's socket.
    fn greet(hello: &ClientHello, daemon: impl FnOnce(UnixStream) + Send) -> (Answer, UnixStream) {
        let (ours, its) = UnixStream::pair().unwrap();
        let stream = Stream::new(ours.try_clone().unwrap().into()).unwrap();
        let answer = std::thread::scope(|threads| {
            threads.spawn(|| daemon(its));
            let mut watch = Watch::new(ProcessRef::me().ok(), Patience::First);
            let abandoned = Waker::new().unwrap();
            PendingReply::hello(hello, None)
                .answer(&stream, &mut watch, &abandoned)
                .unwrap()
        });
        ours.set_nonblocking(false).unwrap();
        (answer, ours)
    }

    #[test]
    fn a_hello_split_anywhere_is_parsed_and_nothing_after_it_is_read() {
        let said = DaemonHello {
            version: "\u{1F415}".into(),
            protocol: PROTOCOL,
            generation: "\u{1F415}g".into(),
            build: "0.1.0+7".into(),
            checks_keys: true,
            key_version: kennel_core::hello::KEY_VERSION,
        };
        let words = [
            b"!later {}\n".as_slice(),
            &said.line(),
            b"\n{\"id\":1}\n!ping\n",
        ]
        .concat();
        for cut in 0..=words.len() {
            let (answer, mut socket) = greet(&hello(Vec::new()), |mut its| {
                BufReader::new(&its).read_line(&mut String::new()).unwrap();
                its.write_all(&words[..cut]).unwrap();
                // Now and then the first part has been taken before the second comes.
                std::thread::yield_now();
                its.write_all(&words[cut..]).unwrap();
            });
            assert!(
                matches!(&answer, Answer::Reply(DaemonReply::Hello(hello)) if *hello == said),
                "cut at {cut}: {answer:?}"
            );
            let mut rest = String::new();
            socket.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "{\"id\":1}\n!ping\n", "cut at {cut}");
        }
    }

    #[test]
    fn a_handshake_is_sent_with_the_hello_and_its_unsent_bytes_are_known() {
        let (ours, its) = Stream::pair().unwrap();
        let mut its = UnixStream::from(its);
        let mut asked = PendingReply::hello(&hello(Vec::new()), Some(b"{\"id\":1}"));
        asked.send_available(&ours).unwrap();
        its.set_nonblocking(true).unwrap();
        let mut said = [0; 4096];
        let count = its.read(&mut said).unwrap();
        let expected = [&hello(Vec::new()).line()[..], b"\n{\"id\":1}\n"].concat();
        assert_eq!(said[..count], expected);

        for sent in 0..=expected.len() {
            asked.sent = sent;
            let SentHandshake { line, unsent } = asked.greeted().unwrap();
            assert_eq!(line, b"{\"id\":1}");
            let handshake = &expected[expected.len() - line.len() - 1..];
            assert_eq!(
                [&handshake[..handshake.len() - unsent.len()], &unsent].concat(),
                handshake
            );
            assert_eq!(unsent.len(), handshake.len().min(expected.len() - sent));
        }
        assert!(
            PendingReply::hello(&hello(Vec::new()), None)
                .greeted()
                .is_none()
        );
    }

    #[test]
    fn a_hello_larger_than_any_buffer_gets_through() {
        let value = Text::from(&vec![b'x'; 3 << 20][..]);
        let large = hello(vec![(Text::from(&b"LARGE"[..]), value)]);
        let length = large.line().len() + 1;
        let (answer, _) = greet(&large, |mut its| {
            let mut line = vec![0; length];
            its.read_exact(&mut line).unwrap();
            assert_eq!(line.last(), Some(&b'\n'));
            its.write_all(b"!hello {\"version\":\"0\",\"protocol\":1,\"generation\":\"g\",\"checks_keys\":true,\"key_version\":3}\n")
                .unwrap();
        });
        assert!(
            matches!(answer, Answer::Reply(DaemonReply::Hello(_))),
            "{answer:?}"
        );
    }

    #[test]
    fn a_leaving_daemon_is_recognised_even_if_it_never_reads() {
        let value = Text::from(&vec![b'x'; 3 << 20][..]);
        let large = hello(vec![(Text::from(&b"LARGE"[..]), value)]);
        for word in ["!going\n", "!moved\n", "!stopped\n"] {
            let (answer, _) = greet(&large, |mut its| its.write_all(word.as_bytes()).unwrap());
            assert!(
                matches!(answer, Answer::Reply(DaemonReply::Leaving)),
                "{word}: {answer:?}"
            );
        }
    }

    #[test]
    fn a_peer_that_closes_or_sends_anything_else_is_no_daemon() {
        for words in ["", "!hel", "!hello {}\n", "{\"jsonrpc\":\"2.0\"}\n"] {
            let (answer, _) = greet(&hello(Vec::new()), |mut its| {
                its.write_all(words.as_bytes()).unwrap();
            });
            assert!(
                matches!(answer, Answer::Reply(DaemonReply::Closed)),
                "{words}: {answer:?}"
            );
        }
    }
}
