//! One line of MCP as it stands, without taking it apart.
//!
//! A line passes through Kennel unchanged but for the ids that must be rewritten (rule 11), so it is
//! never turned into a tree of values and written anew: that would reorder keys, respell numbers and
//! escapes, and lose what this version of the protocol does not know. [`Message::parse`] checks the
//! whole line (text, grammar, shape: a bad line must not reach an app) and says *where* in it the
//! envelope's parts are; [`splice_id`] makes a new line with other bytes in one of those places.
//!
//! A line here is the bytes without the newline. A `\r` before it is white space to JSON, and stays.

mod glance;
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
mod short;
mod token;

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

pub use id::{Id, Key};
pub use line::{error_reply, newline, notification, result_reply, splice, splice_id};
pub use malformed::Malformed;
pub use outline::{Element, LONGEST_ID, Outline};
pub use owned::Owned;
pub use repair::repaired;
pub use reply::{BATCH_LIMIT, INITIALIZE_LIMIT, long_initialize};
pub use scan::Scan;

pub(crate) use id::only_same_number;
pub(crate) use line::{one_line, quoted};
pub(crate) use member::CANONICAL_LIMIT;
pub(crate) use owned::Edit;
pub(crate) use short::Short;

/// One line, known to be well-formed: what it is, and where its parts are.
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
    /// A method and an id: somebody waits for an answer.
    Request(Request<'a>),

    /// A method and no id.
    Notification(Notification<'a>),

    /// A result or an error.
    Response(Response<'a>),

    /// Several of the above in an array (protocol 2025-03-26 only).
    Batch(Batch<'a>),
}

/// A message that wants an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// What the answer will be known by.
    pub id: Id<'a>,
    /// What is asked.
    pub method: Method<'a>,
    /// An object, an array or `null`, if there.
    pub params: Option<Part<'a>>,
}

/// A message that wants no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification<'a> {
    /// What is told.
    pub method: Method<'a>,
    /// An object, an array or `null`, if there.
    pub params: Option<Part<'a>>,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response<'a> {
    /// What it answers; an error may answer nothing in particular.
    pub id: Option<Id<'a>>,
    /// What it says.
    pub outcome: Outcome<'a>,
}

impl Response<'_> {
    /// Whether it is an error that answers no request: its id is `null`, or missing.
    pub(crate) fn is_error_without_id(&self) -> bool {
        let is_error = matches!(self.outcome, Outcome::Error(_));
        is_error && self.id.is_none_or(|id| id.raw() == b"null")
    }
}

/// What an answer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// Any value.
    Result(Part<'a>),
    /// An object.
    Error(Part<'a>),
}

/// The messages of a batch, none of which is a batch itself; at least one, and at most [`BATCH_LIMIT`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch<'a> {
    /// In the order of the line.
    pub members: Vec<Member<'a>>,
}

/// One message of a batch. Its parts are places in the whole line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// Its own bytes.
    pub whole: Part<'a>,
    /// What it is.
    pub message: Message<'a>,
}

impl<'a> Message<'a> {
    /// Checks the whole of `line` and finds its parts.
    ///
    /// Whatever is not envelope is untouched and unjudged, twice the same key included. An envelope
    /// key that comes twice makes a line malformed: which of two ids or methods counts differs from
    /// reader to reader, so the line could be routed as one message and understood as another.
    pub fn parse(line: impl Into<Line<'a>>) -> Result<Message<'a>, Malformed> {
        parse::parse(line.into())
    }

    /// The same for a line that passes where sessions share a server. [`Malformed::Newline`]: some readers would end it
    /// before its end.
    pub(crate) fn parse_as_one(line: Line<'a>) -> Result<Message<'a>, Malformed> {
        parse::parse_as_one(line, false)
    }

    /// [`parse`](Self::parse) for a line to a server that is shared. A line is malformed there, too, if some readers end it
    /// before its end, or take one of its keys for a key of the envelope.
    pub fn parse_exact(line: impl Into<Line<'a>>) -> Result<Message<'a>, Malformed> {
        parse::parse_as_one(line.into(), true)
    }

    /// What an answer is known by. A batch has none: its members do.
    pub fn id(&self) -> Option<Id<'a>> {
        match self {
            Message::Request(request) => Some(request.id),
            Message::Response(response) => response.id,
            Message::Notification(_) | Message::Batch(_) => None,
        }
    }

    /// The ids of the requests in it.
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
    /// The request a `notifications/cancelled` names. `None`: it is something else, or names none.
    pub fn cancelled(&self) -> Result<Option<Id<'a>>, Malformed> {
        match self.params {
            Some(params) if self.method.is("notifications/cancelled") => {
                parse::request_id(params).transpose()
            }
            _ => Ok(None),
        }
    }
}

/// A line, and what is known of it already.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    bytes: &'a [u8],
    scan: Option<&'a Scan>,
}

impl<'a> Line<'a> {
    /// A line of which `scan` has seen the beginning, or all.
    pub fn scanned(bytes: &'a [u8], scan: &'a Scan) -> Line<'a> {
        Line {
            bytes,
            scan: Some(scan),
        }
    }

    /// Without the newline.
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

/// Some bytes of a line, and where they are.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    start: usize,
    /// They are text: the whole line was checked before.
    bytes: &'a [u8],
    inside: Inside,
}

/// What is known of a value's members without another look.
#[derive(Clone, Copy)]
enum Inside {
    Unknown,
    /// It is an object, and where it has each of [`MEMBERS`](scan::MEMBERS).
    Known([Option<Place>; scan::MEMBERS.len()]),
}

/// Where a member's value is, counted from where the object begins. Small: parts are handed on by copies.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: NonZeroU32,
    end: NonZeroU32,
}

impl Place {
    /// `None`: it is too far away to be counted.
    fn new(object: usize, start: usize, end: usize) -> Option<Place> {
        let place = |at: usize| NonZeroU32::new(u32::try_from(at - object).ok()?);
        Some(Place {
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
            inside: Inside::Unknown,
        }
    }

    /// The bytes as they stand.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Where they are in the line.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
    }
}

/// What is known of it makes it no other.
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

/// The name of a method, as it is spelled in the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Method<'a>(Part<'a>);

impl<'a> Method<'a> {
    /// Whether it means `name`, however it is spelled.
    pub fn is(&self, name: &str) -> bool {
        let spelled = self.spelled();
        spelled == name.as_bytes() || (spelled.contains(&b'\\') && self.name() == name)
    }

    /// What it means. Escapes that mean no character stay as they are spelled.
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

    /// Where it is, quotes included.
    pub fn part(&self) -> Part<'a> {
        self.0
    }

    /// Without its quotes.
    fn spelled(&self) -> &'a [u8] {
        &self.0.bytes[1..self.0.bytes.len() - 1]
    }
}
