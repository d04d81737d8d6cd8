//! Repairs malformed lines, or at least recovers the id of the request that waits: a request must not wait for ever
//! because of one wrong byte in its response.

use std::ops::ControlFlow;

use super::outline::Object;
use super::{Malformed, Message, Outline};

/// A byte order mark.
const BOM: &str = "\u{feff}";

/// Maximum bytes of a line that is repaired: it is copied, and once more under another id.
const MAX_REPAIRED: usize = 64 << 20;
/// Maximum bytes that a repair adds to a line.
const MAX_ADDED: usize = 1 << 20;

/// Returns the line with U+FFFD in place of invalid UTF-8, and with escapes for control characters in strings. `None`:
/// that does not make it a message, or makes it much longer.
pub fn repaired(line: &[u8], why: Malformed) -> Option<Vec<u8>> {
    if !matches!(why, Malformed::NotText { .. } | Malformed::NotJson { .. })
        || !is_structured(line)
        || line.len() > MAX_REPAIRED
    {
        return None;
    }
    // Counted before it is written: each byte may become six.
    let mut length = 0;
    let most = line.len() + MAX_ADDED;
    repair_to(line, |piece| {
        length += piece.len();
        length <= most
    });
    if length > most {
        return None;
    }
    let mut repaired = Vec::with_capacity(length + 1);
    repair_to(line, |piece| {
        repaired.extend_from_slice(piece);
        true
    });
    Message::parse(&repaired).is_ok().then_some(repaired)
}

/// Passes the repaired line to `goes_on` in pieces, until that returns `false`.
fn repair_to(line: &[u8], mut goes_on: impl FnMut(&[u8]) -> bool) {
    let (mut in_string, mut escaped) = (false, false);
    for chunk in line.utf8_chunks() {
        let text = chunk.valid().as_bytes();
        let mut written = 0;
        for (at, &byte) in text.iter().enumerate() {
            match byte {
                0..b' ' if in_string && !escaped => {
                    let escape = format!("\\u{byte:04x}");
                    if !goes_on(&text[written..at]) || !goes_on(escape.as_bytes()) {
                        return;
                    }
                    written = at + 1;
                    continue;
                }
                b'"' if !escaped => in_string = !in_string,
                _ => {}
            }
            escaped = in_string && byte == b'\\' && !escaped;
        }
        if !goes_on(&text[written..]) {
            return;
        }
        if !chunk.invalid().is_empty() {
            escaped = false;
            if !goes_on("\u{fffd}".as_bytes()) {
                return;
            }
        }
    }
}

/// Returns the line with a number of the same length in place of each `NaN` and `Infinity`, which JSON does not have and
/// Python's `json` writes and reads: its message has the positions of the original. `None`: that does not make it a
/// message.
pub fn with_finite_numbers(line: &[u8], why: Malformed) -> Option<Vec<u8>> {
    if !matches!(why, Malformed::NotJson { .. })
        || !is_structured(line)
        || line.len() > MAX_REPAIRED
    {
        return None;
    }
    let mut finite = line.to_vec();
    let (mut in_string, mut escaped) = (false, false);
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        let before = at.checked_sub(1).map_or(b' ', |before| line[before]);
        let is_start = |others: &[u8]| b":[, \t".contains(&before) || others.contains(&before);
        let length = match &line[at..] {
            _ if in_string => 0,
            [b'N', b'a', b'N', ..] if is_start(b"") => 3,
            [b'I', b'n', b'f', b'i', b'n', b'i', b't', b'y', ..] if is_start(b"-") => 8,
            _ => 0,
        };
        finite[at..at + length].fill(b'1');
        if byte == b'"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && byte == b'\\' && !escaped;
        at += length.max(1);
    }
    Message::parse(&finite).is_ok().then_some(finite)
}

/// Whether a line is meant as JSON-RPC rather than other text.
fn is_structured(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let line = line.strip_prefix(BOM.as_bytes()).unwrap_or(line);
    matches!(line.trim_ascii_start(), [b'{' | b'[', ..])
}

/// The members recovered from a malformed line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveredFields {
    /// The id as spelled, if exactly one id was found and a response can contain it.
    pub(crate) id: Option<String>,
    /// All ids that can be answered. Which of several is meant is unknown.
    pub(crate) ids: Vec<String>,
    /// Whether there is any id.
    pub(crate) has_id: bool,
    pub(crate) has_method: bool,
    pub(crate) has_outcome: bool,
}

impl RecoveredFields {
    /// Recovers the members of an object that need not be well-formed. `None`: it is no object.
    pub(crate) fn of(line: &[u8]) -> Option<RecoveredFields> {
        let mut outline = Outline::default();
        outline.feed(line);
        outline.object().map(RecoveredFields::of_object)
    }

    fn of_object(object: &Object) -> RecoveredFields {
        RecoveredFields {
            id: object.id(),
            ids: object.ids(),
            has_id: object.has_id(),
            has_method: object.has_method,
            has_outcome: object.has_outcome,
        }
    }

    /// The ids of requests that may wait for this line as their response.
    pub(crate) fn answers(self) -> Vec<String> {
        match (self.has_method, self.id) {
            (true, _) => Vec::new(),
            (false, Some(id)) => vec![id],
            (false, None) => self.ids,
        }
    }
}

/// Calls `each` with every element of an array that need not be well-formed, with the default for an element that is no
/// object, until it breaks. Does nothing if it is no array. No list is collected.
pub(crate) fn for_each_element(
    line: &[u8],
    mut each: impl FnMut(RecoveredFields) -> ControlFlow<()>,
) {
    let mut each = |element: Option<Object>| {
        let meant = element.as_ref().map(RecoveredFields::of_object);
        each(meant.unwrap_or_default())
    };
    let mut outline = Outline::default();
    let mut done = ControlFlow::Continue(());
    outline.feed_each(line, |element| {
        done = each(element);
        done
    });
    // The array may be cut off.
    if done.is_continue()
        && let Some(element) = outline.take_element()
    {
        let _ = each(element);
    }
}

/// A line from its first bracket on. The whole line, if it has no bracket.
pub(crate) fn without_prefix(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|byte| matches!(byte, b'{' | b'['));
    &line[start.unwrap_or(0)..]
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
    fn a_repair_that_would_make_a_line_much_longer_is_not_made() {
        let line = |bad: &[u8], count: usize| {
            let text = bad.repeat(count);
            [
                b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"",
                &text[..],
                b"\"}",
            ]
            .concat()
        };
        // A control character becomes six bytes, a byte that is no text three.
        for (bad, added) in [(b"\x01", 5), (b"\xff", 2)] {
            let most = MAX_ADDED / added;
            let repaired = repair(&line(bad, most)).expect("it grows as much as it may");
            assert_eq!(repaired.len(), line(bad, most).len() + most * added);
            assert_eq!(repair(&line(bad, most + 1)), None);
        }
    }

    #[test]
    fn elements_are_seen_until_no_more_are_wanted() {
        let seen = |line: &str, most: usize| {
            let mut seen = Vec::new();
            for_each_element(line.as_bytes(), |element| {
                seen.push(element.id.unwrap_or_default());
                match seen.len() < most {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
            seen
        };
        assert_eq!(seen(r#" [1, {"id":[2]}, {"id":3}, 4]"#, 3), ["", "", "3"]);
        assert_eq!(
            seen(r#"[{"id":1},{"id":2,"x":NaN},{"id":3,"#, 9),
            ["1", "2", "3"]
        );
        assert_eq!(seen(r#"[{"id":1},{"id":2"#, 1), ["1"]);
        assert_eq!(seen("{}", 9), [""; 0]);
        assert_eq!(seen("[]", 9), [""; 0]);
    }

    #[test]
    fn an_id_is_read_from_a_line_that_is_none() {
        let meant = |line: &str| RecoveredFields::of(line.as_bytes()).unwrap_or_default();
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
