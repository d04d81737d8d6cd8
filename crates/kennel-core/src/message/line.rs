//! Editing a line, and building lines. All without the newline.

use std::ops::Range;

use memchr::arch::all::memchr::One;
use memchr::memchr;

use super::token::SHORT_STRING;
use super::{Id, Owned};

/// Returns the line with `new_id` in place of `id`. All other bytes stay (rule 11).
///
/// `id` must come from a message that was parsed from this line.
pub fn splice_id(line: &[u8], id: &Id<'_>, new_id: &[u8]) -> Vec<u8> {
    splice(line, &[(id.part().range(), new_id)])
}

/// Returns the line with replacements, which must be in order and not overlap.
pub fn splice(line: &[u8], edits: &[(Range<usize>, &[u8])]) -> Vec<u8> {
    let added: usize = edits.iter().map(|(_, new)| new.len()).sum();
    // One byte more for the newline, so that a long line is not copied to append it.
    let mut spliced = Vec::with_capacity(line.len() + added + 1);
    let mut done = 0;
    for (place, new) in edits {
        spliced.extend_from_slice(&line[done..place.start]);
        spliced.extend_from_slice(new);
        done = place.end;
    }
    spliced.extend_from_slice(&line[done..]);
    spliced
}

/// The position of the first newline. Long lines spend much of their time here.
pub fn newline(bytes: &[u8]) -> Option<usize> {
    let (short, long) = bytes.split_at(bytes.len().min(SHORT_STRING));
    let found = One::new(b'\n').find(short);
    match long.is_empty() {
        true => found,
        false => found.or_else(|| Some(short.len() + memchr(b'\n', long)?)),
    }
}

/// Characters inside JSON strings at which some readers end a line, besides a carriage return: Node's `readline` at the
/// first two, Java's `Scanner` at all of them.
const SEPARATORS: [&str; 3] = ["\u{2028}", "\u{2029}", "\u{85}"];
/// Maximum bytes that escaping separators adds to a line.
const MAX_ADDED: usize = 1 << 20;
/// Maximum bytes of a line whose separators are escaped: all of it is read again.
const MAX_ESCAPED_LINE: usize = 8 << 20;

/// Whether some readers would end the line early. A carriage return at its end is part of the line's end for all of
/// them.
pub(super) fn has_separators(line: &[u8]) -> bool {
    let has_return = |(_, rest): (&u8, &[u8])| rest.contains(&b'\r');
    let text = str::from_utf8(line).unwrap_or_default();
    line.split_last().is_some_and(has_return) || has_foreign_separators(text)
}

/// Whether it contains characters other than a carriage return at which some readers end a line.
pub(super) fn has_foreign_separators(text: &str) -> bool {
    SEPARATORS.iter().any(|separator| text.contains(separator))
}

/// Returns the same message as one line for every reader: with spaces instead of carriage returns, which are white
/// space in a well-formed message, and with escapes for other separators, which are inside strings. `Err`: it would be
/// much longer, or is very long.
/// very long.
/// Sessions that share a server use one pipe: a session that could end a line early could send messages in the name of
/// another.
/// messages in the name of another.
pub(crate) fn one_line(line: Owned) -> Result<Owned, Owned> {
    if line.len() > MAX_ESCAPED_LINE {
        return Err(line);
    }
    let mut bytes = Vec::from(line);
    let last = bytes.len().saturating_sub(1);
    for byte in bytes[..last].iter_mut().filter(|byte| **byte == b'\r') {
        *byte = b' ';
    }
    let text = str::from_utf8(&bytes).unwrap_or_default();
    let count = |separator: &str| text.matches(separator).count();
    let added = "\\u2028".len() * SEPARATORS.map(count).iter().sum::<usize>();
    if added == 0 {
        return Ok(bytes.into());
    }
    if added > MAX_ADDED {
        return Err(bytes.into());
    }
    // One byte more for the newline.
    let mut written = Vec::with_capacity(bytes.len() + added + 1);
    let mut done = 0;
    for (at, separator) in text.match_indices(['\u{2028}', '\u{2029}', '\u{85}']) {
        written.extend_from_slice(&bytes[done..at]);
        for character in separator.chars() {
            written.extend(format!("\\u{:04x}", u32::from(character)).into_bytes());
        }
        done = at + separator.len();
    }
    written.extend_from_slice(&bytes[done..]);
    Ok(written.into())
}

/// Builds an error response to the request with this id.
///
/// `id` and `data` are JSON; `message` is text.
pub fn error_reply(id: &[u8], code: i32, message: &str, data: Option<&str>) -> Vec<u8> {
    let message = quoted(message);
    let data = match data {
        Some(data) => format!(r#","data":{data}"#),
        None => String::new(),
    };
    let error = format!(r#","error":{{"code":{code},"message":{message}{data}}}}}"#);
    [br#"{"jsonrpc":"2.0","id":"#, id, error.as_bytes()].concat()
}

/// Builds a result response to the request with this id. Both are JSON.
pub fn result_reply(id: &[u8], result: &str) -> Vec<u8> {
    let result = format!(r#","result":{result}}}"#);
    [br#"{"jsonrpc":"2.0","id":"#, id, result.as_bytes()].concat()
}

/// Builds a notification. `params` are JSON; `method` is text.
pub fn notification(method: &str, params: &str) -> Vec<u8> {
    let method = quoted(method);
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#).into_bytes()
}

/// Returns text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("every text is a JSON string")
}

#[cfg(test)]
mod tests {
    use super::super::{Message, Outcome};
    use super::*;

    #[test]
    fn the_first_newline_is_found_wherever_it_is() {
        for length in [
            0,
            1,
            7,
            64,
            SHORT_STRING - 1,
            SHORT_STRING,
            SHORT_STRING + 1,
            SHORT_STRING + 100,
        ] {
            let mut bytes = vec![b'x'; length];
            assert_eq!(newline(&bytes), None);
            bytes.extend(b"\nyy\n");
            assert_eq!(newline(&bytes), Some(length));
        }
    }

    #[test]
    fn our_own_lines_are_well_formed_whatever_they_quote() {
        let error = error_reply(
            br#""a\/b""#,
            -32603,
            "a \"quoted\"\nline",
            Some(r#"{"x":1}"#),
        );
        let Ok(Message::Response(response)) = Message::parse(&error) else {
            panic!("a response")
        };
        assert_eq!(response.id.expect("an id").raw(), br#""a\/b""#);
        let Outcome::Error(error) = response.outcome else {
            panic!("an error")
        };
        assert_eq!(
            error.bytes(),
            br#"{"code":-32603,"message":"a \"quoted\"\nline","data":{"x":1}}"#
        );

        assert_eq!(
            error_reply(b"null", -32600, "no", None),
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#
        );
        assert_eq!(
            result_reply(b"7", "{}"),
            br#"{"jsonrpc":"2.0","id":7,"result":{}}"#
        );
        assert_eq!(
            notification("a/b", "{}"),
            br#"{"jsonrpc":"2.0","method":"a/b","params":{}}"#
        );
    }

    #[test]
    fn a_splice_keeps_what_is_before_between_and_after() {
        assert_eq!(
            splice(b"0123456789", &[(2..3, b"__"), (5..5, b"+"), (8..10, b"")]),
            b"01__34+567"
        );
    }
}
