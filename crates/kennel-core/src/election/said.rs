//! What a daemon says to whoever greets it or asks whether it is there.

use super::Answer;
use crate::hello::{Control, DaemonHello, KEY_VERSION};

/// A daemon's line that is an answer, or the end of its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It takes us for its client.
    Hello(DaemonHello),
    /// It is there.
    Pong,
    /// It takes us for its client, and would take others from whom we differ: its build does not check keys, or computes
    /// those of an earlier version. Our hello makes it become a newer build.
    Outdated,
    /// It takes no new clients.
    Leaving,
    /// It closed the connection, or is no peer of ours: as good as nobody.
    Gone,
}

impl Said {
    /// An answer, if the line is one: a word of a later version is none.
    ///
    /// ```
    /// use kennel_core::election::Said;
    ///
    /// assert_eq!(Said::of(b"!going"), Some(Said::Leaving));
    /// assert_eq!(Said::of(b"!later {}"), None);
    /// assert_eq!(Said::of(b"HTTP/1.1 400 Bad Request"), Some(Said::Gone));
    /// ```
    pub fn of(line: &[u8]) -> Option<Said> {
        match DaemonHello::parse(line) {
            Ok(hello) if hello.checks_keys && hello.key_version >= KEY_VERSION => {
                return Some(Said::Hello(hello));
            }
            Ok(_) => return Some(Said::Outdated),
            Err(_) if line.starts_with(b"!hello ") => return Some(Said::Gone),
            Err(_) => {}
        }
        match Control::parse(line) {
            Some(Control::Pong) => Some(Said::Pong),
            Some(Control::Going | Control::Moved | Control::Stopped | Control::Resting) => {
                Some(Said::Leaving)
            }
            Some(_) => None,
            None => Some(Said::Gone),
        }
    }

    /// What an election is told of it.
    pub fn answer(&self) -> Answer {
        match self {
            Said::Hello(_) => Answer::Hello,
            Said::Pong => Answer::Pong,
            // Both are waited for, and met again: one is another daemon then, the other another build.
            Said::Outdated | Said::Leaving => Answer::Leaving,
            Said::Gone => Answer::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_an_answer_or_a_word_to_wait_behind() {
        let hello = r#"!hello {"version":"0","protocol":1,"generation":"g","checks_keys":true,"key_version":3}"#;
        let former = r#"!hello {"version":"0","protocol":1,"generation":"g","checks_keys":true}"#;
        let outdated = r#"!hello {"version":"0","protocol":1,"generation":"g"}"#;
        let meanings = [
            (hello, Some(Answer::Hello)),
            (former, Some(Answer::Leaving)),
            (outdated, Some(Answer::Leaving)),
            ("!pong", Some(Answer::Pong)),
            ("!going", Some(Answer::Leaving)),
            ("!moved", Some(Answer::Leaving)),
            ("!stopped", Some(Answer::Leaving)),
            ("!resting", Some(Answer::Leaving)),
            ("!hello {}", Some(Answer::Gone)),
            (r#"{"jsonrpc":"2.0"}"#, Some(Answer::Gone)),
            ("", Some(Answer::Gone)),
            ("!hello", None),
            ("!stderr \"words\"", None),
            ("!later {}", None),
        ];
        for (line, answer) in meanings {
            let said = Said::of(line.as_bytes());
            assert_eq!(said.map(|said| said.answer()), answer, "{line}");
        }
    }
}
