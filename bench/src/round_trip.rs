//! A request and its answer: directly, through the least a relay can do, and through `kennel run`.
//!
//! The three take turns, batch by batch, on one small server that answers at once; so whatever else the
//! machine does meets all alike.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::stats::{median, micros, percentile, ratio};
use crate::{Options, Outcome, beside_us};

/// Kennel may take this many times what the bare relay takes, at the median.
const BOUND: f64 = 1.25;
/// An odd number, so that the median is one of them.
const BATCHES: usize = 5;
const WAYS: [&str; 3] = ["direct", "bare relay", "kennel run"];

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let dir = std::env::temp_dir().join(format!("kennel-bench-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let server = beside_us("tk-server")?;
    let mut kennel = after(&[beside_us("kennel")?, "run".into(), "--".into()], &server);
    kennel.env("KENNEL_RUNTIME_DIR", dir.join("run"));
    let mut routes = [
        Route::to(Command::new(&server))?,
        Route::to(after(&[beside_us("tk-relay")?], &server))?,
        Route::to(kennel)?,
    ];
    for route in &mut routes {
        route.trips(200)?;
    }
    let mut batches: Vec<[Vec<Duration>; 3]> = Vec::new();
    for turn in 0..BATCHES {
        let mut batch: [Vec<Duration>; 3] = Default::default();
        for step in 0..3 {
            let way = (turn + step) % 3;
            batch[way] = routes[way].trips(options.count)?;
        }
        batches.push(batch);
    }
    for route in routes {
        route.end()?;
    }
    std::fs::remove_dir_all(&dir)?;

    let of = |way: usize, percent| {
        median(
            batches
                .iter()
                .map(|batch| micros(percentile(&batch[way], percent))),
        )
    };
    let against = |base: usize| {
        median(
            batches
                .iter()
                .map(|batch| ratio(percentile(&batch[2], 50), percentile(&batch[base], 50))),
        )
    };
    let (to_relay, to_direct) = (against(1), against(0));
    let outcome = match to_relay <= BOUND {
        true => Outcome::Pass,
        false => Outcome::Fail,
    };
    if options.json {
        let rows: Vec<_> = (0..3)
            .map(|way| json!({"way": WAYS[way], "p50_us": of(way, 50), "p99_us": of(way, 99)}))
            .collect();
        println!(
            "{}",
            json!({"rows": rows, "kennel_to_relay": to_relay, "kennel_to_direct": to_direct, "pass": outcome == Outcome::Pass})
        );
        return Ok(outcome);
    }
    println!(
        "A request and its answer, {} in each of {BATCHES} batches that take turns; medians of the batches.",
        options.count
    );
    println!("{:>12} {:>10} {:>10}", "", "p50 us", "p99 us");
    for (way, name) in WAYS.iter().enumerate() {
        println!("{name:>12} {:>10.1} {:>10.1}", of(way, 50), of(way, 99));
    }
    println!(
        "{}: kennel takes {to_relay:.2}x of the bare relay (at most {BOUND}x), {to_direct:.2}x of direct",
        outcome.word()
    );
    Ok(outcome)
}

fn after(before: &[PathBuf], server: &Path) -> Command {
    let mut command = Command::new(&before[0]);
    command.args(&before[1..]).arg(server);
    command
}

/// A server, and the way to it.
struct Route {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
}

impl Route {
    fn to(mut command: Command) -> io::Result<Route> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Route {
            child,
            to,
            from,
            next: 0,
        })
    }

    fn trips(&mut self, count: usize) -> io::Result<Vec<Duration>> {
        let payload = "x".repeat(80);
        let mut times = Vec::with_capacity(count);
        let mut answer = String::new();
        for _ in 0..count {
            self.next += 1;
            let line = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"echo\",\"params\":{{\"text\":\"{payload}\"}}}}\n",
                self.next
            );
            answer.clear();
            let asked = Instant::now();
            self.to.write_all(line.as_bytes())?;
            self.from.read_line(&mut answer)?;
            times.push(asked.elapsed());
            if !answer.contains(&payload) {
                return Err(io::Error::other("a wrong answer"));
            }
        }
        times.sort();
        Ok(times)
    }

    fn end(self) -> io::Result<()> {
        let Route { mut child, to, .. } = self;
        drop(to);
        child.wait().map(drop)
    }
}
