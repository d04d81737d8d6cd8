//! Kennel and others who put one server behind many clients, on a server people use.
//!
//! All brokers and all clients are there for the whole time, and the ways take turns in small pieces: a client
//! attaches, one calls a few times, all call a few times. So whatever else this machine does meets all of them, and
//! spoils few pieces. What is judged is the ratio of neighbours.

mod way;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::caller::{Called, Caller, Tool};
use crate::memory::Weight;
use crate::place::Place;
use crate::report::{Bound, Report, Row};
use crate::stats::{median, micros, percentile};
use crate::{Options, Outcome};
use way::{Ground, Kind, Way};

/// Where `cargo xtask bench` put the peers, and the packages of the tests.
const PEERS: &str = "KENNEL_BENCH_PEERS";
const BED: &str = "TESTKIT_BED";
const SERVER: &str = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const ECHO: Tool = Tool {
    name: "echo",
    argument: "message",
};
const CLIENTS: usize = 10;
/// Calls of one client, and of each of ten, before it is the next way's turn.
const TRIPS: usize = 30;
const CALLS: usize = 20;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let turns = options.count(41, 9);
    // Beside those who stay.
    let visitors = if options.quick { 5 } else { 20 };
    let ground = Ground {
        place: Place::new()?,
        peers: place_of(PEERS)?,
        server: vec!["node".into(), place_of(BED)?.join(SERVER).into()],
    };
    let mut teams: Vec<Team> = Kind::ALL
        .into_iter()
        .map(|kind| Team::gather(kind, &ground))
        .collect();
    in_turns(&mut teams, "attach", CLIENTS + visitors, |team, turn| {
        team.attach(&ground, turn)
    });
    in_turns(&mut teams, "one calls", turns, |team, _| team.one_calls());
    in_turns(&mut teams, "all call", turns, |team, _| team.all_call());
    in_turns(&mut teams, "weigh", 1, |team, _| team.weigh(&ground));

    let ours = teams.iter().find(|team| team.kind == Kind::Kennel);
    let ours = ours.filter(|team| team.way.is_ok());
    let ours = ours.ok_or_else(|| io::Error::other("kennel itself was not measured"))?;
    let peers = teams.iter().filter(|team| team.kind.is_peer());
    let report = Report {
        benchmark: "peers",
        about: format!(
            "@modelcontextprotocol/server-everything for {CLIENTS} clients: a server for each, and one behind\n\
             each broker. All take turns, {turns} times; medians. `attach`: from the start of the client's\n\
             process to the answer to `initialize`, while the broker is up. p50, p99: a call and its answer, one\n\
             client. `pss`: all processes of the way with {CLIENTS} clients, each its share of what it has in\n\
             common with others. Calls per second: {CLIENTS} clients at once. Astray: it was another's answer."
        ),
        columns: COLUMNS.map(|column| column.name).to_vec(),
        rows: teams.iter().map(Team::row).collect(),
        bounds: peers.flat_map(|peer| ours.against(peer)).collect(),
    };
    Ok(report.print(options))
}

/// Each does it once, then each once more; another one begins each time, and every other time they go backwards, so that
/// none always comes after the same neighbour, who may still be busy with its end.
fn in_turns(
    teams: &mut [Team],
    what: &str,
    turns: usize,
    act: impl Fn(&mut Team, usize) -> io::Result<()>,
) {
    for turn in 0..turns {
        eprint!("\r{what}: {} of {turns}   ", turn + 1);
        for step in 0..teams.len() {
            let step = if turn % 2 == 0 {
                step
            } else {
                teams.len() - 1 - step
            };
            let at = (turn / 2 + step) % teams.len();
            let team = &mut teams[at];
            if team.way.is_ok()
                && let Err(error) = act(team, turn)
            {
                team.clients.clear();
                team.way = Err(error.to_string());
            }
        }
    }
    eprintln!();
}

/// What is measured.
struct Column {
    name: &'static str,
    what: &'static str,
    more_is_better: bool,
}

const COLUMNS: [Column; 5] = [
    Column {
        name: "attach_ms",
        what: "a warm attach of kennel's takes",
        more_is_better: false,
    },
    Column {
        name: "p50_us",
        what: "a call with kennel takes, at p50,",
        more_is_better: false,
    },
    Column {
        name: "p99_us",
        what: "a call with kennel takes, at p99,",
        more_is_better: false,
    },
    Column {
        name: "pss_mb",
        what: "ten clients with kennel hold",
        more_is_better: false,
    },
    Column {
        name: "calls_per_s",
        what: "ten clients with kennel need for a call",
        more_is_better: true,
    },
];
const ATTACH: usize = 0;
const P50: usize = 1;
const P99: usize = 2;
const PSS: usize = 3;
const PACE: usize = 4;

/// A way, its clients, and what was measured.
struct Team {
    kind: Kind,
    /// Why not, if it does not work.
    way: Result<Way, String>,
    clients: Vec<Caller>,
    /// A number for each turn, by column.
    series: [Vec<f64>; COLUMNS.len()],
    /// All calls of one client.
    trips: Vec<Duration>,
    answers: usize,
    astray: usize,
}

impl Team {
    /// One client comes and goes: what is read from disk is read, and what does not work shows.
    fn gather(kind: Kind, ground: &Ground) -> Team {
        let way = Way::open(kind, ground).and_then(|way| {
            Caller::attach(way.command(ground), ECHO, "first")?
                .0
                .call()?;
            Ok(way)
        });
        Team {
            kind,
            way: way.map_err(|error| error.to_string()),
            clients: Vec::new(),
            series: Default::default(),
            trips: Vec::new(),
            answers: 0,
            astray: 0,
        }
    }

    /// The first ten stay.
    fn attach(&mut self, ground: &Ground, turn: usize) -> io::Result<()> {
        let way = self
            .way
            .as_ref()
            .map_err(|why| io::Error::other(why.clone()))?;
        let name = format!("client {turn}");
        let (client, took) = Caller::attach(way.command(ground), ECHO, &name)?;
        self.series[ATTACH].push(micros(took) / 1000.0);
        if turn < CLIENTS {
            self.clients.push(client);
        }
        Ok(())
    }

    fn one_calls(&mut self) -> io::Result<()> {
        let client = self.clients.first_mut().ok_or(io::ErrorKind::NotFound)?;
        // It has slept while the others had their turns.
        client.call()?;
        let calls = (0..TRIPS).map(|_| client.call());
        let mut times: Vec<Duration> = calls
            .map(|call| call.map(|call| call.took))
            .collect::<io::Result<_>>()?;
        times.sort();
        self.series[P50].push(micros(percentile(&times, 50)));
        self.trips.extend(times);
        self.trips.sort();
        self.series[P99] = vec![micros(percentile(&self.trips, 99))];
        Ok(())
    }

    fn all_call(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        let calls: io::Result<Vec<Vec<Called>>> = std::thread::scope(|threads| {
            let calling: Vec<_> = self
                .clients
                .iter_mut()
                .map(|client| threads.spawn(|| (0..CALLS).map(|_| client.call()).collect()))
                .collect();
            let ended = calling.into_iter();
            ended
                .map(|it| it.join().expect("it does not panic"))
                .collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let calls = calls?.concat();
        self.series[PACE].push(calls.len() as f64 / seconds);
        self.answers += calls.len();
        self.astray += calls.iter().filter(|call| call.astray).count();
        Ok(())
    }

    fn weigh(&mut self, ground: &Ground) -> io::Result<()> {
        let way = self
            .way
            .as_ref()
            .map_err(|why| io::Error::other(why.clone()))?;
        let middle = way.middle(ground)?;
        let roots = self.clients.iter().map(Caller::pid).chain(middle);
        self.series[PSS].push(weight_of_trees(roots));
        Ok(())
    }

    fn row(&self) -> Row {
        let name = self.kind.name();
        let (answers, astray) = (self.answers, self.astray);
        // One that gave up half way keeps what was measured until then.
        let numbers = self
            .series
            .iter()
            .map(|numbers| (!numbers.is_empty()).then(|| median(numbers.iter().copied())));
        Row {
            name: match &self.way {
                Err(why) => format!("{name} (fails: {why})"),
                Ok(_) if astray > 0 => format!("{name} ({astray} of {answers} answers astray)"),
                Ok(_) => name.to_owned(),
            },
            numbers: numbers.collect(),
        }
    }

    /// What we need, of what a peer needs, turn by turn. One that does not get so far cannot be ahead.
    fn against(&self, peer: &Team) -> Vec<Bound> {
        let bound = |(column, numbers): (usize, &Vec<f64>)| {
            let Column {
                what,
                more_is_better,
                ..
            } = COLUMNS[column];
            let pairs = numbers.iter().zip(&peer.series[column]);
            let ratios = pairs.map(|(ours, theirs)| match more_is_better {
                true => theirs / ours,
                false => ours / theirs,
            });
            Bound {
                what: what.to_owned(),
                value: median(ratios),
                unit: match peer.kind {
                    Kind::RmcpMux => "x of rmcp-mux",
                    Kind::McpProxy => "x of mcp-proxy",
                    _ => "x of supergateway",
                },
                at_most: 1.0,
                aim: None,
            }
        };
        let measured = |&(column, _): &(usize, &Vec<f64>)| !peer.series[column].is_empty();
        let columns = self.series.iter().enumerate().filter(measured);
        columns.map(bound).collect()
    }
}

/// What these processes and all below them hold, each its share of what they have in common, in megabytes.
fn weight_of_trees(roots: impl IntoIterator<Item = u32>) -> f64 {
    let mut pids = BTreeSet::new();
    let mut next: Vec<u32> = roots.into_iter().collect();
    while let Some(pid) = next.pop() {
        if pids.insert(pid) {
            next.extend(children_of(pid));
        }
    }
    // One that has just ended weighs nothing.
    let weights = pids.into_iter().filter_map(|pid| Weight::of(pid).ok());
    weights.map(|weight| weight.pss).sum()
}

/// Of all its threads: a child belongs to the one that started it.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let words = |list: String| -> Vec<u32> {
        let words = list.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    lists.flat_map(words).collect()
}

fn place_of(variable: &str) -> io::Result<PathBuf> {
    let place = std::env::var_os(variable).map(PathBuf::from);
    place.ok_or_else(|| {
        io::Error::other("run `cargo xtask bench peers`: it installs what is compared")
    })
}
