//! Durations as people write them: `500ms`, `30s`, `5m`, `2h`.

use std::time::Duration;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadDuration(String);

impl std::fmt::Display for BadDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} is not a duration: write a number and its unit, as in 500ms, 30s, 5m or 2h",
            self.0
        )
    }
}

impl std::error::Error for BadDuration {}

/// Reads a duration. A bare `0` needs no unit.
pub(crate) fn parse(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let millis_each = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "" if number == 0 => 1,
        _ => return Err(bad()),
    };
    let millis = number.checked_mul(millis_each).ok_or_else(bad)?;
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_its_unit_is_a_duration_and_nothing_else_is() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "5 s",
            "5S",
            "5d",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
