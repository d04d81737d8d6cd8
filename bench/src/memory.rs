//! What Kennel's processes hold: resident, and as a fair share of what several of them have in common.

use std::io;

use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::median;
use crate::{Options, Outcome};

/// A shim's share, in megabytes.
const SHIM_AIM_MB: f64 = 0.5;
const SHIM_BOUND_MB: f64 = 1.0;
/// How many clients there are when all are weighed.
const CLIENTS: usize = 10;
/// Requests each of them makes first: a session that was never used weighs less.
const REQUESTS: usize = 20;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let clients = options.count(CLIENTS, CLIENTS).max(2);
    let (solo, _) = settled(&Place::new()?, Way::Solo, clients)?;
    let (shared, daemon) = settled(&Place::new()?, Way::Daemon, clients)?;
    let daemon = daemon.expect("there is one");

    let per_client =
        |of: fn(&Weight) -> f64| (of(&daemon.last) - of(&daemon.first)) / (clients - 1) as f64;
    let rows = vec![
        solo.shim.row("shim, solo"),
        solo.warden.row("warden, solo"),
        shared.shim.row("shim of a daemon"),
        shared.warden.row("warden of a daemon"),
        daemon.first.row("daemon, 1 client"),
        daemon.last.row(&format!("daemon, {clients} clients")),
        Row {
            name: "daemon, per further client".to_owned(),
            numbers: vec![
                Some(per_client(|weight| weight.rss)),
                Some(per_client(|weight| weight.pss)),
                Some(per_client(|weight| weight.dirty)),
            ],
        },
    ];
    let bound = |what: &str, weight: &Weight| Bound {
        what: format!("a {what} holds, as its share,"),
        value: weight.pss,
        unit: " MB",
        at_most: SHIM_BOUND_MB,
        aim: Some(SHIM_AIM_MB),
    };
    let report = Report {
        benchmark: "memory",
        about: format!(
            "what each process holds with {clients} clients, {REQUESTS} requests each; medians, in\n\
             megabytes. `rss` is what is in memory, `pss` its share of it (what n processes have in\n\
             common counts a n-th), `dirty` what is its own and was written to."
        ),
        columns: vec!["rss_mb", "pss_mb", "dirty_mb"],
        rows,
        bounds: vec![
            bound("shim with its own server", &solo.shim),
            bound("shim of a daemon", &shared.shim),
        ],
    };
    Ok(report.print(options))
}

/// Typical processes of one way.
pub(crate) struct Typical {
    pub(crate) shim: Weight,
    warden: Weight,
}

/// The daemon with its first client, and with all of them.
pub(crate) struct Daemon {
    first: Weight,
    pub(crate) last: Weight,
}

/// Starts this many clients at a place, lets each make some requests, and weighs all of them.
pub(crate) fn settled(
    place: &Place,
    way: Way,
    clients: usize,
) -> io::Result<(Typical, Option<Daemon>)> {
    let mut routes = vec![client(place, way)?];
    let daemon = match way {
        Way::Daemon => Some(place.daemon()?),
        _ => None,
    };
    let first = daemon.map(Weight::of).transpose()?;
    for _ in 1..clients {
        routes.push(client(place, way)?);
    }
    let last = daemon.map(Weight::of).transpose()?;
    let shims: io::Result<Vec<_>> = routes.iter().map(|route| Weight::of(route.pid())).collect();
    let mut wardens = Vec::new();
    for parent in daemon.map_or_else(|| routes.iter().map(Route::pid).collect(), |it| vec![it]) {
        for child in children_of(parent)? {
            wardens.push(Weight::of(child)?);
        }
    }
    let typical = Typical {
        shim: Weight::median(&shims?),
        warden: Weight::median(&wardens),
    };
    Ok((
        typical,
        first.zip(last).map(|(first, last)| Daemon { first, last }),
    ))
}

fn client(place: &Place, way: Way) -> io::Result<Route> {
    let mut route = Route::start(place.command(way)?)?;
    route.initialize()?;
    for _ in 0..REQUESTS {
        route.echo("a request of the usual length, more or less")?;
    }
    Ok(route)
}

fn children_of(pid: u32) -> io::Result<Vec<u32>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let pids = children.split_whitespace().map(str::parse);
    pids.collect::<Result<_, _>>().map_err(io::Error::other)
}

/// What one process holds, in megabytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight {
    pub(crate) rss: f64,
    pub(crate) pss: f64,
    dirty: f64,
}

impl Weight {
    pub(crate) fn of(pid: u32) -> io::Result<Weight> {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let megabytes = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            let kilobytes: f64 =
                kilobytes.ok_or_else(|| io::Error::other("an odd smaps_rollup"))?;
            Ok::<_, io::Error>(kilobytes / 1024.0)
        };
        Ok(Weight {
            rss: megabytes("Rss:")?,
            pss: megabytes("Pss:")?,
            dirty: megabytes("Private_Dirty:")?,
        })
    }

    fn median(weights: &[Weight]) -> Weight {
        Weight {
            rss: median(weights.iter().map(|weight| weight.rss)),
            pss: median(weights.iter().map(|weight| weight.pss)),
            dirty: median(weights.iter().map(|weight| weight.dirty)),
        }
    }

    fn row(&self, name: &str) -> Row {
        Row {
            name: name.to_owned(),
            numbers: vec![Some(self.rss), Some(self.pss), Some(self.dirty)],
        }
    }
}
