//! Control messages: Kennel's own lines between a shim and a daemon, which begin with `!`.

use serde::{Deserialize, Serialize};

use super::{ids, to_line};
use crate::message::Key;
use crate::session::ServerExit;

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// Asks whether the daemon is running.
    Ping,
    /// Answers [`Control::Ping`].
    Pong,
    /// The client's server is lost. The session begins again on this connection.
    Lost(Lost),
    /// The daemon ends without having accepted this client: elect again.
    Going,
    /// The daemon's runtime directory is gone: elect again.
    Moved,
    /// A person stopped the server: start again at the next request.
    Stopped,
    /// The server hibernates; every request that it received is answered. It starts again at the next request.
    Resting,
    /// Answers [`Control::Lost`]: what follows is for the next server.
    Again,
    /// This session cannot share a server: it must go dedicated.
    Solo(Solo),
    /// A line of the server's stderr.
    Stderr(String),
    /// The daemon's first `!pipes` comes with the descriptors of two pipes. The next one of each side means that all
    /// further lines of that side are in its pipe.
    Pipes,
    /// A message of a later version, which is ignored.
    Unknown,
}

/// Why a session goes dedicated, and which of its requests the server has not received.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Solo {
    /// The reason, for people.
    pub why: String,
    /// As in [`Lost::unsent`].
    #[serde(default, with = "ids", skip_serializing_if = "Vec::is_empty")]
    pub unsent: Vec<Key>,
    /// As in [`Lost::received`].
    #[serde(rename = "heard", default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

/// How a server was lost, and which requests it has not received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// The reason as one word, such as `session::SERVER_RESTARTED`.
    pub reason: String,
    /// The last lines of the server's stderr.
    #[serde(default)]
    pub detail: String,
    /// Whether the restart limit is reached: requests are refused until a later one may start a server.
    #[serde(default, rename = "final_word")]
    pub is_final: bool,
    /// The exit code that a shell would use, if the server could not be started at all.
    #[serde(default)]
    pub exit: Option<u8>,
    /// The ids of this client's requests that the server has certainly not received.
    #[serde(default, with = "ids", skip_serializing_if = "Vec::is_empty")]
    pub unsent: Vec<Key>,
    /// Bytes of MCP lines received from this client since its hello or its last `!again`. What it sent beyond that was
    /// not received. `None`: not counted.
    #[serde(rename = "heard", default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Whether the daemon lacks resources for a start, such as descriptors: the session may still be able to start the
    /// server itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortage: bool,
    /// How the server's first process ended, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<ServerExit>,
    /// With `is_final`: milliseconds until a request may start a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

impl Control {
    /// The line, without its newline.
    pub fn line(&self) -> Vec<u8> {
        match self {
            Control::Ping => b"!ping".to_vec(),
            Control::Pong => b"!pong".to_vec(),
            Control::Going => b"!going".to_vec(),
            Control::Moved => b"!moved".to_vec(),
            Control::Stopped => b"!stopped".to_vec(),
            Control::Resting => b"!resting".to_vec(),
            Control::Again => b"!again".to_vec(),
            Control::Solo(why) => to_line("!solo ", why),
            Control::Lost(lost) => to_line("!lost ", lost),
            Control::Stderr(text) => to_line("!stderr ", text),
            Control::Pipes => b"!pipes".to_vec(),
            Control::Unknown => b"!".to_vec(),
        }
    }

    /// Whether it may be left out for a client that does not read.
    pub fn is_optional(&self) -> bool {
        matches!(self, Control::Stderr(_) | Control::Pong)
    }

    /// Reads a control message of a client; `None` if the line is MCP. Messages that only daemons send are unknown: they
    /// have lists and texts, which a client must not make a daemon read.
    pub fn parse_from_client(line: &[u8]) -> Option<Control> {
        let (word, _) = split(line)?;
        Some(match word {
            b"again" => Control::Again,
            _ => parse_common(word),
        })
    }

    /// Reads a control message of a daemon; `None` if the line is MCP. Messages that only clients send are unknown.
    pub fn parse_from_daemon(line: &[u8]) -> Option<Control> {
        let (word, rest) = split(line)?;
        Some(match word {
            b"going" => Control::Going,
            b"moved" => Control::Moved,
            b"stopped" => Control::Stopped,
            b"resting" => Control::Resting,
            b"solo" => serde_json::from_slice(rest).map_or(Control::Unknown, Control::Solo),
            b"lost" => serde_json::from_slice(rest).map_or(Control::Unknown, Control::Lost),
            b"stderr" => serde_json::from_slice(rest).map_or(Control::Unknown, Control::Stderr),
            _ => parse_common(word),
        })
    }
}

/// The word of a control message, and what follows it; `None` if the line is MCP.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let words = line.strip_prefix(b"!")?;
    Some(match words.iter().position(|&byte| byte == b' ') {
        Some(space) => (&words[..space], &words[space + 1..]),
        None => (words, &[]),
    })
}

/// A control message that both sides may send.
fn parse_common(word: &[u8]) -> Control {
    match word {
        b"ping" => Control::Ping,
        b"pong" => Control::Pong,
        b"pipes" => Control::Pipes,
        _ => Control::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::reply::IN_FLIGHT_LIMIT;

    #[test]
    fn every_word_of_kennels_reads_back_and_an_unknown_one_is_no_error() {
        let lost = Lost {
            reason: "server_restarted".into(),
            detail: "line\nline".into(),
            is_final: false,
            exit: None,
            unsent: vec![Key::Number(-7), Key::Text("a \"b\"".into())],
            received: Some(0),
            shortage: true,
            ended: Some(ServerExit::Signal(9)),
            retry_after: Some(1600),
        };
        for control in [
            Control::Ping,
            Control::Pong,
            Control::Pipes,
            Control::Going,
            Control::Moved,
            Control::Stopped,
            Control::Resting,
            Control::Solo(Solo {
                why: "its roots are its own".into(),
                unsent: vec![Key::Number(7), Key::Text("a\nb".into())],
                received: Some(12),
            }),
            Control::Lost(lost),
            Control::Stderr("oh no\t\u{1F600}".into()),
        ] {
            assert_eq!(Control::parse_from_daemon(&control.line()), Some(control));
        }
        for control in [Control::Ping, Control::Pong, Control::Pipes, Control::Again] {
            assert_eq!(Control::parse_from_client(&control.line()), Some(control));
        }
        for later in ["!", "!dance {}", "!lost", "!stderr {", "!pingpong"] {
            for parse in [Control::parse_from_client, Control::parse_from_daemon] {
                assert_eq!(parse(later.as_bytes()), Some(Control::Unknown), "{later}");
            }
        }
        assert_eq!(Control::parse_from_client(b"{}"), None);
        assert_eq!(Control::parse_from_daemon(b"{}"), None);
    }

    #[test]
    fn a_message_that_only_the_other_side_sends_is_unknown() {
        for of_daemon in [
            r#"!lost {"reason":"r","unsent":[1]}"#,
            r#"!solo {"why":"w","unsent":[1]}"#,
            r#"!stderr "text""#,
            "!going",
            "!moved",
            "!stopped",
            "!resting",
        ] {
            let parsed = Control::parse_from_client(of_daemon.as_bytes());
            assert_eq!(parsed, Some(Control::Unknown), "{of_daemon}");
            let parsed = Control::parse_from_daemon(of_daemon.as_bytes());
            assert_ne!(parsed, Some(Control::Unknown), "{of_daemon}");
        }
        let parsed = Control::parse_from_daemon(b"!again");
        assert_eq!(parsed, Some(Control::Unknown));
    }

    #[test]
    fn of_a_long_list_of_unsent_requests_only_the_first_ones_are_kept() {
        let numbers: Vec<usize> = (0..3 * IN_FLIGHT_LIMIT).collect();
        let list = serde_json::to_string(&numbers).unwrap();
        let odd = vec![r#"{"":0}"#; 3 * IN_FLIGHT_LIMIT].join(",");
        let mixed = format!("[{odd},7]");
        for (list, kept) in [(list, IN_FLIGHT_LIMIT), (mixed, 0)] {
            let line = format!(r#"!solo {{"why":"w","unsent":{list},"heard":5}}"#);
            let Some(Control::Solo(solo)) = Control::parse_from_daemon(line.as_bytes()) else {
                panic!("not understood");
            };
            assert_eq!((solo.unsent.len(), solo.received), (kept, Some(5)));
        }
    }

    #[test]
    fn a_loss_is_understood_whatever_an_older_or_later_version_says_of_what_was_not_sent() {
        let unsent = |more: &str| {
            let line = format!(r#"!lost {{"reason":"r"{more}}}"#);
            match Control::parse_from_daemon(line.as_bytes()) {
                Some(Control::Lost(lost)) => lost.unsent,
                other => panic!("{line} is {other:?}"),
            }
        };
        assert_eq!(unsent(""), []);
        let known = [Key::Number(1), Key::Text("1".into())];
        assert_eq!(unsent(r#","unsent":[1,"1",1.5,null,{"id":2}]"#), known);
        for later in ["null", "7", r#"{"all":true}"#] {
            assert_eq!(unsent(&format!(r#","unsent":{later}"#)), [], "{later}");
        }
    }
}
