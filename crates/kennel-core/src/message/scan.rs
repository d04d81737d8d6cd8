//! The way most lines go: one look at each byte of a well-formed object, and its parts are known.
//!
//! It takes nothing that `serde_json` would refuse. What it does not take, because it is bad or because it
//! is odd (a key with escapes, a value nested too deep to be counted here), is read again by `parse`,
//! which says what it is.
//!
//! It stops wherever the line stops, and goes on when there is more of it: what is long is looked at while it
//! arrives, and little is left to do when its last byte does.

use std::ops::Range;

use super::parse::{Envelope, is_misspelled};
use super::token::{is_number, is_part_of_a_number, ordinary};
use super::{Inside, Part, Place};

/// What is known of the beginning of a line.
///
/// ```
/// use kennel_core::message::{Line, Message, Scan};
///
/// let line = br#"{"jsonrpc":"2.0","method":"tools/list","id":7}"#;
/// let mut scan = Scan::default();
/// for end in [9, 30, line.len()] {
///     scan.look_at(&line[..end]);
/// }
/// assert_eq!(Message::parse(Line::scanned(line, &scan)), Message::parse(line));
/// ```
#[derive(Debug, Default, Clone)]
pub struct Scan {
    /// Up to here it was looked at.
    at: usize,
    /// Up to here it is text.
    text: usize,
    /// It has a carriage return, or is not ASCII.
    may_have_separators: bool,
    next: Next,
    /// The string it is in the middle of.
    string: Option<Text>,
    /// What it is in, below the object itself, the innermost last: 1 for an object, 0 for an array.
    levels: u128,
    depth: u32,
    /// Which value of the envelope it is at, and where that begins.
    key: Option<Key>,
    start: usize,
    /// The same in the value it is at, if that is looked into.
    inner: Option<usize>,
    inner_start: usize,
    parts: [Option<Range<usize>>; KEYS.len()],
    inside: [Looked; KEYS.len()],
}

/// What must come next.
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
    /// Nothing but white space.
    Nothing,
    /// Whatever comes: this is for others to read.
    Refused,
}

/// A string of which not all was seen.
#[derive(Debug, Clone, Copy)]
struct Text {
    start: usize,
    is_key: bool,
    has_escapes: bool,
}

/// The keys of an envelope.
pub(super) const KEYS: [&[u8]; 6] = [b"jsonrpc", b"id", b"method", b"params", b"result", b"error"];
/// Which of them it is.
type Key = usize;
const METHOD: Key = 2;
/// Those whose values are looked into, one level deep.
const PARAMS: Key = 3;
const RESULT: Key = 4;
/// Whoever asks for one of these members need not search for it.
pub(super) const MEMBERS: [&str; 2] = ["_meta", "task"];

/// What was seen in a value.
#[derive(Debug, Default, Clone, Copy)]
struct Looked {
    members: [Option<Place>; MEMBERS.len()],
    /// Something comes twice, or is spelled so that it has to be read.
    odd: bool,
}

/// It cannot go on: the line stops here, for now or for good.
struct Stop;

/// How deep a value may be nested: a bit for each level.
pub(super) const DEEPEST: u32 = u128::BITS;
/// No number is longer, but for those that somebody else may read.
const LONGEST_NUMBER: usize = 1024;

impl Scan {
    /// Goes on from where it stopped: the line begins with these bytes.
    pub fn look_at(&mut self, line: &[u8]) {
        if self.next == Next::Refused {
            return;
        }
        let unseen = line.get(self.text..).unwrap_or_default();
        if unseen.is_ascii() {
            self.text = line.len();
        } else {
            self.may_have_separators = true;
            match str::from_utf8(unseen) {
                Ok(_) => self.text = line.len(),
                // A character of which not all is there.
                Err(error) if error.error_len().is_none() => self.text += error.valid_up_to(),
                Err(_) => self.next = Next::Refused,
            }
        }
        while self.next != Next::Refused {
            if self.step(line).is_err() {
                return;
            }
        }
    }

    /// Whether a method was seen, nothing is wrong so far, and more must come: it is no answer, and nobody can take
    /// what was seen for all of it.
    pub fn begins_a_call(&self) -> bool {
        let goes_on = !matches!(self.next, Next::Refused | Next::Nothing);
        goes_on && self.parts[METHOD].is_some()
    }

    /// Fills the envelope of this line, if it is an object and nothing else.
    pub(super) fn envelope<'a>(&self, line: &'a [u8], envelope: &mut Envelope<'a>) -> Option<()> {
        let all = self.at == line.len() && self.text == line.len();
        if !all || self.next != Next::Nothing {
            return None;
        }
        envelope.may_have_separators = self.may_have_separators;
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
                    true => Inside::Known(looked.members),
                    false => Inside::Unknown,
                },
            };
            *envelope.part_mut(KEYS[key])? = Some(part);
        }
        Some(())
    }

    /// Takes the next token, if all of it is there.
    fn step(&mut self, line: &[u8]) -> Result<(), Stop> {
        if let Some(text) = self.string {
            return self.in_string(line, text);
        }
        // A newline is none: no line has one.
        while let Some(byte @ (b' ' | b'\t' | b'\r')) = line.get(self.at) {
            self.may_have_separators |= *byte == b'\r';
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
            _ => self.next = Next::Refused,
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
            b't' => self.word(line, b"true")?,
            b'f' => self.word(line, b"false")?,
            b'n' => self.word(line, b"null")?,
            _ => self.number(line)?,
        }
        Ok(())
    }

    fn open(&mut self, bracket: u8) {
        if self.depth == DEEPEST {
            self.next = Next::Refused;
            return;
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

    /// What it is in has ended.
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
                let place = Place::new(self.start, self.inner_start, self.at);
                self.inside[key].odd |= place.is_none();
                self.inside[key].members[member] = place;
            }
            // Deeper than what it is a member of.
            (2.., _, inner) => self.inner = inner,
            _ => {}
        }
    }

    fn word(&mut self, line: &[u8], word: &[u8]) -> Result<(), Stop> {
        let rest = &line[self.at..];
        match rest.get(..word.len()) {
            Some(there) if there == word => {
                self.at += word.len();
                self.value_ended();
            }
            None if word.starts_with(rest) => return Err(Stop),
            _ => self.next = Next::Refused,
        }
        Ok(())
    }

    /// Seen once it has ended, by something that is no part of any number.
    fn number(&mut self, line: &[u8]) -> Result<(), Stop> {
        let rest = &line[self.at..];
        let rest = &rest[..rest.len().min(LONGEST_NUMBER + 1)];
        let length = rest.iter().take_while(|it| is_part_of_a_number(it)).count();
        if length == rest.len() && length <= LONGEST_NUMBER {
            return Err(Stop);
        }
        if length <= LONGEST_NUMBER && is_number(&rest[..length]) {
            self.at += length;
            self.value_ended();
        } else {
            self.next = Next::Refused;
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

    /// Moves behind it, or as far as there is any of it.
    fn in_string(&mut self, line: &[u8], text: Text) -> Result<(), Stop> {
        self.at += ordinary(&line[self.at..]);
        match line.get(self.at).ok_or(Stop)? {
            b'"' => {
                self.string = None;
                self.at += 1;
                match text.is_key {
                    true => self.key_ended(&line[text.start..self.at - 1], text.has_escapes),
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
            _ => self.next = Next::Refused,
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
                    false => self.next = Next::Refused,
                }
            }
            _ => self.next = Next::Refused,
        }
        Ok(())
    }

    fn key_ended(&mut self, key: &[u8], has_escapes: bool) {
        self.next = Next::Colon;
        match (self.depth, self.key) {
            // Whether it is one of the envelope's has to be read, and which of two counts is for others to say.
            (0, _) => {
                self.key = KEYS.iter().position(|it| *it == key);
                let twice = self.key.is_some_and(|key| self.parts[key].is_some());
                if has_escapes || twice || self.key.is_none() && is_misspelled(key) {
                    self.next = Next::Refused;
                }
            }
            (1, Some(whole @ (PARAMS | RESULT))) => {
                self.inner = MEMBERS.iter().position(|it| it.as_bytes() == key);
                let looked = &mut self.inside[whole];
                let twice = |member: usize| looked.members[member].is_some();
                looked.odd |= has_escapes || self.inner.is_some_and(twice);
            }
            _ => {}
        }
    }
}
