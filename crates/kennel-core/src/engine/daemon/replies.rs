//! The lines that a daemon writes to a connection that it does not serve, or does not serve yet.

use std::fmt::Display;
use std::time::Duration;

use crate::hello::{Control, DaemonHello, Lost, MAX_HELLO, Solo};
use crate::message::{Line, Message, error_reply};
use crate::session::SERVER_UNAVAILABLE;

/// How long a connection may take to send its first line. Until then it keeps the daemon alive, as a client does.
pub const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client that is not served may take to close its connection.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Why a client with a long environment is not served beside others.
pub const TOO_MANY_ENVIRONMENTS: &str =
    "the environments of this daemon's clients take up too much memory";
/// The JSON-RPC error code for a client without a hello that the daemon has no room for.
const UNAVAILABLE: i32 = -32000;
/// The JSON-RPC error code for a client without a hello that is not served.
const REFUSED: i32 = -32600;

/// A connection that is closed before it is served: the reason, and the lines that are written to it first.
#[derive(Debug, PartialEq, Eq)]
pub struct RefusedConnection {
    /// The reason, for the log.
    pub why: String,
    /// Empty if nothing is written.
    pub reply: Vec<u8>,
}

/// The beginning of a first line that is not complete yet.
#[derive(Debug, Clone, Copy)]
pub struct UnfinishedFirstLine {
    /// It begins as a hello does.
    pub is_hello: bool,
    /// Number of bytes read of it.
    pub length: usize,
    /// Whether the rest of it is skipped because it is longer than any line may be.
    pub is_skipped: bool,
}

impl UnfinishedFirstLine {
    /// Checks the length of the first line. `Err`: it is too long. An unknown client must not fill the daemon's memory.
    pub fn check(&self) -> Result<(), RefusedConnection> {
        let is_long = self.length > MAX_HELLO;
        if self.is_hello && (is_long || self.is_skipped) {
            let why = format!("its hello is longer than {MAX_HELLO} bytes");
            let reply = Vec::new();
            return Err(RefusedConnection { why, reply });
        }
        if !is_long {
            return Ok(());
        }
        let why = format!("its first line is longer than {MAX_HELLO} bytes");
        let data = format!(r#"{{"reason":"line_too_long","limit":{MAX_HELLO}}}"#);
        let error = error_reply(b"null", REFUSED, &not_served(&why), Some(&data));
        let reply = lines([error]);
        Err(RefusedConnection { why, reply })
    }
}

/// The lines that a daemon writes by itself.
#[derive(Debug)]
pub struct Replies {
    hello: DaemonHello,
}

impl Replies {
    /// The replies of a daemon with this hello.
    pub fn new(hello: DaemonHello) -> Replies {
        Replies { hello }
    }

    /// The daemon's answer to a hello, without its newline.
    pub fn hello(&self) -> Vec<u8> {
        self.hello.line()
    }

    /// The reply to a connection that came too late, because the daemon is exiting.
    pub fn leaving_reply() -> Vec<u8> {
        lines([Control::Going.line()])
    }

    /// The answer to a ping on a connection without a hello.
    pub fn pong_reply() -> Vec<u8> {
        lines([Control::Pong.line()])
    }

    /// The line that is sent with two pipes, or as the first line in one of them.
    pub fn pipes() -> Vec<u8> {
        lines([Control::Pipes.line()])
    }

    /// The reply to a session if the daemon lacks resources for it, such as descriptors: the session goes dedicated.
    /// `daemon` is the daemon's pid.
    pub fn shortage(&self, error: impl Display, daemon: u32, clients: usize) -> Vec<u8> {
        let detail =
            format!("it cannot take another client: {error} (pid {daemon}, {clients} clients)");
        let lost = Control::Lost(Lost {
            reason: SERVER_UNAVAILABLE.into(),
            detail,
            is_final: false,
            exit: None,
            unsent: Vec::new(),
            received: Some(0),
            shortage: true,
            ended: None,
            retry_after: None,
        });
        lines([self.hello(), lost.line()])
    }

    /// The reply to a session that may not share here: it goes dedicated. None of its lines was taken.
    pub fn dedicated(&self, why: &str) -> Vec<u8> {
        let solo = Control::Solo(Solo {
            why: why.to_owned(),
            unsent: Vec::new(),
            received: Some(0),
        });
        lines([self.hello(), solo.line()])
    }

    /// The reply to a client without a hello that is not served, if its first line is a request.
    pub fn refuse_bare(first_line: &[u8], why: &str) -> RefusedConnection {
        let reply = match Message::parse(Line::from(first_line)) {
            Ok(Message::Request(request)) => {
                let error = error_reply(request.id.raw(), REFUSED, &not_served(why), None);
                lines([error])
            }
            _ => Vec::new(),
        };
        RefusedConnection {
            why: format!("a client without a hello is not served here: {why}"),
            reply,
        }
    }

    /// The reply to a connection that is closed to save memory. Its first line begins with this byte, if it sent any: a
    /// session goes dedicated, any other client may try again.
    pub fn overloaded(&self, first: Option<u8>, daemon: u32, clients: usize) -> Vec<u8> {
        let why = "too many connections have not sent their first line, or only the beginning of a long one";
        match first {
            None | Some(b'!') => self.shortage(why, daemon, clients),
            Some(_) => {
                let error = format!("kennel: {why}: try again later");
                lines([error_reply(b"null", UNAVAILABLE, &error, None)])
            }
        }
    }
}

fn not_served(why: &str) -> String {
    format!("kennel: a client without a hello is not served here: {why}")
}

fn lines<const N: usize>(lines: [Vec<u8>; N]) -> Vec<u8> {
    let mut all = Vec::new();
    for line in lines {
        all.extend_from_slice(&line);
        all.push(b'\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::{KEY_VERSION, PROTOCOL};

    fn replies() -> Replies {
        Replies::new(DaemonHello {
            version: "1".to_owned(),
            protocol: PROTOCOL,
            generation: "g".to_owned(),
            build: String::new(),
            checks_keys: true,
            key_version: KEY_VERSION,
        })
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    fn control(reply: &[u8]) -> Control {
        let last = reply
            .trim_ascii_end()
            .split(|&byte| byte == b'\n')
            .next_back();
        Control::parse_from_daemon(last.unwrap()).unwrap()
    }

    #[test]
    fn a_session_that_is_not_served_goes_dedicated_and_nothing_of_it_was_taken() {
        let Control::Solo(solo) = control(&replies().dedicated("its key is another")) else {
            panic!("no `!solo`");
        };
        assert_eq!(
            (&solo.why[..], solo.received),
            ("its key is another", Some(0))
        );
        let Control::Lost(lost) = control(&replies().shortage("no descriptors", 7, 2)) else {
            panic!("no `!lost`");
        };
        assert!(lost.shortage && !lost.is_final && lost.received == Some(0));
        assert!(lost.detail.contains("no descriptors (pid 7, 2 clients)"));
    }

    #[test]
    fn a_client_without_a_hello_gets_an_error_of_json_rpc_and_no_control_message() {
        let call = br#"{"jsonrpc":"2.0","id":"a","method":"tools/call"}"#;
        let refused = Replies::refuse_bare(call, "why");
        assert!(text(refused.reply).contains(r#""id":"a","error":{"code":-32600"#));
        let notification = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert!(Replies::refuse_bare(notification, "why").reply.is_empty());
        let overloaded = text(replies().overloaded(Some(b'{'), 7, 2));
        assert!(overloaded.contains("try again later") && !overloaded.contains('!'));
        for first in [None, Some(b'!')] {
            let reply = replies().overloaded(first, 7, 2);
            assert!(matches!(control(&reply), Control::Lost(_)));
        }
    }

    #[test]
    fn a_first_line_may_have_the_length_of_the_longest_hello() {
        let check = |is_hello, length, is_skipped| {
            let line = UnfinishedFirstLine {
                is_hello,
                length,
                is_skipped,
            };
            line.check()
        };
        assert_eq!(check(true, MAX_HELLO, false), Ok(()));
        assert_eq!(check(false, MAX_HELLO, false), Ok(()));
        assert!(check(true, 0, true).is_err_and(|it| it.reply.is_empty()));
        assert!(check(true, MAX_HELLO + 1, false).is_err_and(|it| it.reply.is_empty()));
        let refused = check(false, MAX_HELLO + 1, false).unwrap_err();
        assert!(text(refused.reply).contains("line_too_long"));
    }
}
