//! The way most lines go: one look at each byte of a well-formed object, and its parts are known.
//!
//! It takes nothing that `serde_json` would refuse. What it does not take, because it is bad or because it
//! is odd (a key with escapes, a value nested too deep to be counted here), is read again by `parse`,
//! which says what it is.

use super::Part;
use super::parse::Envelope;

/// The envelope of an object that is all of the line.
pub(super) fn envelope(line: &str) -> Option<Envelope<'_>> {
    let mut scanner = Scanner { line, at: 0 };
    let mut envelope = Envelope::default();
    scanner.expect(b'{')?;
    if !scanner.takes(b'}') {
        loop {
            let key = scanner.plain_key()?;
            let value = scanner.value()?;
            if let Some(place) = envelope.part_mut(key)
                && place.replace(value).is_some()
            {
                return None;
            }
            match scanner.token()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
    }
    scanner.skip_white();
    (scanner.at == line.len()).then_some(envelope)
}

struct Scanner<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    /// How deep a value may be nested: a bit for each level.
    const DEEPEST: u32 = u128::BITS;

    fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// A newline is none: no line has one.
    fn skip_white(&mut self) {
        while let Some(b' ' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// The next byte that is not white space.
    fn token(&mut self) -> Option<u8> {
        self.skip_white();
        self.next()
    }

    fn expect(&mut self, token: u8) -> Option<()> {
        (self.token()? == token).then_some(())
    }

    /// Takes the next token if it is this one.
    fn takes(&mut self, token: u8) -> bool {
        self.skip_white();
        let is_it = self.peek() == Some(token);
        self.at += usize::from(is_it);
        is_it
    }

    /// A key that is spelled as it is meant, and its colon.
    fn plain_key(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let start = self.at;
        let Spelling::Plain = self.string()? else {
            return None;
        };
        let key = &self.line[start..self.at - 1];
        self.expect(b':')?;
        Some(key)
    }

    fn key(&mut self) -> Option<()> {
        self.expect(b'"')?;
        self.string()?;
        self.expect(b':')
    }

    fn value(&mut self) -> Option<Part<'a>> {
        self.skip_white();
        let start = self.at;
        self.skip_value()?;
        let text = &self.line[start..self.at];
        Some(Part { start, text })
    }

    /// Without recursion: a line of many brackets costs no stack.
    fn skip_value(&mut self) -> Option<()> {
        // What we are in, the innermost last: 1 for an object, 0 for an array.
        let mut levels = 0u128;
        let mut depth = 0;
        loop {
            match self.token()? {
                b'"' => {
                    self.string()?;
                }
                b'{' if self.takes(b'}') => {}
                b'[' if self.takes(b']') => {}
                bracket @ (b'{' | b'[') => {
                    if depth == Scanner::DEEPEST {
                        return None;
                    }
                    depth += 1;
                    levels <<= 1;
                    if bracket == b'{' {
                        levels |= 1;
                        self.key()?;
                    }
                    continue;
                }
                b't' => self.word("rue")?,
                b'f' => self.word("alse")?,
                b'n' => self.word("ull")?,
                first => self.number(first)?,
            }
            // A value has ended, and with it perhaps what it is in.
            loop {
                if depth == 0 {
                    return Some(());
                }
                let in_object = levels & 1 == 1;
                match self.token()? {
                    b',' if in_object => {
                        self.key()?;
                        break;
                    }
                    b',' => break,
                    b'}' if in_object => {}
                    b']' if !in_object => {}
                    _ => return None,
                }
                depth -= 1;
                levels >>= 1;
            }
        }
    }

    fn word(&mut self, rest: &str) -> Option<()> {
        let is_it = self.line.as_bytes()[self.at..].starts_with(rest.as_bytes());
        self.at += rest.len();
        is_it.then_some(())
    }

    fn number(&mut self, first: u8) -> Option<()> {
        let first = match first {
            b'-' => self.next()?,
            first => first,
        };
        match first {
            // What follows a zero is no digit, or no token.
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    fn digits(&mut self) -> Option<()> {
        self.next()?.is_ascii_digit().then(|| self.skip_digits())
    }

    fn skip_digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    /// Moves behind a string whose first quote was taken.
    fn string(&mut self) -> Option<Spelling> {
        let mut spelling = Spelling::Plain;
        loop {
            self.at += ordinary(&self.line.as_bytes()[self.at..]);
            match self.next()? {
                b'"' => return Some(spelling),
                b'\\' => self.escape()?,
                // A control character.
                _ => return None,
            }
            spelling = Spelling::Escaped;
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.line.as_bytes().get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }
}

/// Whether a string is spelled as it is meant.
#[derive(Clone, Copy)]
enum Spelling {
    Plain,
    Escaped,
}

/// How many bytes there are before the next that means something in a string.
fn ordinary(bytes: &[u8]) -> usize {
    // All of a block, whatever is in it: processors look at many bytes at once, but not at one and then decide.
    let (blocks, _) = bytes.as_chunks::<32>();
    let is_ordinary = |block: &&[u8; 32]| {
        !block.iter().fold(false, |any, &byte| {
            any | (byte < b' ') | (byte == b'"') | (byte == b'\\')
        })
    };
    let passed = 32 * blocks.iter().take_while(is_ordinary).count();
    let rest = bytes[passed..].iter();
    passed
        + rest
            .take_while(|byte| !MEANS_SOMETHING[usize::from(**byte)])
            .count()
}

/// By byte: whether it ends a string, escapes something, or must not be in one.
const MEANS_SOMETHING: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};
