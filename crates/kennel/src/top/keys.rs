//! Parses keys from the bytes that a terminal sends. Pure.

/// A key that has a meaning in `top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Esc,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    CtrlC,
}

/// Maximum length of an escape sequence.
const MAX_SEQUENCE: usize = 32;

/// Turns bytes into keys; a sequence may arrive in several reads.
#[derive(Debug, Default)]
pub(super) struct KeyParser {
    pending: Vec<u8>,
}

/// The first key of some bytes, and how many bytes it has.
enum Parsed {
    Key(Key, usize),
    Unknown(usize),
    Incomplete,
}

impl KeyParser {
    /// The keys that these bytes complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend(bytes);
        self.take(false)
    }

    /// Whether the rest of a sequence may still arrive.
    pub(super) fn is_incomplete(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The keys of the pending bytes if nothing follows: an escape byte alone is the key Esc.
    pub(super) fn finish(&mut self) -> Vec<Key> {
        self.take(true)
    }

    fn take(&mut self, last: bool) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut at = 0;
        while at < self.pending.len() {
            match parse(&self.pending[at..]) {
                Parsed::Key(key, length) => {
                    keys.push(key);
                    at += length;
                }
                Parsed::Unknown(length) => at += length,
                Parsed::Incomplete if last || self.pending.len() - at > MAX_SEQUENCE => {
                    keys.extend((self.pending[at] == 0x1b).then_some(Key::Esc));
                    at += 1;
                }
                Parsed::Incomplete => break,
            }
        }
        self.pending.drain(..at);
        keys
    }
}

fn parse(bytes: &[u8]) -> Parsed {
    match bytes {
        [] | [0x1b] => Parsed::Incomplete,
        [0x1b, b'[', rest @ ..] => parse_csi(rest),
        [0x1b, b'O', rest @ ..] => match rest {
            [] => Parsed::Incomplete,
            [b'M', ..] => Parsed::Key(Key::Enter, 3),
            [last, ..] => named(*last, b"", 3),
        },
        // Esc, and a key that was typed after it.
        [0x1b, ..] => Parsed::Key(Key::Esc, 1),
        [b'\r' | b'\n', ..] => Parsed::Key(Key::Enter, 1),
        [0x7f | 0x08, ..] => Parsed::Key(Key::Backspace, 1),
        [0x03, ..] => Parsed::Key(Key::CtrlC, 1),
        [0..0x20, ..] => Parsed::Unknown(1),
        bytes => parse_char(bytes),
    }
}

/// Parses the rest of a sequence after `ESC [`: parameters, and a last byte that identifies the key.
fn parse_csi(rest: &[u8]) -> Parsed {
    let Some(end) = rest.iter().position(|byte| !(0x20..0x40).contains(byte)) else {
        return Parsed::Incomplete;
    };
    named(rest[end], &rest[..end], end + 3)
}

fn named(last: u8, parameters: &[u8], length: usize) -> Parsed {
    // Further parameters say which of Shift, Alt and Control were held.
    let first = parameters.split(|&byte| byte == b';').next();
    let key = match (last, first.unwrap_or_default()) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => return Parsed::Unknown(length),
    };
    Parsed::Key(key, length)
}

fn parse_char(bytes: &[u8]) -> Parsed {
    let longest = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(longest) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(&longest[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(error) => match error.error_len() {
            None => return Parsed::Incomplete,
            Some(length) => return Parsed::Unknown(length),
        },
    };
    match valid.chars().next() {
        Some(char) => Parsed::Key(Key::Char(char), char.len_utf8()),
        None => Parsed::Unknown(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_whole_in_pieces_and_in_sequence() {
        let cases: [(&str, &[Key]); 14] = [
            ("q", &[Key::Char('q')]),
            (
                "/aé漢",
                &[
                    Key::Char('/'),
                    Key::Char('a'),
                    Key::Char('é'),
                    Key::Char('漢'),
                ],
            ),
            ("\x1b[A\x1b[B", &[Key::Up, Key::Down]),
            ("\x1bOA\x1bOB", &[Key::Up, Key::Down]),
            ("\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (
                "\x1b[1~\x1b[4~\x1b[7~\x1b[8~",
                &[Key::Home, Key::End, Key::Home, Key::End],
            ),
            (
                "\x1b[H\x1b[F\x1bOH\x1bOF",
                &[Key::Home, Key::End, Key::Home, Key::End],
            ),
            ("\x1b[1;5A", &[Key::Up]),
            ("\r", &[Key::Enter]),
            ("\x7f\x08", &[Key::Backspace, Key::Backspace]),
            ("\x03", &[Key::CtrlC]),
            ("\x1b[15~\t\x1b[Zq", &[Key::Char('q')]),
            ("\x1b", &[Key::Esc]),
            (
                "\x1bq\x1b\x1b[A",
                &[Key::Esc, Key::Char('q'), Key::Esc, Key::Up],
            ),
        ];
        for (bytes, keys) in cases {
            let mut parser = KeyParser::default();
            let mut whole = parser.feed(bytes.as_bytes());
            whole.extend(parser.finish());
            assert_eq!(whole, keys, "{bytes:?}");
            let mut pieces = Vec::new();
            for byte in bytes.bytes() {
                pieces.extend(parser.feed(&[byte]));
            }
            pieces.extend(parser.finish());
            assert_eq!(pieces, keys, "{bytes:?} byte by byte");
            assert!(!parser.is_incomplete());
        }
    }

    #[test]
    fn garbage_is_no_key_and_is_not_kept() {
        let mut parser = KeyParser::default();
        assert_eq!(parser.feed(b"\xff\xc3("), [Key::Char('(')]);
        parser.feed(b"\x1b[");
        for _ in 0..1000 {
            parser.feed(b"1;");
            assert!(parser.pending.len() <= 2 * MAX_SEQUENCE);
        }
        parser.finish();
        assert_eq!(parser.feed(b"q"), [Key::Char('q')]);
    }
}
