//! Incremental scanner that finds the ids of a message in a line that may be malformed or endless.
//!
//! The sender of a request needs an answer even if the line is not JSON or too long to be stored. So the scanner finds
//! the top-level `id` anywhere in the line, in constant memory, and validates nothing else. In an array, it finds the id
//! of each element.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::reply::{BATCH_LIMIT, LONG_IDS_LIMIT};
use super::token::ordinary;
use super::{Id, Key};
use crate::hello::{Text, text_of_bytes};

/// Maximum bytes of an id that is stored, white space around it included.
pub const MAX_ID: usize = 1 << 20;
/// Maximum bytes of a key that may be an envelope key: six bytes for each character of `jsonrpc`.
const MAX_KEY: usize = 6 * 7;
/// Maximum number of stored ids of one object: a malformed object may have several.
const MAX_IDS: usize = 4;
/// A byte order mark.
const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The envelope of the scanned part of a line.
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
///
/// let mut outline = Outline::default();
/// outline.feed(br#"[{"id":1,"result":NaN},{"id":2,"method":"x"},{"id":3,"result":"cut o"#);
/// let elements = outline.into_elements();
/// let elements: Vec<_> = elements.iter().map(|it| (&it.id[..], it.is_answer)).collect();
/// assert_eq!(elements, [("1", true), ("2", false), ("3", true)]);
/// ```
///
/// It can be serialized, so that another process can continue the scan.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Outline {
    next: Next,
    /// Number of scanned bytes of a byte order mark.
    bom: usize,
    /// The current or last key, or the value of an `id`.
    #[serde(with = "text_of_bytes")]
    kept: Vec<u8>,
    /// The key or id is longer than its stored part.
    is_cut: bool,
    /// The state in the current value: its nesting depth, and whether the scan is in a string or after a backslash.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The current or last object.
    object: Option<Object>,
    is_array: bool,
    /// Number of open arrays. Objects in nested arrays are elements, too.
    arrays: usize,
    in_element: bool,
    elements: Elements,
}

/// The scanned envelope of one object.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Object {
    ids: Vec<Text>,
    id_count: usize,
    pub(crate) has_method: bool,
    pub(crate) has_outcome: bool,
}

/// An array element with exactly one id, which a response can contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Element {
    /// As spelled.
    pub id: String,
    /// Whether it has a result or an error.
    pub is_answer: bool,
}

/// Elements of one array. Their number is limited to the requests that one session may have in flight.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Elements {
    kept: Vec<Element>,
    id_bytes: usize,
}

/// What the scanner expects next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Next {
    #[default]
    Line,
    KeyBegins,
    Key,
    Colon,
    Value {
        is_id: bool,
    },
    /// An element of an array.
    Element,
    /// The rest of an element after its keys, or an element that is no object.
    Rest,
    /// Nothing: the object or array has ended, or the line is neither.
    Nothing,
}

impl Outline {
    /// The outline of an object after a partial scan: its id, whether the scan is in the value of an id, and whether it
    /// has a method and an outcome.
    pub(super) fn known(
        next: Next,
        (id, in_id): (Option<Vec<u8>>, bool),
        has_method: bool,
        has_outcome: bool,
    ) -> Outline {
        Outline {
            next,
            object: Some(Object {
                id_count: usize::from(id.is_some()) + usize::from(in_id),
                ids: id.iter().map(|id| Text::from(&id[..])).collect(),
                has_method,
                has_outcome,
            }),
            ..Outline::default()
        }
    }

    /// The same, after this key.
    pub(super) fn behind_key(self, key: &[u8]) -> Outline {
        let kept = key.to_vec();
        Outline { kept, ..self }
    }

    /// The same, inside a value. If that is the value of an id, the id cannot be read.
    pub(super) fn inside_value(self, depth: usize, in_string: bool) -> Outline {
        Outline {
            depth,
            in_string,
            is_cut: true,
            ..self
        }
    }

    /// Scans the next bytes of the line.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut elements = std::mem::take(&mut self.elements);
        self.feed_each(bytes, |object| {
            elements.add(object);
            ControlFlow::Continue(())
        });
        self.elements = elements;
    }

    /// Scans the next bytes and calls `each` for every completed element of an array, until `each` returns that it wants
    /// no more. `None`: the line is no object.
    pub(crate) fn feed_each(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(Option<Object>) -> ControlFlow<()>,
    ) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            match self.next {
                Next::Line => self.before_line(byte),
                Next::KeyBegins => match byte {
                    b'"' => self.begin_key(),
                    b' ' | b'\t' | b'\r' => {}
                    _ => self.ignore_further_keys(byte),
                },
                Next::Key => self.in_key(byte),
                Next::Colon => match byte {
                    b':' => self.begin_value(),
                    b' ' | b'\t' | b'\r' => {}
                    _ => self.ignore_further_keys(byte),
                },
                Next::Value { is_id: false } | Next::Rest if self.in_string && !self.escaped => {
                    // Most of a long line is skipped here.
                    at += ordinary(&bytes[at - 1..]);
                    match bytes.get(at - 1) {
                        Some(&byte) => self.continue_value(byte),
                        None => return,
                    }
                }
                Next::Value { is_id } => self.in_value(byte, is_id),
                Next::Element => self.before_element(byte),
                Next::Rest => self.in_rest(byte),
                Next::Nothing => return,
            }
            let has_ended = matches!(self.next, Next::Element | Next::Nothing);
            if has_ended
                && let Some(element) = self.take_element()
                && each(element).is_break()
            {
                self.next = Next::Nothing;
            }
        }
    }

    /// The id, as spelled, if the line is an object with exactly one id, and a response can contain it.
    pub fn id(&self) -> Option<String> {
        self.object()?.id()
    }

    /// The scanned object; `None` if the line is no object.
    pub(crate) fn object(&self) -> Option<&Object> {
        self.object.as_ref().filter(|_| !self.is_array)
    }

    /// Whether the line is an object with a method: a request or notification.
    pub fn has_method(&self) -> bool {
        self.object().is_some_and(|object| object.has_method)
    }

    /// Whether the line is an object with a result or an error: a response.
    pub fn has_outcome(&self) -> bool {
        self.object().is_some_and(|object| object.has_outcome)
    }

    /// Number of scanned array elements with an id.
    pub fn element_count(&self) -> usize {
        self.elements.kept.len()
    }

    /// The array elements with an id, including an incomplete last one; at most [`BATCH_LIMIT`].
    pub fn into_elements(mut self) -> Vec<Element> {
        if let Some(element) = self.take_element() {
            self.elements.add(element);
        }
        self.elements.kept
    }

    /// Takes the current or last element: `Some(None)` if it is no object.
    pub(crate) fn take_element(&mut self) -> Option<Option<Object>> {
        let is_there = self.is_array && std::mem::take(&mut self.in_element);
        is_there.then(|| self.object.take())
    }

    fn before_line(&mut self, byte: u8) {
        match byte {
            b'{' => self.begin_object(),
            b'[' => {
                (self.is_array, self.arrays) = (true, 1);
                self.next = Next::Element;
            }
            b' ' | b'\t' | b'\r' => {}
            _ if BOM.get(self.bom) == Some(&byte) => self.bom += 1,
            _ => self.next = Next::Nothing,
        }
    }

    fn before_element(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\r' | b',' => {}
            b'[' => self.arrays += 1,
            b']' => self.leave_array(),
            b'{' => {
                self.in_element = true;
                self.begin_object();
            }
            _ => {
                self.in_element = true;
                self.begin_rest(0);
                self.continue_value(byte);
            }
        }
    }

    fn leave_array(&mut self) {
        self.arrays -= 1;
        match self.arrays {
            0 => self.next = Next::Nothing,
            _ => self.next = Next::Element,
        }
    }

    fn begin_object(&mut self) {
        self.object = Some(Object::default());
        self.next = Next::KeyBegins;
    }

    /// Ignores all further keys of this object, which cannot be parsed. Further elements can.
    fn ignore_further_keys(&mut self, byte: u8) {
        match self.is_array {
            true => {
                self.begin_rest(1);
                self.continue_value(byte);
            }
            false => self.next = Next::Nothing,
        }
    }

    fn begin_rest(&mut self, depth: usize) {
        (self.depth, self.in_string, self.escaped) = (depth, false, false);
        self.next = Next::Rest;
    }

    fn in_rest(&mut self, byte: u8) {
        match byte {
            b',' if self.is_outside() => self.next = Next::Element,
            b']' if self.is_outside() => self.leave_array(),
            _ => self.continue_value(byte),
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
        self.store(byte, MAX_KEY);
    }

    fn begin_value(&mut self) {
        let mut is_id = false;
        let key = self.key();
        let object = self.object.get_or_insert_default();
        match &*key {
            "id" => {
                is_id = true;
                object.id_count += 1;
            }
            "method" => object.has_method = true,
            "result" | "error" => object.has_outcome = true,
            _ => {}
        }
        self.kept.clear();
        (self.depth, self.in_string, self.escaped, self.is_cut) = (0, false, false, false);
        self.next = Next::Value { is_id };
    }

    /// The unescaped key, if it may be an envelope key.
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
        match byte {
            b',' if self.is_outside() => {
                self.end_value(is_id);
                self.next = Next::KeyBegins;
            }
            b'}' | b']' if self.is_outside() => {
                self.end_value(is_id);
                match self.is_array {
                    true => self.begin_rest(0),
                    false => self.next = Next::Nothing,
                }
            }
            _ => {
                self.continue_value(byte);
                if is_id {
                    self.store(byte, MAX_ID);
                }
            }
        }
    }

    /// Whether the scan is at the top level of the value: in no string and in no nested value.
    fn is_outside(&self) -> bool {
        !self.in_string && self.depth == 0
    }

    /// Continues in the current value.
    fn continue_value(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    fn end_value(&mut self, is_id: bool) {
        let object = self.object.get_or_insert_default();
        if is_id && !self.is_cut && object.ids.len() < MAX_IDS {
            object.ids.push(Text::from(&self.kept[..]));
            self.kept = Vec::new();
        }
    }

    fn store(&mut self, byte: u8, most: usize) {
        match self.kept.len() < most {
            true => self.kept.push(byte),
            false => self.is_cut = true,
        }
    }
}

impl Object {
    /// The id, as spelled, if there is exactly one, and a response can contain it.
    pub(crate) fn id(&self) -> Option<String> {
        match (self.id_count, &self.ids[..]) {
            (1, [id]) => answerable(id.as_bytes()),
            _ => None,
        }
    }

    /// The distinct ids that a response can contain, at most a few.
    pub(crate) fn ids(&self) -> Vec<String> {
        let mut found: Vec<(Key, String)> = Vec::new();
        for id in self.ids.iter().filter_map(|id| answerable(id.as_bytes())) {
            if let Some(key) = Key::of(id.as_bytes())
                && !found.iter().any(|(other, _)| *other == key)
            {
                found.push((key, id));
            }
        }
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether it has one or more ids of any kind.
    pub(crate) fn has_id(&self) -> bool {
        self.id_count > 0
    }
}

impl Elements {
    fn add(&mut self, object: Option<Object>) {
        if self.kept.len() < BATCH_LIMIT
            && let Some(object) = object
            && let Some(id) = object.id()
            && self.id_bytes + id.len() <= LONG_IDS_LIMIT
        {
            self.id_bytes += id.len();
            let is_answer = object.has_outcome;
            self.kept.push(Element { id, is_answer });
        }
    }
}

/// The id as spelled, if a response can contain it.
fn answerable(value: &[u8]) -> Option<String> {
    let raw: &RawValue = serde_json::from_slice(value).ok()?;
    let id = Id::from_text(raw.get()).filter(Id::is_acceptable)?;
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

    /// The same if another process continues the scan after each part.
    fn handed_over(line: &[u8], parts: usize) -> Outline {
        let mut outline = Outline::default();
        for part in line.chunks(parts) {
            outline.feed(part);
            let text = serde_json::to_string(&outline).unwrap();
            outline = serde_json::from_str(&text).unwrap();
        }
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
                let found = handed_over(line.as_bytes(), parts);
                assert_eq!(found.id().as_deref(), id, "{line} by {parts}");
            }
        }
        let bad_text = b"{\"result\":\"\xff\\\xff\",\"x\xff\":0,\"id\":7}";
        assert_eq!(outline(bad_text, 4).id().as_deref(), Some("7"));
        assert_eq!(handed_over(bad_text, 4).id().as_deref(), Some("7"));
    }

    #[test]
    fn an_id_that_comes_twice_is_no_single_one_and_both_are_known() {
        let ids = |line: &str| outline(line.as_bytes(), 5).object().unwrap().ids();
        assert_eq!(ids(r#"{"id":1,"result":1,"id":1}"#), ["1"]);
        assert_eq!(ids(r#"{"id":"a","result":1,"id":"\u0061"}"#), [r#""a""#]);
        assert_eq!(ids(r#"{"id":1,"result":1,"id":"x"}"#), ["1", r#""x""#]);
        assert_eq!(ids(r#"{"id":1,"result":1,"id":true}"#), ["1"]);
    }

    #[test]
    fn keys_and_ids_of_any_length_take_bounded_memory() {
        let long = "x".repeat(2 * MAX_ID);
        let line = format!(r#"{{"{long}":"{long}","id":"{long}","result":"{long}","y":{long}"#);
        let found = outline(line.as_bytes(), 1 << 16);
        assert_eq!(found.id(), None);
        assert!(found.object().unwrap().has_id() && found.has_outcome());
        assert!(found.kept.capacity() <= 2 * MAX_ID);
    }

    #[test]
    fn the_ids_of_all_elements_are_found_however_the_array_is_broken_or_cut() {
        for (line, expected) in [
            (
                r#"[{"id":1,"result":NaN},{"id":2,"error":{}}]"#,
                &["1", "2"][..],
            ),
            (
                r#" [ {"result":"]},[","id":1} , {"id":2,"result":[{"id":3}"#,
                &["1", "2"],
            ),
            (
                r#"[5,"x,{\"id\":9}",nan,{"id":1,"result":{}},{},{"a":1},7]"#,
                &["1"],
            ),
            (r#"[{'id':9,'x':[{"id":8}]},{"id":1,"result":0}]"#, &["1"]),
            (r#"[{"x" 5,"id":9},{"id":1,"result":0}]"#, &["1"]),
            (
                r#"[[{"id":1,"result":0}],[[],{"id":2,"result":0}]]"#,
                &["1", "2"],
            ),
            (r#"[{"id":1,"result":0},{"id":2"#, &["1"]),
            // Other text, as servers print it by mistake.
            (r#"[INFO] sent {"id":9,"result":0}"#, &[]),
            (r#"[[x]] {"id":9,"result":0}"#, &[]),
            (r#"[INFO {"id":9,"result":0}]"#, &[]),
            ("[", &[]),
        ] {
            for parts in [1, 2, 3, 7, 1000] {
                let found = outline(line.as_bytes(), parts);
                assert!(found.id().is_none() && !found.has_outcome());
                let elements = found.into_elements();
                let ids: Vec<_> = elements.iter().map(|it| &it.id[..]).collect();
                assert_eq!(ids, expected, "{line} by {parts}");
                assert_eq!(
                    handed_over(line.as_bytes(), parts).into_elements(),
                    elements
                );
                assert!(elements.iter().all(|it| it.is_answer));
            }
        }
    }

    #[test]
    fn elements_without_end_take_bounded_memory() {
        let kept = |id: &str, count: usize| {
            let element = format!(r#"{{"id":{id},"result":0}},"#);
            let mut outline = Outline::default();
            outline.feed(b"[");
            (0..count).for_each(|_| outline.feed(element.as_bytes()));
            outline.into_elements().len()
        };
        assert_eq!(kept("1", BATCH_LIMIT + 1), BATCH_LIMIT);
        let long = format!("\"{}\"", "x".repeat(MAX_ID - 2));
        assert_eq!(kept(&long, 9), LONG_IDS_LIMIT / MAX_ID);
    }
}
