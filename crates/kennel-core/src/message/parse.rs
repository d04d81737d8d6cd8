//! From a line to its parts.
//!
//! Values are skipped as borrowed [`RawValue`]s: checked to the last byte, without recursion (a line
//! of a million brackets costs no stack) and without a copy.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::{
    Batch, Id, Malformed, Member, Message, Method, Notification, Outcome, Part, Request, Response,
};

pub(super) fn parse(line: &[u8]) -> Result<Message<'_>, Malformed> {
    if line.contains(&b'\n') {
        return Err(Malformed::Newline);
    }
    let text = str::from_utf8(line).map_err(|error| Malformed::NotText {
        at: error.valid_up_to(),
    })?;
    match line.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => parse_object(text, text),
        Some(b'[') => parse_batch(text),
        Some(b'!') => Err(Malformed::Reserved),
        _ => Err(match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => Malformed::Shape("neither an object nor an array"),
            Err(error) => not_json(&error, 0),
        }),
    }
}

/// What `params` says of `requestId`, if it is an object that has one.
pub(super) fn request_id(params: Part<'_>) -> Option<Result<Id<'_>, Malformed>> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, default, deserialize_with = "present", rename = "requestId")]
        request_id: Option<&'a RawValue>,
    }

    if !params.text.starts_with('{') {
        return None;
    }
    let Ok(known) = serde_json::from_str::<Params<'_>>(params.text) else {
        return Some(Err(Malformed::Shape("requestId comes twice")));
    };
    let Part { start, text } = part_of(params.text, known.request_id?);
    let start = params.start + start;
    Some(Id::new(Part { start, text }))
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// A value that is there, even if it is `null`.
fn present<'a, D: Deserializer<'a>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// `object` is a slice of `line`.
fn parse_object<'a>(line: &'a str, object: &'a str) -> Result<Message<'a>, Malformed> {
    let envelope: Envelope<'a> =
        serde_json::from_str(object).map_err(|error| match error.classify() {
            // No field has a type of its own, so the data can be wrong in one way only.
            Category::Data => Malformed::Shape("a key of the envelope comes twice"),
            Category::Io | Category::Syntax | Category::Eof => {
                not_json(&error, offset(line, object))
            }
        })?;
    if !envelope.jsonrpc.is_some_and(is_two_point_zero) {
        return Err(Malformed::Shape("its jsonrpc is not \"2.0\""));
    }
    let part = |raw| part_of(line, raw);
    let id = envelope.id.map(part).map(Id::new).transpose()?;
    let outcome = outcome(envelope.result.map(part), envelope.error.map(part))?;
    match (envelope.method.map(part), outcome) {
        (Some(_), Some(_)) => Err(Malformed::Shape("both a method and an outcome")),
        (None, None) => Err(Malformed::Shape("neither a method nor an outcome")),
        (Some(method), None) => {
            if !method.text.starts_with('"') {
                return Err(Malformed::Shape("its method is no string"));
            }
            let method = Method(method);
            let params = envelope.params.map(part);
            if !params.is_none_or(|params| params.text.starts_with(['{', '[', 'n'])) {
                return Err(Malformed::Shape("its params are no object or array"));
            }
            Ok(match id {
                Some(id) => Message::Request(Request { id, method, params }),
                None => Message::Notification(Notification { method, params }),
            })
        }
        (None, Some(Outcome::Result(_))) if id.is_none() => {
            Err(Malformed::Shape("a result without an id"))
        }
        (None, Some(outcome)) => Ok(Message::Response(Response { id, outcome })),
    }
}

fn parse_batch(line: &str) -> Result<Message<'_>, Malformed> {
    struct Members<'a, 'r> {
        line: &'a str,
        refused: &'r mut Option<Malformed>,
    }

    impl<'a> Visitor<'a> for Members<'a, '_> {
        type Value = Vec<Member<'a>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array")
        }

        /// Member by member, so that a long array of nonsense ends at its first.
        fn visit_seq<A: SeqAccess<'a>>(self, mut array: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(raw) = array.next_element::<&'a RawValue>()? {
                let parsed = match raw.get().as_bytes()[0] {
                    b'{' => parse_object(self.line, raw.get()),
                    _ => Err(Malformed::Shape("a member of a batch is no object")),
                };
                match parsed {
                    Ok(message) => members.push(Member {
                        whole: part_of(self.line, raw),
                        message,
                    }),
                    Err(why) => {
                        *self.refused = Some(why);
                        return Err(A::Error::custom("see `refused`"));
                    }
                }
            }
            Ok(members)
        }
    }

    let mut refused = None;
    let mut json = serde_json::Deserializer::from_str(line);
    let members = json
        .deserialize_seq(Members {
            line,
            refused: &mut refused,
        })
        .and_then(|members| json.end().map(|()| members));
    match members {
        Ok(members) if members.is_empty() => Err(Malformed::Shape("an empty batch")),
        Ok(members) => Ok(Message::Batch(Batch { members })),
        Err(error) => Err(refused.unwrap_or_else(|| not_json(&error, 0))),
    }
}

/// What is answered. A `null` beside the other one does not count: some servers write both.
fn outcome<'a>(
    result: Option<Part<'a>>,
    error: Option<Part<'a>>,
) -> Result<Option<Outcome<'a>>, Malformed> {
    match (result, error) {
        (None, None) => Ok(None),
        (Some(result), None) => Ok(Some(Outcome::Result(result))),
        (Some(result), Some(error)) if error.text == "null" => Ok(Some(Outcome::Result(result))),
        (Some(result), Some(_)) if result.text != "null" => {
            Err(Malformed::Shape("both a result and an error"))
        }
        (_, Some(error)) if !error.text.starts_with('{') => {
            Err(Malformed::Shape("its error is no object"))
        }
        (_, Some(error)) => Ok(Some(Outcome::Error(error))),
    }
}

fn is_two_point_zero(raw: &RawValue) -> bool {
    let text = raw.get();
    text == "\"2.0\"" || serde_json::from_str::<String>(text).is_ok_and(|meant| meant == "2.0")
}

fn part_of<'a>(line: &'a str, raw: &'a RawValue) -> Part<'a> {
    let text = raw.get();
    let start = offset(line, text);
    Part { start, text }
}

/// Where `text` begins in `line`, of which it is a slice.
fn offset(line: &str, text: &str) -> usize {
    text.as_ptr().addr() - line.as_ptr().addr()
}

fn not_json(error: &serde_json::Error, offset: usize) -> Malformed {
    // One line, so its column is the place.
    let at = offset + error.column();
    Malformed::NotJson { at }
}
