//! Kennel and others who put one server behind many clients, on servers people use.
//!
//! For what is compared turn by turn, all brokers and all clients are there for the whole time, and the ways take turns
//! in small pieces: a client attaches, one calls a few times, all call a few times. So whatever else this machine does
//! meets all of them, and spoils few pieces. What is judged is the ratio of neighbours. Crowds and memory are measured one
//! way after the other: together they would not fit.

mod broker;
mod ends;
mod growth;
pub(crate) mod measure;
mod subject;
mod team;
mod way;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_sys::events;

use crate::report::Report;
use crate::{Options, Outcome};
use measure::{CALLS, CROWD, Column, ENDS, Measure};
pub(crate) use subject::Subject;
use team::Team;
use way::Kind;

/// Where `cargo xtask bench` put the peers.
const PEERS: &str = "BENCH_PEERS";

/// How much of it.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Those who stay, and those who come and go.
    clients: usize,
    visitors: usize,
    turns: usize,
    /// How often somebody is started from nothing, and killed.
    ends: usize,
    /// For what may never happen.
    patience: Duration,
    idle: Duration,
    /// How long each way may gather its crowd.
    gathering: Duration,
    /// How long all ways may take for one kind of measurement, a share of so many units each.
    unit: Duration,
    /// Whether each way has its first turn, however long that takes.
    all_once: bool,
}

const FULL: Extent = Extent {
    clients: 10,
    visitors: 5,
    turns: 31,
    ends: 5,
    patience: Duration::from_secs(8),
    idle: Duration::from_secs(20),
    gathering: Duration::from_secs(35),
    unit: Duration::from_secs(8),
    all_once: true,
};
/// Of the servers that are not the first.
const SHORT: Extent = Extent {
    clients: 10,
    visitors: 0,
    turns: 9,
    ends: 1,
    patience: Duration::from_secs(3),
    idle: Duration::ZERO,
    gathering: Duration::from_secs(3),
    unit: Duration::from_millis(2500),
    all_once: true,
};
const QUICK: Extent = Extent {
    clients: 3,
    visitors: 1,
    turns: 3,
    ends: 1,
    patience: Duration::from_secs(2),
    idle: Duration::from_secs(2),
    gathering: Duration::from_millis(1500),
    unit: Duration::from_secs(1),
    all_once: false,
};

/// How many units of time each kind of measurement has.
const COLD: u32 = 5;
const APPS: u32 = 6;
const SERVERS: u32 = 5;
const BROKERS: u32 = 4;
const ATTACHES: u32 = 10;
const CALLING: u32 = 4;
const CROWDS: u32 = 24;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let subjects = Subject::ALL
        .into_iter()
        .filter(|subject| match &options.server {
            Some(server) => server == subject.name(),
            None => !options.quick || *subject == Subject::Everything,
        });
    let peers = std::env::var_os(PEERS).map(PathBuf::from);
    let peers = peers.unwrap_or_else(|| {
        options.skipped("the peers: `cargo xtask bench` installs what is compared");
        PathBuf::from("/nonexistent")
    });
    let mut outcome = Outcome::Pass;
    for (place, subject) in subjects.enumerate() {
        if let Err(why) = subject.is_there() {
            options.skipped(&format!("peers on {}: {why}", subject.name()));
            continue;
        }
        let mut extent = match (options.quick, place) {
            (true, _) => QUICK,
            (false, 0) => FULL,
            (false, _) => SHORT,
        };
        extent.turns = options.count.unwrap_or(extent.turns);
        let mut teams: Vec<Team<'_>> = Kind::ALL
            .into_iter()
            .map(|kind| Team::new(kind, subject, &peers))
            .collect();
        measure(&mut teams, &extent);
        outcome = outcome.and(report(options, &teams, subject, &extent)?);
    }
    Ok(outcome)
}

fn measure(teams: &mut [Team<'_>], extent: &Extent) {
    let ends = extent.ends;
    extent.in_turns(teams, COLD, "cold", ends.min(3), |team, _| team.cold());
    extent.in_turns(teams, APPS, "apps die", 2 * ends, |team, turn| {
        ends::app_death(team, turn, turn % 2 == 1, extent.patience)
    });
    extent.in_turns(teams, SERVERS, "servers die", ends, |team, _| {
        ends::server_death(team, extent.patience)
    });
    extent.in_turns(teams, BROKERS, "brokers die", ends, |team, _| {
        ends::broker_death(team, extent.patience)
    });
    teams.iter_mut().for_each(Team::close);
    // The first of each way finds it cold.
    let attaches = extent.clients + extent.visitors + 1;
    extent.in_turns(teams, ATTACHES, "attach", attaches, |team, turn| {
        team.attach(turn, extent.clients)
    });
    let turns = extent.turns;
    extent.in_turns(teams, CALLING, "one calls", turns, |team, _| {
        team.one_calls()
    });
    extent.in_turns(teams, CALLING, "all call", turns, |team, _| {
        team.all_call(Measure::Calls)
    });
    idle(teams, extent.idle);
    teams.iter_mut().for_each(Team::close);
    extent.in_turns(teams, CROWDS, "crowds", 1, |team, _| {
        growth::grow(team, 3, extent.gathering)
    });
}

impl Extent {
    /// Each does it once, then each once more, and another one begins each time; until the time for it is over.
    fn in_turns(
        &self,
        teams: &mut [Team<'_>],
        share: u32,
        what: &str,
        turns: usize,
        act: impl Fn(&mut Team<'_>, usize) -> io::Result<()>,
    ) {
        let begun = Instant::now();
        let what = format!("{}, {what}", teams[0].subject.name());
        for turn in 0..turns {
            for step in 0..teams.len() {
                let is_late = begun.elapsed() > self.unit * share;
                // Backwards every other time: else one always comes after the same neighbour, who is busy with its end.
                let step = match turn % 2 {
                    0 => step,
                    _ => teams.len() - 1 - step,
                };
                let at = (turn / 2 + step) % teams.len();
                let team = &mut teams[at];
                if team.failure.is_some() || (is_late && (turn > 0 || !self.all_once)) {
                    continue;
                }
                let name = team.kind.name();
                eprint!("\r\x1b[Kpeers: {what}: {} of {turns}: {name}", turn + 1);
                if let Err(error) = act(team, turn) {
                    eprintln!("\r\x1b[Kpeers: {what}: {name} fails: {error}");
                    team.close();
                    team.failure = Some(format!("fails at `{what}`: {error}"));
                }
            }
        }
        eprintln!("\r\x1b[Kpeers: {what}: {} s", begun.elapsed().as_secs());
    }
}

/// All ways sleep at the same time; what they do nevertheless, but for the servers themselves.
fn idle(teams: &mut [Team<'_>], time: Duration) {
    if time.is_zero() {
        return;
    }
    eprint!("\r\x1b[Kpeers: idle for {} s", time.as_secs());
    let awake: Vec<_> = teams
        .iter()
        .map(|team| team.people_but_servers().unwrap_or_default())
        .collect();
    // What they were asked last may still have its consequences.
    let _ = events::sleep(&[], &[], Some(time / 4));
    let before: Vec<_> = awake.iter().map(|people| people.wakes()).collect();
    let _ = events::sleep(&[], &[], Some(time));
    for ((team, people), before) in teams.iter_mut().zip(awake).zip(before) {
        if people.len() > 0 {
            let wakes = people.wakes_since(&before);
            team.note(Measure::Wakes, wakes * 60.0 / time.as_secs_f64());
        }
    }
}

fn report(
    options: &Options,
    teams: &[Team<'_>],
    subject: Subject,
    extent: &Extent,
) -> io::Result<Outcome> {
    let ours = teams.iter().find(|team| team.kind == Kind::Kennel);
    let ours = ours.filter(|team| team.failure.is_none());
    let ours = ours.ok_or_else(|| io::Error::other("kennel itself was not measured"))?;
    let (server, clients) = (subject.about(), extent.clients);
    let tables: [(&str, &[Column], String); 3] = [
        (
            "calls",
            CALLS,
            format!(
                "{server} for {clients} clients: a server for each, and one behind each\n\
                 broker. All take turns, {} times or as often as there is time for; medians. `cold`: from nothing to the answer to\n\
                 `initialize`, broker included. `attach`: the same while the broker is up. p50, p99: a call\n\
                 and its answer, one client. Calls per second: {clients} clients at once. Astray: it was another's answer.",
                extent.turns
            ),
        ),
        (
            "crowds",
            CROWD,
            format!(
                "one way after the other with 1, 10, 50 and 100 clients, as far as it gets in {} s.\n\
                 `pss`: all its processes, each its share of what it has in common with others. Calls per\n\
                 second: all clients at once.",
                extent.gathering.as_secs()
            ),
        ),
        (
            "ends",
            ENDS,
            format!(
                "`gone`: from the kill -9 of an app to the end of all that was started for it; `held`:\n\
                 another process keeps its pipe open. `server`, `broker`: from that kill -9 to the next answer in\n\
                 the same session, which asks again every second and after every error. Never: not in {} s. Wake-ups:\n\
                 all processes but the servers, {clients} clients, nobody calls.",
                extent.patience.as_secs()
            ),
        ),
    ];
    let mut outcome = Outcome::Pass;
    for (name, columns, about) in tables {
        let peers = teams.iter().filter(|team| team.kind.is_peer());
        let report = Report {
            // A handful in a run, which ends soon after.
            benchmark: format!("peers, {}, {name}", subject.name()).leak(),
            about,
            columns: columns.iter().map(|column| column.name).collect(),
            rows: teams.iter().map(|team| team.row(columns)).collect(),
            bounds: peers.flat_map(|peer| ours.against(peer, columns)).collect(),
        };
        outcome = outcome.and(report.print(options));
    }
    Ok(outcome)
}
