//! One line, read by `message` and by a reader that shares nothing with it but `serde_json`.

use std::collections::BTreeMap;
use std::fmt;

use kennel_core::message::{
    BATCH_LIMIT, Line, Malformed, Message, Outcome, Part, Scan, error_reply, result_reply,
    splice_id,
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

pub(crate) fn check(line: &[u8]) {
    let parsed = Message::parse(line);
    agrees_with_serde(line, &parsed);
    is_the_same_with_care(line, &parsed);
    is_the_same_in_parts(line, &parsed);
    let Ok(message) = parsed else {
        return;
    };
    parts_are_in_their_places(line, &message);
    match &message {
        Message::Batch(batch) => {
            assert!(!batch.members.is_empty(), "a batch of none");
            for member in &batch.members {
                let whole = member.whole.bytes();
                assert_eq!(&line[member.whole.range()], whole);
                let alone = Message::parse(whole).expect("a member is a message");
                assert_eq!(shape(&alone), shape(&member.message));
                id_is_spliced(line, &member.message);
            }
        }
        alone => id_is_spliced(line, alone),
    }
}

/// Wherever a line is cut while it arrives, it is the same line.
fn is_the_same_in_parts(line: &[u8], parsed: &Result<Message<'_>, Malformed>) {
    let mut scan = Scan::default();
    let step = line.len() / 7 + 1;
    for end in (0..line.len()).step_by(step) {
        scan.scan(&line[..end]);
    }
    assert_eq!(&Message::parse(Line::scanned(line, &scan)), parsed);
}

/// Well-formed here is well-formed there; and a message here is one there.
fn agrees_with_serde(line: &[u8], parsed: &Result<Message<'_>, Malformed>) {
    let text = str::from_utf8(line).ok().filter(|it| !it.contains('\n'));
    let json = text.is_some_and(|it| serde_json::from_str::<IgnoredAny>(it).is_ok());
    match parsed {
        Ok(_) => assert!(json, "no JSON"),
        // It shows before the end of the line is seen.
        Err(Malformed::Shape(_)) => {}
        // No line here is that long.
        Err(Malformed::LongBatch) => assert!(line.len() > 2 * BATCH_LIMIT),
        Err(Malformed::NotJson { at }) => {
            assert!(!json, "JSON");
            assert!(*at <= line.len(), "{at} is not in the line");
        }
        Err(Malformed::NotText { at }) => assert!(str::from_utf8(&line[..*at]).is_ok()),
        Err(Malformed::Newline) => assert!(line.contains(&b'\n')),
        Err(Malformed::Reserved) => assert!(starts_with(line, b'!')),
    }
    let Some(text) = text.filter(|_| json) else {
        return;
    };
    let expected = match line.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => one(text),
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(text)
            .ok()
            .filter(|members| !members.is_empty())
            .and_then(|members| members.iter().map(|it| one(it.get())).collect())
            .map(|members: Vec<String>| members.concat()),
        _ => None,
    };
    let found = parsed.as_ref().ok().map(shape);
    assert_eq!(found, expected);
}

/// What one object is, written as [`shape`] does; `None` if it is no message.
fn one(object: &str) -> Option<String> {
    let mut found = BTreeMap::new();
    let mut json = serde_json::Deserializer::from_str(object);
    json.deserialize_map(Members(&mut found)).ok()?;
    let once = |name: &[u8]| match found.get(name).map_or(&[][..], |values| &values[..]) {
        [] => Some(None),
        [value] => Some(Some(*value)),
        _ => None,
    };
    let version = once(b"jsonrpc")??;
    let id = once(b"id")?;
    let (method, params) = (once(b"method")?, once(b"params")?);
    let (result, error) = (once(b"result")?, once(b"error")?);
    let is_string = |value: &str| value.starts_with('"');
    if serde_json::from_str::<String>(version).ok()? != "2.0" {
        return None;
    }
    if id.is_some_and(|id| id.starts_with(['{', '[', 't', 'f'])) {
        return None;
    }
    let error = error.filter(|&error| error != "null" || result.is_none());
    let result = result.filter(|&result| result != "null" || error.is_none());
    match (method, result, error) {
        (Some(method), None, None) if is_string(method) => {
            let fits = |params: &str| params.starts_with(['{', '[', 'n']);
            params
                .is_none_or(fits)
                .then(|| format!("({id:?} {method} {params:?})"))
        }
        (None, Some(result), None) => id.map(|id| format!("({:?} result {result})", Some(id))),
        (None, None, Some(error)) if error.starts_with('{') => {
            Some(format!("({id:?} error {error})"))
        }
        _ => None,
    }
}

/// What a message is, and its parts as they are spelled.
fn shape(message: &Message<'_>) -> String {
    let text = |part: Part<'_>| String::from_utf8(part.bytes().to_vec()).expect("text");
    let id = message.id().map(|id| text(id.part()));
    match message {
        Message::Request(it) => {
            let (method, params) = (text(it.method.part()), it.params.map(text));
            format!("({id:?} {method} {params:?})")
        }
        Message::Notification(it) => {
            let (method, params) = (text(it.method.part()), it.params.map(text));
            format!("({id:?} {method} {params:?})")
        }
        Message::Response(it) => match it.outcome {
            Outcome::Result(result) => format!("({id:?} result {})", text(result)),
            Outcome::Error(error) => format!("({id:?} error {})", text(error)),
        },
        Message::Batch(batch) => batch.members.iter().map(|it| shape(&it.message)).collect(),
    }
}

/// With one more member, whose key has an escape, a line goes the careful way: it must lead to the same.
fn is_the_same_with_care(line: &[u8], parsed: &Result<Message<'_>, Malformed>) {
    const ODD: &[u8] = br#""\u0078":0"#;
    let white = |byte: &u8| byte.is_ascii_whitespace();
    let Some(start) = line.iter().position(|byte| !white(byte)) else {
        return;
    };
    let (before, rest) = line.split_at(start + 1);
    if before[start] != b'{' || line.contains(&b'\n') || str::from_utf8(line).is_err() {
        return;
    }
    let is_empty = rest.iter().find(|byte| !white(byte)) == Some(&b'}');
    let comma: &[u8] = if is_empty { b"" } else { b"," };
    let odd = [before, ODD, comma, rest].concat();
    match (parsed, Message::parse(&odd)) {
        (Ok(one), Ok(other)) => {
            assert_eq!(shape(one), shape(&other));
            parts_are_in_their_places(&odd, &other);
        }
        (Err(Malformed::NotJson { .. }), Err(Malformed::NotJson { .. })) => {}
        (one, other) => assert_eq!(one.as_ref().err(), other.as_ref().err()),
    }
}

fn parts_are_in_their_places(line: &[u8], message: &Message<'_>) {
    let mut parts: Vec<Part<'_>> = message.id().map(|id| id.part()).into_iter().collect();
    match message {
        Message::Request(it) => {
            parts.push(it.method.part());
            parts.extend(it.params);
            drop(it.method.name());
        }
        Message::Notification(it) => {
            parts.push(it.method.part());
            parts.extend(it.params);
            if let Ok(Some(id)) = it.cancelled() {
                parts.push(id.part());
            }
        }
        Message::Response(it) => match it.outcome {
            Outcome::Result(part) | Outcome::Error(part) => parts.push(part),
        },
        Message::Batch(batch) => {
            for member in &batch.members {
                parts_are_in_their_places(line, &member.message);
            }
        }
    }
    for part in parts {
        assert_eq!(&line[part.range()], part.bytes());
    }
}

/// Another id in its place and the old one back again: not one byte has changed (rule 11).
fn id_is_spliced(line: &[u8], message: &Message<'_>) {
    let Some(id) = message.id() else {
        return;
    };
    let place = id.part().range();
    let new = b"\"\\u0031 \"";
    let spliced = splice_id(line, &id, new);
    let again = Message::parse(&spliced).expect("a splice keeps a message one");
    let alone = match &again {
        Message::Batch(batch) => {
            let here = |it: &&Message<'_>| {
                it.id()
                    .is_some_and(|it| it.part().range().start == place.start)
            };
            let members = batch.members.iter().map(|it| &it.message);
            members.clone().find(here).expect("the member is there")
        }
        alone => alone,
    };
    let there = alone.id().expect("it has an id");
    assert_eq!(there.raw(), new);
    assert_eq!(splice_id(&spliced, &there, id.raw()), line);
    for reply in [
        error_reply(id.raw(), -32603, "no", None),
        result_reply(id.raw(), "{}"),
    ] {
        let reply = Message::parse(&reply).expect("a reply of our own").id();
        let same = reply.is_some_and(|it| it.raw() == id.raw() && it.key() == id.key());
        assert!(same, "its answer has its id");
    }
}

fn starts_with(line: &[u8], token: u8) -> bool {
    line.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&token)
}

/// All values, by what their keys mean. A key may mean no text: bytes.
struct Members<'m, 'a>(&'m mut BTreeMap<Vec<u8>, Vec<&'a str>>);

impl<'a> Visitor<'a> for Members<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut object: M) -> Result<(), M::Error> {
        while let Some(key) = object.next_key_seed(Key)? {
            let value: &RawValue = object.next_value()?;
            self.0.entry(key).or_default().push(value.get());
        }
        Ok(())
    }
}

struct Key;

impl<'a> DeserializeSeed<'a> for Key {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'a>>(self, key: D) -> Result<Vec<u8>, D::Error> {
        key.deserialize_bytes(self)
    }
}

impl<'a> Visitor<'a> for Key {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key")
    }

    fn visit_bytes<E>(self, key: &[u8]) -> Result<Vec<u8>, E> {
        Ok(key.to_vec())
    }
}
