//! Kennel and others who put one server behind many clients, on a server people use.
//!
//! All brokers run for the whole time, and their ways take turns, round by round: ten clients attach one after
//! the other, one calls, all call, all are weighed, all leave. What is judged is the ratio within each round.

mod way;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::caller::{Caller, Tool};
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
/// Rounds; an odd number, so that the median is one of them.
const ROUNDS: usize = 7;
const WARM_UP: usize = 20;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let trips = options.count(300, 60);
    let rounds = if options.quick { 3 } else { ROUNDS };
    let ground = Ground {
        place: Place::new()?,
        peers: place_of(PEERS)?,
        server: vec!["node".into(), place_of(BED)?.join(SERVER).into()],
    };
    let mut ways: Vec<Tried> = Kind::ALL
        .into_iter()
        .map(|kind| Tried::open(kind, &ground))
        .collect();
    for round in 0..rounds {
        for step in 0..ways.len() {
            let way = (round + step) % ways.len();
            ways[way].measure(&ground, trips);
            eprint!(
                "\rround {} of {rounds}: {:<14}",
                round + 1,
                ways[way].kind.name()
            );
        }
    }
    eprintln!();
    let all: Vec<Measured> = ways.into_iter().map(Tried::close).collect();
    let ours = all.iter().find(|it| it.kind == Kind::Kennel);
    let ours = ours.filter(|it| it.why_not.is_none());
    let ours = ours.ok_or_else(|| io::Error::other("kennel itself was not measured"))?;
    let peers = all.iter().filter(|it| it.kind.is_peer());
    let report = Report {
        benchmark: "peers",
        about: format!(
            "@modelcontextprotocol/server-everything for {CLIENTS} clients: a server for each, and one behind\n\
             each broker; {rounds} rounds in which all take turns, medians. `attach`: from the start of the\n\
             client's process to the answer to `initialize`, while the broker is up. p50, p99: a call and its\n\
             answer, one client, {trips} in each round. `pss`: all processes of the way, with {CLIENTS} clients.\n\
             Calls per second: {CLIENTS} clients at once."
        ),
        columns: COLUMNS.map(|column| column.name).to_vec(),
        rows: all.iter().map(Measured::row).collect(),
        bounds: peers.flat_map(|peer| ours.against(peer)).collect(),
    };
    Ok(report.print(options))
}

/// What is measured in each round.
struct Column {
    name: &'static str,
    what: &'static str,
    of: fn(&Sample) -> f64,
    more_is_better: bool,
}

const COLUMNS: [Column; 5] = [
    Column {
        name: "attach_ms",
        what: "a warm attach of kennel's takes",
        of: |sample| sample.attach_ms,
        more_is_better: false,
    },
    Column {
        name: "p50_us",
        what: "a call with kennel takes, at p50,",
        of: |sample| sample.p50_us,
        more_is_better: false,
    },
    Column {
        name: "p99_us",
        what: "a call with kennel takes, at p99,",
        of: |sample| sample.p99_us,
        more_is_better: false,
    },
    Column {
        name: "pss_mb",
        what: "ten clients with kennel hold",
        of: |sample| sample.pss_mb,
        more_is_better: false,
    },
    Column {
        name: "calls_per_s",
        what: "ten clients with kennel need for a call",
        of: |sample| sample.calls_per_s,
        more_is_better: true,
    },
];

/// One round of one way.
#[derive(Debug)]
struct Sample {
    attach_ms: f64,
    p50_us: f64,
    p99_us: f64,
    pss_mb: f64,
    calls_per_s: f64,
    /// Answers, and those of them that were somebody else's.
    answers: usize,
    astray: usize,
}

impl Sample {
    fn take(way: &Way, ground: &Ground, trips: usize) -> io::Result<Sample> {
        let (mut clients, mut attaches) = (Vec::new(), Vec::new());
        for number in 0..CLIENTS {
            let name = format!("client {number}");
            let (client, took) = Caller::attach(way.command(ground), ECHO, &name)?;
            clients.push(client);
            attaches.push(micros(took) / 1000.0);
        }
        for _ in 0..WARM_UP {
            clients[0].call()?;
        }
        let calls: io::Result<Vec<_>> = (0..trips).map(|_| clients[0].call()).collect();
        let mut times: Vec<Duration> = calls?.iter().map(|call| call.took).collect();
        times.sort();
        let (seconds, astray) = all_at_once(&mut clients, trips)?;
        let middle = way.middle(ground)?;
        let roots = clients.iter().map(Caller::pid).chain(middle);
        Ok(Sample {
            attach_ms: median(attaches),
            p50_us: micros(percentile(&times, 50)),
            p99_us: micros(percentile(&times, 99)),
            pss_mb: weight_of_trees(roots),
            calls_per_s: (CLIENTS * trips) as f64 / seconds,
            answers: CLIENTS * trips,
            astray,
        })
    }
}

/// How long all need for so many calls each, and how many answers were somebody else's.
fn all_at_once(clients: &mut [Caller], calls: usize) -> io::Result<(f64, usize)> {
    let begun = Instant::now();
    let astray: io::Result<usize> = std::thread::scope(|threads| {
        let working: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                threads.spawn(move || {
                    let calls: io::Result<Vec<_>> = (0..calls).map(|_| client.call()).collect();
                    Ok(calls?.iter().filter(|call| call.astray).count())
                })
            })
            .collect();
        let ended = working
            .into_iter()
            .map(|it| it.join().expect("it does not panic"));
        ended.sum()
    });
    Ok((begun.elapsed().as_secs_f64(), astray?))
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

/// A way, as long as it works.
struct Tried {
    kind: Kind,
    way: Result<Way, String>,
    samples: Vec<Sample>,
}

impl Tried {
    /// One client comes and goes: what is read from disk is read, and what does not work shows.
    fn open(kind: Kind, ground: &Ground) -> Tried {
        let tried = Way::open(kind, ground).and_then(|way| {
            Caller::attach(way.command(ground), ECHO, "first")?
                .0
                .call()?;
            Ok(way)
        });
        Tried {
            kind,
            way: tried.map_err(|error| error.to_string()),
            samples: Vec::new(),
        }
    }

    fn measure(&mut self, ground: &Ground, trips: usize) {
        let Ok(way) = &self.way else {
            return;
        };
        match Sample::take(way, ground, trips) {
            Ok(sample) => self.samples.push(sample),
            Err(error) => self.way = Err(error.to_string()),
        }
    }

    /// Whatever stands in the middle ends here.
    fn close(self) -> Measured {
        Measured {
            kind: self.kind,
            samples: self.samples,
            why_not: self.way.err(),
        }
    }
}

/// A way, measured or not.
struct Measured {
    kind: Kind,
    samples: Vec<Sample>,
    why_not: Option<String>,
}

impl Measured {
    fn row(&self) -> Row {
        let numbers = COLUMNS.map(|column| match self.why_not {
            Some(_) => None,
            None => Some(median(self.samples.iter().map(column.of))),
        });
        Row {
            name: self.name(),
            numbers: numbers.to_vec(),
        }
    }

    /// With what has to be said about it.
    fn name(&self) -> String {
        let name = self.kind.name();
        let astray: usize = self.samples.iter().map(|sample| sample.astray).sum();
        let answers: usize = self.samples.iter().map(|sample| sample.answers).sum();
        match &self.why_not {
            Some(why) => format!("{name}: not measured: {why}"),
            None if astray > 0 => format!("{name} ({astray} of {answers} answers astray)"),
            None => name.to_owned(),
        }
    }

    /// What we need, of what a peer needs, round by round. One that does not work cannot be ahead.
    fn against(&self, peer: &Measured) -> Vec<Bound> {
        let bound = |column: &Column| {
            let pairs = self.samples.iter().zip(&peer.samples);
            let ratio = |(ours, theirs)| match column.more_is_better {
                true => (column.of)(theirs) / (column.of)(ours),
                false => (column.of)(ours) / (column.of)(theirs),
            };
            Bound {
                what: column.what.to_owned(),
                value: median(pairs.map(ratio)),
                unit: match peer.kind {
                    Kind::RmcpMux => "x of rmcp-mux",
                    Kind::McpProxy => "x of mcp-proxy",
                    _ => "x of supergateway",
                },
                at_most: 1.0,
                aim: None,
            }
        };
        match peer.why_not {
            Some(_) => Vec::new(),
            None => COLUMNS.iter().map(bound).collect(),
        }
    }
}

fn place_of(variable: &str) -> io::Result<PathBuf> {
    let place = std::env::var_os(variable).map(PathBuf::from);
    place.ok_or_else(|| {
        io::Error::other("run `cargo xtask bench peers`: it installs what is compared")
    })
}
