//! Lines that are longer than allowed: what is known of them, and what is answered.

use std::cell::Cell;

use kennel_core::hello::VOID;
use kennel_core::message::{Element, Outline, Scan, error_reply};
use serde::{Deserialize, Serialize};

use super::{DEFAULT_MAX_LINE, LEAST_MAX_LINE};

/// JSON-RPC codes: the request cannot be taken; the answer cannot be passed on.
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

thread_local! {
    // Whoever reads lines here has one thread.
    static MAX_LINE: Cell<usize> = const { Cell::new(DEFAULT_MAX_LINE) };
    static MAX_ODD_LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The longest line that this thread takes, in bytes.
pub(crate) fn max_line() -> usize {
    MAX_LINE.get()
}

/// The longest line of this thread that may be [odd](Why::Odd), in bytes.
pub(super) fn max_odd_line() -> usize {
    MAX_ODD_LINE.get()
}

/// Lines that are odd are read again, and again, when all of them has come: where others wait meanwhile, they must be
/// short.
pub(crate) fn set_max_odd_line(bytes: usize) {
    MAX_ODD_LINE.set(bytes);
}

/// Whether a line of this length, of which this is known, is too long to be odd.
pub(super) fn is_too_odd(length: usize, scan: Option<&Scan>) -> bool {
    length > max_odd_line() && scan.is_some_and(Scan::is_refused)
}

pub(crate) fn set_max_line(bytes: usize) {
    MAX_LINE.set(bytes.max(LEAST_MAX_LINE));
}

/// The same for the buffers of the fuzz target, which are smaller than any limit of the program.
#[cfg(feature = "fuzzing")]
pub(crate) fn set_any_max_line(bytes: usize) {
    MAX_LINE.set(bytes);
}

/// A line that was too long and is not kept, as far as its keys tell what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TooLong {
    /// As spelled, if an answer can carry it.
    pub(crate) id: Option<Vec<u8>>,
    /// It answers something; otherwise it asks or tells something.
    pub(crate) is_answer: bool,
    why: Why,
    /// It is an array: those of its elements that have an id.
    elements: Vec<Element>,
}

/// Why a line is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Why {
    /// More than this many bytes.
    Limit(usize),
    /// More than this many bytes, and malformed, a batch, nested deeply or with escapes in the keys of its envelope: it
    /// cannot be judged while it arrives.
    Odd(usize),
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
            Why::Odd(limit) => (
                format!(
                    "{what} is longer than {limit} bytes, the longest line allowed that is a batch or is not plain JSON: {advice}"
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

    /// What somebody may wait for: itself, or the elements of an array that have an id, each as if it were a line.
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

    /// For a log: it says nothing of the line's content.
    pub(crate) fn note(&self, who: &str) -> String {
        match self.why {
            Why::Limit(limit) => {
                format!(
                    "a line of {who} was longer than {limit} bytes and was skipped (--max-line)"
                )
            }
            Why::Odd(limit) => format!(
                "a line of {who} was longer than {limit} bytes, is a batch or not plain JSON, and was skipped"
            ),
            Why::NoRoom => format!("a long line of {who} was skipped: there is no memory for it"),
        }
    }
}

/// The lines of an inbox that are too long and of which nobody was told yet, for a newer build: without them, it would take
/// the rest of a skipped line for a line, and whoever waits for its answer would wait for ever.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct SkippedLines {
    /// The line that has not ended.
    pub(super) unfinished: Option<Box<Skipped>>,
    pub(super) ended: Vec<TooLong>,
}

/// A line that is being skipped, or was.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Skipped {
    outline: Outline,
    why: Why,
    /// The last byte that came.
    last: Option<u8>,
    /// Somebody was told of it.
    pub(super) is_told: bool,
    /// Of an array with more elements than this, nothing is known: they get one error.
    most_elements: usize,
    is_unknown: bool,
}

/// What is remembered of a client's array while memory is short.
const FEW_ELEMENTS: usize = 64;

impl Skipped {
    /// The line begins like this, of which so much is known.
    pub(super) fn new(begun: &[u8], scan: Option<&Scan>, why: Why) -> Skipped {
        let known = scan.map(|scan| scan.outline(begun));
        let (outline, read) = known.unwrap_or_default();
        let mut skipped = Skipped {
            outline,
            why,
            last: None,
            is_told: false,
            most_elements: usize::MAX,
            is_unknown: false,
        };
        // What was looked at while it came is not read again.
        skipped.goes_on(begun.get(read..).unwrap_or_default());
        skipped
    }

    /// More of it came.
    pub(super) fn goes_on(&mut self, bytes: &[u8]) {
        // Whoever was told needs to know no more of it.
        if !self.is_told && !self.is_unknown {
            self.outline.feed(bytes);
            self.forget_many();
        }
        self.last = bytes.last().copied().or(self.last);
    }

    /// Remembers no more than a few elements of an array: what is remembered of them may be as long as the line.
    pub(super) fn remember_few(&mut self) {
        self.most_elements = FEW_ELEMENTS;
        self.forget_many();
    }

    fn forget_many(&mut self) {
        if self.outline.element_count() > self.most_elements {
            self.outline = Outline::default();
            self.is_unknown = true;
        }
    }

    /// What is known before it has ended, if that is enough.
    pub(super) fn known(&mut self) -> Option<TooLong> {
        let knows_what = self.outline.has_method() || self.outline.has_outcome();
        if self.is_told || !knows_what {
            return None;
        }
        let id = self.outline.id();
        self.is_told = id.is_some();
        self.is_told.then(|| self.line(id, Vec::new()))
    }

    /// It has ended. `None` if somebody was told before, or it was not said after all.
    pub(super) fn ended(self) -> Option<TooLong> {
        let is_void = self.last == Some(VOID);
        (!self.is_told && !is_void).then(|| {
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
        for (count, answers) in [(10, 10), (FEW_ELEMENTS + 1, 1)] {
            let mut skipped = Skipped::new(b"[", None, Why::NoRoom);
            skipped.remember_few();
            (0..count).for_each(|_| skipped.goes_on(element));
            skipped.goes_on(b"]");
            let line = skipped.ended().unwrap();
            assert_eq!(line.messages().len(), answers, "{count}");
        }
    }

    fn begin(begun: &[u8]) -> Skipped {
        Skipped::new(begun, None, Why::Limit(max_line()))
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
            assert_eq!(skipped.known(), None);
            rest.chunks(37).for_each(|part| skipped.goes_on(part));
            let told = skipped.ended().expect("nobody was told");
            assert_eq!(told.id.as_deref(), Some(id.as_bytes()));
            assert_eq!(told.is_answer, is_answer);
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
            assert_eq!(skipped.known(), None);
            rest.chunks(37).for_each(|part| skipped.goes_on(part));
            let told = skipped.ended().expect("nobody was told");
            assert!(told.id.is_none() && told.in_its_place().is_none());
            let messages = told.messages();
            let ids: Vec<_> = messages.iter().map(|it| it.id.as_deref()).collect();
            assert_eq!(ids, [Some(&b"1"[..]), Some(b"\"a\""), Some(b"2")]);
            let errors = messages.iter().filter_map(TooLong::in_its_place);
            let errors: Vec<_> = errors.collect();
            assert_eq!(errors.len(), 2);
            assert!(errors[1].starts_with(br#"{"jsonrpc":"2.0","id":2,"error""#));
        }
        // Nobody can be told in particular.
        let told = begin(b"[5,{\"method\":\"x\"}").ended();
        let messages = told.expect("nobody was told").messages();
        assert!(matches!(&messages[..], [only] if only.id.is_none()));
    }

    #[test]
    fn what_is_known_of_a_skipped_line_is_told_once() {
        let begun = br#"{"jsonrpc":"2.0","id":5,"result":"xxxxxxxx"#;
        let mut skipped = begin(begun);
        let told = skipped.known().unwrap();
        assert!(told.is_answer && told.id.as_deref() == Some(b"5"));
        assert!(told.in_its_place().is_some());
        assert_eq!(skipped.known(), None);
        assert_eq!(skipped.ended(), None);

        let mut skipped = begin(br#"{"result":"xxxx"#);
        assert_eq!(skipped.known(), None);
        for part in br#"xxx","jsonrpc":"2.0","id":"last"}"#.chunks(3) {
            skipped.goes_on(part);
        }
        let told = skipped.ended().unwrap();
        assert!(told.is_answer && told.id.as_deref() == Some(b"\"last\""));

        let mut skipped = begin(br#"{"method":"x","params":"#);
        skipped.goes_on(&[b'x', VOID]);
        assert_eq!(skipped.ended(), None);
    }
}
