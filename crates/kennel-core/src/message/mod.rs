//! Finds the parts of one MCP line without rewriting it.
//!
//! A line passes through Kennel unchanged except for ids (rule 11). So it is never turned into a tree of values and
//! written again: that would reorder keys, respell numbers and escapes, and lose extensions of the protocol.
//! [`Message::parse`] checks the whole line (text, grammar, shape: a malformed line must not reach an app) and returns
//! *where* the parts of the envelope are; [`splice_id`] makes a line with another id in its place.
//!
//! Lines are bytes without the newline. A `\r` at the end is white space in JSON, and stays.

mod fast_path;
mod id;
mod line;
mod malformed;
mod member;
mod outline;
mod owned;
mod parse;
pub(crate) mod repair;
pub(crate) mod reply;
mod scan;
mod token;

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

pub use id::{Id, Key};
pub use line::{error_reply, newline, notification, result_reply, splice, splice_id};
pub use malformed::Malformed;
pub use outline::{Element, MAX_ID, Outline};
pub use owned::Owned;
pub use repair::{repaired, with_finite_numbers};
pub use reply::{BATCH_LIMIT, INITIALIZE_LIMIT, long_initialize};
pub use scan::Scan;

pub(crate) use id::only_same_number;
pub(crate) use line::{one_line, quoted};
pub(crate) use member::CANONICAL_LIMIT;
pub(crate) use owned::Edit;

/// The bytes of an id. A short one needs no allocation.
pub(crate) type IdBytes = smallvec::SmallVec<[u8; 16]>;

/// A well-formed line: its kind, and where its parts are.
///
/// ```
/// use kennel_core::message::{Message, splice_id};
///
/// let line = br#"{"id": 7, "jsonrpc": "2.0", "method": "tools/list", "x": 1.0}"#;
/// let message = Message::parse(line).expect("well-formed");
///
/// let Message::Request(request) = message else { panic!("it has an id and a method") };
/// assert!(request.method.is("tools/list"));
/// assert_eq!(
///     splice_id(line, &request.id, b"42"),
///     br#"{"id": 42, "jsonrpc": "2.0", "method": "tools/list", "x": 1.0}"#,
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A method and an id: the sender waits for a response.
    Request(Request<'a>),

    /// A method and no id.
    Notification(Notification<'a>),

    /// A result or an error.
    Response(Response<'a>),

    /// Several of the above in an array (protocol 2025-03-26).
    Batch(Batch<'a>),
}

/// A message that expects a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The id of the response.
    pub id: Id<'a>,
    /// The method.
    pub method: Method<'a>,
    /// An object, an array or `null`, if present.
    pub params: Option<Part<'a>>,
}

/// A message that expects no response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification<'a> {
    /// The method.
    pub method: Method<'a>,
    /// An object, an array or `null`, if present.
    pub params: Option<Part<'a>>,
}

/// A response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response<'a> {
    /// The id of its request. An error may have none.
    pub id: Option<Id<'a>>,
    /// A result or an error.
    pub outcome: Outcome<'a>,
}

impl Response<'_> {
    /// Whether it is an error that answers no request: its id is `null` or missing.
    pub(crate) fn is_error_without_id(&self) -> bool {
        let is_error = matches!(self.outcome, Outcome::Error(_));
        is_error && self.id.is_none_or(|id| id.raw() == b"null")
    }
}

/// The content of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// Any value.
    Result(Part<'a>),
    /// An object.
    Error(Part<'a>),
}

/// The messages of a batch: none is a batch itself; at least one, and at most [`BATCH_LIMIT`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch<'a> {
    /// In the order of the line.
    pub members: Vec<Member<'a>>,
}

/// A message of a batch. Positions are relative to the whole line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// The bytes of the message.
    pub whole: Part<'a>,
    /// The message.
    pub message: Message<'a>,
}

impl<'a> Message<'a> {
    /// Checks the whole line and finds its parts.
    ///
    /// What is not part of the envelope is not checked, not even for duplicate keys. A duplicate envelope key makes the
    /// line malformed: readers disagree about which of two ids or methods counts, so it could be routed as one message
    /// and read as another.
    pub fn parse(line: impl Into<Line<'a>>) -> Result<Message<'a>, Malformed> {
        parse::parse(line.into())
    }

    /// Parses a line that passes a shared server. [`Malformed::Newline`]: some readers would end it early.
    pub(crate) fn parse_as_one(line: Line<'a>) -> Result<Message<'a>, Malformed> {
        parse::parse_as_one(line, false)
    }

    /// Parses a line for a shared server. It is malformed also if some readers end it early, or take one of its keys
    /// for a key of the envelope.
    pub fn parse_exact(line: impl Into<Line<'a>>) -> Result<Message<'a>, Malformed> {
        parse::parse_as_one(line.into(), true)
    }

    /// The id. A batch has none; its members do.
    pub fn id(&self) -> Option<Id<'a>> {
        match self {
            Message::Request(request) => Some(request.id),
            Message::Response(response) => response.id,
            Message::Notification(_) | Message::Batch(_) => None,
        }
    }

    /// The ids of its requests.
    pub fn requests(&self) -> Vec<Key> {
        match self {
            Message::Request(request) => vec![request.id.key()],
            Message::Batch(batch) => {
                let members = batch.members.iter();
                members.flat_map(|it| it.message.requests()).collect()
            }
            Message::Notification(_) | Message::Response(_) => Vec::new(),
        }
    }
}

impl<'a> Notification<'a> {
    /// The id in a `notifications/cancelled`. `None`: it is another notification, or has no id.
    pub fn cancelled(&self) -> Result<Option<Id<'a>>, Malformed> {
        match self.params {
            Some(params) if self.method.is("notifications/cancelled") => {
                parse::request_id(params).transpose()
            }
            _ => Ok(None),
        }
    }
}

/// A line, and the result of scanning it so far.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    bytes: &'a [u8],
    scan: Option<&'a Scan>,
}

impl<'a> Line<'a> {
    /// A line whose beginning, or all of it, was scanned.
    pub fn scanned(bytes: &'a [u8], scan: &'a Scan) -> Line<'a> {
        Line {
            bytes,
            scan: Some(scan),
        }
    }

    /// The bytes, without the newline.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> From<&'a [u8]> for Line<'a> {
    fn from(bytes: &'a [u8]) -> Line<'a> {
        Line { bytes, scan: None }
    }
}

impl<'a> From<&'a Vec<u8>> for Line<'a> {
    fn from(bytes: &'a Vec<u8>) -> Line<'a> {
        Line::from(&bytes[..])
    }
}

impl<'a> From<&'a Owned> for Line<'a> {
    fn from(line: &'a Owned) -> Line<'a> {
        Line::from(&line[..])
    }
}

impl<'a, const LENGTH: usize> From<&'a [u8; LENGTH]> for Line<'a> {
    fn from(bytes: &'a [u8; LENGTH]) -> Line<'a> {
        Line::from(&bytes[..])
    }
}

/// Some bytes of a line, and their position.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    start: usize,
    /// Valid UTF-8: the whole line was checked.
    bytes: &'a [u8],
    inside: KnownMembers,
}

/// Members of a value with recorded positions.
#[derive(Clone, Copy)]
enum KnownMembers {
    Unknown,
    /// The value is an object; the positions of [`MEMBERS`](scan::MEMBERS) in it.
    Known([Option<MemberPosition>; scan::MEMBERS.len()]),
}

/// The position of a member's value, relative to its object. Small, because parts are copied.
#[derive(Clone, Copy, Debug)]
struct MemberPosition {
    start: NonZeroU32,
    end: NonZeroU32,
}

impl MemberPosition {
    /// `None`: the position is too large to store.
    fn new(object: usize, start: usize, end: usize) -> Option<MemberPosition> {
        let place = |at: usize| NonZeroU32::new(u32::try_from(at - object).ok()?);
        Some(MemberPosition {
            start: place(start)?,
            end: place(end)?,
        })
    }

    fn range(self) -> Range<usize> {
        self.start.get() as usize..self.end.get() as usize
    }
}

impl<'a> Part<'a> {
    fn new(start: usize, text: &'a str) -> Part<'a> {
        Part {
            start,
            bytes: text.as_bytes(),
            inside: KnownMembers::Unknown,
        }
    }

    /// The bytes as spelled.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Their position in the line.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
    }
}

/// Equality ignores the recorded members.
impl PartialEq for Part<'_> {
    fn eq(&self, other: &Part<'_>) -> bool {
        (self.start, self.bytes) == (other.start, other.bytes)
    }
}

impl Eq for Part<'_> {}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.text(), self.start)
    }
}

/// The name of a method, as spelled in the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Method<'a>(Part<'a>);

impl<'a> Method<'a> {
    /// Whether it equals `name`, however spelled.
    pub fn is(&self, name: &str) -> bool {
        let spelled = self.spelled();
        spelled == name.as_bytes() || (spelled.contains(&b'\\') && self.name() == name)
    }

    /// The name. Escapes that are no character stay as spelled.
    pub fn name(&self) -> Cow<'a, str> {
        let quoted = self.0.text();
        let spelled = &quoted[1..quoted.len() - 1];
        if !spelled.as_bytes().contains(&b'\\') {
            return Cow::Borrowed(spelled);
        }
        match serde_json::from_str(quoted) {
            Ok(meant) => Cow::Owned(meant),
            Err(_) => Cow::Borrowed(spelled),
        }
    }

    /// Its position, quotes included.
    pub fn part(&self) -> Part<'a> {
        self.0
    }

    /// The name as spelled, without quotes.
    fn spelled(&self) -> &'a [u8] {
        &self.0.bytes[1..self.0.bytes.len() - 1]
    }
}
