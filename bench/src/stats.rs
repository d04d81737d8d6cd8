//! Percentiles, and ratios of them.

use std::time::Duration;

/// The value that `percent` of all values do not exceed (nearest rank). `sorted` is not empty.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

pub(crate) fn ratio(ours: Duration, plain: Duration) -> f64 {
    ours.as_secs_f64() / plain.as_secs_f64()
}

/// The middle value; of an even number the upper of the two in the middle. `values` is not empty.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values_measured() {
        let sorted: Vec<_> = (1..=500).map(Duration::from_micros).collect();

        assert_eq!(percentile(&sorted, 50), Duration::from_micros(250));
        assert_eq!(percentile(&sorted, 99), Duration::from_micros(495));
        assert_eq!(percentile(&sorted[..1], 99), Duration::from_micros(1));
    }

    #[test]
    fn one_wild_batch_does_not_move_the_median_of_three() {
        assert_eq!(median([1.0, 9.0, 1.1]), 1.1);
    }
}
