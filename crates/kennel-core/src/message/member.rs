//! Finds values inside the parts of a message without copying them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::scan::MEMBERS;
use super::{Id, Key, KnownMembers, Malformed, MemberPosition, Part, quoted};

/// Maximum bytes of a value that is written canonically: its members are collected and sorted, which takes up to twenty
/// times its length.
pub(crate) const CANONICAL_LIMIT: usize = 2 << 20;

/// Maximum bytes of a value that is searched for a member without a recorded position, and of `_meta`. A search takes 5
/// ms for 1 MB of short members, and one message may need several searches.
pub(crate) const SEARCH_LIMIT: usize = 4 << 20;
const META_LIMIT: usize = 1 << 20;

/// The error for a value that is not searched.
const TOO_LONG: Malformed =
    Malformed::Shape("it is too long to be searched for the keys that are needed for routing");
const LONG_META: Malformed = Malformed::Shape("its _meta is longer than 1 MB");

impl<'a> Part<'a> {
    /// The bytes of the value. They are UTF-8.
    pub(crate) fn text(&self) -> &'a str {
        #[cfg(test)]
        tests::EXAMINED.set(tests::EXAMINED.get() + self.bytes.len());
        str::from_utf8(self.bytes).unwrap_or_default()
    }

    /// Whether the value may contain this name, which needs no escapes. Only then is it worth parsing a long value. A
    /// value with an escape may contain any name.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        /// Maximum length of a text that is searched for many bytes at a time.
        const SHORT_TEXT: usize = 32;
        let text = self.text();
        text.contains(&name[name.len().saturating_sub(SHORT_TEXT)..]) || text.contains('\\')
    }

    /// The same as [`at`](Self::at), faster for a long value that rarely has the member.
    pub(crate) fn search_at(&self, path: &[&str]) -> Result<Option<Part<'a>>, Malformed> {
        // Only an object has members, however long another value is.
        if !self.bytes.starts_with(b"{") {
            return Ok(None);
        }
        let worth_it = match path.first().and_then(|name| self.known(name)) {
            // A value shorter than the member's name does not contain it.
            Some(first) => first.is_some_and(|first| {
                let last = path.last().filter(|_| path.len() > 1);
                last.is_none_or(|name| first.range().len() > name.len())
            }),
            None if self.bytes.len() > SEARCH_LIMIT => return Err(TOO_LONG),
            None => path.last().is_some_and(|name| self.mentions(name)),
        };
        match worth_it {
            true => self.at(path),
            false => Ok(None),
        }
    }

    /// Whether this value has a member `name`, or may have one.
    pub(crate) fn may_have(&self, name: &str) -> bool {
        match self.known(name) {
            Some(value) => value.is_some(),
            None => self.mentions(&quoted(name)),
        }
    }

    /// Records the positions of the most frequently used members.
    pub(super) fn record_members(&mut self) {
        if !self.bytes.starts_with(b"{") {
            return;
        }
        let start = self.bytes.as_ptr().addr();
        let mut places = [None; MEMBERS.len()];
        let is_known = for_each_member(self.text(), |key, raw| {
            let Some(nth) = MEMBERS.iter().position(|it| **it == *key) else {
                return true;
            };
            let value = raw.get().as_ptr().addr();
            let place = MemberPosition::new(start, value, value + raw.get().len());
            // The member occurs twice, or its position is too large to store.
            place.is_some() && std::mem::replace(&mut places[nth], place).is_none()
        });
        if is_known {
            self.inside = KnownMembers::Known(places);
        }
    }

    /// The position of a member that was recorded during the scan. `Some(None)`: the member is known to be missing.
    fn known(&self, name: &str) -> Option<Option<MemberPosition>> {
        let KnownMembers::Known(members) = &self.inside else {
            return None;
        };
        let nth = MEMBERS.iter().position(|it| *it == name)?;
        Some(members[nth])
    }

    /// The value of the member `name`. `None`: this value has no such member, or is no object.
    ///
    /// A member that occurs twice is an error: readers differ in which of the two they use.
    pub(crate) fn member(&self, name: &str) -> Result<Option<Part<'a>>, Malformed> {
        if !self.bytes.starts_with(b"{") {
            return Ok(None);
        }
        if let Some(known) = self.known(name) {
            return Ok(known.and_then(|place| {
                Some(Part {
                    start: self.start + place.range().start,
                    bytes: self.bytes.get(place.range())?,
                    inside: KnownMembers::Unknown,
                })
            }));
        }
        if self.bytes.len() > SEARCH_LIMIT {
            return Err(TOO_LONG);
        }
        let mut found: Option<&RawValue> = None;
        let comes_once = for_each_member(self.text(), |key, raw| {
            key != name || found.replace(raw).is_none()
        });
        match comes_once {
            true => Ok(found.map(|raw| self.inside(raw))),
            false => Err(Malformed::Shape(
                "a key that is needed for routing occurs twice",
            )),
        }
    }

    /// The value at the end of a path of members.
    pub(crate) fn at(&self, path: &[&str]) -> Result<Option<Part<'a>>, Malformed> {
        let mut here = *self;
        for name in path {
            match here.member(name)? {
                Some(next) if *name == "_meta" && next.bytes.len() > META_LIMIT => {
                    return Err(LONG_META);
                }
                Some(next) => here = next,
                None => return Ok(None),
            }
        }
        Ok(Some(here))
    }

    /// Calls `each` with every element of this array, in order; does nothing for other values. Elements are not
    /// collected: an array like `0,0,0` would take many times its length.
    pub(crate) fn for_each_element(&self, mut each: impl FnMut(Part<'a>)) {
        if self.bytes.starts_with(b"[") {
            let mut json = serde_json::Deserializer::from_str(self.text());
            // The line was validated before, so this cannot fail half-way.
            let _ = json.deserialize_seq(Elements(|raw| each(self.inside(raw))));
        }
    }

    /// The unescaped string. `None`: the value is not a string, or its escapes are invalid.
    pub(crate) fn string(&self) -> Option<Cow<'a, str>> {
        if !self.bytes.starts_with(b"\"") {
            return None;
        }
        let text = self.text();
        match text.contains('\\') {
            false => Some(Cow::Borrowed(&text[1..text.len() - 1])),
            true => serde_json::from_str(text).ok().map(Cow::Owned),
        }
    }

    /// The value as an id or a token. `None`: it is neither a string nor a number.
    pub(crate) fn key(&self) -> Option<Key> {
        let id = Id::new(*self).ok()?;
        (self.bytes != b"null").then(|| id.key())
    }

    /// The canonical text of the value: equal values have equal texts, with sorted keys, without white space, and with
    /// one spelling for each string. Numbers keep their spelling, as does a value that is nested very deep or longer than
    /// [`CANONICAL_LIMIT`].
    pub(crate) fn canonical(&self) -> Cow<'a, str> {
        if self.bytes.len() > CANONICAL_LIMIT {
            return Cow::Borrowed(self.text());
        }
        let mut written = String::new();
        write_canonical(self, 0, &mut written);
        Cow::Owned(written)
    }

    /// The same without some members; empty if there are no others.
    pub(crate) fn canonical_without(&self, names: &[&str]) -> String {
        if !self.bytes.starts_with(b"{") {
            return self.canonical().into_owned();
        }
        let mut members = self.members();
        members.retain(|(key, _)| !names.contains(&&**key));
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        let member = |(key, raw): &(Cow<'_, str>, &'a RawValue)| {
            let value = self.inside(raw);
            format!("{}:{}\n", quoted(key), value.canonical())
        };
        members.iter().map(member).collect()
    }

    /// The unescaped keys of this object, sorted; empty if it is no object.
    pub(crate) fn keys(&self) -> Vec<String> {
        let members = self.members().into_iter();
        let mut keys: Vec<_> = members.map(|(key, _)| key.into_owned()).collect();
        keys.sort();
        keys
    }

    fn members(&self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        let mut members = Vec::new();
        if self.bytes.starts_with(b"{") {
            for_each_member(self.text(), |key, raw| {
                members.push((key, raw));
                true
            });
        }
        members
    }

    /// The part for a value inside this one. Its position follows from its address, so that an array with many elements
    /// costs no more than its length.
    fn inside(&self, raw: &'a RawValue) -> Part<'a> {
        let offset = raw.get().as_ptr().addr() - self.bytes.as_ptr().addr();
        Part::new(self.start + offset, raw.get())
    }
}

fn write_canonical(value: &Part<'_>, depth: usize, written: &mut String) {
    const MAX_DEPTH: usize = 64;
    match value.bytes[0] {
        b'{' if depth < MAX_DEPTH => {
            let mut members = value.members();
            // The sort is stable: duplicate keys keep their order.
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            for (nth, (key, raw)) in members.iter().enumerate() {
                written.push_str(if nth == 0 { "{" } else { "," });
                written.push_str(&quoted(key));
                written.push(':');
                write_canonical(&value.inside(raw), depth + 1, written);
            }
            written.push_str(if members.is_empty() { "{}" } else { "}" });
        }
        b'[' if depth < MAX_DEPTH => {
            written.push('[');
            let mut is_first = true;
            value.for_each_element(|element| {
                if !std::mem::take(&mut is_first) {
                    written.push(',');
                }
                write_canonical(&element, depth + 1, written);
            });
            written.push(']');
        }
        b'"' => match value.string() {
            Some(meant) => written.push_str(&quoted(&meant)),
            None => written.push_str(value.text()),
        },
        _ => written.push_str(value.text()),
    }
}

/// Calls `each` with the unescaped key and the value of every member of a validated object. Ends early, with `false`,
/// when `each` returns that.
pub(super) fn for_each_member<'a>(
    object: &'a str,
    each: impl FnMut(Cow<'a, str>, &'a RawValue) -> bool,
) -> bool {
    let mut json = serde_json::Deserializer::from_str(object);
    json.deserialize_map(Members(each)).is_ok()
}

struct Members<F>(F);

impl<'a, F: FnMut(Cow<'a, str>, &'a RawValue) -> bool> Visitor<'a> for Members<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object")
    }

    fn visit_map<M: MapAccess<'a>>(mut self, mut object: M) -> Result<(), M::Error> {
        while let Some(key) = object.next_key_seed(AnyKey)? {
            if !(self.0)(key, object.next_value()?) {
                return Err(M::Error::custom("no more members are wanted"));
            }
        }
        Ok(())
    }
}

/// An unescaped key. A key with invalid escapes equals no name.
struct AnyKey;

impl<'a> DeserializeSeed<'a> for AnyKey {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, key: D) -> Result<Cow<'a, str>, D::Error> {
        Ok(match SpelledKey::of(key)? {
            SpelledKey::Unescaped(key) => Cow::Borrowed(key),
            SpelledKey::Escaped(key) => Cow::Owned(String::from_utf8_lossy(&key).into_owned()),
        })
    }
}

/// A key as spelled. `serde_json` would find its end with code that first queries the features of the processor, which on
/// a virtual machine takes longer than everything else about a session's first line.
enum SpelledKey<'a> {
    Unescaped(&'a str),
    /// The unescaped key, which need not be UTF-8.
    Escaped(Vec<u8>),
}

impl<'a> SpelledKey<'a> {
    fn of<D: Deserializer<'a>>(key: D) -> Result<SpelledKey<'a>, D::Error> {
        let quoted = <&RawValue>::deserialize(key)?.get();
        match quoted.contains('\\') {
            false => Ok(SpelledKey::Unescaped(&quoted[1..quoted.len() - 1])),
            true => serde_json::Deserializer::from_str(quoted)
                .deserialize_bytes(Bytes)
                .map(SpelledKey::Escaped)
                .map_err(Error::custom),
        }
    }
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key")
    }

    fn visit_bytes<E>(self, key: &[u8]) -> Result<Vec<u8>, E> {
        Ok(key.to_vec())
    }
}

struct Elements<F>(F);

impl<'a, F: FnMut(&'a RawValue)> Visitor<'a> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array")
    }

    fn visit_seq<S: SeqAccess<'a>>(mut self, mut array: S) -> Result<(), S::Error> {
        while let Some(raw) = array.next_element()? {
            (self.0)(raw);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::{Line, Message, Scan};
    use super::*;

    thread_local! {
        /// Number of bytes that this thread validated again as UTF-8.
        pub(super) static EXAMINED: Cell<usize> = const { Cell::new(0) };
    }

    fn elements<'a>(array: &Part<'a>) -> Vec<Part<'a>> {
        let mut elements = Vec::new();
        array.for_each_element(|element| elements.push(element));
        elements
    }

    #[test]
    fn elements_of_a_long_array_cost_no_more_than_its_length() {
        let examined = |count: usize| {
            let array = format!("[{}{{}}]", r#"{"name":"x"},"#.repeat(count));
            let before = EXAMINED.get();
            part(&array).for_each_element(|tool| {
                tool.member("name").unwrap();
            });
            assert!(!part(&array).canonical().is_empty());
            EXAMINED.get() - before
        };
        let (once, four_times) = (examined(1000), examined(4000));
        // Quadratic cost would make it sixteen times as much.
        assert!(four_times < 5 * once, "{once} bytes, then {four_times}");
    }

    #[test]
    fn a_very_long_value_is_not_searched() {
        let members = |length: usize| format!("{{{}\"b\":1}}", "\"a\":0,".repeat(length / 6));
        let long = members(SEARCH_LIMIT);
        let before = EXAMINED.get();
        assert_eq!(part(&long).member("b"), Err(TOO_LONG));
        assert_eq!(part(&long).search_at(&["b"]), Err(TOO_LONG));
        assert_eq!(EXAMINED.get(), before);
        assert!(part(&members(1000)).member("b").unwrap().is_some());
        // A long value is not searched if the member's position was recorded.
        let line = |meta: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"m","params":{{"x":{long},"\u005fmeta":{meta}}}}}"#
            )
        };
        for (meta, found) in [
            (members(1000), Ok(true)),
            (members(META_LIMIT), Err(LONG_META)),
        ] {
            let line = line(&meta);
            let mut scan = Scan::default();
            scan.scan(line.as_bytes());
            let message = Message::parse(Line::scanned(line.as_bytes(), &scan));
            let Ok(Message::Notification(message)) = message else {
                panic!("a notification");
            };
            let before = EXAMINED.get();
            let at = message.params.unwrap().search_at(&["_meta", "b"]);
            assert_eq!(at.map(|it| it.is_some()), found);
            assert!(EXAMINED.get() - before < 10_000);
        }
    }

    #[test]
    fn a_value_past_the_limit_is_compared_as_it_is_spelled() {
        let long = format!("[ {}0]", "0,".repeat(CANONICAL_LIMIT / 2));
        assert_eq!(part(&long).canonical(), long);
    }

    fn part(text: &str) -> Part<'_> {
        Part::new(100, text)
    }

    #[test]
    fn a_member_is_found_by_what_its_key_means_and_where_it_stands() {
        let object = part(r#"{"\ud800":1, "a\/b" : {"c": [ 7 ]} }"#);
        let inner = object.member("a/b").unwrap().unwrap();
        assert_eq!(inner.text(), r#"{"c": [ 7 ]}"#);
        assert_eq!(
            inner.range().start,
            100 + object.text().find("{\"c\"").unwrap()
        );
        let seven = object.at(&["a/b", "c"]).unwrap().unwrap();
        let seven = elements(&seven)[0];
        assert_eq!(seven.text(), "7");
        assert_eq!(seven.range().start, 100 + object.text().find('7').unwrap());
        assert_eq!(object.member("x"), Ok(None));
        assert_eq!(part("[1]").member("x"), Ok(None));
        assert_eq!(object.at(&["a/b", "c", "d"]), Ok(None));
    }

    #[test]
    fn a_member_that_comes_twice_is_an_error_and_others_may() {
        let object = part(r#"{"a":1,"b":2,"\u0061":{"x":[]},"c":3,"\ud800":0}"#);
        assert!(object.member("a").is_err());
        assert!(object.member("c").unwrap().is_some());
    }

    #[test]
    fn what_was_seen_on_the_way_is_what_a_search_finds() {
        let inside = [
            r#"{"_meta":{"t":1},"x":{"_meta":2,"task":3},"task":{"taskId":"a"}}"#,
            r#"{"x":[{"task":1}],"y":{"_meta":{}}}"#,
            r#"{"\u005fmeta":{"t":1}}"#,
            r#"{"\u005fmeta":{"\u0074":1},"\u0074ask":{"t\u0061skId":"a"}}"#,
            r#"{"_meta":{"t":1},"_meta":{"t":2}}"#,
            r#"[{"_meta":{"t":1}}]"#,
            r#"{}"#,
            "null",
        ];
        for params in inside {
            let line = format!(r#"{{"params":{params},"jsonrpc":"2.0","method":"m"}}"#);
            let Ok(Message::Notification(message)) = Message::parse(line.as_bytes()) else {
                panic!("{line}")
            };
            let seen = message.params.unwrap();
            let searched = Part::new(seen.start, params);
            for name in ["_meta", "task", "x"] {
                assert_eq!(seen.member(name), searched.member(name), "{params} {name}");
            }
            for path in [["_meta", "t"], ["task", "taskId"]] {
                assert_eq!(seen.search_at(&path), searched.at(&path), "{params}");
            }
            let has_task = !matches!(searched.member("task"), Ok(None));
            assert!(seen.may_have("task") || !has_task, "{params}");
        }
    }

    #[test]
    fn two_spellings_of_one_value_have_one_canonical_text() {
        let one = part(r#"{ "b":[1, "\u0061\/"], "a":{} }"#);
        let other = part(r#"{"a":{},"b":[1,"a/"]}"#);
        assert_eq!(one.canonical(), other.canonical());
        assert_ne!(part("[1,2]").canonical(), part("[2,1]").canonical());
        assert_ne!(part("1").canonical(), part(r#""1""#).canonical());
    }

    #[test]
    fn nesting_beyond_reason_costs_no_stack() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(!part(&deep).canonical().is_empty());
    }
}
