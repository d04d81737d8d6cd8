//! Parses a line into its parts.
//!
//! Values are skipped, by [`Scan`](super::Scan) or as borrowed [`RawValue`]s: checked to the last byte, without recursion
//! (a line of a million brackets costs no stack) and without a copy.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::fast_path;
use super::line::has_separators;
use super::member::{SEARCH_LIMIT, for_each_member};
use super::scan::KEYS;
use super::{
    BATCH_LIMIT, Batch, Id, Line, Malformed, Member, Message, Method, Notification, Outcome, Part,
    Request, Response,
};

pub(super) fn parse(line: Line<'_>) -> Result<Message<'_>, Malformed> {
    // Filled where it is: to hand it on would cost as much as to find a part of it.
    let mut envelope = Envelope::default();
    match well_formed(line, &mut envelope) {
        Some(()) => envelope.message(),
        None => parse_any(line.bytes, false),
    }
}

/// The same, but refuses a line that some readers would end before its end; and one with keys that are the envelope's
/// to some readers only, if it `is_exact`.
pub(super) fn parse_as_one(line: Line<'_>, is_exact: bool) -> Result<Message<'_>, Malformed> {
    let mut envelope = Envelope::default();
    match well_formed(line, &mut envelope) {
        Some(()) if !envelope.may_have_separators => envelope.message(),
        seen => parse_further(line, seen.map(|()| &envelope), is_exact),
    }
}

/// Parses a line that may have separators, or that the fast path refused, for example because of misspelled keys.
#[cold]
fn parse_further<'a>(
    line: Line<'a>,
    seen: Option<&Envelope<'a>>,
    is_exact: bool,
) -> Result<Message<'a>, Malformed> {
    let message = match seen {
        Some(envelope) => envelope.message()?,
        None => parse_any(line.bytes, is_exact)?,
    };
    // What was looked at while it came is known to have some.
    match seen.is_some() && line.scan.is_some() || has_separators(line.bytes) {
        true => Err(Malformed::Newline),
        false => Ok(message),
    }
}

/// Fills the envelope of a line that is as most are, by the scanner that has seen its beginning, or by the fast path.
fn well_formed<'a>(line: Line<'a>, envelope: &mut Envelope<'a>) -> Option<()> {
    let Some(scan) = line.scan else {
        return fast_path::envelope(line.bytes, envelope);
    };
    let mut scan = scan.clone();
    scan.scan(line.bytes);
    scan.envelope(line.bytes, envelope)
}

/// Parses any line, or reports its error.
fn parse_any(line: &[u8], is_exact: bool) -> Result<Message<'_>, Malformed> {
    if line.contains(&b'\n') {
        return Err(Malformed::Newline);
    }
    let text = str::from_utf8(line).map_err(|error| Malformed::NotText {
        at: error.valid_up_to(),
    })?;
    match line.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => parse_object(text, text, is_exact),
        Some(b'[') => parse_batch(text, is_exact),
        Some(b'!') => Err(Malformed::Reserved),
        _ => Err(match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => Malformed::Shape("neither an object nor an array"),
            Err(error) => not_json(&error, 0),
        }),
    }
}

/// The `requestId` in `params`, if `params` is an object that has one.
pub(super) fn request_id(params: Part<'_>) -> Option<Result<Id<'_>, Malformed>> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, default, deserialize_with = "present", rename = "requestId")]
        request_id: Option<&'a RawValue>,
    }

    if !params.bytes.starts_with(b"{") {
        return None;
    }
    if params.bytes.len() > SEARCH_LIMIT {
        return Some(Err(Malformed::Shape("its params are too long")));
    }
    let Ok(known) = serde_json::from_str::<Params<'_>>(params.text()) else {
        return Some(Err(Malformed::Shape("requestId occurs twice")));
    };
    let part = part_of(params.text(), known.request_id?);
    let start = params.start + part.start;
    Some(Id::new(Part { start, ..part }))
}

/// The parts of a message's envelope, as far as they are present.
#[derive(Default)]
pub(super) struct Envelope<'a> {
    jsonrpc: Option<Part<'a>>,
    id: Option<Part<'a>>,
    method: Option<Part<'a>>,
    params: Option<Part<'a>>,
    result: Option<Part<'a>>,
    error: Option<Part<'a>>,
    /// It has a carriage return, or may have other line separators: only then is it searched for them.
    pub(super) may_have_separators: bool,
}

/// Whether some readers take this key for an envelope key, although it is spelled differently: Go's `encoding/json`
/// ignores case and takes the long s for an s, and the Go SDK 1.4.0 ignores NULs at the end.
#[cold]
pub(super) fn is_misspelled(key: &[u8]) -> bool {
    // The longest, with a character of two bytes for one of its letters.
    const MAX_KEY: usize = "jsonrpc".len() + 1;
    let nuls = key.iter().rev().take_while(|byte| **byte == 0).count();
    let meant = &key[..key.len() - nuls];
    if meant.len() > MAX_KEY {
        return false;
    }
    let meant = String::from_utf8_lossy(meant).replace('\u{17f}', "s");
    let is_meant = |it: &[u8]| meant.as_bytes().eq_ignore_ascii_case(it);
    KEYS.iter().any(|it| *it != key && is_meant(it))
}

impl<'a> Envelope<'a> {
    /// The place for a key's value; `None` if the key is not an envelope key.
    pub(super) fn part_mut(&mut self, key: &[u8]) -> Option<&mut Option<Part<'a>>> {
        match key {
            b"jsonrpc" => Some(&mut self.jsonrpc),
            b"id" => Some(&mut self.id),
            b"method" => Some(&mut self.method),
            b"params" => Some(&mut self.params),
            b"result" => Some(&mut self.result),
            b"error" => Some(&mut self.error),
            _ => None,
        }
    }

    fn message(&self) -> Result<Message<'a>, Malformed> {
        if !self.jsonrpc.is_some_and(is_version_2) {
            return Err(Malformed::Shape("its jsonrpc is not \"2.0\""));
        }
        let id = self.id.map(Id::new).transpose()?;
        match (self.method, outcome(self.result, self.error)?) {
            (Some(_), Some(_)) => Err(Malformed::Shape("both a method and an outcome")),
            (None, None) => Err(Malformed::Shape("neither a method nor an outcome")),
            (Some(method), None) => {
                if !method.bytes.starts_with(b"\"") {
                    return Err(Malformed::Shape("its method is not a string"));
                }
                let method = Method(method);
                let params = self.params;
                if !params.is_none_or(|params| matches!(params.bytes, [b'{' | b'[' | b'n', ..])) {
                    return Err(Malformed::Shape(
                        "its params are neither an object nor an array",
                    ));
                }
                Ok(match id {
                    Some(id) => Message::Request(Request { id, method, params }),
                    None => Message::Notification(Notification { method, params }),
                })
            }
            (None, Some(Outcome::Result(_))) if id.is_none() => {
                Err(Malformed::Shape("a result without an id"))
            }
            (None, Some(outcome)) => Ok(Message::Response(Response { id, outcome })),
        }
    }
}

/// Reads a member that is present, even if its value is `null`.
fn present<'a, D: Deserializer<'a>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// `object` is a slice of `line`.
fn parse_object<'a>(
    line: &'a str,
    object: &'a str,
    is_exact: bool,
) -> Result<Message<'a>, Malformed> {
    // All of it, for keys are not judged below: they may mean no text.
    serde_json::from_str::<&RawValue>(object)
        .map_err(|error| not_json(&error, offset(line, object)))?;
    let mut envelope = Envelope::default();
    let mut has_misspelled = false;
    let comes_once = for_each_member(object, |key, raw| {
        let mut value = part_of(line, raw);
        if matches!(&*key, "params" | "result") {
            value.record_members();
        }
        has_misspelled |= is_misspelled(key.as_bytes());
        let place = envelope.part_mut(key.as_bytes());
        place.is_none_or(|place| place.replace(value).is_none())
    });
    if !comes_once {
        return Err(Malformed::Shape("an envelope key occurs twice"));
    }
    if is_exact && has_misspelled {
        return Err(Malformed::Shape(
            "some readers take one of its keys for an envelope key, others do not",
        ));
    }
    envelope.message()
}

fn parse_batch(line: &str, is_exact: bool) -> Result<Message<'_>, Malformed> {
    struct Members<'a, 'r> {
        line: &'a str,
        is_exact: bool,
        refused: &'r mut Option<Malformed>,
    }

    impl<'a> Visitor<'a> for Members<'a, '_> {
        type Value = Vec<Member<'a>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array")
        }

        /// Member by member, so that a long array of nonsense ends at its first.
        fn visit_seq<A: SeqAccess<'a>>(self, mut array: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(raw) = array.next_element::<&'a RawValue>()? {
                let parsed = match raw.get().as_bytes()[0] {
                    _ if members.len() == BATCH_LIMIT => Err(Malformed::LongBatch),
                    b'{' => parse_object(self.line, raw.get(), self.is_exact),
                    _ => Err(Malformed::Shape("a member of a batch is not an object")),
                };
                match parsed {
                    Ok(message) => members.push(Member {
                        whole: part_of(self.line, raw),
                        message,
                    }),
                    Err(why) => {
                        *self.refused = Some(why);
                        return Err(A::Error::custom("see `refused`"));
                    }
                }
            }
            Ok(members)
        }
    }

    let mut refused = None;
    let mut json = serde_json::Deserializer::from_str(line);
    let members = json
        .deserialize_seq(Members {
            line,
            is_exact,
            refused: &mut refused,
        })
        .and_then(|members| json.end().map(|()| members));
    match members {
        Ok(members) if members.is_empty() => Err(Malformed::Shape("an empty batch")),
        Ok(members) => Ok(Message::Batch(Batch { members })),
        Err(error) => Err(refused.unwrap_or_else(|| not_json(&error, 0))),
    }
}

/// The outcome of a response. A `null` beside the other member does not count: some servers write both.
fn outcome<'a>(
    result: Option<Part<'a>>,
    error: Option<Part<'a>>,
) -> Result<Option<Outcome<'a>>, Malformed> {
    match (result, error) {
        (None, None) => Ok(None),
        (Some(result), None) => Ok(Some(Outcome::Result(result))),
        (Some(result), Some(error)) if error.bytes == b"null" => Ok(Some(Outcome::Result(result))),
        (Some(result), Some(_)) if result.bytes != b"null" => {
            Err(Malformed::Shape("both a result and an error"))
        }
        (_, Some(error)) if !error.bytes.starts_with(b"{") => {
            Err(Malformed::Shape("its error is not an object"))
        }
        (_, Some(error)) => Ok(Some(Outcome::Error(error))),
    }
}

fn is_version_2(part: Part<'_>) -> bool {
    let means_it = |text| serde_json::from_str::<String>(text).is_ok_and(|meant| meant == "2.0");
    part.bytes == b"\"2.0\"" || means_it(part.text())
}

fn part_of<'a>(line: &'a str, raw: &'a RawValue) -> Part<'a> {
    let text = raw.get();
    let start = offset(line, text);
    Part::new(start, text)
}

/// Position of `text`, a slice of `line`.
fn offset(line: &str, text: &str) -> usize {
    text.as_ptr().addr() - line.as_ptr().addr()
}

fn not_json(error: &serde_json::Error, offset: usize) -> Malformed {
    // One line, so its column is the place.
    let at = offset + error.column();
    Malformed::NotJson { at }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Outline, Scan};
    use super::*;

    fn fast(line: &str) -> Option<Envelope<'_>> {
        let mut envelope = Envelope::default();
        well_formed(line.as_bytes().into(), &mut envelope).map(|()| envelope)
    }

    /// What lines are made of, well-formed and not.
    const SCRAPS: [&str; 58] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        " ",
        "\t",
        "\r",
        "\n",
        "\u{b}",
        "\u{c}",
        "\u{7f}",
        "\u{a0}",
        "\"jsonrpc\"",
        "\"2.0\"",
        "\"id\"",
        "\"\\u0069d\"",
        "\"method\"",
        "\"params\"",
        "\"result\"",
        "\"error\"",
        "\"x\"",
        "\"\"",
        "\"",
        "\"a\\\"b\"",
        "\"\\\\\"",
        "\"\\ud800\"",
        "\"\\u12\"",
        "\"\\x\"",
        "\"\u{1}\"",
        "\"\t\"",
        "\"é€😀\"",
        "\\",
        "0",
        "-",
        "-0",
        "01",
        "1",
        "12.5",
        "1.",
        ".5",
        "1e9",
        "1E+",
        "1e-7",
        "1.5E+3",
        "true",
        "tru",
        "false",
        "null",
        "nul",
        "NaN",
        "[]",
        "{}",
        "{\"a\":[1,{}]}",
        "[[1,2],3]",
        "\"0123456789abcdef0123456789abcdef\"",
        "!",
    ];

    /// What is known of the beginning is what an outline would know of it.
    fn same_outline(line: &[u8], end: usize, scan: &Scan) -> Result<(), TestCaseError> {
        let (mut known, read) = scan.outline(&line[..end]);
        known.feed(&line[read..]);
        let mut outline = Outline::default();
        outline.feed(line);
        let seen = |it: &Outline| (it.id(), it.has_method(), it.has_outcome());
        let text = String::from_utf8_lossy(line);
        prop_assert_eq!(seen(&known), seen(&outline), "{:?} at {}", text, end);
        prop_assert_eq!(known.into_elements(), outline.into_elements(), "{:?}", text);
        Ok(())
    }

    #[test]
    fn of_a_line_that_is_refused_late_nothing_is_read_again_for_its_id() {
        for odd in ["NaN", "\"\u{1}\"", "1} x", "{\"a\":tru"] {
            let long = "\"k\":[0],".repeat(10_000);
            let line = format!(r#"{{"id":7,"result":{{{long}"z":0}},"x":{odd},"y":1}}"#);
            let mut scan = Scan::default();
            scan.scan(line.as_bytes());
            assert!(scan.is_refused(), "{odd}");
            let (mut outline, read) = scan.outline(line.as_bytes());
            assert!(line.len() - read < 30, "{odd}: {read} of {}", line.len());
            outline.feed(&line.as_bytes()[read..]);
            assert_eq!(outline.id().as_deref(), Some("7"), "{odd}");
            assert!(outline.has_outcome());
        }
    }

    /// Also in as many parts as it has bytes.
    fn same_both_ways(line: &str) -> Result<(), TestCaseError> {
        let mut scan = Scan::default();
        for end in 0..line.len() {
            scan.scan(&line.as_bytes()[..end]);
            same_outline(line.as_bytes(), end, &scan)?;
        }
        let in_parts = parse(Line::scanned(line.as_bytes(), &scan));
        prop_assert_eq!(in_parts, parse(line.as_bytes().into()), "{:?}", line);
        if let Some(envelope) = fast(line) {
            let with_care = parse_any(line.as_bytes(), false);
            prop_assert_eq!(envelope.message(), with_care, "{:?}", line);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn the_fast_path_reads_what_serde_reads(
            scraps in prop::collection::vec(prop::sample::select(&SCRAPS[..]), 0..24),
        ) {
            same_both_ways(&scraps.concat())?;
            same_both_ways(&format!("{{{}}}", scraps.concat()))?;
        }

        #[test]
        fn a_line_with_one_scrap_too_many_or_a_byte_too_few_is_the_same_with_care(
            values in prop::collection::vec(prop::sample::select(&SCRAPS[..]), 3),
            scrap in prop::sample::select(&SCRAPS[..]),
            at in any::<prop::sample::Index>(),
        ) {
            let line = format!(
                r#"{{"jsonrpc": "2.0","id":{},"method" :"m","params":{{"a":[{}],"b":{{"c":{}}}}}}}"#,
                values[0], values[1], values[2],
            );
            same_both_ways(&line)?;
            let mut at = at.index(line.len());
            while !line.is_char_boundary(at) {
                at -= 1;
            }
            let (before, behind) = line.split_at(at);
            same_both_ways(&format!("{before}{scrap}{behind}"))?;
            let mut rest = behind.chars();
            rest.next();
            same_both_ways(&format!("{before}{}", rest.as_str()))?;
        }
    }

    #[test]
    fn every_byte_of_ascii_and_every_key_twice_is_the_same_with_care() {
        let whole = |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
        for byte in (0..=127).map(char::from) {
            for around in ["", "x", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"] {
                let line = whole(&format!(
                    r#"{{"{around}{byte}{around}":1{byte},"\{byte}":2}}"#
                ));
                same_both_ways(&line).unwrap();
                same_both_ways(&whole(&format!(r#"["{around}{byte}{around}"]"#))).unwrap();
            }
        }
        for key in [
            "jsonrpc", "id", "method", "params", "result", "error", "other",
        ] {
            for members in [r#""id":1,"method":"m""#, r#""id":1,"result":1"#] {
                let twice = format!(r#"{{"jsonrpc":"2.0",{members},"{key}":null,"{key}":null}}"#);
                same_both_ways(&twice).unwrap();
            }
        }
    }

    #[test]
    fn the_fast_path_takes_a_usual_line_and_leaves_a_deep_one() {
        for line in [
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":["\u00e9",-1.5e3,{}]}}"#,
            r#" { "result" : { "x" : null , "y" : [ true , false ] } , "id" : "a" , "jsonrpc" : "2.0" } "#,
        ] {
            assert!(fast(line).is_some(), "{line}");
        }
        for (depth, taken) in [(128, true), (129, false), (100_000, false)] {
            let (opened, closed) = ("[".repeat(depth), "]".repeat(depth));
            let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{opened}0{closed}}}"#);
            assert_eq!(fast(&line).is_some(), taken, "{depth}");
            assert!(parse(line.as_bytes().into()).is_ok(), "{depth}");
        }
    }
}
