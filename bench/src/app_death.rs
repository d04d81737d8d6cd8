//! From the kill of an app to the end of its server, while another process keeps the pipe open: what
//! a guarded server (`notes`) takes on top of the exit event itself.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use serde_json::json;

use crate::stats::{micros, percentile};
use crate::{Options, Outcome, beside_us};

/// No server may take longer.
const BOUND: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let dir = std::env::temp_dir().join(format!("kennel-bench-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let times: io::Result<Vec<Duration>> = (0..options.count(500, 20))
        .map(|_| one_death(&dir))
        .collect();
    std::fs::remove_dir_all(&dir)?;
    let mut times = times?;
    times.sort();
    let longest = percentile(&times, 100);
    let outcome = match longest <= BOUND {
        true => Outcome::Pass,
        false => Outcome::Fail,
    };
    report(options, &times, outcome);
    Ok(outcome)
}

fn one_death(dir: &Path) -> io::Result<Duration> {
    let mut app = Command::new(beside_us("tk-app")?)
        .args(["hold", "--"])
        .arg(beside_us("notes")?)
        .args(["serve", "--db"])
        .arg(dir.join("notes.db"))
        .env("KENNEL_RUNTIME_DIR", dir.join("run"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = app.stdout.take().expect("it is piped");
    let ready = BufReader::new(stdout).lines().next();
    if ready.transpose()?.as_deref() != Some("ready") {
        return Err(io::Error::other("the server did not answer its handshake"));
    }
    let (server, holder) = (child_of(&app, "notes")?, child_of(&app, "sleep")?);
    let killed = Instant::now();
    app.kill()?;
    server.wait(None)?;
    let took = killed.elapsed();
    app.wait()?;
    holder.signal(Signal::KILL)?;
    Ok(took)
}

fn child_of(parent: &Child, name: &str) -> io::Result<ProcessRef> {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id()))?;
    children
        .split_whitespace()
        .filter_map(|pid| ProcessRef::open(pid.parse().ok()?).ok())
        .find(|child| {
            let called = std::fs::read_to_string(format!("/proc/{}/comm", child.pid()));
            called.is_ok_and(|called| called.trim_end() == name)
        })
        .ok_or_else(|| io::Error::other(format!("the app has no child called {name}")))
}

fn report(options: &Options, times: &[Duration], outcome: Outcome) {
    let millis = |percent| micros(percentile(times, percent)) / 1000.0;
    let (p50, p99, longest) = (millis(50), millis(99), millis(100));
    let pass = outcome == Outcome::Pass;
    let json = json!({"benchmark": "app-death", "p50_ms": p50, "p99_ms": p99, "longest_ms": longest, "pass": pass});
    options.tell(json, || print(times, outcome, [p50, p99, longest]));
}

fn print(times: &[Duration], outcome: Outcome, [p50, p99, longest]: [f64; 3]) {
    println!(
        "From the kill of an app to the end of its server, with the pipe held open elsewhere,"
    );
    println!(
        "{} times. The server takes its leave: it closes its database and its lock.",
        times.len()
    );
    println!("  p50 {p50:.2} ms, p99 {p99:.2} ms, longest {longest:.2} ms");
    println!(
        "{}: the longest must stay below {:.0} ms",
        outcome.word(),
        micros(BOUND) / 1000.0
    );
}
