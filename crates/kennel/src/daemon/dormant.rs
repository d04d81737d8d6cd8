//! A server that nobody has asked anything for long, where its sessions said that it may hibernate then.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::house::House;
use super::station::Station;
use super::tasks::{first_of, moments};

/// However soon a hello wants its server to hibernate: while the server works, it is looked at again after this time.
const SOONEST: Duration = Duration::from_millis(10);

/// How long a server waits before it hibernates, as the most patient of its clients wants it (in milliseconds).
pub(super) fn patience(wishes: &[u64]) -> Option<Duration> {
    let most_patient = wishes.iter().max()?;
    Some(Duration::from_millis(*most_patient).max(SOONEST))
}

/// When a server was last of use.
#[derive(Debug)]
pub(super) struct Used(Cell<Instant>);

impl Used {
    pub(super) fn now() -> Used {
        Used(Cell::new(Instant::now()))
    }

    pub(super) fn at(&self, at: Instant) {
        self.0.set(at);
    }

    pub(super) fn is_longer_ago_than(&self, time: Duration, at: Instant) -> bool {
        at.saturating_duration_since(self.0.get()) > time
    }

    fn until(&self, after: Duration) -> Instant {
        self.0.get() + after
    }
}

/// Waits until the station's server has been of no use for as long as it may be; for ever, if that is for ever. One that
/// works on a task is of use.
pub(super) async fn dormant(station: &Station) {
    loop {
        let Some(after) = station.hibernates_after() else {
            station.stirred.notified().await;
            continue;
        };
        let idle = station.is_idle();
        let until = match idle {
            true => station.used.until(after),
            false => Instant::now() + after,
        };
        if idle && until <= Instant::now() {
            return;
        }
        first_of! {
            // Somebody may have come who does not want that.
            () = station.stirred.notified() => {},
            () = moments::until(Some(until)) => {},
        }
    }
}

/// Its clients are told that it is stopped, and come back when they need it.
pub(super) fn put_to_rest(house: &House, station: &Station) {
    let clients = station.dismiss_all();
    house.log.line(format_args!(
        "a server hibernates: nobody asked it anything; clients: {}",
        clients.len()
    ));
    for link in clients.values() {
        link.rest();
    }
    house.stir();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_patient_client_counts_and_no_server_hibernates_at_once() {
        assert_eq!(patience(&[]), None);
        assert_eq!(patience(&[700, 70]), Some(Duration::from_millis(700)));
        assert_eq!(patience(&[0]), Some(SOONEST));
        assert!(!SOONEST.is_zero());
    }
}
