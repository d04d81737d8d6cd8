//! Lower-case hexadecimal digits.

/// Bytes as digits.
pub(crate) fn text(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    let digits = bytes.iter();
    let digits = digits.flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
    digits.collect()
}

/// Whether a text has exactly this many digits, and nothing else.
pub(crate) fn is_text(text: &str, digits: usize) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == digits && text.bytes().all(is_digit)
}
