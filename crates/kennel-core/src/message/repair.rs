//! Lines that are no messages, and what can be made of them: a line with its text repaired, or at least the id of whoever
//! waits for it. Nobody is to wait for an answer that was dropped for one wrong byte.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Id, Malformed, Message};

/// A byte order mark.
const BOM: &str = "\u{feff}";

/// The same line as JSON: with U+FFFD where it is not UTF-8, and with escapes where a string has a control character.
/// `None`: that does not make it a message.
pub fn repaired(line: &[u8], why: Malformed) -> Option<Vec<u8>> {
    if !matches!(why, Malformed::NotText { .. } | Malformed::NotJson { .. }) || !is_structured(line)
    {
        return None;
    }
    let text = String::from_utf8_lossy(line);
    let mut repaired = Vec::with_capacity(text.len() + 16);
    let mut in_string = false;
    let mut escaped = false;
    for byte in text.bytes() {
        match byte {
            0..b' ' if in_string && !escaped => {
                repaired.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                continue;
            }
            b'"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = in_string && byte == b'\\' && !escaped;
        repaired.push(byte);
    }
    Message::parse(&repaired).is_ok().then_some(repaired)
}

/// Whether a line is meant as JSON-RPC, and is no other text.
fn is_structured(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let line = line.strip_prefix(BOM.as_bytes()).unwrap_or(line);
    matches!(line.trim_ascii_start(), [b'{' | b'[', ..])
}

/// What a line that is no message says of itself, as far as that can be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Meant {
    /// Its id as spelled, if it has one that can be answered.
    pub(crate) id: Option<String>,
    /// It has an id, or several, whatever they are.
    pub(crate) has_id: bool,
    pub(crate) has_method: bool,
    pub(crate) has_outcome: bool,
}

impl Meant {
    /// Reads the keys of an object that need not be well-formed. `None`: it is no object.
    pub(crate) fn of(line: &[u8]) -> Option<Meant> {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_start().trim_start_matches(BOM).trim_start();
        let mut meant = Meant::default();
        let mut ids = 0;
        for (key, value) in members(text.strip_prefix('{')?) {
            match &*key {
                "id" => {
                    ids += 1;
                    meant.has_id = true;
                    meant.id = answerable(value);
                }
                "method" => meant.has_method = true,
                "result" | "error" => meant.has_outcome = true,
                _ => {}
            }
        }
        if ids != 1 {
            meant.id = None;
        }
        Some(meant)
    }
}

/// An id that an answer can carry.
fn answerable(value: &str) -> Option<String> {
    let raw: &RawValue = serde_json::from_str(value).ok()?;
    let id = Id::alone(raw.get()).filter(Id::is_acceptable)?;
    Some(String::from_utf8_lossy(id.raw()).into_owned())
}

/// The members of an object, of which this is the text behind its `{`: each key, and the text up to the comma or bracket
/// that ends its value.
fn members(text: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let key = rest.trim_start().strip_prefix('"')?;
        let end = string_end(key)?;
        let behind = key[end + 1..].trim_start().strip_prefix(':')?;
        // What is cut off has no end, and may be something else.
        let length = value_end(behind).unwrap_or(0);
        rest = behind[length..].strip_prefix(',').unwrap_or_default();
        let key = &key[..end];
        let key = match key.contains('\\') {
            true => {
                serde_json::from_str(&format!("\"{key}\"")).map_or(Cow::Borrowed(key), Cow::Owned)
            }
            false => Cow::Borrowed(key),
        };
        Some((key, &behind[..length]))
    })
}

/// Where a string ends, of which this is the text behind its first quote.
fn string_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Where a value ends that is followed by a comma or a closing bracket of what it is in.
fn value_end(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let (mut in_string, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        if in_string {
            in_string = byte != b'"' || escaped;
            escaped = byte == b'\\' && !escaped;
            return false;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => depth -= 1,
            b',' | b'}' | b']' if depth == 0 => return true,
            _ => {}
        }
        false
    })
}

/// The elements of an array, well-formed or not; none, if it is no array.
pub(crate) fn elements(line: &[u8]) -> Vec<&RawValue> {
    serde_json::from_slice(line).unwrap_or_default()
}

/// Whether anybody may wait for an answer to this line of an app: it is no message, but meant as one.
pub(crate) fn is_meant_as_message(line: &[u8], why: Malformed) -> bool {
    why != Malformed::Reserved && is_structured(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(line: &[u8]) -> Option<String> {
        let why = Message::parse(line).expect_err("it is malformed");
        repaired(line, why).map(|it| String::from_utf8(it).expect("text"))
    }

    #[test]
    fn text_that_is_no_json_is_repaired_where_it_stands() {
        assert_eq!(
            repair(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"x\xffy\"}}").as_deref(),
            Some("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"x\u{fffd}y\"}}")
        );
        assert_eq!(
            repair(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\\\"b\":\"\x1b[31m\\\\\t\"}}")
                .as_deref(),
            Some(r#"{"jsonrpc":"2.0","id":1,"result":{"a\"b":"\u001b[31m\\\u0009"}}"#)
        );
        for beyond_repair in [
            &b"hello \xff"[..],
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":NaN}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{",
            b"{\x01\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1}",
            b"",
        ] {
            assert_eq!(repair(beyond_repair), None);
        }
    }

    #[test]
    fn an_id_is_read_from_a_line_that_is_none() {
        let meant = |line: &str| Meant::of(line.as_bytes()).unwrap_or_default();
        for (line, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}"#, Some("7")),
            (
                r#"{"result":{"id":1,"b":[nan,{"id":2}]},"id":"x" }"#,
                Some(r#""x""#),
            ),
            ("\u{feff}{\"id\":7}", Some("7")),
            (r#"{"\u0069d":7}"#, Some("7")),
            (r#"{"id":7,"result":"cut o"#, Some("7")),
            (r#"{"id":12"#, None),
            (r#"{"id":1,"id":1}"#, None),
            (r#"{"id":true}"#, None),
            (r#"{"id":[1]}"#, None),
            (r#"{"id":null}"#, None),
            (r#"{"id":1.5}"#, None),
            (r#"{"id":}"#, None),
            (r#"{"x":1}"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(meant(line).id.as_deref(), id, "{line}");
        }
        let request = meant(r#"{"jsonrpc":"1.0","method":"x","id":{}}"#);
        assert!(request.has_id && request.has_method && !request.has_outcome);
        assert!(meant(r#"{"id":1,"error":{}}"#).has_outcome);
    }
}
