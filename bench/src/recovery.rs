//! From the kill of a server or of a daemon to the next answer: what a session takes to go on.

use std::io;
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use serde_json::Value;

use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::{median, micros};
use crate::{Options, Outcome};

const CLIENTS: usize = 10;
/// Going on may take this many times what it takes to start Kennel with the server anew, daemon included.
const BOUND: f64 = 4.0;
/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who is killed under how many clients.
const CASES: [(&str, Way, usize, Victim); 4] = [
    ("solo, server killed", Way::Solo, 1, Victim::Server),
    (
        "shared, server killed",
        Way::Daemon,
        CLIENTS,
        Victim::Server,
    ),
    (
        "shared, daemon killed",
        Way::Daemon,
        CLIENTS,
        Victim::Daemon,
    ),
    ("shared, both killed", Way::Daemon, CLIENTS, Victim::Both),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Daemon,
    Both,
}

/// Until the first client was answered, and until all were.
struct Took {
    first: Duration,
    all: Duration,
}

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let rounds = options.count(20, 3);
    let place = Place::new()?;
    let mut anew = Vec::new();
    let mut took: [Vec<Took>; CASES.len()] = Default::default();
    for _ in 0..rounds {
        let started = Instant::now();
        Route::start(place.command(Way::Daemon)?)?.initialize()?;
        anew.push(started.elapsed());
        place.stop_all()?;
        for (times, (_, way, clients, victim)) in took.iter_mut().zip(CASES) {
            times.push(one(&place, way, clients, victim)?);
            place.stop_all()?;
        }
    }
    let millis =
        |times: &mut dyn Iterator<Item = Duration>| median(times.map(|time| micros(time) / 1000.0));
    let anew = millis(&mut anew.into_iter());
    let mut rows = vec![Row {
        name: "a session from cold".to_owned(),
        numbers: vec![Some(anew), None, Some(1.0)],
    }];
    let mut bounds = Vec::new();
    for ((name, ..), times) in CASES.iter().zip(&took) {
        let first = millis(&mut times.iter().map(|took| took.first));
        let all = millis(&mut times.iter().map(|took| took.all));
        rows.push(Row {
            name: (*name).to_owned(),
            numbers: vec![Some(first), Some(all), Some(first / anew)],
        });
        bounds.push(Bound {
            what: format!("{name}: the first to go on takes"),
            value: first / anew,
            unit: "x of that",
            at_most: BOUND,
            aim: None,
        });
    }
    let report = Report {
        benchmark: "recovery",
        about: format!(
            "from a kill -9 to the next answer, {rounds} times each, taking turns; medians. Shared: {CLIENTS}\n\
             clients, who ask one after the other; `all` is when the last of them was answered."
        ),
        columns: vec!["first_ms", "all_ms", "to_a_start"],
        rows,
        bounds,
    };
    Ok(report.print(options))
}

fn one(place: &Place, way: Way, clients: usize, victim: Victim) -> io::Result<Took> {
    let mut routes = Vec::new();
    for _ in 0..clients {
        let mut route = Route::start(place.command(way)?)?;
        route.initialize()?;
        route.echo("before")?;
        routes.push(route);
    }
    let (daemon, server) = who_serves(place, way)?;
    let doomed = match victim {
        Victim::Server => [None, Some(server)],
        Victim::Daemon => [daemon, None],
        Victim::Both => [daemon, Some(server)],
    };
    let killed = Instant::now();
    for process in doomed.iter().flatten() {
        process.signal(Signal::KILL)?;
    }
    let mut first = None;
    for route in &mut routes {
        go_on(route, killed)?;
        first.get_or_insert_with(|| killed.elapsed());
    }
    let all = killed.elapsed();
    Ok(Took {
        first: first.unwrap_or(all),
        all,
    })
}

/// The daemon, if it is one, and the server. What `kennel ps` tells may be a moment old.
fn who_serves(place: &Place, way: Way) -> io::Result<(Option<ProcessRef>, ProcessRef)> {
    let deadline = Instant::now() + PATIENCE;
    let open = |value: &Value| {
        let pid = value.as_u64().and_then(|pid| u32::try_from(pid).ok())?;
        ProcessRef::open(pid).ok()
    };
    loop {
        let listed = place.listed()?;
        let daemon = open(&listed[0]["daemon_pid"]);
        let server = open(&listed[0]["servers"][0]["pid"]);
        match server {
            Some(server) if daemon.is_some() || way == Way::Solo => return Ok((daemon, server)),
            _ if Instant::now() > deadline => {
                return Err(io::Error::other("`kennel ps` does not know the server"));
            }
            _ => pause(),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "before the clock runs: what is listed changes without a word"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Asks until there is an answer: what was under way when it died may have an unknown outcome.
fn go_on(route: &mut Route, killed: Instant) -> io::Result<()> {
    while let Err(error) = route.echo("after") {
        if killed.elapsed() > PATIENCE {
            return Err(error);
        }
    }
    Ok(())
}
