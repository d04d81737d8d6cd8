//! Scans strings and numbers.

pub(super) fn is_part_of_a_number(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

pub(super) fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = match rest {
        // A digit after a leading zero is invalid.
        [b'0', ..] => 1,
        _ => digits(rest),
    };
    if whole == 0 {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', exponent @ ..] => exponent,
            exponent => exponent,
        };
        let count = digits(exponent);
        if count == 0 {
            return false;
        }
        rest = &exponent[count..];
    }
    rest.is_empty()
}

/// Up to this length, bytes are compared word by word. Beyond it, memchr compares them with vector instructions. It
/// first asks the processor which it has: in a virtual machine that takes 35 µs, 3% of a session's start, and no start
/// needs it.
pub(super) const SHORT_STRING: usize = 1024;
/// Bytes of a long string that are compared at once. The number is small, because a caller that skips invalid bytes one
/// by one compares up to this many again for each of them.
const BLOCK: usize = 256;

/// Number of bytes before the next special byte of a string: a quote, a backslash or a control character.
pub(super) fn ordinary(bytes: &[u8]) -> usize {
    let (short, long) = bytes.split_at(bytes.len().min(SHORT_STRING));
    let passed = ordinary_words(short);
    if passed < short.len() {
        return passed;
    }
    let (blocks, _) = long.as_chunks::<BLOCK>();
    let in_blocks = BLOCK * blocks.iter().take_while(|it| is_ordinary(it)).count();
    passed + in_blocks + ordinary_words(&long[in_blocks..])
}

/// The same, word by word.
fn ordinary_words(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        if let Some(found) = first_mark(word) {
            return at * word.len() + found;
        }
    }
    let is_ordinary = |byte: &&u8| !matches!(byte, ..b' ' | b'"' | b'\\');
    bytes.len() - rest.len() + rest.iter().take_while(is_ordinary).count()
}

/// Whether a block has no special byte. Long lines spend much of their time here.
fn is_ordinary(block: &[u8; BLOCK]) -> bool {
    let (words, _) = block.as_chunks::<8>();
    let must_not_be =
        |found: u64, word: &[u8; 8]| found | first_below(u64::from_le_bytes(*word), b' ');
    words.iter().fold(0, must_not_be) & HIGH_BITS == 0
        && memchr::memchr2(b'"', b'\\', block).is_none()
}

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);

/// Sets the high bit of the first byte that is less than `least`, which is at most 128. A subtraction borrows only from
/// later bytes, so there is such a bit if and only if there is such a byte, and the first one is right.
#[inline]
fn first_below(word: u64, least: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(least)) & !word
}

/// The position of the first special byte in a word: all bytes are compared at once.
#[inline]
pub(super) fn first_mark(word: &[u8; 8]) -> Option<usize> {
    let word = u64::from_le_bytes(*word);
    let is = |byte: u8| first_below(word ^ (ONES * u64::from(byte)), 1);
    let marks = (first_below(word, b' ') | is(b'"') | is(b'\\')) & HIGH_BITS;
    (marks != 0).then(|| marks.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_ordinary_is_the_same_byte_by_byte(
            before in 0..SHORT_STRING + 3 * BLOCK,
            bytes in prop::collection::vec(prop_oneof![
                20 => b' '..=b'!',
                4 => any::<u8>(),
                1 => prop::sample::select(&b"\x00\x1f\x20\x21\"#[\\]\x7f\x80\xa2\xdc\xff"[..]),
            ], 0..120),
        ) {
            let bytes = [vec![b'x'; before], bytes].concat();
            let means_something = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
            let expected = bytes.iter().position(means_something);
            prop_assert_eq!(ordinary(&bytes), expected.unwrap_or(bytes.len()));
        }
    }
}
