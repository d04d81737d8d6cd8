//! The fast path: reads a whole line in one pass, and stores nothing but where its parts are.
//!
//! It accepts what [`Scan`](super::Scan) accepts, and nothing else; `parse` reads the other lines again. A long line that
//! arrives in parts is read by `Scan`: to be able to stop anywhere costs a short line a third more instructions for a call
//! (docs/LESSONS.md, speed).

use super::parse::{Envelope, is_misspelled};
use super::scan::{DEEPEST, MEMBERS};
use super::token::{first_mark, is_number, is_part_of_a_number, ordinary};
use super::{Inside, Part, Place};

/// Fills the envelope of this line, if it is an object and nothing else.
pub(super) fn envelope<'a>(line: &'a [u8], envelope: &mut Envelope<'a>) -> Option<()> {
    let is_ascii = line.is_ascii();
    if !is_ascii {
        str::from_utf8(line).ok()?;
    }
    envelope.may_have_separators = !is_ascii;
    let mut cursor = Cursor { line, at: 0 };
    cursor.expect(b'{')?;
    if !cursor.skips(b'}') {
        loop {
            let key = cursor.key()?;
            // Whether it is one of the envelope's has to be read.
            if key.has_escapes {
                return None;
            }
            let inside = match key.spelled {
                b"params" | b"result" => cursor.value_looked_into()?,
                _ => cursor
                    .value(DEEPEST)
                    .map(|start| (start, Inside::Unknown))?,
            };
            if let Some(place) = envelope.part_mut(key.spelled) {
                // Which of two counts is for others to say.
                if place.is_some() {
                    return None;
                }
                let (start, inside) = inside;
                let bytes = &line[start..cursor.at];
                *place = Some(Part {
                    start,
                    bytes,
                    inside,
                });
            } else if is_misspelled(key.spelled) {
                return None;
            }
            match cursor.token()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
    }
    cursor.space();
    matches!(line[cursor.at..], [] | [b'\r']).then_some(())
}

/// A place in a line, behind which everything was seen.
struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
}

/// A bit for each.
const SPACES: u64 = 1 << b' ' | 1 << b'\t';

/// A newline is none: no line has one. A carriage return is for others to read: it may end a line.
fn is_space(byte: u8) -> bool {
    // Most bytes are none of these, and it takes one look to see that.
    byte <= b' ' && SPACES >> byte & 1 == 1
}

struct Key<'a> {
    spelled: &'a [u8],
    has_escapes: bool,
}

impl<'a> Cursor<'a> {
    fn space(&mut self) {
        while self.line.get(self.at).is_some_and(|it| is_space(*it)) {
            self.at += 1;
        }
    }

    /// The next byte that is no white space.
    fn token(&mut self) -> Option<u8> {
        loop {
            let token = *self.line.get(self.at)?;
            self.at += 1;
            if !is_space(token) {
                return Some(token);
            }
        }
    }

    fn expect(&mut self, token: u8) -> Option<()> {
        (self.token()? == token).then_some(())
    }

    /// Moves behind this, if it comes next.
    fn skips(&mut self, token: u8) -> bool {
        self.space();
        let is_next = self.line.get(self.at) == Some(&token);
        self.at += usize::from(is_next);
        is_next
    }

    /// A key and its colon.
    #[inline]
    fn key(&mut self) -> Option<Key<'a>> {
        self.expect(b'"')?;
        let start = self.at;
        let has_escapes = self.string()?;
        let spelled = &self.line[start..self.at - 1];
        self.expect(b':')?;
        Some(Key {
            spelled,
            has_escapes,
        })
    }

    /// Moves behind the string it is in; whether that has escapes.
    #[inline]
    fn string(&mut self) -> Option<bool> {
        // Most are short, and have none.
        if let Some(word) = self.line[self.at..].first_chunk()
            && let Some(found) = first_mark(word)
            && word[found] == b'"'
        {
            self.at += found + 1;
            return Some(false);
        }
        self.any_string()
    }

    fn any_string(&mut self) -> Option<bool> {
        let mut has_escapes = false;
        loop {
            self.at += ordinary(&self.line[self.at..]);
            match self.line.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(has_escapes);
                }
                b'\\' => {
                    has_escapes = true;
                    self.at += match self.line.get(self.at + 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                        b'u' => {
                            let digits = self.line.get(self.at + 2..self.at + 6)?;
                            digits.iter().all(u8::is_ascii_hexdigit).then_some(6)?
                        }
                        _ => return None,
                    };
                }
                // A control character.
                _ => return None,
            }
        }
    }

    /// Moves behind the value that comes next, which may be nested so deep; where it begins.
    fn value(&mut self, deepest: u32) -> Option<usize> {
        self.space();
        let start = self.at;
        // What it is in, the innermost last: 1 for an object, 0 for an array.
        let (mut levels, mut depth) = (0u128, 0);
        loop {
            let (bracket, in_object) = match self.token()? {
                b'"' => {
                    self.string()?;
                    (None, false)
                }
                b'{' => (Some(b'}'), true),
                b'[' => (Some(b']'), false),
                b't' => self.word(b"rue")?,
                b'f' => self.word(b"alse")?,
                b'n' => self.word(b"ull")?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => return None,
            };
            if let Some(bracket) = bracket {
                if depth == deepest {
                    return None;
                }
                if !self.skips(bracket) {
                    depth += 1;
                    levels = levels << 1 | u128::from(in_object);
                    if in_object {
                        self.key()?;
                    }
                    continue;
                }
            }
            loop {
                if depth == 0 {
                    return Some(start);
                }
                match (self.token()?, levels & 1 == 1) {
                    (b',', true) => {
                        self.key()?;
                        break;
                    }
                    (b',', false) => break,
                    (b'}', true) | (b']', false) => {
                        depth -= 1;
                        levels >>= 1;
                    }
                    _ => return None,
                }
            }
        }
    }

    /// The same, and where its members are that somebody may ask for.
    fn value_looked_into(&mut self) -> Option<(usize, Inside)> {
        self.space();
        let start = self.at;
        if !self.skips(b'{') {
            return Some((self.value(DEEPEST)?, Inside::Unknown));
        }
        let mut members = [None; MEMBERS.len()];
        let mut odd = false;
        if !self.skips(b'}') {
            loop {
                let key = self.key()?;
                let value = self.value(DEEPEST - 1)?;
                odd |= key.has_escapes;
                if let Some(nth) = MEMBERS.iter().position(|it| it.as_bytes() == key.spelled) {
                    let place = Place::new(start, value, self.at);
                    odd |= place.is_none() || members[nth].is_some();
                    members[nth] = place;
                }
                match self.token()? {
                    b',' => {}
                    b'}' => break,
                    _ => return None,
                }
            }
        }
        let inside = match odd {
            true => Inside::Unknown,
            false => Inside::Known(members),
        };
        Some((start, inside))
    }

    fn word(&mut self, rest: &[u8]) -> Option<(Option<u8>, bool)> {
        let end = self.at + rest.len();
        (self.line.get(self.at..end)? == rest).then_some(())?;
        self.at = end;
        Some((None, false))
    }

    /// Its first byte was taken.
    fn number(&mut self) -> Option<(Option<u8>, bool)> {
        let rest = &self.line[self.at - 1..];
        let length = rest.iter().take_while(|it| is_part_of_a_number(it)).count();
        is_number(&rest[..length]).then_some(())?;
        self.at += length - 1;
        Some((None, false))
    }
}
