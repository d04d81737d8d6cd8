//! Durations as people write them: `500ms`, `1.5s`, `30s`, `5m`, `2h`.

use std::time::Duration;

/// The error for a string that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadDuration(String);

impl std::fmt::Display for BadDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} is not a duration: write a number and its unit, as in 500ms, 30s, 5m, 2h or 1.5s",
            self.0
        )
    }
}

impl std::error::Error for BadDuration {}

/// Maximum duration: ten years. Adding it to the present time cannot overflow.
const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// Maximum number of decimal places that are parsed; further ones are ignored.
const MAX_DECIMALS: usize = 9;

/// Parses a duration, of whole milliseconds and at most ten years. A bare `0` needs no unit.
pub(crate) fn parse(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration(text.to_owned());
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, unit) = text.split_at(text.bytes().take_while(is_number).count());
    let (whole, decimals) = match number.split_once('.') {
        Some((_, "")) => return Err(bad()),
        Some((whole, decimals)) => (whole, decimals),
        None => (number, ""),
    };
    if !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let decimals = &decimals[..decimals.len().min(MAX_DECIMALS)];
    let fraction: u64 = format!("{decimals:0<MAX_DECIMALS$}")
        .parse()
        .map_err(|_| bad())?;
    let millis_each: u128 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "" if whole == 0 && fraction == 0 => 1,
        _ => return Err(bad()),
    };
    let billion = 10u128.pow(MAX_DECIMALS as u32);
    let billionths = u128::from(whole) * billion + u128::from(fraction);
    // Rounded up, so that a duration above zero stays above zero.
    let millis = (billionths * millis_each).div_ceil(billion);
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    Ok(Duration::from_millis(millis).min(MAX_DURATION))
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
            ("1.5s", 1_500),
            ("0.25m", 15_000),
            ("1.0001s", 1_001),
            ("0.5ms", 1),
            ("0.0", 0),
            ("18446744073709551615h", MAX_DURATION.as_millis() as u64),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5",
            "1.s",
            ".5s",
            "1.5.5s",
            "1,5s",
            "5 s",
            "5S",
            "5d",
            "99999999999999999999s",
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
