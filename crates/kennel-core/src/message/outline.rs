//! Incremental scanner for the keys and the ids of objects that need not be well-formed, nor ever end.
//!
//! Whoever waits for an answer must hear of it even if the line is not JSON or too long to be kept. So the scanner finds the
//! top-level `id` wherever it stands, in constant memory, and without a judgement of anything else. Of an array, it finds
//! that of each element.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::reply::{BATCH_LIMIT, LONG_IDS_LIMIT};
use super::token::ordinary;
use super::{Id, Key};
use crate::hello::{Text, text_of_bytes};

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
///
/// let mut outline = Outline::default();
/// outline.feed(br#"[{"id":1,"result":NaN},{"id":2,"method":"x"},{"id":3,"result":"cut o"#);
/// let elements = outline.into_elements();
/// let elements: Vec<_> = elements.iter().map(|it| (&it.id[..], it.is_answer)).collect();
/// assert_eq!(elements, [("1", true), ("2", false), ("3", true)]);
/// ```
///
/// Another process can continue with it: it is serialized field by field.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Outline {
    next: Next,
    /// How many bytes of a byte order mark came.
    bom: usize,
    /// The key it is in or behind, or the value of an `id`.
    #[serde(with = "text_of_bytes")]
    kept: Vec<u8>,
    /// The key or the id is longer than what is kept of it.
    is_cut: bool,
    /// In the value it is in: how deep, and whether in a string, behind a backslash.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The object it is in or behind.
    object: Option<Object>,
    is_array: bool,
    /// How many arrays it is in: objects in an array in an array are elements, too.
    arrays: usize,
    in_element: bool,
    elements: Elements,
}

/// What is known of one object.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Object {
    ids: Vec<Text>,
    id_count: usize,
    pub(crate) has_method: bool,
    pub(crate) has_outcome: bool,
}

/// An element of an array that has one id, which an answer can carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Element {
    /// As spelled.
    pub id: String,
    /// It has a result or an error.
    pub is_answer: bool,
}

/// Elements of one array, not more than can be requests of one session in flight.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Elements {
    kept: Vec<Element>,
    id_bytes: usize,
}

/// What comes next.
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
    /// What is left of an element behind its keys, or one that is no object.
    Rest,
    /// The object or the array has ended, or it is none.
    Nothing,
}

impl Outline {
    /// The outline of an object of which so much is known: the id it has, whether what comes next is part of an id, and
    /// whether it has a method and an outcome.
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

    /// The same, behind this key.
    pub(super) fn behind_key(self, key: &[u8]) -> Outline {
        let kept = key.to_vec();
        Outline { kept, ..self }
    }

    /// The same, in a value. If that is an id, it is none that can be read.
    pub(super) fn inside_value(self, depth: usize, in_string: bool) -> Outline {
        Outline {
            depth,
            in_string,
            is_cut: true,
            ..self
        }
    }

    /// More of the line came.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut elements = std::mem::take(&mut self.elements);
        self.feed_each(bytes, |object| {
            elements.add(object);
            ControlFlow::Continue(())
        });
        self.elements = elements;
    }

    /// The same, and calls `each` with every element of an array that has ended, until that says that no more are wanted.
    /// `None`: it is no object.
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
                    _ => self.lose_track(byte),
                },
                Next::Key => self.in_key(byte),
                Next::Colon => match byte {
                    b':' => self.begin_value(),
                    b' ' | b'\t' | b'\r' => {}
                    _ => self.lose_track(byte),
                },
                Next::Value { is_id: false } | Next::Rest if self.in_string && !self.escaped => {
                    // Most of a long line is skipped here.
                    at += ordinary(&bytes[at - 1..]);
                    match bytes.get(at - 1) {
                        Some(&byte) => self.track(byte),
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

    /// The id, as spelled, if it is an object with one and only one, which an answer can carry.
    pub fn id(&self) -> Option<String> {
        self.object()?.id()
    }

    /// What is known of the object that it is; `None` if it is none.
    pub(crate) fn object(&self) -> Option<&Object> {
        self.object.as_ref().filter(|_| !self.is_array)
    }

    /// Whether it is an object with a method: it asks or tells something.
    pub fn has_method(&self) -> bool {
        self.object().is_some_and(|object| object.has_method)
    }

    /// Whether it is an object with a result or an error: it answers something.
    pub fn has_outcome(&self) -> bool {
        self.object().is_some_and(|object| object.has_outcome)
    }

    /// How many elements of an array with an id have come.
    pub fn element_count(&self) -> usize {
        self.elements.kept.len()
    }

    /// The elements of an array that have an id, one that is cut off included; no more than [`BATCH_LIMIT`].
    pub fn into_elements(mut self) -> Vec<Element> {
        if let Some(element) = self.take_element() {
            self.elements.add(element);
        }
        self.elements.kept
    }

    /// The element it is in or behind: `Some(None)` if that is no object.
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
                self.track(byte);
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

    /// No more keys of this object can be told. The elements behind it can.
    fn lose_track(&mut self, byte: u8) {
        match self.is_array {
            true => {
                self.begin_rest(1);
                self.track(byte);
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
            _ => self.track(byte),
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
                self.track(byte);
                if is_id {
                    self.keep(byte, LONGEST_ID);
                }
            }
        }
    }

    /// Whether it is in no string, and in nothing that is in the value.
    fn is_outside(&self) -> bool {
        !self.in_string && self.depth == 0
    }

    /// Goes on in the value it is in.
    fn track(&mut self, byte: u8) {
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
        if is_id && !self.is_cut && object.ids.len() < MOST_IDS {
            object.ids.push(Text::from(&self.kept[..]));
            self.kept = Vec::new();
        }
    }

    fn keep(&mut self, byte: u8, most: usize) {
        match self.kept.len() < most {
            true => self.kept.push(byte),
            false => self.is_cut = true,
        }
    }
}

impl Object {
    /// The id, as spelled, if it has one and only one, which an answer can carry.
    pub(crate) fn id(&self) -> Option<String> {
        match (self.id_count, &self.ids[..]) {
            (1, [id]) => answerable(id.as_bytes()),
            _ => None,
        }
    }

    /// All ids that an answer can carry, each once; no more than a few.
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

    /// Whether it has an id, or several, whatever they are.
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

    /// The same where another process continues after each part.
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
        let long = "x".repeat(2 * LONGEST_ID);
        let line = format!(r#"{{"{long}":"{long}","id":"{long}","result":"{long}","y":{long}"#);
        let found = outline(line.as_bytes(), 1 << 16);
        assert_eq!(found.id(), None);
        assert!(found.object().unwrap().has_id() && found.has_outcome());
        assert!(found.kept.capacity() <= 2 * LONGEST_ID);
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
        let long = format!("\"{}\"", "x".repeat(LONGEST_ID - 2));
        assert_eq!(kept(&long, 9), LONG_IDS_LIMIT / LONGEST_ID);
    }
}
