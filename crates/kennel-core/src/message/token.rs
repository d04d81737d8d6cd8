//! What strings and numbers are made of.

pub(super) fn is_part_of_a_number(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

pub(super) fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = match rest {
        // What follows a zero is no digit.
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

/// How many bytes there are before the next that means something in a string: that ends it, escapes something, or must
/// not be in one.
pub(super) fn ordinary(bytes: &[u8]) -> usize {
    // Most strings are short.
    if let Some(word) = bytes.first_chunk()
        && let Some(found) = first_mark(word)
    {
        return found;
    }
    // All of a block, whatever is in it: processors look at many bytes at once, but not at one and then decide.
    // Of 64 bytes, because what follows each of them is a decision.
    let (blocks, _) = bytes.as_chunks::<64>();
    let is_ordinary = |block: &&[u8; 64]| {
        !block.iter().fold(false, |any, &byte| {
            any | (byte < b' ') | (byte == b'"') | (byte == b'\\')
        })
    };
    let mut passed = 64 * blocks.iter().take_while(is_ordinary).count();
    let (words, rest) = bytes[passed..].as_chunks();
    for word in words {
        match first_mark(word) {
            Some(found) => return passed + found,
            None => passed += word.len(),
        }
    }
    let is_ordinary = |byte: &&u8| !matches!(byte, ..b' ' | b'"' | b'\\');
    passed + rest.iter().take_while(is_ordinary).count()
}

/// Where in a word the first byte is that means something: all of them are compared at once. What a difference borrows
/// it borrows from later bytes, so the first one found is right.
#[inline]
pub(super) fn first_mark(word: &[u8; 8]) -> Option<usize> {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let word = u64::from_le_bytes(*word);
    let below = |word: u64, least: u8| word.wrapping_sub(EACH * u64::from(least)) & !word;
    let is = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    let marks = (below(word, b' ') | is(b'"') | is(b'\\')) & HIGH;
    (marks != 0).then(|| marks.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_ordinary_is_the_same_byte_by_byte(
            bytes in prop::collection::vec(prop_oneof![
                20 => b' '..=b'!',
                4 => any::<u8>(),
                1 => prop::sample::select(&b"\x00\x1f\x20\x21\"#[\\]\x7f\x80\xa2\xdc\xff"[..]),
            ], 0..120),
        ) {
            let means_something = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
            let expected = bytes.iter().position(means_something);
            prop_assert_eq!(ordinary(&bytes), expected.unwrap_or(bytes.len()));
        }
    }
}
