//! Ids of requests.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::token::is_number;
use super::{Malformed, Part};

/// The largest integer that every reader preserves: a double does not distinguish larger ones.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// An id as spelled in a line: a string, a number or `null`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id<'a>(Part<'a>);

impl<'a> Id<'a> {
    pub(super) fn new(part: Part<'a>) -> Result<Id<'a>, Malformed> {
        match part.bytes {
            [b'"' | b'-' | b'0'..=b'9', ..] | b"null" => Ok(Id(part)),
            _ => Err(Malformed::Shape(
                "its id is neither a string, a number nor null",
            )),
        }
    }

    /// Parses an id that is not part of a line.
    pub(crate) fn from_text(text: &'a str) -> Option<Id<'a>> {
        Id::new(Part::new(0, text)).ok()
    }

    /// The bytes as spelled, quotes included: a response must contain them.
    pub fn raw(&self) -> &'a [u8] {
        self.0.bytes()
    }

    /// Its position in the line.
    pub fn part(&self) -> Part<'a> {
        self.0
    }

    /// Whether a request may have this id: a string or an integer. Some SDKs silently drop requests with other ids
    /// (`null`, `1.5`, `1e3`).
    pub fn is_acceptable(&self) -> bool {
        self.key().is_acceptable()
    }

    /// The value of the id, for comparison: a server may answer `"a\/b"` as `"a/b"`.
    pub fn key(&self) -> Key {
        if let Some(number) = short_number(self.0.bytes) {
            return Key::Number(number);
        }
        let text = self.0.text();
        let known = match text.as_bytes()[0] {
            b'"' if !text.contains('\\') => Some(Key::Text(text[1..text.len() - 1].into())),
            // An escaped half of a surrogate pair is not valid Unicode, and some readers refuse it.
            b'"' => serde_json::from_str(text).ok().map(Key::Text),
            _ => text
                .parse()
                .ok()
                .filter(|number: &i64| number.unsigned_abs() <= MAX_SAFE_INTEGER)
                .map(Key::Number),
        };
        known.unwrap_or_else(|| Key::Odd(text.into()))
    }
}

/// Parses the usual id: a short count.
fn short_number(text: &[u8]) -> Option<i64> {
    // Every number of this many digits is below `MAX_SAFE_INTEGER`.
    const DIGITS: usize = 15;
    if !(1..=DIGITS).contains(&text.len()) {
        return None;
    }
    let mut digits = text.iter();
    digits.try_fold(0, |number, digit| match digit {
        b'0'..=b'9' => Some(10 * number + i64::from(digit - b'0')),
        _ => None,
    })
}

/// The value of an id. `1` and `"1"` differ; `"a"` and `"\u0061"` do not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Key {
    /// An integer that every SDK accepts.
    Number(i64),
    /// A string.
    Text(Box<str>),
    /// An integer that no double can represent, or an id that some SDKs drop, as spelled.
    Odd(Box<str>),
}

impl Key {
    /// The key for the spelling of an id, quotes included. `None`: the bytes are not an id.
    pub fn of(spelled: &[u8]) -> Option<Key> {
        let raw: &RawValue = serde_json::from_slice(spelled).ok()?;
        Id::from_text(raw.get()).map(|id| id.key())
    }
}

impl Key {
    /// Whether a request may have this id: a string or an integer.
    pub fn is_acceptable(&self) -> bool {
        match self {
            Key::Number(_) | Key::Text(_) => true,
            Key::Odd(text) => text
                .bytes()
                .all(|byte| byte == b'-' || byte.is_ascii_digit()),
        }
    }

    /// Length of the id's text in bytes.
    pub(crate) fn length(&self) -> usize {
        match self {
            Key::Number(_) => 0,
            Key::Text(text) | Key::Odd(text) => text.len(),
        }
    }

    /// The number that the id is for a reader that accepts `"1"` and `1.0` as `1`, like the official clients.
    pub fn as_number(&self) -> Option<f64> {
        let text = match self {
            Key::Number(number) => return Some(*number as f64),
            Key::Text(text) | Key::Odd(text) => text.trim_ascii(),
        };
        let number = match is_number(text.as_bytes()) {
            true => text.parse().ok(),
            false => None,
        };
        number.filter(|it: &f64| it.is_finite())
    }

    /// The number of the id, if it is an integer that a double represents exactly.
    pub fn as_integer(&self) -> Option<i64> {
        let number = self.as_number()?;
        let is_exact = number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER as f64;
        is_exact.then_some(number as i64)
    }

    /// The other usual spellings of the same integer: as a number and as a string.
    pub(crate) fn same_integer(&self) -> impl Iterator<Item = Key> {
        let integer = self.as_integer();
        let number = integer.map(Key::Number);
        let text = integer.map(|it| Key::Text(it.to_string().into()));
        number.into_iter().chain(text).filter(move |it| it != self)
    }
}

/// Maximum digits of an integer that is compared as a number.
const MAX_DIGITS: usize = 32;
/// Maximum number of such integers.
const MAX_LARGE_INTEGERS: usize = 64;

/// The only id in `pending` with the same number as `key`, for a peer that answers `1` as `"1"` or `1.0`. `None`: no id
/// or several ids match. For an id without an exact match.
pub(crate) fn only_same_number<'m, V>(
    pending: &'m BTreeMap<Key, V>,
    key: &Key,
    such: impl Fn(&V) -> bool,
) -> Option<&'m Key> {
    let number = key.as_number()?;
    let usual = key.same_integer();
    let usual = usual.filter_map(|it| pending.get_key_value(&it));
    // Integers that no double represents: a server may answer with the nearest one. Very long ones are skipped, and if
    // there are very many, all are: a peer must not cause much work.
    let short = |(it, _): &(&Key, &V)| it.length() <= MAX_DIGITS;
    let odd = || pending.range(Key::Odd("".into())..).filter(short);
    let few = odd().nth(MAX_LARGE_INTEGERS).is_none();
    let large = odd().take(if few { MAX_LARGE_INTEGERS } else { 0 });
    let large = large.filter(|(it, _)| it.as_number() == Some(number));
    let mut found = usual.chain(large).filter(|(_, value)| such(value));
    let (only, _) = found.next()?;
    found.next().is_none().then_some(only)
}

/// For logs: a long id is cut.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN: usize = 64;
        match self {
            Key::Number(number) => write!(f, "{number}"),
            Key::Text(text) => write!(f, "{:?}", text.chars().take(MAX_SHOWN).collect::<String>()),
            Key::Odd(text) => write!(f, "{}", text.chars().take(MAX_SHOWN).collect::<String>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id<'_> {
        Id::new(Part::new(0, text)).expect("an id")
    }

    #[test]
    fn ids_that_some_sdk_drops_are_not_acceptable() {
        for text in [
            "0",
            "-0",
            "1",
            "-7",
            "9007199254740991",
            "-9007199254740991",
        ] {
            assert!(id(text).is_acceptable(), "{text}");
        }
        for text in [r#""""#, r#""1""#, r#""\u00e9\/""#, r#""\ud83d\ude00""#] {
            assert!(id(text).is_acceptable(), "{text}");
        }
        for text in [
            "9007199254740992",
            "9007199254740993",
            "-9007199254740992",
            "9223372036854775808",
            "-9223372036854775808",
            "123456789012345678901234567890",
        ] {
            assert!(id(text).is_acceptable(), "{text}");
        }
        for text in ["null", "1.5", "1.0", "1e3", "1E0", "1e999", r#""\ud800""#] {
            assert!(!id(text).is_acceptable(), "{text}");
        }
    }

    #[test]
    fn a_number_is_not_a_string_but_two_spellings_are_one_string() {
        assert_ne!(id("1").key(), id(r#""1""#).key());
        assert_ne!(id("null").key(), id(r#""null""#).key());
        assert_ne!(id("1.5").key(), id("1.50").key());
        assert_eq!(id(r#""a/\u00e9""#).key(), id(r#""\u0061\/é""#).key());
        assert_eq!(id("-0").key(), id("0").key());
    }

    #[test]
    fn an_id_by_itself_means_what_it_means_in_a_line() {
        assert_eq!(Key::of(b"7"), Some(Key::Number(7)));
        assert_eq!(Key::of(br#""a\/b""#), Some(Key::Text("a/b".into())));
        for none in [&b"\""[..], b"", b"7 8", b"{}", b"true", b"\"\xff\""] {
            assert_eq!(Key::of(none), None);
        }
    }

    #[test]
    fn ids_are_compared_as_numbers_when_asked_to() {
        for text in [r#""1""#, "1.0", "1e0", "10E-1", r#"" 1 ""#, r#""1.0""#] {
            assert_eq!(id(text).key().as_integer(), Some(1), "{text}");
        }
        for text in [
            r#""""#, r#""a""#, "null", "1.5", r#""0x1""#, r#""1 2""#, "1e999",
        ] {
            assert_eq!(id(text).key().as_integer(), None, "{text}");
        }
        let large = "9007199254740993";
        assert_eq!(id(large).key().as_integer(), None);
        assert_eq!(
            id(large).key().as_number(),
            id("9007199254740992").key().as_number()
        );
    }

    #[test]
    fn the_only_pending_id_with_the_same_number_is_found() {
        let pending = |ids: &[&str]| ids.iter().map(|it| (id(it).key(), ())).collect();
        let found = |ids: &[&str], key: &str| {
            let pending: BTreeMap<Key, ()> = pending(ids);
            only_same_number(&pending, &id(key).key(), |()| true).cloned()
        };
        assert_eq!(found(&["1", "2"], r#""1""#), Some(Key::Number(1)));
        assert_eq!(found(&["1", "2"], "2.0"), Some(Key::Number(2)));
        assert_eq!(found(&[r#""1""#], "1"), Some(Key::Text("1".into())));
        assert_eq!(found(&["1", r#""1""#], "1.0"), None);
        assert_eq!(found(&["1"], r#""3""#), None);
        assert_eq!(found(&["0"], "null"), None);
        assert_eq!(found(&["0"], r#""""#), None);
        assert_eq!(
            found(&["9007199254740993"], "9007199254740992"),
            Some(Key::Odd("9007199254740993".into()))
        );
    }

    #[test]
    fn very_long_or_very_many_integers_are_not_compared_as_numbers() {
        let found = |ids: &[String], key: &str| {
            let pending: BTreeMap<Key, ()> = ids.iter().map(|it| (id(it).key(), ())).collect();
            only_same_number(&pending, &id(key).key(), |()| true).is_some()
        };
        let odd = |digits: usize| format!("9{}", "0".repeat(digits - 1));
        assert!(found(&[odd(32)], "9e31"));
        assert!(!found(&[odd(33)], "9e32"));
        let many: Vec<String> = (0..65)
            .map(|it| format!("90000000000000000{it:02}"))
            .collect();
        assert!(found(&many[..64], "1e0") == found(&many[..1], "1e0"));
        assert!(found(&[&many[..63], &[odd(20)]].concat(), "9e19"));
        assert!(!found(&[&many[..64], &[odd(20)]].concat(), "9e19"));
    }

    #[test]
    fn an_id_is_a_string_a_number_or_null() {
        for text in ["true", "false", "{}", "[]", "[1]"] {
            let refused = Id::new(Part::new(0, text));
            assert!(matches!(refused, Err(Malformed::Shape(_))), "{text}");
        }
    }

    #[test]
    fn a_key_in_a_log_line_is_short_and_has_no_control_characters() {
        assert_eq!(id("7").key().to_string(), "7");
        assert_eq!(id(r#""a\nb""#).key().to_string(), r#""a\nb""#);
        let long = format!("\"{}\"", "x".repeat(1000));
        assert_eq!(id(&long).key().to_string().len(), 66);
    }
}
