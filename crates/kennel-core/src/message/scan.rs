//! The incremental scanner: reads each byte of a well-formed object once and records the position of its parts.
//!
//! It stops at the end of the available bytes and continues when more arrive: a long line is scanned while it is
//! received, so that little work is left at its last byte. The fast path (`fast_path.rs`) reads a line that is complete
//! from the start.
//!
//! It accepts only what `serde_json` accepts. It refuses invalid lines and unusual ones, such as keys with escapes or
//! deep nesting; `parse` reads those again and classifies them.

use std::borrow::Cow;
use std::ops::Range;

use super::line::has_foreign_separators;
use super::outline::{self, Outline};
use super::parse::{Envelope, is_misspelled};
use super::token::{is_number, is_part_of_a_number, ordinary};
use super::{KnownMembers, MemberPosition, Part};

/// The scan state of the beginning of a line.
///
/// ```
/// use kennel_core::message::{Line, Message, Scan};
///
/// let line = br#"{"jsonrpc":"2.0","method":"tools/list","id":7}"#;
/// let mut scan = Scan::default();
/// for end in [9, 30, line.len()] {
///     scan.scan(&line[..end]);
/// }
/// assert_eq!(Message::parse(Line::scanned(line, &scan)), Message::parse(line));
/// ```
#[derive(Debug, Default, Clone)]
pub struct Scan {
    /// End of the scanned bytes.
    at: usize,
    /// End of the bytes that are known to be UTF-8.
    text: usize,
    /// Position of the first carriage return.
    first_return: Option<usize>,
    /// Whether it contains another character that some readers take for the end of a line.
    has_separators: bool,
    next: Next,
    /// What was expected when the line was refused.
    refused: Next,
    /// The string whose end is not scanned yet.
    string: Option<Text>,
    /// The open containers within the object, the innermost last: 1 for an object, 0 for an array.
    levels: u128,
    depth: u32,
    /// The envelope key whose value is being scanned, and where that value begins.
    key: Option<Key>,
    start: usize,
    /// The same for a member of that value, if its members are recorded.
    inner: Option<usize>,
    inner_start: usize,
    parts: [Option<Range<usize>>; KEYS.len()],
    inside: [RecordedMembers; KEYS.len()],
}

/// What the scanner expects next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The object itself.
    #[default]
    Object,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    ValueOrEnd,
    CommaOrEnd,
    /// Only white space.
    Nothing,
    /// Anything: `parse` reads this line.
    Refused,
}

/// A string whose end is not scanned yet.
#[derive(Debug, Clone, Copy)]
struct Text {
    start: usize,
    is_key: bool,
    has_escapes: bool,
}

/// The keys of an envelope.
pub(super) const KEYS: [&[u8]; 6] = [b"jsonrpc", b"id", b"method", b"params", b"result", b"error"];
/// Their positions in `KEYS`.
type Key = usize;
const ID: Key = 1;
const METHOD: Key = 2;
/// The keys whose values are scanned for members, one level deep.
const PARAMS: Key = 3;
const RESULT: Key = 4;
const ERROR: Key = 5;
/// Members whose positions are recorded, so that they need not be searched.
pub(super) const MEMBERS: [&str; 2] = ["_meta", "task"];

/// The recorded members of a value.
#[derive(Debug, Default, Clone, Copy)]
struct RecordedMembers {
    members: [Option<MemberPosition>; MEMBERS.len()],
    /// Whether a member occurs twice, or is spelled in a way that must be parsed.
    odd: bool,
}

/// The scan cannot continue, either until more bytes arrive or at all.
struct Stop;

/// Maximum nesting depth: one bit for each level.
pub(super) const MAX_DEPTH: u32 = u128::BITS;
/// Maximum length of a number; `parse` reads lines with longer ones.
const MAX_NUMBER: usize = 1024;

impl Scan {
    /// Continues the scan. `line` begins with the bytes that were scanned before.
    pub fn scan(&mut self, line: &[u8]) {
        if self.next == Next::Refused {
            return;
        }
        let unseen = line.get(self.text..).unwrap_or_default();
        if unseen.is_ascii() {
            self.text = line.len();
        } else {
            match str::from_utf8(unseen) {
                Ok(text) => self.note_text(text),
                // A character of which not all is there.
                Err(error) if error.error_len().is_none() => {
                    let text = str::from_utf8(&unseen[..error.valid_up_to()]);
                    self.note_text(text.unwrap_or_default());
                }
                Err(_) => self.refuse(),
            }
        }
        while self.next != Next::Refused {
            if self.step(line).is_err() {
                return;
            }
        }
    }

    /// Records that the next bytes are UTF-8.
    fn note_text(&mut self, text: &str) {
        self.has_separators |= has_foreign_separators(text);
        self.text += text.len();
    }

    /// Whether the incomplete line is a request or notification so far: it has a method and is valid up to here.
    pub fn begins_a_call(&self) -> bool {
        let goes_on = !matches!(self.next, Next::Refused | Next::Nothing);
        goes_on && self.parts[METHOD].is_some()
    }

    /// Fills the envelope if the line is exactly one object.
    pub(super) fn envelope<'a>(&self, line: &'a [u8], envelope: &mut Envelope<'a>) -> Option<()> {
        let all = self.at == line.len() && self.text == line.len();
        if !all || self.next != Next::Nothing {
            return None;
        }
        // One that is its last byte is part of its end.
        let has_return = self.first_return.is_some_and(|at| at + 1 < line.len());
        envelope.may_have_separators = self.has_separators || has_return;
        for (key, range) in self.parts.iter().enumerate() {
            let Some(range) = range else {
                continue;
            };
            let bytes = line.get(range.clone())?;
            let looked = &self.inside[key];
            let is_known = matches!(key, PARAMS | RESULT) && bytes.starts_with(b"{") && !looked.odd;
            let part = Part {
                start: range.start,
                bytes,
                inside: match is_known {
                    true => KnownMembers::Known(looked.members),
                    false => KnownMembers::Unknown,
                },
            };
            *envelope.part_mut(KEYS[key])? = Some(part);
        }
        Some(())
    }

    /// Takes the next token if it is complete.
    fn step(&mut self, line: &[u8]) -> Result<(), Stop> {
        if let Some(text) = self.string {
            return self.in_string(line, text);
        }
        // A newline is none: no line has one.
        while let Some(byte @ (b' ' | b'\t' | b'\r')) = line.get(self.at) {
            if *byte == b'\r' {
                self.first_return.get_or_insert(self.at);
            }
            self.at += 1;
        }
        let token = *line.get(self.at).ok_or(Stop)?;
        match (self.next, token) {
            (Next::Object, b'{') => self.take(Next::KeyOrEnd),
            (Next::KeyOrEnd | Next::Key, b'"') => self.begin_string(true),
            (Next::Colon, b':') => self.take(Next::Value),
            (Next::KeyOrEnd, b'}') | (Next::ValueOrEnd, b']') => self.close(),
            (Next::Value | Next::ValueOrEnd, _) => {
                self.value_begins();
                return self.value(line, token);
            }
            (Next::CommaOrEnd, b',') => match self.in_object() {
                true => self.take(Next::Key),
                false => self.take(Next::Value),
            },
            (Next::CommaOrEnd, b'}') if self.in_object() => self.close(),
            (Next::CommaOrEnd, b']') if !self.in_object() => self.close(),
            _ => self.refuse(),
        }
        Ok(())
    }

    fn take(&mut self, next: Next) {
        self.at += 1;
        self.next = next;
    }

    fn in_object(&self) -> bool {
        self.depth == 0 || self.levels & 1 == 1
    }

    fn value_begins(&mut self) {
        match self.depth {
            0 => self.start = self.at,
            1 => self.inner_start = self.at,
            _ => {}
        }
    }

    fn value(&mut self, line: &[u8], first: u8) -> Result<(), Stop> {
        match first {
            b'"' => self.begin_string(false),
            b'{' | b'[' => self.open(first),
            b't' => self.literal(line, b"true")?,
            b'f' => self.literal(line, b"false")?,
            b'n' => self.literal(line, b"null")?,
            _ => self.number(line)?,
        }
        Ok(())
    }

    fn open(&mut self, bracket: u8) {
        if self.depth == MAX_DEPTH {
            return self.refuse();
        }
        self.depth += 1;
        self.levels <<= 1;
        match bracket {
            b'{' => {
                self.levels |= 1;
                self.take(Next::KeyOrEnd);
            }
            _ => self.take(Next::ValueOrEnd),
        }
    }

    /// Closes the innermost container.
    fn close(&mut self) {
        if self.depth == 0 {
            return self.take(Next::Nothing);
        }
        self.at += 1;
        self.depth -= 1;
        self.levels >>= 1;
        self.value_ended();
    }

    fn value_ended(&mut self) {
        self.next = Next::CommaOrEnd;
        match (self.depth, self.key, self.inner.take()) {
            (0, Some(key), _) => self.parts[key] = Some(self.start..self.at),
            (1, Some(key), Some(member)) => {
                let place = MemberPosition::new(self.start, self.inner_start, self.at);
                self.inside[key].odd |= place.is_none();
                self.inside[key].members[member] = place;
            }
            // Deeper than what it is a member of.
            (2.., _, inner) => self.inner = inner,
            _ => {}
        }
    }

    fn literal(&mut self, line: &[u8], word: &[u8]) -> Result<(), Stop> {
        let rest = &line[self.at..];
        match rest.get(..word.len()) {
            Some(there) if there == word => {
                self.at += word.len();
                self.value_ended();
            }
            None if word.starts_with(rest) => return Err(Stop),
            _ => self.refuse(),
        }
        Ok(())
    }

    /// A number is complete when another byte follows it.
    fn number(&mut self, line: &[u8]) -> Result<(), Stop> {
        let rest = &line[self.at..];
        let rest = &rest[..rest.len().min(MAX_NUMBER + 1)];
        let length = rest.iter().take_while(|it| is_part_of_a_number(it)).count();
        if length == rest.len() && length <= MAX_NUMBER {
            return Err(Stop);
        }
        if length <= MAX_NUMBER && is_number(&rest[..length]) {
            self.at += length;
            self.value_ended();
        } else {
            self.refuse();
        }
        Ok(())
    }

    fn begin_string(&mut self, is_key: bool) {
        self.at += 1;
        self.string = Some(Text {
            start: self.at,
            is_key,
            has_escapes: false,
        });
    }

    /// Moves to the end of the string, or of the available bytes.
    fn in_string(&mut self, line: &[u8], text: Text) -> Result<(), Stop> {
        self.at += ordinary(&line[self.at..]);
        match line.get(self.at).ok_or(Stop)? {
            b'"' => {
                self.string = None;
                self.at += 1;
                match text.is_key {
                    true => self.key_ended(&line[text.start..self.at - 1], text),
                    false => self.value_ended(),
                }
            }
            b'\\' => {
                let has_escapes = true;
                self.string = Some(Text {
                    has_escapes,
                    ..text
                });
                self.escape(line)?;
            }
            // A control character.
            _ => self.refuse(),
        }
        Ok(())
    }

    fn escape(&mut self, line: &[u8]) -> Result<(), Stop> {
        match line.get(self.at + 1).ok_or(Stop)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
            b'u' => {
                let digits = line.get(self.at + 2..self.at + 6).ok_or(Stop)?;
                match digits.iter().all(u8::is_ascii_hexdigit) {
                    true => self.at += 6,
                    false => self.refuse(),
                }
            }
            _ => self.refuse(),
        }
        Ok(())
    }

    fn key_ended(&mut self, key: &[u8], text: Text) {
        self.next = Next::Colon;
        match (self.depth, self.key) {
            // Which of two counts is for others to say.
            (0, _) => {
                let meant = text.unescaped(key);
                let is_odd = match (&meant, text.has_escapes) {
                    (None, _) => true,
                    (Some(meant), true) => KEYS.contains(&&**meant) || is_misspelled(meant),
                    (Some(_), false) => !KEYS.contains(&key) && is_misspelled(key),
                };
                self.key = match text.has_escapes {
                    true => None,
                    false => KEYS.iter().position(|it| *it == key),
                };
                let twice = self.key.is_some_and(|key| self.parts[key].is_some());
                if is_odd || twice {
                    // Back to where the key begins.
                    (self.at, self.next) = (text.start - 1, Next::Key);
                    self.refuse();
                }
            }
            (1, Some(whole @ (PARAMS | RESULT))) => {
                let meant = text.unescaped(key).unwrap_or_default();
                self.inner = MEMBERS.iter().position(|it| it.as_bytes() == &*meant);
                let looked = &mut self.inside[whole];
                let twice = |member: usize| looked.members[member].is_some();
                looked.odd |= self.inner.is_some_and(twice);
            }
            _ => {}
        }
    }

    /// Leaves this line to `parse`.
    fn refuse(&mut self) {
        self.refused = std::mem::replace(&mut self.next, Next::Refused);
    }

    /// Whether the line is invalid or unusual, so that `parse` must read it.
    pub fn is_refused(&self) -> bool {
        self.next == Next::Refused
    }

    /// The outline of the scanned bytes, and their number. They need not be scanned again.
    pub fn outline(&self, line: &[u8]) -> (Outline, usize) {
        let next = match self.next {
            Next::Refused => self.refused,
            next => next,
        };
        let is_id = self.key == Some(ID);
        // The value of a key begins behind its colon.
        let has_begun = self.depth > 0 || next != Next::Colon;
        let is_at = |key: Key| self.key == Some(key) && has_begun;
        let has = |key: Key| self.parts[key].is_some() || is_at(key);
        // An id counts once its value has ended for sure.
        let has_ended = !is_id || next != Next::CommaOrEnd || self.depth > 0;
        let id = self.parts[ID].as_ref().filter(|_| has_ended);
        let id = id.and_then(|id| line.get(id.clone()));
        let known = |next: outline::Next| {
            let is_in_id = is_id && matches!(next, outline::Next::Value { is_id: true });
            let ids = (id.map(<[u8]>::to_vec), is_in_id);
            let has_outcome = has(RESULT) || has(ERROR);
            Outline::known(next, ids, has(METHOD), has_outcome)
        };
        let value = |is_id: bool| outline::Next::Value { is_id };
        match (next, self.depth, self.string) {
            (Next::Object | Next::Refused, ..) => (Outline::default(), 0),
            (Next::Nothing, ..) => (known(outline::Next::Nothing), self.at),
            // In a key of its own: from where that begins.
            (_, 0, Some(text)) if text.is_key => (known(outline::Next::KeyBegins), text.start - 1),
            (Next::KeyOrEnd | Next::Key, 0, None) => (known(outline::Next::KeyBegins), self.at),
            (Next::Colon, 0, _) => {
                let key = self.key.map_or(&b"?"[..], |key| KEYS[key]);
                (known(outline::Next::Colon).behind_key(key), self.at)
            }
            (Next::CommaOrEnd, 0, None) if is_id => (known(value(true)), self.start),
            (Next::CommaOrEnd, 0, None) => (known(value(false)), self.at),
            // In or before a value of its own. An id is read again.
            (_, 0, None) => (known(value(is_id)), self.at),
            (_, 0, Some(_)) if is_id => (known(value(true)), self.start),
            (_, 0, Some(_)) => (known(value(false)).inside_value(0, true), self.at),
            // An id that is an array or an object is none.
            (_, depth, string) => {
                let inside = known(value(is_id)).inside_value(depth as usize, string.is_some());
                (inside, self.at)
            }
        }
    }
}

impl Text {
    /// The unescaped key, if it may be one of [`KEYS`] or [`MEMBERS`]; empty if it is too long for those. `None`: its
    /// escapes are invalid.
    fn unescaped(self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        // Six bytes for each character of the longest.
        const MAX_KEY: usize = 6 * "jsonrpc".len();
        if !self.has_escapes {
            return Some(Cow::Borrowed(key));
        }
        if key.len() > MAX_KEY {
            return Some(Cow::Borrowed(b""));
        }
        let text = str::from_utf8(key).ok()?;
        let meant = serde_json::from_str::<String>(&format!("\"{text}\"")).ok()?;
        Some(Cow::Owned(meant.into_bytes()))
    }
}
