//! This build of Kennel against a former one: round trip, warm attach, start, memory and long lines.
//!
//! Three arms take turns in every batch: the former build, the former build once more, and this build. The ratio of
//! the first two is what this machine makes of equal programs (the A/A spread). This build may take the larger of
//! that spread and a fixed allowance.
//!
//! Every place has a copy of its program: how a file came to lie in the page cache decides how many pages of it the kernel
//! maps around a fault, and that alone makes a fifth of the memory of equal programs. So it belongs to the spread.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::memory::settled;
use crate::place::{Place, Way};
use crate::quiet::Quiet;
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::spawn::first_answer;
use crate::stats::{median, micros, percentile};
use crate::{Options, Outcome, beside_us};

/// How much more than the former build this one may take, whatever the spread is.
const ALLOWANCE: f64 = 1.03;
/// The same for the start of a session.
const ATTACH_ALLOWANCE: f64 = 1.05;
/// The former build, the former build once more, and this build.
const ARMS: usize = 3;
/// Clients that are weighed together.
const CLIENTS: usize = 10;
const LONG_LINE: usize = 8 << 20;
const WARM_UP: usize = 300;

/// One quantity, measured for each arm in each batch.
struct Metric {
    name: &'static str,
    allowance: f64,
    batches: Vec<[f64; ARMS]>,
}

impl Metric {
    fn of(&self, arm: usize) -> f64 {
        median(self.batches.iter().map(|batch| batch[arm]))
    }

    /// How far two runs of the same program are apart, as a ratio of at least 1, with three digits.
    fn spread(&self) -> f64 {
        let ratio = median(self.batches.iter().map(|batch| batch[1] / batch[0]));
        (ratio.max(1.0 / ratio) * 1000.0).round() / 1000.0
    }

    /// What this build takes of what the former one takes.
    fn ratio(&self) -> f64 {
        let former = |batch: &[f64; ARMS]| (batch[0] + batch[1]) / 2.0;
        median(self.batches.iter().map(|batch| batch[2] / former(batch)))
    }
}

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let former = options.against.clone().ok_or_else(|| {
        io::Error::other(
            "there is no former build to compare with: say `--against` and a commit or its `kennel`",
        )
    })?;
    let kennels = [former.clone(), former, beside_us("kennel")?];
    let batches = |full, quick| match options.quick {
        true => quick,
        false => full,
    };
    let mut metrics = round_trips(&kennels, options.count(200, 50), batches(41, 3))?;
    metrics.extend(starts(&kennels, options.count(10, 3), batches(15, 3))?);
    metrics.extend(long_lines(&kennels, batches(9, 3))?);
    metrics.extend(memory(&kennels, batches(5, 3))?);

    let report = Report {
        benchmark: "former",
        about: "this build and a former one, which takes part twice: `spread` is the ratio of its two parts.\n\
                Medians of batches in which all take turns; ratios are medians of the ratios within a batch."
            .to_owned(),
        columns: vec!["former", "once_more", "this_build", "spread", "ratio"],
        rows: metrics
            .iter()
            .map(|metric| Row {
                name: metric.name.to_owned(),
                numbers: vec![
                    Some(metric.of(0)),
                    Some(metric.of(1)),
                    Some(metric.of(2)),
                    Some(metric.spread()),
                    Some(metric.ratio()),
                ],
            })
            .collect(),
        bounds: metrics
            .iter()
            .map(|metric| Bound {
                what: format!("{}: this build takes", metric.name),
                value: metric.ratio(),
                unit: "x of the former",
                at_most: metric.allowance.max(metric.spread()),
                aim: None,
            })
            .collect(),
    };
    Ok(report.print(options))
}

fn places(kennels: &[PathBuf; ARMS]) -> io::Result<Vec<Place>> {
    let place = |kennel: &PathBuf| Place::with_copy_of(kennel);
    kennels.iter().map(place).collect()
}

/// Asks each arm in turn, beginning with another one in every batch.
fn in_turns(
    batches: usize,
    mut measure: impl FnMut(usize) -> io::Result<f64>,
) -> io::Result<Vec<[f64; ARMS]>> {
    let batch = |first: usize| {
        let mut batch = [0.0; ARMS];
        for step in 0..ARMS {
            let arm = (first + step) % ARMS;
            batch[arm] = measure(arm)?;
        }
        Ok(batch)
    };
    (0..batches).map(batch).collect()
}

fn p50(mut times: Vec<Duration>) -> f64 {
    times.sort();
    micros(percentile(&times, 50))
}

/// What each way to a server takes by name: with its own server, and at a daemon that runs.
type Names = [(Way, &'static str); 2];

/// Starts a session of each arm, prepares it, and measures batches of `count` times, each time one arm after the other.
fn measured(
    kennels: &[PathBuf; ARMS],
    names: Names,
    allowance: f64,
    [count, batches]: [usize; 2],
    prepare: impl Fn(&mut Route) -> io::Result<()>,
    once: impl Fn(&mut Route, &Place, Way) -> io::Result<Duration>,
) -> io::Result<Vec<Metric>> {
    let mut metrics = Vec::new();
    for (way, name) in names {
        let places = places(kennels)?;
        let mut routes = started(&places, way)?;
        routes.iter_mut().try_for_each(&prepare)?;
        let batches = in_turns(batches, |arm| {
            let times = (0..count).map(|_| once(&mut routes[arm], &places[arm], way));
            Ok(p50(times.collect::<io::Result<_>>()?))
        })?;
        metrics.push(Metric {
            name,
            allowance,
            batches,
        });
    }
    Ok(metrics)
}

fn started(places: &[Place], way: Way) -> io::Result<Vec<Route>> {
    let route = |place: &Place| Route::start(place.command(way)?);
    places.iter().map(route).collect()
}

/// A request and its answer, on one processor.
fn round_trips(kennels: &[PathBuf; ARMS], trips: usize, batches: usize) -> io::Result<Vec<Metric>> {
    let _quiet = Quiet::here();
    let text = "x".repeat(80);
    let names = [
        (Way::Solo, "round trip, dedicated, us"),
        (Way::Daemon, "round trip, shared, us"),
    ];
    let warm_up = |route: &mut Route| (0..WARM_UP).try_for_each(|_| route.echo(&text).map(drop));
    measured(
        kennels,
        names,
        ALLOWANCE,
        [trips, batches],
        warm_up,
        |route, _, _| route.echo(&text),
    )
}

/// From the start of `kennel run` to the answer to `initialize`. The first session of each arm keeps its daemon running.
fn starts(kennels: &[PathBuf; ARMS], starts: usize, batches: usize) -> io::Result<Vec<Metric>> {
    let names = [
        (Way::Solo, "start, dedicated, us"),
        (Way::Daemon, "warm attach, us"),
    ];
    measured(
        kennels,
        names,
        ATTACH_ALLOWANCE,
        [starts, batches],
        |route| route.initialize().map(drop),
        |_, place, way| first_answer(place, way),
    )
}

/// A line of 8 MB there and back.
fn long_lines(kennels: &[PathBuf; ARMS], batches: usize) -> io::Result<Vec<Metric>> {
    let text = "x".repeat(LONG_LINE);
    let names = [
        (Way::Solo, "8 MB line, dedicated, us"),
        (Way::Daemon, "8 MB line, shared, us"),
    ];
    measured(
        kennels,
        names,
        ALLOWANCE,
        [3, batches],
        |route| route.echo(&text).map(drop),
        |route, _, _| route.echo(&text),
    )
}

/// What a shim and a daemon hold, as their share. One arm after the other: two that run at once share their program.
fn memory(kennels: &[PathBuf; ARMS], batches: usize) -> io::Result<Vec<Metric>> {
    let mut dedicated = Vec::new();
    let mut shared = Vec::new();
    let mut daemons = Vec::new();
    for first in 0..batches {
        let mut batch = [[0.0; ARMS]; 3];
        for step in 0..ARMS {
            let arm = (first + step) % ARMS;
            let place = || Place::with_copy_of(&kennels[arm]);
            let (alone, _) = settled(&place()?, Way::Solo, CLIENTS)?;
            let (together, daemon) = settled(&place()?, Way::Daemon, CLIENTS)?;
            let daemon = daemon.ok_or_else(|| io::Error::other("no daemon was started"))?;
            batch[0][arm] = alone.shim.pss;
            batch[1][arm] = together.shim.pss;
            batch[2][arm] = daemon.last.pss;
        }
        dedicated.push(batch[0]);
        shared.push(batch[1]);
        daemons.push(batch[2]);
    }
    let metric = |name, batches| Metric {
        name,
        allowance: ALLOWANCE,
        batches,
    };
    Ok(vec![
        metric("PSS of a shim, dedicated, MB", dedicated),
        metric("PSS of a shim, shared, MB", shared),
        metric("PSS of a daemon, 10 clients, MB", daemons),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(batches: &[[f64; ARMS]]) -> Metric {
        Metric {
            name: "trial",
            allowance: ALLOWANCE,
            batches: batches.to_vec(),
        }
    }

    #[test]
    fn the_spread_is_the_same_whichever_part_was_slower() {
        let slower_first = metric(&[[110.0, 100.0, 100.0]; 3]).spread();
        let slower_second = metric(&[[100.0, 110.0, 100.0]; 3]).spread();
        assert!((slower_first - 1.1).abs() < 1e-9 && (slower_second - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_slower_build_shows_though_one_batch_is_wild() {
        let metric = metric(&[[100.0, 100.0, 120.0], [1.0, 9.0, 1.0], [50.0, 50.0, 60.0]]);
        assert!((metric.ratio() - 1.2).abs() < 1e-9);
    }

    #[test]
    fn every_arm_is_measured_once_in_each_batch_and_first_once_in_three() {
        let mut order = Vec::new();
        in_turns(3, |arm| {
            order.push(arm);
            Ok(arm as f64)
        })
        .unwrap();
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
    }
}
