//! Lines that are longer than allowed: their ids, and the error responses.

use std::cell::Cell;

use kennel_core::hello::ABORT_BYTE;
use kennel_core::message::{Element, Outline, Scan, error_reply};
use serde::{Deserialize, Serialize};

use super::{DEFAULT_MAX_LINE, MIN_MAX_LINE};

/// JSON-RPC error codes for a refused request and for a replaced response.
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

thread_local! {
    // A process reads lines in a single thread.
    static MAX_LINE: Cell<usize> = const { Cell::new(DEFAULT_MAX_LINE) };
    static MAX_ODD_LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Maximum bytes of a line in this thread.
pub(crate) fn max_line() -> usize {
    MAX_LINE.get()
}

/// Maximum bytes of an [odd](SkipReason::Odd) line in this thread.
pub(super) fn max_odd_line() -> usize {
    MAX_ODD_LINE.get()
}

/// Sets the maximum bytes of an [odd](SkipReason::Odd) line in this thread. Such a line is read several times once it is
/// complete, while other clients wait.
pub(crate) fn set_max_odd_line(bytes: usize) {
    MAX_ODD_LINE.set(bytes);
}

/// Whether a line of this length is [odd](SkipReason::Odd), by its scan, and too long for that.
pub(super) fn is_too_odd(length: usize, scan: Option<&Scan>) -> bool {
    length > max_odd_line() && scan.is_some_and(Scan::is_refused)
}

/// Sets the maximum bytes of a line in this thread.
pub(crate) fn set_max_line(bytes: usize) {
    MAX_LINE.set(bytes.max(MIN_MAX_LINE));
}

/// Like [`set_max_line`] without a minimum: the fuzz target has smaller buffers than the program.
#[cfg(feature = "fuzzing")]
pub(crate) fn set_any_max_line(bytes: usize) {
    MAX_LINE.set(bytes);
}

/// A line that was too long and was dropped, as far as its keys were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TooLong {
    /// Its id as spelled, if an error response can contain it.
    pub(crate) id: Option<Vec<u8>>,
    /// It is a response; else a request or notification.
    pub(crate) is_answer: bool,
    why: SkipReason,
    /// If it is an array: its elements that have an id.
    elements: Vec<Element>,
}

/// Why a line is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SkipReason {
    /// More than this many bytes.
    Limit(usize),
    /// More than this many bytes, and odd: malformed, a batch, nested deeply or with escapes in the keys of its envelope. The
    /// scanner cannot read it while it arrives.
    Odd(usize),
    /// There was no memory for it, or the daemon reached its memory limit.
    NoRoom,
}

impl TooLong {
    /// Error for the sender.
    pub(crate) fn refusal(&self) -> Vec<u8> {
        self.error("this message", INVALID_REQUEST, "send less")
    }

    /// Error to deliver instead of this response; `None` if it is not a response or its id is unknown.
    pub(crate) fn replacement(&self) -> Option<Vec<u8>> {
        let known = self.is_answer && self.id.is_some();
        known.then(|| self.error("the response", INTERNAL_ERROR, "request less"))
    }

    fn error(&self, what: &str, code: i32, advice: &str) -> Vec<u8> {
        let (message, limit) = match self.why {
            SkipReason::Limit(limit) => (
                format!(
                    "{what} is longer than {limit} bytes, the longest line allowed: {advice}, or raise --max-line"
                ),
                format!(r#","limit":{limit}"#),
            ),
            SkipReason::Odd(limit) => (
                format!(
                    "{what} is longer than {limit} bytes, the longest line allowed that is a batch or is not plain JSON: {advice}"
                ),
                format!(r#","limit":{limit}"#),
            ),
            SkipReason::NoRoom => (
                format!("out of memory for {what}, which is too long: {advice}"),
                String::new(),
            ),
        };
        let data = format!(r#"{{"reason":"line_too_long"{limit}}}"#);
        let id = self.id.as_deref().unwrap_or(b"null");
        error_reply(id, code, &message, Some(&data))
    }

    /// The messages in it: itself, or the elements of an array that have an id, each like a line of its own.
    pub(crate) fn messages(mut self) -> Vec<TooLong> {
        let (why, elements) = (self.why, std::mem::take(&mut self.elements));
        if elements.is_empty() {
            return vec![self];
        }
        let message = |element: Element| TooLong {
            id: Some(element.id.into_bytes()),
            is_answer: element.is_answer,
            why,
            elements: Vec::new(),
        };
        elements.into_iter().map(message).collect()
    }

    /// A note for a log, without any of the line's content. `who` names the sender.
    pub(crate) fn note(&self, who: &str) -> String {
        match self.why {
            SkipReason::Limit(limit) => {
                format!(
                    "a line of {who} was longer than {limit} bytes and was skipped (--max-line)"
                )
            }
            SkipReason::Odd(limit) => format!(
                "a line of {who} was longer than {limit} bytes, is a batch or not plain JSON, and was skipped"
            ),
            SkipReason::NoRoom => {
                format!("a long line of {who} was skipped: out of memory")
            }
        }
    }
}

/// The lines of an inbox that are too long and not reported yet, for a newer build: without them, it would take the rest of
/// a skipped line for a line, and the receiver of the response would wait for ever.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct SkippedLines {
    /// The line whose end has not arrived.
    pub(super) unfinished: Option<Box<SkippedLine>>,
    pub(super) ended: Vec<TooLong>,
}

/// A line that is being skipped, or was.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SkippedLine {
    outline: Outline,
    why: SkipReason,
    /// The last byte that arrived.
    last: Option<u8>,
    /// An error was sent.
    #[serde(rename = "is_told")]
    pub(super) is_reported: bool,
    /// Maximum elements of an array that are remembered; a longer array gets a single error.
    #[serde(rename = "most_elements")]
    max_elements: usize,
    /// The array had more elements, so nothing is remembered of it.
    is_unknown: bool,
}

/// Maximum elements of a client's array that are remembered while memory is short.
const MAX_REMEMBERED_ELEMENTS: usize = 64;

impl SkippedLine {
    /// A line that begins with these bytes; `scan` is their scan state.
    pub(super) fn new(begun: &[u8], scan: Option<&Scan>, why: SkipReason) -> SkippedLine {
        let known = scan.map(|scan| scan.outline(begun));
        let (outline, read) = known.unwrap_or_default();
        let mut skipped = SkippedLine {
            outline,
            why,
            last: None,
            is_reported: false,
            max_elements: usize::MAX,
            is_unknown: false,
        };
        // The bytes that were scanned are not read again.
        skipped.feed(begun.get(read..).unwrap_or_default());
        skipped
    }

    /// Reads the next bytes of the line.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        // Nothing more is needed once the error was sent.
        if !self.is_reported && !self.is_unknown {
            self.outline.feed(bytes);
            self.drop_excess_elements();
        }
        self.last = bytes.last().copied().or(self.last);
    }

    /// Limits the elements that are remembered of an array: together they may be as long as the line.
    pub(super) fn limit_elements(&mut self) {
        self.max_elements = MAX_REMEMBERED_ELEMENTS;
        self.drop_excess_elements();
    }

    fn drop_excess_elements(&mut self) {
        if self.outline.element_count() > self.max_elements {
            self.outline = Outline::default();
            self.is_unknown = true;
        }
    }

    /// The line before it has ended, if its kind and id are known. Returns it once.
    pub(super) fn report_early(&mut self) -> Option<TooLong> {
        let knows_what = self.outline.has_method() || self.outline.has_outcome();
        if self.is_reported || !knows_what {
            return None;
        }
        let id = self.outline.id();
        self.is_reported = id.is_some();
        self.is_reported.then(|| self.line(id, Vec::new()))
    }

    /// The line at its end; `None` if it was reported before, or if its sender aborted it ([`ABORT_BYTE`]).
    pub(super) fn finish(self) -> Option<TooLong> {
        let is_void = self.last == Some(ABORT_BYTE);
        (!self.is_reported && !is_void).then(|| {
            let elements = self.outline.clone().into_elements();
            self.line(self.outline.id(), elements)
        })
    }

    fn line(&self, id: Option<String>, elements: Vec<Element>) -> TooLong {
        TooLong {
            id: id.map(String::into_bytes),
            is_answer: self.outline.has_outcome(),
            why: self.why,
            elements,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_array_little_is_remembered_where_memory_is_short() {
        let element = br#"{"jsonrpc":"2.0","id":1,"method":"x"},"#;
        for (count, answers) in [(10, 10), (MAX_REMEMBERED_ELEMENTS + 1, 1)] {
            let mut skipped = SkippedLine::new(b"[", None, SkipReason::NoRoom);
            skipped.limit_elements();
            (0..count).for_each(|_| skipped.feed(element));
            skipped.feed(b"]");
            let line = skipped.finish().unwrap();
            assert_eq!(line.messages().len(), answers, "{count}");
        }
    }

    fn begin(begun: &[u8]) -> SkippedLine {
        SkippedLine::new(begun, None, SkipReason::Limit(max_line()))
    }

    #[test]
    fn the_id_of_a_skipped_line_is_found_wherever_it_stands_and_whatever_is_around_it() {
        let long = "x".repeat(1000);
        for (line, id, is_answer) in [
            (
                format!(r#"{{"jsonrpc":"2.0","result":"{long}","id":12,"x":"{long}"}}"#)
                    .into_bytes(),
                "12",
                true,
            ),
            (
                format!(r#"{{"params":{{"id":1,"a":"{long}"}},"id":"a\"b","method":"{long}"}}"#)
                    .into_bytes(),
                r#""a\"b""#,
                false,
            ),
            (
                [
                    b"{\"result\":\"\xff",
                    long.as_bytes(),
                    b"\x01\xff\",\"id\":7,\"y\":[]}",
                ]
                .concat(),
                "7",
                true,
            ),
        ] {
            let (begun, rest) = line.split_at(100);
            let mut skipped = begin(begun);
            assert_eq!(skipped.report_early(), None);
            rest.chunks(37).for_each(|part| skipped.feed(part));
            let line = skipped.finish().expect("no error");
            assert_eq!(line.id.as_deref(), Some(id.as_bytes()));
            assert_eq!(line.is_answer, is_answer);
        }
    }

    #[test]
    fn each_element_of_a_skipped_array_has_its_own_error() {
        let long = "x".repeat(1000);
        let line = format!(
            r#"[{{"id":1,"result":"{long}"}},5,{{"method":"x"}},{{"method":"{long}","id":"a"}},{{"error":{{}},"id":2}}"#
        );
        for cut in [1, 100, 1050] {
            let (begun, rest) = line.as_bytes().split_at(cut);
            let mut skipped = begin(begun);
            assert_eq!(skipped.report_early(), None);
            rest.chunks(37).for_each(|part| skipped.feed(part));
            let line = skipped.finish().expect("no error");
            assert!(line.id.is_none() && line.replacement().is_none());
            let messages = line.messages();
            let ids: Vec<_> = messages.iter().map(|it| it.id.as_deref()).collect();
            assert_eq!(ids, [Some(&b"1"[..]), Some(b"\"a\""), Some(b"2")]);
            let errors = messages.iter().filter_map(TooLong::replacement);
            let errors: Vec<_> = errors.collect();
            assert_eq!(errors.len(), 2);
            assert!(errors[1].starts_with(br#"{"jsonrpc":"2.0","id":2,"error""#));
        }
        // No element has an id, so there is one error.
        let line = begin(b"[5,{\"method\":\"x\"}").finish();
        let messages = line.expect("no error").messages();
        assert!(matches!(&messages[..], [only] if only.id.is_none()));
    }

    #[test]
    fn what_is_known_of_a_skipped_line_is_told_once() {
        let begun = br#"{"jsonrpc":"2.0","id":5,"result":"xxxxxxxx"#;
        let mut skipped = begin(begun);
        let line = skipped.report_early().unwrap();
        assert!(line.is_answer && line.id.as_deref() == Some(b"5"));
        assert!(line.replacement().is_some());
        assert_eq!(skipped.report_early(), None);
        assert_eq!(skipped.finish(), None);

        let mut skipped = begin(br#"{"result":"xxxx"#);
        assert_eq!(skipped.report_early(), None);
        for part in br#"xxx","jsonrpc":"2.0","id":"last"}"#.chunks(3) {
            skipped.feed(part);
        }
        let line = skipped.finish().unwrap();
        assert!(line.is_answer && line.id.as_deref() == Some(b"\"last\""));

        let mut skipped = begin(br#"{"method":"x","params":"#);
        skipped.feed(&[b'x', ABORT_BYTE]);
        assert_eq!(skipped.finish(), None);
    }
}
