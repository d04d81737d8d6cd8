//! Many clients on one server: what each costs the daemon, and what is left of its speed.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::memory::Weight;
use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::percentile;
use crate::{Options, Outcome};

/// How many clients there are, from step to step.
const CROWDS: [usize; 4] = [1, 10, 100, 1000];
/// What a further client may cost the daemon, in kilobytes.
const CLIENT_KB: f64 = 64.0;
/// A call with many clients may take this many times what it takes with ten.
const SLOWER: f64 = 2.0;
/// Calls in each step, of all clients together.
const CALLS: usize = 20_000;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let calls = options.count(CALLS, 2_000);
    let most = if options.quick { 100 } else { 1000 };
    let place = Place::new()?;
    // It starts the daemon, and says what to run for those without a hello.
    let mut first = Route::start(place.command(Way::Daemon)?)?;
    first.initialize()?;
    let (daemon, socket) = (place.daemon()?, socket_of(&place)?);
    let empty = Weight::of(daemon)?.rss;
    let mut clients = Vec::new();
    let mut steps = Vec::new();
    for crowd in CROWDS.into_iter().filter(|&crowd| crowd <= most) {
        while clients.len() < crowd {
            clients.push(Client::attach(&socket)?);
        }
        steps.push(Step::take(&mut clients, calls, daemon)?);
    }
    let rows = steps.iter().map(Step::row).collect();
    let last = steps.last().expect("there are steps");
    let per_client = (last.rss - empty) * 1024.0 / last.clients as f64;
    let per_call = |step: &Step| step.seconds / step.calls as f64;
    let bounds = vec![
        Bound {
            what: format!("of {} clients, each costs the daemon", last.clients),
            value: per_client,
            unit: " KB",
            at_most: CLIENT_KB,
            aim: None,
        },
        Bound {
            what: format!(
                "a call among {} clients takes of one among 10",
                last.clients
            ),
            value: per_call(last) / per_call(&steps[1]),
            unit: "x",
            at_most: SLOWER,
            aim: None,
        },
    ];
    drop(clients);
    let report = Report {
        benchmark: "crowd",
        about:
            "clients that share one server, each with one call out at a time; they take turns at\n\
                asking, so a latency is that of a whole round. `rss` is the daemon's."
                .to_owned(),
        columns: vec!["calls_per_s", "p50_us", "p99_us", "rss_mb"],
        rows,
        bounds,
    };
    Ok(report.print(options))
}

/// What was measured with so many clients.
struct Step {
    clients: usize,
    calls: usize,
    seconds: f64,
    latencies: Vec<Duration>,
    rss: f64,
}

impl Step {
    fn take(clients: &mut [Client], calls: usize, daemon: u32) -> io::Result<Step> {
        let rounds = (calls / clients.len()).max(1);
        let mut latencies = Vec::with_capacity(rounds * clients.len());
        let begun = Instant::now();
        for _ in 0..rounds {
            for client in clients.iter_mut() {
                client.ask()?;
            }
            for client in clients.iter_mut() {
                latencies.push(client.hear()?);
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        latencies.sort();
        Ok(Step {
            clients: clients.len(),
            calls: latencies.len(),
            seconds,
            latencies,
            rss: Weight::of(daemon)?.rss,
        })
    }

    fn row(&self) -> Row {
        let micros = |percent| percentile(&self.latencies, percent).as_secs_f64() * 1e6;
        Row {
            name: format!("{} clients", self.clients),
            numbers: vec![
                Some(self.calls as f64 / self.seconds),
                Some(micros(50)),
                Some(micros(99)),
                Some(self.rss),
            ],
        }
    }
}

/// A client without a shim: what the daemon spends on it is all there is.
struct Client {
    stream: BufReader<UnixStream>,
    asked: u64,
    at: Instant,
    line: String,
}

impl Client {
    fn attach(socket: &PathBuf) -> io::Result<Client> {
        let mut client = Client {
            stream: BufReader::with_capacity(1024, UnixStream::connect(socket)?),
            asked: 0,
            at: Instant::now(),
            line: String::new(),
        };
        let info = r#""capabilities":{},"clientInfo":{"name":"bench","version":"0"}"#;
        let params = format!(r#"{{"protocolVersion":"2025-06-18",{info}}}"#);
        client.send("initialize", &params)?;
        client.hear()?;
        let initialized = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
        client.stream.get_ref().write_all(initialized)?;
        Ok(client)
    }

    fn ask(&mut self) -> io::Result<()> {
        self.send(
            "echo",
            r#"{"text":"a request of the usual length, more or less"}"#,
        )
    }

    fn send(&mut self, method: &str, params: &str) -> io::Result<()> {
        self.asked += 1;
        let id = self.asked;
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n"
        );
        self.at = Instant::now();
        self.stream.get_ref().write_all(line.as_bytes())
    }

    /// Waits for the answer; tells how long it took.
    fn hear(&mut self) -> io::Result<Duration> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let took = self.at.elapsed();
        let expected = format!("\"id\":{},\"result\"", self.asked);
        match self.line.contains(&expected) {
            true => Ok(took),
            false => Err(io::Error::other(format!("not its answer: {}", self.line))),
        }
    }
}

/// Where clients without a shim connect.
pub(crate) fn socket_of(place: &Place) -> io::Result<PathBuf> {
    let log = place.daemon_log()?;
    let dir = log.parent().expect("a file is in a directory");
    let mut entries = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let socket = entries.find(|path| path.extension().is_some_and(|end| end == "sock"));
    socket.ok_or_else(|| io::Error::other("the daemon has no socket"))
}
