//! The first words: our hello, and the daemon's, read to its last byte and not one further.

use std::io;
use std::time::{Duration, Instant};

use kennel_core::election::DaemonReply;
use kennel_core::hello::{ClientHello, Control, MAX_HELLO};
use kennel_sys::events::{Waker, is_readable};
use kennel_sys::io::{Input, Stream};

use super::Greeted;
use super::stuck::{StuckCheck, Watch};

/// How often a silent daemon is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What came of a hello.
#[derive(Debug)]
pub(super) enum Answer {
    Said(DaemonReply),
    /// It does not answer, and that is how it looks: anything but waiting.
    Silent(StuckCheck),
    /// Nobody wants to know any more.
    Abandoned,
}

/// Something said to a daemon, until its answer is there. Whatever follows the answer stays in the socket.
#[derive(Debug)]
pub(super) struct Asked {
    words: Vec<u8>,
    sent: usize,
    heard: Vec<u8>,
    greeting_at: Option<usize>,
}

impl Asked {
    /// A hello, and in the same breath the session's greeting, if there is one: whoever takes us answers both, and
    /// whoever does not has heard nothing.
    pub(super) fn hello(hello: &ClientHello, greeting: Option<&[u8]>) -> Asked {
        let mut asked = Asked::new(hello.line());
        if let Some(greeting) = greeting {
            asked.greeting_at = Some(asked.words.len());
            asked.words.extend_from_slice(greeting);
            asked.words.push(b'\n');
        }
        asked
    }

    /// Whether it is there, on a connection that is good for nothing else.
    pub(super) fn ping() -> Asked {
        Asked::new(Control::Ping.line())
    }

    fn new(mut words: Vec<u8>) -> Asked {
        words.push(b'\n');
        Asked {
            words,
            sent: 0,
            heard: Vec::new(),
            greeting_at: None,
        }
    }

    /// The greeting that went with a hello.
    pub(super) fn greeted(&self) -> Option<Greeted> {
        let at = self.greeting_at?;
        Some(Greeted {
            line: self.words[at..self.words.len() - 1].to_vec(),
            unsaid: self.words[self.sent.max(at)..].to_vec(),
        })
    }

    /// The answer, or what is to be thought of it that there is none.
    pub(super) fn answer(
        &mut self,
        socket: &Stream,
        watch: &mut Watch,
        abandoned: &Waker,
    ) -> io::Result<Answer> {
        loop {
            if let Some(answer) = self.go_on(socket)? {
                return Ok(answer);
            }
            let happened = socket.wait(self.has_more_to_say(), Some(abandoned), LOOK)?;
            if happened && is_readable(abandoned) {
                return Ok(Answer::Abandoned);
            }
            if !happened {
                match watch.look() {
                    StuckCheck::Undecided => {}
                    look => return Ok(Answer::Silent(look)),
                }
            }
        }
    }

    /// The answer, if it is there before long.
    pub(super) fn answer_within(
        &mut self,
        socket: &Stream,
        limit: Duration,
    ) -> io::Result<Option<Answer>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = self.go_on(socket)? {
                return Ok(Some(answer));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !socket.wait(self.has_more_to_say(), None, left)? {
                return Ok(None);
            }
        }
    }

    /// Says what can be said without waiting.
    pub(super) fn say(&mut self, socket: &Stream) -> io::Result<()> {
        match send(socket, &self.words[self.sent..])? {
            Some(sent) => self.sent += sent,
            // It hung up; it may have said why.
            None => self.sent = self.words.len(),
        }
        Ok(())
    }

    /// Says and hears what can be said and heard without waiting.
    fn go_on(&mut self, socket: &Stream) -> io::Result<Option<Answer>> {
        self.say(socket)?;
        while let Some(line) = hear(socket, &mut self.heard)? {
            let Line::Whole(line) = line else {
                return Ok(Some(Answer::Said(DaemonReply::Closed)));
            };
            if let Some(said) = DaemonReply::parse(&line) {
                return Ok(Some(Answer::Said(said)));
            }
        }
        Ok(None)
    }

    fn has_more_to_say(&self) -> bool {
        self.sent < self.words.len()
    }
}

/// How much was sent; `None` if the other side hung up.
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
    Whole(Vec<u8>),
    /// The other side has no more to say.
    End,
}

/// The next line without its newline, or `None` if it is not all there yet. Looks before it takes: the
/// bytes behind the newline are the session's.
fn hear(socket: &Stream, heard: &mut Vec<u8>) -> io::Result<Option<Line>> {
    let mut chunk = [0; 4096];
    loop {
        let seen = match socket.peek(&mut chunk) {
            Ok(0) => return Ok(Some(Line::End)),
            Ok(seen) => seen,
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset => return Ok(Some(Line::End)),
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            },
        };
        let newline = chunk[..seen].iter().position(|&byte| byte == b'\n');
        let wanted = newline.map_or(seen, |at| at + 1);
        let taken = socket.read_once(&mut chunk[..wanted])?;
        heard.extend_from_slice(&chunk[..taken]);
        if heard.last() == Some(&b'\n') {
            heard.pop();
            return Ok(Some(Line::Whole(std::mem::take(heard))));
        }
        if heard.len() > MAX_HELLO {
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

    /// The answer of a daemon that does as `daemon` says, and its socket.
    fn greet(hello: &ClientHello, daemon: impl FnOnce(UnixStream) + Send) -> (Answer, UnixStream) {
        let (ours, its) = UnixStream::pair().unwrap();
        let stream = Stream::new(ours.try_clone().unwrap().into()).unwrap();
        let answer = std::thread::scope(|threads| {
            threads.spawn(|| daemon(its));
            let mut watch = Watch::new(ProcessRef::me().ok(), Patience::First);
            let abandoned = Waker::new().unwrap();
            Asked::hello(hello, None)
                .answer(&stream, &mut watch, &abandoned)
                .unwrap()
        });
        ours.set_nonblocking(false).unwrap();
        (answer, ours)
    }

    #[test]
    fn a_hello_cut_anywhere_is_heard_and_nothing_behind_it_is_taken() {
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
                matches!(&answer, Answer::Said(DaemonReply::Hello(hello)) if *hello == said),
                "cut at {cut}: {answer:?}"
            );
            let mut rest = String::new();
            socket.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "{\"id\":1}\n!ping\n", "cut at {cut}");
        }
    }

    #[test]
    fn a_greeting_goes_with_the_hello_and_what_is_unsaid_is_known() {
        let (ours, its) = Stream::pair().unwrap();
        let mut its = UnixStream::from(its);
        let mut asked = Asked::hello(&hello(Vec::new()), Some(b"{\"id\":1}"));
        asked.say(&ours).unwrap();
        its.set_nonblocking(true).unwrap();
        let mut said = [0; 4096];
        let count = its.read(&mut said).unwrap();
        let expected = [&hello(Vec::new()).line()[..], b"\n{\"id\":1}\n"].concat();
        assert_eq!(said[..count], expected);

        for sent in 0..=expected.len() {
            asked.sent = sent;
            let Greeted { line, unsaid } = asked.greeted().unwrap();
            assert_eq!(line, b"{\"id\":1}");
            let greeting = &expected[expected.len() - line.len() - 1..];
            assert_eq!(
                [&greeting[..greeting.len() - unsaid.len()], &unsaid].concat(),
                greeting
            );
            assert_eq!(unsaid.len(), greeting.len().min(expected.len() - sent));
        }
        assert!(Asked::hello(&hello(Vec::new()), None).greeted().is_none());
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
            matches!(answer, Answer::Said(DaemonReply::Hello(_))),
            "{answer:?}"
        );
    }

    #[test]
    fn a_daemon_that_is_going_is_understood_even_if_it_never_reads() {
        let value = Text::from(&vec![b'x'; 3 << 20][..]);
        let large = hello(vec![(Text::from(&b"LARGE"[..]), value)]);
        for word in ["!going\n", "!moved\n", "!stopped\n"] {
            let (answer, _) = greet(&large, |mut its| its.write_all(word.as_bytes()).unwrap());
            assert!(
                matches!(answer, Answer::Said(DaemonReply::Leaving)),
                "{word}: {answer:?}"
            );
        }
    }

    #[test]
    fn whoever_hangs_up_or_speaks_otherwise_is_no_daemon() {
        for words in ["", "!hel", "!hello {}\n", "{\"jsonrpc\":\"2.0\"}\n"] {
            let (answer, _) = greet(&hello(Vec::new()), |mut its| {
                its.write_all(words.as_bytes()).unwrap();
            });
            assert!(
                matches!(answer, Answer::Said(DaemonReply::Closed)),
                "{words}: {answer:?}"
            );
        }
    }
}
