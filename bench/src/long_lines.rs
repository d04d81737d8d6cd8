//! Long lines: a request of 1, 8 and 32 MB, and its answer of the same length.

use std::io;
use std::time::Duration;

use crate::memory::Weight;
use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::{median, micros, ratio};
use crate::{Options, Outcome};

/// In megabytes.
const LENGTHS: [usize; 3] = [1, 8, 32];
/// Kennel may take this many times what the direct way takes.
const BOUND: f64 = 1.5;
/// A megabyte of the longest line may take this many times what one of the shortest takes.
const LINEAR: f64 = 2.0;
/// What a long line may leave behind: this many times what was held before it.
const LEFT: f64 = 2.0;
const BATCHES: usize = 5;
const WAYS: [Way; 4] = [Way::Direct, Way::Relay, Way::Solo, Way::Daemon];
/// The ways that are judged, as places in [`WAYS`].
const JUDGED: [usize; 2] = [2, 3];

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let lines = options.count(5, 1);
    let place = Place::new()?;
    let mut routes = Vec::new();
    for way in WAYS {
        let mut route = Route::start(place.command(way)?)?;
        route.initialize()?;
        route.echo("short")?;
        routes.push(route);
    }
    let kennels = [
        ("shim, solo", routes[2].pid()),
        ("shim of a daemon", routes[3].pid()),
        ("daemon", place.daemon()?),
    ];
    let weigh = || kennels.map(|(_, pid)| Weight::of(pid).map(|weight| weight.rss));
    let before = weigh();

    let batches = if options.quick { 1 } else { BATCHES };
    let mut rows = Vec::new();
    let mut bounds = Vec::new();
    let mut per_megabyte = [[0.0; WAYS.len()]; LENGTHS.len()];
    for (place_of, length) in LENGTHS.into_iter().enumerate() {
        let measured = measure(&mut routes, length, lines, batches)?;
        for (way, kind) in WAYS.into_iter().enumerate() {
            let millis = median(measured.iter().map(|batch| micros(batch[way]) / 1000.0));
            let to_direct = median(measured.iter().map(|batch| ratio(batch[way], batch[0])));
            per_megabyte[place_of][way] = millis / length as f64;
            rows.push(Row {
                name: format!("{length} MB, {}", kind.name()),
                numbers: vec![Some(millis), Some(millis / length as f64), Some(to_direct)],
            });
            if JUDGED.contains(&way) {
                bounds.push(Bound {
                    what: format!("{length} MB, {} takes", kind.name()),
                    value: to_direct,
                    unit: "x of direct",
                    at_most: BOUND,
                    aim: None,
                });
            }
        }
    }
    for way in JUDGED {
        let [shortest, .., longest] = per_megabyte;
        bounds.push(Bound {
            what: format!("{}: a megabyte of 32 takes", WAYS[way].name()),
            value: longest[way] / shortest[way],
            unit: "x of one alone",
            at_most: LINEAR,
            aim: None,
        });
    }
    // A short line more: whatever is kept is kept for the next one.
    for route in &mut routes {
        route.echo("short")?;
    }
    for (((name, _), before), after) in kennels.iter().zip(before).zip(weigh()) {
        bounds.push(Bound {
            what: format!("{name}: after all of them it holds"),
            value: after? / before?,
            unit: "x of before",
            at_most: LEFT,
            aim: None,
        });
    }
    let report = Report {
        benchmark: "long-lines",
        about: format!(
            "a request of so many megabytes and its answer of the same length, {lines} in each of\n\
             {batches} batches that take turns; medians of the batches' fastest. The server does nothing\n\
             with what it hears but say it again, and the bare relay sends on what it has: Kennel looks\n\
             at a whole line before it passes the first byte on."
        ),
        columns: vec!["best_ms", "ms_per_mb", "to_direct"],
        rows,
        bounds,
    };
    Ok(report.print(options))
}

/// The shortest time of each way, batch by batch: what is longer is somebody else's work.
fn measure(
    routes: &mut [Route],
    megabytes: usize,
    lines: usize,
    batches: usize,
) -> io::Result<Vec<[Duration; WAYS.len()]>> {
    let text = "x".repeat(megabytes << 20);
    let one = |turn: usize| {
        let mut batch = [Duration::ZERO; WAYS.len()];
        for step in 0..WAYS.len() {
            let way = (turn + step) % WAYS.len();
            let times: io::Result<Vec<_>> = (0..lines).map(|_| routes[way].echo(&text)).collect();
            batch[way] = times?.into_iter().min().expect("at least one line");
        }
        Ok(batch)
    };
    (0..batches).map(one).collect()
}
