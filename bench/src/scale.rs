//! Many apps, each with many servers: what all of Kennel's processes are and hold, and what more of them would.
//!
//! All of it grows with the servers, and with the sessions: `servers x (base + apps x slope)`. Base and slope follow from
//! two looks, with one app and with all of them. That is true of the sum alone: the share that each kind of process has of
//! what all have in common falls with every process of another kind.

use std::fs;
use std::io;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::memory::Weight;
use crate::peers::Subject;
use crate::people::People;
use crate::place::{Place, Way};
use crate::report::{Report, Row};
use crate::route::Route;
use crate::stats::{median, micros};
use crate::{Options, Outcome};

/// What is extrapolated to.
const FAR: (usize, usize) = (100, 30);
const COLUMNS: [&str; 7] = [
    "processes",
    "pss_mb",
    "descriptors",
    "sockets",
    "pipes",
    "inotify",
    "watches",
];
const KINDS: [&str; 4] = ["shims", "daemons", "wardens", "servers"];

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let apps = options.apps.unwrap_or(10).max(2);
    let servers = options.servers.unwrap_or(5);
    allow_descriptors()?;
    let place = Place::new()?;
    let mut routes = Vec::new();
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    let mut first = None;
    for app in 0..apps {
        eprint!("\r\x1b[Kscale: app {} of {apps}", app + 1);
        for server in 0..servers {
            let command = Subject::Notes.command(place.dir(), &format!("store-{server}"))?;
            let begun = Instant::now();
            let mut route = Route::start(place.command_of(Way::Daemon, &command)?)?;
            route.initialize()?;
            let took = micros(begun.elapsed()) / 1000.0;
            if app == 0 { &mut cold } else { &mut warm }.push(took);
            route.confirm()?;
            route.ask("ping", "{}", "result")?;
            routes.push(route);
        }
        if app == 0 {
            first = Some(Census::take(&place, &routes)?);
        }
    }
    eprintln!();
    let first = first.expect("there is a first app");
    let last = Census::take(&place, &routes)?;
    let far = beyond(&first.all(), &last.all(), apps, servers);
    let mut rows = last.rows(&format!("{apps} x {servers}"));
    rows.push(row(
        &format!("{} x {}, by the model", FAR.0, FAR.1),
        "all",
        &far,
    ));
    let report = Report {
        benchmark: "scale",
        about: format!(
            "{apps} apps with a session each on {servers} shared servers (notes). From the start of `kennel run` to\n\
             the answer to `initialize`: {:.1} ms at the median for the first of each server, {:.1} ms for the others.\n\
             The model: servers x (base + apps x slope), from the looks with 1 app and with {apps}.",
            median(cold),
            median(warm),
        ),
        columns: COLUMNS.to_vec(),
        rows,
        bounds: Vec::new(),
    };
    Ok(report.print(options))
}

/// Each session needs two of ours.
fn allow_descriptors() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?)
}

/// By column.
type Counts = [f64; COLUMNS.len()];

/// What there is, by kind of process.
#[derive(Debug, Clone, Copy, Default)]
struct Census([Counts; KINDS.len()]);

impl Census {
    fn take(place: &Place, routes: &[Route]) -> io::Result<Census> {
        let listed = place.listed()?;
        let daemons = listed.as_array().into_iter().flatten();
        let daemons = daemons.filter_map(|entry| entry["daemon_pid"].as_u64());
        let roots = daemons.filter_map(|pid| u32::try_from(pid).ok());
        let people = People::below(routes.iter().map(Route::pid).chain(roots));
        let mut census = Census::default();
        for pid in people.pids() {
            let kind = &mut census.0[kind_of(pid)];
            let counts = counts_of(pid);
            let weight = Weight::of(pid).map_or(0.0, |weight| weight.pss);
            let all = [1.0, weight].into_iter().chain(counts);
            kind.iter_mut().zip(all).for_each(|(sum, one)| *sum += one);
        }
        Ok(census)
    }

    fn all(&self) -> Counts {
        let mut all = Counts::default();
        for kind in &self.0 {
            all.iter_mut().zip(kind).for_each(|(sum, one)| *sum += one);
        }
        all
    }

    fn rows(&self, name: &str) -> Vec<Row> {
        let kinds = KINDS.iter().zip(&self.0);
        let mut rows: Vec<Row> = kinds
            .map(|(kind, counts)| row(name, kind, counts))
            .collect();
        rows.push(row(name, "all", &self.all()));
        rows
    }
}

/// With so many as [`FAR`] says; `one` is what one app has, `last` what all of them have.
fn beyond(one: &Counts, last: &Counts, apps: usize, servers: usize) -> Counts {
    let mut far = Counts::default();
    for ((far, one), last) in far.iter_mut().zip(one).zip(last) {
        let slope = (last - one) / (apps - 1) as f64;
        let base = one - slope;
        *far = (base + slope * FAR.0 as f64) / servers as f64 * FAR.1 as f64;
    }
    far
}

fn row(name: &str, what: &str, counts: &Counts) -> Row {
    Row {
        name: format!("{name}: {what}"),
        numbers: counts.iter().copied().map(Some).collect(),
    }
}

/// A place in [`KINDS`].
fn kind_of(pid: u32) -> usize {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    match words.split(|&byte| byte == 0).nth(1) {
        Some(b"run") => 0,
        Some(b"daemon") => 1,
        Some(b"warden") => 2,
        _ => 3,
    }
}

/// Descriptors, sockets, pipes, inotify instances and their watches.
fn counts_of(pid: u32) -> [f64; 5] {
    let mut counts = [0.0; 5];
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    for fd in open.into_iter().flatten().flatten() {
        let target = fs::read_link(fd.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        counts[0] += 1.0;
        if target.starts_with("socket:") {
            counts[1] += 1.0;
        } else if target.starts_with("pipe:") {
            counts[2] += 1.0;
        } else if target.contains("inotify") {
            let number = fd.file_name();
            let info = format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy());
            let info = fs::read_to_string(info).unwrap_or_default();
            counts[3] += 1.0;
            counts[4] += info.matches("inotify wd:").count() as f64;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_exact_where_growth_is_linear() {
        // Five servers; a shim of 2 for each session, and a daemon of 3 and 1 for each of its clients.
        let at = |apps: f64, servers: f64| {
            let mut census = Census::default();
            census.0[0][1] = 2.0 * apps * servers;
            census.0[1][1] = servers * (3.0 + apps);
            census
        };
        let far = beyond(&at(1.0, 5.0).all(), &at(10.0, 5.0).all(), 10, 5);
        let exact = at(100.0, 30.0).all();
        assert!((far[1] - exact[1]).abs() < 1e-6, "{far:?}");
    }
}
