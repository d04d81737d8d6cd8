//! A request and its answer: directly, through the least a relay can do, and through `kennel run`.
//!
//! All take turns, batch by batch, on one small server that answers at once, [in a quiet place](crate::quiet):
//! what is measured is the work on the way, and not whom a scheduler happens to put where.

use std::io;
use std::time::Duration;

use crate::place::{Place, Way};
use crate::quiet::Quiet;
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::{median, micros, percentile, ratio};
use crate::{Options, Outcome};

/// Kennel may take this many times what the bare relays take, at the median.
const BOUND: f64 = 1.25;
/// Many and short, so that a disturbance spoils few of them; an odd number, so that the median is one.
const BATCHES: usize = 41;
const WARM_UP: usize = 300;
/// Each way of Kennel's behind the floor it is held against.
const WAYS: [Way; 5] = [
    Way::Direct,
    Way::Relay,
    Way::Solo,
    Way::TwoRelays,
    Way::Daemon,
];
/// The ways that are judged, and their floors, as places in [`WAYS`].
const JUDGED: [(usize, usize); 2] = [(2, 1), (4, 3)];

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let trips = options.count(200, 100);
    let batches = measure(trips, if options.quick { 5 } else { BATCHES })?;

    let of = |way: usize, percent| {
        let times = batches.iter().map(|batch| percentile(&batch[way], percent));
        median(times.map(micros))
    };
    let against = |way: usize, floor: usize, percent| {
        let ratios = batches.iter().map(|batch| {
            ratio(
                percentile(&batch[way], percent),
                percentile(&batch[floor], percent),
            )
        });
        median(ratios)
    };
    let floor_of = |way| JUDGED.iter().find(|(judged, _)| *judged == way);
    let rows = (0..WAYS.len()).map(|way| {
        let floor = floor_of(way).map(|&(_, floor)| floor);
        Row {
            name: WAYS[way].name().to_owned(),
            numbers: vec![
                Some(of(way, 50)),
                Some(of(way, 99)),
                Some(against(way, 0, 50)),
                floor.map(|floor| against(way, floor, 50)),
                floor.map(|floor| against(way, floor, 99)),
            ],
        }
    });
    let bounds = JUDGED.map(|(way, floor)| Bound {
        what: format!("{} takes, at p50,", WAYS[way].name()),
        value: against(way, floor, 50),
        unit: match floor {
            1 => "x of the bare relay",
            _ => "x of two bare relays",
        },
        at_most: BOUND,
        aim: None,
    });
    let report = Report {
        benchmark: "round-trip",
        about: format!(
            "a request and its answer, {trips} in each of {} batches that take turns, all on\n\
             one processor and without preemption. Medians of the batches, and of the ratios within each.",
            batches.len()
        ),
        columns: vec![
            "p50_us",
            "p99_us",
            "to_direct",
            "to_floor_p50",
            "to_floor_p99",
        ],
        rows: rows.collect(),
        bounds: bounds.into(),
    };
    Ok(report.print(options))
}

/// The times of one batch, sorted, by way.
type Batch = [Vec<Duration>; WAYS.len()];

fn measure(trips: usize, batches: usize) -> io::Result<Vec<Batch>> {
    let _quiet = Quiet::here();
    let place = Place::new()?;
    let text = "x".repeat(80);
    let mut routes = Vec::new();
    for way in WAYS {
        let mut route = Route::start(place.command(way)?)?;
        for _ in 0..WARM_UP {
            route.echo(&text)?;
        }
        routes.push(route);
    }
    let one = |turn: usize, routes: &mut Vec<Route>| {
        let mut batch = Batch::default();
        for step in 0..WAYS.len() {
            let way = (turn + step) % WAYS.len();
            let times: io::Result<Vec<_>> = (0..trips).map(|_| routes[way].echo(&text)).collect();
            batch[way] = times?;
            batch[way].sort();
        }
        Ok(batch)
    };
    (0..batches).map(|turn| one(turn, &mut routes)).collect()
}
