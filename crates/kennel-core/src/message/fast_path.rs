//! The fast path: reads a complete line in one pass, and stores only the positions of its parts.
//!
//! It accepts exactly what [`Scan`](super::Scan) accepts; `parse` reads all other lines again. `Scan` reads a long line
//! that arrives in parts: the ability to stop anywhere costs a short line a third more instructions (docs/LESSONS.md,
//! speed).

use super::parse::{Envelope, is_misspelled};
use super::scan::{MAX_DEPTH, MEMBERS};
use super::token::{first_mark, is_number, is_part_of_a_number, ordinary};
use super::{KnownMembers, MemberPosition, Part};

/// Fills the envelope if the line is exactly one object.
pub(super) fn envelope<'a>(line: &'a [u8], envelope: &mut Envelope<'a>) -> Option<()> {
    let is_ascii = line.is_ascii();
    if !is_ascii {
        str::from_utf8(line).ok()?;
    }
    envelope.may_have_separators = !is_ascii;
    let mut cursor = Cursor { line, at: 0 };
    cursor.expect(b'{')?;
    if !cursor.skip(b'}') {
        loop {
            let key = cursor.key()?;
            // The key may be an envelope key: `parse` must read it.
            if key.has_escapes {
                return None;
            }
            let inside = match key.spelled {
                b"params" | b"result" => cursor.value_with_members()?,
                _ => cursor
                    .value(MAX_DEPTH)
                    .map(|start| (start, KnownMembers::Unknown))?,
            };
            if let Some(place) = envelope.part_mut(key.spelled) {
                // A key occurs twice: `parse` decides.
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
    cursor.skip_space();
    matches!(line[cursor.at..], [] | [b'\r']).then_some(())
}

/// A position in a line. The bytes before it are read.
struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
}

/// One bit for each byte value.
const SPACES: u64 = 1 << b' ' | 1 << b'\t';

/// Whether a byte is white space. A line has no newline. A carriage return may end a line for some readers, so `parse`
/// reads it.
fn is_space(byte: u8) -> bool {
    // Most bytes are none of these, and it takes one look to see that.
    byte <= b' ' && SPACES >> byte & 1 == 1
}

struct Key<'a> {
    spelled: &'a [u8],
    has_escapes: bool,
}

impl<'a> Cursor<'a> {
    fn skip_space(&mut self) {
        while self.line.get(self.at).is_some_and(|it| is_space(*it)) {
            self.at += 1;
        }
    }

    /// The next byte that is not white space.
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

    /// Takes this byte if it comes next.
    fn skip(&mut self, token: u8) -> bool {
        self.skip_space();
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

    /// Moves to the end of the current string. Returns whether it has escapes.
    #[inline]
    fn string(&mut self) -> Option<bool> {
        // Most strings are short and have no escapes.
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

    /// Moves to the end of the next value, nested at most `deepest` levels. Returns where the value begins.
    fn value(&mut self, deepest: u32) -> Option<usize> {
        self.skip_space();
        let start = self.at;
        // The open containers, the innermost last: 1 for an object, 0 for an array.
        let (mut levels, mut depth) = (0u128, 0);
        loop {
            let (bracket, in_object) = match self.token()? {
                b'"' => {
                    self.string()?;
                    (None, false)
                }
                b'{' => (Some(b'}'), true),
                b'[' => (Some(b']'), false),
                b't' => self.literal(b"rue")?,
                b'f' => self.literal(b"alse")?,
                b'n' => self.literal(b"ull")?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => return None,
            };
            if let Some(bracket) = bracket {
                if depth == deepest {
                    return None;
                }
                if !self.skip(bracket) {
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

    /// The same, and the positions of its frequently used members.
    fn value_with_members(&mut self) -> Option<(usize, KnownMembers)> {
        self.skip_space();
        let start = self.at;
        if !self.skip(b'{') {
            return Some((self.value(MAX_DEPTH)?, KnownMembers::Unknown));
        }
        let mut members = [None; MEMBERS.len()];
        let mut odd = false;
        if !self.skip(b'}') {
            loop {
                let key = self.key()?;
                let value = self.value(MAX_DEPTH - 1)?;
                odd |= key.has_escapes;
                if let Some(nth) = MEMBERS.iter().position(|it| it.as_bytes() == key.spelled) {
                    let place = MemberPosition::new(start, value, self.at);
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
            true => KnownMembers::Unknown,
            false => KnownMembers::Known(members),
        };
        Some((start, inside))
    }

    fn literal(&mut self, rest: &[u8]) -> Option<(Option<u8>, bool)> {
        let end = self.at + rest.len();
        (self.line.get(self.at..end)? == rest).then_some(())?;
        self.at = end;
        Some((None, false))
    }

    /// Reads the rest of a number, after its first byte.
    fn number(&mut self) -> Option<(Option<u8>, bool)> {
        let rest = &self.line[self.at - 1..];
        let length = rest.iter().take_while(|it| is_part_of_a_number(it)).count();
        is_number(&rest[..length]).then_some(())?;
        self.at += length - 1;
        Some((None, false))
    }
}
