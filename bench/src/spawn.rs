//! From the start of a client to its first answer, and to its daemon.
//!
//! The answer to `initialize` needs a server, whose start is not Kennel's time: so each way is held against
//! the same server started directly. The attach needs none. From outside it shows in the daemon's log: the
//! line that the client attached is written as the daemon's hello goes out, and the file tells us so at once.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::{median, micros, percentile};
use crate::{Options, Outcome};

/// From the start of a shim to a daemon that is there.
const ATTACH_AIM_MS: f64 = 2.0;
const ATTACH_BOUND_MS: f64 = 4.0;
/// No client takes longer to attach.
const PATIENCE: Duration = Duration::from_secs(10);
const BATCHES: usize = 5;
const WAYS: [&str; 5] = [
    "direct",
    "solo",
    "daemon, cold",
    "daemon, warm",
    "attach, warm",
];

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let starts = options.count(20, 5);
    let place = Place::new()?;
    // Whatever is read from disk is read now.
    for way in [Way::Direct, Way::Solo, Way::Daemon] {
        first_answer(&place, way)?;
    }
    let batches = (0..BATCHES)
        .map(|_| Batch::measure(&place, starts))
        .collect::<io::Result<Vec<_>>>()?;

    let millis = |way: usize, percent| {
        let times = batches.iter().map(|batch| &batch.times[way]);
        median(times.map(|times| micros(percentile(times, percent)) / 1000.0))
    };
    let rows = WAYS.iter().enumerate().map(|(way, name)| Row {
        name: (*name).to_owned(),
        numbers: vec![
            Some(millis(way, 50)),
            Some(millis(way, 99)),
            // The attach is no part of a direct start.
            (way < 4).then(|| millis(way, 50) - millis(0, 50)),
        ],
    });
    let report = Report {
        benchmark: "spawn",
        about: format!(
            "from the start of a client to the answer to `initialize`, {starts} times in each of\n\
             {BATCHES} batches that take turns; cold: it has to start the daemon first. The attach: from\n\
             the start of `kennel run --share always` to the line of the daemon's log that says so."
        ),
        columns: vec!["p50_ms", "p99_ms", "over_direct"],
        rows: rows.collect(),
        bounds: vec![Bound {
            what: "a warm attach takes, at p50,".to_owned(),
            value: millis(4, 50),
            unit: " ms",
            at_most: ATTACH_BOUND_MS,
            aim: Some(ATTACH_AIM_MS),
        }],
    };
    Ok(report.print(options))
}

/// The times of one batch, each list sorted, in the order of [`WAYS`].
#[derive(Default)]
struct Batch {
    times: [Vec<Duration>; WAYS.len()],
}

impl Batch {
    fn measure(place: &Place, starts: usize) -> io::Result<Batch> {
        let mut batch = Batch::default();
        for _ in 0..starts {
            batch.times[0].push(first_answer(place, Way::Direct)?);
            batch.times[1].push(first_answer(place, Way::Solo)?);
            place.stop_all()?;
            let cold = Instant::now();
            let mut first = Route::start(place.command(Way::Daemon)?)?;
            first.initialize()?;
            batch.times[2].push(cold.elapsed());
            batch.times[3].push(first_answer(place, Way::Daemon)?);
            batch.times[4].push(attach(place)?);
        }
        for times in &mut batch.times {
            times.sort();
        }
        Ok(batch)
    }
}

/// From the start of a client to the answer to its `initialize`.
pub(crate) fn first_answer(place: &Place, way: Way) -> io::Result<Duration> {
    let command = place.command(way)?;
    let started = Instant::now();
    Route::start(command)?.initialize()?;
    Ok(started.elapsed())
}

/// From the start of a client to its daemon, which is there.
fn attach(place: &Place) -> io::Result<Duration> {
    let log = place.daemon_log()?;
    let before = std::fs::read(&log)?.len();
    let news = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&news, &log, inotify::WatchFlags::MODIFY)?;
    let command = place.command(Way::Daemon)?;
    let started = Instant::now();
    let route = Route::start(command)?;
    let attached = format!("(process {}) attached", route.pid());
    let deadline = started + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::other("a client did not attach"));
        }
        let left = Timespec::try_from(left).expect("a short time");
        poll(&mut [PollFd::new(&news, PollFlags::IN)], Some(&left))?;
        let woken = Instant::now();
        let _ = rustix::io::read(&news, &mut [0u8; 4096]);
        let said = std::fs::read(&log)?;
        let said = String::from_utf8_lossy(&said[before.min(said.len())..]);
        if said.contains(&attached) {
            return Ok(woken - started);
        }
    }
}
