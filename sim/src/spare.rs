//! The program's restart budget counts in `Instant`s: moments of the world as such, and back.

use std::sync::OnceLock;
use std::time::Instant;

use kennel_core::time::Moment;

/// Any instant will do: only differences count.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

pub(crate) fn instant(moment: Moment) -> Instant {
    start() + (moment - Moment::START)
}

pub(crate) fn moment(instant: Instant) -> Moment {
    Moment::START + instant.saturating_duration_since(start())
}
