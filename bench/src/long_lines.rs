//! Long lines: a request of 1, 8 and 32 MB, and its answer of the same length.

mod subject;

use std::io;
use std::process::Stdio;
use std::time::Duration;

use kennel_sys::events;

use crate::memory::Weight;
use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::{median, micros, ratio};
use crate::{Options, Outcome};
use subject::Subject;

/// Kennel may take this many times what the direct way takes.
const BOUND: f64 = 1.5;
/// A megabyte of the longest line may take this many times what one of the shortest takes.
const LINEAR: f64 = 2.0;
/// What a long line may leave behind: this many times what was held before it.
const LEFT: f64 = 2.0;
/// The memory of a long line is kept for the next one for a second, and not longer.
const KEPT: Duration = Duration::from_secs(2);
const BATCHES: usize = 5;
const WAYS: [Way; 4] = [Way::Direct, Way::Relay, Way::Solo, Way::Daemon];
/// The ways that are judged, as places in [`WAYS`].
const JUDGED: [usize; 2] = [2, 3];

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let batches = if options.quick { 1 } else { BATCHES };
    let mut measured = Measured::default();
    let mut missing = Vec::new();
    for subject in Subject::all() {
        match subject.is_there() {
            Ok(()) => measure(&subject, options, batches, &mut measured)?,
            Err(why) => missing.push(format!("\n{} is not measured: {why}.", subject.name)),
        }
    }
    let report = Report {
        benchmark: "long-lines",
        about: format!(
            "a request of so many megabytes and its answer of the same length, in {batches} batches that\n\
             take turns; medians of the batches' fastest. `notes` writes it to a database and reads it\n\
             back, `python` and `everything` are what the official SDKs make of it. The bare echo does\n\
             nothing with what it hears but say it again, and the bare relay sends on what it has: that\n\
             is the floor. Of the bare echo, Kennel's way through the daemon is shown and not judged: all\n\
             of an answer is read twice before its first byte is passed on, and no server's work is beside\n\
             that.{}",
            missing.concat()
        ),
        columns: vec!["best_ms", "ms_per_mb", "to_direct"],
        rows: measured.rows,
        bounds: measured.bounds,
    };
    Ok(report.print(options))
}

#[derive(Debug, Default)]
struct Measured {
    rows: Vec<Row>,
    bounds: Vec<Bound>,
}

fn measure(
    subject: &Subject,
    options: &Options,
    batches: usize,
    measured: &mut Measured,
) -> io::Result<()> {
    let lines = options.count(subject.lines, 1);
    let place = Place::new()?;
    let mut routes = Vec::new();
    for way in WAYS {
        let mut command = place.command_of(way, &subject.command(&place, way)?)?;
        // Some say hello there.
        command.stderr(Stdio::null());
        let mut route = Route::start(command)?;
        route.initialize()?;
        route.confirm()?;
        subject.talk(&mut route, "short")?;
        routes.push(route);
    }
    let kennels = [
        ("shim, solo", routes[2].pid()),
        ("shim of a daemon", routes[3].pid()),
        ("daemon", place.daemon()?),
    ];
    let weigh = || kennels.map(|(_, pid)| Weight::of(pid).map(|weight| weight.rss));
    let before = weigh();
    let mut per_megabyte = Vec::new();
    for &length in subject.megabytes(options.quick) {
        let times = times(subject, &mut routes, length, lines, batches)?;
        let mut of_length = [0.0; WAYS.len()];
        for (way, kind) in WAYS.into_iter().enumerate() {
            let millis = median(times.iter().map(|batch| micros(batch[way]) / 1000.0));
            let to_direct = median(times.iter().map(|batch| ratio(batch[way], batch[0])));
            of_length[way] = millis / length as f64;
            let name = format!("{}, {length} MB, {}", subject.name, kind.name());
            if JUDGED.contains(&way) && subject.is_judged(kind) {
                measured.bounds.push(Bound {
                    what: format!("{name} takes"),
                    value: to_direct,
                    unit: "x of direct",
                    at_most: BOUND,
                    aim: None,
                });
            }
            measured.rows.push(Row {
                name,
                numbers: vec![Some(millis), Some(of_length[way]), Some(to_direct)],
            });
        }
        per_megabyte.push(of_length);
    }
    if let [shortest, .., longest] = &per_megabyte[..] {
        for way in JUDGED {
            // Where a server itself takes longer for what is longer, so does the way to it.
            let direct = (longest[0] / shortest[0]).max(1.0);
            measured.bounds.push(Bound {
                what: format!(
                    "{}, {}: a megabyte of the longest takes",
                    subject.name,
                    WAYS[way].name()
                ),
                value: longest[way] / shortest[way] / direct,
                unit: "x of one alone",
                at_most: LINEAR,
                aim: None,
            });
        }
    }
    events::sleep(&[], &[], Some(KEPT))?;
    for (((name, _), before), after) in kennels.iter().zip(before).zip(weigh()) {
        measured.bounds.push(Bound {
            what: format!("{}, {name}: after all of them it holds", subject.name),
            value: after? / before?,
            unit: "x of before",
            at_most: LEFT,
            aim: None,
        });
    }
    Ok(())
}

/// The shortest time of each way, batch by batch: what is longer is somebody else's work.
fn times(
    subject: &Subject,
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
            let times: io::Result<Vec<_>> = (0..lines)
                .map(|_| subject.talk(&mut routes[way], &text))
                .collect();
            batch[way] = times?.into_iter().min().expect("at least one line");
        }
        Ok(batch)
    };
    (0..batches).map(one).collect()
}
