//! Sizes as people write them: `64K`, `8M`, `128MiB`, `1G`.

/// Default maximum length of a line, in bytes.
pub(crate) const DEFAULT_MAX_LINE: usize = 128 << 20;
/// Minimum of that limit, in bytes: buffers have about this size anyway.
pub(crate) const MIN_MAX_LINE: usize = 256 * 1024;

/// The error for a string that is not a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadSize(String);

impl std::fmt::Display for BadSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} is not a size: write a number and its unit, as in 512K, 8M, 128MiB or 1G",
            self.0
        )
    }
}

impl std::error::Error for BadSize {}

/// Parses a size in bytes. Units are powers of 1024; a number without a unit is bytes.
pub(crate) fn parse(text: &str) -> Result<usize, BadSize> {
    let bad = || BadSize(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| bad())?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let bytes_each = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return Err(bad()),
    };
    number.checked_mul(bytes_each).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_unit_is_a_size_and_nothing_else_is() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("64K", 65_536),
            ("8M", 8 << 20),
            ("8 MB", 8 << 20),
            ("128MiB", 128 << 20),
            ("1g", 1 << 30),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "M",
            "8X",
            "-1M",
            "1.5M",
            "8M!",
            "99999999999999999999",
            "99999999999G",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
