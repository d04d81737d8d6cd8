//! What an answer is known by.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Malformed, Part};

/// The largest integer that every reader takes for itself: past it a double cannot tell neighbours.
const LARGEST: u64 = (1 << 53) - 1;

/// An id as it stands in a line: a string, a number or `null`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id<'a>(Part<'a>);

impl<'a> Id<'a> {
    pub(super) fn new(part: Part<'a>) -> Result<Id<'a>, Malformed> {
        match part.bytes {
            [b'"' | b'-' | b'0'..=b'9', ..] | b"null" => Ok(Id(part)),
            _ => Err(Malformed::Shape("its id is no string, number or null")),
        }
    }

    /// An id that stands for itself, in no line.
    pub(super) fn alone(text: &'a str) -> Option<Id<'a>> {
        Id::new(Part::new(0, text)).ok()
    }

    /// The bytes as they stand, quotes included: what an answer must carry.
    pub fn raw(&self) -> &'a [u8] {
        self.0.bytes()
    }

    /// Where it is in the line.
    pub fn part(&self) -> Part<'a> {
        self.0
    }

    /// Whether every SDK takes it: a string, or an integer that a double holds exactly. Of others
    /// (`null`, `1.5`, `1e3`, 9007199254740993) the answers are silently dropped by some.
    pub fn is_acceptable(&self) -> bool {
        !matches!(self.key(), Key::Odd(_))
    }

    /// What it means, to be compared: a server may answer `"a\/b"` as `"a/b"`.
    pub fn key(&self) -> Key {
        if let Some(number) = short_number(self.0.bytes) {
            return Key::Number(number);
        }
        let text = self.0.text();
        let known = match text.as_bytes()[0] {
            b'"' if !text.contains('\\') => Some(Key::Text(text[1..text.len() - 1].into())),
            // An escaped half of a surrogate pair means no text, and is refused as such by some.
            b'"' => serde_json::from_str(text).ok().map(Key::Text),
            _ => text
                .parse()
                .ok()
                .filter(|number: &i64| number.unsigned_abs() <= LARGEST)
                .map(Key::Number),
        };
        known.unwrap_or_else(|| Key::Odd(text.into()))
    }
}

/// What most ids are: a count.
fn short_number(text: &[u8]) -> Option<i64> {
    // As many digits as every number up to `LARGEST` may have.
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

/// What an id means. `1` and `"1"` differ; `"a"` and `"\u0061"` do not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Key {
    /// An integer every SDK takes.
    Number(i64),
    /// A string.
    Text(Box<str>),
    /// An id that some SDKs drop, as it was spelled.
    Odd(Box<str>),
}

impl Key {
    /// What an id means that stands for itself, quotes included. `None`: it is no id.
    pub fn of(spelled: &[u8]) -> Option<Key> {
        let raw: &RawValue = serde_json::from_slice(spelled).ok()?;
        Id::alone(raw.get()).map(|id| id.key())
    }
}

/// As one would write it down in a log: a long one is cut.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ENOUGH: usize = 64;
        match self {
            Key::Number(number) => write!(f, "{number}"),
            Key::Text(text) => write!(f, "{:?}", text.chars().take(ENOUGH).collect::<String>()),
            Key::Odd(text) => write!(f, "{}", text.chars().take(ENOUGH).collect::<String>()),
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
        for text in ["null", "1.5", "1.0", "1e3", "1E0", "9007199254740992"] {
            assert!(!id(text).is_acceptable(), "{text}");
        }
        for text in [
            "9007199254740993",
            "-9007199254740992",
            "1e999",
            r#""\ud800""#,
        ] {
            assert!(!id(text).is_acceptable(), "{text}");
        }
        assert!(!id("9223372036854775808").is_acceptable());
        assert!(!id("-9223372036854775808").is_acceptable());
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
