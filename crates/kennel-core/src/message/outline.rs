//! Incremental scanner for the keys and the id of an object that need not be well-formed, nor ever end.
//!
//! Whoever waits for an answer must hear of it even if the line is not JSON or too long to be kept. So the scanner finds the
//! top-level `id` wherever it stands, in constant memory, and without a judgement of anything else.

use serde_json::value::RawValue;

use super::token::ordinary;
use super::{Id, Key};

/// Maximum bytes of an id that is kept, white space around it included.
pub const LONGEST_ID: usize = 1 << 20;
/// Maximum bytes of a key that may be one of the envelope's: six bytes for each character of `jsonrpc`.
const LONGEST_KEY: usize = 6 * 7;
/// How many ids of one object are kept, should it have several.
const MOST_IDS: usize = 4;
/// A byte order mark.
const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// What the part of a line that was fed so far says of its envelope.
///
/// ```
/// use kennel_core::message::Outline;
///
/// let mut outline = Outline::default();
/// for part in [r#"{"result":{"id":1,"x":NaN"#, r#"},"id"#, r#"":7,"y":"#] {
///     outline.feed(part.as_bytes());
/// }
/// assert_eq!(outline.id().as_deref(), Some("7"));
/// assert!(outline.has_outcome() && !outline.has_method());
/// ```
#[derive(Debug, Default, Clone)]
pub struct Outline {
    next: Next,
    /// How many bytes of a byte order mark came.
    bom: usize,
    /// The key it is in or behind, or the value of an `id`.
    kept: Vec<u8>,
    /// The key or the id is longer than what is kept of it.
    is_cut: bool,
    /// In the value it is in: how deep, and whether in a string, behind a backslash.
    depth: usize,
    in_string: bool,
    escaped: bool,
    ids: Vec<Vec<u8>>,
    id_count: usize,
    is_object: bool,
    has_method: bool,
    has_outcome: bool,
}

/// What comes next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Next {
    #[default]
    Object,
    KeyBegins,
    Key,
    Colon,
    Value {
        is_id: bool,
    },
    /// The object has ended, or is none.
    Nothing,
}

impl Outline {
    /// More of the line came.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            match self.next {
                Next::Object => self.before_object(byte),
                Next::KeyBegins => match byte {
                    b'"' => self.begin_key(),
                    b' ' | b'\t' | b'\r' => {}
                    _ => self.next = Next::Nothing,
                },
                Next::Key => self.in_key(byte),
                Next::Colon => match byte {
                    b':' => self.begin_value(),
                    b' ' | b'\t' | b'\r' => {}
                    _ => self.next = Next::Nothing,
                },
                Next::Value { is_id } => {
                    if !is_id && self.in_string && !self.escaped {
                        // Most of a long line is skipped here.
                        at += ordinary(&bytes[at - 1..]);
                        match bytes.get(at - 1) {
                            Some(&byte) => self.in_value(byte, false),
                            None => return,
                        }
                    } else {
                        self.in_value(byte, is_id);
                    }
                }
                Next::Nothing => return,
            }
        }
    }

    /// The id, as spelled, if the object has one and only one, which an answer can carry.
    pub fn id(&self) -> Option<String> {
        match (self.id_count, &self.ids[..]) {
            (1, [id]) => answerable(id),
            _ => None,
        }
    }

    /// All ids that an answer can carry, each once; no more than a few.
    pub(crate) fn ids(&self) -> Vec<String> {
        let mut found: Vec<(Key, String)> = Vec::new();
        for id in self.ids.iter().filter_map(|id| answerable(id)) {
            if let Some(key) = Key::of(id.as_bytes())
                && !found.iter().any(|(other, _)| *other == key)
            {
                found.push((key, id));
            }
        }
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether it has an id, or several, whatever they are.
    pub(crate) fn has_id(&self) -> bool {
        self.id_count > 0
    }

    /// Whether it is an object.
    pub(crate) fn is_object(&self) -> bool {
        self.is_object
    }

    /// Whether it has a method: it asks or tells something.
    pub fn has_method(&self) -> bool {
        self.has_method
    }

    /// Whether it has a result or an error: it answers something.
    pub fn has_outcome(&self) -> bool {
        self.has_outcome
    }

    fn before_object(&mut self, byte: u8) {
        match byte {
            b'{' => {
                self.is_object = true;
                self.next = Next::KeyBegins;
            }
            b' ' | b'\t' | b'\r' => {}
            _ if BOM.get(self.bom) == Some(&byte) => self.bom += 1,
            _ => self.next = Next::Nothing,
        }
    }

    fn begin_key(&mut self) {
        self.kept.clear();
        (self.is_cut, self.escaped) = (false, false);
        self.next = Next::Key;
    }

    fn in_key(&mut self, byte: u8) {
        if byte == b'"' && !self.escaped {
            self.next = Next::Colon;
            return;
        }
        self.escaped = byte == b'\\' && !self.escaped;
        self.keep(byte, LONGEST_KEY);
    }

    fn begin_value(&mut self) {
        let mut is_id = false;
        match &*self.key() {
            "id" => {
                is_id = true;
                self.id_count += 1;
            }
            "method" => self.has_method = true,
            "result" | "error" => self.has_outcome = true,
            _ => {}
        }
        self.kept.clear();
        (self.depth, self.in_string, self.escaped, self.is_cut) = (0, false, false, false);
        self.next = Next::Value { is_id };
    }

    /// What the key means, if it may be one of the envelope's.
    fn key(&self) -> String {
        if self.is_cut {
            return String::new();
        }
        let spelled = String::from_utf8_lossy(&self.kept);
        match spelled.contains('\\') {
            true => serde_json::from_str(&format!("\"{spelled}\"")).unwrap_or_default(),
            false => spelled.into_owned(),
        }
    }

    fn in_value(&mut self, byte: u8, is_id: bool) {
        if self.in_string {
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
        } else {
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => self.depth -= 1,
                b',' if self.depth == 0 => return self.end_value(is_id, Next::KeyBegins),
                b'}' | b']' => return self.end_value(is_id, Next::Nothing),
                _ => {}
            }
        }
        if is_id {
            self.keep(byte, LONGEST_ID);
        }
    }

    fn end_value(&mut self, is_id: bool, next: Next) {
        if is_id && !self.is_cut && self.ids.len() < MOST_IDS {
            self.ids.push(std::mem::take(&mut self.kept));
        }
        self.next = next;
    }

    fn keep(&mut self, byte: u8, most: usize) {
        match self.kept.len() < most {
            true => self.kept.push(byte),
            false => self.is_cut = true,
        }
    }
}

/// An id that an answer can carry, as spelled.
fn answerable(value: &[u8]) -> Option<String> {
    let raw: &RawValue = serde_json::from_slice(value).ok()?;
    let id = Id::alone(raw.get()).filter(Id::is_acceptable)?;
    Some(String::from_utf8_lossy(id.raw()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(line: &[u8], parts: usize) -> Outline {
        let mut outline = Outline::default();
        line.chunks(parts).for_each(|part| outline.feed(part));
        outline
    }

    #[test]
    fn the_id_is_found_wherever_it_stands_however_the_line_is_cut() {
        for (line, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}"#, Some("7")),
            (
                r#"{"result":{"id":1,"b":[nan,{"id":2}]},"id":"x" }"#,
                Some(r#""x""#),
            ),
            (
                r#"{"result":"}],\"id\":1","id":"a\"b","x":[1,2"#,
                Some(r#""a\"b""#),
            ),
            ("\u{feff} {\"id\":7}", Some("7")),
            (r#"{"\u0069d":7}"#, Some("7")),
            (r#"{ "id" : -7 , "result":"cut o"#, Some("-7")),
            (r#"{"id":12"#, None),
            (r#"{"id":1,"id":1}"#, None),
            (r#"{"id":true}"#, None),
            (r#"{"id":[1]}"#, None),
            (r#"{"id":null}"#, None),
            (r#"{"id":1.5}"#, None),
            (r#"{"id":007}"#, None),
            (r#"{"id":}"#, None),
            (r#"{"x":1}"#, None),
            (r#"x{"id":1}"#, None),
            ("[]", None),
            ("", None),
        ] {
            for parts in [1, 2, 3, 7, 1000] {
                let found = outline(line.as_bytes(), parts);
                assert_eq!(found.id().as_deref(), id, "{line} by {parts}");
            }
        }
        let bad_text = b"{\"result\":\"\xff\\\xff\",\"x\xff\":0,\"id\":7}";
        assert_eq!(outline(bad_text, 4).id().as_deref(), Some("7"));
    }

    #[test]
    fn an_id_that_comes_twice_is_no_single_one_and_both_are_known() {
        let ids = |line: &str| outline(line.as_bytes(), 5).ids();
        assert_eq!(ids(r#"{"id":1,"result":1,"id":1}"#), ["1"]);
        assert_eq!(ids(r#"{"id":"a","result":1,"id":"\u0061"}"#), [r#""a""#]);
        assert_eq!(ids(r#"{"id":1,"result":1,"id":"x"}"#), ["1", r#""x""#]);
        assert_eq!(ids(r#"{"id":1,"result":1,"id":true}"#), ["1"]);
    }

    #[test]
    fn keys_and_ids_of_any_length_take_bounded_memory() {
        let long = "x".repeat(2 * LONGEST_ID);
        let line = format!(r#"{{"{long}":"{long}","id":"{long}","result":"{long}","y":{long}"#);
        let found = outline(line.as_bytes(), 1 << 16);
        assert_eq!(found.id(), None);
        assert!(found.has_id() && found.has_outcome());
        assert!(found.kept.capacity() <= 2 * LONGEST_ID);
    }
}
