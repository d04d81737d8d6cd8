//! A shared server that is stopped while requests are pending: the log says so, once.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Instant;

use kennel_sys::tree::Tree;

use super::house::House;
use super::station::Station;
use super::tasks::{Either, Notify, first_of, moments};
use crate::stopped::{Checks, Reported, SETTLE};

/// What the watch over a server waits for. It is told at most once a second: a line costs it a comparison.
#[derive(Debug, Default)]
pub(super) struct StopWatch {
    wants: Cell<Wants>,
    /// When the server last said something.
    spoke: Cell<Option<Instant>>,
    news: Notify,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Wants {
    #[default]
    Nothing,
    /// To hear of the next request: none is pending.
    Request,
    /// To hear that the server speaks: it owes an answer.
    Line,
}

impl StopWatch {
    /// A line goes to the server.
    pub(super) fn request_sent(&self) {
        self.tell_if(Wants::Request);
    }

    pub(super) fn server_spoke(&self, at: Instant) {
        self.spoke.set(Some(at));
        self.tell_if(Wants::Line);
    }

    fn tell_if(&self, wanted: Wants) {
        if self.wants.get() == wanted {
            self.wants.set(Wants::Nothing);
            self.news.notify_one();
        }
    }
}

/// Keeps the time of a server: of what its clients owe, and of what it owes them.
pub(super) async fn keep_time(house: &House, station: &Station, tree: &Tree) -> Infallible {
    let clients = pin!(station.keep_time(house));
    match Either::of(clients, pin!(watch(house, station, tree))).await {}
}

/// Checks now and then whether a server that owes an answer is stopped.
async fn watch(house: &House, station: &Station, tree: &Tree) -> Infallible {
    let watch = &station.stop_watch;
    let mut reported = Reported::default();
    loop {
        let Some(since) = silent_since(house, station) else {
            watch.wants.set(Wants::Request);
            watch.news.notified().await;
            moments::after(SETTLE).await;
            continue;
        };
        // Most requests are answered soon: no timer is set for them and turned off again.
        if since.elapsed() < SETTLE {
            moments::until(Some(since + SETTLE)).await;
            continue;
        }
        let mut checks = Checks::since(since);
        while silent_since(house, station) == Some(since) {
            watch.wants.set(Wants::Line);
            first_of! {
                () = watch.news.notified() => reported.runs(),
                // Whoever waited may have left.
                () = station.stirred.notified() => {},
                () = moments::until(Some(checks.next())) => {
                    // What cannot be looked at is not reported.
                    if let Some(words) = reported.news(tree.stopped().unwrap_or_default()) {
                        house.log.line(words);
                    }
                    checks.checked(Instant::now());
                },
            }
        }
        watch.wants.set(Wants::Nothing);
    }
}

/// Since when a request is pending and the server says nothing; `None` if no request is pending.
fn silent_since(house: &House, station: &Station) -> Option<Instant> {
    let asked = house.instant(station.pending_since()?);
    Some(
        station
            .stop_watch
            .spoke
            .get()
            .map_or(asked, |spoke| spoke.max(asked)),
    )
}
