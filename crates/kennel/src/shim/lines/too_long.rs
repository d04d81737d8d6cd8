//! Lines that are longer than allowed: what is known of them, and what is answered.

use std::cell::Cell;

use kennel_core::hello::VOID;
use kennel_core::message::{Scan, error_reply};
use kennel_core::session::NAME_LIMIT;

use super::{DEFAULT_MAX_LINE, LEAST_MAX_LINE};

/// How much of the end of a skipped line is kept: many SDKs write the id last.
const TAIL: usize = 512;

/// JSON-RPC codes: the request cannot be taken; the answer cannot be passed on.
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

thread_local! {
    // Whoever reads lines here has one thread.
    static MAX_LINE: Cell<usize> = const { Cell::new(DEFAULT_MAX_LINE) };
}

/// The longest line that this thread takes, in bytes.
pub(crate) fn max_line() -> usize {
    MAX_LINE.get()
}

pub(crate) fn set_max_line(bytes: usize) {
    MAX_LINE.set(bytes.max(LEAST_MAX_LINE));
}

/// A line that was too long and is not kept, as far as its beginning and its end tell what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TooLong {
    /// As spelled; none that is longer than [`NAME_LIMIT`].
    pub(crate) id: Option<Vec<u8>>,
    /// It answers something; otherwise it asks or tells something.
    pub(crate) is_answer: bool,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// More than this many bytes.
    Limit(usize),
    /// There was no memory for more, or the daemon holds too much already.
    NoRoom,
}

impl TooLong {
    /// An error for whoever said it.
    pub(crate) fn refusal(&self) -> Vec<u8> {
        self.error("this message", INVALID_REQUEST, "send less")
    }

    /// An error in place of the answer that it was; `None` if nobody knows whom it was for.
    pub(crate) fn in_its_place(&self) -> Option<Vec<u8>> {
        let known = self.is_answer && self.id.is_some();
        known.then(|| self.error("the answer", INTERNAL_ERROR, "ask for less"))
    }

    fn error(&self, what: &str, code: i32, advice: &str) -> Vec<u8> {
        let (message, limit) = match self.why {
            Why::Limit(limit) => (
                format!(
                    "{what} is longer than {limit} bytes, the longest line allowed: {advice}, or raise --max-line"
                ),
                format!(r#","limit":{limit}"#),
            ),
            Why::NoRoom => (
                format!("there is no memory for {what}, which is too long: {advice}"),
                String::new(),
            ),
        };
        let data = format!(r#"{{"reason":"line_too_long"{limit}}}"#);
        let id = self.id.as_deref().unwrap_or(b"null");
        error_reply(id, code, &message, Some(&data))
    }

    /// For a log: it says nothing of the line's content.
    pub(crate) fn note(&self, who: &str) -> String {
        match self.why {
            Why::Limit(limit) => {
                format!(
                    "a line of {who} was longer than {limit} bytes and was skipped (--max-line)"
                )
            }
            Why::NoRoom => format!("a long line of {who} was skipped: there is no memory for it"),
        }
    }
}

/// A line that is being skipped, or was.
#[derive(Debug)]
pub(super) struct Skipped {
    line: TooLong,
    tail: Vec<u8>,
    /// Somebody was told of it.
    pub(super) is_told: bool,
}

impl Skipped {
    /// The line begins like this; `scan` is what was seen of it before, if anything.
    pub(super) fn new(begun: &[u8], scan: Option<Box<Scan>>, no_room: bool) -> Skipped {
        let mut scan = scan.unwrap_or_default();
        scan.look_at(begun);
        let seen = scan.seen(begun);
        let mut skipped = Skipped {
            line: TooLong {
                id: seen
                    .id
                    .filter(|id| id.len() <= NAME_LIMIT)
                    .map(<[u8]>::to_vec),
                is_answer: seen.is_answer,
                why: match no_room {
                    true => Why::NoRoom,
                    false => Why::Limit(max_line()),
                },
            },
            tail: Vec::new(),
            is_told: false,
        };
        skipped.goes_on(begun);
        skipped
    }

    /// More of it came.
    pub(super) fn goes_on(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len() - bytes.len().min(TAIL)..];
        let excess = (self.tail.len() + last.len()).saturating_sub(TAIL);
        self.tail.drain(..excess.min(self.tail.len()));
        self.tail.extend_from_slice(last);
    }

    /// What is known before it has ended, if that is enough.
    pub(super) fn known(&mut self) -> Option<TooLong> {
        let enough = self.line.id.is_some() && !self.is_told;
        self.is_told |= enough;
        enough.then(|| self.line.clone())
    }

    /// It has ended. `None` if somebody was told before, or it was not said after all.
    pub(super) fn ended(self) -> Option<TooLong> {
        if self.is_told || self.tail.ends_with(&[VOID]) {
            return None;
        }
        let mut line = self.line;
        if line.id.is_none() {
            line.id = id_at_end(&self.tail).map(<[u8]>::to_vec);
        }
        Some(line)
    }
}

/// The id of an object whose last members, `jsonrpc` aside, are its id: whatever was before them, a member right before
/// the last brace is the whole object's.
fn id_at_end(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line.trim_ascii_end().strip_suffix(b"}")?;
    for _ in 0..2 {
        let (before, value) = last_scalar(rest.trim_ascii_end())?;
        let before = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
        let (before, key) = last_scalar(before)?;
        let before = before.trim_ascii_end();
        match key {
            b"\"id\"" if before.ends_with(b",") || before.ends_with(b"{") => {
                // It becomes part of an answer.
                return serde_json::from_slice::<serde_json::Value>(value)
                    .is_ok()
                    .then_some(value);
            }
            b"\"jsonrpc\"" => rest = before.strip_suffix(b",")?,
            _ => return None,
        }
    }
    None
}

/// A text without escapes or a number at the end, and what is before it.
fn last_scalar(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = match bytes.strip_suffix(b"\"") {
        Some(text) => {
            let start = text.iter().rposition(|&byte| byte == b'"')?;
            let is_escaped = |bytes: &[u8]| bytes.contains(&b'\\');
            if is_escaped(&text[start..]) || text[..start].ends_with(b"\\") {
                return None;
            }
            start
        }
        None => {
            let digits = bytes.iter().rev();
            let digits = digits.take_while(|byte| byte.is_ascii_digit() || **byte == b'-');
            bytes.len() - digits.count()
        }
    };
    let (before, value) = bytes.split_at(start);
    (!value.is_empty()).then_some((before, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_written_last_is_found() {
        let found = |line: &str| {
            id_at_end(line.as_bytes()).map(|id| String::from_utf8_lossy(id).into_owned())
        };
        for (line, id) in [
            (r#"xx"},"jsonrpc":"2.0","id":12}"#, Some("12")),
            (r#"xx"},"id":"a-b","jsonrpc":"2.0"} "#, Some("\"a-b\"")),
            (r#"xx"} , "id" : -3 }"#, Some("-3")),
            (r#"{"id":7}"#, Some("7")),
            (r#"xx","id":12}}"#, None),
            (r#"xx\"id\":12}"#, None),
            (r#"xx,"id":"a\"b"}"#, None),
            (r#"xx,"id":null}"#, None),
            (r#"xx,"id":1-2}"#, None),
            (r#"xx,"id":007}"#, None),
            ("xx,\"id\":\"a\tb\"}", None),
            (r#"xx,"other":1}"#, None),
            (r#"xx"id":1"#, None),
            ("}", None),
            ("", None),
        ] {
            assert_eq!(found(line).as_deref(), id, "{line}");
        }
    }

    #[test]
    fn what_is_known_of_a_skipped_line_is_told_once() {
        let begun = br#"{"jsonrpc":"2.0","id":5,"result":"xxxxxxxx"#;
        let mut skipped = Skipped::new(begun, None, false);
        let told = skipped.known().unwrap();
        assert!(told.is_answer && told.id.as_deref() == Some(b"5"));
        assert!(told.in_its_place().is_some());
        assert_eq!(skipped.known(), None);
        assert_eq!(skipped.ended(), None);

        let mut skipped = Skipped::new(br#"{"result":"xxxx"#, None, false);
        assert_eq!(skipped.known(), None);
        for part in br#"xxx","jsonrpc":"2.0","id":"last"}"#.chunks(3) {
            skipped.goes_on(part);
        }
        let told = skipped.ended().unwrap();
        assert!(told.is_answer && told.id.as_deref() == Some(b"\"last\""));

        let mut skipped = Skipped::new(br#"{"method":"x","params":"#, None, false);
        skipped.goes_on(&[b'x', VOID]);
        assert_eq!(skipped.ended(), None);
    }
}
