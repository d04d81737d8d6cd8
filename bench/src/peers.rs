//! Kennel and others who put one server behind many clients, on servers people use.
//!
//! For what is compared turn by turn, all brokers and all clients are there for the whole time, and the ways take turns
//! in small pieces: a client attaches, one calls a few times, all call a few times. So whatever else this machine does
//! meets all of them, and spoils few pieces. What is judged is the ratio of neighbours. Crowds and memory are measured one
//! way after the other: together they would not fit.

mod broker;
mod ends;
mod extent;
mod growth;
pub(crate) mod measure;
mod subject;
mod team;
mod turns;
mod way;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_sys::events;

use crate::report::Report;
use crate::{Options, Outcome};
pub(crate) use extent::seconds;
use extent::{Extent, FULL, QUICK, SHORT};
use measure::{CALLS, CROWD, Column, ENDS, Measure};
pub(crate) use subject::Subject;
use team::Team;
use turns::Turns;
use way::Kind;

/// Where `cargo xtask bench` put the peers.
const PEERS: &str = "BENCH_PEERS";

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let peers = std::env::var_os(PEERS).map(PathBuf::from);
    let peers = peers.unwrap_or_else(|| {
        options.skipped("the peers: `cargo xtask bench` installs what is compared");
        PathBuf::from("/nonexistent")
    });
    let mut planned = plan(options);
    let mut outcome = Outcome::Pass;
    while !planned.is_empty() {
        let all: Duration = planned.iter().map(|(_, extent)| extent.time()).sum();
        let (subject, extent) = planned.remove(0);
        // Its part of what is left: more than is planned, or less.
        let time = match options.clock.left() {
            Some(left) => extent.time().mul_f64(left.div_duration_f64(all).min(2.0)),
            None => extent.time() * 2,
        };
        let sitting = Sitting {
            options,
            subject,
            extent,
            end: Instant::now() + time,
        };
        let mut teams: Vec<Team<'_>> = Kind::ALL
            .into_iter()
            .map(|kind| Team::new(kind, subject, &peers))
            .collect();
        sitting.measure(&mut teams);
        outcome = outcome.and(report(options, &teams, subject, &extent)?);
    }
    Ok(outcome)
}

/// Which servers, and how much of each.
fn plan(options: &Options) -> Vec<(Subject, Extent)> {
    let mut planned = Vec::new();
    for subject in Subject::ALL {
        let name = subject.name();
        if options.server.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        if let Err(why) = subject.is_there() {
            options.skipped(&format!("peers on {name}: {why}"));
            continue;
        }
        let mut extent = match (options.quick, planned.is_empty()) {
            (true, true) => QUICK,
            (true, false) => {
                options.skipped(&format!("peers on {name}: a short run has one server"));
                continue;
            }
            (false, true) => FULL,
            (false, false) => SHORT,
        };
        extent.turns = options.count.unwrap_or(extent.turns);
        planned.push((subject, extent));
    }
    planned
}

/// One server behind all ways.
struct Sitting<'a> {
    options: &'a Options,
    subject: Subject,
    extent: Extent,
    /// Nobody begins anything after this.
    end: Instant,
}

impl Sitting<'_> {
    fn measure(&self, teams: &mut [Team<'_>]) {
        let Extent {
            clients,
            turns,
            ends,
            patience,
            shares,
            ..
        } = self.extent;
        // The first of each way finds it cold.
        let attaches = clients + self.extent.visitors;
        self.in_turns(teams, shares.attach, "attach", attaches, |team, turn| {
            team.attach(turn, clients)
        });
        self.say_who_is_few(teams);
        self.in_turns(teams, shares.one_calls, "one calls", turns, |team, _| {
            team.one_calls()
        });
        self.in_turns(teams, shares.all_call, "all call", turns, |team, _| {
            team.all_call(Measure::Calls)
        });
        match self.left() >= self.extent.idle {
            true => idle(teams, self.extent.idle),
            false => self.cut("idle", "for", &["all".to_owned()]),
        }
        self.in_turns(teams, shares.gone, "apps die", ends, |team, turn| {
            ends::app_death(team, turn, false, patience)
        });
        let held = "apps die, pipe held";
        self.in_turns(teams, shares.held, held, ends, |team, turn| {
            ends::app_death(team, turn, true, patience)
        });
        let colds = self.extent.colds;
        if colds > 0 {
            teams.iter_mut().for_each(Team::close);
        }
        self.in_turns(teams, shares.cold, "cold", colds, |team, _| team.cold());
        self.in_turns(teams, shares.servers, "servers die", ends, |team, _| {
            ends::server_death(team, patience)
        });
        self.in_turns(teams, shares.brokers, "brokers die", ends, |team, _| {
            ends::broker_death(team, patience)
        });
        teams.iter_mut().for_each(Team::close);
        self.in_turns(teams, shares.crowds, "crowds", 1, |team, _| {
            let gathering = self.extent.gathering.min(self.left());
            growth::grow(team, 3, self.extent.crowd, gathering)
        });
    }

    /// What is said of so many clients is said of those that are there.
    fn say_who_is_few(&self, teams: &[Team<'_>]) {
        let wanted = self.extent.clients;
        let is_few = |team: &&Team<'_>| team.failure.is_none() && team.clients.len() < wanted;
        let few = teams.iter().filter(is_few);
        let few: Vec<_> = few
            .map(|team| format!("{} of {}", team.clients.len(), team.kind.name()))
            .collect();
        self.cut(&format!("{wanted} clients"), "there are", &few);
    }

    /// Says what there was no time for, if there is any such thing.
    fn cut(&self, what: &str, how: &str, whom: &[String]) {
        if !whom.is_empty() {
            let (server, whom) = (self.subject.name(), whom.join("; "));
            let words = format!("peers on {server}, {what}: no time was left, {how} {whom}");
            self.options.skipped(&words);
        }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// All ways in turns, for so many seconds; nothing, for none. Who has no turn at all for want of time is named.
    fn in_turns(
        &self,
        teams: &mut [Team<'_>],
        seconds: u64,
        what: &str,
        turns: usize,
        act: impl Fn(&mut Team<'_>, usize) -> io::Result<()>,
    ) {
        if seconds == 0 {
            return;
        }
        let server = self.subject.name();
        let begun = Instant::now();
        let order = Turns {
            ways: teams.len(),
            turns,
            share: Duration::from_secs(seconds),
            end: self.left(),
        };
        let left_out = order.take(
            || begun.elapsed(),
            |way, turn| {
                let team = &mut teams[way];
                if team.failure.is_some() {
                    return;
                }
                let (name, left) = (team.kind.name(), self.left().as_secs());
                let turn_of = format!("{} of {turns}", turn + 1);
                eprint!(
                    "\r\x1b[Kpeers: {server}, {what}: {turn_of}: {name} (at most {left} s left)"
                );
                if let Err(error) = act(team, turn) {
                    eprintln!("\r\x1b[Kpeers: {server}, {what}: {name} fails: {error}");
                    team.close();
                    team.failure = Some(format!("fails at `{what}`: {error}"));
                }
            },
        );
        eprintln!(
            "\r\x1b[Kpeers: {server}, {what}: {} s",
            begun.elapsed().as_secs()
        );
        let is_there = |team: &&Team<'_>| team.failure.is_none();
        let left_out = left_out.into_iter().map(|way| &teams[way]);
        let left_out = left_out.filter(is_there);
        let mut left_out: Vec<_> = left_out.map(|team| team.kind.name().to_owned()).collect();
        if !left_out.is_empty() && left_out.len() == teams.iter().filter(is_there).count() {
            left_out = vec!["all".to_owned()];
        }
        self.cut(what, "for", &left_out);
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
                "one way after the other with 1, 10, 50 and 100 clients, {} at most, as far as it gets in {:?}.\n\
                 `pss`: all its processes, each its share of what it has in common with others. Calls per\n\
                 second: all clients at once.",
                extent.crowd, extent.gathering
            ),
        ),
        (
            "ends",
            ENDS,
            format!(
                "`gone`: from the kill -9 of an app to the end of all that was started for it; `held`:\n\
                 another process keeps its pipe open. `server`, `broker`: from that kill -9 to the next answer in\n\
                 the same session, which asks again every second and after every error. Never: not in {} s, once. Wake-ups:\n\
                 all processes but the servers, {clients} clients, nobody calls.{}",
                extent.patience.as_secs(),
                match extent.shares.brokers {
                    0 => "\nOf brokers and of wake-ups the first server's table tells.",
                    _ => "",
                }
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
